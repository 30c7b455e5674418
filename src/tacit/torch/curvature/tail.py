"""Estimates of the eigenvalues that were not computed: eq. (4) of NoiseCurve, within the bounds of the density.

    log μ_i = C·[log(p₊/i)]^α + log μ_{p₊},    k < i ≤ p₊,  and 0 beyond.

Fitted to the top eigenvalues alone, eq. (4) is *not* an upper bound in general: on small models whose full spectrum we
computed, true eigenvalues of the tail exceeded it up to 8-fold (``docs/curvature.md``). Hence it is combined with the
counts of eigenvalues above a grid of thresholds, which Lanczos' probes give at no extra cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.torch.curvature.density import Count

__all__ = ["TailFit", "bounded_tail", "envelope", "fit_tail"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class TailFit:
    """A decreasing curve on or above the eigenvalues that it was fitted to.

    Attributes:
        C: slope, positive.
        alpha: exponent, positive.
        count: p₊, where the curve reaches the threshold.
        threshold: μ_{p₊}.
        least_squares: C before it was raised.
    """

    C: float
    alpha: float
    count: float
    threshold: float
    least_squares: float

    def __call__(self, position: ArrayLike) -> Array:
        """μ_i of eq. (4); zero beyond p₊.

        Args:
            position: i, from 1.

        Returns:
            As many numbers.
        """
        i = np.asarray(position, dtype=np.float64)
        reach = np.log(np.maximum(self.count / i, 1.0))
        return np.where(i <= self.count, self.threshold * np.exp(self.C * reach**self.alpha), 0.0)


def fit_tail(top: ArrayLike, count: float, threshold: float) -> TailFit:
    """Least squares in (log log(p₊/i), log log(μ_i/μ_{p₊})), then C raised until no computed eigenvalue is above.

    Formal guarantee: the curve decreases, and is at least every eigenvalue of ``top``. Nothing is promised beyond them.

    Args:
        top: the computed eigenvalues, descending, all above the threshold.
        count: p₊, more than there are computed ones.
        threshold: μ_{p₊}.

    Returns:
        The curve.

    Raises:
        InvalidInput: if there is nothing to fit.
    """
    mu, floor = _validate.nonnegative_array("top", top), _validate.positive(threshold=threshold)
    if mu.min() <= floor or (np.diff(mu) > 0).any():
        raise InvalidInput("top must decrease and lie above the threshold: lower the threshold, or compute fewer")
    if count <= len(mu):
        raise InvalidInput(f"count must exceed the {len(mu)} computed eigenvalues: there is no tail otherwise")
    reach, height = np.log(count / np.arange(1, len(mu) + 1)), np.log(mu / floor)
    alpha, fitted = _least_squares(reach, height)
    # a hair more than equality, so that rounding cannot put a known eigenvalue above
    return TailFit(float(np.max(height / reach**alpha)) * (1 + 1e-12), alpha, float(count), floor, fitted)


def _least_squares(reach: Array, height: Array) -> tuple[float, float]:
    """α and C; α = 1 (a plain power law) where the points do not determine it."""
    x, y = np.log(reach), np.log(height)
    spread = float(((x - x.mean()) ** 2).sum())
    alpha = float(((x - x.mean()) * (y - y.mean())).sum()) / spread if len(x) > 2 and spread > 1e-12 else 1.0
    if not 0.05 <= alpha <= 50:
        alpha = 1.0
    return alpha, float(np.exp(np.mean(y - alpha * x)))


def envelope(levels: ArrayLike, counts: ArrayLike, positions: ArrayLike, ceiling: float) -> Array:
    """The largest non-increasing sequence with at most ``counts[j]`` entries above ``levels[j]``.

    If no more than N(x) eigenvalues exceed x, then μ_i ≤ x for all i > N(x).

    Args:
        levels: thresholds, ascending.
        counts: upper bounds of the number of eigenvalues above each.
        positions: i, from 1, ascending.
        ceiling: bound of all of them.

    Returns:
        Upper bounds of μ_i.
    """
    x = np.asarray(levels, dtype=np.float64)
    # N(x) cannot grow with x: a bound at a lower level also holds at a higher one
    N = np.minimum.accumulate(np.asarray(counts, dtype=np.float64))
    i = np.asarray(positions, dtype=np.float64)
    # the first (lowest) level whose count is below i
    first = len(N) - np.searchsorted(N[::-1], i, side="left")
    return np.asarray(np.minimum(np.append(x, np.inf)[first], ceiling))


def bounded_tail(fit: TailFit, counts: Sequence[Count], positions: Array, ceiling: float) -> tuple[Array, Array]:
    """Eq. (4) where the density agrees, the density where it does not.

    Args:
        fit: eq. (4).
        counts: at ascending thresholds, the first of them that of the fit.
        positions: i > k, ascending.
        ceiling: μ_k.

    Returns:
        The tail: eq. (4), raised to the estimated density and cut at its upper bound, zero beyond p₊; and that upper
        bound alone. Both with 3 standard errors, as they must hold at all levels at once.
    """
    levels = [c.threshold for c in counts]
    middle = envelope(levels, [c.raised(c.estimate, 3.0) for c in counts], positions, ceiling)
    bound = envelope(levels, [c.raised(c.high, 3.0) for c in counts], positions, ceiling)
    tail = np.minimum(np.maximum(fit(positions), middle), bound)
    return np.where(positions <= fit.count, tail, 0.0), bound
