"""The contract of every row map: whoever defines one gets these tests."""

from __future__ import annotations

import numpy as np
import pytest
from contracts import made, nothing_escapes, ours, told
from scipy import sparse

from tacit import maps
from tacit.maps import ROW_MAPS, Linear, Range, RowMap, Shorten

maps.load_all()


def dense(X) -> np.ndarray:
    return np.asarray(X.toarray() if sparse.issparse(X) else X)


def some(X, index):
    return X.tocsr()[index] if sparse.issparse(X) else X[index]


NAMES = ours(ROW_MAPS)


def example(name, rng):
    return made(
        ROW_MAPS[name],
        lambda: tuple(ROW_MAPS[name].example(rng)),
        "example(cls, rng) must return a map and rows to try it on; one without usable defaults writes its own",
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_mapped_by_itself_to_the_bit(name):
    """Alone, permuted, among fewer rows, repeated, in another layout: the same bits."""
    rng = np.random.default_rng(0)
    for _ in range(10):
        one, X = example(name, rng)
        whole, n = dense(one(X)), X.shape[0]
        order = rng.permutation(n)

        def same(found, expected):
            told(
                np.array_equal(found, expected),
                f"{name} maps a row differently among other rows: row i of the result must be a function of row i "
                "alone, to the bit (no means, no sorting; products by tacit.kernels.exact, not BLAS)",
            )

        same(dense(one(some(X, order))), whole[order])
        same(dense(one(some(X, np.arange(n // 3)))), whole[: n // 3])
        for i in rng.integers(n, size=5):
            same(dense(one(some(X, np.array([i]))))[0], whole[i])
        many = np.repeat(np.arange(n), 200)
        same(dense(one(some(X, many)))[::200], whole)
        if not sparse.issparse(X):
            same(dense(one(np.asfortranarray(X))), whole)


@pytest.mark.parametrize("name", NAMES)
def test_rows_stay_within_the_certified_range(name):
    rng = np.random.default_rng(1)
    for _ in range(20):
        one, X = example(name, rng)
        table = dense(X)
        known = Range(table.min(axis=0), table.max(axis=0))
        found, out = one.range(known), dense(one(X))
        above = (out >= found.low - 1e-12 * np.abs(found.low)).all()
        below = (out <= found.high + 1e-12 * np.abs(found.high)).all()
        told(above and below, f"range(before) of {name} does not hold: mapped columns leave [low, high], see example()")
        told(
            (np.linalg.norm(out, axis=1) <= found.norm * (1 + 1e-12)).all(),
            f"range(before) of {name} does not hold: a mapped row is longer than its norm {found.norm:g}",
        )


@pytest.mark.parametrize("name", NAMES)
def test_the_input_is_left_as_it_is(name):
    one, X = example(name, np.random.default_rng(2))
    before = dense(X).copy()
    one(X)
    told(np.array_equal(dense(X), before, equal_nan=True), f"{name} writes into its input: copy X first")


def test_the_suite_comes_to_every_map():
    nothing_escapes(RowMap, set(ROW_MAPS.values()), "derive it from RowMap under a name of its own")
    assert {"FeatureBounds", "Hog", "Join", "PublicSteps", "RandomFourier", "ReluGates", "Shorten"} <= set(NAMES)


def test_the_suite_notices_a_product_that_rounds_by_place():
    """What 0.1 did: a library's product of 5003 rows differs in the last bits from that of one row less."""
    rng = np.random.default_rng(0)
    X, M = rng.normal(size=(5003, 20)), rng.normal(size=(20, 20))
    library = (M @ X.T).T
    alone = np.array([(M @ X[[i]].T).T[0] for i in range(300)])
    assert (library[:300] != alone).any()
    ours = Linear(M)
    assert np.array_equal(ours(X)[:300], np.array([ours(X[[i]])[0] for i in range(300)]))
    np.testing.assert_allclose(ours(X), X @ ours.applied.T, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(ours.applied, M, atol=2.0**-17 * np.abs(M).max())


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_shortened_rows_of_any_precision_are_within_their_norm(dtype) -> None:
    rows = Shorten(0.3, 5)(np.random.default_rng(0).normal(size=(500, 5)).astype(dtype))
    assert np.linalg.norm(np.asarray(rows, np.float64), axis=1).max() <= 0.3
