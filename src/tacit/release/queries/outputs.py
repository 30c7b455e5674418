"""Gradients of K outputs that are linear in public features of a record: g(Wx)·xᵀ, two matrix products a batch."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.kernels.exact import coarse, half_spaces
from tacit.kernels.outer import capped_rows, integer_rows, integer_sums_of_products, outer_sums, row_scores
from tacit.kernels.rows import SHRINK, row_squares, shortened
from tacit.problem import OneVsRest, OutputLoss, Softmax, SquaredOutputs
from tacit.records import Rows
from tacit.records.integers import BITS
from tacit.release.query import UNIT_ROUNDOFF, Example, Grid, Members, Query, Sums, register

__all__ = ["GatedOutputs", "LinearOutputs", "open_gates"]

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Table = NDArray[Any]  # float32 or float64
MAX_OUTPUT = 1e25
"""Outputs that no run comes near; weights that could give more are confined, only so that float32 holds them."""
MIN_NORM, MAX_NORM = 1e-6, 1e6
"""Norms of features that leave room for that."""
PART = 4096
"""Rows that are summed at a time."""
KEPT = 1 - 2.0**-14
"""What is left of a contribution in floating point: the rest is more than rounding can add (``_Outputs``)."""


def open_gates(rows: Table, gates: Table, R: float) -> tuple[Table, Table]:
    """Rows short enough for any gate pattern, and √(2/P)·1(u_jᵀx ≥ 0) scaled so that ‖x̃‖ ≤ R.

    Args:
        rows: (m, d).
        gates: (P, d), public.
        R: the norm of lifted records.

    Returns:
        Rows (m, d) and weights of the gates (m, P): x̃ = (weight_j·x)_j. Both of a record depend on it alone, to the
        bit: a gate that turned with the record's place in a batch would move the sum by another record's contribution.
    """
    P = len(gates)
    short = shortened(rows, widest(P, R))
    mask = half_spaces(short, gates).astype(short.dtype)
    length = np.sqrt(row_squares(short) * (2 / P) * mask.sum(axis=1))
    factor = np.sqrt(2 / P) * np.minimum(1.0, R * SHRINK / np.maximum(length, 1e-300))
    mask *= factor[:, None].astype(short.dtype)
    return short, mask


def widest(P: int, R: float) -> float:
    """√(P/2)·R: longer rows exceed R when they are lifted by P gates, even if one gate alone is open."""
    return R * float(np.sqrt(P / 2))


@dataclass(frozen=True, eq=False)
class _Outputs(Query):
    """What both kinds share; the state is W, flat.

    Features are ``rows.X``, in float32 or float64; targets are ``rows.y``, class numbers or (records, K) values.

    On a grid a record is scale·u with integers u (scaled down to R) and contributes t·uᵀ: t holds the K slopes times
    scale/g, rounded to integers with ‖t‖·‖u‖ ≤ C/g ≤ 2³⁹. The norm is measured on what is released.

    In floating point slopes are multiplied by 1 − 2⁻¹⁴, after which a contribution is at most c = C(1 − 2⁻¹⁵) long,
    with all that float32 rounds in slopes and features. Sums are made in float64, in parts of m rows (512 to 4096, as
    records come), which are added. Any order of m additions is off by at most m·2⁻⁵³ of what is added, no partial sum
    of n records is longer than n·c, and there are at most 2n/m sums of parts. Hence a computed sum is at most
    n(m + 2n/m)·2⁻⁵³·c from the exact one: a record that vanishes moves it by at most c(1 + n(m + 2n/m)·2⁻⁵²), and one
    that is replaced by twice that, which is within C and 2C for n ≤ 2²² records. Rows of a person count 1 in all, so
    that partial sums of n persons are no longer: n ≤ 2¹⁷ persons with 2²⁸ rows.

    Attributes:
        loss: of the outputs, clipped.
        row_norm: R; longer feature vectors are scaled down to it.
    """

    loss: OutputLoss
    row_norm: float

    def __post_init__(self) -> None:
        R = _validate.positive(row_norm=self.row_norm)
        if not MIN_NORM <= R <= MAX_NORM:
            raise InvalidInput(f"row_norm must lie between {MIN_NORM:g} and {MAX_NORM:g}, got {R!r}: rescale")
        object.__setattr__(self, "row_norm", R)

    @property
    def bound(self) -> float:  # type: ignore[override]
        """Slope·R."""
        return self.loss.slope * self.row_norm

    @property
    def smoothness(self) -> float:  # type: ignore[override]
        """Curvature·R²."""
        return self.loss.curvature * self.row_norm**2

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """Two matrix products for each replica."""
        pairs = zip(state, members, strict=True)
        return np.array([self._one(rows, theta, mask, grid) for theta, mask in pairs])

    def contributions(self, rows: Rows, state: Array) -> Array:
        """One record at a time."""
        alone = np.eye(len(rows), dtype=bool)
        return np.stack([[self._one(rows, theta, mask) for mask in alone] for theta in state])

    def _one(self, rows: Rows, theta: Array, mask: NDArray[Any], grid: Grid | None = None) -> Sums:
        """Parts of a batch, added up."""
        far = MAX_OUTPUT / self.row_norm
        if not (theta.max() <= far and theta.min() >= -far):  # also NaN
            theta = np.clip(np.nan_to_num(theta), -far, far)
        with np.errstate(all="ignore"):  # a warning would tell about a record
            sums: list[Sums] = [
                self._part(rows, theta, part, _counts(mask, part))
                if grid is None
                else self._integers(rows.take(part), theta, grid, _counts(mask, part))
                for part in _parts(np.flatnonzero(mask))
            ]
        return reduce(np.add, sums) if sums else np.zeros(theta.size, np.float64 if grid is None else np.int64)

    @abstractmethod
    def _part(self, rows: Rows, theta: Array, index: Index, counts: Table) -> Array:
        """The sum over some records, at most PART; (records, 1) says what each counts."""

    @abstractmethod
    def _integers(self, batch: Rows, theta: Array, grid: Grid, counts: Table) -> NDArray[np.int64]:
        """The sum over these records, in units of the grid; (records, 1) says what each counts."""

    def _slopes(self, Z: Array, batch: Rows, factors: Array, norms: Array, unit: float, counts: Table) -> Array:
        """The integers t of each record: slopes at ``factors``·Z, of norm at most C/(g·norm), times what it counts."""
        G, own = self.loss.gradient(Z * factors[:, None], batch.y), counts[:, 0]
        return capped_rows(G * (factors * own / unit)[:, None], self.bound / unit / norms * own)


@register("linear-outputs")
@dataclass(frozen=True, eq=False)
class LinearOutputs(_Outputs):
    """Σ g(Wx_i; y_i)·x_iᵀ over a batch, W of shape (K, p): multinomial logistic regression and its relatives.

    Clipping happens in the outputs (``problem.outputs``) and on the features (norm at most R), so that every
    contribution is the gradient of a convex function of W with smoothness curvature·R², and at most slope·R long.

    Attributes:
        loss: of the outputs, clipped.
        row_norm: R; longer feature vectors are scaled down to it.
    """

    def rounding_error(self, batch: int, size: int, radius: float, terms: int | None = None) -> float | None:
        """b·u·(β·B·(2p + 24) + R·e + C·(p + m + 24)) for float64 features, p = d/K.

        *Rows*: shortened ones are off by (p + 12)u·R, which moves g by curvature·B·(p + 12)u·R and turns gxᵀ by
        C·(p + 12)u. *Outputs*: x·w_k is off by (p + 2)u·‖x‖‖w_k‖ in any order of additions, all of them by (p + 2)u·R·B
        in norm, hence g, which is curvature-Lipschitz, by curvature times that, and by ``gradient_error``·u beside; 1 −
        2⁻¹⁴ of it (``KEPT``), which is what the ideal sum is made of, too, by another C·u.
        *Sum* of m rows, which count b in all: (m + 3)u·Σ‖g_i‖‖x_i‖ ≤ (m + 3)u·b·C. Each contribution counts R times the
        error of g; β = curvature·R².

        Returns:
            The bound; None for a loss whose gradient's error is not proven.
        """
        if self.loss.gradient_error is None:
            return None
        p = size / self.loss.outputs
        rest = self.row_norm * self.loss.gradient_error + self.bound * (p + (terms or batch) + 24)
        return batch * UNIT_ROUNDOFF * (self.smoothness * radius * (2 * p + 24) + rest)

    def check_precision(self, rows: Rows) -> None:
        """Only float64: the rounding of float32 could be bounded, but would multiply μ."""
        kind = rows.take(np.arange(min(len(rows), 1))).X.dtype
        if kind != np.float64:
            raise MechanismMismatch(
                f"an exact hidden chain needs float64 features, these are {kind}: convert them, or use "
                "arithmetic='float'"
            )

    def _part(self, rows: Rows, theta: Array, index: Index, counts: Table) -> Array:
        batch = rows.take(index)
        X = batch.X if batch.norm <= self.row_norm else shortened(batch.X, self.row_norm)
        W = theta.reshape(self.loss.outputs, -1).astype(X.dtype)
        G = self.loss.gradient(X @ W.T, batch.y) * X.dtype.type(KEPT)
        return np.asarray(outer_sums(G, counts, X)).ravel()

    def _integers(self, batch: Rows, theta: Array, grid: Grid, counts: Table) -> NDArray[np.int64]:
        U, scales, norms = integer_rows(batch.X, BITS)
        R, W = self.row_norm, coarse(theta.reshape(self.loss.outputs, -1), BITS)
        factors = scales * (R / np.maximum(norms * scales, R))
        T = self._slopes(row_scores(U, W), batch, factors, norms, grid.unit, counts)
        return integer_sums_of_products(T, np.ones((len(U), 1), U.dtype), U).ravel()

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Any loss, mirrored or replaced records, long and short ones."""
        return _example(cls, rng, records, 3)


