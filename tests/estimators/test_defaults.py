"""What is minimised where the user says nothing is what scikit-learn minimises then, or what the docs state instead."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize
from sklearn.linear_model import (
    ElasticNet,
    GammaRegressor,
    HuberRegressor,
    Lasso,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
)

from tacit.estimators import (
    DPElasticNet,
    DPGammaRegressor,
    DPGeneralizedLinear,
    DPHuberRegressor,
    DPLasso,
    DPLinearSVC,
    DPLogisticRegression,
    DPPoissonRegressor,
    DPRidge,
)
from tacit.problem import SmoothedHinge

N = 300  # few records: defaults of 1/n are strong enough to be seen
LOW, HIGH = np.array([-0.4, 20.0, 0.0]), np.array([0.4, 22.0, 1.0])
MUCH = {"epsilon": 1e7, "delta": 1e-3, "feature_bounds": (LOW, HIGH), "random_state": 0, "arithmetic": "float"}
TARGET = (-30.0, 50.0)


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(0).uniform(LOW, HIGH, (N, 3))


@pytest.fixture(scope="module")
def numbers(X):
    signal = X @ [15.0, 4.0, -6.0]
    return signal - signal.mean() + np.random.default_rng(1).normal(0, 3, N)


@pytest.fixture(scope="module")
def labels(X):
    signal = X @ [4.0, 1.0, -2.0]
    return (signal - signal.mean() + np.random.default_rng(2).logistic(size=N) > 0).astype(int)


@pytest.fixture(scope="module")
def counts(X):
    return np.random.default_rng(3).poisson(np.exp(X @ [1.0, 0.1, 1.0] - 1.5)).astype(float)


def same(model, reference, rel=2e-3):
    size = np.abs(np.ravel(reference.coef_)).max()
    assert np.ravel(model.coef_) == pytest.approx(np.ravel(reference.coef_), rel=rel, abs=rel * size)
    assert np.ravel(model.intercept_) == pytest.approx(np.ravel(reference.intercept_), rel=rel, abs=rel * 20)


def differs(reference, other):
    """The default is strong enough on this table for a wrong one to be noticed."""
    assert np.abs(np.ravel(reference.coef_) - np.ravel(other.coef_)).max() > 0.01


def test_ridge(X, numbers):
    reference = Ridge().fit(X, numbers)
    same(DPRidge(**MUCH, target_bounds=TARGET).fit(X, numbers), reference)
    differs(reference, Ridge(1e-9).fit(X, numbers))


def test_logistic_regression(X, labels):
    reference = LogisticRegression(tol=1e-8, max_iter=1000).fit(X, labels)
    same(DPLogisticRegression(**MUCH, classes=[0, 1]).fit(X, labels), reference)
    differs(reference, LogisticRegression(C=10, tol=1e-8, max_iter=1000).fit(X, labels))


def test_any_loss_takes_the_same_ridge(X, numbers, labels):
    same(DPGeneralizedLinear(**MUCH, target_bounds=TARGET).fit(X, numbers), Ridge().fit(X, numbers))
    model = DPGeneralizedLinear("logistic", **MUCH, classes=[0, 1]).fit(X, labels)
    same(model, LogisticRegression(tol=1e-8, max_iter=1000).fit(X, labels))


def test_support_vectors(X, labels):
    """C = 1 of scikit-learn's LinearSVC, for our smoothed hinge and without a penalty on the intercept."""
    Z, signs = X - X.mean(axis=0), np.where(labels == 1, 1.0, -1.0)
    bounds = (LOW - X.mean(axis=0), HIGH - X.mean(axis=0))
    model = DPLinearSVC(**{**MUCH, "feature_bounds": bounds}, classes=[0, 1]).fit(Z, labels)

    def objective(v):
        return SmoothedHinge(0.5).value(Z @ v[1:] + v[0], signs).sum() + np.square(v[1:]).sum() / 2

    best = optimize.minimize(objective, np.zeros(4), tol=1e-10)
    ours = np.append(model.intercept_, model.coef_)
    assert objective(ours) == pytest.approx(objective(best.x), rel=1e-4)
    assert ours == pytest.approx(best.x, abs=0.02)


