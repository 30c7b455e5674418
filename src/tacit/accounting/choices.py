"""The optimal composition of noisy choices of range η and Gaussian releases, in any order: δ(ε) from above.

Let x be the log-likelihood ratio of everything seen so far, y = x − ε, and V(y) the largest E_P (1 − e^{−y′})₊ that can
still be reached. A choice turns V into

    (B V)(y) = sup_{0 ≤ t ≤ η} p_t V(y + t) + (1 − p_t) V(y + t − η),     p_t = (e^η − e^t)/(e^η − 1),

a Gaussian release of ratio μ into (G V)(y) = E V(y + Z), Z ~ N(μ²/2, μ²). B G ≤ G B, so whatever the order of releases
and choices, and however each was designed,

    δ(ε) ≤ E V_T(Z − ε),     V_T = B^T (1 − e^{−y})₊,     Z of ratio √(Σ μ²):

all noise first, choices with full knowledge of it (docs/theorems.md). Both steps are computed from above.

- *B* on a grid of step h = η/m. For t in [t_i, t_{i+1}] all log-ratios lie in [t_i − η, t_{i+1}]. ρ·V(log ρ) is convex
  and a law of mean 1 on an interval is worst at its ends, so the two-point law on those ends is worse: both are m + 1
  cells apart and on the grid, so that nothing is interpolated.
- *G*: within a cell of the grid the same convexity puts the mass of Z at its two ends.
- V rises, vanishes for y ≤ −Tη, and is at most 1, which stands for it beyond ``FAR``.
- *Floats*: all terms are positive; factors are enlarged by more than their rounding, and so is the result.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tacit.kernels.choices import worst_choices

__all__ = ["MAX_WORK", "choices_delta", "is_feasible"]

Array = NDArray[np.float64]
FAR = 16.0
"""y beyond which 1 stands for V ≥ 1 − e^−16."""
MAX_WORK = 6e7
"""Operations of a table; it decides how fine the grid is."""
MAX_CELLS, MIN_CELLS = 64, 6
_ENLARGED = 1e-14
_MASS_ERROR = 1e-7
"""Of the mass that a cell's upper end receives, relative to the cell's: more than what differences of Φ lose."""


def _cells(bounded_range: float, steps: int) -> int:
    """M: as many cells in η as ``MAX_WORK`` allows."""
    return int(min(math.sqrt(MAX_WORK / (steps * (steps + FAR / bounded_range))), MAX_CELLS))


def is_feasible(bounded_range: float, steps: int) -> bool:
    """Whether a table is worth making: η > 0, and at least ``MIN_CELLS`` cells."""
    return bounded_range > 0 and _cells(bounded_range, steps) >= MIN_CELLS


@functools.lru_cache(maxsize=32)
def _table(bounded_range: float, steps: int) -> tuple[float, int, Array]:
    """H, the number of the first point, and V_T at the points, from above."""
    m = _cells(bounded_range, steps)
    h = bounded_range / m * (1 + _ENLARGED)
    first, last = -steps * m - 1, math.ceil(FAR / h)
    y = np.arange(first, last + 1) * h
    start = np.where(y > 0, -np.expm1(-np.maximum(y, 0.0)) * (1 + _ENLARGED), 0.0)
    i = np.arange(m)
    # Of the ends (i − m)h < 0 < (i + 1)h: p·e^{−up} + (1 − p)·e^{−down} = 1.
    p = np.expm1((i - m) * h) / np.expm1(-(m + 1) * h)
    table = worst_choices(start, np.minimum(p * (1 + _ENLARGED), 1.0), steps)
    table.setflags(write=False)
    return h, first, table


def choices_delta(bounded_range: float, steps: int, mu: float, epsilon: float) -> float:
    """An upper bound on δ(ε) of T choices of range η and Gaussian releases of ratio μ in all, in any order.

    Args:
        bounded_range: η.
        steps: T.
        mu: μ ≥ 0.
        epsilon: ε.

    Returns:
        δ; 1 where no table is feasible.

    >>> round(choices_delta(1.0, 1, 0.0, 0.3), 4), round((math.exp(0.5) - math.exp(0.15))**2 / (math.e - 1), 4)
    (0.1419, 0.138)
    """
    if not (is_feasible(bounded_range, steps) and math.isfinite(mu) and math.isfinite(epsilon)):
        return 1.0
    h, first, table = _table(bounded_range, steps)
    edges: Array = np.arange(first, first + len(table), dtype=np.float64) * h + epsilon  # of Z
    low, high, beyond = _masses(edges, h, mu)
    total = float(low @ table[:-1] + high @ table[1:]) + beyond
    return min(1.0, total * (1 + 1e-12 * (steps + 10)) + 1e-300)


def _masses(z: Array, h: float, mu: float) -> tuple[Array, Array, float]:
    """P-masses at the lower and the upper end of each cell, and what lies beyond the last; below the first V is 0."""
    mu = max(mu, 1e-6 * h)  # δ rises with μ; a point mass would need other formulas
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        p = _cell_masses((z - mu * mu / 2) / mu)
        q = _cell_masses((z + mu * mu / 2) / mu)
        up = (p - q * np.exp(np.minimum(z[:-1], 600.0))) / -math.expm1(-h) + _MASS_ERROR * p
    up = np.where((z[:-1] > 600) | ~np.isfinite(up), p, np.clip(up, 0.0, p))
    return p - up, up, float(ndtr(-(z[-1] - mu * mu / 2) / mu))


def _cell_masses(standard: Array) -> Array:
    """Differences of Φ, on the side where they keep their digits."""
    right = standard[:-1] > 0
    return np.asarray(np.where(right, -np.diff(ndtr(-standard)), np.diff(ndtr(standard))))