@register("gated-outputs")
@dataclass(frozen=True, eq=False)
class GatedOutputs(_Outputs):
    """The convex ReLU network: outputs Σ_j 1(u_jᵀx ≥ 0)·V_j x, with public gates u_j; V of shape (K, P, d).

    The features are x̃ = √(2/P)·(1(u_jᵀx ≥ 0)·x)_j, of length √(2·active/P)·‖x‖, scaled down to R (errata, E1: not of
    length ‖x‖). They are never formed: two products with (batch × d) and (d × PK), and a mask. On a grid the gates are
    those of the integers u, and ‖t‖·‖u‖·√active ≤ C/g.

    Attributes:
        loss: of the outputs, clipped.
        row_norm: R, of x̃.
        gates: (P, d), public.
    """

    gates: Table

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.gates.ndim != 2:
            raise InvalidInput(f"gates must have shape (P, features), got {self.gates.shape}")

    def _remembered(self, rows: Rows) -> tuple[NDArray[np.bool_], Table] | None:
        """Which gates each record opens, and their weight, made once; None unless rows are kept, and short enough."""
        if not (rows.fits and rows.norm <= widest(len(self.gates), self.row_norm)):
            return None
        return rows.kept(self, lambda: self._all_gates(rows))

    def _all_gates(self, rows: Rows) -> tuple[NDArray[np.bool_], Table]:
        parts = _parts(np.arange(len(rows))) or [np.arange(0)]
        made = [open_gates(rows.take(part).X, self.gates, self.row_norm)[1] for part in parts]
        opened = np.concatenate([weights > 0 for weights in made])
        return opened, np.concatenate([weights.max(axis=1, keepdims=True) for weights in made])

    def _part(self, rows: Rows, theta: Array, index: Index, counts: Table) -> Array:
        K, (P, d) = self.loss.outputs, self.gates.shape
        batch, known = rows.take(index), self._remembered(rows)
        if known is None:
            X, mask = open_gates(batch.X, self.gates, self.row_norm)
        else:
            X, mask = batch.X, known[0][index] * known[1][index]
        V = theta.reshape(K * P, d).astype(X.dtype)
        Z = np.einsum("ikj,ij->ik", (X @ V.T).reshape(-1, K, P), mask)
        G = self.loss.gradient(Z, batch.y) * X.dtype.type(KEPT)
        return np.asarray(outer_sums(G, mask * counts, X)).ravel()

    def _integers(self, batch: Rows, theta: Array, grid: Grid, counts: Table) -> NDArray[np.int64]:
        K, (P, d) = self.loss.outputs, self.gates.shape
        U, scales, norms = integer_rows(batch.X, BITS)
        opened = half_spaces(U, self.gates)
        lifted = norms * np.sqrt(opened.sum(axis=1))
        lift = np.sqrt(2 / P) * scales
        factors = lift * (self.row_norm / np.maximum(lift * lifted, self.row_norm))
        V = coarse(theta.reshape(K, P * d), BITS).reshape(K * P, d)  # sums over open gates are exact, too
        Z = np.einsum("ikj,ij->ik", row_scores(U, V).reshape(-1, K, P), opened.astype(np.float64))
        T = self._slopes(Z, batch, factors, lifted, grid.unit, counts)
        return integer_sums_of_products(T, opened.astype(U.dtype), U).ravel()

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """As ``LinearOutputs``, with gates that are all open for some records."""
        return _example(cls, rng, records, 3 * 4, gates=rng.normal(size=(4, 3)) + rng.choice([0.0, 3.0]))


