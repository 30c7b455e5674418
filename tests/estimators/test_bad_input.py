"""Bad input to every linear estimator: a true certificate and a finite model, or one line that shows no record."""

from __future__ import annotations

import warnings
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.exceptions import DataConversionWarning

from tacit._codec import decode as from_json
from tacit.errors import InvalidInput, PrivacyUtilityWarning, TacitError
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
from tacit.maps import FeatureBounds

MAP = FeatureBounds.__call__
SECRET = 123456.789
SECRETS = ("123456", "1.2345678", "hush", "999983")
COMMON = {"epsilon": 1.0, "delta": 1e-5, "feature_bounds": (-1, 1), "random_state": 0}
REGRESSION = {**COMMON, "target_bounds": (-2, 2)}
MODELS = {
    "lasso": DPLasso(0.01, **REGRESSION),
    "elastic net": DPElasticNet(0.01, **REGRESSION),
    "ridge": DPRidge(**REGRESSION),
    "least squares": DPLinearRegression(**REGRESSION),
    "huber": DPHuberRegressor(**REGRESSION),
    "logistic": DPLogisticRegression(**COMMON),
    "svc": DPLinearSVC(**COMMON),
    "box": DPGeneralizedLinear("squared", "box", box=(-1, 1), **REGRESSION),
    "sparse logistic": DPGeneralizedLinear("logistic", "l1", **COMMON),
}
FAST = ("auto", "metric", "coordinate", "gradient", "statistics")
SLOW = ("sgd", "cyclic")  # their noise is calibrated numerically
NUMBERS = [
    0,
    -1,
    float("nan"),
    float("inf"),
    -float("inf"),
    1e308,
    5e-324,
    1e-12,
    1e12,
    1e99,
    1e-99,
    "1",
    None,
    1j,
    True,
    [],
    [1.0],
]
BOUNDS = [
    None,
    (1, -1),
    (0.5, 0.5),
    (0, 0),
    (0, 1),
    (-1e300, 1e300),
    (-1e308, 1e308),
    (1e99, 2e99),
    (-1e-90, 1e-90),
    (0, 1e-300),
    (0, float("inf")),
    (float("nan"), 1),
    (3, 4),
    [(0, 1)] * 3,
    ([-1] * 3, [1] * 3),
    ([-1] * 4, [1] * 3),
    ([-1, 0, 2], [1, 0, 5]),
    (0, 1, 2),
    "ab",
    ("a", "b"),
    7,
    {"a": (0, 1)},
    pd.DataFrame({"a": [0, 1], "b": [0, 1], "c": [0, 1]}),
]
PARAMETERS = {
    "epsilon": NUMBERS,
    "delta": [*NUMBERS, 1, 2, 1e-300, 1 - 1e-12],
    "alpha": NUMBERS,
    "l1_ratio": [*NUMBERS, 0.3, 1.5],
    "huber_delta": NUMBERS,
    "width": NUMBERS,
    "clip": [*NUMBERS, 0.1],
    "max_passes": [0, -1, 0.5, 3, 1e9, float("nan"), float("inf"), "3", True, 1j],
    "feature_bounds": BOUNDS,
    "target_bounds": BOUNDS,
    "adjacency": ["zero-out", "ZERO_OUT", "add-remove", "swap", None, 3],
    "view": ["final_model", "last", None, 1],
    "solver": ["newton", None, 3, object()],
    "penalty": ["l3", None, 7, "nonnegative", "none", "elasticnet"],
    "box": [None, (1, -1), (0, float("nan")), "ab", (0, [1, 2])],
    "loss": ["absolute", None, 3, "huber", "smoothed-hinge"],
    "classes": [[0, 1], [0, 1, 2], [0, 0], [1], [], "ab", ["0", "1"], [0.5, 1], [[0], [1]], [None, 1], 3, {}],
    "fit_intercept": [False, "no", None, 0],
    "random_state": [-1, 1.5, "0", True, np.random.default_rng(0), np.random.RandomState(0), [1]],
    "ledger": ["ledger", 1.0],
}


def table(n: int = 30, p: int = 3) -> np.ndarray:
    return np.random.default_rng(n + p).uniform(-1, 1, (n, p))


def target(model, n: int = 30) -> np.ndarray:
    y = np.random.default_rng(n).uniform(-2, 2, n)
    return (y > 0).astype(int) if is_classifier(model) else y


def attempt(model, X, y) -> bool:
    """Fit, and check what comes of it; whether there is a model."""
    try:
        with warnings.catch_warnings(), mock.patch.object(FeatureBounds, "__call__", autospec=True) as read:
            read.side_effect = MAP
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", PrivacyUtilityWarning)  # of public numbers
            warnings.simplefilter("ignore", DataConversionWarning)  # scikit-learn's contract asks for it
            model.fit(X, y)
    except (TacitError, ValueError, TypeError) as error:
        assert not read.called, "an error after the budget was spent"
        link: BaseException | None = error
        while link is not None:
            assert not any(secret in str(link) for secret in SECRETS)
            link = link.__context__
        text = str(error)
        assert 10 < len(text) < 500
        assert "\n" not in text
        return False
    assert np.isfinite(model.coef_).all()
    assert np.isfinite(model.intercept_).all()
    assert model.certificate_.epsilon(model.delta) <= model.epsilon * (1 + 1e-9)
    assert not any(secret in note for note in model.notes_ for secret in SECRETS)
    return True


def many(examples: int):
    return settings(
        max_examples=examples, derandomize=True, deadline=None, database=None, suppress_health_check=list(HealthCheck)
    )


