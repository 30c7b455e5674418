"""Attacks on the final-model estimators and their features: each test states what must hold."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer, FunctionTransformer, OneHotEncoder, PolynomialFeatures, StandardScaler

from tacit import DPConvexReLUClassifier, DPConvexReLURegressor, DPSoftmaxRegression, maps
from tacit.errors import InvalidInput, NotCovered, PrivacyUtilityWarning
from tacit.estimators import DPQuantileScaler, DPStandardScaler
from tacit.records import InMemory
from tacit.records import rows as rows_module
from tacit.release import Session

SMALL: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "epochs": 2}


def table(n: int = 400) -> tuple[Any, Any]:
    X = np.random.default_rng(0).normal(size=(n, 3))
    return X, (X[:, 0] > 0).astype(int)


# -- 1. certificates: features with private steps ------------------------------------------------------------


@pytest.mark.parametrize("kind", [DPStandardScaler, DPQuantileScaler])
def test_private_feature_steps_are_refused_or_paid_for(kind: Any) -> None:
    """A private step is refitted on X[:1] (20-DP, on one record), shown in features_, and not in certificate_."""
    X, y = table()
    chain = make_pipeline(kind(epsilon=20.0, delta=1e-5, feature_bounds=(-5, 5)), maps.NormScaler())
    model = DPSoftmaxRegression(features=chain, classes=[0, 1], **SMALL)
    try:
        model.fit(X, y)
    except (NotCovered, InvalidInput):
        return
    assert model.certificate_.epsilon(2e-5) >= 20.0, "features_ spent ε = 20 that the certificate does not say"


def test_a_strange_step_with_a_certificate_is_not_taken_for_row_local() -> None:
    """Any object with a Certificate in certificate_ passes row_local, unmarked, whatever its transform does."""
    X, y = table()
    borrowed = DPSoftmaxRegression(feature_norm=1.0, classes=[0, 1], **SMALL).fit(X, y).certificate_

    class Centre(TransformerMixin, BaseEstimator):  # type: ignore[misc]
        def fit(self, X: Any, y: Any = None) -> Any:
            self.certificate_ = borrowed
            return self

        def transform(self, X: Any) -> Any:
            return X - X.mean(axis=0)  # of the batch: one record moves every row

    model = DPSoftmaxRegression(features=make_pipeline(Centre(), maps.NormScaler()), classes=[0, 1], **SMALL)
    try:
        model.fit(X, y)
    except (NotCovered, InvalidInput):
        return
    assert model.certificate_.marks, "nothing on the certificate says that the user vouches for Centre"


# -- 2. record-dependent attributes after a refusal ----------------------------------------------------------


def test_a_refused_feature_map_leaves_no_record_behind() -> None:
    X, y = table()
    model = DPSoftmaxRegression(features=make_pipeline(StandardScaler(), maps.NormScaler()), classes=[0, 1], **SMALL)
    with pytest.raises(NotCovered):
        model.fit(X, y)
    left = getattr(model, "features_", None)
    assert left is None or not np.allclose(left[0].mean_, X[0]), "features_.mean_ is the first record, in the clear"


def test_feature_maps_are_fitted_without_records() -> None:
    """What fit() of a map sees must not be a record: the number of columns is public, X[:1] is not."""
    X, y = table()
    seen: list[Any] = []

    class Spy(StandardScaler):
        def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Any:
            seen.append(np.array(X))
            return super().fit(X)

    with pytest.raises(NotCovered):
        DPSoftmaxRegression(features=make_pipeline(Spy(), maps.NormScaler()), classes=[0, 1], **SMALL).fit(X, y)
    assert not any((rows == X[:1]).all() for rows in seen), "an unknown step was handed a record before the refusal"


# -- 3. nothing may tell about records -----------------------------------------------------------------------


@pytest.mark.parametrize("value", [3e38, 1e300])
@pytest.mark.parametrize("kind", [DPSoftmaxRegression, DPConvexReLUClassifier, DPConvexReLURegressor])
def test_no_warning_tells_about_a_long_record(kind: Any, value: float) -> None:
    X, y = table()
    X[7] = value
    more = {"target_bounds": (0, 1)} if kind is DPConvexReLURegressor else {"classes": [0, 1]}
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        kind(feature_norm=1.0, **more, **SMALL).fit(X, y)
    assert not [str(w.message) for w in seen if issubclass(w.category, RuntimeWarning)]


def test_no_error_tells_about_a_long_record() -> None:
    """Finite records, public steps: whether fit raises must not depend on a value."""
    X, y = table()
    X[7] = 1e200
    chain = make_pipeline(PolynomialFeatures(2), maps.NormScaler())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", PrivacyUtilityWarning)  # of public numbers
        DPSoftmaxRegression(features=chain, classes=[0, 1], **SMALL).fit(X, y)


def test_no_warning_tells_about_the_first_record() -> None:
    """FunctionTransformer(check_inverse=True) compares on X[:1]."""
    X, y = table()
    chain = make_pipeline(FunctionTransformer(np.square, np.sqrt, check_inverse=True), maps.NormScaler())
    told = []
    for sign in (1.0, -1.0):
        Z = np.abs(X)
        Z[0] *= sign
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            DPSoftmaxRegression(features=chain, classes=[0, 1], **SMALL).fit(Z, y)
        told.append(len([w for w in seen if "inverse" in str(w.message)]))
    assert told[0] == told[1]


# -- 4. state after a fit that did not end ---------------------------------------------------------------------


def test_an_interrupted_fit_does_not_relabel_the_old_model(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = table()
    model = DPSoftmaxRegression(feature_norm=2.0, classes=[0, 1], **{**SMALL, "epsilon": 50.0}).fit(X, y)
    model.set_params(epsilon=0.1)

    def interrupted(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    before = model.coef_.copy()
    monkeypatch.setattr(Session, "run_chain", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(X, y)
    assert model.certificate_.epsilon(1e-5) > 49, "the coefficients of ε = 50 under a certificate of ε = 0.1"
    assert (model.coef_ == before).all()


def test_a_refused_fit_leaves_the_old_model_whole() -> None:
    X, y = table()
    model = DPSoftmaxRegression(feature_norm=2.0, classes=[0, 1], **SMALL).fit(X, y)
    before = model.predict(X)
    model.set_params(features=maps.RandomFourier(10), batch_size=10_000)
    with pytest.raises(InvalidInput):
        model.fit(X, y)
    assert (model.predict(X) == before).all()


# -- 5. correctness --------------------------------------------------------------------------------------------


def test_empty_poisson_batches_are_no_error() -> None:
    X, y = table(60)
    options = {**SMALL, "view": "all_iterates", "batch_size": 1, "random_state": 0}
    DPSoftmaxRegression(features=maps.NormScaler(), classes=[0, 1], **options).fit(X, y)


def test_predictions_scale_rows_as_the_fit_did() -> None:
    """The fit shrinks the lifted record to R, predict does not: for P = 1 predictions are √2 too large."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(4000, 3))
    X /= np.linalg.norm(X, axis=1, keepdims=True)  # within feature_norm, as asked
    y = 0.5 * X[:, 0]
    model = DPConvexReLURegressor(
        1, epsilon=1e6, delta=1e-5, feature_norm=1.0, target_bounds=(-1, 1), clip=2.0, epochs=60, random_state=0
    ).fit(X, y)
    assert model.score(X, y) > 0.99


