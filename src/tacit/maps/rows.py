"""Row maps: public maps of one row, each with a certified range; the first of them maps by public bounds.

A row map is a frozen record of public (or released) numbers. Row i of its result is a function of row i of its input
alone, **to the bit**: not of its place, its neighbours, or how many rows there are. So whatever is computed from mapped
records is still a sum over records, and a map costs nothing.

Values outside public bounds are clipped silently: a message about them would tell about a record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from tacit._codec import described
from tacit._registry import enlist
from tacit.errors import InvalidInput
from tacit.inputs.parameters import bounds_of
from tacit.kernels.exact import coarse, exact_product_by_columns
from tacit.kernels.rows import bounded_columns, standardised_columns
from tacit.problem import Loss

__all__ = [
    "ROW_MAPS",
    "AffineTarget",
    "Columns",
    "FeatureBounds",
    "Linear",
    "Range",
    "RowMap",
    "Standardise",
    "TargetBounds",
    "feature_bounds",
    "target_bounds",
]

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
        norm: the largest ℓ2 norm of a row.
    """

    low: Array
    high: Array
    radius: float = float("inf")
    norm: float = field(init=False)

    def __post_init__(self) -> None:
        longest = float(np.linalg.norm(np.maximum(np.abs(self.low), np.abs(self.high))))
        object.__setattr__(self, "norm", min(longest, self.radius))


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
        standardised_columns(X.T, np.asarray(self.mean, np.float64), np.asarray(self.scale, np.float64), out.T)
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


@described("FeatureBounds")
@dataclass(frozen=True, eq=False)
class FeatureBounds(RowMap):
    """u = (x − centre)/scale for every feature, after clipping x to its bounds; a column of ones in front if asked for.

    For models (``between``) bounds (0, 1) stay as they are, so that one-hot columns remain sparse; others map to
    [−1, 1]. Sparse tables, and models without an intercept, are only scaled: zero stays zero. A feature that its bounds
    fix is dropped (u = 0, coefficient 0).

    Attributes:
        low: lower bounds.
        high: upper bounds.
        centre: what becomes 0.
        scale: what becomes 1.
        constant: whether a column of ones comes first.
        reach: the largest |u|; farther values are clipped.
        fixed: features whose bounds leave no choice.
        safe_scale: the scale, 1 for fixed features (their coefficient is 0 anyway).
    """

    low: Array
    high: Array
    centre: Array
    scale: Array
    constant: bool = False
    reach: float = 1.0
    fixed: NDArray[np.bool_] = field(init=False, repr=False)
    safe_scale: Array = field(init=False, repr=False)

    def __post_init__(self) -> None:
        fixed = np.asarray(self.scale == 0)
        object.__setattr__(self, "fixed", fixed)
        object.__setattr__(self, "safe_scale", np.where(fixed, 1.0, self.scale))

    @classmethod
    def between(
        cls, low: Array, high: Array, *, keep_zero: bool | NDArray[np.bool_] = False, constant: bool = False
    ) -> FeatureBounds:
        """From checked bounds (``feature_bounds``).

        Args:
            low: lower bounds.
            high: upper bounds.
            keep_zero: whether zero must stay zero: a sparse table, or a model without an intercept.
            constant: whether a column of ones comes first.

        Returns:
            The map.
        """
        as_is = ((low == 0) & (high == 1)) | keep_zero
        centre = np.where(as_is, 0.0, low / 2 + high / 2)
        scale = np.where(as_is, np.maximum(np.abs(low), np.abs(high)), high / 2 - low / 2)
        return cls(low, high, centre, scale, constant)

    @classmethod
    def centred(cls, low: Array, high: Array) -> FeatureBounds:
        """The map of any bounds to [−1, 1], bounds (0, 1) too."""
        return cls(low, high, low / 2 + high / 2, high / 2 - low / 2)

    def range(self, before: Range | None = None) -> Range:
        """That of the bounds, whatever the input."""
        ends = ((end - self.centre) / self.safe_scale for end in (self.low, self.high))
        low, high = (np.clip(end, -self.reach, self.reach) for end in ends)
        low, high = np.where(self.fixed, 0.0, low), np.where(self.fixed, 0.0, high)
        if self.constant:
            low, high = np.concatenate([[1.0], low]), np.concatenate([[1.0], high])
        return Range(low, high)

    def __call__(self, X: Any) -> Any:
        """A new Fortran-ordered array (float32 stays float32), or a new CSC matrix."""
        if sparse.issparse(X):
            return self._map_sparse(X)
        first = int(self.constant)
        out = np.empty((X.shape[0], X.shape[1] + first), np.float32 if X.dtype == np.float32 else np.float64, order="F")
        out[:, :first] = 1.0
        ratio = np.where(self.fixed, 0.0, 1 / self.safe_scale)
        bounded_columns(X, self.low, self.high, self.centre, ratio, float(self.reach), out.T[first:])
        return out

    def _map_sparse(self, X: Any) -> Any:
        out = sparse.csc_array(X, copy=True)
        out.sum_duplicates()  # parts of one entry, each within bounds, may add up to more
        column = np.repeat(np.arange(out.shape[1]), np.diff(out.indptr))
        values = np.clip(out.data, self.low[column], self.high[column])
        ratios = np.clip(values / self.safe_scale[column], -self.reach, self.reach)
        out.data = np.where(self.fixed[column], 0.0, ratios)
        out.eliminate_zeros()
        return sparse.hstack([np.ones((out.shape[0], 1)), out], format="csc") if self.constant else out

    def clip(self, X: Any) -> Any:
        """X within the bounds, in the user's units: what a prediction is made for."""
        if not sparse.issparse(X):
            return np.clip(X, self.low, self.high)
        out = sparse.csr_array(X, copy=True)
        out.sum_duplicates()
        out.data = np.clip(out.data, self.low[out.indices], self.high[out.indices])
        return out

    def inverse(self, U: Array) -> Array:
        """Values of the user's from mapped ones (without a constant); what was clipped stays clipped."""
        return np.clip(self.centre + self.safe_scale * np.clip(U, -self.reach, self.reach), self.low, self.high)

    def without_constant(self) -> FeatureBounds:
        """The same map without a column of ones."""
        return replace(self, constant=False)

    @classmethod
    def example(cls, rng: np.random.Generator) -> tuple[FeatureBounds, Any]:
        """Features of all kinds, dense or sparse, with a constant or without."""
        keep = bool(rng.integers(2))
        low, high = np.array([-2.0, 0.0, 0.0, 0.0]), np.array([3.0, 1.0, 9.0, 0.0])
        X = rng.normal(size=(40, 4)) * 4
        table = sparse.csr_array(X * (rng.random(X.shape) < 0.5)) if keep else X
        return cls.between(low, high, keep_zero=keep, constant=bool(rng.integers(2))), table


