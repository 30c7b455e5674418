"""Softmax and the clipped gradient of cross-entropy, row by row, with an exponential of our own.

A math library may compute exp differently in the vectorised part of a loop and at its end, and differs between
machines; what a record contributes must depend on neither (as in ``kernels.logistic``).
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["softmax", "softmax_gradient"]

_ROUND: Final = 6755399441055744.0 + 1023.0  # 1.5·2⁵² + bias: k added to it is rounded, its low bits are 2ᵏ's exponent
_LOG2: Final = 1.4426950408889634
_LN2_HIGH: Final = 0.6931471803691238  # 32 bits, so that products with k are exact
_LN2_LOW: Final = 1.9082149292705877e-10
_SMALLEST: Final = -700.0


@jit
def _exp(v: float) -> float:
    """e^v for v ≤ 0: 2ᵏ times Padé's quotient for |v − k log 2| ≤ ½ log 2; 0 below −700, and NaN for NaN."""
    if v < _SMALLEST:
        return 0.0
    t = v * _LOG2 + _ROUND
    k = t - _ROUND
    r = (v - k * _LN2_HIGH) - k * _LN2_LOW
    s = r * r
    even = (30.0 * s + 3360.0) * s + 30240.0
    odd = ((s + 420.0) * s + 15120.0) * r
    return (even + odd) / (even - odd) * np.int64(np.float64(t).view(np.int64) << 52).view(np.float64)


@jit
def softmax(Z: NDArray[np.float64]) -> NDArray[np.float64]:
    """e^z over its sum, for each row; a function of each row alone, to the bit.

    Args:
        Z: (records, K).

    Returns:
        (records, K).
    """
    m, K = Z.shape
    out = np.empty((m, K))
    for i in range(m):
        top = Z[i, 0]
        for k in range(1, K):
            top = max(top, Z[i, k])
        total = 0.0
        for k in range(K):
            out[i, k] = _exp(Z[i, k] - top)
            total += out[i, k]
        for k in range(K):
            out[i, k] /= total
    return out


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
            e[k] = _exp(np.float64(Z[i, k]) - top)
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
