"""The clipped gradient of cross-entropy, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["softmax_gradient"]


@jit
def softmax_gradient(Z: NDArray[Any], target: NDArray[np.integer[Any]], clip: float) -> NDArray[Any]:
    """(p − e_y)·min(1, a/(1 − p_y)) with p = softmax(z), for each row.

    1 − p_y is summed over the other classes: no cancellation where a model is sure.

    Args:
        Z: (records, K).
        target: (records,).
        clip: a.

    Returns:
        (records, K), in the type of Z.
    """
    m, K = Z.shape
    out = np.empty_like(Z)
    e = np.empty(K)
    for i in range(m):
        top = Z[i, 0]
        for k in range(1, K):
            top = max(top, Z[i, k])
        total = 0.0
        for k in range(K):
            e[k] = np.exp(np.float64(Z[i, k]) - top)
            total += e[k]
        away = 0.0
        for k in range(K):
            if k != target[i]:
                e[k] /= total
                away += e[k]
        e[target[i]] = -away
        scale = clip / away if away > clip else 1.0
        for k in range(K):
            out[i, k] = e[k] * scale
    return out
