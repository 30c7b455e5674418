"""One step of the dynamic programme behind the optimal composition of noisy choices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["worst_choices"]

Array = NDArray[np.float64]


@jit
def worst_choices(values: Array, p: Array, steps: int) -> Array:
    """V ← max_i p_i·V(k + i + 1) + (1 − p_i)·V(k + i − m), ``steps`` times; V is its first value below, and 1 above."""
    n, m = values.size, p.size
    padded = np.empty(n + 2 * m)
    out = values.copy()
    for _ in range(steps):
        padded[:m] = out[0]
        padded[m : m + n] = out
        padded[m + n :] = 1.0
        out[:] = 0.0
        for i in range(m):
            up, down = p[i], 1.0 - p[i]
            for k in range(n):
                value = up * padded[k + m + i + 1] + down * padded[k + i]
                out[k] = max(out[k], value)
    return out
