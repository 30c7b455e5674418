"""Participation sensitivity of correlated noise, against brute force over every allowed pattern."""

import itertools
import math

import numpy as np
import pytest

from tacit.accounting import certify, participation_sensitivity
from tacit.mechanism import Adjacency, CorrelatedNoise, Cyclic, FullBatch, Mechanism, Schedule, Separated


def _patterns(steps, separation, visits):
    for size in range(1, visits + 1):
        for pattern in itertools.combinations(range(steps), size):
            if all(b - a >= separation for a, b in itertools.pairwise(pattern)):
                yield pattern


def _brute(noise, steps, separation, visits):
    G = np.abs(noise.to_dense(steps).T @ noise.to_dense(steps))
    return max(math.sqrt(G[np.ix_(p, p)].sum()) for p in _patterns(steps, separation, visits))


@pytest.mark.parametrize(("steps", "separation", "visits"), [(3, 2, 2), (7, 3, 3), (10, 1, 10), (5, 2, 9), (9, 4, 2)])
def test_identity_strategy_counts_the_visits(steps, separation, visits):
    found = participation_sensitivity(CorrelatedNoise.toeplitz([1.0]), steps, Separated(separation, visits))
    assert found**2 == pytest.approx(min(visits, math.ceil(steps / separation)))


def test_errata_e20_setting_needs_the_square_root_of_ten():
    # 100 steps, separation 11: visits at 0, 11, ..., 99
    assert participation_sensitivity(CorrelatedNoise.toeplitz([1.0]), 100, Separated(11, 10)) == pytest.approx(10**0.5)


@pytest.mark.parametrize("seed", range(12))
def test_separated_is_never_below_brute_force(seed):
    rng = np.random.default_rng(seed)
    steps, separation, visits = int(rng.integers(4, 9)), int(rng.integers(1, 4)), int(rng.integers(1, 4))
    bands = int(rng.integers(1, 4))
    column = np.r_[1.0, rng.uniform(-0.8, 0.8, bands - 1)]
    noise = CorrelatedNoise.toeplitz(column)
    truth = _brute(noise, steps, separation, visits)
    assert participation_sensitivity(noise, steps, Separated(separation, visits)) >= truth * (1 - 1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_separated_is_exact_when_bands_do_not_overlap(seed):
    rng = np.random.default_rng(100 + seed)
    steps, separation = int(rng.integers(5, 10)), 3
    noise = CorrelatedNoise.toeplitz(np.r_[1.0, rng.uniform(0, 0.8, 2)])
    truth = _brute(noise, steps, separation, 3)
    assert participation_sensitivity(noise, steps, Separated(separation, 3)) == pytest.approx(truth)


def test_separated_factorised_identity_equals_independent_noise():
    common = {"adjacency": Adjacency.REPLACE_ONE, "ratio": 0.5, "steps": 9, "sampling": Separated(4, 3)}
    factorised = certify(Mechanism(**common, noise=CorrelatedNoise.toeplitz([1.0])))
    independent = certify(Mechanism(**common))
    assert factorised.mu == pytest.approx(independent.mu)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_cyclic_and_full_batch_match_the_dense_matrix(k):
    rng = np.random.default_rng(k)
    C = np.tril(rng.uniform(0, 1, (7, 7))) + np.eye(7)
    noise = CorrelatedNoise.dense(C)
    G = C.T @ C
    truth = max(math.sqrt(G[np.ix_(p, p)].sum()) for p in (range(j, 7, k) for j in range(k)))
    sampling = FullBatch() if k == 1 else Cyclic(k)
    assert participation_sensitivity(noise, 7, sampling) == pytest.approx(truth)


def test_columns_beyond_the_last_row_do_not_count():
    noise = CorrelatedNoise.toeplitz([1.0, 1.0])
    assert participation_sensitivity(noise, 1, FullBatch()) == pytest.approx(1.0)
    assert noise.to_dense(2).tolist() == [[1.0, 0.0], [1.0, 1.0]]


def test_mu_is_ratio_times_sensitivity():
    noise = CorrelatedNoise.toeplitz([1.0, 0.5])
    m = Mechanism(adjacency="zero-out", ratio=Schedule.constant(0.3, 6), steps=6, noise=noise, sampling=Cyclic(2))
    assert certify(m).mu == pytest.approx(0.3 * participation_sensitivity(noise, 6, Cyclic(2)))


def test_a_separation_longer_than_the_run_is_one_visit():
    """Nothing is laid out that is as long as the separation: a certificate file may state any."""
    noise = CorrelatedNoise.toeplitz([1.0, 0.5, 0.25])
    once = participation_sensitivity(noise, 20, Separated(20, 1))
    assert participation_sensitivity(noise, 20, Separated(10**15, 10**15)) == once
    m = Mechanism(adjacency="zero-out", ratio=0.5, steps=20, sampling=Separated(10**15, 10**15))
    assert certify(m).mu == 0.5
