"""Products that are exact: the same bits in every place, order and company, and near the ordinary product."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tacit.kernels.exact import coarse, exact_product, rounded_rows


@pytest.mark.parametrize("p", [1, 2, 3, 64, 785, 5000])
def test_a_row_does_not_know_where_it_stands(p):
    rng = np.random.default_rng(p)
    W, x = rng.normal(size=(37, p)), rng.normal(size=p)
    alone = exact_product(x[None], coarse(W))[0]
    for rows in (7, 64, 130):
        X = rng.normal(size=(rows, p)) * 10.0 ** rng.integers(-9, 9, size=(rows, 1))
        for place in (0, 3, rows // 2, rows - 1):
            X[place] = x
            assert np.array_equal(exact_product(X, coarse(W))[place], alone)
    turn = rng.permutation(p)
    assert np.array_equal(exact_product(x[None, turn], coarse(W[:, turn]))[0], alone)


def test_sums_are_exact_by_rational_arithmetic():
    rng = np.random.default_rng(0)
    X, W = np.abs(rng.normal(size=(2, 900))), np.abs(rng.normal(size=(2, 900)))  # one sign: the largest sums
    X[:, ::3], W[:, ::3] = X.max(), W.max()
    bits = (52 - 10) // 2 - 1
    x, w = rounded_rows(X, bits), coarse(W)
    assert np.array_equal(coarse(w), w)
    found = exact_product(X, coarse(W))
    for i in range(2):
        for j in range(2):
            assert Fraction(found[i, j]) == sum(Fraction(a) * Fraction(b) for a, b in zip(x[i], w[j], strict=True))


def test_it_is_the_product_to_the_kept_bits():
    rng = np.random.default_rng(1)
    X, W = rng.normal(size=(50, 785)) * 10.0 ** rng.integers(-100, 100, size=(50, 1)), rng.normal(size=(20, 785))
    scale = np.abs(X).max(axis=1, keepdims=True) * np.abs(W).max() * np.sqrt(785)
    assert (np.abs(exact_product(X, coarse(W)) - X @ W.T) <= 2e-5 * scale).all()


def test_rows_that_are_not_finite_stay_by_themselves():
    X = np.array([[1.0, 2.0], [np.nan, 1.0], [np.inf, 0.0], [0.0, 0.0], [1e308, 1e308], [5e-324, 0.0]])
    with np.errstate(all="ignore"):
        out = exact_product(X, coarse(np.eye(2)))
    assert np.array_equal(out[0], [1.0, 2.0])
    assert np.isnan(out[1:3]).all()
    assert np.array_equal(out[3], [0.0, 0.0])
    assert np.array_equal(out[5], [0.0, 0.0])
