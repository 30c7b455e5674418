"""Counterexamples to claim 4: certified pipelines whose 'public' steps learn an exact bit about one record."""

import warnings

import numpy as np
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder

from tacit import DPRidge, certificate_of
from tacit.errors import NotCovered

CATEGORIES = [["a", "b", "c"]]


def _ridge():
    return DPRidge(epsilon=1.0, delta=1e-6, feature_bounds=(0, 1), target_bounds=(0, 1), random_state=0)


def _certified(pipeline):
    try:
        return certificate_of(pipeline)
    except NotCovered:
        return None


def test_density_of_a_column_transformer_is_not_public():
    """ColumnTransformer.sparse_output_ = (density of all records < sparse_threshold): one record flips it, and with it
    the units, the plan's numbers and the model."""
    fitted = []
    for known in (90, 89):  # neighbours: one record's category becomes unknown
        X = np.array([["a"]] * known + [["?"]] * (100 - known), dtype=object)
        steps = ColumnTransformer([("c", OneHotEncoder(categories=CATEGORIES, handle_unknown="ignore"), [0])])
        fitted.append(make_pipeline(steps, _ridge()).fit(X, np.linspace(0, 1, 100)))
    learned = [one[0].sparse_output_ for one in fitted]
    assert learned[0] == learned[1] or any(_certified(one) is None for one in fitted)


def test_an_encoder_that_drops_warns_about_one_record():
    """handle_unknown='ignore' with drop= warns if and only if a record holds an unlisted value."""
    told = []
    for value in ("a", "?"):
        X = np.array([["a"], ["b"], [value]], dtype=object)
        encoder = OneHotEncoder(categories=CATEGORIES, handle_unknown="ignore", drop="first", sparse_output=False)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            pipeline = make_pipeline(encoder, _ridge()).fit(X, [0.0, 1.0, 0.5])
        told.append((len(caught), _certified(pipeline)))
    assert told[0][0] == told[1][0] or told[1][1] is None
