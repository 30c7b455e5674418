"""With next to no noise, every estimator and solver finds the optimum of the objective that its docstring states.

Features differ in scale by six orders of magnitude and none is centred, so a penalty that stood on mapped coefficients,
touched the intercept, or missed the scale of the target would be far off; ``test_wrong_scalings_would_be_noticed``
shows how far.
"""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, sparse
from sklearn.linear_model import ElasticNet, Lasso, LogisticRegression, Ridge

from tacit.estimators import (
    DPElasticNet,
    DPGeneralizedLinear,
    DPHuberRegressor,
    DPLasso,
    DPLinearRegression,
    DPLinearSVC,
    DPLogisticRegression,
    DPRidge,
)
from tacit.estimators.base import Table
from tacit.estimators.linear import LinearModel
from tacit.maps import feature_bounds, target_bounds
from tacit.problem import ElasticNet as Penalty
from tacit.problem import Huber, Logistic, SmoothedHinge, Squared
from tacit.records import InMemory
from tacit.solvers import Budget, Solution

N = 3000
SCALE = np.array([1e-3, 1.0, 50.0, 1e3, 0.2])
OFFSET = np.array([5.0, -3.0, 1000.0, 100.0, 7.0])
BOUNDS = (OFFSET - SCALE, OFFSET + SCALE)
TARGET = (100.0, 400.0)
MUCH = {"epsilon": 1e6, "delta": 1e-4, "feature_bounds": BOUNDS, "random_state": 0}
KNEE, WIDTH = 20.0, 0.5
SQUARED_SOLVERS = ["auto", "coordinate", "gradient", "statistics", "cyclic"]
OTHER_SOLVERS = ["auto", "coordinate", "gradient", "cyclic"]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    U = rng.uniform(-1, 1, (N, 5))
    X = OFFSET + SCALE * U
    signal = U @ [25.0, -30.0, 20.0, 10.0, 0.0]
    y = np.clip(260 + signal + rng.normal(0, 20, N), *TARGET)
    labels = np.where(signal / 8 + 1 + rng.logistic(size=N) > 0, "yes", "no")
    return X, y, labels


class Objective:
    """1/n Σ φ + l1 ‖w‖₁ + l2/2 ‖w‖², written down once more, in the user's units."""

    def __init__(self, X, y, kind, l1=0.0, l2=0.0):
        self.X, self.y, self.kind, self.l1, self.l2 = X, y, kind, l1, l2

    def __call__(self, w, b):
        scores = self.X @ np.ravel(w) + np.ravel(b)[0]
        signs = np.where(self.y == "yes", 1.0, -1.0) if self.kind in {"logistic", "hinge"} else None
        if self.kind == "squared":
            losses = (scores - self.y) ** 2 / 2
        elif self.kind == "huber":
            r = np.abs(scores - self.y)
            losses = np.where(r <= KNEE, r * r / 2, KNEE * r - KNEE**2 / 2)
        elif self.kind == "logistic":
            losses = np.log1p(np.exp(-signs * scores))
        else:
            m = signs * scores
            losses = np.where(m >= 1, 0.0, np.where(m <= 1 - WIDTH, 1 - m - WIDTH / 2, (1 - m) ** 2 / (2 * WIDTH)))
        return losses.mean() + self.l1 * np.abs(w).sum() + self.l2 / 2 * np.square(w).sum()

    def minimum(self):
        """By a quasi-Newton method on well-scaled variables; for smooth objectives."""
        scale = 50.0 if self.kind in {"squared", "huber"} else 1.0

        def f(v):
            w = scale * v[1:] / SCALE
            return self(w, scale * v[0] + 250 * (scale > 1) - w @ OFFSET)

        found = optimize.minimize(f, np.zeros(6), method="BFGS", options={"gtol": 1e-7, "maxiter": 2000})
        w = scale * found.x[1:] / SCALE
        return w, scale * found.x[0] + 250 * (scale > 1) - w @ OFFSET

    def constant(self):
        """The best model without features."""
        found = optimize.minimize_scalar(lambda b: self(np.zeros(5), b), bounds=(-500, 500), method="bounded")
        return self(np.zeros(5), found.x)

    def gap(self, w, b, best):
        """Relative to what features gain at all."""
        least = self(*best)
        return (self(w, b) - least) / (self.constant() - least)


def of(model):
    return model.coef_, model.intercept_


# -- regression -------------------------------------------------------------------------------------------------------

RIDGE, LASSO = 3e-7, 3e-3  # they nearly halve the first coefficient, of about 2.5e4


def ridge(X, y, alpha):
    return of(Ridge(N * alpha, solver="svd").fit(X, y))


