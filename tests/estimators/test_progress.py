"""A bar for those who watch, and only for them."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from tacit import DPConvexReLURegressor, DPSoftmaxRegression
from tacit.errors import InvalidInput
from tacit.estimators.progress import progress_bar, watching

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (200, 3))
SETTINGS = {"epsilon": 1.0, "delta": 1e-5, "feature_norm": 1.0, "epochs": 2}


def model(**change):
    return DPSoftmaxRegression(**SETTINGS, classes=[0, 1], **change)


@pytest.mark.parametrize(
    ("progress", "terminal", "shown"), [(None, False, 0), (None, True, 1), (False, True, 0), (True, False, 1)]
)
def test_it_is_shown_to_those_who_watch(progress, terminal, shown, monkeypatch, capfd):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    model(progress=progress).fit(X, (X[:, 0] > 0).astype(int))
    out = capfd.readouterr()
    assert out.out == ""
    assert ("DPSoftmaxRegression" in out.err) == bool(shown)


@pytest.mark.parametrize("view", ["final_model", "all_iterates"])
def test_it_counts_steps_and_nothing_else(view):
    seen = []
    regressor = DPConvexReLURegressor(2, **SETTINGS, target_bounds=(-1, 1), view=view)
    with watching(regressor, lambda done, steps: seen.append((done, steps))):
        regressor.fit(X, X[:, 0])
    assert seen == [(k, 8) for k in range(1, 9)]
    assert "_progress" not in vars(regressor)


def test_the_fit_does_not_depend_on_it(monkeypatch):
    y = (X[:, 0] > 0).astype(int)
    a, b = (model(progress=progress, random_state=0).fit(X, y) for progress in (True, False))
    assert np.array_equal(a.coef_, b.coef_)


@pytest.mark.parametrize("value", ["yes", 1, 0.0])
def test_other_values_are_refused(value):
    with pytest.raises(InvalidInput, match="progress must be True, False or None"):
        model(progress=value).fit(X, (X[:, 0] > 0).astype(int))


def test_a_bar_nobody_watches_costs_nothing():
    with progress_bar("work", False) as tick:
        assert tick is None
    with progress_bar("work", True) as tick:
        tick(1, 2)


def test_a_program_without_stderr_can_fit(monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    model().fit(X, (X[:, 0] > 0).astype(int))
