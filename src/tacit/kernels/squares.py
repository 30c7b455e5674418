"""Sums of clipped squares by columns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["clipped_squares"]

Array = NDArray[np.float64]


@jit
def clipped_squares(columns: Array, weights: Array) -> Array:
    """Σ_i min((x_ij·w_j)², 1) for every row of ``columns`` (features by records)."""
    out = np.zeros(columns.shape[0])
    for j in range(columns.shape[0]):
        total = 0.0
        for i in range(columns.shape[1]):
            v = columns[j, i] * weights[j]
            total += min(v * v, 1.0)
        out[j] = total
    return out
