"""What greedy coordinate descent asks: how far each coordinate would move, the gradient of one, and public units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit.errors import InvalidInput, MechanismMismatch
from tacit.kernels import columns as all_columns
from tacit.kernels import coordinate as kernel
from tacit.problem import ElasticNet, Huber, Logistic, Loss, Penalty, SmoothedHinge, Squared
from tacit.records import Design, Rows
from tacit.release.choice import Choice
from tacit.release.queries.coordinates import COMPILED
from tacit.release.queries.values import SMALLEST, Statistic, _AtCoefficients
from tacit.release.query import (
    UNIT_ROUNDOFF,
    Example,
    Grid,
    Members,
    Query,
    Sums,
    reads_everybody,
    register,
    zero_where_it_fails,
)

__all__ = ["ColumnSquare", "CoordinateGradient", "CoordinateScores", "LogSlope", "TypicalEntry"]

Array = NDArray[np.float64]


def _by_columns(rows: Rows) -> Design:
    """The features by columns, kept."""
    return rows.kept("by columns", lambda: rows.design)


def _slopes(rows: Rows, loss: Loss, w: Array) -> Array:
    """φ′ of every record at w: a function of its own entries, to the bit."""
    w = np.clip(np.nan_to_num(w, nan=0.0), -kernel.LIMIT, kernel.LIMIT)
    support = np.flatnonzero(w)
    f = _by_columns(rows).columns_dot(support, w[support]) if support.size else np.zeros(len(rows))
    code, parameter = COMPILED.get(type(loss)), float(getattr(loss, "parameter", 0.0))
    if code is None:
        return zero_where_it_fails(loss.derivative, f, rows.y)
    y = np.asarray(rows.y, np.float64)
    return kernel.derivative(f * y, code, parameter) * y if loss.labels else kernel.derivative(f - y, code, parameter)


def _stored(rows: Rows, design: Design) -> tuple[Array, NDArray[np.int32], NDArray[np.int64]]:
    return rows.kept(("columns", id(design)), design.columns)


def _column(rows: Rows, j: int) -> Array:
    """Column j, with its zeros."""
    design = _by_columns(rows)
    x = design.matrix[:, [j]]
    return np.asarray(x.toarray() if design.sparse else x, np.float64)[:, 0]


def _counts(members: Members) -> Array | None:
    return None if reads_everybody(members) else np.asarray(members[0], np.float64)


@dataclass(frozen=True, eq=False)
class CoordinateScores(Choice):
    """How far a proximal step would move each coordinate, in units of what one record can move it.

    With g_j = c_j·G_j/n the clipped mean gradient, G_j = Σ_i clip(φ′_i·x_ij/c_j, ±1),

        a_j = (n·M_j/c_j)·|prox_j(w_j − g_j/M_j) − w_j| = |P_j(W_j − G_j) − W_j|,   W_j = w_j·n·M_j/c_j,

    P_j the prox in units of W. For c_j = C√M_j this is n/C times √M_j·|prox_j(…) − w_j|: Gauss–Southwell's rule in the
    metric M. A prox is 1-Lipschitz, so a_j moves no further than G_j.

    Floats: W, and the thresholds and ends of P_j, are public numbers, whatever float64 makes of them; and P_j is a
    1-Lipschitz function of reals for all such numbers. Errors are those of G (its conversion, u·B, |G| ≤ B after a
    clamp), of W − G (u(|W| + B)), of two operations on it, each no longer, and of the last difference
    (u(2|W| + B + end)): less than 8u(|W| + B + end), ``end`` the larger of 0 and of the ends that exclude 0.

    Attributes:
        loss: φ.
        penalty: ψ; separable.
        clips: c_j > 0, public or released.
        smoothness: M_j > 0, public or released.
        divisor: n.
    """

    name: ClassVar[str] = "coordinate-scores"
    loss: Loss
    penalty: Penalty
    clips: Array
    smoothness: Array
    divisor: int
    bound: ClassVar[float] = 1.0  # type: ignore[misc]

    def __post_init__(self) -> None:
        positive = (self.clips > 0).all() and (self.smoothness > 0).all()
        if not (positive and np.isfinite(self.clips + self.smoothness).all()):
            raise InvalidInput("clips and smoothness of coordinates must be positive and finite")

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """G, all columns in one compiled call."""
        design, slopes, unit = (
            _by_columns(rows),
            _slopes(rows, self.loss, state[0]),
            None if grid is None else grid.unit,
        )
        # The kernel's loss is the squared one, whose slope is its argument.
        rest: tuple[Any, ...] = (slopes, np.ascontiguousarray(self.clips), kernel.SQUARED, 0.0, unit, _counts(members))
        if design.sparse:
            found = all_columns.column_sums_sparse(*_stored(rows, design), *rest)
        else:
            found = all_columns.column_sums_dense(design.matrix, *rest)
        return np.asarray(found / self.clips if grid is None else found)[None]

    def _public(self, w: Array) -> tuple[Array, Array, Array, Array, Array]:
        """W, the thresholds λ₁n/c, the divisors 1 + λ₂/M, and the ends of the box in units of W."""
        p = self.penalty
        assert isinstance(p, ElasticNet)
        unit = self.divisor * self.smoothness / self.clips
        return w * unit, p.l1 * self.divisor / self.clips, 1 + p.l2 / self.smoothness, p.low * unit, p.high * unit

    def scores(self, total: Array, state: Array) -> Array:
        """a, from G."""
        G = np.clip(total, -2.0 * self.divisor, 2.0 * self.divisor)
        if type(self.penalty) is not ElasticNet:  # a subclass may have a prox of its own
            steps = 1 / self.smoothness
            moved = self.penalty.prox(state - G * self.clips / self.divisor * steps, steps) - state
            return np.asarray(np.abs(moved) * self.divisor * self.smoothness / self.clips)
        W, l1, shrink, low, high = self._public(state)
        v = W - G
        v = (v - np.clip(v, -l1, l1)) / shrink
        return np.asarray(np.abs(np.minimum(np.maximum(v, low), high) - W))

    def rounding_error(self, state: Array) -> float:
        """8u(max|W| + 2n + end)."""
        if type(self.penalty) is not ElasticNet:
            raise MechanismMismatch(
                f"the rounding of {type(self.penalty).__name__} is not known, which an exact choice needs: use "
                "arithmetic='float'"
            )
        with np.errstate(all="ignore"):
            W, _, _, low, high = self._public(state)
            ends = np.maximum(np.maximum(low, -high), 0.0)
            largest = float((np.abs(W) + ends).max())
        return 8 * UNIT_ROUNDOFF * (largest + 2 * self.divisor) if np.isfinite(largest) else np.inf

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Dense or sparse, with ℓ1 and box; the neighbour is often the mirror image."""
        loss, here, there, w = _neighbours(rng, records)
        penalty = ElasticNet.of(3, l1=rng.choice([0.0, 0.02]), l2=rng.choice([0.0, 0.5]), high=rng.choice([0.3, 9.0]))
        w = penalty.prox(w[0], 0.0)[None]
        return Example(
            cls(loss, penalty, np.array([0.3, 1.0, 0.05]), np.array([1.0, 4.0, 0.5]), records), here, there, w
        )


