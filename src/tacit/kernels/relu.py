"""The closed form of a pre-activation between two layers, entry by entry."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["relu_step"]

Array = NDArray[np.float64]
THRESHOLD = np.sqrt(2.0) - 1


@jit
def relu_step(inner: Array, outer: Array, shrunk: Array) -> Array:
    """Argmin over u of ½(x/s − max(u, 0))² + ½(u − inner)² for each entry (DP-MBCD, eq. 10).

    Args:
        inner: Wx, (m, q).
        outer: x of the next layer, (m, q).
        shrunk: s, by how much x was shortened, (m,).

    Returns:
        u, (m, q).
    """
    m, q = inner.shape
    out = np.empty((m, q))
    for i in range(m):
        scale = 1 / shrunk[i] if shrunk[i] > 0 else np.nan
        for j in range(q):
            a, b = inner[i, j], outer[i, j] * scale
            if a + b <= 0:
                out[i, j] = min(a, 0.0)
            elif b >= 0 and a <= -THRESHOLD * b:
                out[i, j] = a
            else:
                out[i, j] = (a + b) / 2
    return out
