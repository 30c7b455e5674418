"""Counterexample to claims 3 and 4: a candidate's failure, caused by its releases, ends the whole search."""

import numpy as np

from tacit import DPRidge, DPSelection
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
