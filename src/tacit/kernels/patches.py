"""Pictures to columns of patches and back, and average pooling, record by record in a fixed order of additions."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["fold", "pool", "unfold", "unpool"]

Array = NDArray[np.float64]


@jit
def unfold(pictures: NDArray[Any], kernel: int, stride: int, padding: int, constant: float) -> Array:
    """One row (patch, constant) for each position of a kernel; zeros around the picture (im2col).

    Args:
        pictures: (m, channels, h, w).
        kernel: side k of a patch.
        stride: between patches.
        padding: of zeros.
        constant: the last column.

    Returns:
        (m, positions, channels·k² + 1).
    """
    m, channels, h, w = pictures.shape
    rows, cols = (h + 2 * padding - kernel) // stride + 1, (w + 2 * padding - kernel) // stride + 1
    out = np.empty((m, rows * cols, channels * kernel * kernel + 1))
    for n in range(m):
        for r in range(rows):
            for q in range(cols):
                patch, at = out[n, r * cols + q], 0
                left = q * stride - padding
                for c in range(channels):
                    for i in range(kernel):
                        y = r * stride + i - padding
                        if 0 <= y < h and left >= 0 and left + kernel <= w:
                            line = pictures[n, c, y]
                            for j in range(kernel):
                                patch[at + j] = line[left + j]
                        else:
                            for j in range(kernel):
                                inside = 0 <= y < h and 0 <= left + j < w
                                patch[at + j] = pictures[n, c, y, left + j] if inside else 0.0
                        at += kernel
                patch[at] = constant
    return out


@jit
def fold(columns: Array, channels: int, h: int, w: int, kernel: int, stride: int, padding: int) -> Array:
    """The adjoint of ``unfold`` without its constant: every patch added to where it came from (col2im).

    Args:
        columns: (m, positions, channels·k²).
        channels: of the pictures.
        h: their height.
        w: their width.
        kernel: side k of a patch.
        stride: between patches.
        padding: of zeros.

    Returns:
        (m, channels, h, w).
    """
    m = len(columns)
    rows, cols = (h + 2 * padding - kernel) // stride + 1, (w + 2 * padding - kernel) // stride + 1
    out = np.zeros((m, channels, h, w))
    for n in range(m):
        for r in range(rows):
            for q in range(cols):
                patch, at = columns[n, r * cols + q], 0
                left = q * stride - padding
                for c in range(channels):
                    for i in range(kernel):
                        y = r * stride + i - padding
                        if 0 <= y < h:
                            line = out[n, c, y]
                            for j in range(max(0, -left), min(kernel, w - left)):
                                line[left + j] += patch[at + j]
                        at += kernel
    return out


@jit
def pool(pictures: NDArray[Any], k: int) -> Array:
    """Means over squares of side k; what is left over at the right and below is left out.

    Args:
        pictures: (m, channels, h, w).
        k: side.

    Returns:
        (m, channels, h // k, w // k).
    """
    m, channels, h, w = pictures.shape
    out = np.empty((m, channels, h // k, w // k))
    for n in range(m):
        for c in range(channels):
            for r in range(h // k):
                for q in range(w // k):
                    total = 0.0
                    for i in range(k):
                        for j in range(k):
                            total += pictures[n, c, r * k + i, q * k + j]
                    out[n, c, r, q] = total / (k * k)
    return out


@jit
def unpool(means: Array, h: int, w: int, k: int) -> Array:
    """The adjoint of ``pool``.

    Args:
        means: (m, channels, h // k, w // k).
        h: height of the pictures.
        w: their width.
        k: side of the squares.

    Returns:
        (m, channels, h, w).
    """
    m, channels, rows, cols = means.shape
    out = np.zeros((m, channels, h, w))
    for n in range(m):
        for c in range(channels):
            for r in range(rows * k):
                for q in range(cols * k):
                    out[n, c, r, q] = means[n, c, r // k, q // k] / (k * k)
    return out
