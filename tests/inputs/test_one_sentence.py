"""One fault has one sentence, whoever is told it, and in it no record."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from tacit import DPLogisticRegression, DPRidge, DPSelection
from tacit.errors import InvalidInput
from tacit.estimators import DPQuantileScaler, DPStandardScaler, private_mean, private_quantiles, private_variance
from tacit.inputs.tables import shape_of, validate_shape, validate_table
from tacit.maps import BoundsScaler, PublicOneHotEncoder
from tacit.records.schema import Schema

DEAL = {"epsilon": 1.0, "delta": 1e-5}
Y = np.linspace(-1, 1, 4)


def ridge(**change):
    return DPRidge(**{**DEAL, "feature_bounds": (-1, 1), "target_bounds": (-1, 1), **change})


def search(**change):
    return DPSelection(
        DPRidge(**{"feature_bounds": (-1, 1), "target_bounds": (-1, 1), **change}), {"alpha": [1.0]}, **DEAL
    )


ENTRIES = {
    "ridge": lambda X: ridge().fit(X, Y[: shape_of(X)[0]]),
    "logistic": lambda X: DPLogisticRegression(**DEAL, feature_bounds=(-1, 1)).fit(X, Y[: shape_of(X)[0]] > 0),
    "search": lambda X: search().fit(X, Y[: shape_of(X)[0]]),
    "bounds": lambda X: BoundsScaler((-1, 1)).fit(X),
    "standard": lambda X: DPStandardScaler(**DEAL, feature_bounds=(-1, 1)).fit(X),
    "quantile": lambda X: DPQuantileScaler(**DEAL, feature_bounds=(-1, 1)).fit(X),
    "transform": lambda X: BoundsScaler((-1, 1)).fit(np.zeros((4, 2))).transform(X),
    "predict": lambda X: ridge(epsilon=1e6).fit(np.zeros((4, 2)), Y).predict(X),
    "mean": lambda X: private_mean(X, (-1, 1), **DEAL),
    "variance": lambda X: private_variance(X, (-1, 1), **DEAL),
    "quantiles": lambda X: private_quantiles(X, 0.5, (-1, 1), **DEAL),
}
SECRET = 0.123456
FAULTS = {
    "NaN": np.array([[SECRET, np.nan]] * 4),
    "infinite": np.array([[SECRET, np.inf]] * 4),
    "words": np.array([["secret", SECRET]] * 4, dtype=object),
    "too large": np.array([[10**400, SECRET]] * 4, dtype=object),
    "three dimensions": np.full((4, 2, 2), SECRET),
}


def told(run, *arguments) -> str:
    with pytest.raises(InvalidInput) as caught:
        run(*arguments)
    assert caught.value.__cause__ is None
    assert "secret" not in str(caught.value.__context__)
    return str(caught.value)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_a_table_has_one_sentence(fault):
    sentences = {name: told(entry, FAULTS[fault]) for name, entry in ENTRIES.items()}
    assert len(set(sentences.values())) == 1, sentences
    (sentence,) = set(sentences.values())
    assert "\n" not in sentence
    assert str(SECRET) not in sentence
    assert "secret" not in sentence


def test_so_has_a_sparse_table_where_a_dense_one_is_needed():
    table = sparse.csr_array(np.full((4, 2), SECRET))
    dense_only = ("bounds", "standard", "quantile", "transform", "mean", "variance", "quantiles")
    runs = [*(ENTRIES[name] for name in dense_only), lambda X: PublicOneHotEncoder([[0], [0]]).fit(X)]
    (sentence,) = {told(run, table) for run in runs}
    assert sentence == "X is sparse, where a dense table is needed: pass X.toarray(), or leave these columns out"


def schema(bounds):
    return Schema.from_dict(json.loads(json.dumps({"features": {"age": {"bounds": bounds}}})))


BOUNDED = {
    "feature_bounds": {
        "ridge": lambda b: ridge(feature_bounds=b).fit(np.zeros((4, 1)), Y),
        "bounds": lambda b: BoundsScaler(b).fit(np.zeros((4, 1))),
        "standard": lambda b: DPStandardScaler(**DEAL, feature_bounds=b).fit(np.zeros((4, 1))),
        "quantile": lambda b: DPQuantileScaler(**DEAL, feature_bounds=b).fit(np.zeros((4, 1))),
    },
    "bounds": {
        "mean": lambda b: private_mean(Y, b, **DEAL),
        "variance": lambda b: private_variance(Y, b, **DEAL),
        "quantiles": lambda b: private_quantiles(Y, 0.5, b, **DEAL),
    },
    "target_bounds": {"ridge": lambda b: ridge(target_bounds=b).fit(np.zeros((4, 1)), Y)},
    "feature 'age': bounds": {"schema": schema},
}


@pytest.mark.parametrize("bounds", [[1, 0], [0, float("inf")], [0, "x"], [0, 1e101]], ids=str)
def test_a_fault_of_bounds_has_one_sentence(bounds):
    sentences = {
        told(run, bounds).replace(name, "BOUNDS", 1) for name, runs in BOUNDED.items() for run in runs.values()
    }
    assert len(sentences) == 1, sentences


@pytest.mark.parametrize("labels", [["a", "a"], ["a", 1]], ids=str)
def test_a_fault_of_labels_has_one_sentence(labels):
    runs = {
        "classes": lambda: DPLogisticRegression(**DEAL, feature_bounds=(-1, 1), classes=labels).fit(
            np.zeros((2, 1)), ["a", "b"]
        ),
        "target: classes": lambda: Schema.from_dict(
            {"features": {"x": {"bounds": [0, 1]}}, "target": {"classes": labels}}
        ),
    }
    assert len({told(run).replace(name, "LABELS", 1) for name, run in runs.items()}) == 1


# -- the shape first ----------------------------------------------------------------------------------------------


class Sealed:
    """A table that shows its shape and nothing else."""

    shape, dtype, ndim = (20, 3), np.dtype(float), 2

    def __len__(self):
        return 20

    def __array__(self, *arguments, **options):
        raise PermissionError


def test_a_shape_is_known_before_a_value_is_read():
    scaler = BoundsScaler()
    assert validate_shape(scaler, Sealed()) == (20, 3)
    assert scaler.n_features_in_ == 3
    with pytest.raises(PermissionError):  # the seal works
        validate_table(scaler, Sealed())


def test_names_of_columns_belong_to_the_shape():
    scaler = BoundsScaler()
    assert validate_shape(scaler, pd.DataFrame({"a": [np.nan], "b": ["x"]})) == (1, 2)
    assert list(scaler.feature_names_in_) == ["a", "b"]


@pytest.mark.parametrize(
    "X", [3.0, None, [1.0], np.zeros((2, 2, 2)), np.zeros((0, 2)), np.zeros((2, 0)), [[1], [2, 3]]]
)
def test_other_shapes_are_refused(X):
    assert "\n" not in told(validate_shape, BoundsScaler(), X)


def test_a_column_is_a_table_where_it_may_be():
    assert validate_shape(BoundsScaler(), np.zeros(7), column=True) == (7, 1)
    told(lambda: validate_shape(BoundsScaler(), np.zeros(0), column=True))
