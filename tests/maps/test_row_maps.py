"""Every row map: each row by itself, to the bit, and within the certified range."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tacit.maps import ROW_MAPS, FeatureBounds

each_map = pytest.mark.parametrize("kind", ROW_MAPS.values(), ids=ROW_MAPS)


def dense(Z):
    return Z.toarray() if sparse.issparse(Z) else np.asarray(Z)


def some(X, rows):
    return X.tocsr()[rows] if sparse.issparse(X) else X[rows]


@each_map
@pytest.mark.parametrize("seed", range(5))
def test_a_row_does_not_know_its_company(kind, seed):
    rng = np.random.default_rng(seed)
    mapping, X = kind.example(rng)
    whole = dense(mapping(X))
    for rows in (rng.permutation(len(whole)), rng.integers(len(whole), size=3), np.array([0])):
        np.testing.assert_array_equal(dense(mapping(some(X, rows))), whole[rows])


@each_map
@pytest.mark.parametrize("seed", range(5))
def test_rows_lie_within_the_certified_range(kind, seed):
    mapping, X = kind.example(np.random.default_rng(seed))
    before = type(mapping.range(None))(dense(X).min(axis=0), dense(X).max(axis=0))
    for found in (mapping.range(None), mapping.range(before)):
        Z = dense(mapping(X))
        assert (found.low <= Z).all()
        assert (found.high >= Z).all()
        assert (np.linalg.norm(Z, axis=1) <= found.norm * (1 + 1e-12)).all()


def test_bounds_reach_as_far_as_they_say_and_lead_back():
    low, high = np.array([-2.0, 0.0, 3.0]), np.array([4.0, 1.0, 3.0])
    X = np.array([[-2.0, 0.0, 3.0], [4.0, 1.0, 3.0], [99.0, -99.0, 0.0], [1.5, 0.25, 7.0]])
    box = FeatureBounds.centred(low, high)
    np.testing.assert_allclose(box(X), [[-1, -1, 0], [1, 1, 0], [1, -1, 0], [1 / 6, -0.5, 0]])
    np.testing.assert_allclose(box.inverse(box(X)), np.clip(X, low, high))
    near = FeatureBounds(low, high, np.array([1.0, 0.5, 3.0]), np.array([0.1, 1.0, 1.0]), reach=2.0)
    np.testing.assert_allclose(near(X)[:, 0], [-2, 2, 2, 2])
    np.testing.assert_allclose(near.range().high, [2, 0.5, 0])
    np.testing.assert_allclose(near.inverse(near(X))[:, 0], [0.8, 1.2, 1.2, 1.2])
