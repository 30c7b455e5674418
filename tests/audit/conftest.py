"""Certificates and pairs of samplers that the audit tests share, written without Tacit's own accounting."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import log_ndtr, ndtr
from scipy.stats import binom

Sampler = Callable[[int], NDArray[np.float64]]
Pair = tuple[Sampler, Sampler]


@dataclass(frozen=True)
class GaussianClaim:
    """δ(ε) of μ-GDP by its textbook formula."""

    mu: float

    def delta(self, epsilon: float) -> float:
        a, b = -epsilon / self.mu + self.mu / 2, -epsilon / self.mu - self.mu / 2
        return float(min(1.0, max(0.0, ndtr(a) - math.exp(epsilon + log_ndtr(b)))))

    def epsilon(self, delta: float) -> float:
        return float(brentq(lambda e: self.delta(e) - delta, 0, 200))


@dataclass(frozen=True)
class PureClaim:
    """ε₀-DP: what randomised response of that ε₀ reaches at every ε."""

    level: float

    def delta(self, epsilon: float) -> float:
        e0 = math.exp(self.level)
        return max(0.0, (e0 - math.exp(epsilon)) / (1 + e0))

    def epsilon(self, delta: float) -> float:
        e0 = math.exp(self.level)
        return max(0.0, math.log(max(e0 - delta * (1 + e0), 1e-300)))


@pytest.fixture(scope="session")
def gaussian_claim() -> type[GaussianClaim]:
    return GaussianClaim


@pytest.fixture(scope="session")
def pure_claim() -> type[PureClaim]:
    return PureClaim


@pytest.fixture(scope="session")
def gaussian_pair() -> Callable[..., Pair]:
    """(sampler of N(0, 1), sampler of N(μ, 1)), both fed by one generator."""

    def pair(mu: float, rng: np.random.Generator, shape: tuple[int, ...] = ()) -> Pair:
        return (lambda k: rng.normal(size=(k, *shape)), lambda k: rng.normal(size=(k, *shape)) + mu)

    return pair


@pytest.fixture(scope="session")
def too_many() -> Callable[[int, int, float], bool]:
    """Whether so many failures refute a failure probability (one in 10⁴ false alarms)."""
    return lambda failures, repetitions, level: failures > binom.ppf(0.9999, repetitions, level)
