"""What a promise about one record is worth to somebody with several, all of which may change at once."""

from __future__ import annotations

import math
from typing import Protocol

from tacit import _validate
from tacit._digits import format_up
from tacit.accounting.curve import Gaussian
from tacit.errors import NotCovered

__all__ = ["describe_groups", "group_epsilon"]

GROUPS = (2, 5, 10)
"""Records of one person for which a description says what a promise about one record is worth."""
ROUNDS = 60
LARGEST_EXPONENT = 700.0
"""e to a larger power leaves the range of floats."""


class Promise(Protocol):
    """An (ε, δ) curve, and μ where it is Gaussian."""

    @property
    def mu(self) -> float | None:
        """μ, or None."""

    def epsilon(self, delta: float) -> float:
        """ε at δ."""

    def delta(self, epsilon: float) -> float:
        """δ at ε."""


def group_epsilon(promise: Promise, k: int, delta: float) -> float:
    """What is promised at this δ to k records together.

    Moving from one table to the other takes k neighbours. k·μ if Gaussian (Dong et al., *Gaussian differential
    privacy*); else E = k·ε where δ(ε)·(1 + e^ε + … + e^((k−1)ε)) is at most δ, for an ε that is approached from below.

    Args:
        promise: about one record.
        k: how many.
        delta: δ.

    Returns:
        E; infinite if none is found.
    """
    k, delta = _validate.positive_int(k=k), _validate.delta(delta)
    gaussian = math.inf if promise.mu is None else Gaussian(k * promise.mu).epsilon(delta)
    if k == 1 or promise.mu is not None:
        return min(gaussian, promise.epsilon(delta)) if k == 1 else gaussian
    epsilon = 0.0
    for _ in range(ROUNDS):
        if k * epsilon > LARGEST_EXPONENT:
            break
        try:
            found = promise.epsilon(delta / _geometric(epsilon, k))
        except NotCovered:
            break
        at = found * (1 + 1e-5)
        if promise.delta(at) * _geometric(at, k) <= delta:
            return k * at
        epsilon = max(found, epsilon)
    return math.inf


def describe_groups(promise: Promise, delta: float, epsilon: float) -> str:
    """What 2, 5 and 10 records are promised, in words; at once, where a tighter ``group_epsilon`` may take minutes."""
    words = []
    for k in GROUPS:
        if promise.mu is not None:
            words.append(f"ε = {format_up(group_epsilon(promise, k, delta))} with {k}")
        elif k * epsilon < LARGEST_EXPONENT and (grown := delta * _geometric(epsilon, k)) < 1:
            words.append(f"ε = {format_up(k * epsilon)} at δ = {format_up(grown, 2)} with {k}")
        else:
            words.append(f"nothing with {k}")
    return ", ".join(words)


def _geometric(epsilon: float, k: int) -> float:
    """1 + e^ε + … + e^((k−1)ε)."""
    return sum(math.exp(i * epsilon) for i in range(k))
