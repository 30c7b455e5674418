"""Scaling by public bounds: free of cost."""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from tacit.preprocessing._affine import AffineScaler, Box
from tacit.preprocessing._table import checked, width

__all__ = ["BoundsScaler"]


class BoundsScaler(AffineScaler):
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
        self._box = Box.of(self.feature_bounds, width(self, X))
        checked(self, X, reset=True)
        self._centre, self._scale, self._reach = self._box.centre, self._box.half, 1.0
        self.scale_ = np.array(self._scale)
        self.certificate_ = None
        return self