def test_sparse_feature_maps_are_refused_in_words_or_work() -> None:
    X, y = table()
    encode = OneHotEncoder(categories=[[0, 1]] * 3, handle_unknown="ignore")
    with contextlib.suppress(InvalidInput):
        DPSoftmaxRegression(features=encode, feature_norm=2.0, classes=[0, 1], **SMALL).fit(X, y)


@pytest.mark.filterwarnings("ignore")
def test_functions_without_a_value_at_zero_work() -> None:
    """The width of a map is probed with a row of zeros, where log is −∞."""
    X, y = table()
    chain = make_pipeline(FunctionTransformer(np.log), maps.NormScaler())
    DPSoftmaxRegression(features=chain, classes=[0, 1], **SMALL).fit(np.abs(X) + 0.1, y)


# -- features and gates: last bits ---------------------------------------------------------------------------


def test_a_record_that_no_map_can_take_leaves_the_others_as_they_are() -> None:
    """1e25 squared is no float32: its batch was mapped one by one, with other last bits, and gates turned for all."""
    X = np.random.default_rng(0).normal(size=(300, 8)).astype(np.float32)
    chain = make_pipeline(PolynomialFeatures(2), maps.RandomFourier(64, gamma=0.01))
    model = DPConvexReLUClassifier(2, features=chain, classes=[0, 1], **SMALL)
    features = model._prepared(8, np.float32).map
    spoilt = X.copy()
    spoilt[0] = 1e25
    before, after = features(X), features(spoilt)
    assert not after[0].any()
    assert np.array_equal(before[1:], after[1:])


