"""Clipped coordinate and block gradients of generalised linear models, and whole sweeps of noisy coordinate descent.

Notation: X is (n, p) in Fortran order (float64 or float32), or a canonical CSC matrix (float64 ``data``, int32
``indices``, int64 ``indptr``, no duplicate entries: a duplicate would be clipped twice). z = Xw − offset, in float64,
is kept up to date by every function that moves w. The losses, by code, with their derivative φ′(z):

    SQUARED         z
    HUBER           z clipped to ±parameter
    LOGISTIC        −1/(1 + eᶻ); labels are folded into X. Relative error below 1e-10 for |z| ≤ 700, where it saturates
    SMOOTHED_HINGE  (z − 1)/parameter clipped to [−1, 0]

One update of coordinate j: G = Σᵢ clip(φ′(zᵢ)xᵢⱼ, ±clipⱼ), v = wⱼ − stepⱼ(G + noise), and wⱼ becomes
soft(v, step_l1ⱼ)/(1 + step_l2ⱼ) brought into [lowⱼ, highⱼ] and into the public box |wⱼ| ≤ ``LIMIT``.

What bounds a record's influence when a run diverges: ``LIMIT`` keeps w finite, hence z finite as long as |X| ≤ 1e100;
and whatever z holds, ±∞ and NaN included, no term leaves [−clip, clip]. A NaN term of the squared loss counts 0, the
other derivatives are bounded and saturate (NaN counts as the upper end of z). The compiler may reorder sums, never
assume away a NaN. Inputs are trusted: finite, of one length, indices in range.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

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
LIMIT: Final = 1e150

Array = NDArray[np.float64]
Matrix = NDArray[np.float64] | NDArray[np.float32]
Indices = NDArray[np.int32]
Pointers = NDArray[np.int64]
Columns = tuple[Array, Indices, Pointers]
Rules = tuple[Array, Array, Array, Array, Array, Array]  # clip, step, step_l1, step_l2, low, high
Tag = tuple[int, ...]
Shape = tuple[float, float, float]
F = TypeVar("F", bound=Callable[..., Any])

_SATURATION: Final = 700.0
_ROUND: Final = 6755399441055744.0 + 1023.0  # 1.5·2⁵² + bias: k added to it is rounded, its low bits are 2ᵏ's exponent
_TILE: Final = 49152  # entries of X that stay in the second-level cache between the two passes of a block


def _compile(**options: Any) -> Callable[[F], F]:
    """``jit`` of this package with more options; divisions follow IEEE, which lets loops be vectorised."""

    def decorate(function: F) -> F:
        try:
            return cast(F, numba.njit(cache=True, error_model="numpy", **options)(function))
        except RuntimeError:
            return cast(F, numba.njit(error_model="numpy", **options)(function))

    return decorate


_inline = _compile(fastmath={"contract"}, forceinline=True)
_fast = _compile(fastmath={"contract", "reassoc", "nsz"})


@_inline
def _term(tag: Tag, shape: Shape, z: float, x: float) -> float:
    """φ′(z)x, not yet clipped. The length of ``tag`` is the loss: a constant for the compiler, one copy per loss."""
    low, high, slope = shape
    if len(tag) == 0:
        v = z * x
        return v if v == v else 0.0
    if len(tag) == 3:
        z = (z - 1.0) * slope
    z = z if z < high else high
    z = z if z > low else low
    if len(tag) != 2:
        return z * x
    # eᶻ = 2ᵏ(a + b)/(a − b), |z − k log 2| ≤ ½ log 2: the rational function errs by 9.3e-11 relative at most.
    t = z * 1.4426950408889634 + _ROUND
    r = z - (t - _ROUND) * 0.6931471805599453
    s = r * r
    a = s * 12.015016962518798 + 120.18038419842806
    b = (s + 60.090191986294336) * r
    power = np.int64(np.float64(t).view(np.int64) << 52).view(np.float64)
    minus = b - a
    return (minus * x) / ((a + b) * power - minus)


@_inline
def _product(a: float, x: float, h: float) -> float:
    """In this order, which no reassociation may change: x·h first."""
    return a * (x * h)


@_inline
def _clipped(v: float, c: float) -> float:
    """Written so that each line is one instruction; a NaN gives c."""
    v = v if v < c else c
    return v if v > -c else -c


@_fast
def _derivative(tag: Tag, shape: Shape, z: Array, out: Array) -> None:
    for i in range(z.size):
        out[i] = _term(tag, shape, z[i], 1.0)


@_inline
def _moved(w: float, noisy: float, step: float, l1: float, l2: float, low: float, high: float) -> float:
    """The proximal step; a step that is not a number (0·∞, after noise: public) leaves w where it is."""
    v = w - step * noisy
    v = (v - max(-l1, min(l1, v))) / (1.0 + l2)
    return max(low, -LIMIT, min(high, LIMIT, v)) if v == v else w


@_fast
def _sum(tag: Tag, shape: Shape, z: Array, x: Matrix, c: float) -> float:
    total = 0.0
    for i in range(z.size):
        total += _clipped(_term(tag, shape, z[i], x[i]), c)
    return total


@_fast
def _add(z: Array, delta: float, x: Matrix) -> None:
    for i in range(z.size):
        z[i] += delta * x[i]


@_fast
def _sweep(
    tag: Tag, shape: Shape, XT: Matrix, z: Array, w: Array, order: Pointers, noise: Array, rules: Rules, total: Array
) -> None:
    """Each pass over the records finishes the previous update of z and sums the gradient of the next coordinate."""
    clip, step, l1, l2, low, high = rules
    K = order.size
    if K == 0:
        return
    for j in range(w.size):
        total[j] += K * w[j]
    delta, previous = 0.0, XT[order[0]]
    for k in range(K):
        j = order[k]
        x, c, g = XT[j], clip[j], 0.0
        for i in range(z.size):
            zi = z[i] + delta * previous[i]
            z[i] = zi
            g += _clipped(_term(tag, shape, zi, x[i]), c)
        new = _moved(w[j], g + noise[k], step[j], l1[j], l2[j], low[j], high[j])
        delta, previous = new - w[j], x
        w[j] = new
        total[j] += (K - k) * delta
    _add(z, delta, previous)


@_fast
def _sum_sparse(tag: Tag, shape: Shape, data: Array, rows: Indices, z: Array, c: float) -> float:
    total = 0.0
    for i in range(data.size):
        total += _clipped(_term(tag, shape, z[rows[i]], data[i]), c)
    return total


@_fast
def _add_sparse(z: Array, delta: float, data: Array, rows: Indices) -> None:
    for i in range(data.size):
        z[rows[i]] += delta * data[i]


@_fast
def _sweep_sparse(
    tag: Tag, shape: Shape, X: Columns, z: Array, w: Array, order: Pointers, noise: Array, rules: Rules, total: Array
) -> None:
    data, indices, indptr = X
    clip, step, l1, l2, low, high = rules
    K = order.size
    for j in range(w.size):
        total[j] += K * w[j]
    for k in range(K):
        j = order[k]
        values, rows = data[indptr[j] : indptr[j + 1]], indices[indptr[j] : indptr[j + 1]]
        g = _sum_sparse(tag, shape, values, rows, z, clip[j])
        new = _moved(w[j], g + noise[k], step[j], l1[j], l2[j], low[j], high[j])
        delta = new - w[j]
        w[j] = new
        total[j] += (K - k) * delta
        _add_sparse(z, delta, values, rows)


@_inline
def _scale(d: float, square: float) -> float:
    """φ′ᵢ times min(1, 1/‖uᵢ‖), for uᵢ the contribution in units of the bound; 0 where its square is not finite."""
    s = d if square <= 1.0 else d / np.sqrt(square)
    return s if square < np.inf else 0.0


@_fast
def _block_sum(
    tag: Tag, shape: Shape, XT: Matrix, z: Array, block: Pointers, whiten: Array, bound: float, out: Array
) -> None:
    """Tiles of rows: the second pass over a tile (the sum) finds in cache what the first (the norms) has read."""
    n, m = z.size, block.size
    size = max(64, min(1024, _TILE // max(m, 1)))
    factor, square = np.empty(size), np.empty(size)
    for start in range(0, n, size):
        tile = z[start : start + size]
        rows = tile.size
        for i in range(rows):
            factor[i] = _term(tag, shape, tile[i], 1.0)
            square[i] = 0.0
        for k in range(m):
            x, h = XT[block[k]][start : start + size], whiten[k] / bound
            for i in range(rows):
                u = _product(factor[i], x[i], h)
                square[i] += u * u
        for i in range(rows):
            factor[i] = _scale(factor[i], square[i])
        for k in range(m):
            x, h, total = XT[block[k]][start : start + size], whiten[k] / bound, 0.0
            for i in range(rows):
                u = _product(factor[i], x[i], h)
                total += u if u == u else 0.0
            out[k] += bound * total


@_fast
def _block_sum_sparse(
    tag: Tag, shape: Shape, X: Columns, z: Array, block: Pointers, whiten: Array, bound: float, out: Array
) -> None:
    data, indices, indptr = X
    factor, square = np.empty(z.size), np.zeros(z.size)
    for i in range(z.size):
        factor[i] = _term(tag, shape, z[i], 1.0)
    for k in range(block.size):
        h = whiten[k] / bound
        for e in range(indptr[block[k]], indptr[block[k] + 1]):
            u = _product(factor[indices[e]], data[e], h)
            square[indices[e]] += u * u
    for i in range(z.size):
        factor[i] = _scale(factor[i], square[i])
    for k in range(block.size):
        h, total = whiten[k] / bound, 0.0
        for e in range(indptr[block[k]], indptr[block[k] + 1]):
            u = _product(factor[indices[e]], data[e], h)
            total += u if u == u else 0.0
        out[k] = bound * total


def _kind(loss: int, parameter: float) -> tuple[Tag, Shape]:
    """The tag that selects the compiled copy, and (low, high, slope) of the derivative."""
    low, high = ((0.0, 0.0), (-parameter, parameter), (-_SATURATION, _SATURATION), (-1.0, 0.0))[loss]
    return (0,) * loss, (float(low), float(high), 1.0 / parameter if loss == SMOOTHED_HINGE else 0.0)


def _columns(X: Matrix) -> Matrix:
    """Columns as contiguous rows."""
    if not X.flags.f_contiguous:
        raise ValueError("X must be in Fortran order: every column contiguous")
    return X.T


def derivative(z: Array, loss: int, parameter: float) -> Array:
    """φ′ of every entry of z."""
    out = np.empty(z.size)
    _derivative(*_kind(loss, parameter), z, out)
    return out


def sweep_dense(
    X: Matrix,
    z: Array,
    w: Array,
    order: Pointers,
    noise: Array,
    clip: Array,
    step: Array,
    step_l1: Array,
    step_l2: Array,
    low: Array,
    high: Array,
    loss: int,
    parameter: float,
    total: Array,
) -> None:
    """One update for each entry of ``order``; moves w and z, adds to ``total`` the sum of w over all updates."""
    rules = (clip, step, step_l1, step_l2, low, high)
    _sweep(*_kind(loss, parameter), _columns(X), z, w, order, noise, rules, total)


def sweep_sparse(
    data: Array,
    indices: Indices,
    indptr: Pointers,
    n: int,
    z: Array,
    w: Array,
    order: Pointers,
    noise: Array,
    clip: Array,
    step: Array,
    step_l1: Array,
    step_l2: Array,
    low: Array,
    high: Array,
    loss: int,
    parameter: float,
    total: Array,
) -> None:
    """As ``sweep_dense``; touches only the non-zeros of a column, and an empty column is noised all the same."""
    rules = (clip, step, step_l1, step_l2, low, high)
    _sweep_sparse(*_kind(loss, parameter), (data, indices, indptr), z[:n], w, order, noise, rules, total)


def coordinate_sum_dense(X: Matrix, z: Array, j: int, clip_j: float, loss: int, parameter: float) -> float:
    """Σᵢ clip(φ′(zᵢ)xᵢⱼ, ±clip_j)."""
    return _sum(*_kind(loss, parameter), z, _columns(X)[j], float(clip_j))


def coordinate_sum_sparse(
    data: Array, indices: Indices, indptr: Pointers, z: Array, j: int, clip_j: float, loss: int, parameter: float
) -> float:
    """Σᵢ clip(φ′(zᵢ)xᵢⱼ, ±clip_j) over the non-zeros of column j."""
    column = slice(indptr[j], indptr[j + 1])
    return _sum_sparse(*_kind(loss, parameter), data[column], indices[column], z, float(clip_j))


def _step(w: Array, j: int, noisy: float, settings: tuple[Array, Array, Array, Array, Array]) -> float:
    """Move w_j; its change."""
    old = float(w[j])
    w[j] = _moved(old, float(noisy), *(float(values[j]) for values in settings))
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
    _add(z, delta, _columns(X)[j])
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
    _add_sparse(z, delta, data[column], indices[column])
    return delta


def block_sum_dense(
    X: Matrix, z: Array, block: Pointers, whiten: Array, bound: float, loss: int, parameter: float
) -> Array:
    """Σᵢ vᵢ min(1, bound/‖vᵢ‖), vᵢⱼ = φ′(zᵢ)xᵢⱼ whitenⱼ for j in the block; nothing where ‖vᵢ‖/bound exceeds 1e154."""
    out = np.zeros(block.size)
    _block_sum(*_kind(loss, parameter), _columns(X), z, block, whiten, float(bound), out)
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
) -> Array:
    """As ``block_sum_dense``; two vectors of length n are its scratch."""
    out = np.zeros(block.size)
    _block_sum_sparse(*_kind(loss, parameter), (data, indices, indptr), z[:n], block, whiten, float(bound), out)
    return out
