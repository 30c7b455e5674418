"""Persons with several rows: every estimator's promise is about them, and their rows count one together."""

from __future__ import annotations

import inspect

import numpy as np
import pandas as pd
import pytest
import sklearn
from contracts import models
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.model_selection import GroupKFold, cross_validate
from sklearn.pipeline import make_pipeline

from tacit import (
    DPNMF,
    DPBlockMLPClassifier,
    DPBlockMLPRegressor,
    DPConvexReLUClassifier,
    DPHuberRegressor,
    DPLogisticRegression,
    DPRidge,
    DPSelection,
    DPSoftmaxRegression,
    DPStandardScaler,
    Ledger,
    certificate_of,
    private_mean,
)
from tacit.audit import audit_gdp
from tacit.errors import InvalidInput, LedgerError, NotCovered
from tacit.estimators import base, load_all, private_quantiles, private_variance
from tacit.records import persons

DEAL = {"epsilon": 3.0, "delta": 1e-5, "random_state": 0}
TARGETS = {"feature_bounds": (-1, 1), "target_bounds": (-2, 2)}
LABELS = {"feature_bounds": (-1, 1), "classes": [0, 1]}
PERSONS, ROWS = 200, 500
load_all()
NORMED = {"feature_norm": 2.0, "clip": 1.0, "random_state": 0, "epsilon": 5.0, "delta": 1e-5, "classes": [0, 1]}
BLOCKS = {"epsilon": 5.0, "delta": 1e-5, "random_state": 0, "feature_bounds": (-1, 1), "sampling": "cyclic"}
EVERY = models(base.ESTIMATORS, without={"FederatedModel"}) | {
    "DPNMF": DPNMF(2, row_norm=4.0, epochs=3, **DEAL),
    "DPConvexReLUClassifier": DPConvexReLUClassifier(4, **NORMED),
    "DPBlockMLPClassifier": DPBlockMLPClassifier((3,), classes=[0, 1], epochs=2, **BLOCKS),
    "DPBlockMLPRegressor": DPBlockMLPRegressor((3,), target_bounds=(-2, 2), epochs=2, **BLOCKS),
}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    ids = np.concatenate([np.arange(PERSONS), rng.integers(0, PERSONS // 3, ROWS - PERSONS)])
    X = rng.uniform(-1, 1, (ROWS, 3))
    signal = X @ [1.0, -0.5, 0.2]
    return X, signal, (signal > 0).astype(int), ids


def example(name):
    model = clone(EVERY[name])
    return model.set_params(classes=[0, 1]) if is_classifier(model) else model


def target_of(model, table):
    _, t, y, _ = table
    bounds = model.get_params().get("target_bounds")
    if is_classifier(model):
        return y
    return t if bounds is None else np.clip(t + 1.5, *bounds)


@pytest.mark.parametrize("name", EVERY)
def test_every_estimator_promises_to_persons(name, table):
    model, (X, _, _, ids) = example(name), table
    X = np.abs(X) if name == "DPNMF" else X
    model.fit(X, target_of(model, table), groups=ids)
    certificate = model.certificate_
    assert certificate.unit == "person"
    assert "for each person" in certificate.describe()
    assert certificate.plan == model.planned_certificate(PERSONS, 3, by_person=True).plan
    assert model.fit(X, target_of(model, table)).certificate_.unit == "record"


@pytest.mark.parametrize("name", EVERY)
def test_every_estimator_says_what_it_cannot_weigh(name, table):
    """Families whose plan needs the sum of weights refuse it before anything is paid for; others use it."""
    model, (X, _, _, ids) = example(name), table
    X = np.abs(X) if name == "DPNMF" else X
    if not model.secret_count:
        with pytest.raises(NotCovered, match="weighting='person'"):
            model.set_params(weighting="rows", max_rows=4).fit(X, target_of(model, table), groups=ids)
        return
    model.set_params(weighting="rows", max_rows=4).fit(X, target_of(model, table), groups=ids)
    assert model.certificate_.unit == "person"
    model.set_params(weighting="person", max_rows=None, max_sample_weight=2.0)
    model.fit(X, target_of(model, table), sample_weight=np.ones(ROWS))
    assert model.certificate_.unit == "record"


CASES = {
    "metric": (DPLogisticRegression(**LABELS, **DEAL), 2),
    "huber": (DPHuberRegressor(**TARGETS, **DEAL), 1),
    "rows": (DPRidge(weighting="rows", max_rows=3, **TARGETS, **DEAL), 1),
    "coordinate": (DPRidge(solver="coordinate", **TARGETS, **DEAL), 1),
    "gradient": (DPLogisticRegression(solver="gradient", **LABELS, **DEAL), 2),
    "random batches": (
        DPSoftmaxRegression(arithmetic="exact", view="all_iterates", feature_norm=2.0, classes=[0, 1], **DEAL),
        2,
    ),
    "scaler": (DPStandardScaler(feature_bounds=(-1, 1), **DEAL), 1),
}


@pytest.mark.parametrize("name", CASES)
def test_no_order_of_rows_changes_a_bit(name, table):
    """Also where random batches are drawn: they are batches of persons, whose numbers follow from their ids."""
    model, target = CASES[name]
    X, ids, goal = table[0], table[3], table[target]
    plain = parameters(clone(model).fit(X, goal, groups=ids))
    order = np.random.default_rng(1).permutation(ROWS)
    np.testing.assert_array_equal(parameters(clone(model).fit(X[order], goal[order], groups=ids[order])), plain)
    np.testing.assert_array_equal(parameters(clone(model).fit(X, goal, groups=ids.astype(float))), plain)


def parameters(model) -> np.ndarray:
    names = [name for name in ("coef_", "intercept_", "mean_", "scale_") if hasattr(model, name)]
    assert names
    return np.concatenate([np.ravel(getattr(model, name)) for name in names])


@pytest.mark.parametrize("name", ["metric", "rows"])
def test_sparse_rows_of_persons(name, table):
    model, target = CASES[name]
    X, ids, goal = table[0] * (np.abs(table[0]) > 0.5), table[3], table[target]
    plain = parameters(clone(model).fit(sparse.csr_array(X), goal, groups=ids))
    order = np.random.default_rng(1).permutation(ROWS)
    again = clone(model).fit(sparse.csr_array(X[order]), goal[order], groups=ids[order])
    np.testing.assert_array_equal(parameters(again), plain)


def test_everybody_counts_once_or_every_row_does():
    """Someone with 99 of 100 rows does not drown the other; counted by rows, they do."""
    x, ids = np.array([1.0] * 9900 + [0.0] * 100), np.repeat(np.arange(200), [99, 1] * 100)
    x = np.concatenate([[1.0] * 99 + [0.0]] * 100)
    close = {"epsilon": 1e4, "delta": 1e-3, "random_state": 0}
    assert private_mean(x, (0, 1), groups=ids, **close)[0] == pytest.approx(0.5, abs=0.01)
    rows = private_mean(x, (0, 1), groups=ids, weighting="rows", max_rows=99, **close)[0]
    assert rows == pytest.approx(0.99, abs=0.01)
    weighted = private_mean(x, (0, 1), sample_weight=np.where(x == 1, 0.25, 25), max_sample_weight=25, **close)[0]
    assert weighted == pytest.approx(0.25 * 99 / (0.25 * 99 + 25), abs=0.01)


@pytest.mark.parametrize("call", [private_mean, private_variance, lambda x, b, **k: private_quantiles(x, 0.5, b, **k)])
def test_statistics_say_person(call, table):
    _, certificate = call(table[0], (-1, 1), groups=table[3], **DEAL)
    assert certificate.unit == "person"


# -- where scikit-learn carries ids ---------------------------------------------------------------------------------


def test_ids_reach_every_step_of_a_pipeline(table, tmp_path):
    X, _, y, ids = table
    budget = Ledger(tmp_path / "study.ledger", epsilon=20.0, delta=1e-3)
    steps = (
        DPStandardScaler(feature_bounds=(-1, 1), ledger=budget, **DEAL),
        DPLogisticRegression(feature_bounds=(-4, 4), classes=[0, 1], ledger=budget, **DEAL),
    )
    with sklearn.config_context(enable_metadata_routing=True):
        pipeline = make_pipeline(*steps).fit(X, y, groups=ids)
    assert certificate_of(pipeline).unit == "person"
    assert {entry.unit for entry in budget.entries()} == {"person"}


def test_ids_reach_the_folds_of_a_cross_validation(table):
    X, _, y, ids = table
    model = DPLogisticRegression(**LABELS, **DEAL)
    with sklearn.config_context(enable_metadata_routing=True):
        found = cross_validate(model, X, y, params={"groups": ids}, cv=GroupKFold(3), return_estimator=True)
    assert {one.certificate_.unit for one in found["estimator"]} == {"person"}


@pytest.mark.parametrize("holdout", [None, 0.3])
def test_a_search_is_about_persons_and_splits_none_of_them(holdout, table):
    X, _, y, ids = table
    search = DPSelection(
        DPLogisticRegression(**LABELS), {"alpha": [1e-3, 1e-1]}, holdout=holdout, mean_trials=20, **DEAL
    )
    search.fit(X, y, groups=ids)
    assert search.certificate_.unit == "person"
    assert search.best_estimator_.certificate_.unit == "person"


def test_a_ledger_refuses_to_mix_units(table, tmp_path):
    X, _, y, ids = table
    budget = Ledger(tmp_path / "study.ledger", epsilon=20.0, delta=1e-3)
    model = DPLogisticRegression(**LABELS, ledger=budget, **DEAL)
    model.fit(X, y, groups=ids)
    with pytest.raises(LedgerError, match="unit"):
        model.fit(X, y)
    assert len(budget.entries()) == 1


# -- mistakes -------------------------------------------------------------------------------------------------------

MISTAKES = {
    "too short": ({"groups": [1, 2]}, {}, "one id for each"),
    "a name": ({"groups": "patient"}, {}, "one id for each row"),
    "missing": ({"groups": [np.nan] * ROWS}, {}, "missing ids"),
    "several kinds": ({"groups": np.array([1, "a"] * (ROWS // 2), object)}, {}, "several kinds"),
    "rows without a number": ({"groups": np.arange(ROWS)}, {"weighting": "rows"}, "max_rows is missing"),
    "a number without rows": ({"groups": np.arange(ROWS)}, {"max_rows": 3}, "no effect"),
    "rows without ids": ({}, {"weighting": "rows", "max_rows": 3}, "no effect without groups"),
    "an unknown weighting": ({"groups": np.arange(ROWS)}, {"weighting": "people"}, "weighting"),
    "no maximum": ({"sample_weight": np.ones(ROWS)}, {}, "max_sample_weight is missing"),
    "a maximum only": ({}, {"max_sample_weight": 2.0}, "no effect"),
    "negative": ({"sample_weight": -np.ones(ROWS)}, {"max_sample_weight": 2.0}, "negative"),
    "of another length": ({"sample_weight": np.ones(3)}, {"max_sample_weight": 2.0}, "one number for each"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_answered_in_one_line_and_cost_nothing(mistake, table, tmp_path):
    X, _, y, _ = table
    data, settings, said = MISTAKES[mistake]
    budget = Ledger(tmp_path / "study.ledger", epsilon=20.0, delta=1e-3)
    with pytest.raises(InvalidInput, match=said) as error:
        DPLogisticRegression(**LABELS, **DEAL, **settings, ledger=budget).fit(X, y, **data)
    assert "\n" not in str(error.value)
    assert not budget.entries()


@pytest.mark.parametrize("form", [list, pd.Series, np.asarray, lambda ids: np.asarray(ids, str)])
def test_ids_and_weights_in_any_form(form, table):
    X, _, y, ids = table
    model = DPLogisticRegression(**LABELS, **DEAL, max_sample_weight=1.0)
    model.fit(X, y, groups=form(ids), sample_weight=list(np.ones(ROWS)))
    assert model.certificate_.unit == "person"


def test_without_ids_a_description_says_what_it_is_worth_to_somebody_with_several_rows(table):
    X, _, y, ids = table
    text = DPLogisticRegression(**LABELS, **DEAL).fit(X, y).certificate_.describe()
    assert "A person with several records is promised less" in text
    assert "with 10" in text
    assert "several records" not in DPLogisticRegression(**LABELS, **DEAL).fit(X, y, groups=ids).certificate_.describe()


def test_every_public_fit_takes_ids_and_weights():
    for cls in base.ESTIMATORS.values():
        if cls.__module__.startswith("tacit."):
            assert {"groups", "sample_weight"} <= set(inspect.signature(cls.fit).parameters), cls.__name__


# -- attacks --------------------------------------------------------------------------------------------------------


def neighbours(rows: int):
    """40 others with a row each, and one person with many: all of them at one end, or at the other."""
    ids = np.concatenate([np.arange(1, 41), np.zeros(rows, int)])
    x = np.zeros(40 + rows)
    here, there = x.copy(), x.copy()
    here[40:], there[40:] = -1.0, 1.0
    return here, there, ids


def attacked(rows: int, n: int = 1500):
    here, there, ids = neighbours(rows)
    deal = {"epsilon": 2.0, "delta": 1e-3, "bounds": (-1, 1)}

    def sampler(x, first):
        return lambda k: np.array([private_mean(x, groups=ids, random_state=first + i, **deal)[0] for i in range(k)])

    certificate = private_mean(here, groups=ids, random_state=0, **deal)[1]
    return audit_gdp(sampler(here, 10**6), sampler(there, 2 * 10**6), n), certificate


@pytest.mark.parametrize("rows", [1, 7, 50])
def test_an_audit_of_a_person_stays_below_the_certificate(rows):
    found, certificate = attacked(rows)
    assert not found.verdict(certificate).violated
    assert found.mu_lower > 0.5 * certificate.mu


def test_an_audit_notices_rows_that_are_taken_for_persons(monkeypatch):
    monkeypatch.setattr(persons, "row_shares", lambda counts, least=1: np.ones(len(counts)))
    found, certificate = attacked(7, 400)
    assert found.verdict(certificate).violated
