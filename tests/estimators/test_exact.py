"""The same seed and the same records give the same bits, in any order and any number of parts."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tacit import (
    DPElasticNet,
    DPHuberRegressor,
    DPLinearSVC,
    DPLogisticRegression,
    DPPoissonRegressor,
    DPRidge,
    DPStandardScaler,
    private_mean,
)
from tacit.estimators import DPQuantileScaler, private_quantiles, private_variance
from tacit.records import memory

DEAL = {"epsilon": 2.0, "delta": 1e-6, "random_state": 0}
TARGETS = {"feature_bounds": (-1, 1), "target_bounds": (0, 4)}
LABELS = {"feature_bounds": (-1, 1), "classes": [0, 1, 2]}
N = 3000


@pytest.fixture(scope="module")
def table():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1.2, 1.2, (N, 5)) * (rng.random((N, 5)) < 0.6)
    signal = X @ [1.0, -2.0, 0.5, 0.0, 1.5]
    return X, np.clip(np.round(np.exp(signal / 2) + rng.normal(size=N) / 4), 0, 4), np.digitize(signal, [-1, 1])


def fitted(model, X, y):
    return np.concatenate([np.ravel(model.fit(X, y).coef_), np.ravel(model.intercept_)])


CASES = {
    "metric": lambda X, t, y: fitted(DPLogisticRegression(**LABELS, **DEAL), X, y),
    "huber": lambda X, t, y: fitted(DPHuberRegressor(**TARGETS, **DEAL), X, t),
    "poisson regression": lambda X, t, y: fitted(DPPoissonRegressor(**TARGETS, **DEAL), X, t),
    "gradient": lambda X, t, y: fitted(DPLinearSVC(solver="gradient", **LABELS, **DEAL), X, y),
    "statistics": lambda X, t, y: fitted(DPRidge(solver="statistics", **TARGETS, **DEAL), X, t),
    "coordinate": lambda X, t, y: fitted(DPElasticNet(1e-3, solver="coordinate", **TARGETS, **DEAL), X, t),
    "add-remove": lambda X, t, y: fitted(DPRidge(adjacency="add-remove", **TARGETS, **DEAL), X, t),
    "scaler": lambda X, t, y: DPStandardScaler(feature_bounds=(-1, 1), **DEAL).fit(X).scale_,
    "quantile scaler": lambda X, t, y: DPQuantileScaler(feature_bounds=(-1, 1), **DEAL).fit(X).scale_,
    "mean": lambda X, t, y: private_mean(X, (-1, 1), **DEAL)[0],
    "variance": lambda X, t, y: private_variance(X, (-1, 1), **DEAL)[0],
    "quantiles": lambda X, t, y: private_quantiles(X, 0.3, (-1, 1), **DEAL)[0],
}
SPARSE = ("metric", "poisson regression", "gradient", "statistics", "coordinate")


@pytest.mark.parametrize("name", CASES)
def test_no_order_and_no_partition_changes_a_bit_of_a_model(name, table, monkeypatch):
    plain = CASES[name](*table)
    assert np.isfinite(plain).all()
    order = np.random.default_rng(1).permutation(N)
    assert np.array_equal(CASES[name](*(part[order] for part in table)), plain)
    for parts in (2, 7, 64):
        monkeypatch.setattr(memory, "MIN_CHUNK", -(-N // parts))
        monkeypatch.setattr(memory, "MAX_CHUNK", -(-N // parts))
        assert np.array_equal(CASES[name](*table), plain)


@pytest.mark.parametrize("name", SPARSE)
def test_no_order_changes_a_bit_of_a_model_of_a_sparse_table(name, table):
    X, *targets = table
    order = np.random.default_rng(2).permutation(N)
    plain = CASES[name](sparse.csr_array(X), *targets)
    assert np.array_equal(CASES[name](sparse.csr_array(X[order]), *(t[order] for t in targets)), plain)


def test_floats_do_change(table):
    """What the tests above would see without integers."""
    X, _, y = table
    order = np.random.default_rng(1).permutation(N)
    model = DPLogisticRegression(**LABELS, **DEAL, arithmetic="float")
    assert not np.array_equal(fitted(model, X, y), fitted(model, X[order], y[order]))
