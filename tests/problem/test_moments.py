"""How far apart the statistics (α·xxᵀ, u·xᵀ) of two records can be: formula against optimisation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from tacit.errors import InvalidInput
from tacit.problem import moments_bound, moments_diameter, moments_weight

SIZES = st.floats(0.1, 10.0)


def statistic(x, u, alpha):
    return np.concatenate([alpha * np.outer(x, x).ravel(), np.outer(u, x).ravel()])


def within(vector, radius):
    return vector * min(1.0, radius / max(np.linalg.norm(vector), 1e-300))


def farthest(R, U, alpha, *, nonnegative, seed, starts=6, k=2, d=2):
    """The largest distance that local searches find, over records within the norms."""
    rng = np.random.default_rng(seed)

    def distance(flat):
        parts = np.abs(flat) if nonnegative else flat
        x, y, u, v = np.split(parts, [k, 2 * k, 2 * k + d])
        x, y, u, v = within(x, R), within(y, R), within(u, U), within(v, U)
        return -np.linalg.norm(statistic(x, u, alpha) - statistic(y, v, alpha))

    best = 0.0
    for _ in range(starts):
        start = rng.normal(size=2 * (k + d)) * max(R, U) * 3
        best = max(best, -optimize.minimize(distance, start, method="Powell", options={"xtol": 1e-8}).fun)
    return best


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize(
    ("R", "U", "alpha"),
    [(1.0, 1.0, 1.5), (1.0, 1.0, 1 / math.sqrt(2)), (1.0, 1.0, 0.2), (0.5, 2.0, 1.0), (2.0, 0.5, 0.7)],
)
def test_the_formula_is_what_optimisation_finds(R, U, alpha, nonnegative):
    claimed = moments_diameter(R, U, alpha, nonnegative=nonnegative)
    found = farthest(R, U, alpha, nonnegative=nonnegative, seed=0)
    assert found <= claimed * (1 + 1e-9)
    assert found >= 0.995 * claimed


@settings(deadline=None, derandomize=True, max_examples=200)
@given(SIZES, SIZES, SIZES, st.integers(0, 10**6), st.booleans())
def test_no_pair_is_further_apart(R, U, alpha, seed, nonnegative):
    rng = np.random.default_rng(seed)
    draw = lambda size, radius: within(rng.normal(size=size) * 3 * radius, radius)  # noqa: E731
    x, y, u, v = draw(3, R), draw(3, R), draw(2, U), draw(2, U)
    if rng.random() < 0.5:
        y, v = x + 0.1 * rng.normal(size=3), -u  # the worst case of the formula
        y = within(y, R)
    if nonnegative:
        x, y, u, v = map(np.abs, (x, y, u, v))
    moved = np.linalg.norm(statistic(x, u, alpha) - statistic(y, v, alpha))
    assert moved <= moments_diameter(R, U, alpha, nonnegative=nonnegative) * (1 + 1e-12)
    assert np.linalg.norm(statistic(x, u, alpha)) <= moments_bound(R, U, alpha) * (1 + 1e-12)


def test_the_two_branches_meet_and_second_moments_alone_are_a_special_case():
    R, U = 1.3, 0.8
    edge = U / (math.sqrt(2) * R)
    assert moments_diameter(R, U, edge * (1 + 1e-9)) == pytest.approx(moments_diameter(R, U, edge * (1 - 1e-9)))
    assert moments_diameter(R, 1e-9, 1.0) == pytest.approx(math.sqrt(2) * R * R)
    assert moments_diameter(R, U, 0.1, nonnegative=True) < moments_diameter(R, U, 0.1)


def test_the_weight_minimises_what_it_says():
    R, U, rho = 1.5, 0.7, 0.05
    cost = lambda a: (a * a * R * R + U * U) * (1 + rho / (a * a))  # noqa: E731
    found = optimize.minimize_scalar(
        lambda t: cost(math.exp(t)), bounds=(-5, 5), method="bounded", options={"xatol": 1e-9}
    )
    assert moments_weight(R, U, rho) == pytest.approx(math.exp(found.x), rel=1e-4)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, "1"])
def test_bad_numbers_are_refused(bad):
    with pytest.raises(InvalidInput):
        moments_diameter(bad, 1.0, 1.0)
