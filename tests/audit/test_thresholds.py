"""The Clopper–Pearson pieces, and that the pilot's threshold is close to the best one."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom, binomtest, norm

from tacit.audit._thresholds import Threshold, choose_threshold, clopper_pearson_upper, looks_gaussian


@pytest.mark.parametrize(("errors", "trials"), [(0, 10), (1, 10), (9, 10), (37, 400), (2300, 9000), (8999, 9000)])
@pytest.mark.parametrize("level", [0.025, 0.005, 0.2])
def test_upper_bound_is_the_root_of_the_binomial_tail(errors: int, trials: int, level: float) -> None:
    upper = float(clopper_pearson_upper(errors, trials, level))
    assert binom.cdf(errors, trials, upper) == pytest.approx(level, rel=1e-9)
    oracle = binomtest(errors, trials, alternative="less").proportion_ci(1 - level, method="exact").high
    assert upper == pytest.approx(oracle, rel=1e-9)


def test_upper_bound_is_one_after_nothing_but_errors() -> None:
    assert float(clopper_pearson_upper(50, 50, 0.025)) == 1.0


@pytest.mark.parametrize("rate", [0.001, 0.02, 0.31, 0.9])
def test_upper_bound_covers_exactly(rate: float) -> None:
    # No sampling: the failure probability is summed over all counts.
    trials, level = 500, 0.025
    counts = np.arange(trials + 1)
    failing = clopper_pearson_upper(counts, trials, level) < rate
    assert binom.pmf(counts[failing], trials, rate).sum() <= level
    # A bound at twice the level must fail the same check somewhere, or the check is empty.
    loose = clopper_pearson_upper(counts, trials, 4 * level) < rate
    assert rate < 0.01 or binom.pmf(counts[loose], trials, rate).sum() > level


def test_fractional_counts_interpolate() -> None:
    values = clopper_pearson_upper(np.linspace(0, 20, 201), 100, 0.05)
    assert (np.diff(values) > 0).all()


def test_both_directions_count_the_same_errors() -> None:
    scores = np.array([-1.0, 0.0, 0.5, 2.0])
    assert Threshold(0.25, 1).rejects(scores) == 2
    assert Threshold(0.25, -1).rejects(scores) == 2
    assert Threshold(0.5, 1).rejects(scores) == 1  # a score at the threshold is not evidence


def test_gaussian_check_separates() -> None:
    rng = np.random.default_rng(0)
    assert np.mean([looks_gaussian(rng.normal(size=1000)) for _ in range(200)]) > 0.97
    assert not any(looks_gaussian(rng.laplace(size=1000)) for _ in range(20))
    assert not looks_gaussian((rng.random(1000) < 0.3).astype(float))
    assert not looks_gaussian(np.full(50, 3.0))


def _mu(alpha: np.ndarray, beta: np.ndarray) -> np.ndarray:
    return -norm.ppf(alpha) - norm.ppf(beta)


@pytest.mark.parametrize("mu", [0.5, 1.43, 4.0])
def test_gaussian_threshold_is_near_the_optimum(mu: float) -> None:
    rng = np.random.default_rng(1)
    n, level = 9000, 0.025

    def value(t: float) -> float:
        rates = clopper_pearson_upper(n * norm.cdf([-t, t - mu]), n, level)
        return float(_mu(rates[0], rates[1]))

    best = max(value(t) for t in np.linspace(-1, mu + 1, 201))
    lost = []
    for _ in range(40):
        test = choose_threshold(rng.normal(size=1000), rng.normal(size=1000) + mu, n, level, _mu)
        lost.append(best - (value(test.value) if test.direction == 1 else 0.0))
    print(f"μ = {mu}: threshold loses {np.mean(lost):.5f} on average, {max(lost):.4f} at most")
    assert np.mean(lost) < 0.006


def test_rare_leak_is_found_in_the_tail() -> None:
    # One run in fifty on D2 gives the secret away; a Gaussian fit would look in the middle.
    rng = np.random.default_rng(2)
    pilot_d2 = rng.normal(size=1000) + 50 * (rng.random(1000) < 0.02)
    test = choose_threshold(rng.normal(size=1000), pilot_d2, 9000, 0.025, _mu)
    assert 3 < test.value < 50
    assert test.direction == 1
