"""Histograms, and sums with a count beside them."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.errors import InvalidInput, MechanismMismatch
from tacit.records import Rows
from tacit.release.queries import CountedSum, HistogramSum


def test_histograms_are_the_sums_of_their_contributions():
    rng = np.random.default_rng(0)
    query, rows, _, state = HistogramSum.example(rng, 40)
    batch = rng.random((3, 40)) < 0.5
    batch[2] = False
    one_hot = query.contributions(rows, np.zeros((3, 1)))
    np.testing.assert_array_equal(query.total(rows, np.zeros((3, 1)), batch), (one_hot * batch[:, :, None]).sum(axis=1))
    np.testing.assert_allclose(np.linalg.norm(one_hot, axis=2), query.bound)
    assert query.total(rows, state, np.ones((1, 40), bool)).sum() == 40 * 3


def test_a_value_on_an_edge_counts_once_as_in_numpy():
    x, edges = np.array([0.0, 1.0, 1.0, 2.0, 3.0]), np.array([0.0, 1.0, 2.0, 3.0])
    counts = HistogramSum((edges,)).total(Rows(x[:, None]), np.zeros((1, 1)), np.ones((1, 5), bool))[0]
    np.testing.assert_array_equal(counts, np.histogram(x, edges)[0])


@pytest.mark.parametrize("edges", [[[0.0]], [[0.0, 0.0]], [[0.0, np.inf]], [[[0, 1]]]])
def test_bad_grids_are_refused(edges):
    with pytest.raises(InvalidInput):
        HistogramSum(edges)


@pytest.mark.parametrize("edges", [[], [[0, 1], [0, 1]]])
def test_one_grid_per_feature_or_none_at_all(edges):
    with pytest.raises(InvalidInput, match="give one each"):
        HistogramSum(edges).total(Rows(np.zeros((3, 1))), np.zeros((1, 1)), np.ones((1, 3), bool))


def test_counted_sums_count_and_wrap_only_what_is_tested():
    rng = np.random.default_rng(0)
    inner, rows, _, state = HistogramSum.example(rng, 9)
    batch = rng.random((1, 9)) < 0.5
    query = CountedSum(inner)
    np.testing.assert_array_equal(
        query.total(rows, state, batch)[0], [*inner.total(rows, state, batch)[0], batch.sum()]
    )
    np.testing.assert_array_equal(query.contributions(rows, state)[0, :, -1], 1.0)
    assert query.bound == pytest.approx(np.sqrt(inner.bound**2 + 1))
    assert query.diameter == inner.diameter

    class Homemade(HistogramSum):
        pass

    with pytest.raises(MechanismMismatch, match="not a registered query"):
        CountedSum(Homemade(((0, 1),)))
