"""Units: from the user's numbers to [−1, 1] (or [0, 1]) by public bounds, and coefficients back.

Values outside the bounds are clipped silently: a message about them would tell about a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from tacit import _validate
from tacit.errors import InvalidInput

__all__ = ["FeatureUnits", "TargetUnits"]

Array = NDArray[np.float64]
LARGEST = 1e100
"""Of a bound's size, and of its inverse: beyond it, squares and ratios of scales would overflow."""


def _bounds(name: str, bounds: object, size: int | None) -> tuple[Array, Array]:
    if size is not None and _looks_like_pairs(bounds, size):
        raise InvalidInput(
            f"{name} looks like one (low, high) pair per feature, but must be one pair of columns (lows, highs): pass "
            f"tuple(np.transpose({name}))"
        )
    held = list(bounds) if isinstance(bounds, tuple | list) or (isinstance(bounds, np.ndarray) and bounds.ndim) else []
    if len(held) != 2:
        raise InvalidInput(f"{name} must be a pair (low, high), got {_kind(bounds)}: {_forms(name, size)}")
    ends = [_end(f"{name}[{k}]", end) for k, end in enumerate(held)]
    shape = () if size is None else (size,)
    try:
        low, high = (np.broadcast_to(end, shape).astype(np.float64) for end in ends)
    except ValueError:
        shapes = f"shapes {ends[0].shape} and {ends[1].shape}"
        raise InvalidInput(f"{name} do not fit the data, got {shapes}: {_forms(name, size)}") from None
    _check_range(name, low, high)
    return low, high


def _end(name: str, end: object) -> Array:
    try:
        return _validate.real_array(name, end)
    except InvalidInput:
        kind = np.asarray(end, object).dtype if isinstance(end, list | tuple) else getattr(end, "dtype", None)
        got = f"entries of type {kind}" if kind is not None else repr(end)
        raise InvalidInput(f"{name} must be a number, or one per feature, got {got}: convert it to float") from None


def _check_range(name: str, low: Array, high: Array) -> None:
    """Finite, ordered, and of a size that leaves room for squares."""
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise InvalidInput(f"{name} must be finite: state public limits of the values")
    if (low > high).any():
        raise InvalidInput(f"{name} must have low ≤ high: put the smaller number first")
    beyond = (np.maximum(-low, high) > LARGEST).any() or (np.maximum(low, -high) > LARGEST).any()
    if beyond or ((low < high) & (high - low < 1 / LARGEST)).any():
        raise InvalidInput(
            f"{name} must lie within ±{LARGEST:g}, and be equal or at least {1 / LARGEST:g} apart: choose other units"
        )


def _looks_like_pairs(bounds: object, size: int) -> bool:
    """Whether somebody listed (low, high) per feature: the other way round than we read it."""
    try:
        table = np.asarray(bounds, np.float64)
    except (ValueError, TypeError):
        return False
    if table.shape != (size, 2) or not (table[:, 0] < table[:, 1]).all():
        return False
    if size != 2:
        return True
    # For two features both readings have one shape. Two arrays are what we ask for; a list of tuples is how pairs are
    # written; and if our reading would fix a feature, or reverse its ends, while theirs would not, it is theirs.
    if isinstance(bounds, tuple) and all(isinstance(end, np.ndarray) for end in bounds):
        return False
    listed = isinstance(bounds, list) and all(isinstance(pair, tuple) for pair in bounds)
    return listed or not bool((table[0] < table[1]).all())


def _kind(value: object) -> str:
    return f"{len(value)} items" if isinstance(value, tuple | list) else f"an object of type {type(value).__name__}"


def _forms(name: str, size: int | None) -> str:
    if size is None:
        return f"e.g. {name}=(0, 10)"
    return f"e.g. {name}=(0, 1), or (lows, highs) with one number per feature ({size}), in the order of the columns"


