"""The scaler that users call, attacked; and bugs planted under it, which must be caught."""

from __future__ import annotations

import numpy as np

from tacit.accounting import gdp_epsilon
from tacit.audit import audit_gdp
from tacit.estimators import DPStandardScaler
from tacit.release import channel as channel_module

N = 2000
EPSILON, DELTA = gdp_epsilon(1.0, 1e-5), 1e-5
"""μ = 1."""


def fits(value: float, first_seed: int):
    """Means of k fits to 30 records of which one is ``value``; seeds of the two sides are apart."""
    X = np.zeros((30, 1))
    X[0] = value

    def sample(k: int) -> np.ndarray:
        seeds = range(first_seed, first_seed + k)
        return np.array(
            [DPStandardScaler(EPSILON, DELTA, (-1, 1), random_state=seed).fit(X).mean_[0] for seed in seeds]
        )

    return sample


def audit(runs: int = N):
    certificate = DPStandardScaler(EPSILON, DELTA, (-1, 1)).fit(np.zeros((30, 1))).certificate_
    found = audit_gdp(fits(1.0, 0), fits(-1.0, runs), runs)
    return found, found.verdict(certificate)


def test_the_standard_scaler_stays_below_its_certificate_and_comes_near():
    found, verdict = audit()
    assert not verdict.violated
    assert 0.75 <= found.mu_lower <= 1.0


def test_a_sensitivity_for_zero_out_under_replace_one_is_caught(monkeypatch):
    monkeypatch.setattr(channel_module, "sensitivity", lambda mechanism, query: query.bound)  # √2 instead of 2
    assert audit(500)[1].violated


def test_noise_too_small_by_30_percent_is_caught(monkeypatch):
    right = channel_module.noise_std
    monkeypatch.setattr(channel_module, "noise_std", lambda *a: 0.7 * right(*a))
    assert audit(500)[1].violated
