"""Values, gradients and multipliers against explicit matrices; compressed spectra against all eigenvalues."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.errors import InvalidInput
from tacit.noise import (
    Strategy,
    compress_modes,
    compress_spectrum,
    gradient_norms,
    identity,
    noise_curve_paper_2,
    noisecurve_workload,
    optimise,
    optimise_toeplitz,
    prefix_sum,
    sgd_workload,
    square_root,
    unit_columns,
)
from tacit.noise.strategies import inside

T = 30
RATES = np.linspace(1.0, 0.1, T)
SPECTRUM = np.concatenate([np.arange(1, 41) ** -1.5, [1.7, 1.9, 2.0]])  # with ημ above 1: q changes sign


def dense_sgd(momentum: float, decay: float, rates: np.ndarray) -> np.ndarray:
    """The map from gradients to iterates, by running the optimiser on unit vectors."""
    out = np.zeros((len(rates), len(rates)))
    for j in range(len(rates)):
        theta = m = 0.0
        for t, eta in enumerate(rates):
            m = momentum * m + (t == j)
            theta = (1 - eta * decay) * theta - eta * m
            out[t, j] = theta
    return out


def dense_curve(mu: np.ndarray, eta: float, steps: int) -> np.ndarray:
    V = (1 - eta * mu)[:, None] ** np.arange(steps - 1, -1, -1)[None, :]
    return V.T @ (mu[:, None] * V)


def dense_paper_2(mu: np.ndarray, eta: float, steps: int) -> np.ndarray:
    V = (1 - eta * mu)[:, None] ** np.arange(steps - 1, -1, -1)[None, :]
    j = np.arange(steps)
    return (steps - np.maximum.outer(j, j)) / steps * (V.T @ (mu[:, None] ** 2 * V))


def dense_gradient_norms(mu: np.ndarray, eta: float, steps: int) -> np.ndarray:
    """By running gradient descent on each eigenvector with one unit of noise at a time."""
    A = np.zeros((steps, steps))
    for m in mu:
        H = np.zeros((steps, steps))  # from noise to gradients
        for j in range(steps):
            w = 0.0
            for t in range(steps):
                w = (1 - eta * m) * w + (t == j)
                H[t, j] = m * w
        A += H.T @ H / steps
    return A


S = np.tril(np.ones((T, T)))
H = dense_sgd(0.9, 0.05, RATES)
CASES = {
    "prefix": (prefix_sum(T), S.T @ S / T),
    "sgd": (sgd_workload(T, momentum=0.9, weight_decay=0.05, learning_rates=RATES), H.T @ H / T),
    "curve": (noisecurve_workload(SPECTRUM, 0.8, T), dense_curve(SPECTRUM, 0.8, T)),
    "paper 2": (noise_curve_paper_2(SPECTRUM, 0.8, T), dense_paper_2(SPECTRUM, 0.8, T)),
    "gradients": (gradient_norms(SPECTRUM, 0.8, T), dense_gradient_norms(SPECTRUM, 0.8, T)),
    "sum": (
        0.3 * noisecurve_workload(SPECTRUM, 0.8, T) + 2 * prefix_sum(T),
        0.3 * dense_curve(SPECTRUM, 0.8, T) + 2 * S.T @ S / T,
    ),
}


def strategy(b: int, seed: int = 0) -> np.ndarray:
    noise = 0.2 * np.random.default_rng(seed).normal(size=(T, b))
    return unit_columns(np.where(inside(T, b), square_root(T, b) + noise, 0.0)) + 0.0


@pytest.mark.parametrize("name", CASES)
def test_the_matrix_is_the_one_described(name: str) -> None:
    workload, A = CASES[name]
    assert np.abs(workload.matrix() - A).max() <= 1e-12 * np.abs(A).max()


@pytest.mark.parametrize("b", [1, 2, 5, T])
@pytest.mark.parametrize("name", CASES)
def test_value_gradient_and_multipliers(name: str, b: int) -> None:
    workload, A = CASES[name]
    bands = strategy(b)
    C = Strategy(bands).to_dense()
    X_inv = np.linalg.inv(C.T @ C)
    Y = X_inv @ A @ X_inv
    slope = -2 * C @ Y
    value, gradient = workload.value_and_gradient(bands)
    also, dual = workload.dual(bands)
    assert value == pytest.approx(np.trace(A @ X_inv), rel=1e-9)
    assert also == workload.value(bands) == value
    for j in range(T):
        n = min(b, T - j)
        assert gradient[j, :n] == pytest.approx(slope[j : j + n, j], rel=1e-6, abs=1e-7 * np.abs(slope).max())
        assert dual[j, :n] == pytest.approx(Y[j : j + n, j], rel=1e-6, abs=1e-7 * np.abs(Y).max())
        assert not gradient[j, n:].any()
        assert not dual[j, n:].any()


@pytest.mark.parametrize("name", CASES)
def test_gradient_by_finite_differences(name: str) -> None:
    workload, _ = CASES[name]
    bands = strategy(4, seed=1)
    _, gradient = workload.value_and_gradient(bands)
    direction = np.where(inside(T, 4), np.random.default_rng(2).normal(size=(T, 4)), 0.0)
    h = 1e-6
    numeric = (workload.value(bands + h * direction) - workload.value(bands - h * direction)) / (2 * h)
    assert numeric == pytest.approx((gradient * direction).sum(), rel=1e-6)


def test_errors_of_all_iterates_are_means_over_them() -> None:
    assert prefix_sum(T).value(identity(T)) == pytest.approx((T + 1) / 2)
    C = Strategy(strategy(3)).to_dense()
    assert CASES["sgd"][0].value(strategy(3)) == pytest.approx(np.linalg.norm(H @ np.linalg.inv(C)) ** 2 / T)


def test_plain_sgd_is_the_prefix_sum() -> None:
    bands = strategy(5)
    assert sgd_workload(T).value(bands) == prefix_sum(T).value(bands)
    assert sgd_workload(T, learning_rates=np.full(T, 0.5)).value(bands) == pytest.approx(
        0.25 * prefix_sum(T).value(bands)
    )


def test_equation_2_as_printed_is_not_the_mean_squared_gradient() -> None:
    """𝕿 ⊙ VᵀM²V decays from T instead of from each iterate: for C = I, μ = 1, η = ½, T = 2: 0.75, not 1.125."""
    one = np.array([1.0])
    printed, exact = noise_curve_paper_2(one, 0.5, 2), gradient_norms(one, 0.5, 2)
    assert printed.value(identity(2)) == pytest.approx(0.5**2 + 0.5)  # (2/2)·q² + (1/2)·1
    assert exact.value(identity(2)) == pytest.approx((1 + (0.5**2 + 1)) / 2)  # iterates 1 and 2
    assert dense_gradient_norms(one, 0.5, 2) == pytest.approx(exact.matrix())


@pytest.mark.parametrize("spectrum", ["power", "log-uniform", "with zeros", "few"])
def test_compression_keeps_its_promise(spectrum: str) -> None:
    mu = {
        "power": np.arange(1, 3001) ** -1.34,
        "log-uniform": np.logspace(0, -6, 3000),
        "with zeros": np.concatenate([np.zeros(50), np.logspace(0.3, -8, 1500)]),
        "few": np.array([1.0, 0.1, 0.1]),
    }[spectrum]
    steps, eta = 400, 0.9
    A = dense_curve(mu, eta, steps)
    decays = compress_spectrum(mu, eta, steps)
    modes = compress_modes(decays, steps)
    rounding = 1e-13 * np.linalg.norm(A)
    left = decays.rate[:, None] ** np.arange(steps - 1, -1, -1)
    assert np.linalg.norm((left.T * decays.weight) @ left - A) <= decays.error + rounding
    assert np.linalg.norm(modes.V @ modes.V.T - A) <= modes.error + rounding
    assert modes.error <= 1e-10 * np.trace(A)
    assert modes.V.shape[1] <= (40 if eta * mu.max() > 1 else 25)  # two ends of the spectrum where 1 − ημ changes sign
    assert modes.trace == pytest.approx(np.trace(A), rel=1e-10)


def test_a_coarse_tolerance_is_really_coarse_and_still_bounded() -> None:
    """The bound is no formality: with few modes the error is large, and below the bound."""
    mu, steps = np.logspace(0, -6, 2000), 300
    A = dense_curve(mu, 0.5, steps)
    modes = compress_modes(compress_spectrum(mu, 0.5, steps), steps, tolerance=1e-3)
    error = np.linalg.norm(modes.V @ modes.V.T - A)
    assert 1e-5 * np.trace(A) < error <= modes.error <= 2e-3 * np.trace(A)


def test_independent_noise_on_large_spectra() -> None:
    """Σ_m a(2m) in closed form: the two spectra of the design, p = 30000, η = ½, T = 2000."""
    i = np.arange(1, 30_001.0)
    for mu, value in ((i**-1.34, 861.0), (np.logspace(0, -6, 30_000), 18379.0)):
        exact = (-np.expm1(4000 * np.log1p(-0.5 * mu)) / (0.5 * (2 - 0.5 * mu))).sum()
        assert noisecurve_workload(mu, 0.5, 2000).value(identity(2000)) == pytest.approx(exact, rel=1e-11)
        assert exact == pytest.approx(value, rel=1e-3)


def test_what_is_refused() -> None:
    with pytest.raises(InvalidInput, match="diverges"):
        noisecurve_workload([5.0], 0.5, 10)
    with pytest.raises(InvalidInput, match="zero"):
        noisecurve_workload([0.0], 0.5, 10)
    with pytest.raises(InvalidInput, match="positive numbers"):
        sgd_workload(3, learning_rates=[1.0, 0.0, 1.0])
    with pytest.raises(InvalidInput, match="do not add"):
        prefix_sum(3) + prefix_sum(4)
    with pytest.raises(InvalidInput, match="columns for"):
        prefix_sum(3).value(identity(4))
    with pytest.raises(InvalidInput, match="at most 10"):
        optimise(prefix_sum(10), 11)
    with pytest.raises(InvalidInput, match="regularisation"):
        optimise(noisecurve_workload([1.0], 0.5, 10), 2, regularisation=0.0)
    with pytest.raises(InvalidInput, match="full rank"):
        optimise_toeplitz(noisecurve_workload([1.0], 0.5, 10), 2)
