"""Attacks on ``tacit.torch``: most of them succeeded against its first draft. Every test states what ought to hold."""

from __future__ import annotations

import contextlib
import os
import types

import numpy as np
import pytest
import torch
from summing import Summed
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from tacit.errors import InvalidInput, MechanismMismatch
from tacit.ledger.journal import Journal
from tacit.mechanism import CyclicPoisson
from tacit.release import SEEDED
from tacit.torch import PrivateTrainer, TrainingPlan
from tacit.torch import checkpoint as files
from tacit.torch.gradients import PerRecordGradients
from tacit.torch.objective import Objective
from tacit.torch.records import Records

torch.set_num_threads(1)
G = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 4, generator=G), torch.randint(0, 3, (60,), generator=G)
LOSS = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))


def total(model, loss, data, mask, C=1.0, **how) -> np.ndarray:
    objective = Objective(model, loss)
    summed = Summed(objective, Records(data), C, **how)
    theta = objective.flatten(objective.trainable()).numpy()[None]
    return summed.total(theta, np.asarray(mask, bool)[None])[0]


def one_by_one(model, loss, data, count, C=1.0, **how) -> np.ndarray:
    return sum(total(model, loss, data, np.eye(count)[i], C, **how) for i in range(count))


def plan(n=60, **change) -> TrainingPlan:
    settings = {"noise_multiplier": 1.0, "delta": 1e-4, "batch_size": 10, "steps": 15, "bands": 4}
    return TrainingPlan(n, **{**settings, **change})


def linear() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 3)


def go(p, m, until=99, loss=LOSS, data=(X, Y), **how) -> None:
    for batch in p.batches(data):
        p.step(m, loss, batch, **how)
        if p.steps_done >= until:
            break


class Alone(nn.Module):
    """A model that is no chain."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


# == 1. a record's contribution depends on other records =====================================================


@pytest.mark.parametrize("where", ["layer", "late hook", "global hook"])
def test_a_trusted_layer_whose_call_was_changed_is_not_trusted(where):
    """layers.py checks type and own hooks once; instance ``forward``, later and global hooks see the whole chunk."""
    torch.manual_seed(0)
    model, handle = nn.Sequential(nn.Linear(4, 3)), None
    objective = Objective(model, LOSS)
    centre = lambda module, inputs, out: out - out.mean(dim=0) if isinstance(module, nn.Linear) else None  # noqa: E731
    if where == "layer":  # what accelerate, peft and friends do
        old = model[0].forward
        model[0].forward = lambda x: old(x - x.mean(dim=0))
    summed = Summed(objective, Records((X[:20] * 5, Y[:20])), 1.0)
    if where == "late hook":
        handle = model[0].register_forward_hook(centre)
    if where == "global hook":
        handle = register_module_forward_hook(centre)
    try:
        theta = objective.flatten(objective.trainable()).numpy()[None]
        everybody = np.ones((1, 20), bool)
        without = everybody.copy()
        without[0, 0] = False
        alone = sum(summed.total(theta, np.eye(20, dtype=bool)[[i]])[0] for i in range(20))
        together = summed.total(theta, everybody)[0]
    finally:
        if handle is not None:
            handle.remove()
    np.testing.assert_allclose(together, alone, atol=1e-5)


class Running(nn.Module):
    """A running mean in a plain attribute: vmap lets the batched tensor escape, the next chunk reads all of it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mean = nn.Linear(4, 3), torch.zeros(())

    def forward(self, x):
        out = self.layer(x - self.mean.mean())
        self.mean = 0.5 * self.mean.mean() + 0.5 * x.detach().mean()
        return out


class RunningLoss:
    """A loss divided by the one before."""

    def __init__(self) -> None:
        self.last = torch.zeros(())

    def __call__(self, output, target):
        value = LOSS(output, target)
        out = value / (1 + self.last.sum())
        self.last = value.detach()
        return out


