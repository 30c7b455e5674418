"""Optima: the values of the design, certificates that bound, reductions, and the mistakes of the paper."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize

from tacit.errors import InvalidInput
from tacit.noise import (
    Strategy,
    certified_bound,
    from_gram,
    identity,
    noisecurve_workload,
    optimise,
    optimise_toeplitz,
    prefix_sum,
    resized,
    separated_sensitivity,
    sgd_workload,
    square_root,
    stationary_columns,
    toeplitz,
    toeplitz_sensitivity,
    unit_columns,
)
from tacit.noise.optimum import positive_diagonal
from tacit.noise.strategies import inside


def dense_minimum(A: np.ndarray, b: int) -> float:
    """min Tr(AX⁻¹) over banded X with unit diagonal, by another parametrisation: X itself, log-barrier-free BFGS."""
    n = len(A)
    pairs = [(i, j) for i in range(n) for j in range(i) if i - j < b]

    def f(x: np.ndarray) -> tuple[float, np.ndarray]:
        X = np.eye(n)
        for value, (i, j) in zip(x, pairs, strict=True):
            X[i, j] = X[j, i] = value
        if np.linalg.eigvalsh(X)[0] <= 1e-9:
            return 1e6, np.zeros(len(x))
        inverse = np.linalg.inv(X)
        Y = inverse @ A @ inverse
        return float(np.trace(A @ inverse)), np.array([-2 * Y[i, j] for i, j in pairs])

    return float(minimize(f, np.zeros(len(pairs)), jac=True, method="BFGS", options={"gtol": 1e-9}).fun)


@pytest.mark.parametrize(("steps", "value"), [(500, 30.646650), (1000, 57.098662), (2000, 108.948531)])
def test_prefix_sums_with_ten_bands(steps: int, value: float) -> None:
    found = optimise(prefix_sum(steps), 10)
    bands = found.strategy.bands
    assert found.error == pytest.approx(value, rel=2e-7)
    assert 0 <= found.gap <= 1e-5
    assert found.column_norms == pytest.approx(np.ones(steps), abs=1e-12)
    assert separated_sensitivity(bands, 10) == pytest.approx(np.sqrt(steps // 10), rel=1e-12)
    assert not bands[~inside(steps, 10)].any()
    assert (bands[:, 0] > 0).all()


@pytest.mark.parametrize("b", [2, 4, 9])
@pytest.mark.parametrize("name", ["prefix", "momentum", "curve"])
def test_against_a_dense_solver_and_the_bound_really_bounds(name: str, b: int) -> None:
    T = 9
    workload = {
        "prefix": prefix_sum(T),
        "momentum": sgd_workload(T, momentum=0.7, weight_decay=0.1, learning_rates=np.linspace(1, 0.3, T)),
        "curve": noisecurve_workload(np.arange(1, 50) ** -1.0, 0.5, T) + 0.1 * prefix_sum(T),
    }[name]
    best = dense_minimum(workload.matrix(), b)
    found = optimise(workload, b, tolerance=1e-9)
    assert found.error == pytest.approx(best, rel=1e-7)
    assert found.gap <= 1e-6
    rng = np.random.default_rng(b)
    for _ in range(20):  # at any feasible point, good or bad, the bound is below the optimum
        bands = unit_columns(np.where(inside(T, b), square_root(T, b) + 0.3 * rng.normal(size=(T, b)), 0.0))
        value, bound = certified_bound(workload, bands)
        assert bound <= best * (1 + 1e-9) <= value * (1 + 1e-8)
    assert certified_bound(workload, found.strategy.bands)[1] > 0.999999 * best  # and at the optimum it is tight


def test_one_band_is_independent_noise_and_more_bands_never_hurt() -> None:
    workload = prefix_sum(40)
    one = optimise(workload, 1)
    assert np.array_equal(one.strategy.bands, identity(40))
    assert one.evaluations == 0
    values = [optimise(workload, b, tolerance=1e-7).error for b in (1, 2, 5, 10, 40)]
    assert all(a > b for a, b in itertools.pairwise(values))
    assert one.error == pytest.approx(41 / 2)


def test_columns_depend_on_the_steps_that_are_left() -> None:
    """The start is nearly optimal; away from the first steps it is the optimum."""
    T, b = 1000, 5
    start, found = stationary_columns(T, b), optimise(prefix_sum(T), b)
    assert np.abs(start[400:-100] - found.strategy.bands[400:-100]).max() < 1e-3
    assert found.error < prefix_sum(T).value(start) < 1.01 * found.error
    assert prefix_sum(T).value(square_root(T, b)) > 1.1 * found.error  # what it is better than
    assert Strategy(start).column_norms == pytest.approx(np.ones(T))


def test_warm_start_from_fewer_bands() -> None:
    workload = prefix_sum(200)
    few = optimise(workload, 4)
    warm = optimise(workload, 8, start=few.strategy)
    assert warm.error == pytest.approx(optimise(workload, 8).error, rel=1e-5)
    assert workload.value(unit_columns(resized(few.strategy.bands, 200, 8))) == pytest.approx(few.error)


def test_an_unfinished_result_says_so() -> None:
    rough = optimise(prefix_sum(300), 10, max_evaluations=5)
    assert rough.gap > 1e-3
    assert rough.lower_bound <= optimise(prefix_sum(300), 10).error <= rough.error


def by_columns(M: np.ndarray, b: int) -> np.ndarray:
    T = len(M)
    return np.array([np.pad(M[j : j + b, j], (0, max(0, j + b - T))) for j in range(T)])


def test_ordinary_cholesky_is_wrong() -> None:
    """E20: X = LLᵀ has unit rows; the sensitivity is 3.604, not the assumed √10 (n = 100, 10 bands, separation 11)."""
    C = optimise(prefix_sum(100), 10).strategy.to_dense()
    X = C.T @ C
    right, wrong = from_gram(X), np.linalg.cholesky(X)
    assert right == pytest.approx(C, abs=1e-10)
    assert not np.triu(right, 1).any()
    assert separated_sensitivity(by_columns(right, 10), 11) == pytest.approx(np.sqrt(10), abs=1e-9)
    assert separated_sensitivity(by_columns(wrong, 10), 11) == pytest.approx(3.604, abs=1e-3)
    with pytest.raises(InvalidInput, match="positive definite"):
        from_gram([[1.0, 2.0], [2.0, 1.0]])


@pytest.mark.parametrize("seed", range(10))
def test_separated_sensitivity_by_enumeration(seed: int) -> None:
    rng = np.random.default_rng(seed)
    T, b, gap, k = 12, int(rng.integers(1, 7)), int(rng.integers(1, 6)), int(rng.choice([1, 2, 3, 12]))
    bands = np.where(inside(T, b), rng.normal(size=(T, b)), 0.0)
    bands[:, 0] = np.abs(bands[:, 0])
    C = Strategy(bands).to_dense()
    G = np.abs(C.T @ C)
    exact = 0.0
    for n in range(1, k + 1):
        for steps in itertools.combinations(range(T), n):
            if all(y - x >= gap for x, y in itertools.pairwise(steps)):
                exact = max(exact, float(np.sqrt(G[np.ix_(steps, steps)].sum())))
    value = separated_sensitivity(bands, gap, k)
    assert value >= exact - 1e-12
    if b <= gap or k == 1:
        assert value == pytest.approx(exact)
    c = np.sort(np.abs(rng.normal(size=T)))[::-1]
    C = Strategy(toeplitz(c, T, normalise=False)).to_dense()
    worst = max(
        float(np.linalg.norm(C[:, steps].sum(axis=1)))
        for n in range(1, k + 1)
        for steps in itertools.combinations(range(T), n)
        if all(y - x >= gap for x, y in itertools.pairwise(steps))
    )
    assert toeplitz_sensitivity(c, T, gap, k) == pytest.approx(worst)


def test_toeplitz_is_between_the_square_root_and_the_banded_optimum() -> None:
    T, b = 300, 6
    workload = prefix_sum(T)
    c = optimise_toeplitz(workload, b)
    value = workload.value(toeplitz(c, T, normalise=False))
    assert np.linalg.norm(c) == pytest.approx(1.0)
    root = square_root(T, b)[0]
    assert optimise(workload, b).error < value < workload.value(toeplitz(root, T, normalise=False))
    for i in range(b):  # no coefficient can be moved with profit
        for h in (1e-3, -1e-3):
            moved = c + h * np.eye(b)[i]
            assert workload.value(toeplitz(moved / np.linalg.norm(moved), T, normalise=False)) >= value


def test_noise_curve_gains_and_stays_regular() -> None:
    """E21, at a quarter of the design's T; the full figures are in the benchmark."""
    T, mu = 500, np.logspace(0, -6, 30_000)
    workload, prefix = noisecurve_workload(mu, 0.5, T), prefix_sum(T)
    plain = optimise(prefix, 10)
    found = optimise(workload, 10, tolerance=1e-2, start=plain.strategy)
    assert found.error == workload.value(found.strategy.bands) < 0.9 * workload.value(plain.strategy.bands)
    assert found.gap <= 1e-2
    assert prefix.value(found.strategy.bands) <= 11 * plain.error
    rows = found.strategy.inverse_row_norms()
    assert rows == pytest.approx(np.linalg.norm(np.linalg.inv(found.strategy.to_dense()), axis=1))
    assert rows.max() < 20
    assert found.column_norms == pytest.approx(np.ones(T), abs=1e-12)


