"""First and second moments, second-moment matrices and mean squares of bounded features."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit import _validate
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.kernels.lattice import FLUSH, moment_sums, square_sums, truncated
from tacit.kernels.rows import column_squares
from tacit.records import Rows
from tacit.release.query import (
    MAX_SCALE,
    Example,
    Grid,
    Members,
    Query,
    Sums,
    exponent,
    reads_everybody,
    register,
    root_above,
    roots,
)

__all__ = ["GramSum", "MomentSum", "SquareSum", "symmetric", "upper_triangle"]

Array = NDArray[np.float64]


@register("moments")
@dataclass(frozen=True, eq=False)
class MomentSum(Query):
    """Σ (v₁, …, v_p, v₁², …, v_p²) with v_j = (u_j − centre_j)/half_j ∈ [−1, 1], for columns u_j in [low_j, high_j].

    A contribution has norm at most √2 per column. Two of them differ, in one column, by (v − w)² + (v² − w²)²,
    whose derivative in w is −2(v − w)(1 + 2vw + 2w²). The last factor is positive for v² < 2, so the distance grows as
    w moves away from v and is largest at opposite ends, where the squares agree: 4 per column. Centred this way,
    second moments cost nothing beside first ones. A column whose bounds coincide contributes zeros.

    On a grid a row that counts w is the integers a = ⌊2ᵇ√w⌋ and b_j = a·v_j, to the nearest, so |b_j| ≤ a, and it adds
    a·b_j and b_j² in units of 4⁻ᵇ: w times (v′, v′²) for a v′ ∈ [−1, 1]. A person's rows, whose w add up to at most 1,
    give a point of the convex hull of those and 0, which is as wide (an end and 0 are √2 apart in each column).

    Attributes:
        low: smallest values of the columns; values outside are clipped.
        high: largest values.
        with_target: whether the target is the last column.
    """

    low: Array
    high: Array
    with_target: bool = False

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            object.__setattr__(self, name, _validate.real_array(name, getattr(self, name)))
        if not (self.low <= self.high).all() or not np.isfinite(self.high - self.low).all():
            raise InvalidInput("moments need finite bounds with low ≤ high")

    @cached_property
    def centre(self) -> Array:
        """What becomes 0."""
        return np.asarray(self.low / 2 + self.high / 2)

    @cached_property
    def half(self) -> Array:
        """What becomes 1; 0 for columns whose bounds coincide."""
        return np.asarray(self.high / 2 - self.low / 2)

    @property
    def bound(self) -> float:  # type: ignore[override]
        """√(2 · columns that vary)."""
        return root_above(max(2 * int((self.half > 0).sum()), 1e-300))

    @property
    def diameter(self) -> float:
        """From one end to the other, in every column: √2 times the bound, not twice."""
        return root_above(max(4 * int((self.half > 0).sum()), 1e-300))

    def grid(self, sigma: float) -> Grid:
        """That of products of two integers of b bits.

        Args:
            sigma: of the noise.

        Returns:
            The grid.

        Raises:
            MechanismMismatch: if nothing of a moment would be left.
        """
        found = Grid.of_squares(sigma, 1.0)
        if exponent(sigma) - exponent(found.unit) > MAX_SCALE:
            raise MechanismMismatch(f"noise of deviation {sigma:g} hides any moment of this table: raise epsilon")
        return found

    def _columns(self, rows: Rows) -> Any:
        """The columns within their bounds, dense or sparse."""
        X = rows.X
        if self.with_target:
            y = rows.y[:, None]
            X = sparse.hstack([X, y], format="csc") if sparse.issparse(X) else np.column_stack([X, y])
        if not sparse.issparse(X):
            return np.clip(X, self.low, self.high)
        if ((self.low > 0) | (self.high < 0)).any():
            return np.clip(X.toarray(), self.low, self.high)  # zeros that are not stored lie outside of the bounds
        X = sparse.csc_array(X, copy=True)
        X.sum_duplicates()  # an entry stored in parts would be clipped part by part
        column = np.repeat(np.arange(X.shape[1]), np.diff(X.indptr))
        X.data = np.clip(X.data, self.low[column], self.high[column])
        return X

    def _centred(self, u: Array) -> Array:
        return np.asarray(np.clip((u - self.centre) / np.where(self.half > 0, self.half, np.inf), -1.0, 1.0))

    def contributions(self, rows: Rows, state: Array) -> Array:
        """(v, v²) of each record."""
        X = self._columns(rows)
        v = self._centred(X.toarray() if sparse.issparse(X) else X)
        return np.broadcast_to(np.hstack([v, v * v]), (len(state), len(rows), 2 * len(self.low)))

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """Both moments by matrix products; a sparse table stays sparse."""
        weights = members.astype(np.float64)
        if grid is not None:
            return np.stack([self._integers(rows, truncated(roots(row), 2.0**-grid.bits)) for row in members])
        X = self._columns(rows)
        if not sparse.issparse(X):
            v = self._centred(X)
            return np.hstack([weights @ v, weights @ np.square(v)])
        scale = np.where(self.half > 0, self.half, np.inf)
        scaled = X @ sparse.diags_array(1 / scale)
        first, second = np.asarray(weights @ scaled), np.asarray(weights @ scaled.power(2))
        count, c = weights.sum(axis=1, keepdims=True), self.centre / scale
        return np.hstack([first - count * c, second - 2 * c * first + count * c * c])

    def _integers(self, rows: Rows, a: Array) -> NDArray[np.int64]:
        """The same in units of the grid; an absent entry of a sparse table contributes what a zero does."""
        half = np.where(self.half > 0, self.half, np.inf)
        low, high, centre = self.low, self.high, self.centre
        if not sparse.issparse(rows.X):
            p = rows.X.shape[1]
            sums = [moment_sums(rows.X, low[:p], high[:p], centre[:p], half[:p], a)]
            if self.with_target:
                sums.append(moment_sums(rows.y[:, None], low[p:], high[p:], centre[p:], half[p:], a))
            return np.hstack([part.reshape(2, -1) for part in sums]).ravel()
        X = self._columns(rows)
        if not sparse.issparse(X):
            return moment_sums(X, low, high, centre, half, a)
        column, zero = np.repeat(np.arange(X.shape[1]), np.diff(X.indptr)), np.clip(-centre / half, -1.0, 1.0)
        own = a[X.indices]
        stored = np.clip((X.data - centre[column]) / half[column], -1.0, 1.0)
        rest = _products(own, stored) - _products(own, zero[column])
        return np.asarray((np.stack([_by_column(part, X.indptr) for part in rest]) + _of_all(a, zero)).ravel())

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """One column of each kind, at an end more often than not; dense or sparse; with a target or without."""
        low, high = np.array([-1.0, 0.0, 0.0]), np.array([1.0, 1.0, 0.0])
        here = rng.choice([-2.0, 2.0, 0.3], size=(records, 3))
        there = here.copy()
        there[0] = rng.choice([-2.0, 2.0, 0.3], size=3)
        if rng.random() < 0.3:
            order = [1, 2, 0]
            one, two = (Rows(table[:, 1:], table[:, 0]) for table in (here, there))
            return Example(cls(low[order], high[order], True), one, two, np.zeros((1, 6)))
        form = _in_parts if rng.random() < 0.5 else np.asarray
        return Example(cls(low, high), Rows(form(here)), Rows(form(there)), np.zeros((1, 6)))


def _by_column(values: NDArray[np.int64], starts: NDArray[Any]) -> NDArray[np.int64]:
    """Sums of consecutive integers."""
    until = np.concatenate([[0], np.cumsum(values)])
    return np.asarray(until[starts[1:]] - until[starts[:-1]])


def _products(a: Array, v: Array) -> NDArray[np.int64]:
    """a·b and b², b = a·v to the nearest: (2, …)."""
    b = np.rint(v * a)
    return np.stack([a * b, b * b]).astype(np.int64)


def _of_all(a: Array, v: Array) -> NDArray[np.int64]:
    """Σ over rows of ``_products`` of numbers that all rows share: rows that count alike are worked out once."""
    out = np.zeros((2, len(v)), np.int64)
    for own, count in zip(*np.unique(a, return_counts=True), strict=True):
        out += count * _products(own, v)
    return out


def _in_parts(dense: Array) -> Any:
    """A sparse matrix that stores every entry as two halves, as some libraries hand them out."""
    n, p = dense.shape
    rows, columns = np.repeat(np.arange(n), 2 * p), np.tile(np.repeat(np.arange(p), 2), n)
    return sparse.coo_array((np.repeat(dense.ravel(), 2) / 2, (rows, columns)), shape=(n, p))


def upper_triangle(G: Array) -> Array:
    """The entries on and above the diagonal, those off it times √2: an isometry from the Frobenius norm."""
    rows, columns = np.triu_indices(G.shape[-1])
    return np.asarray(G[..., rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2)))


def symmetric(flat: Array, size: int) -> Array:
    """The inverse of ``upper_triangle``: noise of deviation σ on the flat vector becomes σ/√2 off the diagonal."""
    rows, columns = np.triu_indices(size)
    G = np.zeros((size, size))
    G[rows, columns] = flat / np.where(rows == columns, 1.0, np.sqrt(2))
    return np.asarray(G + np.triu(G, 1).T)


def _triangle_scales(size: int) -> Array:
    rows, columns = np.triu_indices(size)
    return np.where(rows == columns, 1.0, np.sqrt(2))


def integer_gram(Z: Array) -> NDArray[np.int64]:
    """Σ zzᵀ of integer rows on and above the diagonal, flat and unscaled.

    Args:
        Z: (records, size) integers, as float64.

    Returns:
        The entries.
    """
    out = integer_product(Z, Z).reshape(Z.shape[1], Z.shape[1])
    return out[np.triu_indices(len(out))]


def integer_product(Z: Array, Y: Array) -> NDArray[np.int64]:
    """Σ zyᵀ of integer rows, flat.

    Args:
        Z: (records, size) integers, as float64.
        Y: (records, other size); no product of two entries exceeds 2⁴⁰.

    Returns:
        All entries.
    """
    out = np.zeros((Z.shape[1], Y.shape[1]), np.int64)
    for first in range(0, len(Z), FLUSH):
        part = slice(first, first + FLUSH)
        out += (Z[part].T @ Y[part]).astype(np.int64)
    return out.ravel()


@register("gram")
@dataclass(frozen=True)
class GramSum(Query):
    """Σ zzᵀ over rows scaled down to norm R, as a flat upper triangle.

    A contribution has Frobenius norm ‖z‖² ≤ R². Two of them are at most √2·R² apart: ‖zzᵀ − vvᵀ‖² = ‖z‖⁴ + ‖v‖⁴ −
    2(zᵀv)² ≤ 2R⁴, reached by orthogonal rows of full norm. (In one dimension R² would do.) On a grid z is rounded
    toward zero, which shortens it, and the rest is exact; a row that counts w is √w·z before it is rounded, so that a
    person's rows give a positive semidefinite matrix of trace at most R²: no two of these are further apart.

    Attributes:
        norm: R.
        with_target: whether z = (x, y) instead of x.
    """

    norm: float
    with_target: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", _validate.positive(norm=self.norm))

    @property
    def bound(self) -> float:  # type: ignore[override]
        """R²."""
        return self.norm**2

    @property
    def diameter(self) -> float:
        """√2·R²."""
        return float(np.sqrt(2)) * self.bound

    def grid(self, sigma: float) -> Grid:
        """Products of two entries of a row, each at most R."""
        return Grid.of_squares(sigma, self.norm)

    def scales(self, size: int) -> Array:
        """√2 off the diagonal."""
        return _triangle_scales(round((math.sqrt(8 * size + 1) - 1) / 2))

    def _rows(self, rows: Rows) -> Array:
        """Rows within norm R."""
        Z = rows.design.dense()
        if self.with_target:
            Z = np.column_stack([Z, rows.y])
        inside = self.norm * (1 - (Z.shape[1] + 8) * 2.0**-50)
        norms = np.sqrt(column_squares(np.ascontiguousarray(Z.T)))
        return np.asarray(Z * (inside / np.maximum(norms, inside))[:, None])

    def contributions(self, rows: Rows, state: Array) -> Array:
        """The upper triangles, whatever the state."""
        Z = self._rows(rows)
        flat = upper_triangle(Z[:, :, None] * Z[:, None, :])
        return np.broadcast_to(flat, (len(state), *flat.shape))

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """One matrix product per replica."""
        Z, full = self._rows(rows), reads_everybody(members)
        each = members[:1] if full else members
        if grid is None:
            out = upper_triangle(np.stack([Z.T @ (Z if full else Z * row[:, None]) for row in each]))
        else:
            unit = 2.0 ** (exponent(self.norm) - grid.bits)
            weighted = (Z if full else Z * roots(row)[:, None] for row in each)
            out = np.stack([integer_gram(truncated(one, unit)) for one in weighted])
        return np.repeat(out, len(members), axis=0) if full else out

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Long and short vectors; the neighbour's is often orthogonal."""
        here = rng.normal(size=(records, 3)) * rng.choice([0.1, 30.0], size=(records, 1))
        there = here.copy()
        here[0] = 5 * np.eye(3)[rng.integers(3)]
        there[0] = 5 * np.eye(3)[rng.integers(3)] if rng.random() < 0.7 else rng.normal(size=3)
        if rng.random() < 0.5:
            one, two = (Rows(table[:, :2], table[:, 2]) for table in (here, there))
            return Example(cls(1.5, True), one, two, np.zeros((1, 1)))
        return Example(cls(1.5), Rows(here), Rows(there), np.zeros((1, 1)))


