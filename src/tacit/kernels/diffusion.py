"""The Rényi recursion of a noisy contraction, step by step."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["diffusion_rates"]

Array = NDArray[np.float64]


@jit
def diffusion_rates(c: Array, gain: Array, variance: Array, k: int, position: int) -> Array:
    """R/α after each step: grows by ``gain`` at the record's steps, shrinks by L²v/(L²v + s²) at the others."""
    out = np.empty(c.size)
    rate, v = 0.0, 0.0
    for t in range(c.size):
        spread = c[t] * c[t] * v
        if t % k == position:
            rate += gain[t]
        else:
            rate *= spread / (spread + variance[t]) if spread < np.inf else 1.0
        v = spread + variance[t]
        out[t] = rate
    return out