@pytest.mark.parametrize("vectorised", [True, False])
@pytest.mark.parametrize("stateful", ["model", "loss", "loss of a chain"])
def test_state_that_a_model_or_loss_keeps_does_not_carry_records_to_others(stateful, vectorised):
    """Chunk 2 after chunk 1 must be chunk 2 by itself (or be refused)."""

    def summed(mask):
        torch.manual_seed(1)
        model = {"model": Running, "loss": Alone}.get(stateful, lambda: nn.Linear(4, 3))()
        loss = LOSS if stateful == "model" else RunningLoss()
        return total(model, loss, (X[:8] * 5, Y[:8]), mask, 50.0, chunk_size=4, vectorised=vectorised)

    try:
        both, first, second = summed([1] * 8), summed([1] * 4 + [0] * 4), summed([0] * 4 + [1] * 4)
    except InvalidInput:
        return
    if not vectorised:  # each record by itself
        first, second = sum(summed(np.eye(8)[i]) for i in range(8)), 0
    np.testing.assert_allclose(both, first + second, atol=1e-5)


def test_calls_of_the_model_do_not_tell_how_many_records_were_read():
    """A counter in a model says how large the secret batch was, exactly, if vectorised=False."""

    class Counting(Alone):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return self.layer(x)

    def counted(mask):
        model = Counting()
        try:
            total(model, LOSS, (X[:8], Y[:8]), mask, vectorised=False)
        except InvalidInput:
            return None
        return model.calls

    assert counted([1] * 3 + [0] * 5) == counted([1] * 4 + [0] * 4)


def test_parameters_changed_in_place_by_one_record_are_not_seen_by_the_next():
    """nn.Embedding(max_norm=…) renormalises rows that are looked up: vectorised=False shares them in the batch."""

    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 3, max_norm=0.1)

        def forward(self, tokens):
            return self.table(tokens) @ self.table.weight.T

    torch.manual_seed(0)
    model, tokens = Tied(), torch.arange(5)
    try:
        together = total(model, LOSS, (tokens, tokens), [1] * 5, 0.5, vectorised=False)
    except InvalidInput:
        return
    np.testing.assert_allclose(together, one_by_one(model, LOSS, (tokens, tokens), 5, 0.5, vectorised=False), atol=1e-5)


class Items:
    """A map-style dataset."""

    def __init__(self, items) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i):
        item = self.items[i]
        return item() if callable(item) else item


def test_the_type_of_a_record_does_not_depend_on_its_batch():
    """default_collate promotes: 2²⁴+1 beside 0.5 becomes 2²⁴, int64 becomes float."""
    records = Records(Items([(torch.ones(1), 2**24 + 1), (torch.ones(1), 0.5)]))
    (alone,) = records.take([0])[1].tolist()
    try:
        together = records.take([0, 1])[1].tolist()[0]
    except InvalidInput:
        return
    assert together == alone


@pytest.mark.parametrize("which", ["numpy", "random"])
def test_augmentation_draws_from_secret_randomness_whatever_generator_it_uses(which):
    """docs/training.md: "augmentation inside a dataset, too". NumPy's and Python's generators stay the user's.

    With a seed that is known, masks are dealt by position in the batch: a record less shifts everybody's (theorems.md).
    """
    import random

    def seed():
        np.random.seed(0) if which == "numpy" else random.seed(0)  # noqa: NPY002

    def draw():
        return np.random.random() if which == "numpy" else random.random()  # noqa: NPY002

    drawn: list[float] = []

    class Augmented:
        def __len__(self):
            return 60

        def __getitem__(self, i):
            drawn.append(draw())
            return X[i] * (1 if drawn[-1] < 0.5 else -1), Y[i]

    seed()
    expected = [draw() for _ in range(60)]
    p = plan(batch_size=30, bands=1, strategy="dpsgd")
    for batch in p.batches(Augmented()):
        drawn.clear()
        seed()
        p.step(linear(), LOSS, batch)
        if drawn:
            break
    assert drawn != expected[: len(drawn)]


def test_rounding_does_not_let_one_record_move_the_others():
    """A plain linear model with L1 loss. Row i of a product depends on how many rows there are.

    Targets that equal the prediction to the bit have gradient 0, otherwise ±C: a record less in the batch moves the sum
    by its own C (here 0) plus those of others. The sum moves 2C where sensitivity C is accounted.
    """
    torch.manual_seed(0)
    moves = []
    for size in (64, 300, 1000):
        layer, x = nn.Linear(size, 1, bias=False), torch.randn(size)
        for n in range(2, 18):
            with torch.no_grad():
                rows = x.expand(n, size).contiguous()
                target = layer(rows)
            mask = np.ones(n)
            whole = total(nn.Sequential(layer), nn.L1Loss(), (rows, target), mask)
            mask[-1] = 0
            moves.append(np.linalg.norm(whole - total(nn.Sequential(layer), nn.L1Loss(), (rows, target), mask)))
    assert max(moves) <= 1.0


