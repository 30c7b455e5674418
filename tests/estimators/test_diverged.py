"""Places that had diverged: marks in ledgers, limits of ε, rows that fit clips, silent subclasses."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tacit import (
    DPNMF,
    DPGeneralizedLinear,
    DPLinearRegression,
    DPLogisticRegression,
    DPRidge,
    DPSoftmaxRegression,
    Ledger,
)
from tacit.errors import InvalidInput
from tacit.estimators import DPQuantileScaler, DPStandardScaler, private_mean, private_quantiles, private_variance
from tacit.problem import ElasticNet, Logistic
from tacit.release import SEEDED, Session
from tacit.solvers import CoordinateDescent

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (400, 2))
Y = X @ [1.0, -1.0]
LABELS = np.where(Y > 0, "yes", "no")
PRIVATE = {"epsilon": 1.0, "delta": 1e-6}
BOUNDED = {**PRIVATE, "feature_bounds": (-1, 1)}


@pytest.fixture
def book(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    return Ledger(tmp_path / "book", epsilon=20.0, delta=1e-3)


def _statistic(function, **more):
    return lambda ledger: function(X, bounds=(-1, 1), **more, **PRIVATE, ledger=ledger, random_state=0)[1]


def _model(kind, y=None, **settings):
    def fit(ledger):
        data = (X,) if y is None else (X, y)
        return kind(**settings, ledger=ledger, random_state=0).fit(*data).certificate_

    return fit


FITS = {
    "standard scaler": _model(DPStandardScaler, **BOUNDED),
    "quantile scaler": _model(DPQuantileScaler, **BOUNDED),
    "mean": _statistic(private_mean),
    "variance": _statistic(private_variance),
    "quantiles": _statistic(private_quantiles, q=[0.5]),
    "ridge": _model(DPRidge, Y, **BOUNDED, target_bounds=(-3, 3)),
    "ridge, add-remove": _model(DPRidge, Y, **BOUNDED, target_bounds=(-3, 3), adjacency="add-remove"),
    "classes read off, add-remove": _model(DPLogisticRegression, LABELS, **BOUNDED, adjacency="add-remove"),
    "softmax": _model(DPSoftmaxRegression, LABELS, **PRIVATE, feature_norm=1.5, epochs=2),
}


@pytest.mark.parametrize("name", FITS)
def test_the_ledger_holds_every_mark_that_the_certificate_carries(name, book):
    certificate = FITS[name](book)
    entry = book.entries()[-1]
    assert SEEDED in certificate.marks
    assert set(entry.marks) == set(certificate.marks)
    assert SEEDED in str(entry)


@pytest.mark.parametrize("scaler", [DPStandardScaler, DPQuantileScaler])
def test_a_scaler_has_the_limits_of_an_estimator(scaler, book):
    with pytest.raises(InvalidInput, match="epsilon must be at most 1e"):
        scaler(epsilon=1e13, delta=1e-6, feature_bounds=(-1, 1), ledger=book).fit(X)
    assert book.entries() == ()


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array])
@pytest.mark.parametrize(
    "model", [DPLinearRegression(target_bounds=(-9, 9), **BOUNDED), DPLogisticRegression(**BOUNDED)]
)
def test_predictions_are_made_for_the_row_that_fit_would_have_seen(model, form):
    """Of a row beyond the bounds the model knows nothing; version 0.1 extrapolated (AUC .587 instead of .813)."""
    y = Y if hasattr(model, "target_bounds") else LABELS
    model.set_params(random_state=0).fit(X, y)
    wild = 40 * X
    scores = "predict" if hasattr(model, "target_bounds") else "decision_function"
    found, expected = (getattr(model, scores)(form(rows)) for rows in (wild, np.clip(wild, -1, 1)))
    np.testing.assert_array_equal(found, expected)
    assert not np.allclose(found, wild @ np.ravel(model.coef_) + model.intercept_)


class _Flat(Logistic):
    """A loss whose slope is half of its parent's."""

    def derivative(self, f, y):
        return 0.5 * super().derivative(f, y)


def test_a_subclass_of_a_loss_never_runs_its_parents_compiled_code():
    solver = CoordinateDescent(passes=3, clip=1e3, smoothness="public")
    settings = {"solver": solver, "epsilon": 1e9, "delta": 1e-6, "feature_bounds": (-1, 1), "classes": ["no", "yes"]}
    plain, flat = (
        DPGeneralizedLinear(loss, penalty="none", **settings, random_state=0).fit(X, LABELS).coef_
        for loss in (Logistic(), _Flat())
    )
    assert 0.3 < np.linalg.norm(flat) / np.linalg.norm(plain) < 0.9


class _Nothing(ElasticNet):
    """A penalty whose prox is its own."""

    def prox(self, v, step):
        return 0 * v


@pytest.mark.parametrize("solver", ["metric", "gradient", CoordinateDescent(passes=2, clip=1.0, smoothness="public")])
def test_a_subclass_of_a_penalty_is_not_replaced_by_its_parent(solver):
    """Version 0.1 returned its parent from ``rescaled``, so that the subclass's prox was never called."""
    mine = _Nothing(*(np.zeros(2), np.zeros(2), np.full(2, -np.inf), np.full(2, np.inf)))
    model = DPGeneralizedLinear("squared", mine, solver=solver, **BOUNDED, target_bounds=(-3, 3), random_state=0)
    assert not model.fit(X, Y).coef_.any()


def test_an_interrupted_refit_leaves_the_old_model_whole(monkeypatch):
    """Version 0.1 kept linear models and deleted softmax models."""
    models = [
        DPRidge(**BOUNDED, target_bounds=(-3, 3), random_state=0).fit(X, Y),
        DPSoftmaxRegression(**PRIVATE, feature_norm=1.5, epochs=2, random_state=0).fit(X, LABELS),
        DPStandardScaler(**BOUNDED, random_state=0).fit(X),
        DPNMF(2, **PRIVATE, row_norm=2.0, epochs=2, random_state=0).fit(np.abs(X)),
    ]

    def interrupt(*args, **more):
        raise KeyboardInterrupt

    monkeypatch.setattr(Session, "release", interrupt)
    monkeypatch.setattr(Session, "run_chain", interrupt)
    for model in models:
        before = dict(vars(model))
        with pytest.raises(KeyboardInterrupt):
            model.fit(np.abs(X[:50]), LABELS[:50] if hasattr(model, "classes_") else Y[:50])
        after = vars(model)
        assert before.keys() == after.keys()
        assert all(after[name] is value for name, value in before.items())
