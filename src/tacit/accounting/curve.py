"""Privacy curves: what a theorem says about one mechanism, and how curves compose.

Four kinds, from the one that composes best to the one that composes least:

- ``Gaussian(mu)``: exactly μ-GDP; adaptive composition is √(Σ μ²), exactly.
- ``Sampled(…)``: Poisson-sampled Gaussians, composed numerically as privacy loss distributions.
- ``Chosen(…)``: noisy choices and Gaussian releases in any order, composed by a dynamic programme.
- ``Profile(…)``: only δ(ε) is known; composes through (ε, δ) points: Σ ε_i(δ_i) at Σ δ_i.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy import optimize

from tacit import _validate
from tacit.accounting import pld
from tacit.accounting.choices import choices_delta
from tacit.accounting.gdp import gdp_delta, gdp_epsilon
from tacit.mechanism import Adjacency

__all__ = ["Chosen", "Curve", "Gaussian", "Profile", "Sampled", "Sum", "compose", "delta_of", "invert"]

MAX_EPSILON = 1e7
"""Beyond this ε a profile counts as no promise at all."""


class Curve(Protocol):
    """ε(δ) and δ(ε), both upper bounds on the truth."""

    def epsilon(self, delta: float) -> float:
        """The smallest certified ε at this δ."""

    def delta(self, epsilon: float) -> float:
        """The smallest certified δ at this ε."""


@dataclass(frozen=True)
class Gaussian:
    """Exactly μ-GDP."""

    mu: float

    def epsilon(self, delta: float) -> float:
        """The smallest ε at this δ."""
        return gdp_epsilon(self.mu, _validate.delta(delta))

    def delta(self, epsilon: float) -> float:
        """The smallest δ at this ε."""
        return gdp_delta(self.mu, _validate.real(epsilon=epsilon))


@dataclass(frozen=True)
class Sampled:
    """A composition of Poisson-sampled and plain Gaussian releases under one relation.

    Attributes:
        adjacency: the relation.
        rounds: (ratio, rate, count) of each kind of Poisson-sampled release.
        mu: of everything Gaussian composed with it.
    """

    adjacency: Adjacency
    rounds: tuple[tuple[float, float, int], ...]
    mu: float = 0.0

    def epsilon(self, delta: float) -> float:
        """The pessimistic ε at this δ."""
        return pld.epsilon(self.adjacency, self.rounds, self.mu, _validate.delta(delta))

    def delta(self, epsilon: float) -> float:
        """The pessimistic δ at this ε."""
        return pld.delta(self.adjacency, self.rounds, self.mu, _validate.real(epsilon=epsilon))

    def epsilon_interval(self, delta: float) -> tuple[float, float]:
        """(optimistic, pessimistic): the exact ε of the dominating pair lies between."""
        return pld.epsilon_interval(self.adjacency, self.rounds, self.mu, _validate.delta(delta))


@dataclass(frozen=True)
class Chosen:
    """Adaptive noisy choices of one bounded range, and everything Gaussian composed with them, in any order.

    Attributes:
        bounded_range: η, the largest of all choices.
        steps: how many choices.
        mu: of everything Gaussian composed with them.
    """

    bounded_range: float
    steps: int
    mu: float = 0.0

    def epsilon(self, delta: float) -> float:
        """The smallest ε at this δ."""
        return _chosen_epsilon(self, _validate.delta(delta))

    def delta(self, epsilon: float) -> float:
        """The smallest δ at this ε."""
        return choices_delta(self.bounded_range, self.steps, self.mu, _validate.real(epsilon=epsilon))


@functools.lru_cache(maxsize=256)
def _chosen_epsilon(curve: Chosen, delta: float) -> float:
    return invert(curve.delta, delta)


class Profile:
    """A curve of which only δ(ε), non-increasing in ε, is known.

    Args:
        delta: ε ↦ an upper bound on δ.
        epsilon: δ ↦ an upper bound on ε, if a direct form exists (else δ(ε) is inverted by bisection).
    """

    def __init__(self, delta: Callable[[float], float], epsilon: Callable[[float], float] | None = None) -> None:
        self._delta = delta
        self._epsilon = functools.cache(epsilon or self._invert)

    def epsilon(self, delta: float) -> float:
        """The smallest ε at this δ, rounded up."""
        return self._epsilon(_validate.delta(delta))

    def delta(self, epsilon: float) -> float:
        """The smallest δ at this ε."""
        return min(1.0, self._delta(_validate.real(epsilon=epsilon)))

    def _invert(self, delta: float) -> float:
        return invert(self._delta, delta)


def invert(profile: Callable[[float], float], delta: float) -> float:
    """The smallest ε ≥ 0 with profile(ε) ≤ δ, rounded up to 1e-9 relative; ∞ if none lies below ``MAX_EPSILON``."""
    if profile(0.0) <= delta:
        return 0.0
    high = 1.0
    while profile(high) > delta:
        high *= 2
        if high > MAX_EPSILON:
            return math.inf

    def excess(epsilon: float) -> float:
        return math.log(max(profile(epsilon), 5e-324)) - math.log(delta)

    low = high / 2 if high > 1 else 0.0
    root = float(optimize.brentq(excess, low, high, xtol=1e-12, rtol=1e-11))
    for step in (1e-11, 1e-10, 5e-10):  # from the root up to where the promise holds
        if profile(root * (1 + step)) <= delta:
            return root * (1 + step)
    return high


class Sum:
    """Basic composition of curves that have no better common form: Σ ε_i(w_i δ) for the best split w."""

    def __init__(self, parts: Sequence[Curve]) -> None:
        self._parts = tuple(parts)
        self.epsilon = functools.cache(self._best)  # type: ignore[method-assign]

    def epsilon(self, delta: float) -> float:
        """The smallest Σ ε_i found; any split of δ is valid, so the search cannot break the bound."""
        return self._best(delta)  # pragma: no cover - replaced by its cached form

    def _best(self, delta: float) -> float:
        _validate.delta(delta)

        def total(logits: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
            w = np.exp(np.append(logits, 0.0) - max(0.0, logits.max()))
            w /= w.sum() * (1 + 1e-12)  # the shares never sum above one
            return sum(
                part.epsilon(max(delta * float(share), 5e-324)) for part, share in zip(self._parts, w, strict=True)
            )

        start = np.zeros(len(self._parts) - 1)
        equal = total(start)
        if not math.isfinite(equal):
            return equal
        found = optimize.minimize(total, start, method="Nelder-Mead", options={"maxfev": 60, "xatol": 1e-2})
        return float(min(equal, found.fun))

    def delta(self, epsilon: float) -> float:
        """The smallest δ whose ε fits."""
        return delta_of(self.epsilon, _validate.real(epsilon=epsilon))


def delta_of(epsilon_of: Callable[[float], float], epsilon: float) -> float:
    """The smallest δ with epsilon_of(δ) ≤ ε, by bisection on log δ, rounded up (1 if none)."""
    low, high = -690.0, 0.0
    if epsilon_of(math.exp(-1e-9)) > epsilon:
        return 1.0
    if epsilon_of(math.exp(low)) <= epsilon:
        return math.exp(low)
    while high - low > 1e-6:
        middle = (low + high) / 2
        low, high = (low, middle) if epsilon_of(math.exp(middle)) <= epsilon else (middle, high)
    return math.exp(high)


def compose(curves: Sequence[Curve]) -> Curve:
    """The tightest composition that the kinds of the curves allow.

    Gaussian ones compose exactly; with sampled ones they compose as privacy loss distributions, with noisy choices by a
    dynamic programme; profiles are added through (ε, δ) points.

    Args:
        curves: at least one, all under one relation.

    Returns:
        The curve of running all of them, each chosen with knowledge of the earlier outputs.
    """
    mu = math.sqrt(math.fsum(c.mu**2 for c in curves if isinstance(c, Gaussian | Sampled | Chosen)))
    sampled = [c for c in curves if isinstance(c, Sampled)]
    chosen = [c for c in curves if isinstance(c, Chosen)]
    others = [c for c in curves if not isinstance(c, Gaussian | Sampled | Chosen)]
    parts: list[Curve] = []
    if sampled:
        rounds = tuple(r for c in sampled for r in c.rounds)
        parts.append(Sampled(sampled[0].adjacency, rounds, mu))
    if chosen:  # a choice of a smaller range is one of a larger range, too
        largest = max(c.bounded_range for c in chosen)
        parts.append(Chosen(largest, sum(c.steps for c in chosen), 0.0 if sampled else mu))
    elif not sampled and (mu > 0 or not others):
        parts.append(Gaussian(mu))
    parts.extend(others)
    return parts[0] if len(parts) == 1 else Sum(parts)