# == 2. other parameters than the model's ====================================================================


def test_a_module_that_occurs_twice_in_a_chain_is_applied_twice():
    """named_children() leaves repeated modules out: relu shared by two places is applied once, silently."""
    torch.manual_seed(0)
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(4, 6), relu, nn.Linear(6, 6), relu, nn.Linear(6, 3))
    fast = total(model, LOSS, (X, Y), [1] * 60)
    np.testing.assert_allclose(fast, total(model, LOSS, (X, Y), [1] * 60, vectorised=False), atol=1e-4)


def test_a_repeated_linear_layer_is_applied_twice():
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(4, 3))
    fast = total(model, LOSS, (X, Y), [1] * 60)
    np.testing.assert_allclose(fast, total(model, LOSS, (X, Y), [1] * 60, vectorised=False), atol=1e-4)


def test_a_sequential_with_a_forward_of_its_own_is_no_chain():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    model.forward = types.MethodType(lambda self, x: x + self[1](self[0](x)), model)
    fast = total(model, LOSS, (X, Y), [1] * 60)
    np.testing.assert_allclose(fast, total(model, LOSS, (X, Y), [1] * 60, vectorised=False), atol=1e-4)


def test_a_layer_that_was_exchanged_during_a_run_is_used():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    objective = Objective(model, LOSS)
    summed = Summed(objective, Records((X, Y)), 1.0)
    model[1] = nn.Tanh()
    theta = objective.flatten(objective.trainable()).numpy()[None]
    found = summed.total(theta, np.ones((1, 60), bool))[0]
    np.testing.assert_allclose(found, total(model, LOSS, (X, Y), [1] * 60), atol=1e-4)


@pytest.mark.parametrize("what", ["model", "layer"])
def test_what_is_passed_to_step_moves(what):
    p, model = plan(), nn.Sequential(linear())
    go(p, model, 2)
    if what == "model":
        model = nn.Sequential(linear())
    else:
        model[0] = linear()
    before = model[0].weight.detach().clone()
    try:
        go(p, model, 4)
    except MechanismMismatch:
        return
    assert not torch.equal(before, model[0].weight)


# == 3. noise, checkpoints, certificates =====================================================================


def test_two_runs_from_one_checkpoint_do_not_cancel_each_others_noise(tmp_path, monkeypatch):
    """z_t is named after (t, sum_t) only, but row t of C⁻¹Z also holds z_{t−1}.

    Restore one checkpoint twice and take other learning rates (post-processing): the sums of step s+1 differ, and so do
    z_{s+1}. If the batch of step s+2 is empty, both runs draw the same z_{s+2}: the difference of the releases of step
    s+2 is −c/d·σ(x_A − x_B), which takes the noise off the difference of those of step s+1, to the last bit.
    """
    data = (X.double(), torch.randn(60, 1, generator=torch.Generator().manual_seed(1)).double())
    clean: list[np.ndarray] = []
    kept = PerRecordGradients.add_up

    def spy(self, rows, at, index, out):
        kept(self, rows, at, index, out)
        clean.append(out.numpy().copy())

    monkeypatch.setattr(PerRecordGradients, "add_up", spy)
    monkeypatch.setattr(Journal, "check", lambda self, count, history: None)  # which would refuse the second run
    monkeypatch.setattr(Journal, "require", lambda self, count, history: None)

    def make():
        torch.manual_seed(0)
        return plan(batch_size=1, bands=2, steps=60), nn.Linear(4, 1, bias=False).double()

    def released(p, model, rate):
        for batch in p.batches(data):
            before = model.weight.detach().clone()
            p.step(model, nn.MSELoss(), batch, optimizer=torch.optim.SGD(model.parameters(), lr=rate))
            return ((before - model.weight.detach()) / rate).numpy().ravel(), clean[-1].ravel()

    def chosen(self, n, replicas, streams):
        return lambda step: np.broadcast_to((np.arange(60) < 10) & (step != 3), (1, 60))

    monkeypatch.setattr(CyclicPoisson, "draw", chosen)  # by chance, an empty batch after one that differs is rare
    first, model = make()
    C = first.noise.strategy.bands
    released(first, model, 0.1)
    first.save(tmp_path / "c", model)
    runs = []
    for rate in (0.1, 10.0):
        p, m = make()
        p.restore(tmp_path / "c", m, data)
        runs.append([released(p, m, rate) for _ in range(3)])
    (a0, a1, a2), (b0, b1, b2) = runs
    np.testing.assert_array_equal(a0[1], b0[1])
    assert np.linalg.norm(a1[1] - b1[1]) > 1e-3  # step 2: other parameters, other sums
    assert not a2[1].any()  # step 3: nobody
    assert not b2[1].any()
    guess = (a1[0] - b1[0]) + C[3, 0] / C[2, 1] * (a2[0] - b2[0])  # from parameters and C only
    assert np.linalg.norm(guess - (a1[1] - b1[1])) > 1e-3, "a difference of clean sums was read off the outputs"


