"""Private models, transformers and statistics, under the names people know. Names are loaded on first use."""

from __future__ import annotations

import importlib
from typing import Any

from tacit._registry import load_folder

_HOMES = {
    "DPBlockMLPClassifier": "block_networks",
    "DPBlockMLPRegressor": "block_networks",
    "DPConvexReLUClassifier": "convex_relu",
    "DPConvexReLURegressor": "convex_relu",
    "DPElasticNet": "regression",
    "DPGeneralizedLinear": "generalized",
    "DPGammaRegressor": "positive",
    "DPHuberRegressor": "regression",
    "DPLasso": "regression",
    "DPLinearRegression": "regression",
    "DPLinearSVC": "classification",
    "DPLogisticRegression": "classification",
    "DPNMF": "nmf",
    "DPPoissonRegressor": "positive",
    "DPQuantileScaler": "scalers",
    "DPRidge": "regression",
    "DPSelection": "selection",
    "DPSoftmaxRegression": "softmax",
    "DPStandardScaler": "scalers",
    "certificate_of": "certificates",
    "clipping_report": "exploration",
    "load_model": "files",
    "private_histogram": "exploration",
    "private_mean": "statistics",
    "private_quantiles": "statistics",
    "private_variance": "statistics",
    "save_model": "files",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    if name.startswith("DP"):  # an estimator is found in whatever file of this folder defines it
        from tacit.estimators.base import ESTIMATORS

        load_all()
        if name in ESTIMATORS:
            return ESTIMATORS[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_all() -> None:
    """Import every module of this package, so that every estimator has registered itself."""
    load_folder(__name__, __path__)
