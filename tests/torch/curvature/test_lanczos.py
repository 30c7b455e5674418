"""Lanczos and its density against dense eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tacit.errors import InvalidInput
from tacit.torch.curvature import count_above, lanczos, probe
from tacit.torch.curvature.lanczos import random_unit, sweep


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def matrix(values: np.ndarray, seed: int = 0) -> torch.Tensor:
    Q, _ = np.linalg.qr(np.random.default_rng(seed).standard_normal((len(values), len(values))))
    return torch.as_tensor((Q * values) @ Q.T)


SPECTRA = {
    "wigner": np.linalg.eigvalsh(np.random.default_rng(0).standard_normal((150, 150))),
    "power law": np.arange(1, 201) ** -1.5,
    "clustered": np.concatenate([1 + 1e-6 * np.arange(6), 0.5 + 1e-8 * np.arange(6), np.linspace(0, 0.1, 150)]),
    "degenerate": np.concatenate([np.repeat([5.0, 3.0, 1.0], 4), np.linspace(-0.2, 0.2, 150)]),
    "negative": np.concatenate([-np.arange(1, 30.0), np.linspace(0, 3, 40) ** 2, np.zeros(100)]),
    "low rank": np.concatenate([[4.0, 2.0, 2.0, 1.0], np.zeros(100)]),
    "tiny": np.array([3.0, 1.0]),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["double", "single"])
@pytest.mark.parametrize("name", SPECTRA)
def test_top_eigenvalues_with_multiplicity(name: str, dtype: torch.dtype) -> None:
    values = np.sort(SPECTRA[name])[::-1]
    H = matrix(values).to(dtype)
    found = lanczos(lambda v: H @ v, len(values), 12, seeded(), dtype=dtype, max_products=400)
    want = values[values > 1e-4][:12]
    assert found.verified
    assert np.allclose(found.values, want, rtol=1e-2, atol=1e-4 if dtype == torch.float32 else 1e-9)
    U = found.vectors.double().numpy()
    assert np.allclose(U @ U.T, np.eye(len(U)), atol=1e-4 if dtype == torch.float32 else 1e-9)
    true = np.linalg.norm(H.double().numpy() @ U.T - U.T * found.values, axis=0)
    assert (true <= found.residuals + (1e-4 if dtype == torch.float32 else 1e-9)).all()


def test_only_converged_values_are_claimed() -> None:
    values = np.arange(1, 401) ** -0.5
    H = matrix(values)
    found = lanczos(lambda v: H @ v, 400, 30, seeded(), max_products=30)
    assert not found.verified
    assert 1 <= len(found.values) < 30
    assert np.allclose(found.values, values[: len(found.values)], rtol=1e-2)


def test_a_zero_matrix_has_none() -> None:
    found = lanczos(torch.zeros_like, 20, 3, seeded())
    assert found.verified
    assert len(found.values) == 0


def test_bad_products_are_refused() -> None:
    with pytest.raises(InvalidInput, match="shape"):
        lanczos(lambda v: v[:2], 5, 1, seeded())
    with pytest.raises(InvalidInput, match="not finite"):
        lanczos(lambda v: v * np.nan, 5, 1, seeded())
    for bad in ({"k": 0}, {"size": 0}, {"tolerance": 0.0}, {"max_products": 0}):
        with pytest.raises(InvalidInput):
            lanczos(**{"matvec": lambda v: v, "size": 5, "k": 1, "generator": seeded()} | bad)


@pytest.mark.parametrize("name", ["wigner", "power law", "degenerate", "negative"])
@pytest.mark.parametrize("threshold", [1e-3, 0.05, 0.3])
def test_the_bracket_of_each_probe_contains_its_own_measure(name: str, threshold: float) -> None:
    values = SPECTRA[name]
    p = len(values)
    H = matrix(values)
    mu, U = np.linalg.eigh(H.numpy())
    for seed, steps in enumerate((3, 8, 15, 30)):
        start = random_unit(p, seeded(seed), torch.empty(0, dtype=torch.float64))
        run, _ = sweep(lambda v: H @ v, start, steps, deflate=torch.empty(0, p).double(), deflated=np.zeros(0))
        count = count_above([run], threshold)
        truth = p * ((U.T @ start.numpy()) ** 2)[mu > threshold].sum()
        assert count.low - 1e-6 <= truth <= count.high + 1e-6
        assert count.low <= count.estimate <= count.high


@pytest.mark.parametrize("deflate", [False, True])
@pytest.mark.parametrize("threshold", [0.02, 0.3, 1.5])
def test_the_count_is_within_its_error(threshold: float, deflate: bool) -> None:
    values = np.concatenate([[30.0, 12.0, -8.0], np.random.default_rng(1).exponential(0.5, 297)])
    H = matrix(values)
    found = lanczos(lambda v: H @ v, 300, 2, seeded())
    known = {"deflate": found.vectors, "deflated": found.values}
    if not deflate:
        known = {"deflate": found.vectors[:0], "deflated": found.values[:0]}
    count = count_above(probe(lambda v: H @ v, 300, 12, 60, seeded(5), **known), threshold)
    true = (values > threshold).sum()
    slack = 3 * count.standard_error
    assert count.low - slack <= true <= count.high + slack
    assert 0 < count.standard_error < 10
    assert abs(count.estimate - true) < slack + (count.high - count.low) / 2


def test_the_standard_error_is_that_of_repeated_probes() -> None:
    values = np.concatenate([np.ones(60), np.zeros(140)])
    H = matrix(values)
    none = {"deflate": torch.empty(0, 200).double(), "deflated": np.zeros(0)}
    runs = probe(lambda v: H @ v, 200, 200, 4, seeded(), **none)
    singles = [count_above([run], 0.5) for run in runs]
    spread = np.std([c.estimate for c in singles])
    assert spread == pytest.approx(np.mean([c.standard_error for c in singles]), rel=0.15)
    assert np.mean([c.estimate for c in singles]) == pytest.approx(60, abs=4 * spread / np.sqrt(200))


def test_no_probe_is_refused() -> None:
    with pytest.raises(InvalidInput, match="probe"):
        count_above([], 0.1)