@pytest.mark.parametrize("kept", [True, False])
def test_functions_of_others_see_one_record_at_a_time_in_random_batches(monkeypatch: Any, kept: bool) -> None:
    """A user's matrix product treats each record by itself, but rounds it by its place: gates must not see that."""
    monkeypatch.setattr(rows_module, "MAX_CACHE_BYTES", 2**30 if kept else 0)
    X, y = table()
    seen: list[int] = []

    def project(rows: Any) -> Any:
        seen.append(len(rows))
        return rows @ np.arange(12.0).reshape(3, 4)

    chain = make_pipeline(FunctionTransformer(project), maps.NormScaler())
    gated = DPConvexReLUClassifier(4, features=chain, classes=[0, 1], view="all_iterates", **SMALL).fit(X, y)
    assert max(seen) == 1
    assert any("declared" in mark for mark in gated.certificate_.marks)
    seen.clear()
    DPConvexReLUClassifier(4, features=chain, classes=[0, 1], **SMALL).fit(X, y)  # places are fixed: as one table
    assert max(seen) > 1


def test_a_threshold_behind_a_function_of_others_does_not_turn_for_everybody() -> None:
    """200 equal records whose product is rounded by their place, and one that no map can take: 50 times the bound."""
    rng, n, p = np.random.default_rng(0), 200, 33
    A = rng.normal(size=(p, p))
    product = FunctionTransformer(lambda rows: rows @ A)
    for _ in range(500):
        x = rng.normal(size=(1, p))
        alone = product.transform(x)[0]
        above = (product.transform(np.tile(x, (n, 1))) > alone).mean(axis=0)
        j = int(above.argmax())
        if above[j] > 0.99:
            break
    else:
        pytest.skip("this library of matrix products rounds these rows alike in every place: nothing can be shown")
    chain = make_pipeline(
        product, maps.NormScaler(1e30), FunctionTransformer(lambda rows: rows[:, [j]]), Binarizer(threshold=alone[j])
    )
    model = DPSoftmaxRegression(
        features=chain, feature_norm=1.0, classes=[0, 1], batch_size=n, clip=1.0, fit_intercept=False, **SMALL
    )
    X, y = np.tile(x, (n, 1)), np.zeros(n, int)
    spoilt = X.copy()
    spoilt[0] = 1.7e308
    table, _, _ = model._read(X, np.array([0, 1] * (n // 2)))
    planned = model._planned(table, model._budget(table))
    query = planned.problem.query
    sums = []
    for side in (X, spoilt):
        records = InMemory(side, y)
        for one in planned.maps:
            records = records.through(one)
        (rows,) = records.parts()
        sums.append(query.total(rows, np.zeros((1, planned.problem.size)), np.ones((1, n), bool)))
    assert np.linalg.norm(sums[0] - sums[1]) <= 2 * query.bound * (1 + 1e-6)
