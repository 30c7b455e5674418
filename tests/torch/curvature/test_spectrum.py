"""From a model and public data to eigenvalues."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import Dataset, TensorDataset

from tacit.errors import InvalidInput
from tacit.noise import compress_spectrum
from tacit.torch.curvature import hessian_spectrum
from tacit.torch.objective import RecordLoss

torch.set_num_threads(1)
DIGITS = (load_digits().data / 16).astype(np.float32)
CE = nn.CrossEntropyLoss()


def build(name: str) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return {
            "linear": lambda: nn.Linear(64, 10),
            "perceptron": lambda: nn.Sequential(nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 10)),
            "relu": lambda: nn.Sequential(nn.Linear(64, 10), nn.ReLU(), nn.Linear(10, 10)),
            "cnn": lambda: nn.Sequential(
                nn.Unflatten(1, (1, 8, 8)),
                nn.Conv2d(1, 4, 3, stride=2, padding=1),
                nn.GroupNorm(2, 4),
                nn.ReLU(),
                nn.Conv2d(4, 6, 3, stride=2, padding=1),
                nn.GroupNorm(2, 6),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(24, 10),
            ),
        }[name]()


@pytest.mark.parametrize("epochs", [0, 5])
@pytest.mark.parametrize("name", ["linear", "perceptron", "relu", "cnn"])
def test_the_tail_bounds_the_true_one(name: str, epochs: int) -> None:
    """Where the full Hessian is known: top exact, the guaranteed bound holds, the tail bounds too, without waste."""
    settings = {"classes": 10, "pretrain_epochs": epochs, "random_state": 3}
    full = hessian_spectrum(build(name), CE, DIGITS[:100], **settings)
    part = hessian_spectrum(build(name), CE, DIGITS[:100], method="lanczos", top=12, **settings)
    assert (full.method, part.method) == ("full", "lanczos")
    assert part.verified
    assert np.allclose(part.top, full.eigenvalues[:12], rtol=1e-3)
    slack = 1e-5 * full.eigenvalues[0]  # rounding of single precision
    assert (part.upper[12:] + slack >= full.eigenvalues[12:]).all()
    assert (part.eigenvalues[12:] + slack >= full.eigenvalues[12:]).all()
    assert part.eigenvalues.sum() < 2 * full.eigenvalues.sum()
    assert part.quadrature.sum() == pytest.approx(full.eigenvalues.sum(), rel=0.25)
    count = part.count_above
    assert count.low - 2 * count.standard_error <= full.count_above.estimate <= count.high + 2 * count.standard_error
    for spectrum in (full, part):
        assert spectrum.eigenvalues.shape == spectrum.upper.shape == (sum(p.numel() for p in build(name).parameters()),)
        assert spectrum.eigenvalues.dtype == np.float64
        assert (spectrum.eigenvalues >= 0).all()
        assert (np.diff(spectrum.eigenvalues) <= 0).all()
        assert compress_spectrum(spectrum.eigenvalues, 0.1, 50).weight.sum() > 0


def test_equation_4_alone_is_not_a_bound() -> None:
    """Found on digits: the curve that bounds the computed eigenvalues is exceeded by the tail, several times."""
    full = hessian_spectrum(build("linear"), CE, DIGITS[:300], classes=10).eigenvalues
    part = hessian_spectrum(build("linear"), CE, DIGITS[:300], classes=10, method="lanczos", top=20)
    tail = np.arange(21, int(part.fit.count))
    assert (full[:20] <= part.fit(np.arange(1, 21)) * (1 + 1e-3)).all()
    assert (full[tail - 1] / part.fit(tail)).max() > 3
    assert (full[20:] <= part.eigenvalues[20:] + 1e-5).all()


def test_logistic_regression_at_zero_is_a_quarter_of_the_gram_matrix() -> None:
    model = nn.Linear(64, 1, bias=False)
    nn.init.zeros_(model.weight)
    found = hessian_spectrum(model, nn.BCEWithLogitsLoss(), DIGITS[:100], classes=2, pretrain_epochs=0)
    X = DIGITS[:100].astype(float)
    assert np.allclose(found.eigenvalues, np.maximum(np.linalg.eigvalsh(X.T @ X / 400)[::-1], 0), atol=1e-9)


def test_least_squares_needs_no_classes() -> None:
    found = hessian_spectrum(nn.Linear(64, 2), nn.MSELoss(), DIGITS[:50], pretrain_epochs=1)
    X = np.hstack([DIGITS[:50], np.ones((50, 1))]).astype(float)
    want = np.sort(np.repeat(np.linalg.eigvalsh(X.T @ X / 50), 2))[::-1]  # each of two outputs, mean over both
    assert np.allclose(found.eigenvalues, np.maximum(want, 0), atol=1e-9)


@pytest.mark.parametrize("method", ["full", "lanczos"])
def test_nothing_of_the_users_changes(method: str) -> None:
    model = nn.Sequential(nn.Linear(64, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, 10)).train()
    before, state = copy.deepcopy(model.state_dict()), torch.random.get_rng_state()
    numpy_state = np.random.get_state()[1].copy()  # noqa: NPY002
    X = DIGITS[:40].copy()
    first, second = (hessian_spectrum(model, CE, X, classes=10, method=method, top=3) for _ in range(2))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.training
    assert model[1].training
    assert torch.equal(torch.random.get_rng_state(), state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002
    assert (DIGITS[:40] == X).all()
    assert (first.eigenvalues == second.eigenvalues).all()
    with pytest.raises(ValueError, match="read-only"):
        first.eigenvalues[0] = 1.0


def test_frozen_layers_do_not_count() -> None:
    model = build("perceptron")
    model[0].requires_grad_(False)
    assert len(hessian_spectrum(model, CE, DIGITS[:60], classes=10, pretrain_epochs=1).eigenvalues) == 130


def test_labels_are_ignored_unless_asked_for() -> None:
    model, y = build("linear"), load_digits().target[:60]
    quick = {"method": "lanczos", "top": 3}
    plain = hessian_spectrum(model, CE, DIGITS[:60], classes=10, **quick)
    forms = [
        (torch.as_tensor(DIGITS[:60]), torch.as_tensor(y)),
        (DIGITS[:60], np.zeros(60, dtype=np.int64)),
        (DIGITS[:60], None),
        TensorDataset(torch.as_tensor(DIGITS[:60]), torch.as_tensor(y)),
        TensorDataset(torch.as_tensor(DIGITS[:60])),
        [*map(torch.as_tensor, (DIGITS[:60], y))],
        DIGITS[:60].astype(np.float64),
    ]
    for data in forms:
        assert np.allclose(hessian_spectrum(model, CE, data, classes=10, **quick).top, plain.top, atol=1e-6)
    own = hessian_spectrum(model, CE, forms[0], random_labels=False, **quick)
    assert not np.allclose(own.top, plain.top, atol=1e-6)


class Items(Dataset):
    def __len__(self) -> int:
        return 30

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        return torch.as_tensor(DIGITS[i]), 3


def test_a_dataset_of_pairs_and_segmentation_labels() -> None:
    assert hessian_spectrum(build("linear"), CE, Items(), classes=10).records == 30
    pixels = nn.Sequential(nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 3, 3, padding=1))
    assert hessian_spectrum(pixels, CE, DIGITS[:20], classes=3, pretrain_epochs=1).top[0] > 0


def test_a_record_loss_without_labels() -> None:
    loss = RecordLoss(lambda model, x: ((model(x) - x) ** 2).mean())
    found = hessian_spectrum(
        nn.Linear(12, 12, bias=False), loss, DIGITS[:30, 20:32], random_labels=False, pretrain_epochs=0
    )
    X = DIGITS[:30, 20:32].astype(float)
    assert found.top[0] == pytest.approx(np.linalg.eigvalsh(X.T @ X)[-1] * 2 / 30 / 12, rel=1e-6)


def test_a_model_without_curvature_and_one_with_little() -> None:
    flat = RecordLoss(lambda model, x: model(x).mean())
    found = hessian_spectrum(
        nn.Linear(64, 4), flat, DIGITS[:30], random_labels=False, pretrain_epochs=0, method="lanczos"
    )
    assert not found.eigenvalues.any()
    assert "largest=0" in repr(found)
    few = hessian_spectrum(nn.Linear(64, 1), nn.MSELoss(), DIGITS[:5], method="lanczos", top=8)
    assert len(few.top) == 5
    assert few.fit is None
    assert (few.eigenvalues[5:] == 0).all()


def test_repr_and_picture(tmp_path) -> None:
    for method in ("full", "lanczos"):
        found = hessian_spectrum(build("linear"), CE, DIGITS[:60], classes=10, method=method)
        assert repr(found).startswith("Spectrum(p=650, largest=")
        assert "60 public records" in repr(found)
        found.plot(tmp_path / f"{method}.png")
        assert (tmp_path / f"{method}.png").stat().st_size > 10_000


def test_progress_shows_counts_only(capsys) -> None:
    hessian_spectrum(build("linear"), CE, DIGITS[:60], classes=10, method="lanczos", progress=True)
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "loss" not in shown.err


REFUSALS = [
    ({"model": nn.Sequential(nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))}, "mixes the records"),
    ({"model": "net"}, "torch.nn.Module"),
    ({"loss_fn": lambda out, y: nn.functional.cross_entropy(out - out.mean(0), y)}, "neither the mean nor the sum"),
    ({"loss_fn": nn.CrossEntropyLoss(reduction="none")}, "one number for a batch"),
    ({"data": DIGITS[:0]}, "no record"),
    ({"data": np.where(DIGITS[:9] > 0.9, np.nan, DIGITS[:9])}, "NaN or infinite numbers in 9 records"),
    ({"data": DIGITS[:9, :30]}, "does not take the inputs"),
    ({"data": (DIGITS[:9], np.zeros(8, dtype=int))}, "one leading axis in common"),
    ({"data": "digits"}, "tensor or array"),
    ({"data": np.array(3.0)}, "single number"),
    ({"data": (None, DIGITS[:9])}, "may be None"),
    ({"data": np.array(["a", "b"])}, "not an array of numbers"),
    ({"classes": None}, "give classes="),
    ({"classes": None, "loss_fn": lambda out, y: nn.functional.cross_entropy(out, y)}, "give classes="),
    ({"classes": None, "loss_fn": nn.BCEWithLogitsLoss()}, "give classes="),
    ({"classes": None, "data": (DIGITS[:9], np.zeros(9, dtype=int))}, "whole numbers"),
    ({"classes": 1}, "at least 2"),
    ({"classes": 12}, "does not take labels 0…11"),
    ({"random_labels": False}, "holds no labels"),
    ({"method": "exact"}, "'lanczos'"),
    ({"top": 0}, "top"),
    ({"probes": 0}, "probes"),
    ({"threshold": 0.0}, "threshold"),
    ({"pretrain_epochs": -1}, "pretrain_epochs"),
    ({"chunk_size": 0}, "chunk_size"),
    ({"random_state": 1.5}, "random_state"),
    ({"learning_rate": 1e30, "loss_fn": nn.MSELoss(), "classes": None}, "diverged"),
]


@pytest.mark.parametrize(("change", "message"), REFUSALS, ids=[message for _, message in REFUSALS])
def test_refusals_say_what_to_do(change, message) -> None:
    settings = {"model": nn.Linear(64, 10), "loss_fn": CE, "data": DIGITS[:9], "classes": 10} | change
    with pytest.raises(InvalidInput, match=message) as caught:
        hessian_spectrum(**settings)
    assert "\n" not in str(caught.value)
