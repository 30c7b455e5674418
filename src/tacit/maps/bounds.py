"""Public bounds as maps: from the user's numbers to [−1, 1] (or [0, 1]), and coefficients back.

Values outside the bounds are clipped silently: a message about them would tell about a record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.inputs.bounds import bounds_of
from tacit.kernels.rows import bounded_columns
from tacit.maps.rows import Range, RowMap
from tacit.problem import Loss

__all__ = ["FeatureBounds", "TargetBounds", "feature_bounds", "target_bounds"]

Array = NDArray[np.float64]


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
    """

    low: Array
    high: Array
    centre: Array
    scale: Array
    constant: bool = False
    reach: float = 1.0

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

    @property
    def fixed(self) -> NDArray[np.bool_]:
        """Features whose bounds leave no choice."""
        return np.asarray(self.scale == 0)

    @property
    def safe_scale(self) -> Array:
        """The scale, 1 for fixed features (their coefficient is 0 anyway)."""
        return np.where(self.fixed, 1.0, self.scale)

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