@register("squares")
@dataclass(frozen=True, eq=False)
class SquareSum(Query):
    """Σ ((x₁/b₁)², …, (x_p/b_p)²), each square clipped to 1: of norm at most √p, and no further than that apart.

    Attributes:
        reach: b_j > 0.
    """

    reach: Array

    @property
    def bound(self) -> float:  # type: ignore[override]
        """√p."""
        return root_above(len(self.reach))

    @property
    def diameter(self) -> float:
        """From 0 to 1 in every entry."""
        return self.bound

    def contributions(self, rows: Rows, state: Array) -> Array:
        """The squares, whatever the state."""
        squares = np.minimum(np.square(rows.design.dense() / self.reach), 1.0)
        return np.broadcast_to(squares, (len(state), *squares.shape))

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """One pass over the columns, without a copy."""
        design, weights = rows.design, 1 / np.asarray(self.reach, np.float64)
        if grid is not None:
            return self._integers(rows, members, grid.unit)
        if design.sparse or not reads_everybody(members):
            squares = design.scaled(weights).squared()
            squares = squares.minimum(1.0) if design.sparse else np.minimum(squares, 1.0)
            return np.asarray(members.astype(np.float64) @ squares, np.float64)
        sums, scratch = np.empty(len(weights)), np.empty(len(rows))
        for j, column in enumerate(design.matrix.T):
            np.multiply(column, weights[j], out=scratch)
            np.minimum(np.square(scratch, out=scratch), 1.0, out=scratch)
            sums[j] = scratch.sum()
        return np.tile(sums, (len(members), 1))

    def _integers(self, rows: Rows, members: Members, unit: float) -> NDArray[np.int64]:
        ratio = 1 / np.asarray(self.reach, np.float64)
        if not rows.design.sparse:
            return np.stack([square_sums(rows.X, ratio, row.astype(np.float64), unit) for row in members])
        squares = rows.design.scaled(ratio).squared()
        inside = np.minimum(squares.data, 1.0)
        weighted = (truncated(inside * row[squares.indices], unit).astype(np.int64) for row in members)
        return np.stack([_by_column(one, squares.indptr) for one in weighted])

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Values inside and beyond the bounds, dense or sparse."""
        here = rng.normal(size=(records, 2)) * 3
        there = here.copy()
        here[0], there[0] = rng.choice([0.0, 9.0, 1.0], size=2), rng.choice([0.0, 9.0, 1.0], size=2)
        form = sparse.csc_array if rng.random() < 0.5 else np.asarray
        return Example(cls(np.array([2.0, 0.5])), Rows(form(here)), Rows(form(there)), np.zeros((1, 1)))
