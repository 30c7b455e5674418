"""The last-iterate bound against a QP, against linear chains that attain it, and against composition."""

import math

import numpy as np
import pytest
from scipy import optimize

from tacit.accounting import last_iterate_mu, last_iterate_shifts, noisy_cyclic_delta, noisy_cyclic_mu
from tacit.accounting.certificate import certify
from tacit.errors import NotCovered
from tacit.mechanism import (
    Cyclic,
    FullBatch,
    LastIterate,
    Mechanism,
    Memory,
    NoiseShape,
    Output,
    Partition,
    Schedule,
)


def qp_energy(c, d, s, z0=0.0):
    """min Σ a²/s² with z_k = c_k z_{k−1} + d_k − a_k ≥ 0 and z_t = 0, as non-negative least squares in z."""
    t = len(d)
    A = np.zeros((t, t - 1)) if t > 1 else np.zeros((1, 1))
    for k in range(t):
        if k:
            A[k, k - 1] = c[k]
        if k < t - 1:
            A[k, k] = -1.0
    shift = np.array(d, float)
    shift[0] += c[0] * z0
    _, residual = optimize.nnls(A / s[:, None], -shift / s)
    return residual**2


def qp_mu(c, d, s, diameter=None):
    best = qp_energy(c, d, s)
    if diameter is not None:
        for tau in range(1, len(d)):
            best = min(best, qp_energy(c[tau:], d[tau:], s[tau:], diameter))
    return math.sqrt(best)


def random_chain(rng, longest=12):
    t = int(rng.integers(1, longest + 1))
    c = rng.uniform(0.3, 1.2, t)
    d = rng.uniform(0, 2, t) * (rng.random(t) < 0.6)
    s = rng.uniform(0.3, 2, t)
    return c, d, s


def linear_chain_mu(slopes, d, s):
    """Exact μ of x_k = a_k x_{k−1} + N(0, s_k²) against the same plus d_k: shift of the mean over the deviation."""
    mean, variance = 0.0, 0.0
    for a, step, noise in zip(slopes, d, s, strict=True):
        mean, variance = a * mean + step, a * a * variance + noise * noise
    return mean / math.sqrt(variance)


@pytest.mark.parametrize("seed", range(200))
def test_equals_the_quadratic_program(seed):
    rng = np.random.default_rng(seed)
    c, d, s = random_chain(rng)
    assert last_iterate_mu(c, d, s) == pytest.approx(qp_mu(c, d, s), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(100))
def test_bounded_domain_equals_the_best_start(seed):
    rng = np.random.default_rng(1000 + seed)
    c, d, s = random_chain(rng)
    D = float(rng.uniform(0.05, 2))
    assert last_iterate_mu(c, d, s, diameter=D) == pytest.approx(qp_mu(c, d, s, D), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(60))
def test_linear_maps_attain_the_bound(seed):
    rng = np.random.default_rng(2000 + seed)
    c, d, s = random_chain(rng)
    d = d + 0.01  # every pool has a positive slope
    found = last_iterate_shifts(c, d, s)
    C = np.append(np.cumprod(c[::-1])[::-1][1:], 1.0)
    slope = found.shifts / (C * s**2)  # the minorant's slope at each step, non-decreasing
    assert (np.diff(slope) >= -1e-9 * slope[1:]).all()
    slopes = np.append(0.0, c[1:] * slope[:-1] / slope[1:])
    assert (slopes <= c * (1 + 1e-9)).all()
    assert linear_chain_mu(slopes, d, s) == pytest.approx(found.mu, rel=1e-9)


@pytest.mark.parametrize("seed", range(30))
def test_no_linear_chain_exceeds_the_bound(seed):
    rng = np.random.default_rng(3000 + seed)
    c, d, s = random_chain(rng)
    bound = last_iterate_mu(c, d, s)
    for _ in range(50):
        slopes = c * rng.uniform(0, 1, len(c))
        moved = d * rng.uniform(0, 1, len(d))
        assert linear_chain_mu(slopes, moved, s) <= bound * (1 + 1e-9) + 1e-12


