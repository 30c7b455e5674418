"""Rows as integers, and sums of outer products g·xᵀ over rows, gate by gate: every addition in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit, jit_exact_sums
from tacit.kernels.lattice import FLUSH

__all__ = ["capped_rows", "integer_rows", "integer_sums_of_products", "outer_sums", "row_scores"]

Array = NDArray[np.float64]
Table = NDArray[Any]
SIGN = {4: np.int32(0x7FFFFFFF), 8: np.int64(0x7FFFFFFFFFFFFFFF)}
"""All bits of a float but its sign: such patterns are ordered as absolute values are."""


@jit
def _tops(patterns: Table, keep: Any) -> Table:
    """The largest pattern of each row: that of its largest absolute entry; a NaN is larger than any number."""
    out = np.zeros(len(patterns), patterns.dtype)
    for i in range(len(patterns)):
        top, row = out[i], patterns[i]
        for j in range(row.size):
            top = max(top, row[j] & keep)
        out[i] = top
    return out


@jit_exact_sums
def _squares(u: NDArray[np.float32]) -> float:
    total = 0.0
    for j in range(u.size):
        total += np.float64(u[j]) * np.float64(u[j])
    return total


@jit
def _rounded(X: Table, top: Array, bits: int) -> tuple[NDArray[np.float32], Array, Array]:
    m, p = X.shape
    out, scale, norms = np.empty((m, p), np.float32), np.zeros(m), np.zeros(m)
    for i in range(m):
        row, new = X[i], out[i]
        if not 1e-280 < top[i] < 1e280:  # also NaN
            new[:] = 0.0
            continue
        _, e = math.frexp(top[i])
        inverse, scale[i] = math.ldexp(1.0, bits - e), math.ldexp(1.0, e - bits)
        for j in range(p):
            new[j] = np.float32(np.rint(np.float64(row[j]) * inverse))
        for first in range(0, p, FLUSH):  # exact, whatever the order within a part
            norms[i] += _squares(new[first : first + FLUSH])
        norms[i] = np.sqrt(norms[i]) * (1.0 + (p // FLUSH + 8) * 2.0**-52)
    return out, scale, norms


def integer_rows(X: Table, bits: int) -> tuple[NDArray[np.float32], Array, Array]:
    """Rows as integers u of at most ``bits`` bits with a scale, x ≈ scale·u: ``slopes.short_rows``, by rows.

    The scale is the power of two for which the largest entry of u lies between 2^(bits−1) and 2^bits. All results are
    functions of their own row, to the bit. A row that is not finite becomes zero.

    Args:
        X: (m, p), float32 or float64.
        bits: at most 20.

    Returns:
        u (m, p), the scales (m,), and bounds on ‖u‖ from above (m,).
    """
    X = np.ascontiguousarray(X, X.dtype if X.dtype in (np.float32, np.float64) else np.float64)
    size = X.dtype.itemsize
    tops = _tops(X.view(f"i{size}"), SIGN[size]).view(X.dtype).astype(np.float64)
    return _rounded(X, tops, bits)


@jit_exact_sums
def row_scores(U: NDArray[np.float32], W: Array) -> Array:
    """U·Wᵀ of integer rows and a ``coarse`` W: exact, and so a function of each row alone, in any order of additions.

    Args:
        U: (m, p).
        W: (K, p), rounded for rows of as many bits (``exact.coarse``).

    Returns:
        (m, K).
    """
    m, p = U.shape
    K = len(W)
    out = np.empty((m, K))
    whole = m - m % 4
    for i in range(0, whole, 4):  # four rows for each visit to W
        a, b, c, d = U[i], U[i + 1], U[i + 2], U[i + 3]
        for k in range(K):
            w = W[k]
            s0 = s1 = s2 = s3 = 0.0
            for j in range(p):
                s0 += np.float64(a[j]) * w[j]
                s1 += np.float64(b[j]) * w[j]
                s2 += np.float64(c[j]) * w[j]
                s3 += np.float64(d[j]) * w[j]
            out[i, k], out[i + 1, k], out[i + 2, k], out[i + 3, k] = s0, s1, s2, s3
    for i in range(whole, m):
        for k in range(K):
            s = 0.0
            for j in range(p):
                s += np.float64(U[i, j]) * W[k, j]
            out[i, k] = s
    return out


@jit_exact_sums
def outer_sums(G: Table, gates: Table, X: Table) -> Array:
    """Σ_i g_i·weight_ij·x_iᵀ for every gate j, in float64; rows whose gate is shut are passed over.

    Any order of m additions is off by at most m·2⁻⁵³·Σ_i|g_i|·|weight_ij|·|x_i|, entry by entry. Sums of integers are
    exact while they stay below 2⁵³.

    Args:
        G: (m, K).
        gates: (m, P) weights, 0 where a gate is shut.
        X: (m, d).

    Returns:
        (K, P, d).
    """
    m, K = G.shape
    P, d = gates.shape[1], X.shape[1]
    out = np.zeros((K, P, d))
    index = np.empty(m, np.int64)
    for j in range(P):
        count = 0
        for i in range(m):
            if gates[i, j] != 0:
                index[count] = i
                count += 1
        whole = count - count % 4
        for n in range(0, whole, 4):  # four rows for each visit to the sums
            i0, i1, i2, i3 = index[n], index[n + 1], index[n + 2], index[n + 3]
            x0, x1, x2, x3 = X[i0], X[i1], X[i2], X[i3]
            w0, w1 = np.float64(gates[i0, j]), np.float64(gates[i1, j])
            w2, w3 = np.float64(gates[i2, j]), np.float64(gates[i3, j])
            for k in range(K):
                g0, g1, g2, g3 = w0 * G[i0, k], w1 * G[i1, k], w2 * G[i2, k], w3 * G[i3, k]
                row = out[k, j]
                for c in range(d):
                    row[c] += g0 * x0[c] + g1 * x1[c] + g2 * x2[c] + g3 * x3[c]
        for n in range(whole, count):
            i, weight = index[n], np.float64(gates[index[n], j])
            for k in range(K):
                row, g = out[k, j], weight * G[i, k]
                for c in range(d):
                    row[c] += g * X[i, c]
    return out


def integer_sums_of_products(T: Array, gates: Table, U: Table) -> NDArray[np.int64]:
    """``outer_sums`` of integers, exact: no product exceeds 2⁴⁰.

    Args:
        T: (m, K) integers.
        gates: (m, P) of zeros and ones.
        U: (m, d) integers.

    Returns:
        (K, P, d).
    """
    out = np.zeros((T.shape[1], gates.shape[1], U.shape[1]), np.int64)
    for first in range(0, len(T), FLUSH):
        part = slice(first, first + FLUSH)
        out += outer_sums(T[part], gates[part], U[part]).astype(np.int64)
    return out


@jit
def capped_rows(T: Array, longest: Array) -> Array:
    """Each row rounded to integers of norm at most ``longest``, scaled down before if it is longer.

    To the nearest where that is short enough, else toward zero. Rows that are not finite become zero, and so do those
    that may have no length. A function of each row alone, to the bit.

    Args:
        T: (m, K).
        longest: (m,), at least 0.

    Returns:
        (m, K).
    """
    m, K = T.shape
    out = np.zeros((m, K))
    for i in range(m):
        top = 0.0
        for k in range(K):
            size = abs(T[i, k])
            top = size if size > top or size != size else top
        inside = longest[i] * (1.0 - (K + 8) * 2.0**-52)
        if not 0.0 < top < np.inf or not inside > 0.0:
            continue
        square = 0.0
        for k in range(K):
            square += (T[i, k] / top) ** 2
        norm = top * np.sqrt(square)
        factor = inside / norm if norm > inside else 1.0
        square = 0.0
        for k in range(K):
            out[i, k] = np.rint(T[i, k] * factor)
            square += out[i, k] ** 2
        if np.sqrt(square) > inside:
            for k in range(K):
                out[i, k] = np.trunc(T[i, k] * factor)
    return out
