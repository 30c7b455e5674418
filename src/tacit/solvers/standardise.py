"""Private standardisation: the largest single gain for any solver, for a few percent of the budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.problem import Design, Records, Task
from tacit.run.channel import noise_std
from tacit.run.sums import MomentSum
from tacit.solvers.base import Session

__all__ = ["Standard", "standardised"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Standard:
    """Released locations and scales of the coordinates, and of the target.

    Attributes:
        mean: in mapped units; 0 without an intercept.
        scale: standard deviations (root mean squares without an intercept), not below what the noise can resolve.
        half: the public half range of each feature, in its scale; 0 for constant ones.
        target_mean: of t, or the share of positive labels.
        target_variance: of t, possibly negative: noise is not hidden here.
        noise: the standard deviation of a released mean, for features in [−1, 1].
    """

    mean: Array
    scale: Array
    half: Array
    target_mean: float
    target_variance: float
    noise: float

    def apply(self, features: Design) -> Array:
        """Standardised features, dense."""
        return (features.dense() - self.mean) / self.scale

    def back(self, u: Array, *, intercept: bool) -> Array:
        """Coefficients of mapped features from those of standardised ones."""
        v = u / self.scale
        if intercept:
            v[0] -= v[1:] @ self.mean[1:]
        return np.asarray(v)


def standardised(session: Session, part: int, task: Task, records: Records) -> Standard:
    """One joint release of first and second moments of all features and of the target.

    Args:
        session: where the channel comes from.
        part: which part of the plan pays.
        task: public bounds.
        records: features and target (labels count as ±1).

    Returns:
        The scales; columns that are constant by their bounds keep mean 0 and scale 1.
    """
    target = records.offset if records.labels is None else records.labels
    low, high = np.append(task.low, -1.0), np.append(task.high, 1.0)
    total = MomentSum(records.features.with_column(target), low, high)
    channel = session.channel(part)
    noise = noise_std(channel.mechanism, total, 0) / task.records
    first, second = np.split(channel.release(total, np.zeros((1, 1)))[0] / task.records, 2)
    first = np.clip(first, -1.0, 1.0)
    c, h = total.centre, total.half
    if task.intercept:
        spread, mean = second - first**2, c + h * first
    else:  # raw second moments, about zero
        spread, mean = second + 2 * first * c / np.where(h > 0, h, 1.0) + (c / np.where(h > 0, h, 1.0)) ** 2, 0 * c
    scale = h * np.sqrt(np.clip(spread, min(2 * noise, 1.0), None if not task.intercept else 1.0))
    fixed = h == 0
    mean, scale = np.where(fixed, 0.0, mean), np.where(fixed, 1.0, scale)
    half = np.where(fixed, 0.0, h / scale)
    variance = float(spread[-1])
    share = float(first[-1]) if records.labels is None else 0.5 + 0.5 * float(first[-1])
    return Standard(mean[:-1], scale[:-1], half[:-1], share, variance, noise)