def test_a_start_may_be_left_to_the_optimiser() -> None:
    T = 60
    workload = noisecurve_workload(np.logspace(0, -4, 300), 0.5, T)
    plain = optimise(prefix_sum(T), 4, tolerance=1e-4)
    alone, given = optimise(workload, 4), optimise(workload, bands=4, start=plain.strategy)
    assert np.array_equal(alone.strategy.bands, given.strategy.bands)
    assert alone.evaluations == given.evaluations + plain.evaluations


def test_the_bound_of_a_regularised_optimum_bounds_its_competitors() -> None:
    """No strategy with prefix sums that are not worse comes below ``lower_bound``; and the bound is not idle."""
    T, b, lam = 40, 4, 0.1
    workload, prefix = noisecurve_workload(np.logspace(0, -4, 300), 0.5, T), prefix_sum(T)
    found = optimise(workload, b, regularisation=lam, tolerance=1e-2)
    best = optimise(workload, b, regularisation=lam, tolerance=1e-9, start=optimise(prefix, b).strategy)
    assert 0.9 * found.error < found.lower_bound < found.error
    rivals = [best.strategy.bands, found.strategy.bands]
    rng = np.random.default_rng(0)
    for scale in (1e-3, 1e-2, 1e-1) * 20:
        moved = best.strategy.bands + np.where(inside(T, b), scale * rng.normal(size=(T, b)), 0.0)
        rivals.append(unit_columns(moved))
    limit = prefix.value(found.strategy.bands)
    admissible = [workload.value(rival) for rival in rivals if prefix.value(rival) <= limit]
    assert len(admissible) > 5
    assert min(admissible) >= found.lower_bound


