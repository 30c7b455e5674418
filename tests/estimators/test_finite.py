"""NaN is refused, whatever scikit-learn was told: one record must not decide what the output is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import sklearn
from scipy import sparse
from sklearn.pipeline import make_pipeline

import tacit
from tacit.errors import InvalidInput
from tacit.estimators import DPQuantileScaler, DPStandardScaler
from tacit.maps import BoundsScaler, NormScaler, RandomFourier

BUDGET: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
BOUNDED: dict[str, Any] = {**BUDGET, "feature_bounds": (-1, 1)}
CLASSES: dict[str, Any] = {**BOUNDED, "classes": [0, 1]}
NUMBERS: dict[str, Any] = {**BOUNDED, "target_bounds": (-1, 1)}
SHORT: dict[str, Any] = {**BUDGET, "feature_norm": 1.0, "classes": [0, 1], "epochs": 2}

MODELS: dict[str, Any] = {
    **{solver: tacit.DPRidge(solver=solver, **NUMBERS) for solver in ("metric", "statistics", "gradient", "sgd")},
    "coordinate": tacit.DPLasso(**NUMBERS),
    "cyclic": tacit.DPRidge(solver="cyclic", view="final_model", **NUMBERS),
    "softmax": tacit.DPSoftmaxRegression(**SHORT),
    "mapped": tacit.DPSoftmaxRegression(features=RandomFourier(4), **BUDGET, classes=[0, 1], epochs=2),
    "gates": tacit.DPConvexReLUClassifier(2, **SHORT),
    "network": tacit.DPBlockMLPClassifier((3,), epochs=2, **CLASSES),
    "nmf": tacit.DPNMF(2, row_norm=1.0, epochs=2, **BUDGET),
    "scaler": DPStandardScaler(1.0, 1e-6, (-1, 1)),
    "quantiles": DPQuantileScaler(1.0, 1e-6, (-1, 1)),
    "public bounds": BoundsScaler((-1, 1)),
    "map": RandomFourier(4),
}


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("name", MODELS)
def test_a_value_that_is_not_finite_is_refused(name, bad, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (300, 3))
    y = (X[:, 0] > 0.5).astype(int)
    X[7, 1] = bad
    model = sklearn.clone(MODELS[name])
    ledger = tacit.Ledger(tmp_path / "budget.ledger", epsilon=5.0, delta=1e-4)
    if "ledger" in model.get_params():
        model.set_params(ledger=ledger)
    with sklearn.config_context(assume_finite=True), pytest.raises(InvalidInput):
        model.fit(X, y)
    if not isinstance(model, DPStandardScaler | DPQuantileScaler):  # these reserve before they read any value
        assert ledger.spent().entries == 0


def test_a_sparse_table_is_checked_as_well():
    X = sparse.random(300, 3, density=0.5, random_state=0, format="csr")
    X.data[5] = np.nan
    with sklearn.config_context(assume_finite=True), pytest.raises(InvalidInput, match="NaN"):
        tacit.DPRidge(solver="gradient", **NUMBERS).fit(X, np.zeros(300))


def test_frames_between_steps_are_no_hindrance():
    """scikit-learn can be told to make frames of everything, also in front of our sums."""
    X = np.random.default_rng(0).uniform(-1, 1, (200, 3))
    y = (X[:, 0] > 0).astype(int)
    chain = make_pipeline(BoundsScaler((-1, 1)), NormScaler())
    model = tacit.DPSoftmaxRegression(features=chain, **BUDGET, classes=[0, 1], epochs=2, random_state=0)
    plain = sklearn.clone(model).fit(X, y)
    with sklearn.config_context(transform_output="pandas"):
        framed = sklearn.clone(model).fit(X, y)
    assert np.array_equal(plain.coef_, framed.coef_)
