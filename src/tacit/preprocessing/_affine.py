"""Public boxes, and scalers that are affine inside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted

from tacit.errors import InvalidInput
from tacit.preprocessing._table import checked, quiet
from tacit.problem import FeatureUnits

__all__ = ["AffineScaler", "Box"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Box:
    """Public limits of the features, and the map of the box to [−1, 1]^p.

    Attributes:
        low: lower bounds.
        high: upper bounds.
    """

    low: Array
    high: Array

    @classmethod
    def of(cls, feature_bounds: object, size: int) -> Box:
        """From public bounds: (low, high), numbers or one per feature."""
        units = FeatureUnits.of(feature_bounds, size)
        return cls(units.low, units.high)

    @property
    def live(self) -> NDArray[np.bool_]:
        """Features whose bounds leave a choice."""
        return self.high > self.low

    @property
    def centre(self) -> Array:
        """What becomes 0."""
        return np.asarray(self.low / 2 + self.high / 2)

    @property
    def half(self) -> Array:
        """Half the width: what becomes 1; 1 where there is none."""
        half = self.high / 2 - self.low / 2
        return np.where(self.live & (half > 0), half, 1.0)

    def clip(self, X: Array) -> Array:
        """Values outside are moved to the nearest bound, silently: a message would tell about a record."""
        return np.clip(X, self.low, self.high)

    def unit(self, X: Array) -> Array:
        """The box mapped to [−1, 1]^p."""
        return np.clip((self.clip(X) - self.centre) / self.half, -1.0, 1.0)  # rounding must not leave it


class AffineScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """z = (x − centre)/scale, x clipped to the public box and z to [−reach, reach]; dense tables only."""

    _box: Box
    _centre: Array
    _scale: Array
    _reach: float

    def transform(self, X: Any) -> Any:
        """Scaled and clipped features.

        Args:
            X: (n, p).

        Returns:
            (n, p), every entry within the stated reach.
        """
        check_is_fitted(self)
        values = checked(self, X, reset=False)
        with np.errstate(over="ignore"):
            z = (self._box.clip(values) - self._centre) / self._scale
        return np.clip(z, -self._reach, self._reach)

    def inverse_transform(self, Z: Any) -> Array:
        """Back to the user's units; what was clipped stays clipped.

        Args:
            Z: (n, p) scaled features.

        Returns:
            (n, p).

        Raises:
            InvalidInput: if the number of features differs.
        """
        check_is_fitted(self)
        values = quiet(check_array, Z, dtype=np.float64)
        if values.shape[1] != len(self._scale):
            raise InvalidInput(f"Z has {values.shape[1]} features, {len(self._scale)} were fitted")
        return self._box.clip(self._centre + self._scale * np.clip(values, -self._reach, self._reach))