CASES = {
    "ridge": (DPRidge, {"alpha": RIDGE}, {"l2": RIDGE}, lambda X, y: ridge(X, y, RIDGE)),
    "lasso": (
        DPLasso,
        {"alpha": LASSO},
        {"l1": LASSO},
        lambda X, y: of(Lasso(LASSO, tol=1e-10, max_iter=100_000).fit(X, y)),
    ),
    "elastic net": (
        DPElasticNet,
        {"alpha": LASSO, "l1_ratio": 0.9999},
        {"l1": LASSO * 0.9999, "l2": LASSO * (1 - 0.9999)},
        lambda X, y: of(ElasticNet(LASSO, l1_ratio=0.9999, tol=1e-10, max_iter=100_000).fit(X, y)),
    ),
    "least squares": (DPLinearRegression, {}, {}, lambda X, y: ridge(X, y, 1e-14)),
}


@pytest.mark.parametrize("solver", SQUARED_SOLVERS)
@pytest.mark.parametrize("name", CASES)
def test_least_squares_with_penalties(name, solver, data):
    kind, parameters, weights, reference = CASES[name]
    X, y, _ = data
    view = "final_model" if solver == "cyclic" else "all_iterates"
    model = kind(**parameters, **MUCH, target_bounds=TARGET, solver=solver, view=view).fit(X, y)
    gap = Objective(X, y, "squared", **weights).gap(*of(model), reference(X, y))
    assert -1e-6 < gap < 1e-4


def test_least_squares_by_stochastic_gradients(data):
    X, y, _ = data
    model = DPRidge(RIDGE, **{**MUCH, "epsilon": 300}, target_bounds=TARGET, solver="sgd").fit(X, y)
    assert -1e-6 < Objective(X, y, "squared", l2=RIDGE).gap(*of(model), ridge(X, y, RIDGE)) < 4e-3


def test_coordinate_descent_survives_a_noisy_smoothness():
    # Wide bounds: the mean square of a mapped feature, 4e-4, is a few times the noise of its release.
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 10))
    y = X[:, 0] + rng.normal(0, 0.5, 200)
    settings = {"epsilon": 1e5, "delta": 1e-3, "feature_bounds": (-50, 50), "target_bounds": (-20, 20)}
    models = [DPRidge(**settings, solver="coordinate", random_state=seed).fit(X, y) for seed in range(20)]
    assert min(model.score(X, y) for model in models) > 0.5


@pytest.mark.parametrize("solver", OTHER_SOLVERS)
def test_huber(solver, data):
    X, y, _ = data
    objective = Objective(X, y, "huber", l2=RIDGE)
    view = "final_model" if solver == "cyclic" else "all_iterates"
    model = DPHuberRegressor(RIDGE, huber_delta=KNEE, **MUCH, target_bounds=TARGET, solver=solver, view=view).fit(X, y)
    assert -1e-6 < objective.gap(*of(model), objective.minimum()) < (1e-2 if solver == "coordinate" else 1e-3)


# -- classification ---------------------------------------------------------------------------------------------------

LOGISTIC = 1e-8


@pytest.mark.parametrize("solver", OTHER_SOLVERS)
def test_logistic(solver, data):
    X, _, y = data
    objective = Objective(X, y, "logistic", l2=LOGISTIC)
    best = of(LogisticRegression(C=1 / (N * LOGISTIC), solver="newton-cholesky", tol=1e-10).fit(X, y))
    np.testing.assert_allclose(objective(*best), objective(*objective.minimum()), rtol=1e-6)
    view = "final_model" if solver == "cyclic" else "all_iterates"
    model = DPLogisticRegression(LOGISTIC, **MUCH, classes=["no", "yes"], solver=solver, view=view).fit(X, y)
    assert -1e-6 < objective.gap(*of(model), best) < 2e-3


@pytest.mark.parametrize("solver", OTHER_SOLVERS)
def test_smoothed_hinge(solver, data):
    X, _, y = data
    objective = Objective(X, y, "hinge", l2=LOGISTIC)
    view = "final_model" if solver == "cyclic" else "all_iterates"
    model = DPLinearSVC(LOGISTIC, width=WIDTH, **MUCH, classes=["no", "yes"], solver=solver, view=view).fit(X, y)
    assert -1e-6 < objective.gap(*of(model), objective.minimum()) < (3e-2 if solver == "gradient" else 3e-3)


def test_a_box_holds_in_the_users_units(data):
    X, y, _ = data
    model = DPGeneralizedLinear(
        "squared", "box", alpha=0.0, box=(-10.0, 2e4), **MUCH, target_bounds=TARGET, solver="coordinate"
    ).fit(X, y)
    free, _ = ridge(X, y, 1e-14)
    assert free[0] > 2e4
    assert free[1] < -10
    np.testing.assert_allclose(model.coef_[:2], [2e4, -10.0])
    assert (model.coef_ >= -10).all()


