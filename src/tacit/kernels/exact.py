"""Matrix products whose rows do not know where they stand.

A library may round a row of X·Wᵀ differently in another place, or among more rows. Where a last bit can turn a decision
(a ReLU that opens), a record would then contribute differently because another one is there. Here both factors are
rounded to so few bits that every sum is exact in float64: whatever the order of additions, the result is the same.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = [
    "coarse",
    "exact_product",
    "exact_product_by_columns",
    "grid_product",
    "half_spaces",
    "rounded_columns",
    "rounded_rows",
]

Array = NDArray[np.float64]
MANTISSA = 52
COLUMN_CHUNK = 8192
"""Entries of a column that are rounded and multiplied at a time."""


@jit
def rounded_rows(X: Array, bits: int) -> Array:
    """Each row rounded to multiples of 2^−bits of (a power of two above) its largest entry.

    x + c − c rounds to the last place of c. Rows that are not finite become NaN, in part or whole.

    Args:
        X: (m, p).
        bits: kept.

    Returns:
        (m, p).
    """
    m, p = X.shape
    out = np.empty((m, p))
    whole = p - p % 4
    for i in range(m):
        row, new = X[i], out[i]
        t0 = t1 = t2 = t3 = 0.0
        for j in range(0, whole, 4):  # four side by side: one would wait for itself
            t0 = max(t0, abs(row[j]))
            t1 = max(t1, abs(row[j + 1]))
            t2 = max(t2, abs(row[j + 2]))
            t3 = max(t3, abs(row[j + 3]))
        for j in range(whole, p):
            t0 = max(t0, abs(row[j]))
        top = max(max(t0, t1), max(t2, t3))
        if top < 1e-290:  # so small that it means nothing, and its grid would be denormal
            for j in range(p):
                new[j] = row[j] * 0.0
            continue
        c = 1.5 * 2.0 ** (np.ceil(np.log2(top)) + 1 + (52 - bits))
        for j in range(p):
            new[j] = (row[j] + c) - c
    return out


@jit
def rounded_columns(XT: Array, bits: int) -> Array:
    """As ``rounded_rows`` of X, for X given by columns and returned so: the same numbers.

    Args:
        XT: (p, m), the columns of X.
        bits: kept.

    Returns:
        (p, m).
    """
    p, m = XT.shape
    out = np.empty((p, m))
    top = np.zeros(m)
    for j in range(p):
        column = XT[j]
        for i in range(m):
            top[i] = max(top[i], abs(column[i]))
    for i in range(m):
        top[i] = 1.5 * 2.0 ** (np.ceil(np.log2(top[i])) + 1 + (52 - bits)) if top[i] >= 1e-290 else 0.0
    for j in range(p):
        column, new = XT[j], out[j]
        for i in range(m):
            c = top[i]
            new[i] = (column[i] + c) - c if c > 0.0 else column[i] * 0.0
    return out


def _bits(p: int) -> int:
    return (MANTISSA - math.ceil(math.log2(max(p, 2)))) // 2 - 1


def coarse(W: Array, row_bits: int | None = None) -> Array:
    """W rounded for ``exact_product``, relative to its largest entry; doing it again changes nothing.

    Args:
        W: (q, p), finite.
        row_bits: of the integer rows that it will be multiplied with, at most 2^row_bits: all other bits go to W. None
            for ``exact_product``, which rounds rows itself.

    Returns:
        (q, p).
    """
    flat, p = np.ascontiguousarray(W, np.float64).reshape(1, -1), W.shape[1]
    # Entries are at most 2^(bits − 1) units, so that p products stay below 2^53.
    bits = _bits(p) if row_bits is None else max(MANTISSA + 2 - row_bits - math.ceil(math.log2(max(p, 2))), 2)
    return np.asarray(rounded_rows(flat, bits).reshape(W.shape))


def exact_product(X: NDArray[Any], W: Array) -> Array:
    """X·Wᵀ, each row a function of that row of X and of W alone, to the bit.

    Entries keep about (52 − log₂ p)/2 bits of the largest one in their row of X, and in W: 20 for p = 785.

    Args:
        X: (m, p).
        W: (q, p), from ``coarse``; the same for all rows.

    Returns:
        (m, q); NaN where a row of X is not finite.
    """
    return np.asarray(rounded_rows(np.ascontiguousarray(X, np.float64), _bits(X.shape[1])) @ W.T)


def exact_product_by_columns(X: NDArray[Any], W: Array) -> Array:
    """``exact_product`` for X in Fortran order, in Fortran order: the same numbers, without a transposed copy.

    Args:
        X: (m, p), by columns.
        W: (q, p), from ``coarse``.

    Returns:
        (m, q), by columns.
    """
    out = np.empty((len(X), len(W)), order="F")
    for first in range(0, len(X), COLUMN_CHUNK):
        part = slice(first, first + COLUMN_CHUNK)
        out.T[:, part] = W @ rounded_columns(np.ascontiguousarray(X.T[:, part], np.float64), _bits(X.shape[1]))
    return out


def grid_product(X: NDArray[Any], W: Array, grid: float, bits: int = 32) -> Array:
    """X·Wᵀ for W on a public grid, each row a function of that row of X and of W alone, to the bit.

    W stays as it is: every partial sum of w·x is a multiple of grid·unit and at most Σ|w|·max|x|, hence exact in
    float64 if x is rounded to 53 − log₂(Σ|w|/grid) bits. Where that is less than ``bits`` of the largest entry of a
    row, what was rounded off is multiplied as well, and added.

    Args:
        X: (m, p), finite.
        W: (q, p), multiples of ``grid``.
        grid: a power of two.
        bits: of the rows, at least.

    Returns:
        (m, q).
    """
    spent = math.ceil(math.log2(max(float(np.abs(W).sum(axis=1).max()) / grid, 2.0)))
    each = max(MANTISSA + 1 - spent, 2)
    rest = np.ascontiguousarray(X, np.float64)
    part = rounded_rows(rest, each)
    out = part @ W.T
    for _ in range(math.ceil(bits / (each - 1)) - 1):
        rest = rest - part
        part = rounded_rows(rest, each)
        out += part @ W.T
    return np.asarray(out)


def half_spaces(X: NDArray[Any], U: Array) -> NDArray[np.bool_]:
    """1(u_jᵀx ≥ 0) for each row x, whoever is beside it: a sign that may turn with a last bit needs an exact product.

    Args:
        X: (m, p), float32 or float64.
        U: (P, p), finite.

    Returns:
        (m, P); False where a row is not finite.
    """
    return np.asarray(exact_product(X, coarse(U)) >= 0)
