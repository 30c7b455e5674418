"""Far tails: tilting against exact Gaussian values, both routes against each other, cells against quadrature."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from scipy import optimize

from tacit.accounting import gdp_epsilon, pld, poisson_epsilon
from tacit.accounting.curve import Sampled
from tacit.accounting.loss_cells import optimistic_cells, pessimistic_cells
from tacit.accounting.tilted import Losses, tilted_delta, tilted_epsilon
from tacit.errors import NotCovered
from tacit.mechanism import Adjacency


@pytest.mark.parametrize("side", ["remove", "add", "replace"])
@pytest.mark.parametrize("delta", [1e-5, 1e-15, 1e-40])
def test_without_sampling_it_is_the_exact_gaussian_value(side, delta):
    sigma, steps, grid = 20.0, 100, 1e-3
    mu = (2.0 if side == "replace" else 1.0) * math.sqrt(steps) / sigma
    exact = gdp_epsilon(mu, delta)
    both = ((pessimistic_cells, True), (optimistic_cells, False))
    for cells, upper in both if delta > 1e-20 else both[:1]:  # so far out only the upper value has digits left
        parts = [Losses(*cells(side, 1.0, sigma, grid, 20.0), steps)]
        got = tilted_epsilon(parts, grid, delta, upper=upper)
        assert got == pytest.approx(exact, rel=1e-4)
        assert (got >= exact * (1 - 1e-9)) if upper else (got <= exact * (1 + 1e-9))


def test_delta_inverts_epsilon_far_in_the_tail():
    grid = 1e-3
    parts = [Losses(*pessimistic_cells("remove", 0.05, 1.5, grid, 20.0), 300)]
    for delta in (1e-8, 1e-20, 1e-60):
        epsilon = tilted_epsilon(parts, grid, delta, upper=True)
        assert tilted_delta(parts, grid, epsilon) == pytest.approx(delta, rel=1e-3)


def exact_delta(side: str, q: float, sigma: float, epsilon: float) -> float:
    """δ(ε) of one release: the loss grows with x, so the best test is a threshold; found and evaluated by mpmath."""
    up, down, null = {0: 1 - q, 1: q}, {0: 1 - q, -1: q}, {0: 1.0}
    P, Q = {"remove": (up, null), "add": (null, down), "replace": (up, down)}[side]
    mix = lambda f, pair, x: mp.fsum(w * f(x, m) for m, w in pair.items())  # noqa: E731
    density = lambda x, m: mp.npdf(x, m, sigma)  # noqa: E731
    above = lambda x, m: mp.ncdf((m - x) / sigma)  # noqa: E731
    with mp.workdps(40):
        loss = lambda x: float(mp.log(mix(density, P, x) / mix(density, Q, x)) - epsilon)  # noqa: E731
        ends = (-60.0 * sigma, 60.0 * sigma)
        if loss(ends[0]) > 0 or loss(ends[1]) <= 0:
            return float(max(1 - mp.exp(epsilon), 0)) if loss(ends[0]) > 0 else 0.0
        x = optimize.brentq(loss, *ends, xtol=1e-13)  # δ is flat in the threshold there: its digits suffice
        return float(mix(above, P, x) - mp.exp(epsilon) * mix(above, Q, x))


@pytest.mark.parametrize("side", ["remove", "add", "replace"])
@pytest.mark.parametrize(("q", "sigma"), [(0.1, 1.0), (0.5, 0.7), (0.01, 3.0), (0.9, 2.0)])
def test_one_release_is_bracketed_by_its_cells(side, q, sigma):
    grid = 1e-4
    for epsilon in (0.0, 0.3, 1.0):
        exact = exact_delta(side, q, sigma, epsilon)
        values = []
        for cells in (optimistic_cells, pessimistic_cells):
            low, probs, _ = cells(side, q, sigma, grid)
            losses = (low + np.arange(len(probs))) * grid
            values.append(float(probs @ np.maximum(-np.expm1(epsilon - np.maximum(losses, epsilon)), 0.0)))
        assert values[0] <= exact * (1 + 1e-10) + 1e-300
        assert values[1] == pytest.approx(exact, rel=1e-9, abs=1e-25)  # exact where ε lies on the grid
        assert values[1] - values[0] <= 1e-2 * exact + 1e-12


@pytest.mark.parametrize("adjacency", list(Adjacency))
def test_the_two_routes_meet_at_the_boundary(adjacency, monkeypatch):
    rounds = ((adjacency.sum_factor / 2.0, 0.02, 500),)
    plain = pld._upper(adjacency, rounds, 0.0, 1e-8, 1e-4)
    monkeypatch.setattr(pld, "SMALL_DELTA", 1.0)
    tilted = pld._upper(adjacency, rounds, 0.0, 1e-8, 1e-4)
    assert tilted == pytest.approx(plain, rel=2e-3)  # the plain route adds 1e-12 of FFT noise to δ


def test_delta_of_one_over_n_squared_for_a_million_records():
    epsilon = poisson_epsilon(1.0, 1e-3, 3000, 1e-12, adjacency="add-remove")
    looser = poisson_epsilon(1.0, 1e-3, 3000, 1e-8, adjacency="add-remove")
    assert looser < epsilon < 2.5 * looser
    curve = Sampled(Adjacency.ADD_REMOVE, ((1.0, 1e-3, 3000),))
    low, high = curve.epsilon_interval(1e-12)
    assert high == epsilon
    assert high - low < 0.02 * high
    assert curve.delta(high) <= 1e-12 * 3  # on the first grid, which is coarser than the one that ε needed


def test_plain_gaussians_compose_with_sampled_ones_in_the_far_tail():
    both = Sampled(Adjacency.ZERO_OUT, ((0.5, 0.1, 50),), mu=0.6)
    alone = Sampled(Adjacency.ZERO_OUT, ((0.5, 0.1, 50),))
    assert both.epsilon(1e-14) > max(alone.epsilon(1e-14), gdp_epsilon(0.6, 1e-14))
    assert both.epsilon(1e-14) < alone.epsilon(5e-15) + gdp_epsilon(0.6, 5e-15)


def random_releases(count: int):
    rng = np.random.default_rng(5)
    for _ in range(count):
        adjacency = list(Adjacency)[rng.integers(3)]
        yield adjacency, 10 ** rng.uniform(-0.9, 1.3), 10 ** rng.uniform(-4, 0), 10 ** rng.uniform(-25, -2)


@pytest.mark.parametrize(("adjacency", "sigma", "q", "delta"), list(random_releases(12)))
def test_random_releases_are_bracketed_by_the_truth(adjacency, sigma, q, delta):
    """δ of the pair (40 digits) at the upper ε is at most the target, at the lower ε at least."""
    low, high = pld.epsilon_interval(adjacency, ((adjacency.sum_factor / sigma, q, 1),), 0.0, delta)
    truth = [max(exact_delta(side, q, sigma, e) for side in pld._sides(adjacency)) for e in (low, high)]
    assert truth[1] <= delta * (1 + 1e-9)
    assert low == 0 or truth[0] >= delta * (1 - 1e-9)


@pytest.mark.parametrize(("ratio", "q"), [(38.0, 1e-4), (30.0, 1e-9)])
def test_tiny_noise_is_refused_or_right(ratio, q):
    """Breaker's A7: e^{−1/2σ²} underflowed and the certificate said ε = 0 where δ(0) = q."""
    curve = Sampled(Adjacency.ADD_REMOVE, ((ratio, q, 1),))
    try:
        epsilon = curve.epsilon(1e-10)
    except NotCovered:
        return
    assert epsilon > 0
