"""The compiled minorant: every cyclic position against the plain chain, and scales that would overflow."""

import math

import numpy as np
import pytest

from tacit.kernels import minorant


def naive_energy(d, s, c):
    """The greatest convex minorant of the points (W_k, S_k), by gift wrapping in absolute coordinates."""
    C = np.append(np.cumprod(c[::-1])[::-1][1:], 1.0)
    W = np.append(0.0, np.cumsum((C * s) ** 2))
    S = np.append(0.0, np.cumsum(C * d))
    k, energy = 0, 0.0
    while k < len(d):
        ahead = np.arange(k + 1, len(d) + 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = (S[ahead] - S[k]) / (W[ahead] - W[k])
        slope = np.where(np.isnan(slope), np.inf, slope)
        best = ahead[np.flatnonzero(slope <= slope.min() * (1 + 1e-14))[-1]]
        rise, run = S[best] - S[k], W[best] - W[k]
        energy += rise**2 / run if rise > 0 else 0.0
        k = best
    return energy


@pytest.mark.parametrize("seed", range(60))
def test_pool_is_the_minorant(seed):
    rng = np.random.default_rng(seed)
    t = int(rng.integers(1, 40))
    c, s = rng.uniform(0.5, 1.3, t), rng.uniform(0.2, 2, t)
    d = rng.uniform(0, 1, t) * (rng.random(t) < 0.6)
    energy, ends, slopes, _ = minorant.pool(*minorant.increments(d, s, minorant.log_products(c)))
    assert energy == pytest.approx(naive_energy(d, s, c), rel=1e-9, abs=1e-12)
    assert ends[-1] == t - 1
    assert (slopes >= 0).all()


@pytest.mark.parametrize("k", range(1, 8))
@pytest.mark.parametrize("seed", range(6))
def test_every_cyclic_position_equals_pool_on_its_visits(k, seed):
    rng = np.random.default_rng(1000 * k + seed)
    t = int(rng.integers(k, 6 * k + 3))  # the last epoch may be unfinished
    c = rng.uniform(0, 1.4, t) * (rng.random(t) < 0.9)
    s = rng.uniform(0.1, 2, t) * (rng.random(t) < 0.8)
    d = rng.uniform(0, 1, t)
    log_c = minorant.log_products(c)
    found = minorant.cyclic_energies(*minorant.increments(d, s, log_c), k)
    for j in range(k):
        visits = np.zeros(t)
        visits[j::k] = d[j::k]
        assert found[j] == pytest.approx(minorant.pool(*minorant.increments(visits, s, log_c))[0], rel=1e-9, abs=1e-12)


def test_log_products_stop_at_a_constant_map():
    found = minorant.log_products(np.array([0.5, 0.0, 0.5, 0.25]))
    assert found.tolist() == [-math.inf, pytest.approx(math.log(0.125)), pytest.approx(math.log(0.25)), 0.0]


def test_log_products_are_compensated():
    c = np.full(1_000_000, 0.999999)
    assert minorant.log_products(c)[0] == pytest.approx(999_999 * math.log(0.999999), rel=1e-14)


@pytest.mark.parametrize("c", [0.5, 1.5])
def test_scales_far_beyond_floats(c):
    t = 5000  # C spans 10^±880
    energy = minorant.pool(*minorant.increments(np.ones(t), np.ones(t), minorant.log_products(np.full(t, c))))[0]
    assert math.isfinite(energy)
    # c < 1: the chord, (1+c)/(1−c); c > 1: S is convex in W, so every step is its own edge
    assert energy == pytest.approx((1 + c) / (1 - c) if c < 1 else t, rel=1e-9)


@pytest.mark.parametrize("seed", range(20))
def test_bounded_starts_bound_every_restart(seed):
    rng = np.random.default_rng(seed)
    t, D = int(rng.integers(2, 15)), 0.4
    c, d, s = rng.uniform(0.5, 1.1, t), rng.uniform(0, 1, t), rng.uniform(0.3, 1, t)
    log_c = minorant.log_products(c)
    found = minorant.bounded_starts(d, s, log_c, D)
    assert found[0] == math.inf
    for tau in range(1, t):
        rest = d[tau:].copy()
        rest[0] += c[tau] * D
        exact = minorant.pool(*minorant.increments(rest, s[tau:].copy(), log_c[tau:].copy()))[0]
        assert found[tau] == pytest.approx(exact, rel=1e-8)


@pytest.mark.parametrize(
    ("d", "s", "mu"),
    [
        ([1.6e308], [0.8e308], 2.0),
        ([1e300], [1e290], 1e10),
        ([0.0, 1e-300], [1e300, 1e-300], 1.0),
        ([0.0, 0.93 * 1.6e-162], [1.0, 1.6e-162], 0.93),
        ([0.0, 1e-110, 1e-109], [1.0, 1e-110, 1e-110], math.hypot(1, 10)),
    ],
)
def test_no_scale_is_lost(d, s, mu):
    """Chains whose maps are constant or the identity attain these; a lost digit would promise too much."""
    d, s = np.array(d), np.array(s)
    energy = minorant.pool(*minorant.increments(d, s, np.zeros(len(d))))[0]
    assert math.sqrt(energy) == pytest.approx(mu, rel=1e-9)
