"""One certificate for a whole pipeline, or none; and every fit is charged."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.compose import ColumnTransformer, make_column_selector
from sklearn.decomposition import PCA
from sklearn.feature_selection import SelectKBest
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    PolynomialFeatures,
    StandardScaler,
)

from tacit.accounting import gdp_mu
from tacit.errors import BudgetExhausted, InvalidInput, NotCovered
from tacit.estimators import DPQuantileScaler, DPStandardScaler, certificate_of
from tacit.maps import BoundsScaler, PublicOneHotEncoder
from tacit.release import SEEDED

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, size=(60, 3))
Y = RNG.integers(0, 2, 60)
DEAL = {"epsilon": 1.0, "delta": 1e-5, "feature_bounds": (0, 1)}
PAGE = Path(__file__).parents[2] / "docs" / "preprocessing.md"


def private(**change) -> DPStandardScaler:
    return DPStandardScaler(**{**DEAL, **change})


def test_one_estimator_is_its_own_certificate():
    scaler = private().fit(X)
    assert certificate_of(scaler) == scaler.certificate_


def test_private_steps_add_up_and_public_ones_are_free():
    columns = ColumnTransformer(
        [
            ("standard", private(), [0, 1]),
            ("quantile", DPQuantileScaler(**DEAL), [2]),
            ("kind", PublicOneHotEncoder([[0.0, 1.0]]), [2]),
            ("none", "drop", [1]),
        ],
        remainder="passthrough",
    )
    union = FeatureUnion([("all", "passthrough"), ("again", private(feature_bounds=(-5, 5)))])
    model = make_pipeline(
        SimpleImputer(strategy="constant", fill_value=0.0, keep_empty_features=True),
        BoundsScaler((0, 1)),
        Normalizer(),
        columns,
        PolynomialFeatures(2),
        union,
        "passthrough",
        Binarizer(),
    ).fit(X)
    total = certificate_of(model)
    assert total.mu == pytest.approx(np.sqrt(3) * gdp_mu(1.0, 1e-5))
    assert len(total.plan) == 3
    assert total.marks == ()


@pytest.mark.parametrize(
    ("step", "word"),
    [
        (StandardScaler(), "DPStandardScaler"),
        (MinMaxScaler(), "BoundsScaler"),
        (PCA(2), "private estimator"),
        (SelectKBest(k=1), "private estimator"),
        (SimpleImputer(), "strategy='constant'"),
        (SimpleImputer(strategy="constant", add_indicator=True), "add_indicator=False"),
        (SimpleImputer(strategy="constant"), "keep_empty_features=True"),
        (OneHotEncoder(), "list them"),
        (OneHotEncoder(categories=[[0, 1]] * 3), "handle_unknown='ignore'"),
        (OneHotEncoder(categories=[[0, 1]] * 3, handle_unknown="ignore", max_categories=2), "list them"),
        (LogisticRegression(), "private estimator"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_steps_that_learn_are_refused_by_name_with_a_remedy(step, word):
    model = Pipeline([("scale", private().fit(X)), ("culprit", step)])  # no fit: unknown values would raise there
    with pytest.raises(NotCovered, match="culprit") as caught:
        certificate_of(model)
    assert word in str(caught.value)
    assert type(step).__name__ in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_subclass_of_a_public_step_may_learn():
    class Sly(Normalizer):
        def fit(self, X, y=None):
            self.mean_ = X.mean()
            return super().fit(X)

    with pytest.raises(NotCovered, match="Sly"):
        certificate_of(make_pipeline(Sly(), private()).fit(X))


def test_a_foreign_certificate_is_no_certificate():
    class Boast(PCA):
        certificate_ = None

    class Louder(PCA):
        certificate_ = "ε = 0"

    for step in (Boast(2), Louder(2)):
        with pytest.raises(NotCovered):
            certificate_of(make_pipeline(private(), step).fit(X))


def test_columns_chosen_by_looking_are_refused():
    sneaky = ColumnTransformer([("busy", private(), lambda X: [int(np.argmax(X.var(axis=0)))])]).fit(X)
    with pytest.raises(NotCovered, match="list them"):
        certificate_of(sneaky)
    pd = pytest.importorskip("pandas")
    named = ColumnTransformer([("n", private(), make_column_selector("x"))]).fit(
        pd.DataFrame(X, columns=["x", "y", "z"])
    )
    assert certificate_of(named).mu == pytest.approx(gdp_mu(1.0, 1e-5))


def test_functions_are_the_users_word():
    total = certificate_of(make_pipeline(FunctionTransformer(np.log1p), private()).fit(X))
    assert any("treats each record by itself" in mark for mark in total.marks)
    assert certificate_of(make_pipeline(FunctionTransformer(), private()).fit(X)).marks == ()


def test_encoders_with_listed_categories_are_free():
    encoder = OneHotEncoder(categories=[[0, 1]] * 3, handle_unknown="ignore", sparse_output=False)
    assert certificate_of(make_pipeline(encoder, private()).fit(X)).mu == pytest.approx(gdp_mu(1.0, 1e-5))


def test_nothing_private_is_refused():
    for model in (BoundsScaler((0, 1)).fit(X), make_pipeline(BoundsScaler((0, 1)), Normalizer()).fit(X), "passthrough"):
        with pytest.raises(NotCovered, match="nothing in this model is private"):
            certificate_of(model)


def test_unfitted_models_are_refused():
    with pytest.raises(InvalidInput, match="not fitted"):
        certificate_of(make_pipeline(BoundsScaler((0, 1)), private()))
    with pytest.raises(InvalidInput, match="not fitted"):
        certificate_of(ColumnTransformer([("a", private(), [0])]))


def test_different_relations_never_add_up():
    model = make_pipeline(private(), private(adjacency="add-remove", feature_bounds=(-5, 5))).fit(X)
    with pytest.raises(InvalidInput, match="never compose"):
        certificate_of(model)


def test_a_seed_anywhere_marks_the_whole():
    assert SEEDED in certificate_of(make_pipeline(private(), private(random_state=0)).fit(X)).marks


# -- charged --------------------------------------------------------------------------------------------------------


def test_the_ledger_and_the_certificate_agree(ledger):
    budget = ledger(10.0)
    model = make_pipeline(private(ledger=budget), DPQuantileScaler(**DEAL, ledger=budget)).fit(X)
    assert budget.spent().epsilon == pytest.approx(certificate_of(model).epsilon(1e-5), rel=1e-6)


def test_clones_share_the_ledger_and_every_fit_is_charged(ledger):
    budget = ledger(10.0)
    scaler = private(ledger=budget)
    for _ in range(3):
        scaler = clone(scaler).fit(X)
        assert scaler.ledger is budget
    assert len(budget.entries()) == 3
    scaler.fit_transform(X)
    scaler.transform(X)
    assert len(budget.entries()) == 4


def test_a_grid_search_of_ten_fits_is_charged_ten_times(ledger):
    budget = ledger(10.0)
    model = Pipeline([("scale", private(ledger=budget)), ("fit", LogisticRegression())])
    search = GridSearchCV(model, {"scale__clip_to": [2.0, 5.0]}, cv=5, refit=False)
    search.fit(X, Y)
    assert len(budget.entries()) == 10
    with pytest.raises(NotCovered, match="private folds"):
        certificate_of(search)


def test_a_grid_search_beyond_the_budget_stops(ledger):
    budget = ledger(2.0)
    model = Pipeline([("scale", private(ledger=budget)), ("fit", LogisticRegression())])
    with pytest.raises(BudgetExhausted):
        GridSearchCV(model, {"scale__clip_to": [2.0, 5.0]}, cv=5, error_score="raise").fit(X, Y)
    assert 1 <= len(budget.entries()) < 10


def test_examples_on_the_page():
    result = doctest.testfile(str(PAGE), module_relative=False)
    assert result.attempted >= 10
    assert result.failed == 0
