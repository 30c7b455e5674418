"""Integers of people's factors: residuals from above, clipped factors on a grid, and products of integer matrices."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["integer_matmul", "person_integers", "residual_squares"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
LIMB = 22
"""Bits of a part of an integer: products with integers of at most 20 bits add up exactly, 2¹¹ of them."""


@jit
def residual_squares(W: Array, B: Array, G: Array, squares: Array) -> Array:
    """‖m − wH‖² = ‖m‖² − 2w·Hm + wHHᵀwᵀ of each person from above, without the residual; a function of each row alone.

    The slack is more than rounding can take off sums of 2k + k² products, relative to (‖m‖ + Σ w_j‖h_j‖)².

    Args:
        W: (m, k), non-negative.
        B: (m, k), Hm of each person.
        G: (k, k), HHᵀ.
        squares: (m,), ‖m‖².

    Returns:
        (m,).
    """
    m, k = W.shape
    out = np.empty(m)
    for i in range(m):
        reach, found = np.sqrt(squares[i]), squares[i]
        for j in range(k):
            along = 0.0
            for l in range(k):
                along += G[j, l] * W[i, l]
            found += W[i, j] * (along - 2.0 * B[i, j])
            reach += W[i, j] * np.sqrt(G[j, j])
        out[i] = max(found, 0.0) + (2 * k + 8) * 2.0**-48 * reach * reach
    return out


@jit
def person_integers(
    W: Array,
    squares: Array,
    weight: float,
    inside: tuple[float, float],
    longest: float,
    units: tuple[float, float],
    nearest: bool,
    counts: Array,
) -> tuple[Array, Integers]:
    """Clipped factors v = f·w in units of a grid, rounded toward zero, and Σ vwᵀ, rounded row by row.

    A row that counts n ≤ 1 has f = min(n, (n·C − slack)/‖w‖√(α²‖w‖² + ‖x‖²)), or less where ‖v‖ would exceed
    ``longest``; 0 where it is negative or not finite. Each row is a function of its own row, to the bit.

    Args:
        W: (m, k), non-negative, at most 1 long.
        squares: (m,), ‖x‖² of what w is multiplied with, or more.
        weight: α.
        inside: C, of (α·vwᵀ, vxᵀ), and the slack for what rounding of a row may add to it.
        longest: of v.
        units: of v and of vwᵀ, powers of two.
        nearest: whether vwᵀ is rounded to the nearest instead of toward zero.
        counts: (m,), what each row counts, from 0 to 1.

    Returns:
        v (m, k), and the sum (k, k); both integers.
    """
    m, k = W.shape
    V, total = np.zeros((m, k)), np.zeros((k, k), np.int64)
    ratio = units[0] / units[1]
    for i in range(m):
        square = 0.0
        for j in range(k):
            square += W[i, j] * W[i, j]
        norm, length = np.sqrt(square * (weight * weight * square + squares[i])), np.sqrt(square)
        own = counts[i] * inside[0] - inside[1]
        factor = own / norm if counts[i] * norm > own else counts[i]
        factor = min(factor, longest / length) if factor * length > longest else factor
        if not (0.0 < length < np.inf and norm < np.inf and factor > 0.0):
            continue
        for j in range(k):
            V[i, j] = np.trunc(W[i, j] * factor / units[0])
        for j in range(k):
            if V[i, j] == 0.0:
                continue
            v = V[i, j] * ratio
            for l in range(k):
                entry = v * W[i, l]
                total[j, l] += np.int64(np.rint(entry) if nearest else np.trunc(entry))
    return V, total


def integer_matmul(S: Integers, h: Array) -> Integers:
    """S·h of integers, modulo 2⁶⁴: in parts of S whose products with h are exact in float64.

    Args:
        S: (j, k), k at most 2¹¹.
        h: (k, d), integers of at most 2²⁰.

    Returns:
        (j, d).
    """
    out = np.zeros((len(S), h.shape[1]), np.int64)
    for shift in range(0, 64, LIMB):
        last = shift + LIMB >= 64
        part = S >> shift if last else (S >> shift) & ((1 << LIMB) - 1)
        if part.any():
            out += (part.astype(np.float64) @ h).astype(np.int64) << shift
    return out