def test_counts(X, counts):
    reference = PoissonRegressor(tol=1e-10, max_iter=1000).fit(X, counts)
    same(DPPoissonRegressor(**MUCH, target_bounds=(0, 20)).fit(X, counts), reference, rel=5e-3)
    differs(reference, PoissonRegressor(alpha=0.3, tol=1e-10).fit(X, counts))


def test_positive_amounts(X, counts):
    amounts = counts + 0.5
    reference = GammaRegressor(tol=1e-10, max_iter=1000).fit(X, amounts)
    same(DPGammaRegressor(**MUCH, target_bounds=(0.4, 30)).fit(X, amounts), reference, rel=5e-3)
    differs(reference, GammaRegressor(alpha=0.3, tol=1e-10).fit(X, amounts))


def test_huber_with_the_corner_of_scikit_learn(X, numbers):
    """Σ (σ + σ·H(r/σ)) + 1e-4·‖w‖² has the optimum of the mean of huber(r; 1.35·σ) + 1e-4·σ/n/2·‖w‖²."""
    reference = HuberRegressor(tol=1e-10, max_iter=10_000, alpha=1e-4).fit(X, numbers)
    corner = 1.35 * reference.scale_
    same(DPHuberRegressor(**MUCH, target_bounds=TARGET, huber_delta=corner).fit(X, numbers), reference, rel=5e-3)


def test_the_corner_of_huber_is_in_units_of_the_bounds(X, numbers):
    default = DPHuberRegressor(0.0, **MUCH, target_bounds=TARGET).fit(X, numbers)
    stated = DPHuberRegressor(0.0, **MUCH, target_bounds=TARGET, huber_delta=40 / 3).fit(X, numbers)
    assert default.coef_ == pytest.approx(stated.coef_, rel=1e-9)
    grams = DPHuberRegressor(0.0, **MUCH, target_bounds=(-30e3, 50e3)).fit(X, 1e3 * numbers)
    assert grams.coef_ == pytest.approx(1e3 * default.coef_, rel=1e-4)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(DPLasso, lambda alpha: Lasso(alpha, tol=1e-12)), (DPElasticNet, lambda alpha: ElasticNet(alpha, tol=1e-12))],
)
def test_lasso_and_elastic_net_are_measured_by_the_bounds(ours, theirs, X, numbers):
    """1/n on coefficients of features and target that lie within ±1 (within 0 and 1 where those are the bounds)."""
    centre, half = np.array([0.0, 21.0, 0.0]), np.array([0.4, 1.0, 1.0])
    reference = theirs(1 / N).fit((X - centre) / half, (numbers - 10) / 40)
    model = ours(**MUCH, target_bounds=TARGET).fit(X, numbers)
    assert model.coef_ == pytest.approx(40 * reference.coef_ / half, rel=2e-3)
    none = theirs(1e-9).fit((X - centre) / half, (numbers - 10) / 40)
    differs(reference, none)
    inch = np.array([0.0254, 0.0254, 1.0])  # bounds of 0 and 1 stay as they are
    inches = ours(**{**MUCH, "feature_bounds": (LOW / inch, HIGH / inch)}, target_bounds=TARGET)
    assert inches.fit(X / inch, numbers).coef_ == pytest.approx(inch * model.coef_, rel=2e-3)


def test_stated_strengths_mean_what_they_meant(X, numbers):
    same(DPRidge(0.1, **MUCH, target_bounds=TARGET).fit(X, numbers), Ridge(0.1 * N).fit(X, numbers))
    same(DPLasso(0.2, **MUCH, target_bounds=TARGET).fit(X, numbers), Lasso(0.2, tol=1e-12).fit(X, numbers))


def test_a_secret_count_is_released_first(X, labels):
    model = DPLogisticRegression(**MUCH, classes=[0, 1], adjacency="add-remove").fit(X, labels)
    assert model.certificate_.plan.parts[0].label == "noisy count"
    same(model, LogisticRegression(tol=1e-8, max_iter=1000).fit(X, labels))