@register("coordinate-gradient")
@dataclass(frozen=True, eq=False)
class CoordinateGradient(Query):
    """Σ clip(φ′_i·x_ij/c, ±1) of one column j; the state is w.

    Attributes:
        loss: φ.
        column: j, public or released.
        clip: c > 0.
    """

    loss: Loss
    column: int
    clip: float
    bound: ClassVar[float] = 1.0  # type: ignore[misc]

    def contributions(self, rows: Rows, state: Array) -> Array:
        """φ′x/c, not yet clipped."""
        out = []
        for w in np.asarray(state, np.float64):
            with np.errstate(all="ignore"):
                out.append(_slopes(rows, self.loss, w) * _column(rows, self.column) / self.clip)
        return np.nan_to_num(np.array(out), nan=0.0, posinf=1e300, neginf=-1e300)[:, :, None]

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """One column, compiled."""
        design, unit, out = _by_columns(rows), None if grid is None else grid.unit, []
        for w, own in zip(np.asarray(state, np.float64), members, strict=True):
            slopes, counts = _slopes(rows, self.loss, w), _counts(own[None])
            rest: tuple[Any, ...] = (slopes, self.column, self.clip, kernel.SQUARED, 0.0, unit, counts)
            if design.sparse:
                out.append([kernel.coordinate_sum_sparse(*_stored(rows, design), *rest)])
            else:
                out.append([kernel.coordinate_sum_dense(design.matrix, *rest)])
        return np.array(out) / self.clip if grid is None else np.array(out, np.int64)

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Any loss, dense or sparse."""
        loss, here, there, w = _neighbours(rng, records)
        return Example(cls(loss, int(rng.integers(3)), float(rng.choice([0.05, 1.0]))), here, there, w)


def _neighbours(rng: np.random.Generator, records: int) -> tuple[Loss, Rows, Rows, Array]:
    """A loss, records that differ in the first one, often by its sign, and coefficients."""
    loss = [Squared(), Huber(0.7), Logistic(), SmoothedHinge(0.5)][rng.integers(4)]
    X = rng.normal(size=(records, 3)) * rng.choice([0.2, 8.0], size=(records, 1))
    y = rng.choice([-1.0, 1.0], size=records) if loss.labels else rng.normal(size=records) * 20
    X2, y2 = X.copy(), y.copy()
    if rng.random() < 0.5:
        y2[0] = -y[0]
    else:
        X2[0], y2[0] = rng.normal(size=3) * 8, y[0] * (-1 if loss.labels else rng.normal())
    form = sparse.csc_array if rng.random() < 0.5 else np.asarray
    w = rng.normal(size=(1, 3)) * rng.choice([0.0, 1.0])
    return loss, Rows(form(X), y), Rows(form(X2), y2), w


@dataclass(frozen=True, eq=False)
class ColumnSquare(Statistic):
    """(x_j/b)² of one column.

    Attributes:
        column: j, public or released.
        scale: b > 0.
    """

    column: int
    scale: float

    def __call__(self, rows: Rows) -> Array:
        """One number per record."""
        return np.square(_column(rows, self.column) / self.scale)


class LogSlope(_AtCoefficients):
    """log₂ |∂φ/∂f| at f = xᵀv."""

    def __call__(self, rows: Rows) -> Array:
        """One number per record."""
        slope = np.abs(_slopes(rows, self.loss, self.v))
        return np.asarray(np.log2(np.maximum(np.nan_to_num(slope, nan=0.0, posinf=1e300), SMALLEST)))


@dataclass(frozen=True, eq=False)
class TypicalEntry(Statistic):
    """log₂ of the root mean square of a record's non-zero entries x_j/b_j; columns with b_j = 0 are left out.

    Attributes:
        reach: b_j ≥ 0, public.
    """

    reach: Array

    def __call__(self, rows: Rows) -> Array:
        """One number per record; that of a record without entries is as small as can be."""
        weights = np.where(self.reach > 0, 1 / np.where(self.reach > 0, self.reach, 1.0), 0.0)
        squares, counts = np.zeros(len(rows)), np.zeros(len(rows))
        design = _by_columns(rows)
        with np.errstate(all="ignore"):
            if design.sparse:
                data, indices, indptr = design.columns()
                scaled = data * np.repeat(weights, np.diff(indptr))
                squares += np.bincount(indices, np.square(scaled), minlength=len(rows))
                counts += np.bincount(indices, scaled != 0, minlength=len(rows))
            else:
                for j in np.flatnonzero(weights):
                    scaled = design.matrix[:, j] * weights[j]
                    squares += np.square(scaled)
                    counts += scaled != 0
            typical = np.sqrt(squares / np.maximum(counts, 1))
        return np.asarray(np.log2(np.maximum(np.nan_to_num(typical, nan=0.0), SMALLEST)))
