"""Private means, variances and quantiles against numpy's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from tacit.accounting import gdp_mu
from tacit.errors import InvalidInput
from tacit.estimators import DPLinearRegression, private_mean, private_quantiles, private_variance
from tacit.inputs.parameters import grids_of
from tacit.mechanism import Adjacency
from tacit.solvers.stages import histogram_quantiles

RELATIONS = [a.value for a in Adjacency]
BIG = {"epsilon": 1e8, "delta": 1e-5}


@pytest.mark.parametrize("adjacency", RELATIONS)
def test_much_budget_gives_the_statistics_of_numpy(adjacency):
    X = np.random.default_rng(0).uniform([-3, 10], [3, 90], size=(3000, 2))
    limits, deal = ([-5, 0], [5, 100]), {**BIG, "adjacency": adjacency}
    np.testing.assert_allclose(private_mean(X, limits, **deal)[0], X.mean(axis=0), atol=2e-2)
    np.testing.assert_allclose(private_variance(X, limits, **deal)[0], X.var(axis=0), rtol=1e-2)
    np.testing.assert_allclose(
        private_quantiles(X, [0.1, 0.5, 0.9], limits, bins=2000, **deal)[0],
        np.quantile(X, [0.1, 0.5, 0.9], axis=0),
        atol=0.1,
    )


@pytest.mark.parametrize(("adjacency", "sensitivity"), [("replace-one", 2.0), ("zero-out", 1.0)])
def test_the_noise_of_a_mean_is_what_the_certificate_says(adjacency, sensitivity):
    X = np.tile([[2.0], [6.0]], (500, 4))
    deal = {"epsilon": 1.0, "delta": 1e-5, "adjacency": adjacency}
    noise = np.ravel([private_mean(X, (0, 8), **deal, random_state=s)[0] - 4 for s in range(1500)])
    sigma = 4 * sensitivity * np.sqrt(4) / gdp_mu(1.0, 1e-5) / 1000
    assert stats.kstest(noise, "norm", args=(0, sigma)).pvalue > 0.01
    for wrong in (0.7, 1.3):
        assert stats.kstest(noise, "norm", args=(0, wrong * sigma)).pvalue < 1e-4


@pytest.mark.parametrize("statistic", [private_mean, private_variance])
def test_a_lower_bound_of_zero_is_a_bound_like_any_other(statistic):
    """diffprivlib 0.6.6 adds no noise where a lower bound is 0; here noise depends on the width alone."""
    x, spread = np.linspace(1, 7, 200), {}
    for low in (0.0, 5.0, -8.0):
        deal = {"epsilon": 1.0, "delta": 1e-5}
        found = [statistic(x + low, (low, low + 8), **deal, random_state=s)[0] for s in range(200)]
        spread[low] = np.std(found)
    assert spread[0.0] == pytest.approx(spread[5.0], rel=0.25)
    assert spread[0.0] == pytest.approx(spread[-8.0], rel=0.25)
    assert spread[0.0] > 0.1


@pytest.mark.parametrize("low", [0.0, -1.0])
def test_and_models_with_a_lower_bound_of_zero_are_noisy(low):
    X, y = np.full((200, 2), [0.25, 0.75]), np.full(200, 0.5)
    deal = {"epsilon": 1.0, "delta": 1e-5, "feature_bounds": (low, 1.0), "target_bounds": (low, 1.0)}
    found = [DPLinearRegression(**deal, random_state=s).fit(X, y).predict(X[:1])[0] for s in range(8)]
    assert len(set(found)) == 8


def test_shapes_follow_numpy():
    x, X = np.linspace(0, 1, 50), np.random.default_rng(0).uniform(size=(50, 3))
    assert isinstance(private_mean(x, (0, 1), **BIG)[0], float)
    assert private_mean(X, (0, 1), **BIG)[0].shape == (3,)
    for data in (x, X, x.tolist()):
        for q in (0.5, [0.5], [0.2, 0.8]):
            assert np.shape(private_quantiles(data, q, (0, 1), **BIG)[0]) == np.shape(np.quantile(data, q, axis=0))


def test_results_stay_within_what_is_possible():
    rng = np.random.default_rng(0)
    for seed in range(30):
        deal = {"epsilon": 0.01, "delta": 1e-9, "random_state": seed, "adjacency": RELATIONS[seed % 3]}
        assert 2 <= private_mean(rng.uniform(size=3), (2, 4), **deal)[0] <= 4
        assert 0 <= private_variance(rng.uniform(size=3), (2, 4), **deal)[0] <= 1
        values = private_quantiles(rng.uniform(size=3), [0.1, 0.5, 0.9], (2, 4), **deal)[0]
        assert (np.diff(values) >= 0).all()
        assert values[0] >= 2
        assert values[-1] <= 4


@pytest.mark.parametrize("adjacency", RELATIONS)
def test_a_geometric_grid_resolves_heavy_tails(adjacency):
    """Typical value 3 under bounds 0..1243, as in census data: a uniform grid sees one bin."""
    x = np.minimum(np.random.default_rng(0).lognormal(1, 0.6, 20_000), 1243)
    deal = {"epsilon": 1.0, "delta": 1e-6, "random_state": 0, "adjacency": adjacency}
    truth = np.quantile(x, [0.05, 0.5, 0.95])
    geometric = private_quantiles(x, [0.05, 0.5, 0.95], (0, 1243), grid="geometric", **deal)[0]
    uniform = private_quantiles(x, [0.05, 0.5, 0.95], (0, 1243), **deal)[0]
    np.testing.assert_allclose(geometric, truth, rtol=0.1)
    assert abs(uniform[1] - truth[1]) > truth[1]


def test_given_edges_need_no_bounds():
    x = np.repeat([0.5, 1.5, 2.5], [10, 20, 70])
    value, _ = private_quantiles(x, 0.2, grid=[[0, 1, 2, 3]], **BIG)
    assert value == pytest.approx(1.5, abs=1e-2)


def test_values_beyond_the_grid_count_in_its_end_bins():
    x = np.array([-1e300] * 50 + [1e300] * 50)
    values, _ = private_quantiles(x, [0.25, 0.75], (0, 1), bins=10, **BIG)
    assert values[0] < 0.1 < 0.9 < values[1]


@pytest.mark.parametrize("bounds", [(0, 0), (0, 1e-90), (1, 1 + 2.5e-16), (-1e90, 1e90), (5, 1e9), (-3, 0)])
@pytest.mark.parametrize("kind", ["uniform", "geometric"])
def test_grids_are_strictly_increasing_and_keep_their_ends(bounds, kind):
    (edges,) = grids_of(kind, bounds, 1, 64, None)
    assert (edges[0], edges[-1]) == bounds
    assert (np.diff(edges) > 0).all()
    private_quantiles([1.0, 2.0], 0.5, bounds, grid=kind, epsilon=1.0, delta=1e-5)


def test_a_geometric_grid_is_symmetric_and_finer_near_zero():
    (edges,) = grids_of("geometric", (-100, 100), 1, 20, 0.1)
    np.testing.assert_allclose(edges, -edges[::-1], atol=1e-12)
    widths = np.diff(edges)[10:]
    assert (np.diff(widths) > 0).all()
    np.testing.assert_allclose(widths[1:] / widths[:-1], (100 / 0.1 + 1) ** (1 / 10))


@settings(deadline=None, derandomize=True, max_examples=100)
@given(arrays(float, st.integers(1, 30), elements=st.floats(-50, 50)), st.floats(1, 1e6))
def test_quantiles_of_any_noisy_counts_are_ordered_and_inside(counts, n):
    edges = np.linspace(-3, 5, len(counts) + 1)
    values = histogram_quantiles(counts, edges, n, np.array([0.01, 0.3, 0.5, 0.99]))
    assert (np.diff(values) >= 0).all()
    assert values[0] >= -3
    assert values[-1] <= 5


def test_cumulative_counts_are_made_monotone():
    counts, edges = np.array([10.0, -5.0, 5.0]), np.arange(4.0)  # sums 10, 5, 10 become 7.5, 7.5, 10
    np.testing.assert_allclose(histogram_quantiles(counts, edges, 10.0, np.array([0.6, 0.9])), [0.8, 2.6])


@pytest.mark.parametrize("q", [0, 1, -0.1, 2, [], np.nan, "half", [[0.5]]])
def test_levels_are_checked(q):
    with pytest.raises(InvalidInput):
        private_quantiles([1.0, 2.0], q, (0, 3), **BIG)


@pytest.mark.parametrize(
    "function", [private_mean, private_variance, lambda *a, **k: private_quantiles(a[0], 0.5, a[1], **k)]
)
@pytest.mark.parametrize(
    "x",
    [[], [[]], [np.nan], [np.inf], ["a"], [1j], [10**400], 3.0, np.zeros((2, 2, 2)), np.zeros((3, 0)), [[1], [2, 3]]],
)
def test_bad_columns_are_refused(function, x):
    with pytest.raises(InvalidInput):
        function(x, (0, 1), epsilon=1.0, delta=1e-5)


@pytest.mark.parametrize("bounds", [None, (1, 0), (0, np.inf), 4, ([0, 0], [1, 1])])
def test_bad_bounds_are_refused(bounds):
    for function in (private_mean, private_variance):
        with pytest.raises(InvalidInput):
            function([0.5], bounds, epsilon=1.0, delta=1e-5)
    with pytest.raises(InvalidInput):
        private_quantiles([0.5], 0.5, bounds, epsilon=1.0, delta=1e-5)
