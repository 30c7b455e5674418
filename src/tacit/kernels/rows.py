"""Rows in one pass: squared lengths, products with a vector, scaled copies with a constant behind them, short rows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = [
    "bounded_columns",
    "column_squares",
    "row_products",
    "row_squares",
    "scaled_with_constant",
    "shortened",
    "sparse_row_products",
    "standardised_columns",
]

FEW_ROWS = 32
ROWS = 1024
"""Rows at a time whose results stay in the cache."""
ROUNDING = 2.0**-32
"""More than the relative error of a norm in float64."""
SHRINK = 1 - 2.0**-16
"""Long rows are made this much shorter than R, so that rounding to float32 cannot make them longer."""


@jit
def row_squares(rows: NDArray[Any]) -> NDArray[np.float64]:
    """‖row‖² for each row, whatever the type of the entries; infinite or NaN where an entry is.

    Eight sums side by side: a single one would wait for itself at every addition.

    Args:
        rows: (m, p).

    Returns:
        (m,).
    """
    m, p = rows.shape
    out = np.empty(m)
    whole = p - p % 8
    for i in range(m):
        row = rows[i]
        a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = 0.0
        for j in range(0, whole, 8):
            a0 += np.float64(row[j]) * np.float64(row[j])
            a1 += np.float64(row[j + 1]) * np.float64(row[j + 1])
            a2 += np.float64(row[j + 2]) * np.float64(row[j + 2])
            a3 += np.float64(row[j + 3]) * np.float64(row[j + 3])
            a4 += np.float64(row[j + 4]) * np.float64(row[j + 4])
            a5 += np.float64(row[j + 5]) * np.float64(row[j + 5])
            a6 += np.float64(row[j + 6]) * np.float64(row[j + 6])
            a7 += np.float64(row[j + 7]) * np.float64(row[j + 7])
        for j in range(whole, p):
            a0 += np.float64(row[j]) * np.float64(row[j])
        out[i] = ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7))
    return out


@jit
def bounded_columns(
    X: NDArray[Any],
    low: NDArray[np.float64],
    high: NDArray[np.float64],
    centre: NDArray[np.float64],
    ratio: NDArray[np.float64],
    reach: float,
    out: NDArray[Any],
) -> None:
    """(x − centre)·ratio of every entry brought into its column's interval first, and into ±reach afterwards.

    Args:
        X: (m, p), in any order.
        low: (p,), the smallest values.
        high: (p,), the largest.
        centre: (p,).
        ratio: (p,).
        reach: rounding must not leave this interval.
        out: (p, m), the columns of the result.
    """
    m, p = X.shape
    few = np.empty((p, FEW_ROWS))
    for first in range(0, m, FEW_ROWS):  # turned around in the cache, so that the loops below are vectorised
        size = min(FEW_ROWS, m - first)
        for i in range(size):
            row = X[first + i]
            for j in range(p):
                few[j, i] = row[j]
        for j in range(p):
            given, new = few[j], out[j, first : first + size]
            a, b, c, r = low[j], high[j], centre[j], ratio[j]
            for i in range(size):
                v = given[i]
                v = v if v > a else a  # NaN, too
                v = v if v < b else b
                v = (v - c) * r
                v = v if v > -reach else -reach
                new[i] = v if v < reach else reach


@jit
def standardised_columns(
    XT: NDArray[Any], mean: NDArray[np.float64], scale: NDArray[np.float64], out: NDArray[np.float64]
) -> None:
    """(x − mean)/scale of every entry.

    Args:
        XT: (p, m), the columns of X.
        mean: (p,).
        scale: (p,).
        out: (p, m), the columns of the result.
    """
    for j in range(len(XT)):
        column, new, c, s = XT[j], out[j], mean[j], scale[j]
        for i in range(new.size):
            new[i] = (np.float64(column[i]) - c) / s


@jit
def column_squares(XT: NDArray[Any]) -> NDArray[np.float64]:
    """‖row‖² of X given by columns, added column by column: the same for a row wherever it stands.

    Args:
        XT: (p, m), the columns of X.

    Returns:
        (m,).
    """
    p, m = XT.shape
    out = np.zeros(m)
    for j in range(p):
        column = XT[j]
        for i in range(m):
            x = np.float64(column[i])
            out[i] += x * x
    return out


@jit
def row_products(XT: NDArray[Any], columns: NDArray[np.int64], w: NDArray[np.float64]) -> NDArray[np.float64]:
    """Σ_j X[i, columns[j]]·w[j] for each row, added in this order whatever the row's place: a library's product is not.

    Args:
        XT: (p, m), the columns of X, each contiguous (so that the loop over rows is vectorised), of any type.
        columns: (k,) numbers of columns.
        w: (k,).

    Returns:
        (m,).
    """
    m, whole = XT.shape[1], len(columns) - len(columns) % 4
    out = np.zeros(m)
    for first in range(0, m, ROWS):
        tile = out[first : first + ROWS]
        last = first + tile.size
        for k in range(0, whole, 4):  # four columns for each visit to the results
            a, b = XT[columns[k], first:last], XT[columns[k + 1], first:last]
            c, d = XT[columns[k + 2], first:last], XT[columns[k + 3], first:last]
            wa, wb, wc, wd = w[k], w[k + 1], w[k + 2], w[k + 3]
            for i in range(tile.size):
                tile[i] += (a[i] * wa + b[i] * wb) + (c[i] * wc + d[i] * wd)
        for k in range(whole, len(columns)):
            a, wa = XT[columns[k], first:last], w[k]
            for i in range(tile.size):
                tile[i] += a[i] * wa
    return out


@jit
def sparse_row_products(
    data: NDArray[Any], rows: NDArray[np.int32], starts: NDArray[np.int64], m: int, w: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Σ_j X[i, j]·w[j] for each row of a matrix stored by columns, added in the order of columns.

    Args:
        data: entries.
        rows: their rows.
        starts: where columns begin.
        m: the number of rows.
        w: (p,).

    Returns:
        (m,).
    """
    out = np.zeros(m)
    for j in range(starts.size - 1):
        weight = w[j]
        for e in range(starts[j], starts[j + 1]):
            out[rows[e]] += data[e] * weight
    return out