@dataclass(frozen=True, eq=False)
class FeatureUnits:
    """u = (x − centre)/scale for every feature, after clipping x to its bounds.

    Bounds (0, 1) stay as they are, so that one-hot columns remain sparse; others map to [−1, 1]. Sparse designs, and
    models without an intercept, are only scaled: zero stays zero. A feature that its bounds fix is dropped (u = 0,
    coefficient 0).

    Attributes:
        low: lower bounds.
        high: upper bounds.
        centre: what becomes 0.
        scale: what becomes 1.
    """

    low: Array
    high: Array
    centre: Array
    scale: Array

    @classmethod
    def of(cls, bounds: object, size: int, *, sparse: bool = False, keep_zero: bool = False) -> FeatureUnits:
        """From public bounds.

        Args:
            bounds: (low, high), numbers or one per feature.
            size: the number of features.
            sparse: whether zeros are not stored: then they stay zero, and bounds must include them.
            keep_zero: whether zero must stay zero for another reason (no intercept).

        Returns:
            The units.

        Raises:
            InvalidInput: if bounds are missing or malformed, or exclude the zeros of a sparse design.
        """
        if bounds is None:
            raise InvalidInput(
                "feature_bounds is missing: state public limits (low, high) of the features, numbers or arrays; "
                "limits read off the data would leak it"
            )
        low, high = _bounds("feature_bounds", bounds, size)
        if sparse and ((low > 0) | (high < 0)).any():
            raise InvalidInput("feature_bounds of a sparse matrix must include 0, the value of what is not stored")
        as_is = ((low == 0) & (high == 1)) | sparse | keep_zero
        centre = np.where(as_is, 0.0, low / 2 + high / 2)
        scale = np.where(as_is, np.maximum(np.abs(low), np.abs(high)), high / 2 - low / 2)
        return cls(low, high, centre, scale)

    @property
    def constant(self) -> NDArray[np.bool_]:
        """Features whose bounds leave no choice."""
        return np.asarray(self.scale == 0)

    @property
    def safe_scale(self) -> Array:
        """The scale, 1 for constant features (their coefficient is 0 anyway)."""
        return np.where(self.constant, 1.0, self.scale)

    @property
    def reach_low(self) -> Array:
        """The smallest u."""
        return np.where(self.constant, 0.0, np.clip((self.low - self.centre) / self.safe_scale, -1.0, 1.0))

    @property
    def reach_high(self) -> Array:
        """The largest u."""
        return np.where(self.constant, 0.0, np.clip((self.high - self.centre) / self.safe_scale, -1.0, 1.0))

    def map(self, X: Any, *, intercept: bool = False) -> Any:
        """Mapped features of every record, after a column of ones if there is an intercept.

        Args:
            X: (records, features) in the user's units.
            intercept: whether to put a column of ones in front.

        Returns:
            A new Fortran-ordered array, or a new CSC matrix.
        """
        if sparse.issparse(X):
            return self._map_sparse(X, intercept)
        first = int(intercept)
        out = np.empty((X.shape[0], X.shape[1] + first), np.float32 if X.dtype == np.float32 else np.float64, order="F")
        out[:, :first] = 1.0
        out[:, first:] = X
        ratio = np.where(self.constant, 0.0, 1 / self.safe_scale)
        for j, column in enumerate(out.T[first:]):  # in place, one column in the cache at a time
            np.minimum(np.maximum(column, self.low[j], out=column), self.high[j], out=column)
            column -= self.centre[j]
            column *= ratio[j]
            np.minimum(np.maximum(column, -1.0, out=column), 1.0, out=column)  # rounding must not leave the interval
        return out

    def clip(self, X: Any) -> Any:
        """Rows within the bounds, in the user's units: a new array, or a new CSR matrix."""
        if not sparse.issparse(X):
            return np.clip(X, self.low, self.high)
        out = sparse.csr_array(X, copy=True)
        out.sum_duplicates()  # parts of one entry, each within bounds, may add up to more
        out.data = np.clip(out.data, self.low[out.indices], self.high[out.indices])
        return out

    def _map_sparse(self, X: Any, intercept: bool) -> Any:
        out = sparse.csc_array(X, copy=True)
        out.sum_duplicates()  # parts of one entry, each within bounds, may add up to more
        column = np.repeat(np.arange(out.shape[1]), np.diff(out.indptr))
        values = np.clip(out.data, self.low[column], self.high[column])
        out.data = np.where(self.constant[column], 0.0, values / self.safe_scale[column])
        out.eliminate_zeros()
        return sparse.hstack([np.ones((out.shape[0], 1)), out], format="csc") if intercept else out


@dataclass(frozen=True)
class TargetUnits:
    """t = (y − centre)/scale in [−1, 1] for regression.

    Attributes:
        low: the lower bound.
        high: the upper bound.
        centre: what becomes 0.
        scale: what becomes 1; for a constant target any number serves.
    """

    low: float
    high: float
    centre: float
    scale: float

    @classmethod
    def of(cls, bounds: object, *, keep_zero: bool = False) -> TargetUnits:
        """From public bounds.

        Args:
            bounds: (low, high).
            keep_zero: whether zero must stay zero (no intercept).

        Returns:
            The units.

        Raises:
            InvalidInput: if bounds are missing or malformed.
        """
        if bounds is None:
            raise InvalidInput(
                "target_bounds is missing: state public limits (low, high) of the target; limits read off the data "
                "would leak it"
            )
        ends = _bounds("target_bounds", bounds, None)
        low, high = float(ends[0]), float(ends[1])
        if keep_zero:
            return cls(low, high, 0.0, max(abs(low), abs(high)) or 1.0)
        return cls(low, high, low / 2 + high / 2, (high / 2 - low / 2) or 1.0)

    def map(self, y: ArrayLike) -> Array:
        """Mapped targets of every record."""
        return (np.clip(np.asarray(y, np.float64), self.low, self.high) - self.centre) / self.scale
