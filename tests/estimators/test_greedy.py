"""Greedy descent through models: relations, persons, heads, files, ledgers, searches."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tacit import DPElasticNet, DPLasso, DPLogisticRegression, DPSelection, Ledger, load_model, save_model
from tacit.errors import NotCovered
from tacit.mechanism import NoisyMax
from tacit.solvers import GreedyDescent

SETTINGS = {"epsilon": 6.0, "delta": 1e-6, "feature_bounds": (-1, 1), "random_state": 0}


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (900, 120))
    return X, X[:, 0] - X[:, 1] + 0.1 * rng.normal(size=900)


def lasso(**changed):
    return DPLasso(alpha=0.02, target_bounds=(-3, 3), **{"solver": "greedy", **SETTINGS, **changed})


@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out", "add-remove"])
@pytest.mark.parametrize("arithmetic", ["exact", "float"])
def test_under_every_relation(adjacency, arithmetic, table):
    model = lasso(adjacency=adjacency, arithmetic=arithmetic).fit(*table)
    certificate = model.certificate_
    assert certificate.epsilon(1e-6) <= 6.0
    assert (certificate.arithmetic, certificate.adjacency.value) == (arithmetic, adjacency)
    assert any(isinstance(part, NoisyMax) for part in certificate.plan)
    assert {0, 1} <= set(np.argsort(-np.abs(model.coef_))[:3])


def test_wide_lasso_problems_are_greedy_by_themselves(table):
    plans = [lasso(solver=solver, epsilon=0.5).fit(*table).certificate_.plan for solver in ("auto", "greedy")]
    assert plans[0] == plans[1]


def test_sparse_tables_give_the_bits_of_dense_ones(table):
    X = np.where(np.abs(table[0]) > 0.6, table[0], 0.0)
    ends = [lasso().fit(form(X), table[1]).coef_ for form in (np.asarray, sparse.csr_array)]
    np.testing.assert_allclose(*ends, rtol=1e-9, atol=1e-12)


def test_one_head_for_each_class(table):
    X, y = table
    labels = np.digitize(y, [-0.5, 0.5])
    model = DPLogisticRegression(alpha=1e-3, l1_ratio=1.0, classes=[0, 1, 2], solver="greedy", **SETTINGS).fit(
        X, labels
    )
    assert sum(isinstance(part, NoisyMax) for part in model.certificate_.plan) == 3
    assert model.certificate_.epsilon(1e-6) <= 6.0
    assert model.score(X, labels) > np.bincount(labels).max() / len(labels)


def test_rows_of_persons(table):
    X, y = table
    model = lasso(epsilon=30.0).fit(X, y, groups=np.arange(900) // 2)
    assert model.certificate_.unit == "person"
    assert {0, 1} <= set(np.argsort(-np.abs(model.coef_))[:3])


def test_a_file_keeps_model_and_certificate(table, tmp_path):
    for solver in ("greedy", GreedyDescent(pairs=4, composition="optimal")):
        model = lasso(solver=solver).fit(*table)
        save_model(model, tmp_path / "model.json")
        again = load_model(tmp_path / "model.json")
        np.testing.assert_array_equal(again.coef_, model.coef_)
        assert again.certificate_ == model.certificate_
        (tmp_path / "model.json").unlink()


def test_a_ledger_pays_for_choices(table, tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl", epsilon=6.0, delta=1e-6)
    lasso(ledger=ledger, random_state=None).fit(*table)
    assert ledger.remaining().epsilon < 0.1


def test_in_a_search(table):
    options = {"alpha": [0.01, 0.02], "solver": ["greedy"]}
    base = DPElasticNet(l1_ratio=1.0, feature_bounds=(-1, 1), target_bounds=(-3, 3))
    search = DPSelection(base, options, mean_trials=3, epsilon=8.0, delta=1e-6, random_state=1).fit(*table)
    assert search.certificate_.epsilon(1e-6) <= 8.0
    with pytest.raises(NotCovered, match=r"gives no μ|more than"):
        DPSelection(
            base,
            {"solver": [GreedyDescent(composition="optimal")]},
            mean_trials=3,
            epsilon=8.0,
            delta=1e-6,
            random_state=1,
        ).fit(*table)
