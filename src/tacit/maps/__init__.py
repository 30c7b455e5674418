"""Public maps of one row, each with a certified range. Transformers of scikit-learn's kind are loaded on first use."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from tacit._registry import load_folder
from tacit.maps.norms import EqualNorm, NonnegativeRows, Shorten
from tacit.maps.rows import (
    ROW_MAPS,
    AffineTarget,
    Columns,
    FeatureBounds,
    Linear,
    Range,
    RowMap,
    Standardise,
    TargetBounds,
    feature_bounds,
    target_bounds,
)

if TYPE_CHECKING:
    from tacit.maps.certified import feature_norm as feature_norm
    from tacit.maps.certified import row_local as row_local
    from tacit.maps.chain import PublicSteps as PublicSteps
    from tacit.maps.deskew import Deskew as Deskew
    from tacit.maps.feature_map import FeatureMap as FeatureMap
    from tacit.maps.fourier import RandomFourier as RandomFourier
    from tacit.maps.gates import ReluGates as ReluGates
    from tacit.maps.hog import Hog as Hog
    from tacit.maps.join import Join as Join
    from tacit.maps.one_hot import PublicOneHotEncoder as PublicOneHotEncoder
    from tacit.maps.recipes import image_features as image_features
    from tacit.maps.relu import RandomRelu as RandomRelu
    from tacit.maps.scaler import BoundsScaler as BoundsScaler
    from tacit.maps.scaling import NormScaler as NormScaler
    from tacit.maps.steps import public_step as public_step
    from tacit.maps.streamed import Streamed as Streamed

_HOMES = {
    "BoundsScaler": "scaler",
    "Deskew": "deskew",
    "FeatureMap": "feature_map",
    "Hog": "hog",
    "Join": "join",
    "NormScaler": "scaling",
    "PublicOneHotEncoder": "one_hot",
    "PublicSteps": "chain",
    "RandomFourier": "fourier",
    "RandomRelu": "relu",
    "ReluGates": "gates",
    "Streamed": "streamed",
    "feature_norm": "certified",
    "image_features": "recipes",
    "public_step": "steps",
    "row_local": "certified",
}

__all__ = [
    "ROW_MAPS",
    "AffineTarget",
    "BoundsScaler",
    "Columns",
    "Deskew",
    "EqualNorm",
    "FeatureBounds",
    "FeatureMap",
    "Hog",
    "Join",
    "Linear",
    "NonnegativeRows",
    "NormScaler",
    "PublicOneHotEncoder",
    "PublicSteps",
    "RandomFourier",
    "RandomRelu",
    "Range",
    "ReluGates",
    "RowMap",
    "Shorten",
    "Standardise",
    "Streamed",
    "TargetBounds",
    "feature_bounds",
    "feature_norm",
    "image_features",
    "public_step",
    "row_local",
    "target_bounds",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_all() -> None:
    """Import every module of this package, so that every row map has registered itself."""
    load_folder(__name__, __path__)