def _counts(mask: NDArray[Any], index: Index) -> Table:
    """What some records count, (records, 1)."""
    return mask[index, None].astype(np.float32 if mask.dtype == np.bool_ else np.float64)


def _parts(index: Index) -> list[Index]:
    return [index[first : first + PART] for first in range(0, len(index), PART)]


def _example(cls: type[_Outputs], rng: np.random.Generator, records: int, width: int, **more: Any) -> Example:
    K = 3
    loss = [Softmax(K), Softmax(K, 0.3), OneVsRest(K), OneVsRest(K, 0.4), SquaredOutputs(K, 0.7)][rng.integers(5)]
    X = rng.normal(size=(records, 3)) * rng.choice([0.2, 30.0], size=(records, 1))
    X[0] = np.abs(X[0]) + 3  # long, and inside of every gate that points up
    X2 = X.copy()
    X2[0] = X[0] if rng.random() < 0.5 else rng.normal(size=3) * 9
    y: Any
    if isinstance(loss, SquaredOutputs):
        y = rng.normal(size=(records, K)) * 30
        y2 = y.copy()
        y2[0] = -y[0]
    else:
        y = rng.integers(K, size=records)
        y2 = y.copy()
        X2[0] = -X[0] if rng.random() < 0.7 and not more else X2[0]
    theta = rng.normal(size=(1, K * width)) * rng.choice([0.0, 1.0, 8.0])
    return Example(cls(loss, 1.5, **more), Rows(X, y), Rows(X2, y2), theta)
