"""Grids of a search: bad ones are refused before anything is spent or read, and what was admitted is what runs."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tacit.errors import InvalidInput, NotCovered
from tacit.estimators import DPNMF, DPConvexReLUClassifier, DPSelection
from tacit.ledger import Ledger


def people(n: int = 20) -> Any:
    return np.abs(np.random.default_rng(0).normal(size=(n, 4)))


class Reached(Exception):
    pass


def stop(*_: Any, **__: Any) -> Any:
    raise Reached


GRIDS: dict[str, dict[str, Any]] = {
    "long steps": {"step_fraction": [0.5, 2.0]},
    "no gates": {"n_gates": [0, 4]},
    "secret partition": {"partition": ["fixed", "secret"]},
    "own epsilon": {"epsilon": [1.0, 9.0]},
    "own map": {"features": [None, make_pipeline(StandardScaler())]},
    "own norm": {"feature_norm": [1.0, math.nan]},
    "own view": {"view": ["final_model", "nobody"]},
}


@pytest.mark.parametrize("name", list(GRIDS))
def test_a_bad_grid_is_refused_before_anything_is_spent_or_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    X = np.random.default_rng(0).normal(size=(300, 3))
    monkeypatch.setattr(DPConvexReLUClassifier, "fit", stop)
    ledger = Ledger(tmp_path / "a.ledger", epsilon=3.0, delta=1e-4)
    inner = DPConvexReLUClassifier(feature_norm=1.0, n_gates=4, epochs=2, classes=[0, 1])
    search = DPSelection(inner, GRIDS[name], epsilon=2.0, delta=1e-5, ledger=ledger, random_state=0)
    with pytest.raises((InvalidInput, NotCovered)):
        search.fit(X, (X[:, 0] > 0).astype(int))
    assert len(ledger.entries()) == 0
    assert not hasattr(search, "certificate_")


def test_a_search_does_not_take_a_factorisation_for_a_candidate() -> None:
    """Its ``planned_certificate`` has other arguments, and it has no target."""
    search = DPSelection(DPNMF(2, row_norm=1.0), {"epochs": [2]}, epsilon=2.0, delta=1e-5)
    with pytest.raises((InvalidInput, NotCovered)):
        search.fit(people(), np.arange(20.0))


def test_candidates_run_the_plan_that_was_admitted() -> None:
    X = np.random.default_rng(0).normal(size=(300, 3))
    y = (X[:, 0] > 0).astype(int)
    inner = DPConvexReLUClassifier(feature_norm=1.0, epochs=2, classes=[0, 1])
    search = DPSelection(
        inner,
        {"n_gates": [2, 4], "step_fraction": [0.5, 1.0]},
        epsilon=2.0,
        delta=1e-5,
        mean_trials=3.0,
        random_state=1,
    ).fit(X, y)
    model = search.best_estimator_
    assert search.certificate_.epsilon(1e-5) <= 2.0
    assert model is None or model.certificate_ == search.certificate_
