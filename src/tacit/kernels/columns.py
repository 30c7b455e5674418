"""Clipped coordinate gradients of all columns at once: the sums of ``tacit.kernels.sweeps``, for scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels import sweeps
from tacit.kernels.coordinate import _columns, _kind, _lattice
from tacit.kernels.sweeps import Array, Columns, Indices, Lattice, Matrix, Pointers, Shape, Tag, Weights, _fast

__all__ = ["column_sums_dense", "column_sums_sparse"]


@_fast
def _dense(
    tag: Tag, shape: Shape, grid: Lattice, weights: Weights, XT: Matrix, z: Array, clip: Array, none: Any, out: Any
) -> None:
    for j in range(clip.size):
        out[j] = sweeps.column_sum(tag, shape, grid, weights, z, XT[j], clip[j], none, 0)


@_fast
def _sparse(
    tag: Tag, shape: Shape, grid: Lattice, weights: Weights, X: Columns, z: Array, clip: Array, none: Any, out: Any
) -> None:
    data, indices, indptr = X
    for j in range(clip.size):
        values, rows = data[indptr[j] : indptr[j + 1]], indices[indptr[j] : indptr[j + 1]]
        out[j] = sweeps.column_sum_sparse(tag, shape, grid, weights, values, rows, z, clip[j], none, 0)


def column_sums_dense(
    X: Matrix,
    z: Array,
    clip: Array,
    loss: int,
    parameter: float,
    unit: float | None = None,
    weights: Weights = None,
) -> NDArray[Any]:
    """Σᵢ clip(φ′(zᵢ)xᵢⱼ, ±clipⱼ) for every j; on a grid the integers q, in units of clipⱼ·g."""
    grid, kind = _lattice(unit)
    out: NDArray[Any] = np.empty(clip.size, kind)
    _dense(*_kind(loss, parameter), grid, weights, _columns(X), z, clip, np.zeros(1, kind), out)
    return out


def column_sums_sparse(
    data: Array,
    indices: Indices,
    indptr: Pointers,
    z: Array,
    clip: Array,
    loss: int,
    parameter: float,
    unit: float | None = None,
    weights: Weights = None,
) -> NDArray[Any]:
    """As ``column_sums_dense``, over the non-zeros."""
    grid, kind = _lattice(unit)
    out: NDArray[Any] = np.empty(clip.size, kind)
    X = (data, indices, indptr)
    _sparse(*_kind(loss, parameter), grid, weights, X, z, clip, np.zeros(1, kind), out)
    return out
