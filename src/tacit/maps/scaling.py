"""Rows of bounded length."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import OneToOneFeatureMixin

from tacit import _validate
from tacit.maps.feature_map import FeatureMap
from tacit.maps.lengths import public_norm, scaled, scaled_down
from tacit.maps.steps import public_step

__all__ = ["NormScaler"]


@public_step
class NormScaler(OneToOneFeatureMixin, FeatureMap):  # type: ignore[misc]
    """x·min(1, norm/‖x‖), or x·norm/‖x‖; a zero row stays zero.

    *Formal guarantee.* Every row of the output has ℓ2 norm at most ``norm``, also after rounding, for every finite
    record: entries of 1e300 do not overflow, entries of 1e-300 do not vanish. Rows within the norm (less 1e-6 of it for
    float32, 1e-12 for float64) are returned to the bit by ``how="clip"``. See ``FeatureMap``.

    *Assumptions.* See ``FeatureMap``.

    Args:
        norm: the bound, from 1e-30 to 1e30.
        how: "clip" scales longer rows down, "normalise" brings every row but zero ones to the norm.

    Attributes:
        certificate_: None.
        n_features_in_: p.

    >>> NormScaler().fit_transform([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]).round(6).tolist()
    [[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]
    >>> NormScaler(10.0, how="normalise").fit_transform([[3e300, 4e300], [3e-300, 4e-300]]).round(6).tolist()
    [[6.0, 8.0], [6.0, 8.0]]
    """

    def __init__(self, norm: float = 1.0, how: str = "clip") -> None:
        self.norm = norm
        self.how = how

    def _prepare(self, p: int) -> int:
        _validate.one_of(("clip", "normalise"), how=self.how)
        return p

    def _rows(self, x: NDArray[Any]) -> NDArray[Any]:
        norm = public_norm(norm=self.norm)
        return np.asarray(scaled_down(x, norm) if self.how == "clip" else scaled(x, norm))

    def _norm(self, input_norm: float | None) -> float:
        norm = public_norm(norm=self.norm)
        return norm if input_norm is None or self.how != "clip" else min(norm, input_norm)
