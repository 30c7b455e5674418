"""Counterexample to claims 3 and 4: a candidate's failure, caused by its releases, ends the whole search."""

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from tacit import DPRidge, DPSelection, DPSoftmaxRegression
from tacit.maps import RandomFourier
from tacit.solvers import CoordinateDescent


def _search(X):
    return DPSelection(
        DPRidge(feature_bounds=(0, 1), target_bounds=(0, 1)),
        {"solver": [CoordinateDescent(step=1.5e308, passes=1.0), "statistics"]},
        epsilon=5.0,
        delta=1e-6,
        mean_trials=12.0,
        random_state=0,
    ).fit(X, np.linspace(0, 1, len(X)))


def test_a_failure_after_the_reservation_is_a_bad_score():
    """1.5e308/M overflows if the *released* smoothness M is small: InvalidInput of any candidate, best or not.

    With features of 1 instead of 0.1 the same search returns a model.

    The docstring of _search promises that a failure caused by a candidate's releases is an output with the worst score.
    """
    _search(np.full((5000, 1), 0.1))


@pytest.mark.parametrize("raising", [False, True])
def test_one_record_cannot_make_every_candidate_fail(raising):
    """1e200 squared overflows in the features: every score raised, and the search returned nothing for sure."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = (X[:, 0] > 0).astype(int)
    X[0] = 1e200
    chain = make_pipeline(PolynomialFeatures(2), RandomFourier(16, gamma=0.1))
    model = DPSoftmaxRegression(features=chain, classes=[0, 1], epochs=2)
    search = DPSelection(model, {"l2": [0.0, 0.01]}, epsilon=1.0, delta=1e-6, mean_trials=9.0, random_state=0)
    with np.errstate(**dict.fromkeys(("over", "invalid", "divide"), "raise") if raising else {}):
        assert search.fit(X, y).best_estimator_ is not None
        assert search.predict(X).shape == (200,)


@pytest.mark.parametrize("solver", ["gradient", "metric", "statistics"])
def test_arithmetic_that_raises_does_not_tell_about_a_record(solver):
    """numpy can be told to raise on overflow, which one record of 1e308 brings about: 17 of 25 searches failed."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (400, 3))
    y = X @ [1.0, -2.0, 0.5]
    X[0] = [1.7e308, -1.7e308, 1.7e308]
    model = DPRidge(feature_bounds=(-1, 1), target_bounds=(-1, 1), solver=solver)
    search = DPSelection(model, {"alpha": [0.1, 1.0]}, epsilon=1.0, delta=1e-6, mean_trials=9.0, random_state=0)
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        assert search.fit(X, y).best_estimator_ is not None