@pytest.mark.parametrize("seed", range(60))
@pytest.mark.parametrize("bounded", [False, True])
def test_shifts_are_feasible_and_their_energy_is_mu_squared(seed, bounded):
    rng = np.random.default_rng(4000 + seed)
    c, d, s = random_chain(rng)
    D = 0.3 if bounded else None
    found = last_iterate_shifts(c, d, s, diameter=D)
    z = D if found.start else 0.0
    for k in range(found.start, len(d)):
        z = c[k] * z + d[k] - found.shifts[k]
        assert z >= -1e-9
        assert found.distances[k] == pytest.approx(max(z, 0.0), abs=1e-9)
    assert abs(z) < 1e-9
    assert (found.shifts >= 0).all()
    assert ((found.shifts / s) ** 2).sum() == pytest.approx(found.mu**2, rel=1e-9, abs=1e-15)
    assert found.mu == pytest.approx(last_iterate_mu(c, d, s, diameter=D))


@pytest.mark.parametrize("seed", range(40))
def test_never_larger_than_composition(seed):
    c, d, s = random_chain(np.random.default_rng(5000 + seed))
    composition = math.sqrt(((d / s) ** 2).sum())
    assert last_iterate_mu(c, d, s) <= composition * (1 + 1e-12)


@pytest.mark.parametrize("c", [0.9, 1.0, 0.999999])
def test_ten_million_constant_steps_match_the_closed_form(c):
    # d/s constant and c ≤ 1: S is concave in W, so the minorant is the chord, μ = S_t/√W_t
    t = 10_000_000
    S = t if c == 1 else (1 - c**t) / (1 - c)
    W = t if c == 1 else (1 - c ** (2 * t)) / (1 - c * c)
    assert last_iterate_mu(np.full(t, c), 0.5, 1.0) == pytest.approx(0.5 * S / math.sqrt(W), rel=1e-7)


def test_expanding_maps_forget_nothing_more_than_composition():
    assert last_iterate_mu(np.full(2000, 1.5), 1.0, 1.0) <= math.sqrt(2000) * (1 + 1e-12)
    assert last_iterate_mu(np.full(2000, 1.5), 1.0, 1.0) > 1


@pytest.mark.parametrize("factor", [1e-150, 1e-20, 1e20, 1e150])
@pytest.mark.parametrize("diameter", [None, 0.4])
def test_only_proportions_matter(factor, diameter):
    c, d, s = random_chain(np.random.default_rng(7))
    scaled = None if diameter is None else diameter * factor
    expected = last_iterate_mu(c, d, s, diameter=diameter)
    assert last_iterate_mu(c, d * factor, s * factor, diameter=scaled) == pytest.approx(expected, rel=1e-9)


def test_a_shift_that_no_noise_covers_is_infinite():
    assert last_iterate_mu([1.0, 1.0], [0.0, 1.0], [1.0, 0.0]) == math.inf
    assert last_iterate_mu([0.5], 1.0, 0.0) == math.inf


def test_a_constant_map_forgets_everything_before_it():
    assert last_iterate_mu([1.0, 0.0, 1.0], [5.0, 0.0, 0.0], 1.0) == 0.0
    assert last_iterate_mu([1.0, 0.0], [5.0, 2.0], 1.0) == pytest.approx(2.0)


# -- cyclic batches ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", range(1, 8))
@pytest.mark.parametrize("seed", range(4))
def test_every_position_equals_the_explicit_chain(k, seed):
    rng = np.random.default_rng(100 * k + seed)
    epochs = int(rng.integers(1, 6))
    t = k * epochs
    c = rng.uniform(0, 1.3, t) * (rng.random(t) < 0.9)
    s = rng.uniform(0, 2, t) * (rng.random(t) < 0.8)
    s[-1] = 1.0
    ratio = rng.uniform(0, 2, t) * (s > 0)  # a step without noise reads nothing
    for j in range(k):
        d = np.zeros(t)
        d[j::k] = (ratio * s)[j::k]
        expected = last_iterate_mu(c, d, s)
        found = noisy_cyclic_mu(k, epochs, c, ratio, position=j, noise_std=s)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)


