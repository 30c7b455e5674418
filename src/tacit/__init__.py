"""Tacit: models trained under differential privacy beyond DP-SGD, each with a certificate.

Names are loaded on first use, so that ``import tacit`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "Adjacency": "tacit.mechanism",
    "Certificate": "tacit.accounting",
    "Convolution": "tacit.problem.layers",
    "DPBlockMLPClassifier": "tacit.estimators",
    "DPBlockMLPRegressor": "tacit.estimators",
    "DPConvexReLUClassifier": "tacit.estimators",
    "DPConvexReLURegressor": "tacit.estimators",
    "DPElasticNet": "tacit.estimators",
    "DPGeneralizedLinear": "tacit.estimators",
    "DPHuberRegressor": "tacit.estimators",
    "DPLasso": "tacit.estimators",
    "DPLinearRegression": "tacit.estimators",
    "DPLinearSVC": "tacit.estimators",
    "DPLogisticRegression": "tacit.estimators",
    "DPNMF": "tacit.estimators",
    "DPRidge": "tacit.estimators",
    "DPSelection": "tacit.estimators",
    "DPSoftmaxRegression": "tacit.estimators",
    "Dense": "tacit.problem.layers",
    "FactorNode": "tacit.federated",
    "FederatedNMF": "tacit.federated",
    "Ledger": "tacit.ledger",
    "Mechanism": "tacit.mechanism",
    "Plan": "tacit.mechanism",
    "TacitError": "tacit.errors",
    "audit_gdp": "tacit.audit",
    "calibrate": "tacit.accounting",
    "certify": "tacit.accounting",
    "load_model": "tacit.estimators",
    "plan_blocks": "tacit.solvers.blocks",
    "plan_cyclic": "tacit.solvers.hidden",
    "save_model": "tacit.estimators",
}

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
