"""Public categories only; what is not listed is nothing."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.preprocessing import OneHotEncoder

from tacit.errors import InvalidInput
from tacit.maps import PublicOneHotEncoder

COLOURS, SIZES = ["red", "green", "blue"], [1, 2]


@pytest.mark.parametrize("drop", [None, "first"])
@pytest.mark.parametrize("sparse_output", [False, True])
def test_it_agrees_with_scikit_learn(drop, sparse_output):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"colour": rng.choice([*COLOURS, "pink"], 50), "size": rng.choice([1, 2, 7], 50)})
    ours = PublicOneHotEncoder([COLOURS, SIZES], drop=drop, sparse_output=sparse_output)
    theirs = OneHotEncoder(categories=[COLOURS, SIZES], handle_unknown="ignore", sparse_output=False)
    expected = theirs.fit_transform(frame)
    keep = [0, 1, 2, 3, 4] if drop is None else [1, 2, 4]
    Z = ours.fit_transform(frame)
    if sparse_output:
        assert isinstance(Z, sparse.csc_array)
        Z = Z.toarray()
    np.testing.assert_array_equal(Z, expected[:, keep])
    assert list(ours.get_feature_names_out()) == list(theirs.get_feature_names_out()[keep])
    assert ours.certificate_ is None


def test_what_is_not_listed_becomes_zeros():
    encoder = PublicOneHotEncoder([["a", "b"]])
    X = np.array([["a"], ["zebra"], [None], [float("nan")], [3], [["list"]]], dtype=object)
    np.testing.assert_array_equal(encoder.fit(X).transform(X), [[1, 0]] + [[0, 0]] * 5)


def test_missing_may_be_a_category():
    X = np.array([[1.0], [np.nan], [2.0]])
    np.testing.assert_array_equal(PublicOneHotEncoder([[1, float("nan")]]).fit_transform(X), [[1, 0], [0, 1], [0, 0]])


def test_one_flat_list_serves_all_columns():
    Z = PublicOneHotEncoder(["yes", "no"]).fit_transform([["yes", "no"], ["no", "?"]])
    np.testing.assert_array_equal(Z, [[1, 0, 0, 1], [0, 1, 0, 0]])


@pytest.mark.parametrize("kind", [np.array, pd.DataFrame, lambda x: x])
def test_the_data_do_not_matter_to_fit(kind):
    one, two = (PublicOneHotEncoder([COLOURS]).fit(kind(x)) for x in ([["red"]], [["x"], ["y"]]))
    assert one.categories_ == two.categories_ == [tuple(COLOURS)]


def test_pandas_output():
    out = PublicOneHotEncoder([SIZES]).set_output(transform="pandas").fit_transform(pd.DataFrame({"size": [2, 1]}))
    assert list(out.columns) == ["size_1", "size_2"]


@pytest.mark.parametrize(
    ("categories", "message"),
    [
        ("auto", "would leak"),
        (None, "would leak"),
        ("abc", "list of lists"),
        ([], "list of lists"),
        (3, "list of lists"),
        ([["a"], ["b"], ["c"]], "one list per column"),
        ([["a"], "b"], "one list per column"),
        ([["a", "a"], ["b"]], "each once"),
        ([[], ["b"]], "at least one"),
        ([[["a"]], ["b"]], "words or numbers"),
    ],
)
def test_categories_are_required(categories, message):
    with pytest.raises(InvalidInput, match=message):
        PublicOneHotEncoder(categories).fit(np.array([["a", "b"]], dtype=object))


def test_other_mistakes():
    with pytest.raises(InvalidInput, match="drop"):
        PublicOneHotEncoder([SIZES], drop="last").fit([[1]])
    with pytest.raises(InvalidInput, match="two dimensions"):
        PublicOneHotEncoder([SIZES]).fit(np.array([1, 2]))
    with pytest.raises(InvalidInput, match="holds numbers"):
        PublicOneHotEncoder([COLOURS]).fit(np.array([[1.0]])).transform(np.array([[1.0]]))
    with pytest.raises(InvalidInput, match="sparse"):
        PublicOneHotEncoder([SIZES]).fit(sparse.csc_array([[1.0]]))