def test_one_checkpoint_does_not_give_many_noisy_views_of_one_sum(tmp_path):
    """Rounding renames noise: restore with other chunk sizes (what people do after running out of memory), average.

    The steps between checkpoint and crash are paid once and released twice (or k times), with independent noise.
    """
    p, m = plan(), linear()
    go(p, m, 3)
    p.save(tmp_path / "c", m)
    releases = []
    for chunk in (1, 2, 3, 4, 5):
        again, other = plan(chunk_size=chunk), linear()
        try:
            again.restore(tmp_path / "c", other, (X, Y))
        except MechanismMismatch:
            return
        before = other.weight.detach().clone()
        go(again, other, 4)
        releases.append((before - other.weight.detach()) * 10 / again.learning_rates[3])
    assert torch.stack(releases).std(dim=0).max() < 1e-3  # noise multiplier 1


def test_the_steps_of_a_checkpoint_are_not_spent_twice_on_different_losses(tmp_path):
    """Nothing ties a checkpoint to its loss, nor counts how often it was restored: twice the releases, one charge."""
    p, m = plan(), linear()
    go(p, m, 3)
    p.save(tmp_path / "c", m)
    done = 0
    for weight in (1.0, -1.0):
        again, other = plan(), linear()
        try:
            again.restore(tmp_path / "c", other, (X, Y))
            go(again, other, loss=lambda out, y, weight=weight: weight * LOSS(out, y))
            done += 1
        except MechanismMismatch:
            pass
    assert done == 1


def test_a_seeded_run_stays_marked_after_restoring(tmp_path):
    """The digest of a plan leaves the seed out, and the mark comes from plan.random_state, not from the channel."""
    p, m = plan(random_state=1), linear()
    go(p, m, 3)
    p.save(tmp_path / "c", m)
    again, other = plan(), linear()
    try:
        again.restore(tmp_path / "c", other, (X, Y))
    except MechanismMismatch:
        return
    assert SEEDED in again.certificate.marks


def test_a_seeded_run_stays_marked_in_the_trainer(tmp_path):
    p, m = plan(random_state=1), linear()
    go(p, m, 3)
    p.save(tmp_path / "c", m)
    trainer = PrivateTrainer(
        linear(), LOSS, noise_multiplier=1.0, delta=1e-4, batch_size=10, epochs=2.5, bands=4, checkpoint=tmp_path / "c"
    )
    try:
        trainer.fit((X, Y), resume=True)
    except MechanismMismatch:
        return
    assert SEEDED in trainer.certificate_.marks


@pytest.mark.parametrize("name", ["noise", "random_state", "n_steps", "ledger", "clip_norm", "adjacency"])
def test_a_plan_cannot_be_changed_after_it_has_begun(name):
    """plan.noise = other.noise makes the certificate say ε = 0.06 for a run of ε = 6.9; random_state = None unmarks."""
    p = plan(random_state=1)
    go(p, linear(), 2)
    value = {"noise": plan(noise_multiplier=50.0).noise, "random_state": None, "n_steps": 3, "adjacency": "add-remove"}
    with pytest.raises((AttributeError, MechanismMismatch)):
        setattr(p, name, value.get(name, 1.0))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_does_not_write_a_checkpoint_with_other_groups(tmp_path):
    """Saving in the background by fork: the child's key is a new one, so a restored run deals records to other groups.

    A record read at step t may then be read at t+1: the columns of C overlap and the certificate is void.
    """
    p, m = plan(), linear()
    go(p, m, 3)
    child = os.fork()
    if child == 0:
        try:
            p.save(tmp_path / "child", m)
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    if not (tmp_path / "child").exists():
        return
    p.save(tmp_path / "parent", m)
    assert files.read(tmp_path / "child").channel.key == files.read(tmp_path / "parent").channel.key


