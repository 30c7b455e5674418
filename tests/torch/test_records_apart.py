"""In training a record's gradient depends on that record alone, whatever a model, a loss or a dataset remembers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook

from tacit.errors import InvalidInput
from tacit.torch import TrainingPlan
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
    summed = PerRecordGradients(objective, Records(data), C, **how)
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


class Alone(nn.Module):
    """A model that is no chain."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)


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
    summed = PerRecordGradients(objective, Records((X[:20] * 5, Y[:20])), 1.0)
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
            total(model, LOSS, (X, Y), [1] * 60, vectorised=vectorised)
        assert not model.seen.any()


def test_batch_norm_switched_to_training_later_leaves_no_statistics():
    for vectorised in (True, False):
        model = nn.Sequential(nn.Conv1d(1, 4, 1), nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(16, 3)).eval()
        objective = Objective(model, LOSS)
        summed = PerRecordGradients(objective, Records((X[:, None], Y)), 1.0, vectorised=vectorised)
        model.train()
        theta = objective.flatten(objective.trainable()).numpy()[None]
        with pytest.raises(InvalidInput):
            summed.total(theta, np.ones((1, 60), bool))
        assert not model[1].running_mean.any()
        assert model[1].num_batches_tracked == 0
