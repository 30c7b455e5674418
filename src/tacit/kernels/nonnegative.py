"""Non-negative least squares for many small problems at once, and the non-negative rows of sparse tables."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["nonnegative_rows", "observed_rows", "shorten_rows"]

Array = NDArray[np.float64]
Index = NDArray[np.int32] | NDArray[np.int64]


@jit
def nonnegative_rows(G: Array, B: Array, passes: int) -> Array:
    """argmin_{w ≥ 0} ½ wGwᵀ − w·b for each row b of B, by a fixed number of cyclic coordinate passes from 0.

    A row's result depends on that row and on G only, and never on how many others there are.

    Args:
        G: (k, k), positive semi-definite; coordinates without curvature stay 0.
        B: (m, k).
        passes: over the coordinates.

    Returns:
        (m, k).
    """
    m, k = B.shape
    W = np.zeros((m, k))
    slope = np.empty(k)
    for i in range(m):
        for j in range(k):
            slope[j] = -B[i, j]
        _solve_row(G, slope, W[i], passes)
    return W


@jit
def _solve_row(G: Array, slope: Array, w: Array, passes: int) -> None:
    """Coordinate passes on one row; ``slope`` is the gradient at w and is kept up to date."""
    k = len(w)
    for _ in range(passes):
        moved = False
        for j in range(k):
            if G[j, j] <= 0.0:
                continue
            new = max(w[j] - slope[j] / G[j, j], 0.0)
            delta = new - w[j]
            if delta != 0.0:
                w[j] = new
                moved = True
                for l in range(k):
                    slope[l] += delta * G[j, l]
        if not moved:
            break


@jit
def observed_rows(
    indptr: Index, indices: Index, data: Array, items: Array, ridge: float, longest: float, passes: int
) -> tuple[Array, Array]:
    """For each sparse row the weights that fit its *stored* entries, and what they leave of them.

    w = argmin_{w ≥ 0} ½ Σ_{c stored} (m_c − w·h_c)² + ridge/2·‖w‖², scaled down to norm ``longest``.

    Args:
        indptr: of a CSR matrix with m rows.
        indices: of its entries.
        data: its entries.
        items: Hᵀ, (columns, k).
        ridge: on w.
        longest: R.
        passes: over the coordinates.

    Returns:
        W (m, k), and the residuals m_c − w·h_c in the order of ``data``.
    """
    m, k = len(indptr) - 1, items.shape[1]
    W, left = np.zeros((m, k)), np.empty(len(data))
    G, slope = np.empty((k, k)), np.empty(k)
    for i in range(m):
        G[:] = 0.0
        slope[:] = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            h = items[indices[e]]
            for j in range(k):
                slope[j] -= data[e] * h[j]
                for l in range(k):
                    G[j, l] += h[j] * h[l]
        for j in range(k):
            G[j, j] += ridge
        _solve_row(G, slope, W[i], passes)
        length = 0.0
        for j in range(k):
            length += W[i, j] * W[i, j]
        length = np.sqrt(length)
        if not length <= longest:
            for j in range(k):
                W[i, j] = W[i, j] * longest / length if length < np.inf else 0.0
        for e in range(indptr[i], indptr[i + 1]):
            h = items[indices[e]]
            fitted = 0.0
            for j in range(k):
                fitted += W[i, j] * h[j]
            left[e] = data[e] - fitted
    return W, left


@jit
def shorten_rows(indptr: Index, data: Array, longest: float) -> None:
    """In place: negative entries of a CSR matrix become 0, rows longer than ``longest`` are scaled down to it.

    Args:
        indptr: of the matrix.
        data: its entries, each (row, column) stored once.
        longest: the norm.
    """
    for i in range(len(indptr) - 1):
        top = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            if not data[e] >= 0.0:  # also NaN
                data[e] = 0.0
            top = max(top, data[e])
        if top == 0.0:
            continue
        if top == np.inf:
            for e in range(indptr[i], indptr[i + 1]):
                data[e] = 0.0
            continue
        square = 0.0
        for e in range(indptr[i], indptr[i + 1]):
            square += (data[e] / top) ** 2
        norm = top * np.sqrt(square)
        if norm > longest:
            for e in range(indptr[i], indptr[i + 1]):
                data[e] = data[e] / top * (longest / np.sqrt(square))