def _chain(sampling, steps=20, c=0.95, adjacency="replace-one", **view):
    hidden = LastIterate(lipschitz=Schedule.of(c, steps), noise_std=Schedule.of(1.0, steps), **view)
    return Mechanism(adjacency=adjacency, ratio=0.3, steps=steps, sampling=sampling, view=hidden)


@pytest.mark.parametrize("steps", [4, 5, 6, 7, 23])
def test_unfinished_last_epoch_takes_the_worst_position(steps):
    mus = []
    for j in range(4):
        d = np.zeros(steps)
        d[j::4] = 0.3
        mus.append(last_iterate_mu(np.full(steps, 0.95), d, 1.0))
    assert certify(_chain(Cyclic(4), steps)).mu == pytest.approx(max(mus), rel=1e-12)


def test_uneven_last_batch_has_its_own_noise_and_ratio():
    s = np.array([1.0, 1.0, 2.0])
    ratio = np.array([0.5, 0.5, 0.25])
    d = np.zeros(12)
    d[2::3] = 0.5
    expected = last_iterate_mu(np.full(12, 0.9), d, np.tile(s, 4))
    assert noisy_cyclic_mu(3, 4, 0.9, ratio, position=2, noise_std=s) == pytest.approx(expected)


def test_average_over_a_secret_partition_lies_between_best_and_worst():
    deltas = [noisy_cyclic_delta(5, 10, 0.9, 0.5, 1.0, position=j) for j in range(5)]
    average = noisy_cyclic_delta(5, 10, 0.9, 0.5, 1.0)
    assert average == pytest.approx(np.mean(deltas))
    assert average < noisy_cyclic_delta(5, 10, 0.9, 0.5, 1.0, position="worst")
    weights = np.array([0.1, 0.2, 0.3, 0.4, 0.0])
    assert noisy_cyclic_delta(5, 10, 0.9, 0.5, 1.0, weights=weights) == pytest.approx(weights @ deltas)


def test_a_secret_partition_costs_less_than_a_fixed_one():
    secret, fixed = (certify(_chain(Cyclic(4, p))) for p in (Partition.SECRET, Partition.FIXED))
    assert secret.epsilon(1e-5) < fixed.epsilon(1e-5)


@pytest.mark.parametrize("sampling", [FullBatch(), Cyclic(3)])
def test_bounded_domain_never_hurts_and_helps_long_chains(sampling):
    free = certify(_chain(sampling, 300, 1.0)).mu
    assert certify(_chain(sampling, 300, 1.0, diameter=1.0)).mu < free
    assert certify(_chain(sampling, 300, 1.0, diameter=1e9)).mu == pytest.approx(free)


# -- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("axis", "change"),
    [
        ("view.output", {"output": Output.AVERAGE}),
        ("view.output", {"output": Output.CHECKPOINTS}),
        ("view.memory", {"memory": Memory.MOMENTUM}),
        ("view.memory", {"memory": Memory.PER_RECORD}),
        ("view.noise_shape", {"noise_shape": NoiseShape.COORDINATE}),
    ],
)
def test_what_the_theorem_does_not_cover_is_refused_and_falls_back_to_composition(axis, change):
    m = _chain(FullBatch(), **change)
    with pytest.raises(NotCovered) as refusal:
        certify(m, theorem="last-iterate")
    assert refusal.value.axis == axis
    fallback = certify(m)
    assert fallback.mu == pytest.approx(0.3 * math.sqrt(20))
    assert fallback.epsilon(1e-5) > certify(_chain(FullBatch())).epsilon(1e-5)
