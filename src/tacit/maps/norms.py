"""Maps that bring rows within a norm: non-negative rows of a factorisation, and inputs of a network."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit import _validate
from tacit.kernels.nonnegative import shorten_rows
from tacit.kernels.rows import row_squares, shortened
from tacit.maps.rows import FeatureBounds, Range, RowMap

__all__ = ["EqualNorm", "NonnegativeRows", "Shorten"]

Array = NDArray[np.float64]
BESIDE = 0.3
"""A constant beside the features, in units of the norm of a record that is spread over its bounds: records are scaled
to one norm, and it keeps what that would lose."""
SHORTEST = 0.01
"""Shorter records, in the same units, keep being short."""
PART = 4096
"""Rows that are mapped at once, in float64."""


@dataclass(frozen=True)
class NonnegativeRows(RowMap):
    """max(x, 0), scaled down to a public norm U and divided by it: entries are never negative, a row is at most 1 long.

    A sparse table stays sparse. Rows that are not finite become zeros.

    Attributes:
        items: the number of columns.
        norm: U; None for rows of any length, as they are (for whoever holds a row).
        observed_only: whether entries that are absent (not stored, or NaN in an array) are unknown instead of zero;
            then the result is sparse, and stores what is known.
    """

    items: int
    norm: float | None = None
    observed_only: bool = False

    def __post_init__(self) -> None:
        if self.norm is not None:
            object.__setattr__(self, "norm", _validate.positive(row_norm=self.norm))

    def __call__(self, X: Any) -> Any:
        """An array, or a CSR matrix; new, in float64."""
        U = self.norm
        if not sparse.issparse(X) and not self.observed_only:
            rows = np.maximum(np.asarray(X, np.float64), 0.0)
            return rows if U is None else shortened(rows, U) / U
        out = sparse.csr_matrix(X, dtype=np.float64, copy=True) if sparse.issparse(X) else _stored(X)
        out.sum_duplicates()  # an entry may be stored in parts; its parts are one contribution
        shorten_rows(out.indptr, out.data, math.inf if U is None else U)
        out.data /= 1.0 if U is None else U
        return out

    def range(self, before: Range | None) -> Range:
        """[0, 1] in every column, or what is left of the input's range above 0."""
        if self.norm is not None:
            return Range(np.zeros(self.items), np.ones(self.items))
        high = np.full(self.items, np.inf) if before is None else np.maximum(before.high, 0.0)
        return Range(np.zeros(self.items), high)

    @classmethod
    def example(cls, rng: np.random.Generator) -> tuple[NonnegativeRows, Any]:
        """Dense, sparse or partly unknown rows, long and short."""
        X = rng.normal(size=(40, 5)) * 10.0 ** rng.integers(-3, 4, size=(40, 1))
        form = rng.integers(3)
        if form == 0:
            return cls(5, 1.5), X
        if form == 1:
            return cls(5, 1.5), sparse.csr_matrix(X * (rng.random(X.shape) < 0.5))
        return cls(5, 1.5, observed_only=True), np.where(rng.random(X.shape) < 0.5, X, np.nan)


def _stored(table: Any) -> Any:
    """Everything but NaN as a CSR matrix; zeros are stored, because they were seen."""
    rows = np.array(table, np.float64)
    seen = ~np.isnan(rows)
    indptr = np.concatenate([[0], np.cumsum(seen.sum(axis=1))])
    return sparse.csr_matrix((rows[seen], np.nonzero(seen)[1], indptr), shape=rows.shape)


@dataclass(frozen=True, eq=False)
class EqualNorm(RowMap):
    """Features within their bounds, with a constant beside them, all scaled to one norm ρ: the inputs of a network.

    Rows that are very short beside their bounds keep being short.

    Attributes:
        bounds: of the features.
        norm: ρ.
        constant: whether a constant stands beside the features; not for pictures.
    """

    bounds: FeatureBounds
    norm: float
    constant: bool = True

    def __call__(self, X: Any) -> Any:
        """(records, features and the constant), float32."""
        p, extra = X.shape[1], int(self.constant)
        out = np.empty((len(X), p + extra), np.float32)
        typical = math.sqrt(p / 3)
        for first in range(0, len(X), PART):
            rows = X[first : first + PART]
            part = np.empty((len(rows), p + extra))
            part[:, :p], part[:, p:] = self.bounds(rows.astype(np.float64)), BESIDE * typical
            part *= (self.norm / np.maximum(np.sqrt(row_squares(part)), SHORTEST * typical))[:, None]
            out[first : first + PART] = part
        return out

    def range(self, before: Range | None) -> Range:
        """±ρ; the constant is positive."""
        ends = np.full(len(self.bounds.low) + int(self.constant), self.norm * (1 + 1e-6))
        low = -ends
        if self.constant:
            low[-1] = 0.0
        return Range(low, ends)

    @classmethod
    def example(cls, rng: np.random.Generator) -> tuple[EqualNorm, Any]:
        """Rows inside and outside of their bounds, and nearly nothing."""
        X = rng.normal(size=(50, 3)) * rng.choice([1e-9, 1.0, 9.0], size=(50, 1))
        bounds = FeatureBounds.between(np.array([-1.0, 0.0, -2.0]), np.array([1.0, 1.0, 5.0]))
        return cls(bounds, 2.0, bool(rng.integers(2))), X


@dataclass(frozen=True)
class Shorten(RowMap):
    """x ↦ (x, constant) in float32, scaled down to a norm where it is longer; zeros where it is not finite.

    Attributes:
        bound: the norm.
        columns: of x.
        constant: the value of one more column, the same for all records, or None for no such column.
    """

    by_rows = True
    bound: float
    columns: int
    constant: float | None = None

    def __call__(self, X: Any) -> NDArray[Any]:
        """A new array, unless X is in float32 already and short enough, and no column is added."""
        with np.errstate(all="ignore"):  # what float32 cannot hold becomes infinite, and then zero
            rows = np.ascontiguousarray(X, np.float32)
            if self.constant is not None:
                rows = np.concatenate([rows, np.full((len(rows), 1), self.constant, np.float32)], axis=1)
            return shortened(rows, self.bound)

    def range(self, before: Range | None) -> Range:
        """The norm, whatever the input."""
        ends = np.full(self.columns + (self.constant is not None), self.bound)
        return Range(-ends, ends, self.bound)

    @classmethod
    def example(cls, rng: np.random.Generator) -> tuple[Shorten, Any]:
        """Long and short rows, some of them not finite."""
        X = rng.normal(size=(60, 4)) * 10.0 ** rng.integers(-3, 40, size=(60, 1))
        X[3, 1] = np.inf
        return cls(1.5, 4, 0.3 if rng.integers(2) else None), X
