"""Per-record gradients: equal to one backward pass per record, whatever the chunk, the module or the values."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from summing import Summed
from torch import nn

from tacit.errors import InvalidInput, MechanismMismatch
from tacit.release import QUERIES
from tacit.torch import RecordLoss
from tacit.torch.gradients import PerRecordGradients, chunk_for
from tacit.torch.objective import Objective
from tacit.torch.records import Records


def cnn() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def images(n: int = 11) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    return torch.randn(n, 1, 6, 6, generator=g), torch.randint(0, 3, (n,), generator=g)


def by_hand(model, loss_fn, X, y, C) -> torch.Tensor:
    """Σ of clipped gradients by plain autograd, one record at a time."""
    total = 0.0
    for x, t in zip(X, y, strict=True):
        model.zero_grad()
        loss_fn(model(x[None]), t[None]).backward()
        g = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.requires_grad]).double()
        total = total + g * min(1.0, C / float(g.norm()))
    return total


def summed(total: Summed, objective: Objective, mask: np.ndarray | None = None) -> np.ndarray:
    theta = objective.flatten(objective.trainable()).numpy()[None]
    return total.total(theta, np.ones((1, total.records), bool) if mask is None else mask[None])[0]


@pytest.mark.parametrize("chunk", [1, 2, 5, 64])
@pytest.mark.parametrize("C", [1e-3, 0.7, 1e3])
@pytest.mark.parametrize("vectorised", [True, False])
def test_it_is_one_backward_pass_per_record_whatever_the_chunk(chunk, C, vectorised):
    model, (X, y) = cnn(), images()
    objective = Objective(model, nn.CrossEntropyLoss())
    total = Summed(objective, Records((X, y)), C, chunk_size=chunk, vectorised=vectorised)
    expected = by_hand(model, nn.CrossEntropyLoss(), X, y, C)
    np.testing.assert_allclose(summed(total, objective), expected, rtol=2e-5, atol=2e-6 * float(expected.abs().max()))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_the_reduction_of_the_loss_does_not_matter(reduction):
    objective = Objective(cnn(), nn.CrossEntropyLoss(reduction=reduction))
    reference = Objective(cnn(), nn.CrossEntropyLoss())
    a, b = (summed(Summed(o, Records(images()), 1.0), o) for o in (objective, reference))
    np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-8)


def test_contributions_are_the_gradients_before_clipping():
    model, (X, y) = cnn(), images(5)
    objective = Objective(model, nn.CrossEntropyLoss())
    total = Summed(objective, Records((X, y)), 1e6, chunk_size=2)
    theta = objective.flatten(objective.trainable()).numpy()[None]
    rows = total.contributions(theta, np.arange(5))
    assert rows.shape == (1, 5, objective.size)
    np.testing.assert_allclose(rows[0].sum(axis=0), summed(total, objective), rtol=1e-5, atol=1e-7)


def test_only_the_batch_is_read_and_an_empty_one_gives_zero():
    objective = Objective(cnn(), nn.CrossEntropyLoss())

    class Watched(torch.utils.data.Dataset):
        seen: list[int] = []  # noqa: RUF012

        def __len__(self) -> int:
            return 11

        def __getitem__(self, i: int):
            self.seen.append(i)
            return images()[0][i], images()[1][i]

    total = Summed(objective, Records(Watched()), 1.0)
    mask = np.zeros(11, bool)
    assert not summed(total, objective, mask).any()
    assert Watched.seen == []
    mask[[2, 7]] = True
    half = summed(total, objective, mask)
    assert Watched.seen == [2, 7]
    np.testing.assert_allclose(
        half, summed(Summed(objective, Records(images()), 1.0), objective, mask), rtol=1e-6, atol=1e-9
    )


def test_frozen_and_adapter_parameters():
    model = cnn()
    for p in model[:-1].parameters():
        p.requires_grad_(False)
    X, y = images()
    objective = Objective(model, nn.CrossEntropyLoss())
    assert objective.size == 16 * 3 + 3
    total = Summed(objective, Records((X, y)), 0.5)
    expected = by_hand(model, nn.CrossEntropyLoss(), X, y, 0.5)
    np.testing.assert_allclose(summed(total, objective), expected, rtol=1e-5, atol=1e-7)


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4, bias=False)
        self.outer = nn.Linear(4, 4, bias=False)
        self.outer.weight = self.inner.weight

    def forward(self, x):
        return self.outer(torch.tanh(self.inner(x)))


def test_tied_parameters_are_one():
    torch.manual_seed(0)
    model, X, y = Tied(), torch.randn(6, 4), torch.randn(6, 4)
    objective = Objective(model, nn.MSELoss())
    assert objective.size == 16
    total = Summed(objective, Records((X, y)), 0.1)
    np.testing.assert_allclose(summed(total, objective), by_hand(model, nn.MSELoss(), X, y, 0.1), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30, 1e-30])
def test_hostile_records_neither_poison_nor_stretch_the_sum(bad):
    """Opacus: one NaN row poisons all parameters."""
    model = nn.Linear(4, 1)
    X, y = torch.randn(6, 4), torch.randn(6, 1)
    X[3] = bad
    objective = Objective(model, nn.MSELoss())
    others = np.ones(6, bool)
    others[3] = False
    total = Summed(objective, Records((X, y)), 1.0, chunk_size=4)
    all_of_them, rest = summed(total, objective), summed(total, objective, others)
    assert np.isfinite(all_of_them).all()
    assert np.linalg.norm(all_of_them - rest) <= 1.0
    if not np.isfinite(bad):
        np.testing.assert_allclose(all_of_them, rest, rtol=1e-12)


def test_a_clipped_gradient_in_float32_is_not_longer_than_declared():
    torch.manual_seed(0)
    objective = Objective(nn.Linear(300, 20), nn.MSELoss())
    total = Summed(objective, Records((torch.randn(40, 300), 50 * torch.randn(40, 20))), 0.3)
    mask = np.zeros(40, bool)
    for i in range(40):
        mask[:] = False
        mask[i] = True
        assert 0.2999 < np.linalg.norm(summed(total, objective, mask)) <= 0.3


def test_the_sum_is_under_record_and_replay():
    assert QUERIES["per-record-gradients"] is PerRecordGradients


# -- modules --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "norm", [nn.BatchNorm2d(4), nn.BatchNorm2d(4, track_running_stats=False).eval(), nn.SyncBatchNorm(4)]
)
def test_batch_norm_is_refused_with_the_remedy(norm):
    model = nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Flatten())
    with pytest.raises(InvalidInput, match=r"1 is a .*BatchNorm.*GroupNorm"):
        Objective(model, nn.CrossEntropyLoss())


def test_batch_norm_with_public_statistics_is_a_constant():
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4).eval(), nn.Flatten(), nn.Linear(64, 3))
    objective, (X, y) = Objective(model, nn.CrossEntropyLoss()), images()
    total = Summed(objective, Records((X, y)), 1.0)
    np.testing.assert_allclose(
        summed(total, objective), by_hand(model, nn.CrossEntropyLoss(), X, y, 1.0), rtol=1e-4, atol=1e-6
    )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.head = nn.LSTM(3, 5, batch_first=True), nn.Linear(5, 2)

    def forward(self, x):
        return self.head(self.rnn(x)[0][:, -1])


@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_recurrent_models_run_one_record_at_a_time_if_they_must():
    torch.manual_seed(0)
    model, X, y = Recurrent(), torch.randn(5, 7, 3), torch.randint(0, 2, (5,))
    objective = Objective(model, nn.CrossEntropyLoss())
    expected = by_hand(model, nn.CrossEntropyLoss(), X, y, 0.5)
    slow = Summed(objective, Records((X, y)), 0.5, vectorised=False)
    np.testing.assert_allclose(summed(slow, objective), expected, rtol=1e-4, atol=1e-6)
    fast = Summed(objective, Records((X, y)), 0.5)  # vmap falls back to a loop of its own, with a warning
    np.testing.assert_allclose(summed(fast, objective), expected, rtol=1e-4, atol=1e-6)


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 2), nn.Linear(3, 2)

    def forward(self, x):
        return self.a(x) if x.sum().item() > 0 else self.b(x)


def test_models_that_look_at_values_are_told_the_way_out():
    torch.manual_seed(0)
    model, X, y = Branching(), torch.randn(5, 3), torch.randint(0, 2, (5,))
    objective = Objective(model, nn.CrossEntropyLoss())
    with pytest.raises(InvalidInput, match="vectorised=False"):
        PerRecordGradients(objective, 0.5).dry_run(Records((X, y)))
    one_by_one = Summed(objective, Records((X, y)), 0.5, vectorised=False)
    assert np.isfinite(summed(one_by_one, objective)).all()


def test_a_loss_that_calls_the_model_itself():
    torch.manual_seed(0)
    model, X = nn.Linear(3, 3), torch.randn(6, 3)
    loss = RecordLoss(lambda call, x: (call(x) - x).square().mean())
    objective = Objective(model, loss)
    total = Summed(objective, Records(X), 0.3)
    np.testing.assert_allclose(summed(total, objective), by_hand(model, nn.MSELoss(), X, X, 0.3), rtol=1e-5, atol=1e-7)


def test_one_number_per_record_is_demanded():
    objective = Objective(nn.Linear(3, 2), nn.MSELoss(reduction="none"))
    with pytest.raises(InvalidInput, match="one number"):
        PerRecordGradients(objective, 1.0).dry_run(Records((torch.randn(4, 3), torch.randn(4, 2))))


def test_shapes_are_told_of_made_up_records_and_nothing_of_others():
    objective = Objective(nn.Linear(3, 2), nn.CrossEntropyLoss())
    data = Records((torch.randn(4, 5), torch.zeros(4, dtype=torch.int64)))
    with pytest.raises(InvalidInput, match=r"fails on the records: .*shape"):
        PerRecordGradients(objective, 1.0).dry_run(data)
    label = Records((torch.randn(4, 3), torch.full((4,), 77)))
    for rows in (data, label):
        assert not summed(Summed(objective, rows, 1.0, vectorised=False), objective).any()


@pytest.mark.parametrize(("size", "chunk"), [(10, 64), (1_000_000, 64), (10_000_000, 6), (10**9, 1)])
def test_large_models_get_small_chunks(size, chunk):
    assert chunk_for(size) == chunk


# -- records --------------------------------------------------------------------------------------------------------


def test_arrays_tensors_and_datasets_are_the_same_records():
    X, y = images()
    forms = [
        (X, y),
        [X.numpy().astype(np.float64), y.numpy()],
        torch.utils.data.TensorDataset(X, y),
        [(a, int(b)) for a, b in zip(X, y, strict=True)],
        [(a.numpy(), b) for a, b in zip(X, y, strict=True)],
        torch.utils.data.Subset(torch.utils.data.TensorDataset(X, y), range(11)),
    ]
    objective = Objective(cnn(), nn.CrossEntropyLoss())
    first = None
    for form in forms:
        value = summed(Summed(objective, Records(form), 1.0), objective)
        first = value if first is None else first
        np.testing.assert_allclose(value, first, rtol=1e-6, atol=1e-9)


def test_fingerprints_tell_data_and_order_apart():
    X, y = images()
    here = Records((X, y)).fingerprint()
    assert Records((X.clone(), y.clone())).fingerprint() == here
    assert Records((X.flip(0), y.flip(0))).fingerprint() != here
    other = X.clone()
    other[10, 0, 5, 5] += 1e-6
    assert Records((other, y)).fingerprint() != here


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ((torch.zeros(3), torch.zeros(4)), "differ in length"),
        ((), "no records"),
        ((np.array(["a"]), np.array([1])), "numbers"),
        (5, "tuple of tensors"),
        ((torch.tensor(1.0),), "no records"),
        (tuple((torch.zeros(3), torch.tensor(1)) for _ in range(4)), "a list of such tuples"),
        ([(torch.zeros(3), 1), (torch.zeros(4), 0)], "differ in shape"),
        ([({"x": torch.zeros(3)}, 1)], "tuples of tensors or numbers"),
        ([(np.ma.masked_equal(np.ones(3), 1), 1)], "masked"),
    ],
)
def test_what_is_not_records_is_refused(data, words):
    with pytest.raises(InvalidInput, match=words):
        Records(data)


def test_loaders_and_streams_are_refused():
    data = torch.utils.data.TensorDataset(*images())
    with pytest.raises(MechanismMismatch, match=r"its \.dataset"):
        Records(torch.utils.data.DataLoader(data))

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(())

    with pytest.raises(InvalidInput, match="iterable"):
        Records(Stream())


class Doubled(torch.utils.data.TensorDataset):
    """As people augment pictures."""

    def __getitem__(self, i):
        x, y = super().__getitem__(i)
        return 2 * x, y


def test_what_a_dataset_does_to_its_items_is_done():
    X, y = torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 0])
    x, _ = Records(Doubled(X, y)).take(np.array([2]))
    assert torch.equal(x, 2 * X[2:])
