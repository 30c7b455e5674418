"""Public maps of one row, each with a certified range. Transformers of scikit-learn's kind are loaded on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tacit.maps.bounds import FeatureBounds, TargetBounds, feature_bounds, target_bounds
from tacit.maps.rows import ROW_MAPS, AffineTarget, Columns, Linear, Range, RowMap, Standardise

if TYPE_CHECKING:
    from tacit.maps.one_hot import PublicOneHotEncoder as PublicOneHotEncoder
    from tacit.maps.scaler import BoundsScaler as BoundsScaler

_TRANSFORMERS = {"BoundsScaler": "scaler", "PublicOneHotEncoder": "one_hot"}

__all__ = [
    "ROW_MAPS",
    "AffineTarget",
    "BoundsScaler",
    "Columns",
    "FeatureBounds",
    "Linear",
    "PublicOneHotEncoder",
    "Range",
    "RowMap",
    "Standardise",
    "TargetBounds",
    "feature_bounds",
    "target_bounds",
]


def __getattr__(name: str) -> Any:
    if name in _TRANSFORMERS:
        return getattr(importlib.import_module(f"{__name__}.{_TRANSFORMERS[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
