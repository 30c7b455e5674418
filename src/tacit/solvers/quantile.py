"""Private quantiles: by noisy bisection, or all at once from a noisy histogram."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from tacit.release import Session
from tacit.release.queries import AtMost, BoundedSum, Statistic

__all__ = ["ROUNDS", "histogram_quantiles", "noisy_quantile"]

Array = NDArray[np.float64]

ROUNDS = 6
"""Bisections: a public interval is halved this often."""


def noisy_quantile(session: Session, part: int, of: Statistic, level: float, low: float, high: float, n: int) -> float:
    """A number near the ``level``-quantile of a statistic, within [low, high].

    Each round releases how many records lie below the middle of the interval, Σ 1{v ≤ t} plus noise: one record moves
    that by at most 1. All steps of the part are used.

    Args:
        session: with as many steps in the part as there are rounds.
        part: of the plan.
        of: one number per record.
        level: between 0 and 1.
        low: the lower end of the public interval.
        high: the upper end.
        n: the public number of records.

    Returns:
        The middle of the last interval.
    """
    for _ in range(session.steps_left(part)):
        middle = (low + high) / 2
        below = session.release(BoundedSum(AtMost(of, middle)), part=part)[0]
        low, high = (low, middle) if below >= level * n else (middle, high)
    return (low + high) / 2


def histogram_quantiles(counts: Array, edges: Array, n: float, q: Array) -> Array:
    """Quantiles from the noisy histogram of one feature: post-processing.

    The counts are shifted to add up to n, which turns the noise of their cumulative sums from a random walk into a
    bridge; the sums are made monotone by isotonic regression, and inverted linearly within bins.

    Args:
        counts: noisy counts.
        edges: of the bins.
        n: the number of records, or an estimate.
        q: levels in (0, 1).

    Returns:
        One value per level, non-decreasing in it, within the grid.
    """
    cumulative = np.cumsum(counts + (n - counts.sum()) / len(counts))
    inner = np.clip(isotonic_regression(cumulative[:-1]).x, 0.0, n) if len(counts) > 1 else np.empty(0)
    return np.interp(q * n, np.concatenate([[0.0], inner, [n]]), edges)
