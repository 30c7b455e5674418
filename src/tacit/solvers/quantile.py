"""Private quantiles by noisy bisection."""

from __future__ import annotations

from tacit.release import Session
from tacit.release.queries import AtMost, BoundedSum, Statistic

__all__ = ["ROUNDS", "noisy_quantile"]

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
