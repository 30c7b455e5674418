"""scikit-learn's own checks, for every estimator that is defined, without exceptions."""

from __future__ import annotations

import pytest
from contracts import WEIGHTS, models
from sklearn.base import clone, is_classifier, is_regressor
from sklearn.utils.estimator_checks import parametrize_with_checks

from tacit.estimators import (
    DPBlockMLPClassifier,
    DPBlockMLPRegressor,
    DPConvexReLUClassifier,
    DPConvexReLURegressor,
    DPElasticNet,
    DPGammaRegressor,
    DPGeneralizedLinear,
    DPHuberRegressor,
    DPLasso,
    DPLinearRegression,
    DPLinearSVC,
    DPLogisticRegression,
    DPPoissonRegressor,
    DPRidge,
    DPSoftmaxRegression,
    base,
    load_all,
)
from tacit.problem import ElasticNet

MUCH = {"epsilon": 1e5, "delta": 1e-3, "feature_bounds": (-50, 50), "random_state": 0}
REGRESSION = {**MUCH, "target_bounds": (-20, 20)}
NORMED = {"epsilon": 1e5, "delta": 1e-3, "feature_norm": 6.0, "clip": 1.0, "random_state": 0}
ESTIMATORS = [
    DPSoftmaxRegression(**NORMED),
    DPConvexReLUClassifier(4, **NORMED),
    DPConvexReLURegressor(4, **{**NORMED, "clip": 2.0}, target_bounds=(-5, 5)),
    DPBlockMLPClassifier((8,), **{**MUCH, "feature_bounds": (-6, 6)}, batch_size=10, sampling="cyclic"),
    DPBlockMLPRegressor(
        (8,),
        **{**MUCH, "feature_bounds": (-6, 6), "target_bounds": (-5, 5)},
        sampling="cyclic",
        epochs=100,
    ),
    DPLasso(0.01, **REGRESSION),
    DPElasticNet(0.01, **REGRESSION),
    DPRidge(**REGRESSION),
    DPLinearRegression(**REGRESSION),
    DPHuberRegressor(**REGRESSION),
    DPPoissonRegressor(**{**REGRESSION, "target_bounds": (0, 20)}),
    DPGammaRegressor(**{**REGRESSION, "target_bounds": (1, 20)}),
    DPLogisticRegression(**MUCH),
    DPLinearSVC(**MUCH),
    DPGeneralizedLinear("squared", **REGRESSION),
    DPGeneralizedLinear("logistic", **MUCH),
]
load_all()
ELSEWHERE = {"DPNMF", "DPQuantileScaler", "DPStandardScaler"}  # test_nmf.py, test_scaler_contract.py
LISTED = {type(model).__name__ for model in ESTIMATORS} | ELSEWHERE
ESTIMATORS += models(base.ESTIMATORS, without=LISTED).values()


@parametrize_with_checks(ESTIMATORS, expected_failed_checks=lambda _: WEIGHTS, xfail_strict=False)  # some never weigh
def test_scikit_learn_is_content(estimator, check):
    check(estimator)


@pytest.mark.parametrize("loss", ["squared", "huber", "logistic", "smoothed-hinge"])
def test_the_loss_decides_what_a_generalized_linear_model_is(loss):
    model = DPGeneralizedLinear(loss)
    margin = loss in {"logistic", "smoothed-hinge"}
    assert (is_classifier(model), is_regressor(model)) == (margin, not margin)
    assert hasattr(model, "decision_function") == margin


def test_a_subclass_may_have_parameters_of_its_own():
    class Bounded(DPRidge):
        def __init__(self, extra=1, *, epsilon=1.0):
            super().__init__(epsilon=epsilon)
            self.extra = extra

    assert clone(Bounded(3, epsilon=2.0)).get_params() == {"extra": 3, "epsilon": 2.0}


def test_a_penalty_object_survives_cloning():
    penalty = ElasticNet.of(3, l1=0.1)
    assert clone(DPGeneralizedLinear(penalty=penalty)).penalty.size == 3
