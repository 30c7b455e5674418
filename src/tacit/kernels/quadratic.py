"""Exact minimisation of small penalised quadratics: no records here, only released matrices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["minimise_quadratic"]

Array = NDArray[np.float64]


@jit
def minimise_quadratic(
    A: Array, b: Array, l1: Array, l2: Array, low: Array, high: Array, start: Array, tolerance: float, limit: int
) -> Array:
    """Argmin ½ vᵀAv − bᵀv + Σ λ₁|v| + λ₂/2 v² on a box, by cyclic coordinate descent.

    Args:
        A: (p, p), positive semi-definite.
        b: (p,).
        l1: λ₁ per coordinate.
        l2: λ₂ per coordinate.
        low: the box.
        high: the box.
        start: where to begin.
        tolerance: stop when no coordinate moves further than this times the largest coordinate.
        limit: the most sweeps.

    Returns:
        The minimiser.
    """
    p = len(b)
    v = start.copy()
    for j in range(p):
        v[j] = min(max(v[j], low[j]), high[j])
    gradient = A @ v - b
    for _ in range(limit):
        moved, size = 0.0, 0.0
        for j in range(p):
            curvature = A[j, j] + l2[j]
            if curvature <= 0.0:
                continue
            target = A[j, j] * v[j] - gradient[j]
            soft = max(abs(target) - l1[j], 0.0) / curvature
            new = min(max(soft if target > 0 else -soft, low[j]), high[j])
            delta = new - v[j]
            if delta != 0.0:
                v[j] = new
                for i in range(p):
                    gradient[i] += delta * A[i, j]
            moved = max(moved, abs(delta))
            size = max(size, abs(new))
        if moved <= tolerance * max(size, 1e-300):
            break
    return v
