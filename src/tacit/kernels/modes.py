"""Tr(A·X⁻¹) for A = VᵀV of low rank: two banded triangular solves for all modes at once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["mode_gradient", "mode_solve"]

Array = NDArray[np.float64]


@jit
def mode_solve(bands: Array, V: Array, y: Array, s: Array) -> float:
    """Cᵀy = v and C·s = y for every mode v.

    Args:
        bands: C by columns, (T, b).
        V: (T, r), one mode per column.
        y: (T, r), overwritten.
        s: (T, r), overwritten.

    Returns:
        Tr(VVᵀX⁻¹) = Σ|y|², X = CᵀC.
    """
    T, b = bands.shape
    r = V.shape[1]
    value = 0.0
    for j in range(T - 1, -1, -1):
        for k in range(r):
            y[j, k] = V[j, k]
        for i in range(1, min(b, T - j)):
            c = bands[j, i]
            for k in range(r):
                y[j, k] -= c * y[j + i, k]
        d = 1.0 / bands[j, 0]
        for k in range(r):
            y[j, k] *= d
            value += y[j, k] * y[j, k]
    for t in range(T):
        for k in range(r):
            s[t, k] = y[t, k]
        for i in range(1, min(b, t + 1)):
            c = bands[t - i, i]
            for k in range(r):
                s[t, k] -= c * s[t - i, k]
        d = 1.0 / bands[t, 0]
        for k in range(r):
            s[t, k] *= d
    return value


@jit
def mode_gradient(left: Array, right: Array, scale: float, out: Array) -> None:
    """Adds scale·Σ_k left[j+i, k]·right[j, k] to out[j, i], inside the band.

    Args:
        left: (T, r).
        right: (T, r).
        scale: −2 with left = y and right = s for ∂/∂C; 1 with s twice for the band of X⁻¹AX⁻¹.
        out: (T, b).
    """
    T, b = out.shape
    r = left.shape[1]
    for j in range(T):
        for i in range(min(b, T - j)):
            total = 0.0
            for k in range(r):
                total += left[j + i, k] * right[j, k]
            out[j, i] += scale * total