@st.composite
def bad_parameters(draw, model):
    names = sorted(set(PARAMETERS) & set(model.get_params()))
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=2, unique=True))
    return {name: draw(st.sampled_from(PARAMETERS[name])) for name in chosen}


@st.composite
def bad_records(draw, model):
    n, p = draw(st.sampled_from([(30, 3), (30, 3), (1, 1), (2, 1), (3, 40), (2, 3), (0, 3), (3, 0), (1, 3)]))
    X, y = table(n, p), target(model, n)
    X, y = draw(st.sampled_from(VALUES))(X, y)
    return draw(st.sampled_from(FORMS))(X, y)


def _entry(value):
    def change(X, y):
        X = X.astype(type(value) if isinstance(value, complex) else object if isinstance(value, str | dict) else float)
        X[:1, :1] = value
        return X, y

    return change


def _label(value):
    def change(X, y):
        y = y.astype(object if isinstance(value, str | type(None)) else type(value))
        y[:1] = value
        return X, y

    return change


VALUES = [
    lambda X, y: (X, y),
    *map(
        _entry,
        [np.nan, np.inf, -np.inf, 1e308, -1e308, 1e-308, SECRET, SECRET * 1j, "hush-label", {"hush-label": SECRET}],
    ),
    *map(_label, [np.nan, np.inf, 1e308, 1e-308, SECRET, SECRET * 1j, "hush-label", None, 999983]),
    lambda X, y: (np.full_like(X, SECRET), y),
    lambda X, y: (np.zeros_like(X), y),
    lambda X, y: (X * [0] * X.shape[1] if X.shape[1] == 1 else X * (np.arange(X.shape[1]) > 0), y),
    lambda X, y: (X, np.zeros_like(y)),
    lambda X, y: (X, np.full(len(y), "hush-label")),
    lambda X, y: (X, np.where(y > 0, "hush-label", "hush-label too")),
    lambda X, y: (X, np.full(len(y), SECRET)),
    lambda X, y: (X, y > 0),
    lambda X, y: (X, np.arange(len(y)) + 999983),
    lambda X, y: (X + SECRET, y),
]
FORMS = [
    lambda X, y: (X, y),
    lambda X, y: (X, y),
    lambda X, y: (X.tolist(), y.tolist()),
    lambda X, y: (X.astype(object), y),
    lambda X, y: (X, y.astype(object)),
    lambda X, y: (X.astype(str), y),
    lambda X, y: (X, y.astype(str)),
    lambda X, y: (X.astype(bool), y),
    lambda X, y: (X, y[:-1]),
    lambda X, y: (X[:, :, None], y),
    lambda X, y: (X[:, 0] if X.shape[1] else X.ravel(), y),
    lambda X, y: (X, y[:, None]),
    lambda X, y: (X, np.column_stack([y, y])),
    lambda X, y: (X, None),
    lambda X, y: (None, y),
    lambda X, y: (SECRET, SECRET),
    lambda X, y: ("hush-label", y),
    lambda X, y: (pd.DataFrame(X), pd.Series(y)),
    lambda X, y: (pd.DataFrame(X).astype("string"), y),
    lambda X, y: (sparse.csr_array(X) if X.dtype != object else X, y),
    lambda X, y: (sparse.coo_matrix(X) if X.dtype != object else X, y),
    lambda X, y: ([list(row[: i % 2 + 1]) for i, row in enumerate(X)], y),
    lambda X, y: (X.astype("datetime64[s]") if X.dtype == float and np.isfinite(X).all() else X, y),
]


@pytest.mark.parametrize("name", MODELS)
def test_bad_parameters(name):
    model = MODELS[name]
    X, y = table(), target(model)
    fitted = []

    @many(120)
    @given(bad_parameters(model))
    def run(parameters):
        fitted.append(attempt(clone(model).set_params(**parameters), X, y))

    run()
    assert 0.05 < np.mean(fitted) < 0.6


@pytest.mark.parametrize("name", MODELS)
def test_bad_records(name):
    model = MODELS[name]
    fitted = []

    @many(110)
    @given(bad_records(model))
    def run(records):
        fitted.append(attempt(clone(model), *records))

    run()
    assert 0.05 < np.mean(fitted) < 0.6


@pytest.mark.parametrize("solver", [*FAST, *SLOW])
def test_bad_records_and_parameters_with_every_solver(solver):
    @many(60 if solver in FAST else 12)
    @given(st.data())
    def run(data):
        model = clone(data.draw(st.sampled_from([MODELS["lasso"], MODELS["logistic"], MODELS["huber"]])))
        model.set_params(solver=solver, view="final_model" if solver == "cyclic" else "all_iterates")
        model.set_params(**data.draw(st.one_of(st.just({}), bad_parameters(model))))
        attempt(model, *data.draw(bad_records(model)))

    run()


def test_objective_perturbation_is_no_longer_offered():
    """Errata, T6: the solver is as unknown as any other word, and a saved description of the mechanism is refused."""
    model = clone(MODELS["logistic"]).set_params(solver="perturbation", view="final_model")
    with pytest.raises(
        InvalidInput, match=r"^solver must be one of 'auto', .*'constant', 'coordinate', .*, got 'perturbation'$"
    ):
        model.fit(table(), target(model))
    saved = {"type": "ObjectivePerturbation", "adjacency": {"enum": "Adjacency", "name": "REPLACE_ONE"}, "l2": 1.0}
    with pytest.raises(InvalidInput, match="no class is described as 'ObjectivePerturbation'"):
        from_json(saved)
