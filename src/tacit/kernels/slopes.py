"""Slopes of linear models over rows of 16-bit integers: products, capped slopes, and sums that no order changes.

A row is scale·u with integers |u_j| < 2¹⁵. Both products are sums of integers (in units of the state,
of the slopes) below 2⁵³, so they are exact in float64 in any order, fused or not: what a record contributes does not
depend on its place, and loops over rows and columns may be arranged as the processor likes.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import bits_of, float_of, jit, jit_exact_sums
from tacit.kernels.lattice import powers
from tacit.kernels.logistic import logistic_of

__all__ = [
    "BITS",
    "capped_slopes",
    "logistic_sums",
    "powers_of_two",
    "short_products",
    "short_rows",
    "short_sums",
]

Array = NDArray[np.float64]
Short = NDArray[np.int16]
BITS = 15
"""Of the largest entry of a row: what is rounded off is less than 2⁻¹⁵ of it."""
TOP: Final = 2.0**BITS - 1
REACH: Final = 120
"""Of the exponents of scales."""
TILE: Final = 512
"""Rows that are stored together, column by column: their results stay in the nearest cache."""


@jit
def short_rows(XT: NDArray[Any]) -> tuple[Short, NDArray[np.int8], NDArray[np.float32]]:
    """Rows as integers below 2¹⁵ with a scale, x ≈ 2^e·u; each a function of its own row, to the bit.

    The largest entry of u lies between 2¹⁴ and 2¹⁵. Rows that are not finite, or too small for ``REACH``, become zeros;
    those too large for it keep their direction, and are shorter.

    Args:
        XT: (p, m), the columns of X.

    Returns:
        u by tiles of rows and then by columns, (tiles, p, TILE), zeros behind the last row; e (m,); bounds on ‖u‖ from
        above (m,).
    """
    p, m = XT.shape
    powers_of, norms = np.zeros(m, np.int8), np.zeros(m, np.float32)
    out = np.zeros((-(-m // TILE), p, TILE), np.int16)
    for first in range(0, m, TILE):
        last = min(first + TILE, m)
        top, square = np.zeros(last - first), np.zeros(last - first)
        for j in range(p):
            column = XT[j, first:last]
            for i in range(top.size):
                x = abs(np.float64(column[i]))
                top[i] = top[i] if x <= top[i] or top[i] != top[i] else x  # NaN stays
        inverse = powers(top, BITS)
        for i in range(top.size):
            e = (bits_of(top[i]) >> 52) - 1023
            inverse[i] = 0.0 if e < -REACH else inverse[i]
            powers_of[first + i] = min(max(e, -REACH), REACH)
        for j in range(p):
            column, new = XT[j, first:last], out[first // TILE, j]
            for i in range(top.size):
                u = np.rint(np.float64(column[i]) * inverse[i]) if inverse[i] > 0.0 else 0.0
                u = TOP if u > TOP else u
                u = -TOP if u < -TOP else u
                new[i] = np.int16(u)
                square[i] += u * u
        for i in range(top.size):
            norms[first + i] = np.float32(np.sqrt(square[i]) * (1.0 + 2.0**-22))  # more than both roundings
    return out, powers_of, norms


@jit
def powers_of_two(exponents: NDArray[np.int8]) -> Array:
    """2^e of each e.

    Args:
        exponents: (m,).

    Returns:
        (m,).
    """
    out = np.empty(exponents.size)
    for i in range(out.size):
        out[i] = float_of(int(exponents[i]) + 1023 << 52)
    return out


@jit_exact_sums
def _add_products(U: Short, v: Array, tile: Array) -> None:
    """Add Σ_j u_ij·v_j of the rows of a tile, (p, TILE)."""
    p = len(U)
    whole = p - p % 4
    for j in range(0, whole, 4):  # four columns for each visit to the results
        a, b, c, d = U[j], U[j + 1], U[j + 2], U[j + 3]
        va, vb, vc, vd = v[j], v[j + 1], v[j + 2], v[j + 3]
        for i in range(tile.size):
            tile[i] += np.float64(a[i]) * va + np.float64(b[i]) * vb + np.float64(c[i]) * vc + np.float64(d[i]) * vd
    for j in range(whole, p):
        a, va = U[j], v[j]
        for i in range(tile.size):
            tile[i] += np.float64(a[i]) * va


@jit_exact_sums
def _add_sums(U: Short, t: Array, out: NDArray[np.int64]) -> None:
    """Add Σ_i u_ij·t_i over the rows of a tile."""
    p = len(U)
    whole = p - p % 2
    for j in range(0, whole, 2):
        a, b, s, r = U[j], U[j + 1], 0.0, 0.0
        for i in range(t.size):
            s += np.float64(a[i]) * t[i]
            r += np.float64(b[i]) * t[i]
        out[j] += np.int64(s)
        out[j + 1] += np.int64(r)
    for j in range(whole, p):
        a, s = U[j], 0.0
        for i in range(t.size):
            s += np.float64(a[i]) * t[i]
        out[j] += np.int64(s)


@jit
def short_products(U: Short, m: int, v: Array) -> Array:
    """Σ_j u_ij·v_j for every row: exact, since v is a multiple of a unit so coarse that no sum exceeds 2⁵³ of it.

    Args:
        U: (tiles, p, TILE) integers.
        m: the number of rows.
        v: (p,), from ``tacit.kernels.exact.coarse`` for rows of ``BITS`` bits.

    Returns:
        (m,).
    """
    out = np.zeros(m)
    for k in range(len(U)):
        _add_products(U[k], v, out[k * TILE : (k + 1) * TILE])
    return out


@jit
def short_sums(U: Short, t: Array) -> NDArray[np.int64]:
    """Σ_i u_ij·t_i for every column: integers, exact in any order.

    Args:
        U: (tiles, p, TILE) integers.
        t: (m,) integers; no product exceeds 2⁴⁰.

    Returns:
        (p,).
    """
    out = np.zeros(U.shape[1], np.int64)
    for k in range(len(U)):
        _add_sums(U[k], t[k * TILE : (k + 1) * TILE], out)
    return out


@jit
def _capped(value: float, cap: float, weight: float) -> float:
    """The nearest integer, within ±⌊cap·weight⌋; 0 for what is not a number."""
    t, longest = np.rint(value), np.floor(cap * weight)
    t = longest if t > longest else t
    t = -longest if t < -longest else t
    return t if t == t else 0.0


@jit
def capped_slopes(slope: Array, scale: Array, norms: NDArray[Any], own: Array, unit: float, bound: float) -> Array:
    """Slopes times scales in units of ``unit``, rounded to the nearest, at most ``bound``/‖u‖.

    Args:
        slope: (m,); what is not a number counts as nothing.
        scale: (m,), of the rows; zero for rows that count as nothing.
        norms: (m,), of the integer rows, from above.
        own: (m,), what each row counts, from 0 to 1; or nothing where every row counts one.
        unit: a power of two.
        bound: of |t|·‖u‖ for a row that counts one.

    Returns:
        t: (m,) integers, as float64.
    """
    out, weighted, inverse = np.empty(slope.size), own.size > 0, 1.0 / unit
    for i in range(slope.size):
        w = own[i] if weighted else 1.0
        out[i] = _capped(slope[i] * (scale[i] * inverse) * w, bound / np.float64(norms[i]), w)
    return out


@jit
def logistic_sums(
    U: Short, v: Array, y: NDArray[Any], scale: Array, norms: NDArray[Any], own: Array, unit: float, bound: float
) -> NDArray[np.int64]:
    """Products, ``capped_slopes`` of the logistic loss and sums in one pass: the same integers.

    Args:
        U: (tiles, p, TILE) integers.
        v: (p,), coarse.
        y: (m,), ±1.
        scale: as for ``capped_slopes``, like all others.
        norms: ‖u‖.
        own: what rows count.
        unit: of t.
        bound: of |t|·‖u‖.

    Returns:
        (p,).
    """
    m, weighted, inverse, out = scale.size, own.size > 0, 1.0 / unit, np.zeros(U.shape[1], np.int64)
    for first in range(0, m, TILE):
        t = np.zeros(min(TILE, m - first))
        _add_products(U[first // TILE], v, t)
        target, s, n = y[first : first + t.size], scale[first : first + t.size], norms[first : first + t.size]
        w = own[first : first + t.size] if weighted else s
        for i in range(t.size):
            sign, one = np.float64(target[i]), w[i] if weighted else 1.0
            slope = -sign * logistic_of(-sign * (t[i] * s[i]))
            t[i] = _capped(slope * (s[i] * inverse) * one, bound / np.float64(n[i]), one)
        _add_sums(U[first // TILE], t, out)
    return out
