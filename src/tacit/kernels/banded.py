"""Banded lower-triangular matrices: filtered noise, its adjoint, the certificate's matrix and streaming rows.

Layout, as in ``mechanism.CorrelatedNoise``: C by columns, ``bands[j, i] = C[j+i, j]``, entries beyond the last row are
zero and stay zero. Filters D by rows, ``taps[t, i] = D[t, t−i]``. Inputs are trusted: finite, diagonals not zero.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = [
    "band_sum",
    "buffered_impulse",
    "combine",
    "filtered",
    "filtered_gradient",
    "integer_row",
    "inverse_rows",
    "multipliers",
    "product",
    "toeplitz_solve",
]

Array = NDArray[np.float64]
Float = NDArray[Any]  # float32 or float64
Integers = NDArray[np.int64]


@jit
def product(bands: Array, taps: Array) -> Array:
    """B = C·D by rows: out[t, i] = B[t, t−i], of b + k bands for b bands of C and k + 1 of D."""
    T, b = bands.shape
    k = taps.shape[1] - 1
    out = np.zeros((T, b + k))
    for t in range(T):
        for l in range(min(b, t + 1)):
            c = bands[t - l, l]
            for i in range(min(k, t - l) + 1):
                out[t, l + i] += c * taps[t - l, i]
    return out


@jit
def filtered(rows: Array, p: Array) -> None:
    """Covariances of y with B·y = z, z standard normal: p[t, i] = Cov(y_t, y_{t−i}), i < the number of bands of B.

    With a_i = −B[t, t−i]/B[t, t]: p[t, i] = Σ_l a_l Cov(y_{t−l}, y_{t−i}) for i ≥ 1, and p[t, 0] = Σ_l a_l p[t, l] +
    1/B[t, t]²; O(T·m²) for m bands.

    Args:
        rows: B by rows, (T, m).
        p: (T, m), overwritten.
    """
    T, m = rows.shape
    a = np.zeros(m)
    for t in range(T):
        s = 1.0 / rows[t, 0]
        n = min(m - 1, t)
        p[t, :] = 0.0
        for i in range(1, n + 1):
            a[i] = -rows[t, i] * s
        for l in range(1, n + 1):
            al, dot = a[l], 0.0
            for i in range(n + 1 - l):
                p[t, l + i] += al * p[t - l, i]
            for i in range(1, n + 1 - l):
                dot += a[l + i] * p[t - l, i]
            p[t, l] += dot
        total = s * s
        for l in range(1, n + 1):
            total += a[l] * p[t, l]
        p[t, 0] = total


@jit
def filtered_gradient(rows: Array, p: Array, weights: Array) -> Array:
    """∂/∂B of Σ_t weights_t Var(y_t), by rows: the adjoint of ``filtered``.

    Args:
        rows: B by rows, (T, m).
        p: what ``filtered`` found.
        weights: (T,).

    Returns:
        (T, m): entry (t, i) is the derivative in B[t, t−i].
    """
    T, m = rows.shape
    out = np.zeros((T, m))
    adjoint = np.zeros((T, m))
    a, da = np.zeros(m), np.zeros(m)
    for t in range(T - 1, -1, -1):
        s = 1.0 / rows[t, 0]
        n = min(m - 1, t)
        top = adjoint[t, 0] + weights[t]
        for i in range(1, n + 1):
            a[i] = -rows[t, i] * s
            adjoint[t, i] += a[i] * top
            da[i] = p[t, i] * top
        for l in range(1, n + 1):
            al, pl, dot = a[l], adjoint[t, l], 0.0
            for i in range(n + 1 - l):
                dot += p[t - l, i] * adjoint[t, l + i]
                adjoint[t - l, i] += al * adjoint[t, l + i]
            da[l] += dot
            for i in range(1, n + 1 - l):
                da[l + i] += p[t - l, i] * pl
                adjoint[t - l, i] += a[l + i] * pl
        total = 2.0 * s * s * top
        for i in range(1, n + 1):
            out[t, i] = -da[i] * s
            total += da[i] * a[i]
        out[t, 0] = -total * s
    return out


@jit
def inverse_rows(gradient: Array, taps: Array, out: Array) -> None:
    """Adds ∂/∂C to ``out`` (by columns) given ∂/∂B (by rows) for B = C·D: the adjoint of ``product``."""
    T, b = out.shape
    k = taps.shape[1] - 1
    for t in range(T):
        for l in range(min(b, t + 1)):
            total = 0.0
            for i in range(min(k, t - l) + 1):
                total += gradient[t, l + i] * taps[t - l, i]
            out[t - l, l] += total


@jit
def multipliers(bands: Array, gradient: Array) -> Array:
    """Y = −∂F/∂X on the band, X = CᵀC, from G = ∂F/∂C: the solution of (C·Y)[i, j] = −G[i, j]/2 there.

    Only entries of Y inside the band occur, and row i follows from the rows before it; O(T·b²).

    Args:
        bands: C by columns.
        gradient: G by columns, not projected.

    Returns:
        (T, b): entry (j, i) is Y[j+i, j].
    """
    T, b = bands.shape
    out = np.zeros((T, b))
    for i in range(T):
        first = max(0, i - b + 1)
        for j in range(first, i + 1):
            total = -0.5 * gradient[j, i - j]
            for l in range(first, i):
                total -= bands[l, i - l] * (out[j, l - j] if l >= j else out[l, j - l])
            out[j, i - j] = total / bands[i, 0]
    return out


@jit
def band_sum(values: Array) -> float:
    """Σ |Y_ij| over a symmetric band given by its lower half."""
    total = 0.0
    for j in range(values.shape[0]):
        total += abs(values[j, 0])
        for i in range(1, values.shape[1]):
            total += 2.0 * abs(values[j, i])
    return total


@jit
def buffered_impulse(scale: Array, decay: Array, T: int) -> Array:
    """The first column of C⁻¹ for C[i, j] = Σ_l scale_l·decay_l^{i−j−1} below a unit diagonal; O(T·d)."""
    d = len(scale)
    out = np.zeros(T)
    buffers = np.zeros(d)
    for t in range(T):
        x = 1.0 if t == 0 else 0.0
        for l in range(d):
            x -= scale[l] * buffers[l]
        for l in range(d):
            buffers[l] = decay[l] * buffers[l] + x
        out[t] = x
    return out


@jit
def toeplitz_solve(c: Array, x: Array) -> Array:
    """C·y = x for the lower-triangular Toeplitz matrix with coefficients c."""
    T, b = len(x), len(c)
    y = np.zeros(T)
    for t in range(T):
        total = x[t]
        for i in range(1, min(b, t + 1)):
            total -= c[i] * y[t - i]
        y[t] = total / c[0]
    return y


@jit
def combine(ring: Float, coefficients: Float, newest: int, target: int, z: Float, start: int) -> None:
    """Columns start … start + len(z) of row ``target`` become z·c_0 + Σ_{i≥1} c_i·(row i steps ago), one pass.

    Args:
        ring: earlier rows, (slots, size).
        coefficients: c_0, c_1, … (as many earlier rows are read as there are coefficients after the first).
        newest: the slot of the last row; older rows lie in the slots before it, cyclically.
        target: the slot that is overwritten; it may hold the oldest row that is read.
        z: fresh noise; overwritten.
        start: the first column.
    """
    slots, n = ring.shape[0], len(z)
    k = len(coefficients) - 1
    out = ring[target, start : start + n]
    for j in range(n):
        z[j] *= coefficients[0]
    for i in range(1, k - k % 3, 3):  # three rows at a time: z is read and written a third as often
        c1, c2, c3 = coefficients[i], coefficients[i + 1], coefficients[i + 2]
        r1 = ring[(newest - i + 1) % slots, start : start + n]
        r2 = ring[(newest - i) % slots, start : start + n]
        r3 = ring[(newest - i - 1) % slots, start : start + n]
        for j in range(n):
            z[j] += c1 * r1[j] + c2 * r2[j] + c3 * r3[j]
    for i in range(k - k % 3 + 1, k + 1):
        c = coefficients[i]
        row = ring[(newest - i + 1) % slots, start : start + n]
        for j in range(n):
            z[j] += c * row[j]
    for j in range(n):
        out[j] = z[j]


@jit
def integer_row(ring: Integers, coefficients: Integers, t: int, sums: Integers) -> Integers:
    """k_0·q_t + Σ_{i≥1} k_i·q_{t−i} in int64, which wraps around; q_t then takes the place of q_{t−b}.

    Nothing that row t is made from is overwritten, so a row that was interrupted can be made again.

    Args:
        ring: earlier sums, (b, size): q_j in the slot j mod b.
        coefficients: k_0, k_1, …, at most b and at most t + 1 of them.
        t: the row.
        sums: q_t.

    Returns:
        (size,).
    """
    slots = ring.shape[0]
    out = coefficients[0] * sums
    for i in range(1, len(coefficients)):
        k, row = coefficients[i], ring[(t - i) % slots]
        for j in range(out.size):
            out[j] += k * row[j]
    ring[t % slots] = sums
    return out  # type: ignore[no-any-return]
