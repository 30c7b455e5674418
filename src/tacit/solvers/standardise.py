"""Private standardisation: the largest single gain for any solver, for a few percent of the budget."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.maps import Standardise
from tacit.problem import Problem
from tacit.release import Session
from tacit.release.queries import MomentSum

__all__ = ["Standard", "standardise"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Standard:
    """Released locations and scales of the coordinates, and of the target.

    Attributes:
        map: of mapped features to standardised ones.
        half: the public half range of each feature, in its scale; 0 for constant ones.
        target_mean: of the target.
        target_variance: of the target, possibly negative: noise is not hidden here.
        noise: the standard deviation of a released mean, for features in [−1, 1].
    """

    map: Standardise
    half: Array
    target_mean: float
    target_variance: float
    noise: float

    def back(self, u: Array, *, intercept: bool) -> Array:
        """Coefficients of mapped features from those of standardised ones."""
        v = u / self.map.scale
        if intercept:
            v[0] -= v[1:] @ self.map.mean[1:]
        return np.asarray(v)


def standardise(session: Session, part: int, problem: Problem) -> Standard:
    """One joint release of first and second moments of all features and of the target.

    Args:
        session: over mapped records.
        part: of the plan, which pays.
        problem: public bounds.

    Returns:
        The scales; columns that are constant by their bounds keep mean 0 and scale 1.
    """
    facts = problem.facts
    ends = problem.loss.target_range
    query = MomentSum(np.append(facts.low, ends[0]), np.append(facts.high, ends[1]), with_target=True)
    noise = session.noise_std(query, part) / facts.n
    first, second = np.split(session.release(query, part=part) / facts.n, 2)
    first = np.clip(first, -1.0, 1.0)
    c, h = query.centre, query.half
    if problem.intercept:
        spread, mean = second - first**2, c + h * first
    else:  # raw second moments, about zero
        safe = np.where(h > 0, h, 1.0)
        spread, mean = second + 2 * first * c / safe + (c / safe) ** 2, 0 * c
    scale = h * np.sqrt(np.clip(spread, min(2 * noise, 1.0), None if not problem.intercept else 1.0))
    fixed = h == 0
    mean, scale = np.where(fixed, 0.0, mean), np.where(fixed, 1.0, scale)
    half = np.where(fixed, 0.0, h / scale)
    target_mean, target_variance = c[-1] + h[-1] * first[-1], h[-1] ** 2 * spread[-1]
    return Standard(Standardise(mean[:-1], scale[:-1]), half[:-1], float(target_mean), float(target_variance), noise)