def test_without_regularisation_it_degenerates() -> None:
    """E21: minimising the rank-deficient part alone drives rows of C⁻¹ far beyond BandMF's."""
    T = 200
    workload = noisecurve_workload(np.logspace(0, -6, 3000), 0.5, T)
    plain = optimise(prefix_sum(T), 10, tolerance=1e-6)
    start = plain.strategy
    barely = optimise(workload, 10, regularisation=1e-9, tolerance=1e-6, max_evaluations=1000, start=start)
    assert barely.strategy.inverse_row_norms().max() > 5 * start.inverse_row_norms().max()


def test_a_strategy_is_frozen_and_says_little() -> None:
    given = np.array([[1.0, 0.5, 0.2], [2.0, 0.5, 9.0], [3.0, 9.0, 9.0]])  # entries beyond the last row do not count
    C = Strategy(given)
    given[0, 0] = 7.0
    assert C.to_dense().tolist() == [[1.0, 0.0, 0.0], [0.5, 2.0, 0.0], [0.2, 0.5, 3.0]]
    assert (C.steps, C.n_bands, repr(C)) == (3, 3, "Strategy(steps=3, n_bands=3)")
    assert C.column_norms == pytest.approx(np.linalg.norm(C.to_dense(), axis=0))
    assert Strategy(np.ones((2, 5))).bands.tolist() == [[1.0, 1.0], [1.0, 0.0]]
    with pytest.raises(ValueError, match="read-only"):
        C.bands[0, 0] = 2.0
    for bad in (np.ones(3), np.empty((0, 2)), [[0.0, 1.0]], [[np.nan]], [["a"]]):
        with pytest.raises(InvalidInput, match="bands"):
            Strategy(bad)


def test_a_line_search_may_cross_the_wall_where_a_diagonal_entry_is_zero():
    """It ended in a C of negative diagonal, which no strategy may have; X = CᵀC, and so the error, is the same."""
    mu = 0.8740251418174172 * np.arange(1, 101.0) ** -2.234585733327679
    workload = noisecurve_workload(mu, 1.987131447446458, 100)
    found = optimise(workload, 4, regularisation=0.005)
    assert found.strategy.bands[:, 0].min() > 0
    assert found.gap <= 1e-3
    np.testing.assert_allclose(found.column_norms, 1.0, rtol=1e-12)


def test_rows_of_other_sign_have_the_same_gram_matrix():
    rng = np.random.default_rng(0)
    bands = np.where(np.arange(12)[:, None] + np.arange(3) < 12, rng.normal(size=(12, 3)), 0.0)
    other = positive_diagonal(bands)
    assert (other[:, 0] > 0).all()

    def dense(C):
        out = np.zeros((12, 12))
        for i in range(3):
            out[np.arange(i, 12), np.arange(12 - i)] = C[: 12 - i, i]
        return out

    np.testing.assert_allclose(dense(other).T @ dense(other), dense(bands).T @ dense(bands), atol=1e-14)
