"""scikit-learn's own checks, without exceptions."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from contracts import WEIGHTS
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator

from tacit.estimators import DPQuantileScaler, DPStandardScaler
from tacit.maps import BoundsScaler, PublicOneHotEncoder

WIDE = (-1e3, 1e3)
MUCH = {"epsilon": 1e5, "delta": 1e-5, "feature_bounds": WIDE, "random_state": 0}  # without a seed fewer checks run
ESTIMATORS = [
    BoundsScaler(WIDE),
    DPStandardScaler(**MUCH),
    DPStandardScaler(**MUCH, adjacency="add-remove"),
    DPQuantileScaler(**MUCH, bins=1000),
    DPQuantileScaler(**MUCH, grid="geometric", adjacency="zero-out"),
    PublicOneHotEncoder([0, 1, 2]),
    PublicOneHotEncoder([0, 1, 2], drop="first", sparse_output=True),
]


@pytest.mark.parametrize("estimator", ESTIMATORS, ids=lambda e: type(e).__name__)
def test_scikit_learn_is_content(estimator):
    check_estimator(estimator, on_skip=None, expected_failed_checks=WEIGHTS)


@pytest.mark.parametrize("estimator", ESTIMATORS[:5], ids=lambda e: type(e).__name__)
def test_data_frames_in_and_out(estimator):
    frame = pd.DataFrame({"age": [20.0, 30.0, 40.0], "income": [1.0, 2.0, 9.0]}, index=[5, 6, 7])
    out = clone(estimator).set_output(transform="pandas").fit_transform(frame)
    assert list(out.columns) == ["age", "income"]
    assert list(out.index) == [5, 6, 7]


@pytest.mark.parametrize("estimator", ESTIMATORS[:5], ids=lambda e: type(e).__name__)
def test_fitted_scalers_pickle_with_their_certificates(estimator):
    X = np.random.default_rng(0).normal(size=(50, 2))
    fitted = clone(estimator).fit(X)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.transform(X), fitted.transform(X))
    assert again.certificate_ == fitted.certificate_


def test_nothing_but_public_and_released_values_is_kept():
    X = np.random.default_rng(0).normal(size=(50, 2))
    kept = set(vars(DPStandardScaler(1.0, 1e-5, WIDE).fit(X)))
    assert {name for name in kept if name.endswith("_")} == {
        "mean_",
        "scale_",
        "certificate_",
        "n_features_in_",
        "notes_",
    }
    assert "_streams" not in kept
