"""Coordinate and block gradients of generalised linear models: what Python calls of ``tacit.kernels.sweeps``.

X is (n, p) in Fortran order (float64 or float32), or a canonical CSC matrix (float64 ``data``, int32 ``indices``, int64
``indptr``, no duplicate entries: a duplicate would be clipped twice). Losses go by code. Inputs are trusted: finite, of
one length, indices in range. With a ``unit`` sums and noise are integers on that grid. ``weights``, from 0 to 1, say
what each record counts: terms are multiplied by them once they are clipped, and before they are rounded.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tacit.kernels import sweeps
from tacit.kernels.lattice import PRODUCT_BITS
from tacit.kernels.sweeps import LIMIT, Array, Indices, Lattice, Matrix, Noise, Pointers, Shape, Tag, Weights

__all__ = [
    "HUBER",
    "LIMIT",
    "LOGISTIC",
    "SMOOTHED_HINGE",
    "SQUARED",
    "apply_dense",
    "apply_sparse",
    "block_sum_dense",
    "block_sum_sparse",
    "coordinate_sum_dense",
    "coordinate_sum_sparse",
    "derivative",
    "sweep_dense",
    "sweep_sparse",
]

SQUARED, HUBER, LOGISTIC, SMOOTHED_HINGE = range(4)


def _kind(loss: int, parameter: float) -> tuple[Tag, Shape]:
    """The tag that selects the compiled copy, and (low, high, slope) of the derivative."""
    low, high = ((0.0, 0.0), (-parameter, parameter), (-sweeps.SATURATION, sweeps.SATURATION), (-1.0, 0.0))[loss]
    return (0,) * loss, (float(low), float(high), 1.0 / parameter if loss == SMOOTHED_HINGE else 0.0)


def _lattice(unit: float | None, noise: Noise | None = None) -> tuple[Lattice, type]:
    """The grid as kernels want it, and the type of its sums, which noise must have, too."""
    if unit is not None and not (math.frexp(unit)[0] == 0.5 and unit * 2.0 ** (PRODUCT_BITS - 1) >= 1.0):
        raise ValueError(f"unit must be a power of two, 2**-39 or more, so that sums of integers are exact: got {unit}")
    kind = np.float64 if unit is None else np.int64
    if noise is not None and noise.dtype != kind:
        raise ValueError(f"noise must be {np.dtype(kind)} here, got {noise.dtype}")
    return (1.0,) if unit is None else (float(unit), 1.0 / unit), kind


def _columns(X: Matrix) -> Matrix:
    """Columns as contiguous rows."""
    if not X.flags.f_contiguous:
        raise ValueError("X must be in Fortran order: every column contiguous")
    return X.T


def derivative(z: Array, loss: int, parameter: float) -> Array:
    """φ′ of every entry of z."""
    out = np.empty(z.size)
    sweeps.derivatives(*_kind(loss, parameter), z, out)
    return out


def sweep_dense(
    X: Matrix,
    z: Array,
    w: Array,
    order: Pointers,
    noise: Noise,
    clip: Array,
    step: Array,
    step_l1: Array,
    step_l2: Array,
    low: Array,
    high: Array,
    loss: int,
    parameter: float,
    total: Array,
    unit: float | None = None,
    weights: Weights = None,
) -> None:
    """One update for each entry of ``order``; moves w and z, adds to ``total`` the sum of w over all updates.

    ``noise`` is that of G, or integers in units of the grid.
    """
    rules, (grid, _) = (clip, step, step_l1, step_l2, low, high), _lattice(unit, noise)
    sweeps.sweep(*_kind(loss, parameter), grid, weights, _columns(X), z, w, order, noise, rules, total)


def sweep_sparse(
    data: Array,
    indices: Indices,
    indptr: Pointers,
    n: int,
    z: Array,
    w: Array,
    order: Pointers,
    noise: Noise,
    clip: Array,
    step: Array,
    step_l1: Array,
    step_l2: Array,
    low: Array,
    high: Array,
    loss: int,
    parameter: float,
    total: Array,
    unit: float | None = None,
    weights: Weights = None,
) -> None:
    """As ``sweep_dense``; touches only the non-zeros of a column, and an empty column is noised all the same."""
    rules, (grid, _) = (clip, step, step_l1, step_l2, low, high), _lattice(unit, noise)
    X = (data, indices, indptr)
    sweeps.sweep_sparse(*_kind(loss, parameter), grid, weights, X, z[:n], w, order, noise, rules, total)


def coordinate_sum_dense(
    X: Matrix,
    z: Array,
    j: int,
    clip_j: float,
    loss: int,
    parameter: float,
    unit: float | None = None,
    weights: Weights = None,
) -> Any:
    """Σᵢ clip(φ′(zᵢ)xᵢⱼ, ±clip_j); on a grid the integer q."""
    grid, kind = _lattice(unit)
    rest: tuple[Any, ...] = (z, _columns(X)[j], float(clip_j), np.zeros(1, kind), 0)
    return sweeps.column_sum(*_kind(loss, parameter), grid, weights, *rest)


def coordinate_sum_sparse(
    data: Array,
    indices: Indices,
    indptr: Pointers,
    z: Array,
    j: int,
    clip_j: float,
    loss: int,
    parameter: float,
    unit: float | None = None,
    weights: Weights = None,
) -> Any:
    """As ``coordinate_sum_dense``, over the non-zeros of column j."""
    column, (grid, kind) = slice(indptr[j], indptr[j + 1]), _lattice(unit)
    rest: tuple[Any, ...] = (data[column], indices[column], z, float(clip_j), np.zeros(1, kind), 0)
    return sweeps.column_sum_sparse(*_kind(loss, parameter), grid, weights, *rest)


def _step(w: Array, j: int, noisy: float, settings: tuple[Array, Array, Array, Array, Array]) -> float:
    """Move w_j; its change."""
    old = float(w[j])
    w[j] = sweeps.moved(old, float(noisy), *(float(values[j]) for values in settings))
    return float(w[j]) - old


def apply_dense(
    X: Matrix,
    z: Array,
    w: Array,
    j: int,
    noisy: float,
    step: Array,
    step_l1: Array,
    step_l2: Array,
    low: Array,
    high: Array,
) -> float:
    """The rest of an update, given the noisy sum: moves w_j and z, returns the change of w_j."""
    delta = _step(w, j, noisy, (step, step_l1, step_l2, low, high))
    sweeps.add(z, delta, _columns(X)[j])
    return delta


def apply_sparse(
    data: Array,
    indices: Indices,
    indptr: Pointers,
    z: Array,
    w: Array,
    j: int,
    noisy: float,
    step: Array,
    step_l1: Array,
    step_l2: Array,
    low: Array,
    high: Array,
) -> float:
    """The rest of an update, given the noisy sum: moves w_j and z, returns the change of w_j."""
    delta = _step(w, j, noisy, (step, step_l1, step_l2, low, high))
    column = slice(indptr[j], indptr[j + 1])
    sweeps.add_sparse(z, delta, data[column], indices[column])
    return delta


def block_sum_dense(
    X: Matrix,
    z: Array,
    block: Pointers,
    whiten: Array,
    bound: float,
    loss: int,
    parameter: float,
    unit: float | None = None,
    weights: Weights = None,
) -> Any:
    """Σᵢ vᵢ min(1, bound/‖vᵢ‖), vᵢⱼ = φ′(zᵢ)xᵢⱼ whitenⱼ for j in the block; nothing where ‖vᵢ‖/bound exceeds 1e154.

    Returns:
        One number per coordinate of the block; on a grid int64 in units of g·bound, of norm at most 1/g per record.
    """
    grid, kind = _lattice(unit)
    out: Noise = np.zeros(block.size, kind)
    sweeps.block_sum(*_kind(loss, parameter), grid, weights, _columns(X), z, block, whiten, float(bound), out)
    return out


def block_sum_sparse(
    data: Array,
    indices: Indices,
    indptr: Pointers,
    n: int,
    z: Array,
    block: Pointers,
    whiten: Array,
    bound: float,
    loss: int,
    parameter: float,
    unit: float | None = None,
    weights: Weights = None,
) -> Any:
    """As ``block_sum_dense``; two vectors of length n are its scratch."""
    grid, kind = _lattice(unit)
    out: Noise = np.zeros(block.size, kind)
    X = (data, indices, indptr)
    sweeps.block_sum_sparse(*_kind(loss, parameter), grid, weights, X, z[:n], block, whiten, float(bound), out)
    return out
