"""Private quantiles by noisy bisection."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.run import Channel
from tacit.run.sums import BoundedValues

__all__ = ["ROUNDS", "noisy_quantile"]

Array = NDArray[np.float64]
ROUNDS = 6
"""Bisections: a public interval is halved this often."""


def noisy_quantile(channel: Channel, values: Array, level: float, low: float, high: float, n: int) -> float:
    """A number near the ``level``-quantile of the values, within [low, high].

    Each round releases how many values lie below the middle of the interval, Σ 1{v ≤ t} plus noise: one record moves
    that by at most 1. All rounds of the channel are used.

    Args:
        channel: with as many steps as there are rounds.
        values: one number per record.
        level: between 0 and 1.
        low: the lower end of the public interval.
        high: the upper end.
        n: the public number of records.

    Returns:
        The middle of the last interval.
    """
    for _ in range(channel.steps_left):
        middle = (low + high) / 2
        below = channel.release(BoundedValues((values <= middle).astype(np.float64)[:, None]), np.zeros((1, 1)))[0, 0]
        low, high = (low, middle) if below >= level * n else (middle, high)
    return (low + high) / 2