def test_wrong_scalings_would_be_noticed(data):
    X, y, labels = data
    U = (X - OFFSET) / SCALE
    w, b = of(Ridge(N * RIDGE).fit(U, y))
    fixed = of(Ridge(N * RIDGE, fit_intercept=False, solver="svd").fit(np.column_stack([X, np.ones(N)]), y))[0]
    wrong = {
        "half": ridge(X, y, RIDGE / 2),
        "more": ridge(X, y, RIDGE * 1.5),
        "the target's scale": ridge(X, y, RIDGE * 150),
        "mapped coefficients": (w / SCALE, b - w / SCALE @ OFFSET),
        "a penalised intercept": (fixed[:5], fixed[5]),
    }
    objective, best = Objective(X, y, "squared", l2=RIDGE), ridge(X, y, RIDGE)
    for name, there in wrong.items():
        assert objective.gap(*there, best) > 5e-3, name
    lasso = Objective(X, y, "squared", l1=LASSO)
    for factor in (0.5, 1.5):
        off = Lasso(LASSO * factor, tol=1e-10, max_iter=100_000).fit(X, y)
        assert lasso.gap(*of(off), CASES["lasso"][3](X, y)) > 5e-3
    logistic = Objective(X, labels, "logistic", l2=LOGISTIC)
    for factor in (0.5, 2):
        off = Objective(X, labels, "logistic", l2=LOGISTIC * factor).minimum()
        assert logistic.gap(*off, logistic.minimum()) > 5e-3


# -- the translation of the penalty is exact --------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["dense", "sparse"])
@pytest.mark.parametrize("intercept", [True, False])
@pytest.mark.parametrize("loss", [Squared(), Huber(KNEE), Logistic(), SmoothedHinge(WIDTH)], ids=lambda loss: loss.name)
def test_the_mapped_objective_is_the_users(loss, intercept, form, data):
    X, y, labels = data
    low, high = BOUNDS
    if form == "sparse":
        X = np.where(np.random.default_rng(1).random(X.shape) < 0.5, X, 0.0)
        low, high = np.minimum(low, 0), np.maximum(high, 0)
    penalty = Penalty.of(5, l1=[0.3, 0.0, 2.0, 1e-3, 0.1], l2=[1e-4, 0.2, 0.0, 5.0, 1.0])
    stated = {"classes": ["no", "yes"]} if loss.labels else {"target_bounds": TARGET}
    stated |= {"feature_bounds": (low, high), "fit_intercept": intercept}
    model = DPGeneralizedLinear(loss, penalty, "gradient", **stated)
    fit = model._planned(Table(N, 5, sparse=form == "sparse", outputs=2), Budget(1.0, 1e-6))
    target = None if loss.labels else fit.targets[0]
    stored = sparse.csc_array(X) if form == "sparse" else X
    signs = np.where(labels == "yes", 1.0, -1.0)
    (rows,) = InMemory(stored, signs if target is None else y).through(fit.features, target).parts()
    unit = 1.0 if target is None else target.scale**2
    rng = np.random.default_rng(2)
    for _ in range(20):
        v = rng.normal(size=fit.problem.facts.size) * 10 ** rng.uniform(-2, 1)
        there = fit._in_user_units(Solution(v))
        scores = X @ there.coef + there.intercept
        losses = loss.value(scores, signs if target is None else y)
        users = losses.mean() + penalty.l1 @ np.abs(there.coef) + penalty.l2 @ there.coef**2 / 2
        mapped = fit.problem.loss.value(rows.design.dot(v), rows.y).mean() + fit.problem.penalty.value(v)
        np.testing.assert_allclose(unit * mapped, users, rtol=1e-8)
        if not intercept:
            assert there.intercept == 0


def test_limits_of_coefficients_are_translated_too():
    bounds = ([0.0, -5.0], [1.0, 15.0])
    units, target = feature_bounds(bounds, 2), target_bounds((0.0, 8.0))
    model = DPGeneralizedLinear(
        "squared", Penalty.of(2, low=-3.0, high=6.0), "gradient", feature_bounds=bounds, target_bounds=(0.0, 8.0)
    )
    task = model._planned(Table(10, 2), Budget(1.0, 1e-6)).problem
    np.testing.assert_allclose(task.penalty.low[1:] * target.scale / units.scale, -3.0)
    np.testing.assert_allclose(task.penalty.high[1:] * target.scale / units.scale, 6.0)
    assert task.penalty.low[0] == -np.inf
    assert task.penalty.l2[0] == 0


@pytest.mark.parametrize("kind", [DPRidge, DPLasso, DPElasticNet, DPHuberRegressor, DPLogisticRegression, DPLinearSVC])
def test_alpha_is_documented_on_the_users_coefficients(kind: type[LinearModel]):
    assert "on coefficients in the units of X" in (kind.__doc__ or "")
