"""Networks by blocks in searches and in files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tacit.errors import InvalidInput, NotCovered
from tacit.estimators import DPSelection, save_model
from tacit.estimators.block_networks import DPBlockMLPClassifier, DPBlockMLPRegressor

PUBLIC: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "epochs": 2, "batch_size": 20, "sampling": "cyclic"}
PUBLIC |= {"progress": False, "feature_bounds": (0, 1), "classes": [0, 1]}


def table(n: int = 60, p: int = 3) -> Any:
    return np.random.default_rng(0).uniform(size=(n, p))


def halves(n: int = 60) -> Any:
    return np.resize([0, 1], n)


def test_a_search_refuses_networks_in_our_words() -> None:
    """Poisson batches are not μ-GDP; the message says so, and what to choose."""
    for model in (
        DPBlockMLPClassifier((4,), feature_bounds=(0, 1), classes=[0, 1], epochs=1),
        DPBlockMLPRegressor((4,), feature_bounds=(0, 1), target_bounds=(0, 1), epochs=1),
    ):
        search = DPSelection(model, {"step_size": [1.0, 2.0]}, epsilon=2.0, delta=1e-5, random_state=0)
        with pytest.raises((InvalidInput, NotCovered)):
            search.fit(table(200), halves(200))


def test_a_model_that_cannot_be_checked_again_is_not_saved(tmp_path: Path) -> None:
    model = DPBlockMLPClassifier((4,), **PUBLIC).fit(table(), halves())
    try:
        save_model(model, tmp_path / "m.json")
    except InvalidInput:
        assert not (tmp_path / "m.json").exists()
        return
    assert "random_state" not in (tmp_path / "m.json").read_text()


def test_the_plan_of_a_selected_network_states_the_promise_of_the_search():
    """``best_estimator_.plan_`` said ε = 0.96 for a search of ε = 2: the promise of one candidate."""
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (500, 2))
    y = (X[:, 0] * X[:, 1] > 0).astype(int)
    settings = {"feature_bounds": (-1, 1), "classes": [0, 1], "sampling": "cyclic", "batch_size": 250, "epochs": 2}
    search = DPSelection(
        DPBlockMLPClassifier((4,), **settings),
        {"step_size": [1.0, 4.0]},
        epsilon=2.0,
        delta=1e-5,
        mean_trials=10,
        random_state=1,
    ).fit(X, y)
    best = search.best_estimator_
    assert best.certificate_ == best.plan_.certificate == search.certificate_
    assert best.plan_.certificate.epsilon(1e-5) > 1.9
