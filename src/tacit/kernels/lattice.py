"""Integer contributions: clipped vectors on a grid, rows as integers with a scale, and sums that no order changes.

A sum of integers below 2⁵³ is exact in float64 whatever the order of its additions, with or without fused operations.
Partial sums are added in int64, which wraps around: (q + R) mod 2⁶⁴ is a function of q + R, so a sum that is released
with additive noise needs no overflow check that looks at records.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import bits_of, float_of, jit, jit_exact_sums

__all__ = [
    "column_sums_sparse",
    "lattice_total",
    "moment_sums",
    "powers",
    "row_integers_sparse",
    "square_sums",
    "truncated",
]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
Columns = tuple[NDArray[Any], NDArray[np.int32], NDArray[np.int64]]
FLUSH = 1 << 13
"""Products that are added in float64 before they move to int64: 2¹³ of them, each at most 2⁴⁰, are exact."""
PRODUCT_BITS = 40
"""Bits of a product that ``FLUSH`` allows."""


@jit
def lattice_total(contributions: Array, batch: NDArray[Any], bound: float, unit: float) -> Integers:
    """Σ over the batch of contributions, each scaled down to ℓ2 norm ``bound`` and rounded toward zero to a grid.

    Rounding toward zero never lengthens. The norm is measured in float64, so vectors are clipped to C(1 − (d+8)2⁻⁵²):
    more than rounding can hide. A contribution that is not finite counts as zero. One that counts less than 1 is
    multiplied by its weight before it is rounded, so that weights that add up to 1 give at most C.

    Args:
        contributions: (replicas, records, size).
        batch: (replicas, records), booleans or weights from 0 to 1.
        bound: C.
        unit: g, a power of two.

    Returns:
        (replicas, size), in units of g.
    """
    replicas, records, size = contributions.shape
    out = np.zeros((replicas, size), np.int64)
    inside = bound * (1.0 - (size + 8) * 2.0**-52)
    for r in range(replicas):
        for i in range(records):
            if not batch[r, i]:
                continue
            top = 0.0  # the largest entry first: squares of huge contributions must not overflow
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
            scale, weight = inside / norm if norm > inside else 1.0, np.float64(batch[r, i])
            for j in range(size):
                out[r, j] += np.int64(np.trunc(contributions[r, i, j] * scale * weight / unit))
    return out


def truncated(values: Array, unit: float) -> Array:
    """Values in units of a power of two, rounded toward zero; what is not finite counts as zero.

    Args:
        values: of any shape.
        unit: g.

    Returns:
        Integers, as float64.
    """
    out = np.asarray(values, np.float64) / unit
    np.trunc(out, out=out)
    out[~np.isfinite(out)] = 0.0
    return out


@jit
def powers(top: Array, bits: int) -> Array:
    """Turn the largest entries of rows into scales 2^(e−bits) with 2^(e−1) ≤ top < 2^e.

    Args:
        top: (m,), overwritten; zero for rows of zeros, and where it is not finite or out of any sensible range.
        bits: of the integers.

    Returns:
        The inverses of the scales, zero where these are.
    """
    inverse = np.zeros(top.size)
    for i in range(top.size):
        e = (bits_of(top[i]) >> 52) - 1022 - bits  # the exponent of frexp, and of the scale
        sensible = top[i] > 1e-280 and top[i] < 1e280
        inverse[i] = float_of((1023 - e) << 52) if sensible else 0.0
        top[i] = float_of((1023 + e) << 52) if sensible else 0.0
    return inverse


@jit
def row_integers_sparse(columns: Columns, m: int, bits: int) -> tuple[NDArray[np.float32], Array, Array]:
    """Rows as integers of at most ``bits`` bits with a scale, x ≈ scale·u, of a matrix stored by columns without zeros.

    As ``tacit.kernels.slopes.short_rows``, in float32.

    Args:
        columns: entries, their rows, and where columns begin.
        m: the number of rows.
        bits: at most 23.

    Returns:
        The entries of u, the scales (m,), and bounds on ‖u‖ from above (m,).
    """
    data, rows, starts = columns
    out, scale, square = np.empty(data.size, np.float32), np.zeros(m), np.zeros(m)
    for e in range(data.size):
        i, x = rows[e], abs(np.float64(data[e]))
        scale[i] = scale[i] if x <= scale[i] or scale[i] != scale[i] else x
    inverse = powers(scale, bits)
    for e in range(data.size):
        i = rows[e]
        u = np.rint(np.float64(data[e]) * inverse[i]) if inverse[i] > 0.0 else 0.0
        out[e] = np.float32(u)
        square[i] += u * u
    for i in range(m):
        square[i] = np.sqrt(square[i]) * (1.0 + (starts.size + 8) * 2.0**-52)
    return out, scale, square


@jit
def column_sums_sparse(columns: Columns, t: Array) -> Integers:
    """Σ_i u_ij·t_i for every column of integers that are stored by columns, without zeros.

    Args:
        columns: entries, their rows, and where columns begin.
        t: (m,) integers.

    Returns:
        (p,).
    """
    data, rows, starts = columns
    out = np.zeros(starts.size - 1, np.int64)
    for j in range(starts.size - 1):
        for first in range(starts[j], starts[j + 1], FLUSH):
            total = 0.0
            for e in range(first, min(first + FLUSH, starts[j + 1])):
                total += np.float64(data[e]) * t[rows[e]]
            out[j] += np.int64(total)
    return out


@jit_exact_sums
def _sum(values: Array) -> float:
    total = 0.0
    for i in range(values.size):
        total += values[i]
    return total


@jit
def moment_sums(X: NDArray[Any], low: Array, high: Array, centre: Array, half: Array, roots: Array) -> Integers:
    """Σ a·b and Σ b² with a = ⌊2ᵇ√w⌋ and b = a·v to the nearest, v = (x − centre)/half: moments of v in units of 4⁻ᵇ.

    Entries are brought into their column's interval first, so that |b| ≤ a.

    Args:
        X: (m, p), in any order; an entry that is not a number counts as zero.
        low: (p,), the smallest values.
        high: (p,), the largest.
        centre: (p,).
        half: (p,), infinite for columns that contribute nothing.
        roots: (m,), the integers a, at most 2²⁰.

    Returns:
        (2p,), in units of 4⁻ᵇ: first moments, then second.
    """
    m, p = X.shape
    out = np.zeros(2 * p, np.int64)
    v, square = np.empty(FLUSH), np.empty(FLUSH)
    for j in range(p):
        least, most, c, h = low[j], high[j], centre[j], half[j]
        for first in range(0, m, FLUSH):
            size = min(FLUSH, m - first)
            for i in range(size):
                a = roots[first + i]
                u = (min(max(np.float64(X[first + i, j]), least), most) - c) / h
                b = np.rint(min(max(u, -1.0), 1.0) * a)
                b = b if b == b else 0.0
                v[i] = b * a
                square[i] = b * b
            out[j] += np.int64(_sum(v[:size]))
            out[p + j] += np.int64(_sum(square[:size]))
    return out


@jit
def square_sums(X: NDArray[Any], ratio: Array, weights: Array, unit: float) -> Integers:
    """Σ of weights times min((x·ratio)², 1), rounded toward zero to a grid.

    Args:
        X: (m, p), in any order; an entry that is not a number counts as zero.
        ratio: (p,).
        weights: (m,), from 0 to 1.
        unit: g.

    Returns:
        (p,), in units of g.
    """
    m, p = X.shape
    out = np.zeros(p, np.int64)
    square = np.empty(FLUSH)
    for j in range(p):
        r = ratio[j]
        for first in range(0, m, FLUSH):
            size = min(FLUSH, m - first)
            for i in range(size):
                u = np.float64(X[first + i, j]) * r
                square[i] = np.trunc(min(u * u, 1.0) * weights[first + i] / unit) if u == u else 0.0
            out[j] += np.int64(_sum(square[:size]))
    return out