def test_training_twice_is_certified_twice():
    """fit, then fit again (also after an exception): the model has seen two runs, certificate_ tells of one."""
    trainer = PrivateTrainer(linear(), LOSS, noise_multiplier=1.0, delta=1e-4, batch_size=10, epochs=1, bands=2)
    once = trainer.fit((X, Y)).certificate_.epsilon(1e-4)
    try:
        trainer.fit((X, Y))
    except (MechanismMismatch, InvalidInput):
        return
    assert trainer.certificate_.epsilon(1e-4) > once or trainer.certificate_.marks


# == 4. what errors tell =====================================================================================


@pytest.mark.parametrize("vectorised", [True, False])
def test_errors_of_distributions_do_not_show_records(vectorised, monkeypatch):
    """torch.distributions says "(Tensor of shape …) … found invalid values: tensor(-4217.)"; compilers stop that."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)

    def loss(rate, count):
        return -torch.distributions.Poisson(rate.exp()).log_prob(count).sum()

    counts = torch.tensor([[-4217.0]] * 8)
    assert not total(nn.Linear(4, 1), loss, (X[:8], counts), [1] * 8, vectorised=vectorised).any()


@pytest.mark.parametrize(
    "kind", [KeyError, AssertionError, ZeroDivisionError, OverflowError, InvalidInput, StopIteration]
)
def test_no_exception_of_a_model_tells_of_a_record(kind):
    class Raising(Alone):
        def forward(self, x):
            if x[0, 0] > 1:
                raise kind(f"{int(x[0, 0])}")
            return self.layer(x)

    rows = X[:8].clamp(max=0.5)
    rows[3] = 4217.0
    found = total(Raising(), LOSS, (rows, Y[:8]), [1] * 8, vectorised=False)
    assert np.isfinite(found).all()
    assert found.any()


def test_unequal_lengths_do_not_tell_n_under_add_remove():
    with pytest.raises(InvalidInput) as caught:
        plan(adjacency="add-remove").batches((X[:57], Y[:58]))
    assert "57" not in str(caught.value)


def test_no_records_at_all_is_not_told_under_add_remove():
    p = plan(adjacency="add-remove", batch_size=1, bands=1, strategy="dpsgd")
    go(p, linear(), 1, data=(X[:0], Y[:0]))


def test_a_batch_of_one_fails_no_more_than_a_batch_of_two():
    """F.group_norm counts values per channel over the batch: the chain passes for two records, raises for one."""

    def outcome(mask):
        try:
            total(nn.Sequential(nn.Linear(4, 3), nn.GroupNorm(3, 3)), LOSS, (X[:4], Y[:4]), mask)
        except InvalidInput:
            return "refused"
        return "done"

    assert outcome([1, 0, 0, 0]) == outcome([1, 1, 0, 0])


# == 5. robustness ===========================================================================================


def test_a_checkpoint_that_is_written_can_be_read(tmp_path):
    """np.float64 as learning rate (plan.learning_rates[t]!) is pickled and then refused by weights_only: run lost."""
    p, m = plan(), linear()
    adam = torch.optim.Adam(m.parameters(), lr=p.learning_rates[0])
    go(p, m, 3, optimizer=adam)
    try:
        p.save(tmp_path / "c", m, optimizer=adam)
    except InvalidInput:
        return
    again, other = plan(), linear()
    again.restore(tmp_path / "c", other, (X, Y), optimizer=torch.optim.Adam(other.parameters()))


def test_runs_with_numpy_augmentation_can_be_resumed(tmp_path):
    data = Items([lambda i=i: (X[i] + np.float32(np.random.normal()), Y[i]) for i in range(60)])  # noqa: NPY002
    p, m = plan(), linear()
    go(p, m, 3, data=data)
    p.save(tmp_path / "c", m)
    plan().restore(tmp_path / "c", linear(), data)


def test_bfloat16_models_train_or_are_refused_in_words():
    go(plan(), linear().bfloat16(), 2)


def test_parameters_of_a_sequential_itself_are_no_chain():
    model = nn.Sequential(linear())
    model.register_parameter("scale", nn.Parameter(torch.ones(3)))
    go(plan(), model, 1)


def test_frozen_batch_norm_works_in_the_trainer_as_its_message_says():
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    PrivateTrainer(model, LOSS, noise_multiplier=1.0, delta=1e-4, batch_size=10, epochs=1, bands=2).fit((X, Y))


def test_tiny_epochs_are_one_step_or_refused_in_words():
    assert plan(steps=None, epochs=1e-12).n_steps == 1


# == 6. more marks and charges ===============================================================================


def test_the_seed_is_part_of_what_processes_and_checkpoints_agree_on():
    assert plan(random_state=1).digest != plan().digest


def test_a_ledger_that_never_saw_the_run_is_charged_when_it_is_restored(tmp_path):
    """Begin without a budget, save, restore with one: the ledger stays empty, the steps are taken."""
    from tacit.ledger import Ledger

    p, m = plan(), linear()
    go(p, m, 3)
    p.save(tmp_path / "c", m)
    ledger = Ledger(tmp_path / "b.ledger", 500.0, 1e-3, adjacency="zero-out")
    again, other = plan(ledger=ledger), linear()
    try:
        again.restore(tmp_path / "c", other, (X, Y))
        go(again, other)
    except MechanismMismatch:
        return
    assert len(ledger.entries()) == 1


def test_a_shown_evaluation_stays_declared_after_resuming(tmp_path):
    """Evaluated (perhaps on private data) before the crash, resumed without evaluate_on: the declaration is gone."""
    how = {
        "noise_multiplier": 1.0,
        "delta": 1e-4,
        "batch_size": 10,
        "epochs": 3,
        "bands": 2,
        "checkpoint": tmp_path / "c",
    }

    class Crash(Exception):
        pass

    seen = []

    def metric(output, target):
        seen.append(1)
        if len(seen) == 2:
            raise Crash
        return 0.0

    trainer = PrivateTrainer(linear(), LOSS, **how, checkpoint_every=1)
    with pytest.raises(Crash):
        trainer.fit((X, Y), evaluate_on=(X, Y), metrics={"m": metric})
    again = PrivateTrainer(linear(), LOSS, **how)
    again.fit((X, Y), resume=True)
    assert again.certificate_.marks


# == 7. attacked without success =============================================================================


def test_buffers_are_not_written_to():
    class Keeping(Alone):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(4))

        def forward(self, x):
            with torch.no_grad():
                self.seen.copy_(x[0])
            return self.layer(x)

    for vectorised in (True, False):
        model = Keeping()
        with pytest.raises(InvalidInput):
            go(plan(vectorised=vectorised), model, 1)
        assert not model.seen.any()
        with contextlib.suppress(InvalidInput):  # without a dry run
            total(model, LOSS, (X, Y), [1] * 60, vectorised=vectorised)
        assert not model.seen.any()


def test_batch_norm_switched_to_training_later_leaves_no_statistics():
    for vectorised in (True, False):
        model = nn.Sequential(nn.Conv1d(1, 4, 1), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(16, 3)).eval()
        objective = Objective(model, LOSS)
        summed = Summed(objective, Records((X[:, None], Y)), 1.0, vectorised=vectorised)
        model.train()
        theta = objective.flatten(objective.trainable()).numpy()[None]
        with pytest.raises(InvalidInput):
            summed.total(theta, np.ones((1, 60), bool))
        assert not model[1].running_mean.any()
        assert model[1].num_batches_tracked == 0


@pytest.mark.parametrize(("steps", "bands"), [(1, 4), (5, 3), (6, 9), (9, 2)])
def test_rows_of_noise_are_those_of_the_strategy(steps, bands):
    class Nothing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(4000, dtype=torch.float64))

        def forward(self, x):
            return (self.w * 0).sum() + x

    data = (torch.zeros(20, 1, dtype=torch.float64),) * 2
    p, m, rows = plan(20, noise_multiplier=2.0, batch_size=2, steps=steps, bands=bands, clip_norm=0.5), Nothing(), []
    for batch in p.batches(data):
        before = m.w.detach().clone()
        p.step(m, lambda out, y: (out - y).sum(), batch)
        rows.append(((before - m.w.detach()) * p.batch_size / p.learning_rates[0]).numpy())
    C = np.eye(steps)
    if p.noise.strategy is not None:
        C = np.zeros((steps, steps))
        for j, column in enumerate(p.noise.strategy.bands):
            for i, value in enumerate(column[: steps - j]):
                C[j + i, j] = value
    Z = C @ np.array(rows) / (2.0 * 0.5)
    np.testing.assert_allclose(Z @ Z.T / 4000, np.eye(steps), atol=0.12)
