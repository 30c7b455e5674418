"""Clopper–Pearson bounds, and the threshold that promises the largest bound after them.

The pilot places one threshold t and one direction; the fresh runs then count errors of the test
"score > t, so it was D2". A pilot of a tenth of the runs has too few points in its tails to trust the best
empirical count, which is the luckiest one. So the tails are smoothed first:

* if both samples pass for Gaussian (Anderson–Darling), by fitted Gaussians, which reach into the tail
  beyond the pilot's last point;
* else by a Gaussian kernel estimate (or the raw shares, for outputs with few distinct values), read
  pessimistically, one standard error up, so that a threshold is not chosen for its noise.

Whatever the pilot chooses, the bound stays valid: only the fresh runs are counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, log_ndtr, ndtr

from tacit.audit._inputs import Array

__all__ = ["Bound", "Threshold", "choose_threshold", "clopper_pearson_upper", "looks_gaussian"]

Bound = Callable[[Array, Array], Array]

# Anderson–Darling's A² for a fitted normal: 1.159 is the 0.5 % point (Stephens 1974, case 3).
_ANDERSON_DARLING = 1.159
_ONE_SIGMA = float(ndtr(-1.0))
_CANDIDATES = 400
_KERNEL_POINTS = 1000


def clopper_pearson_upper(errors: ArrayLike, trials: int, level: float) -> Array:
    """The exact upper confidence bound on a rate after ``errors`` in ``trials`` (Clopper, Pearson 1934).

    It solves P[Bin(n, p) ≤ x] = level, that is p = I⁻¹(1 − level; x + 1, n − x), and is 1 for x = n.

    Args:
        errors: x in [0, n]; fractions (expected counts) interpolate.
        trials: n.
        level: the probability with which the bound may fail, in (0, 1).

    Returns:
        The bounds, in (0, 1].

    >>> round(float(clopper_pearson_upper(0, 100, 0.05)), 6) == round(1 - 0.05 ** (1 / 100), 6)
    True
    """
    x = np.asarray(errors, dtype=np.float64)
    inside = np.minimum(x, trials - 1e-9)
    return np.asarray(np.where(x >= trials, 1.0, betaincinv(inside + 1, trials - inside, 1 - level)))


@dataclass(frozen=True)
class Threshold:
    """The test "direction · score > direction · value, so it was D2"."""

    value: float
    direction: int

    def rejects(self, scores: Array) -> int:
        """How many scores the test attributes to D2.

        Args:
            scores: one a run.

        Returns:
            The count.
        """
        return int(np.count_nonzero(self.direction * scores > self.direction * self.value))


def choose_threshold(pilot_D: Array, pilot_D2: Array, n_fresh: int, level: float, bound: Bound) -> Threshold:
    """The threshold and direction with the largest bound to be expected from the fresh runs.

    Args:
        pilot_D: pilot scores on D.
        pilot_D2: pilot scores on D2.
        n_fresh: the fresh runs a side, whose Clopper–Pearson penalty the choice accounts for.
        level: the failure probability of either Clopper–Pearson bound.
        bound: what the audit reports, from (α_up, β_up), elementwise.

    Returns:
        The test to count errors of.
    """
    gaussian = looks_gaussian(pilot_D) and looks_gaussian(pilot_D2)
    t, above_D, above_D2 = _gaussian_tails(pilot_D, pilot_D2) if gaussian else _kernel_tails(pilot_D, pilot_D2)
    best, chosen = -np.inf, Threshold(float(np.median(t)), 1)
    for direction, alpha, beta in ((1, above_D, 1 - above_D2), (-1, 1 - above_D, above_D2)):
        if not gaussian:
            k = pilot_D.size
            alpha, beta = (clopper_pearson_upper(k * rate, k, _ONE_SIGMA) for rate in (alpha, beta))
        alpha_up, beta_up = (clopper_pearson_upper(n_fresh * rate, n_fresh, level) for rate in (alpha, beta))
        values = bound(alpha_up, beta_up)
        top = int(np.argmax(values))
        if values[top] > best:
            best, chosen = float(values[top]), Threshold(float(t[top]), direction)
    return chosen


def looks_gaussian(x: Array) -> bool:
    """Whether Anderson and Darling's test of normality (1954) fails to reject at 0.5 %.

    Args:
        x: a sample.

    Returns:
        True if the sample passes; False for a constant one.
    """
    n, peak = x.size, float(np.abs(x).max())
    x = x / peak if peak > 0 else x  # so that a diverged run does not overflow the variance
    spread = float(x.std(ddof=1))
    if spread <= 1e-12:
        return False
    z = np.sort((x - x.mean()) / spread)
    weights = 2 * np.arange(1, n + 1) - 1
    statistic = -n - float(np.mean(weights * (log_ndtr(z) + log_ndtr(-z[::-1]))))
    return statistic * (1 + 0.75 / n + 2.25 / n**2) < _ANDERSON_DARLING


def _gaussian_tails(x: Array, y: Array) -> tuple[Array, Array, Array]:
    # Thresholds t and P[score > t] on both sides, by fitted Gaussians.
    spread_x, spread_y = float(x.std(ddof=1)), float(y.std(ddof=1))
    # Spreads that the pilot cannot tell apart are taken as equal: the noise of their ratio, extrapolated
    # into the tails, would otherwise move the threshold off its optimum.
    if abs(np.log(spread_x / spread_y)) < 2 / np.sqrt(x.size):
        spread_x = spread_y = float(np.hypot(spread_x, spread_y) / np.sqrt(2))
    reach = 4 * max(spread_x, spread_y)
    means = float(x.mean()), float(y.mean())
    t = np.linspace(min(means) - reach, max(means) + reach, _CANDIDATES)
    return t, ndtr((means[0] - t) / spread_x), ndtr((means[1] - t) / spread_y)


def _kernel_tails(x: Array, y: Array) -> tuple[Array, Array, Array]:
    # Thresholds t and P[score > t] on both sides, by kernels (raw shares if values repeat).
    values = np.unique(np.concatenate([x, y]))
    middles = (values[1:] + values[:-1]) / 2
    if middles.size > _CANDIDATES:
        # Equal steps of a normal quantile: dense where an error rate is small, and so matters.
        ranks = ndtr(np.linspace(-4, 4, _CANDIDATES)) * (middles.size - 1)
        middles = middles[np.unique(np.round(ranks).astype(int))]
    low, high = np.quantile(values, [0.1, 0.9])
    beyond = max(float(high - low), 1e-9 * float(np.abs(values).max()), 1e-300) * np.linspace(0.02, 0.8, 40)
    t = np.concatenate([values[0] - beyond, middles, values[-1] + beyond])
    repeated = values.size < (x.size + y.size) / 2
    return t, _share_above(x, t, repeated), _share_above(y, t, repeated)


def _share_above(x: Array, t: Array, repeated: bool) -> Array:
    ordered = np.sort(x)
    if repeated:
        return np.asarray(1 - np.searchsorted(ordered, t, side="right") / x.size)
    quartiles = np.quantile(ordered, [0.25, 0.75])
    with np.errstate(over="ignore"):  # a diverged run; the quartiles survive it
        spreads = np.array([x.std(), (quartiles[1] - quartiles[0]) / 1.349])
    spreads = spreads[spreads > 0]
    width = 0.9 * (float(spreads.min()) if spreads.size else 1e-300) * x.size**-0.2  # Silverman (1986)
    # A large pilot is thinned to its quantiles: the estimate costs (points × candidates).
    stride = -(-x.size // _KERNEL_POINTS)
    points = ordered[stride // 2 :: stride]
    with np.errstate(over="ignore"):
        return np.asarray(ndtr((points[:, None] - t) / width).mean(axis=0))