@jit
def scaled_with_constant(rows: NDArray[Any], factors: NDArray[np.float64], constant: float) -> NDArray[np.float64]:
    """(factor·row, constant) for each row, in float64.

    Args:
        rows: (m, p), of any type.
        factors: (m,).
        constant: the last column.

    Returns:
        (m, p + 1).
    """
    m, p = rows.shape
    out = np.empty((m, p + 1))
    for i in range(m):
        factor, row, new = factors[i], rows[i], out[i]
        for j in range(p):
            new[j] = np.float64(row[j]) * factor
        new[p] = constant
    return out


def shortened(rows: NDArray[Any], R: float) -> NDArray[Any]:
    """Rows within norm R: longer ones scaled down, those that are not finite replaced by zeros.

    Done before anything else, so that no product can overflow for some weights and not for others: a contribution that
    vanished for some weights only would not be a gradient.

    Args:
        rows: (m, p); left as they are.
        R: the norm.

    Returns:
        (m, p), in the same type; the very same array if nothing had to be changed.
    """
    odd = ~(np.sqrt(row_squares(rows)) <= R * (1 - ROUNDING))  # also those whose squares overflowed, and NaN
    if not odd.any():
        return rows
    out = np.array(rows)
    wide = np.array(rows[odd], np.float64)
    wide[~np.isfinite(wide).all(axis=1)] = 0
    top = np.maximum(np.abs(wide).max(axis=1, initial=0.0, keepdims=True), 1e-300)
    wide /= top
    length = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    out[odd] = wide * np.minimum(top, R * SHRINK / np.maximum(length, 1e-300))
    return out
