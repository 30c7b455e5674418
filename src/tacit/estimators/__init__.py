"""Estimators with scikit-learn's interface, each with a certificate."""

from tacit.estimators.classification import DPLinearSVC, DPLogisticRegression
from tacit.estimators.generalized import DPGeneralizedLinear
from tacit.estimators.regression import DPElasticNet, DPHuberRegressor, DPLasso, DPLinearRegression, DPRidge

__all__ = [
    "DPElasticNet",
    "DPGeneralizedLinear",
    "DPHuberRegressor",
    "DPLasso",
    "DPLinearRegression",
    "DPLinearSVC",
    "DPLogisticRegression",
    "DPRidge",
]
