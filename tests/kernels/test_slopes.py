"""Rows as 16-bit integers: exact sums in any order, caps that hold in fractions, one pass that is three passes."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tacit.kernels.exact import coarse
from tacit.kernels.logistic import logistic
from tacit.kernels.slopes import (
    BITS,
    TILE,
    capped_slopes,
    logistic_sums,
    powers_of_two,
    short_products,
    short_rows,
    short_sums,
)

UNIT, BOUND = 2.0**-25, 2.0**30


def table(m, p, seed=0, spread=3):
    rng = np.random.default_rng(seed)
    return np.asfortranarray(rng.normal(size=(m, p)) * 10.0 ** rng.integers(-spread, spread + 1, size=(m, 1)))


def rows_of(X):
    """Integers by rows, exponents and norms."""
    U, e, norms = short_rows(np.ascontiguousarray(X.T))
    flat = U.transpose(0, 2, 1).reshape(-1, X.shape[1])
    assert not flat[len(X) :].any(), "something stands behind the last row"
    return U, flat[: len(X)].astype(np.int64), e, norms


@pytest.mark.parametrize("m", [1, TILE - 1, TILE, TILE + 1, 3 * TILE + 5])
def test_rows_are_near_their_integers_and_know_no_other_row(m):
    X = table(m, 7)
    _, u, e, norms = rows_of(X)
    top = np.abs(X).max(axis=1, keepdims=True)
    assert (np.abs(powers_of_two(e)[:, None] * u - X) <= top * 2.0**-BITS * 2).all()
    assert (np.abs(u).max(axis=1) >= 2 ** (BITS - 1)).all()
    assert (np.abs(u) < 2**BITS).all()
    order = np.random.default_rng(1).permutation(m)
    _, again, e2, norms2 = rows_of(np.asfortranarray(X[order]))
    assert np.array_equal(again, u[order])
    assert np.array_equal(e2, e[order])
    assert np.array_equal(norms2, norms[order])


def test_norms_are_no_less_than_what_they_bound():
    _, u, _, norms = rows_of(table(400, 9))
    for row, norm in zip(u.tolist(), norms.tolist(), strict=True):
        assert sum(x * x for x in row) <= Fraction(norm) ** 2


def test_rows_that_are_odd_count_as_nothing_or_keep_their_direction():
    X = np.array([[np.nan, 1.0], [np.inf, 1.0], [0.0, 0.0], [1e-200, 1e-200], [3e200, -3e200], [1.0, -1.0]])
    _, u, e, norms = rows_of(np.asfortranarray(X))
    assert not u[:4].any()
    assert not norms[:4].any()
    assert u[4].tolist() == [u[4, 0], -u[4, 0]]
    assert u[4, 0] > 0
    assert np.isfinite(powers_of_two(e)).all()


@pytest.mark.parametrize("m", [1, TILE, 2 * TILE + 77])
@pytest.mark.parametrize("p", [1, 2, 3, 4, 5, 51])
def test_products_and_sums_are_exact(m, p):
    X, rng = table(m, p), np.random.default_rng(2)
    U, u, _, _ = rows_of(X)
    v = coarse(rng.normal(size=(1, p)) * 10.0 ** rng.integers(-9, 9, size=p), BITS)[0]
    t = np.trunc(rng.normal(size=m) * 2.0**22)
    assert np.array_equal(short_sums(U, t), u.T @ t.astype(np.int64))
    found = short_products(U, m, v)
    for i in rng.integers(m, size=5):
        assert Fraction(found[i]) == sum(int(a) * Fraction(b) for a, b in zip(u[i], v, strict=True))


@pytest.mark.parametrize("weights", ["everybody", "shares"])
def test_one_pass_is_three_passes_and_no_cap_is_passed(weights):
    m, p, rng = TILE + 300, 6, np.random.default_rng(3)
    U, u, e, norms = rows_of(table(m, p))
    y, scale = rng.choice([-1, 1], size=m).astype(np.int8), powers_of_two(e)
    own = np.empty(0) if weights == "everybody" else rng.choice([0.0, 1 / 3, 1.0], size=m)
    v = coarse(rng.normal(size=(1, p)), BITS)[0]
    slope = -y * logistic(-y * (short_products(U, m, v) * scale))
    t = capped_slopes(slope, scale, norms, own, UNIT, BOUND)
    assert np.array_equal(logistic_sums(U, v, y, scale, norms, own, UNIT, BOUND), short_sums(U, t))
    shares = np.ones(m) if weights == "everybody" else own
    reached = 0.0
    for row, one, w in zip(u.tolist(), t.tolist(), shares.tolist(), strict=True):
        square, cap = Fraction(one) ** 2 * sum(x * x for x in row), (Fraction(BOUND) * Fraction(w)) ** 2
        assert square <= cap
        reached = max(reached, float(square / cap) if cap else 0.0)
    assert reached > 0.99
