"""Row maps: public maps of one row, each with a certified range.

A row map is a frozen record of public (or released) numbers. Row i of its result is a function of row i of its input
alone, **to the bit**: not of its place, its neighbours, or how many rows there are. So whatever is computed from mapped
records is still a sum over records, and a map costs nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit._registry import enlist
from tacit.kernels.exact import coarse, exact_product_by_columns

__all__ = ["ROW_MAPS", "AffineTarget", "Columns", "Linear", "Range", "RowMap", "Standardise"]

Array = NDArray[np.float64]
ROW_MAPS: dict[str, type[RowMap]] = {}
"""Every row map that was defined, by the name of its class; the contract suite comes to each."""


@dataclass(frozen=True, eq=False)
class Range:
    """Where the columns of a row lie, and how long a row may be.

    Attributes:
        low: the smallest value of each column.
        high: the largest value of each column.
        radius: the largest ℓ2 norm of a row, where more is known than the columns tell.
    """

    low: Array
    high: Array
    radius: float = float("inf")

    @property
    def norm(self) -> float:
        """The largest ℓ2 norm of a row."""
        return min(float(np.linalg.norm(np.maximum(np.abs(self.low), np.abs(self.high)))), self.radius)


class RowMap(ABC):
    """A public map of one row with a certified range.

    Attributes:
        by_rows: whether tables are made some rows at a time, in C order, rather than whole, column by column.
    """

    by_rows: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        enlist(ROW_MAPS, cls, "a row map")

    @abstractmethod
    def __call__(self, X: Any) -> Any:
        """Mapped rows; X is left as it is."""

    @abstractmethod
    def range(self, before: Range | None) -> Range:
        """The range of mapped rows, given that of the input (None if nothing is known of it)."""

    @classmethod
    @abstractmethod
    def example(cls, rng: np.random.Generator) -> tuple[RowMap, Any]:
        """A map and rows to try it on, for the contract suite."""


def _dense(X: Any) -> NDArray[Any]:
    return np.asarray(X.toarray() if sparse.issparse(X) else X)


@dataclass(frozen=True, eq=False)
class Standardise(RowMap):
    """(x − mean)/scale, by released (or public) locations and scales.

    Attributes:
        mean: of each column.
        scale: of each column, positive.
    """

    mean: Array
    scale: Array

    def __call__(self, X: Any) -> Any:
        """Dense, in Fortran order, float64."""
        X = _dense(X)
        out = np.empty(X.shape, order="F")
        for j, column in enumerate(out.T):  # one column in the cache at a time
            np.subtract(X[:, j], self.mean[j], out=column)
            column /= self.scale[j]
        return out

    def range(self, before: Range | None) -> Range:
        """The standardised ends."""
        if before is None:
            return Range(np.full(len(self.mean), -np.inf), np.full(len(self.mean), np.inf))
        return Range((before.low - self.mean) / self.scale, (before.high - self.mean) / self.scale)

    @classmethod
    def example(cls, rng: np.random.Generator) -> tuple[Standardise, Any]:
        """Three columns of different size."""
        return cls(rng.normal(size=3), np.array([1e-3, 1.0, 7.0])), rng.normal(size=(50, 3))


@dataclass(frozen=True)
class Columns(RowMap):
    """Some of the columns, in the given order.

    Attributes:
        index: which.
    """

    index: tuple[int, ...]

    def __call__(self, X: Any) -> Any:
        """Dense or sparse, as X is."""
        return X[:, list(self.index)]

    def range(self, before: Range | None) -> Range:
        """That of these columns."""
        if before is None:
            return Range(np.full(len(self.index), -np.inf), np.full(len(self.index), np.inf))
        return Range(before.low[list(self.index)], before.high[list(self.index)])

    @classmethod
    def example(cls, rng: np.random.Generator) -> tuple[Columns, Any]:
        """Two of three columns, the last one first."""
        return cls((2, 0)), rng.normal(size=(50, 3))


@dataclass(frozen=True, eq=False)
class Linear(RowMap):
    """x ↦ M·x, M public (or released) and symmetric or not: whitening.

    A library's product rounds a row by its place (67 to 94 % of the entries of one row alone differ from those of the
    same row among many). Here both factors are rounded to so few bits that every sum is exact in float64, whatever its
    order (``tacit.kernels.exact``); the matrix that is applied is ``applied``, the rounded one.

    Attributes:
        matrix: M, (outputs, inputs).
    """

    matrix: Array

    @cached_property
    def applied(self) -> Array:
        """M as it is applied: rounded to about 20 bits of its largest entry."""
        return coarse(self.matrix)

    def __call__(self, X: Any) -> Any:
        """Dense, in Fortran order, float64."""
        return exact_product_by_columns(np.asfortranarray(_dense(X)), self.applied)

    def range(self, before: Range | None) -> Range:
        """By interval arithmetic."""
        reach = np.full(self.matrix.shape[1], np.inf)
        if before is not None:
            reach = np.maximum(np.abs(before.low), np.abs(before.high))
        with np.errstate(invalid="ignore"):
            ends = np.nan_to_num(np.abs(self.applied) @ reach, nan=np.inf, posinf=np.inf) * (1 + 1e-5)
        return Range(-ends, ends)

    @classmethod
    def example(cls, rng: np.random.Generator) -> tuple[Linear, Any]:
        """A whitening matrix of correlated columns."""
        return cls(rng.normal(size=(5, 5))), rng.normal(size=(60, 5)) * 10.0 ** rng.integers(-3, 3, size=5)


@dataclass(frozen=True)
class AffineTarget:
    """(y − centre)/scale: a public map of targets.

    Attributes:
        centre: what becomes 0.
        scale: what becomes 1.
    """

    centre: float
    scale: float

    def __call__(self, y: Array) -> Array:
        """Mapped targets."""
        return np.asarray((y - self.centre) / self.scale)
