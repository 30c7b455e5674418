"""Estimators with scikit-learn's interface, each with a certificate."""

from tacit.estimators.block_networks import DPBlockMLPClassifier, DPBlockMLPRegressor
from tacit.estimators.classification import DPLinearSVC, DPLogisticRegression
from tacit.estimators.factorise import DPNMF
from tacit.estimators.generalized import DPGeneralizedLinear
from tacit.estimators.networks import DPConvexReLUClassifier, DPConvexReLURegressor, DPSoftmaxRegression
from tacit.estimators.regression import DPElasticNet, DPHuberRegressor, DPLasso, DPLinearRegression, DPRidge
from tacit.estimators.saving import load_model, save_model
from tacit.estimators.selection import DPSelection

__all__ = [
    "DPNMF",
    "DPBlockMLPClassifier",
    "DPBlockMLPRegressor",
    "DPConvexReLUClassifier",
    "DPConvexReLURegressor",
    "DPElasticNet",
    "DPGeneralizedLinear",
    "DPHuberRegressor",
    "DPLasso",
    "DPLinearRegression",
    "DPLinearSVC",
    "DPLogisticRegression",
    "DPRidge",
    "DPSelection",
    "DPSoftmaxRegression",
    "load_model",
    "save_model",
]
