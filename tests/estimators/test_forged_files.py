"""Forged model files: incomplete, boastful or absurd ones are refused, in one line and at little cost."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from tacit import features as maps
from tacit.errors import InvalidInput
from tacit.estimators.networks import DPConvexReLUClassifier, DPSoftmaxRegression
from tacit.estimators.regression import DPRidge
from tacit.estimators.saving import _digest, load_model, save_model

NETWORK: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "epochs": 2, "classes": [0, 1], "random_state": 0}


def saved(which: str, path: Path) -> dict[str, Any]:
    X = np.random.default_rng(0).uniform(0, 1, (400, 3))
    y = (X[:, 0] > 0.5).astype(int)
    models: dict[str, Callable[[], Any]] = {
        "ridge": lambda: DPRidge(epsilon=1.0, delta=1e-6, feature_bounds=(0, 1), target_bounds=(0, 2)).fit(X, X[:, 0]),
        "gates": lambda: DPConvexReLUClassifier(feature_norm=1.0, n_gates=4, **NETWORK).fit(X, y),
        "fourier": lambda: DPSoftmaxRegression(features=maps.RandomFourier(8), **NETWORK).fit(X, y),
        "poly": lambda: DPSoftmaxRegression(
            features=make_pipeline(PolynomialFeatures(2), maps.NormScaler()), **NETWORK
        ).fit(X, y),
    }
    save_model(models[which](), path)
    out: dict[str, Any] = json.loads(path.read_text())
    return out


def forged(document: dict[str, Any], path: Path) -> Path:
    """With a digest that fits."""
    document["digest"] = _digest(document)
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("key", ["extra", "fitted", "parameters", "certificate", "public", "class"])
def test_a_file_without_an_entry_is_refused_in_our_words(key: str, tmp_path: Path) -> None:
    document = saved("gates", tmp_path / "m.json")
    del document[key]
    with pytest.raises(InvalidInput):
        load_model(forged(document, tmp_path / "m.json"))


@pytest.mark.parametrize("which", ["ridge", "gates"])
def test_a_loaded_model_does_not_say_less_than_its_certificate(which: str, tmp_path: Path) -> None:
    """repr(model) and get_params() say epsilon=0.001; its own certificate says 1."""
    document = saved(which, tmp_path / "m.json")
    document["parameters"]["epsilon"] = 1e-3
    try:
        model = load_model(forged(document, tmp_path / "m.json"))
    except InvalidInput:
        return
    assert model.certificate_.epsilon(1e-5) <= model.epsilon * (1 + 1e-6)


def test_a_claim_below_the_plan_is_refused(tmp_path: Path) -> None:
    document = saved("ridge", tmp_path / "m.json")
    document["certificate"]["claim"]["epsilon"] = 1e-3
    with pytest.raises(InvalidInput):
        load_model(forged(document, tmp_path / "m.json"))
    document = saved("gates", tmp_path / "m.json")
    document["public"]["plan"]["noise_multiplier"] *= 10
    with pytest.raises(InvalidInput):
        load_model(forged(document, tmp_path / "m.json"))


ABSURD: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "fourier features": ("fourier", lambda d: d["parameters"]["features"]["parameters"].update(n_features=4 * 10**6)),
    "fourier columns": ("fourier", lambda d: d["fitted"].update(n_features_in_=10**6)),
    "polynomial degree": (
        "poly",
        lambda d: d["parameters"]["features"]["parts"][0][1]["parameters"].update(degree=300),
    ),
    "gates": ("gates", lambda d: d["parameters"].update(n_gates=10**12)),
    "epochs": ("gates", lambda d: d["parameters"].update(epochs=10**5)),
    "batches": ("gates", lambda d: (d["parameters"].update(batch_size=1), d["public"]["plan"].update(n=4 * 10**5))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(ABSURD))
def test_small_files_do_not_ask_for_much(name: str, tmp_path: Path) -> None:
    """4 kB that take 100 MB; a few digits more, and loading takes minutes or all memory before it says no."""
    which, edit = ABSURD[name]
    document = copy.deepcopy(saved(which, tmp_path / "m.json"))
    edit(document)
    path = forged(document, tmp_path / "m.json")
    tracemalloc.start()
    with pytest.raises(InvalidInput):
        load_model(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**25, f"a file of {path.stat().st_size} bytes took {peak / 2**20:.0f} MB"
