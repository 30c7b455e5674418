"""Fits whose result is worth little say so aloud, from public numbers only."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from tacit import DPLogisticRegression, DPRidge, PrivacyUtilityWarning

DEAL = {"delta": 1e-6, "feature_bounds": (-1, 1), "random_state": 0}


def table(n: int, seed: int = 0):
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (n, 5))
    return X, (X[:, 0] > 0).astype(int)


@pytest.mark.parametrize(("n", "epsilon"), [(100, 0.1), (500, 0.5)])
def test_a_constant_or_unreliable_model_warns(n, epsilon):
    model = DPLogisticRegression(epsilon=epsilon, classes=[0, 1], **DEAL)
    with pytest.warns(PrivacyUtilityWarning) as caught:
        model.fit(*table(n))
    assert [str(one.message) for one in caught] == list(model.notes_)
    assert all(one.filename == __file__ for one in caught)  # where fit was called


def test_neighbours_get_the_same_warnings():
    """Also one whose records are all alike, or all of one class."""
    said = set()
    X, y = table(300)
    for features, labels in ((X, y), (np.zeros_like(X), y), (X, np.zeros(300, int))):
        with pytest.warns(PrivacyUtilityWarning) as caught:
            DPLogisticRegression(epsilon=0.3, classes=[0, 1], **DEAL).fit(features, labels)
        said.add(tuple(str(one.message) for one in caught))
    assert len(said) == 1


def test_a_good_fit_and_a_note_about_the_view_do_not_warn():
    X, y = table(5000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DPLogisticRegression(epsilon=3.0, classes=[0, 1], **DEAL).fit(X, y)
        final = DPRidge(epsilon=3.0, target_bounds=(-1, 1), view="final_model", **DEAL).fit(X, X[:, 1])
    assert final.notes_
