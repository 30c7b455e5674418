"""Clipped coordinate and block gradients of generalised linear models, and whole sweeps of noisy coordinate descent.

``tacit.kernels.coordinate`` calls these loops, with X by columns, dense or sparse. z = Xw − offset, in float64, is kept
up to date by every function that moves w. The losses, by code, with their derivative φ′(z):

    SQUARED         z
    HUBER           z clipped to ±parameter
    LOGISTIC        −1/(1 + eᶻ); labels are folded into X. Relative error below 1e-10 for |z| ≤ 700, where it saturates
    SMOOTHED_HINGE  (z − 1)/parameter clipped to [−1, 0]

One update of coordinate j: G = Σᵢ clip(φ′(zᵢ)xᵢⱼ, ±clipⱼ), v = wⱼ − stepⱼ(G + noise), and wⱼ becomes
soft(v, step_l1ⱼ)/(1 + step_l2ⱼ) brought into [lowⱼ, highⱼ] and into the public box |wⱼ| ≤ ``LIMIT``.

What bounds a record's influence when a run diverges: ``LIMIT`` keeps w finite, hence z finite as long as |X| ≤ 1e100;
and whatever z holds, ±∞ and NaN included, no term leaves [−clip, clip]. A NaN term of the squared loss counts 0, the
other derivatives are bounded and saturate (NaN counts as the upper end of z).

On a grid of unit g = 2^e, 1/g ≤ 2³⁹, a term is the integer v/(clipⱼ·g), brought into ±1/g and rounded toward zero; sums
are int64 (``FLUSH`` terms add up exactly in float64), and G + noise above is clipⱼ·g·(q + R), R integer noise. A term
of a record that counts less than 1 (a row of a person) is multiplied by its weight before it is rounded.

The compiler may reorder sums and do nothing else: it fuses no operation that is not written as ``fma``, and assumes
away no NaN. So zᵢ and the term of record i are functions of its own entries and of released numbers to the bit,
wherever the record stands: in the vectorised body of a loop, in its remainder, or in a sparse column.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import fma
from tacit.kernels.lattice import FLUSH

__all__ = [
    "LIMIT",
    "SATURATION",
    "add",
    "add_sparse",
    "block_sum",
    "block_sum_sparse",
    "column_sum",
    "column_sum_sparse",
    "derivatives",
    "moved",
    "sweep",
    "sweep_sparse",
]

LIMIT: Final = 1e150

Array = NDArray[np.float64]
Matrix = NDArray[np.float64] | NDArray[np.float32]
Indices = NDArray[np.int32]
Pointers = NDArray[np.int64]
Columns = tuple[Array, Indices, Pointers]
Rules = tuple[Array, Array, Array, Array, Array, Array]  # clip, step, step_l1, step_l2, low, high
Noise = NDArray[np.float64] | NDArray[np.int64]  # integers on a grid
Tag = tuple[int, ...]
Shape = tuple[float, float, float]
Lattice = tuple[float, ...]  # (1.0,) in floating point, (g, 1/g) on a grid: its length is known to the compiler
Weights = NDArray[np.float64] | None  # what each record counts; None, which compiles a copy of its own, for 1
F = TypeVar("F", bound=Callable[..., Any])

SATURATION: Final = 700.0
_LARGEST: Final = 1e300  # of a factor: an infinite one would turn 0 into NaN
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


_inline = _compile(forceinline=True, fastmath=False)  # said aloud: else it inherits the flags of its caller
_fast = _compile(fastmath={"reassoc", "nsz"})
_loop = _compile(fastmath={"reassoc", "nsz"}, forceinline=True)  # short columns: a call costs as much as 200 terms


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
    t = fma(z, 1.4426950408889634, _ROUND)
    r = fma(t - _ROUND, -0.6931471805599453, z)
    s = r * r
    a = fma(s, 12.015016962518798, 120.18038419842806)
    b = (s + 60.090191986294336) * r
    power = np.int64(np.float64(t).view(np.int64) << 52).view(np.float64)
    minus = b - a
    return (minus * x) / fma(a + b, power, -minus)


@_inline
def _fused(a: float, b: float, c: float) -> float:
    """a·b + c, rounded once, and without the flags of the loop around it."""
    return fma(np.float64(a), np.float64(b), np.float64(c))


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
def derivatives(tag: Tag, shape: Shape, z: Array, out: Array) -> None:
    """φ′ of every entry of z."""
    for i in range(z.size):
        out[i] = _term(tag, shape, z[i], 1.0)


@_inline
def moved(w: float, noisy: float, step: float, l1: float, l2: float, low: float, high: float) -> float:
    """The proximal step; a step that is not a number (0·∞, after noise: public) leaves w where it is."""
    v = fma(-step, noisy, w)
    v = (v - max(-l1, min(l1, v))) / (1.0 + l2)
    return max(low, -LIMIT, min(high, LIMIT, v)) if v == v else w


@_inline
def _limits(grid: Lattice, clip: float) -> tuple[float, float]:
    """What a term is multiplied by, and the bound of the product: an integer on a grid, so no rounding exceeds it."""
    return (1.0, clip) if len(grid) == 1 else (min(grid[-1] / clip, _LARGEST), grid[-1])


@_inline
def _counted(v: float, weights: Weights, i: int) -> float:
    return v if weights is None else v * weights[i]


@_inline
def _bounded(grid: Lattice, v: float, scale: float, limit: float, weights: Weights, i: int) -> float:
    u = _counted(_clipped(v if len(grid) == 1 else v * scale, limit), weights, i)
    return u if len(grid) == 1 else np.trunc(u)


@_inline
def _gradient(grid: Lattice, noisy: float, clip: float) -> float:
    """A noisy sum in units of the gradient."""
    return np.float64(noisy) if len(grid) == 1 else clip * (grid[0] * np.float64(noisy))


@_inline
def _cut(weights: Weights, first: int, last: int) -> Weights:
    return None if weights is None else weights[first:last]


@_inline
def _rows_at_once(grid: Lattice, n: int) -> int:  # how many terms a float adds up: all, or as many as are exact
    return max(n, 1) if len(grid) == 1 else FLUSH


@_loop
def _part(
    tag: Tag, shape: Shape, grid: Lattice, weights: Weights, z: Array, x: Matrix, scale: float, limit: float
) -> float:
    total = 0.0
    for i in range(z.size):
        total += _bounded(grid, _term(tag, shape, z[i], x[i]), scale, limit, weights, i)
    return total


@_fast
def column_sum(
    tag: Tag,
    shape: Shape,
    grid: Lattice,
    weights: Weights,
    z: Array,
    x: Matrix,
    clip: float,
    noise: Noise,
    k: int,
) -> Any:
    """The noise of release k and the sum that it hides, in the type of the noise."""
    scale, limit = _limits(grid, clip)
    total, size = noise[k], _rows_at_once(grid, z.size)
    for first in range(0, z.size, size):
        last = min(first + size, z.size)
        own = _cut(weights, first, last)
        total += noise.dtype.type(_part(tag, shape, grid, own, z[first:last], x[first:last], scale, limit))
    return total


@_fast
def add(z: Array, delta: float, x: Matrix) -> None:
    """Add delta·x to z."""
    for i in range(z.size):
        z[i] = _fused(delta, x[i], z[i])


@_loop
def _moving_part(
    tag: Tag,
    shape: Shape,
    grid: Lattice,
    weights: Weights,
    z: Array,
    delta: float,
    previous: Matrix,
    x: Matrix,
    scale: float,
    limit: float,
) -> float:
    total = 0.0
    for i in range(z.size):
        zi = _fused(delta, previous[i], z[i])
        z[i] = zi
        total += _bounded(grid, _term(tag, shape, zi, x[i]), scale, limit, weights, i)
    return total


@_fast
def sweep(
    tag: Tag,
    shape: Shape,
    grid: Lattice,
    weights: Weights,
    XT: Matrix,
    z: Array,
    w: Array,
    order: Pointers,
    noise: Noise,
    rules: Rules,
    total: Array,
) -> None:
    """Each pass over the records finishes the previous update of z and sums the gradient of the next coordinate."""
    clip, step, l1, l2, low, high = rules
    K, size = order.size, _rows_at_once(grid, z.size)
    if K == 0:
        return
    for j in range(w.size):
        total[j] += K * w[j]
    delta, previous = 0.0, XT[order[0]]
    for k in range(K):
        j = order[k]
        x, (scale, limit), q = XT[j], _limits(grid, clip[j]), noise[k]
        for first in range(0, z.size, size):
            last = min(first + size, z.size)
            parts = z[first:last], delta, previous[first:last], x[first:last]
            own = _cut(weights, first, last)
            q += noise.dtype.type(_moving_part(tag, shape, grid, own, *parts, scale, limit))
        new = moved(w[j], _gradient(grid, q, clip[j]), step[j], l1[j], l2[j], low[j], high[j])
        delta, previous = new - w[j], x
        w[j] = new
        total[j] += (K - k) * delta
    add(z, delta, previous)


@_loop
def _part_sparse(
    tag: Tag,
    shape: Shape,
    grid: Lattice,
    weights: Weights,
    data: Array,
    rows: Indices,
    z: Array,
    scale: float,
    limit: float,
) -> float:
    total = 0.0
    for i in range(data.size):
        total += _bounded(grid, _term(tag, shape, z[rows[i]], data[i]), scale, limit, weights, rows[i])
    return total


@_loop
def column_sum_sparse(
    tag: Tag,
    shape: Shape,
    grid: Lattice,
    weights: Weights,
    data: Array,
    rows: Indices,
    z: Array,
    clip: float,
    noise: Noise,
    k: int,
) -> Any:
    """As ``column_sum``, over the non-zeros of a column."""
    scale, limit = _limits(grid, clip)
    total, size = noise[k], _rows_at_once(grid, data.size)
    for first in range(0, data.size, size):
        last = min(first + size, data.size)
        column = data[first:last], rows[first:last]
        total += noise.dtype.type(_part_sparse(tag, shape, grid, weights, *column, z, scale, limit))
    return total


@_loop
def add_sparse(z: Array, delta: float, data: Array, rows: Indices) -> None:
    """Add delta·x to z at the non-zeros of a column."""
    for i in range(data.size):
        z[rows[i]] = _fused(delta, data[i], z[rows[i]])


@_fast
def sweep_sparse(
    tag: Tag,
    shape: Shape,
    grid: Lattice,
    weights: Weights,
    X: Columns,
    z: Array,
    w: Array,
    order: Pointers,
    noise: Noise,
    rules: Rules,
    total: Array,
) -> None:
    """As ``sweep``, over the non-zeros of a column."""
    data, indices, indptr = X
    (clip, step, l1, l2, low, high), K = rules, order.size
    for j in range(w.size):
        total[j] += K * w[j]
    for k in range(K):
        j = order[k]
        values, rows = data[indptr[j] : indptr[j + 1]], indices[indptr[j] : indptr[j + 1]]
        q = column_sum_sparse(tag, shape, grid, weights, values, rows, z, clip[j], noise, k)
        new = moved(w[j], _gradient(grid, q, clip[j]), step[j], l1[j], l2[j], low[j], high[j])
        delta = new - w[j]
        w[j] = new
        total[j] += (K - k) * delta
        add_sparse(z, delta, values, rows)


@_inline
def _scale(d: float, square: float) -> float:
    """φ′ᵢ times min(1, 1/‖uᵢ‖), for uᵢ the contribution in units of the bound; 0 where its square is not finite."""
    s = d if square <= 1.0 else d / np.sqrt(square)
    return s if square < np.inf else 0.0


@_inline
def _shrink(grid: Lattice, m: int) -> float:
    """1/g, less what rounding can hide of the norm of m entries; rounding toward zero then stays within 1/g."""
    # The square errs by m·2⁻⁵³ relative, root, quotient and products by 4·2⁻⁵³, a weight by 2⁻⁵³, and a quotient near
    # 1e-308, which has lost digits, by √m·2⁻⁵¹: together less than (m + 8)·2⁻⁵².
    return 1.0 if len(grid) == 1 else grid[-1] * (1.0 - (m + 8) * 2.0**-52)


@_inline
def _entry(grid: Lattice, u: float, shrink: float, weights: Weights, i: int) -> float:
    u = _counted(u if u == u else 0.0, weights, i)
    return u if len(grid) == 1 else np.trunc(u * shrink)


@_fast
def block_sum(
    tag: Tag,
    shape: Shape,
    grid: Lattice,
    weights: Weights,
    XT: Matrix,
    z: Array,
    block: Pointers,
    whiten: Array,
    bound: float,
    out: Noise,
) -> None:
    """Tiles of rows: the second pass over a tile (the sum) finds in cache what the first (the norms) has read."""
    n, m = z.size, block.size
    size = max(64, min(1024, _TILE // max(m, 1)))
    factor, square = np.empty(size), np.empty(size)
    shrink, back = _shrink(grid, m), bound if len(grid) == 1 else 1.0
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
                square[i] = _fused(u, u, square[i])
        for i in range(rows):
            factor[i] = _scale(factor[i], square[i])
        own = _cut(weights, start, start + size)
        for k in range(m):
            x, h, total = XT[block[k]][start : start + size], whiten[k] / bound, 0.0
            for i in range(rows):
                total += _entry(grid, _product(factor[i], x[i], h), shrink, own, i)
            out[k] += out.dtype.type(back * total)


@_fast
def block_sum_sparse(
    tag: Tag,
    shape: Shape,
    grid: Lattice,
    weights: Weights,
    X: Columns,
    z: Array,
    block: Pointers,
    whiten: Array,
    bound: float,
    out: Noise,
) -> None:
    """As ``block_sum``, over the non-zeros."""
    data, indices, indptr = X
    factor, square = np.empty(z.size), np.zeros(z.size)
    shrink, back = _shrink(grid, block.size), bound if len(grid) == 1 else 1.0
    for i in range(z.size):
        factor[i] = _term(tag, shape, z[i], 1.0)
    for k in range(block.size):
        h = whiten[k] / bound
        for e in range(indptr[block[k]], indptr[block[k] + 1]):
            u = _product(factor[indices[e]], data[e], h)
            square[indices[e]] = _fused(u, u, square[indices[e]])
    for i in range(z.size):
        factor[i] = _scale(factor[i], square[i])
    for k in range(block.size):
        h, end, size = whiten[k] / bound, indptr[block[k] + 1], _rows_at_once(grid, z.size)
        for first in range(indptr[block[k]], end, size):
            total = 0.0
            for e in range(first, min(first + size, end)):
                total += _entry(grid, _product(factor[indices[e]], data[e], h), shrink, weights, indices[e])
            out[k] += out.dtype.type(back * total)