@dataclass(frozen=True)
class TargetBounds:
    """t = (y − centre)/scale for targets of a regression, y clipped to its bounds first.

    Attributes:
        low: the lower bound.
        high: the upper bound.
        centre: what becomes 0.
        scale: what becomes 1; for a fixed target any number serves.
        logarithmic: whether the model predicts the logarithm of the target: t = y/scale, and zero stays zero.
    """

    low: float
    high: float
    centre: float
    scale: float
    logarithmic: bool = False

    @classmethod
    def between(
        cls,
        low: float,
        high: float,
        *,
        keep_zero: bool = False,
        logarithmic: bool = False,
        geometric: bool = False,
    ) -> TargetBounds:
        """From checked bounds.

        Args:
            low: the lower bound.
            high: the upper bound.
            keep_zero: whether zero must stay zero (a model without an intercept).
            logarithmic: whether the model predicts the logarithm of the target.
            geometric: whether targets are then measured in units of the geometric mean of their bounds.

        Returns:
            The map.
        """
        if logarithmic:  # in units of the geometric mean, or of the upper bound where zero occurs
            return cls(low, high, 0.0, float(np.sqrt(low) * np.sqrt(high)) if low > 0 and geometric else high, True)
        if keep_zero:
            return cls(low, high, 0.0, max(abs(low), abs(high)) or 1.0)
        return cls(low, high, low / 2 + high / 2, (high / 2 - low / 2) or 1.0)

    def __call__(self, y: ArrayLike) -> Array:
        """Mapped targets."""
        return (np.clip(np.asarray(y, np.float64), self.low, self.high) - self.centre) / self.scale

    def clip(self, predictions: Array) -> Array:
        """Predictions within the bounds: no target lies outside of them."""
        return np.clip(predictions, self.low, self.high)


def feature_bounds(
    bounds: object, size: int, *, sparse: bool = False, keep_zero: bool = False, constant: bool = False
) -> FeatureBounds:
    """The map of features by public bounds.

    Args:
        bounds: (low, high), numbers or one per feature.
        size: the number of features.
        sparse: whether zeros are not stored: then they stay zero, and bounds must include them.
        keep_zero: whether zero must stay zero for another reason (no intercept).
        constant: whether a column of ones comes first.

    Returns:
        The map.

    Raises:
        InvalidInput: if bounds are missing or malformed, or exclude the zeros of a sparse table.
    """
    low, high = bounds_of("feature_bounds", bounds, size)
    if sparse and ((low > 0) | (high < 0)).any():
        raise InvalidInput("feature_bounds of a sparse matrix must include 0, the value of what is not stored")
    return FeatureBounds.between(low, high, keep_zero=sparse or keep_zero, constant=constant)


def target_bounds(bounds: object, *, loss: Loss | None = None, keep_zero: bool = False) -> TargetBounds:
    """The map of targets by public bounds.

    Args:
        bounds: (low, high).
        loss: whose targets they are; one of positive targets needs positive bounds.
        keep_zero: whether zero must stay zero (no intercept).

    Returns:
        The map.

    Raises:
        InvalidInput: if bounds are missing or malformed, or not those of the loss.
    """
    ends = bounds_of("target_bounds", bounds)
    low, high = float(ends[0]), float(ends[1])
    positive = loss is not None and loss.positive
    if loss is not None and positive and (high <= 0 or low < 0 or (low == 0 and loss.strictly_positive)):
        least = "above 0" if loss.strictly_positive else "at least 0"
        raise InvalidInput(
            f"target_bounds of the {loss.name} loss must be positive (low {least}), got ({low:g}, {high:g})"
        )
    strictly = loss is not None and loss.strictly_positive
    return TargetBounds.between(low, high, keep_zero=keep_zero, logarithmic=positive, geometric=strictly)
