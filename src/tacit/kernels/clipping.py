"""Sums of clipped per-record contributions: the one place where a record's influence is bounded."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["clipped_total"]

Array = NDArray[np.float64]
TINY = 1e-290
"""Numbers below this have fewer digits than others."""


@jit
def clipped_total(contributions: Array, batch: NDArray[Any], bound: float) -> Array:
    """Σ over the batch of contributions scaled down to ℓ2 norm ``bound``, for each replica.

    A record whose contribution is not finite contributes nothing: it must not poison the sum, and the sum must not
    tell.

    Args:
        contributions: (replicas, records, size).
        batch: (replicas, records), booleans or what each record counts.
        bound: C.

    Returns:
        (replicas, size).
    """
    replicas, records, size = contributions.shape
    out = np.zeros((replicas, size))
    for r in range(replicas):
        for i in range(records):
            if not batch[r, i]:
                continue
            # Scale by the largest entry first: squares of huge contributions must not overflow.
            top = 0.0
            for j in range(size):
                top = max(top, abs(contributions[r, i, j]))
                if not np.isfinite(contributions[r, i, j]):
                    top = np.inf
            if top == 0.0 or top == np.inf:
                continue
            square = 0.0
            for j in range(size):
                square += (contributions[r, i, j] / top) ** 2
            norm = top * np.sqrt(square)
            scale = bound / norm if norm > bound else 1.0
            if scale < TINY:  # a quotient that lost its digits
                for j in range(size):
                    out[r, j] += (contributions[r, i, j] / top) * (bound / np.sqrt(square)) * batch[r, i]
                continue
            for j in range(size):
                out[r, j] += contributions[r, i, j] * scale * batch[r, i]
    return out
