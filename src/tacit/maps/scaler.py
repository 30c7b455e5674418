"""Scaling by public bounds, for pipelines of scikit-learn's: free of cost."""

from __future__ import annotations

from math import sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted

from tacit.errors import InvalidInput
from tacit.inputs.parameters import bounds_of
from tacit.inputs.tables import check_entries, sanitise_errors, validate_shape, validate_table
from tacit.maps.rows import FeatureBounds
from tacit.maps.steps import norm_of_rows, public_step

__all__ = ["BoundsScaler", "ScalerMixin", "scaled_norm"]

Array = NDArray[np.float64]


class ScalerMixin(OneToOneFeatureMixin, TransformerMixin):  # type: ignore[misc]
    """The face of a fitted ``FeatureBounds`` for scikit-learn, in ``_map``; dense tables only."""

    _map: FeatureBounds

    def transform(self, X: Any) -> Any:
        """Scaled and clipped features.

        Args:
            X: (n, p).

        Returns:
            (n, p), every entry within the stated reach.
        """
        check_is_fitted(self)
        values = validate_table(self, X, reset=False, dtype=np.float64)
        with np.errstate(all="ignore"):  # a warning would tell about a record
            return self._map(values)

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
        check_entries("Z", Z)
        values = sanitise_errors(check_array, Z, dtype=np.float64, input_name="Z")
        if values.shape[1] != len(self._map.scale):
            raise InvalidInput(f"Z has {values.shape[1]} features, {len(self._map.scale)} were fitted")
        return self._map.inverse(values)


def scaled_norm(scaler: ScalerMixin) -> float:
    """The ℓ2 norm that no row of a fitted scaler's output exceeds."""
    return scaler._map.reach * sqrt(len(scaler._map.scale))


@norm_of_rows(scaled_norm)
@public_step
class BoundsScaler(ScalerMixin, BaseEstimator):  # type: ignore[misc]
    """Map features to [−1, 1] by public bounds: z = (x − (low+high)/2) / ((high−low)/2).

    Values outside are clipped silently. A feature whose bounds coincide becomes 0. Bounds (0, 1) are mapped, too.

    *Formal guarantee.* The fitted scaler is a function of public arguments and the number of features, so it costs
    nothing: ``certificate_`` is None.

    *Assumptions.* The bounds were not read off the data. NaN and infinite values are refused.

    Args:
        feature_bounds: (low, high), numbers or one per feature.

    Attributes:
        scale_: half the width of each feature's interval (1 if it has none).
        certificate_: None.
        n_features_in_: p.

    >>> import numpy as np
    >>> BoundsScaler(feature_bounds=(0, 10)).fit_transform(np.array([[0.0], [5.0], [99.0]])).ravel().tolist()
    [-1.0, 0.0, 1.0]
    """

    def __init__(self, feature_bounds: Any = None) -> None:
        self.feature_bounds = feature_bounds

    def fit(self, X: Any, y: object = None) -> Self:
        """Read the number (and names) of features.

        Args:
            X: (n, p).
            y: ignored.

        Returns:
            Itself.
        """
        _, p = validate_shape(self, X)
        scaler = FeatureBounds.centred(*bounds_of("feature_bounds", self.feature_bounds, p))
        validate_table(self, X)
        self.__dict__.update(_map=scaler, scale_=scaler.safe_scale, certificate_=None)
        return self
