"""Checkpoints cannot be turned into further releases, lose a mark, or escape a ledger."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from torch import nn

from tacit.errors import InvalidInput, MechanismMismatch
from tacit.run.randomness import SEEDED
from tacit.run.sampling import Batches
from tacit.torch import PrivateTrainer, TrainingPlan
from tacit.torch import checkpoint as files
from tacit.torch.gradients import PerRecordGradients

torch.set_num_threads(1)
G = torch.Generator().manual_seed(0)
X, Y = torch.randn(60, 4, generator=G), torch.randint(0, 3, (60,), generator=G)
LOSS = nn.CrossEntropyLoss()


@pytest.fixture(autouse=True)
def _state(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))


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


class Items:
    """A map-style dataset."""

    def __init__(self, items) -> None:
        self.items = items

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, i):
        item = self.items[i]
        return item() if callable(item) else item


def test_two_runs_from_one_checkpoint_do_not_cancel_each_others_noise(tmp_path, monkeypatch):
    """z_t is named after (t, sum_t) only, but row t of C⁻¹Z also holds z_{t−1}.

    Restore one checkpoint twice and take other learning rates (post-processing): the sums of step s+1 differ, and so do
    z_{s+1}. If the batch of step s+2 is empty, both runs draw the same z_{s+2}: the difference of the releases of step
    s+2 is −c/d·σ(x_A − x_B), which takes the noise off the difference of those of step s+1, to the last bit.
    """
    data = (X.double(), torch.randn(60, 1, generator=torch.Generator().manual_seed(1)).double())
    clean: list[np.ndarray] = []
    kept = PerRecordGradients.total

    def spy(self, state, batch):
        clean.append(kept(self, state, batch))
        return clean[-1].copy()

    monkeypatch.setattr(PerRecordGradients, "total", spy)

    def make():
        torch.manual_seed(0)
        return plan(batch_size=1, bands=2, steps=60), nn.Linear(4, 1, bias=False).double()

    def released(p, model, rate):
        for batch in p.batches(data):
            before = model.weight.detach().clone()
            p.step(model, nn.MSELoss(), batch, optimizer=torch.optim.SGD(model.parameters(), lr=rate))
            return ((before - model.weight.detach()) / rate).numpy().ravel(), clean[-1].ravel()

    def chosen(self, step):
        return np.broadcast_to((np.arange(60) < 10) & (step != 3), (1, 60))

    monkeypatch.setattr(Batches, "mask", chosen)  # by chance, an empty batch after one that differs is rare
    first, model = make()
    C = first.noise.strategy.bands
    released(first, model, 0.1)
    first.save(tmp_path / "c", model)
    runs = []
    for rate in (0.1, 10.0):
        path = tmp_path / f"{rate}"  # a copy each: beside one file, the journal would refuse the second run
        path.write_bytes((tmp_path / "c").read_bytes())
        p, m = make()
        p.restore(path, m, data)
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
    """The digest of a plan leaves the seed out, and the mark comes from plan.seed, not from the channel."""
    p, m = plan(seed=1), linear()
    go(p, m, 3)
    p.save(tmp_path / "c", m)
    again, other = plan(), linear()
    try:
        again.restore(tmp_path / "c", other, (X, Y))
    except MechanismMismatch:
        return
    assert SEEDED in again.certificate.marks


def test_a_seeded_run_stays_marked_in_the_trainer(tmp_path):
    p, m = plan(seed=1), linear()
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


def test_the_seed_is_part_of_what_processes_and_checkpoints_agree_on():
    assert plan(seed=1).digest != plan().digest


def test_a_ledger_that_never_saw_the_run_is_charged_when_it_is_restored(tmp_path):
    """Begin without a budget, save, restore with one: the ledger stays empty, the steps are taken."""
    from tacit.ledger import Ledger

    p, m = plan(), linear()
    go(p, m, 3)
    p.save(tmp_path / "c", m)
    ledger = Ledger(tmp_path / "b.ledger", 500.0, 1e-3, adjacency="zero-out")
    again, other = plan(budget=ledger), linear()
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
