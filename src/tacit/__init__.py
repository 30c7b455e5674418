"""Tacit: models trained under differential privacy beyond DP-SGD, each with a certificate.

Names are loaded on first use, so that ``import tacit`` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # what type checkers and editors see; ``tests/test_architecture.py`` holds it equal to ``_HOMES``
    from tacit.accounting import Certificate as Certificate
    from tacit.accounting import certify as certify
    from tacit.accounting.calibration import calibrate as calibrate
    from tacit.audit import audit_epsilon as audit_epsilon
    from tacit.audit import audit_gdp as audit_gdp
    from tacit.audit import audit_one_run as audit_one_run
    from tacit.errors import BudgetExhausted as BudgetExhausted
    from tacit.errors import ClusterError as ClusterError
    from tacit.errors import InvalidInput as InvalidInput
    from tacit.errors import LedgerCorrupt as LedgerCorrupt
    from tacit.errors import LedgerError as LedgerError
    from tacit.errors import MechanismMismatch as MechanismMismatch
    from tacit.errors import NotCovered as NotCovered
    from tacit.errors import PrivacyUtilityWarning as PrivacyUtilityWarning
    from tacit.errors import TacitError as TacitError
    from tacit.estimators import DPNMF as DPNMF
    from tacit.estimators import DPBlockMLPClassifier as DPBlockMLPClassifier
    from tacit.estimators import DPBlockMLPRegressor as DPBlockMLPRegressor
    from tacit.estimators import DPConvexReLUClassifier as DPConvexReLUClassifier
    from tacit.estimators import DPConvexReLURegressor as DPConvexReLURegressor
    from tacit.estimators import DPElasticNet as DPElasticNet
    from tacit.estimators import DPGammaRegressor as DPGammaRegressor
    from tacit.estimators import DPGeneralizedLinear as DPGeneralizedLinear
    from tacit.estimators import DPHuberRegressor as DPHuberRegressor
    from tacit.estimators import DPLasso as DPLasso
    from tacit.estimators import DPLinearRegression as DPLinearRegression
    from tacit.estimators import DPLinearSVC as DPLinearSVC
    from tacit.estimators import DPLogisticRegression as DPLogisticRegression
    from tacit.estimators import DPPoissonRegressor as DPPoissonRegressor
    from tacit.estimators import DPRidge as DPRidge
    from tacit.estimators import DPSelection as DPSelection
    from tacit.estimators import DPSoftmaxRegression as DPSoftmaxRegression
    from tacit.estimators import DPStandardScaler as DPStandardScaler
    from tacit.estimators import certificate_of as certificate_of
    from tacit.estimators import load_model as load_model
    from tacit.estimators import private_mean as private_mean
    from tacit.estimators import save_model as save_model
    from tacit.federation import FederatedNMF as FederatedNMF
    from tacit.federation import FederationError as FederationError
    from tacit.federation import LinkLost as LinkLost
    from tacit.ledger import Ledger as Ledger
    from tacit.mechanism import Adjacency as Adjacency
    from tacit.mechanism import Mechanism as Mechanism
    from tacit.mechanism import Plan as Plan
    from tacit.records import Schema as Schema
    from tacit.records import open_records as open_records

__version__ = "0.1.0"

_HOMES = {
    "Adjacency": "tacit.mechanism",
    "BudgetExhausted": "tacit.errors",
    "Certificate": "tacit.accounting",
    "ClusterError": "tacit.errors",
    "DPBlockMLPClassifier": "tacit.estimators",
    "DPBlockMLPRegressor": "tacit.estimators",
    "DPConvexReLUClassifier": "tacit.estimators",
    "DPConvexReLURegressor": "tacit.estimators",
    "DPElasticNet": "tacit.estimators",
    "DPGammaRegressor": "tacit.estimators",
    "DPGeneralizedLinear": "tacit.estimators",
    "DPHuberRegressor": "tacit.estimators",
    "DPLasso": "tacit.estimators",
    "DPLinearRegression": "tacit.estimators",
    "DPLinearSVC": "tacit.estimators",
    "DPLogisticRegression": "tacit.estimators",
    "DPNMF": "tacit.estimators",
    "DPPoissonRegressor": "tacit.estimators",
    "DPRidge": "tacit.estimators",
    "DPSelection": "tacit.estimators",
    "DPSoftmaxRegression": "tacit.estimators",
    "DPStandardScaler": "tacit.estimators",
    "FederatedNMF": "tacit.federation",
    "FederationError": "tacit.federation",
    "InvalidInput": "tacit.errors",
    "Ledger": "tacit.ledger",
    "LedgerCorrupt": "tacit.errors",
    "LedgerError": "tacit.errors",
    "LinkLost": "tacit.federation",
    "Mechanism": "tacit.mechanism",
    "MechanismMismatch": "tacit.errors",
    "NotCovered": "tacit.errors",
    "Plan": "tacit.mechanism",
    "PrivacyUtilityWarning": "tacit.errors",
    "Schema": "tacit.records",
    "TacitError": "tacit.errors",
    "audit_epsilon": "tacit.audit",
    "audit_gdp": "tacit.audit",
    "audit_one_run": "tacit.audit",
    "calibrate": "tacit.accounting.calibration",
    "certificate_of": "tacit.estimators",
    "certify": "tacit.accounting",
    "load_model": "tacit.estimators",
    "open_records": "tacit.records",
    "private_mean": "tacit.estimators",
    "save_model": "tacit.estimators",
}

__all__ = [*sorted(_HOMES), "__version__"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tacit' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
