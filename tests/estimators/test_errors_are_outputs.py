"""Whatever fits the schema is fitted: no value of a finite table raises or warns, in any estimator."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from sklearn.base import clone

import tacit.estimators as models
from tacit.errors import InvalidInput, PrivacyUtilityWarning
from tacit.estimators.base import ESTIMATORS
from tacit.estimators.stored import load_all
from tacit.problem import Squared

RNG = np.random.default_rng(0)
N = 60
X = RNG.uniform(0, 1, (N, 4))
CLASSES, TARGET = RNG.integers(0, 3, N), RNG.uniform(1, 2, N)
PROMISE = {"epsilon": 1.0, "delta": 1e-4}
BOUNDED = {**PROMISE, "feature_bounds": (0, 1)}
REGRESSION = {**BOUNDED, "target_bounds": (1, 2)}
LABELLED = {**BOUNDED, "classes": [0, 1, 2]}
NORMED = {**PROMISE, "feature_norm": 2.0, "clip": 1.0}
EVERY = {
    "DPLasso": [{**REGRESSION, "alpha": 0.01}],
    "DPElasticNet": [{**REGRESSION, "alpha": 0.01}],
    "DPRidge": [REGRESSION],
    "DPLinearRegression": [REGRESSION],
    "DPHuberRegressor": [REGRESSION],
    "DPPoissonRegressor": [REGRESSION],
    "DPGammaRegressor": [REGRESSION],
    "DPLogisticRegression": [LABELLED],
    "DPLinearSVC": [LABELLED],
    "DPGeneralizedLinear": [
        REGRESSION,
        {**LABELLED, "loss": "logistic"},
        {**REGRESSION, "solver": "coordinate"},
        {**REGRESSION, "solver": "gradient"},
        {**REGRESSION, "solver": "sgd"},
        {**REGRESSION, "solver": "metric"},
        {**REGRESSION, "solver": "statistics"},
    ],
    "DPSoftmaxRegression": [{**NORMED, "classes": [0, 1, 2]}],
    "DPConvexReLUClassifier": [{**NORMED, "classes": [0, 1, 2], "n_gates": 4}],
    "DPConvexReLURegressor": [{**NORMED, "target_bounds": (1, 2), "n_gates": 4}],
    "DPBlockMLPClassifier": [{**LABELLED, "hidden_layer_sizes": (4,)}],
    "DPBlockMLPRegressor": [{**REGRESSION, "hidden_layer_sizes": (4,)}],
    "DPNMF": [{**PROMISE, "n_components": 2, "row_norm": 2.0}],
    "DPStandardScaler": [BOUNDED],
    "DPQuantileScaler": [BOUNDED],
}
ROWS = {
    "large": 1e308,
    "negative": -1e308,
    "opposite": np.array([1e308, -1e308, 1e308, -1e308]),
    "denormal": 5e-324,
    "zero": 0.0,
    "minus zero": -0.0,
}
CASES = [(name, index) for name, options in EVERY.items() for index in range(len(options))]


def made(name: str, index: int):
    return getattr(models, name)(**EVERY[name][index])


def target_of(model) -> np.ndarray:
    return CLASSES if hasattr(model, "classes") and "target_bounds" not in _set(model) else TARGET


def _set(model) -> set[str]:
    return {key for key, value in model.get_params().items() if value is not None}


def fitted(model, table, target) -> None:
    """Fit, and fail at the first warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", PrivacyUtilityWarning)  # of public numbers
        clone(model).fit(table, target)


def test_every_estimator_is_walked():
    load_all()
    assert {name for name, kind in ESTIMATORS.items() if kind.__module__.startswith("tacit.")} <= EVERY.keys()


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize(("name", "index"), CASES)
def test_a_finite_row_is_not_told(name, index, row):
    model = made(name, index)
    table = X.copy()
    table[7] = ROWS[row]
    fitted(model, table, target_of(model))


@pytest.mark.parametrize("value", [1e308, -1e308, 5e-324, 0.0])
@pytest.mark.parametrize(("name", "index"), [(n, i) for n, i in CASES if "target_bounds" in EVERY[n][i]])
def test_a_finite_target_is_not_told(name, index, value):
    target = TARGET.copy()
    target[7] = value
    fitted(made(name, index), X, target)


@pytest.mark.parametrize(("name", "index"), CASES)
def test_records_that_are_all_alike_are_not_told(name, index):
    """Constant columns, one class only, a table of zeros."""
    model = made(name, index)
    for table in (np.zeros((N, 4)), np.tile(X[:1], (N, 1))):
        fitted(model, table, np.full(N, target_of(model)[0]))


@pytest.mark.parametrize(("name", "index"), [(n, i) for n, i in CASES if "classes" in EVERY[n][i]])
def test_the_one_message_about_classes_goes_with_a_declaration(name, index):
    """Without ``classes`` they are read off the data, which the certificate declares; stated, nothing depends on y."""
    stated = made(name, index)
    fitted(stated, X, np.zeros(N, int))
    read = clone(stated).set_params(classes=None)
    assert any("classes is public" in mark for mark in clone(read).fit(X, CLASSES).certificate_.marks)
    with pytest.raises(InvalidInput, match=r"pass classes=\[…\]"):
        clone(read).fit(X, np.zeros(N, int))


class _Touchy(Squared):
    """A loss that raises for large targets, and counts how often."""

    raised = 0

    def derivative(self, f, y):
        if (np.asarray(y) > 0.75).any():
            _Touchy.raised += 1
            raise ValueError("cannot take large targets")
        return f - y


@pytest.mark.parametrize("arithmetic", ["exact", "float"])
@pytest.mark.parametrize("solver", ["metric", "gradient", "coordinate", "sgd"])
def test_a_loss_that_raises_for_one_record_counts_it_as_zero(solver, arithmetic):
    """The exception would tell that the record is there; the others keep their contributions."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (300, 3))
    y = np.clip(X @ [0.5, -0.5, 0.2], -0.5, 0.5)
    model = models.DPGeneralizedLinear(
        _Touchy(), feature_bounds=(-1, 1), target_bounds=(-1, 1), epsilon=50.0, delta=1e-6, random_state=0
    ).set_params(solver=solver, arithmetic=arithmetic)
    before = _Touchy.raised
    plain = model.fit(X, y).coef_
    assert _Touchy.raised == before
    y[7] = 1.0
    found = model.fit(X, y).coef_
    assert _Touchy.raised > before
    np.testing.assert_allclose(found, plain, atol=0.2)
