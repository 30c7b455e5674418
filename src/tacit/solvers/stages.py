"""Stages that several solvers share: standardise, private quantiles, quadratic models from released matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve
from scipy.optimize import isotonic_regression

from tacit.kernels.quadratic import minimise_quadratic
from tacit.maps import FeatureBounds, Standardise
from tacit.problem import ElasticNet, Penalty, Problem
from tacit.release import Session
from tacit.release.queries import AtMost, BoundedSum, ColumnsWithin, MomentSum, Statistic, TargetShare

__all__ = [
    "ROUNDS",
    "Located",
    "Standard",
    "histogram_quantiles",
    "located",
    "location_steps",
    "minimise",
    "noisy_quantile",
    "positive_part",
    "standardise",
    "target_share",
]

Array = NDArray[np.float64]
TOLERANCE, MAX_STEPS = 1e-12, 10_000


def positive_part(G: Array) -> Array:
    """The nearest positive semi-definite matrix."""
    values, vectors = np.linalg.eigh((G + G.T) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def minimise(A: Array, b: Array, penalty: Penalty, start: Array | None = None) -> Array:
    """Argmin ½vᵀAv − bᵀv + ψ(v), to near machine precision."""
    v = np.zeros(len(b)) if start is None else start
    if type(penalty) is not ElasticNet:  # a subclass may have a prox of its own
        return _accelerated(A, b, penalty, v)
    if penalty.smooth:
        H = A + np.diag(penalty.l2)
        try:
            return np.asarray(cho_solve(cho_factor(H), b))
        except np.linalg.LinAlgError:  # singular: the shortest minimiser
            return np.asarray(np.linalg.lstsq(H, b, rcond=None)[0])
    l1, l2, low, high = penalty.l1, penalty.l2, penalty.low, penalty.high
    return minimise_quadratic(np.ascontiguousarray(A), b, l1, l2, low, high, v, TOLERANCE, MAX_STEPS)


def _accelerated(A: Array, b: Array, penalty: Penalty, start: Array) -> Array:
    """Accelerated proximal gradient descent with restarts, for a penalty that is known by its prox only."""
    step = 1 / max(float(np.linalg.eigvalsh(A)[-1]), 1e-300)
    x = y = penalty.prox(start, 0.0)
    t = 1.0
    for _ in range(MAX_STEPS):
        new = penalty.prox(y - step * (A @ y - b), step)
        change = new - x
        if (y - new) @ change > 0:  # moving uphill: forget the momentum
            t, y = 1.0, new
        else:
            t_next = (1 + np.sqrt(1 + 4 * t * t)) / 2
            y, t = new + (t - 1) / t_next * change, t_next
        x = new
        if np.abs(change).max(initial=0.0) <= TOLERANCE * max(np.abs(x).max(initial=0.0), 1.0):
            break
    return np.asarray(x)


@dataclass(frozen=True, eq=False)
class Standard:
    """Released locations and scales of the coordinates, and of the target.

    Attributes:
        map: of mapped features to standardised ones.
        half: the public half range of each feature, in its scale; 0 for constant ones.
        target_mean: of the target.
        target_variance: of the target, possibly negative: noise is not hidden here.
        noise: the standard deviation of a released mean, for features in [−1, 1].
        target_half: half of the range in which the target was measured: its released mean has noise · target_half.
        clip: what keeps features within released intervals, or None.
    """

    map: Standardise
    half: Array
    target_mean: float
    target_variance: float
    noise: float
    target_half: float = 1.0
    clip: FeatureBounds | None = None

    def back(self, u: Array, *, intercept: bool) -> Array:
        """Coefficients of mapped features from those of standardised ones."""
        v = u / self.map.scale
        if intercept:
            v[0] -= v[1:] @ self.map.mean[1:]
        return np.asarray(v)


@dataclass(frozen=True, eq=False)
class Located:
    """Where the data is: an interval of every feature, then of the target, within public bounds.

    Attributes:
        low: lower ends.
        high: upper ends.
    """

    low: Array
    high: Array

    def narrower(self, problem: Problem) -> bool:
        """Whether a feature lost some of its bounds."""
        return bool(
            (self.high - self.low < Located.by_bounds(problem).high - Located.by_bounds(problem).low)[:-1].any()
        )

    def clip(self) -> FeatureBounds:
        """The features, within their intervals, in the same units."""
        low, high = self.low[:-1], self.high[:-1]
        farthest = float(np.maximum(np.abs(low), np.abs(high)).max(initial=1.0))
        return FeatureBounds(low, high, np.zeros(len(low)), np.ones(len(low)), reach=farthest)

    @classmethod
    def by_bounds(cls, problem: Problem) -> Located:
        """What is public."""
        ends = problem.loss.target_range
        return cls(np.append(problem.facts.low, ends[0]), np.append(problem.facts.high, ends[1]))


def standardise(session: Session, part: int, problem: Problem, within: Located | None = None) -> Standard:
    """One joint release of first and second moments of all features and of the target.

    Args:
        session: over mapped records.
        part: of the plan, which pays.
        problem: public bounds.
        within: narrower, released intervals; values outside are clipped for the moments only.

    Returns:
        The scales; columns that are constant by their bounds keep mean 0 and scale 1.
    """
    facts, within = problem.facts, within or Located.by_bounds(problem)
    query = MomentSum(within.low, within.high, with_target=True)
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
    numbers = float(target_mean), float(target_variance), noise, float(h[-1])
    return Standard(Standardise(mean[:-1], scale[:-1]), half[:-1], *numbers)


def target_share(session: Session, part: int, problem: Problem) -> tuple[float, float]:
    """The mean target as a share of its range (for classes: the share of y = 1), and the deviation of its noise.

    Released by itself it costs a single number; among the moments of p features its noise is √p times larger.

    Args:
        session: over mapped records.
        part: of the plan, which pays.
        problem: public bounds.

    Returns:
        (share, deviation).
    """
    query = BoundedSum(TargetShare(*problem.loss.target_range))
    noise = session.noise_std(query, part) / problem.facts.n
    return float(np.clip(session.release(query, part=part)[0] / problem.facts.n, 0.0, 1.0)), noise


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


LOCATIONS = 14, 6
"""Bisections for medians, which halve the bounds, and for distances from them, which halve 14 octaves."""
CHECK_WEIGHT = 8.0
"""The budget of the check at the end, in units of that of a bisection."""
INSIDE, FARTHEST, OCTAVES = 0.8, 5.0, 14
"""The share of records within a distance, by how much of it data may be farther, and how narrow an interval may be."""
CRUDE = 0.25
"""Bounds are narrowed if what is left is at most this share of them."""


def located(session: Session, part: int, problem: Problem) -> Located:
    """Intervals that hold nearly all of the data, for bounds that may be too wide.

    Medians by bisection, all columns at once, then the distances within which 80 % of the records are; five times that
    on either side of the median is kept (six deviations of normal data), if a last count finds nearly all records
    there and it is much less than the bounds. A column most of whose records are at one point, such as rare categories,
    keeps its bounds: what is elsewhere may be all that matters. So do labels and logarithms.

    Args:
        session: with the steps of ``location_steps`` in the part.
        part: of the plan.
        problem: public bounds.

    Returns:
        Intervals within the bounds.
    """
    whole, n = Located.by_bounds(problem), problem.facts.n
    asked = whole.high > whole.low
    if not problem.loss.equivariant or problem.loss.labels:
        asked[-1] = False
    low, high = whole.low.copy(), whole.high.copy()
    for _ in range(LOCATIONS[0]):
        middle = (low + high) / 2
        radius = np.where(asked, middle - whole.low, -1.0)
        below = session.release(ColumnsWithin(whole.low, radius, True), part=part) >= n / 2
        low, high = np.where(below, low, middle), np.where(below, middle, high)
    median = (low + high) / 2
    narrow, wide = np.full(len(low), -float(OCTAVES)), np.full(len(low), 1.0)
    half = whole.high - whole.low
    for _ in range(LOCATIONS[1]):
        middle = (narrow + wide) / 2
        radius = np.where(asked, half * 2.0**middle, -1.0)
        inside = session.release(ColumnsWithin(median, radius, True), part=part) >= INSIDE * n
        narrow, wide = np.where(inside, narrow, middle), np.where(inside, middle, wide)
    reach = FARTHEST * half * 2.0**wide
    ends = np.maximum(whole.low, median - reach), np.minimum(whole.high, median + reach)
    crude = asked & (narrow > -OCTAVES) & (ends[1] - ends[0] <= CRUDE * half)
    query = ColumnsWithin(median, np.where(asked, reach, -1.0), True)
    missing = max(3 * session.noise_std(query, part) / n, 0.03)
    crude &= session.release(query, part=part) >= (1 - missing) * n
    return Located(np.where(crude, ends[0], whole.low), np.where(crude, ends[1], whole.high))


def location_steps() -> Array:
    """The weight of each release of ``located``."""
    return np.append(np.ones(sum(LOCATIONS)), CHECK_WEIGHT)


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
