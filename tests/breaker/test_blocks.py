"""Attacks on kept rows, model files and searches: each test states a claim."""

from __future__ import annotations

import copy
import json
import math
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import tacit.estimators._outputs as shared
from tacit import features as maps
from tacit.errors import InvalidInput, NotCovered, TacitError
from tacit.estimators import DPSelection
from tacit.estimators.nmf import DPNMF
from tacit.estimators.networks import DPConvexReLUClassifier, DPSoftmaxRegression
from tacit.estimators.regression import DPRidge
from tacit.estimators.saving import _digest, load_model, save_model
from tacit.ledger import Ledger
from tacit.problem.outputs import Softmax
from tacit.run.sums import LinearOutputs, ShortRows, TableRows

NETWORK: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-5, "epochs": 2, "classes": [0, 1], "random_state": 0}


def people(n: int = 20) -> Any:
    return np.abs(np.random.default_rng(0).normal(size=(n, 4)))


class Reached(Exception):
    pass


def stop(*_: Any, **__: Any) -> Any:
    raise Reached


# -- 1. rows that are kept -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("R", [1e-6, 0.1, 1.0, 1e6])
def test_kept_rows_are_within_their_norm_exactly(R: float, dtype: Any) -> None:
    rng = np.random.default_rng(0)
    long = rng.normal(size=(300, 37))
    long *= R / np.linalg.norm(long, axis=1, keepdims=True) * (1 + rng.normal(size=(300, 1)) * 1e-7)
    with np.errstate(all="ignore"):
        odd = np.array([[top] * 37 for top in (1e308, 3e38, 1e-45, 5e-324, np.inf, np.nan, 0.0, -1e300)])
        X = np.concatenate([long, odd]).astype(dtype)
        wide = np.asfortranarray(np.repeat(X, 2, axis=1))[:, ::2]
        rows = ShortRows(TableRows(wide), R).take(np.arange(len(X)))
    norms = [math.sqrt(math.fsum(float(v) ** 2 for v in row)) for row in rows]
    assert rows.dtype == dtype
    assert max(norms) <= R


def test_rows_of_half_precision_are_refused_or_within_their_norm() -> None:
    X = np.random.default_rng(0).normal(size=(500, 5)).astype(np.float16)
    try:
        rows = ShortRows(TableRows(X), 0.3).take(np.arange(500))
    except (TacitError, NotImplementedError):
        return
    assert np.linalg.norm(np.asarray(rows, np.float64), axis=1).max() <= 0.3


@pytest.mark.parametrize("shape", [(0, 3), (1, 3), (4, 0)])
def test_kept_rows_of_any_shape(shape: tuple[int, int]) -> None:
    assert ShortRows(TableRows(np.ones(shape, np.float32)), 1.0).take(np.arange(shape[0])).shape == shape


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "too large to keep"])
@pytest.mark.parametrize("kind", [DPSoftmaxRegression, DPConvexReLUClassifier])
@pytest.mark.filterwarnings("ignore")
def test_rows_that_change_while_they_are_summed_stay_bounded(
    kind: Any, kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of the user's own float32 table are checked, and then read again: another thread has the time between."""
    X = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
    y = (X[:, 0] > 0).astype(int)
    if not kept:
        monkeypatch.setattr(shared, "KEPT", 0)
    gradient = Softmax.gradient

    def meanwhile(self: Any, *arguments: Any) -> Any:
        X[:] = 1e20
        return gradient(self, *arguments)

    monkeypatch.setattr(Softmax, "gradient", meanwhile)
    model = kind(feature_norm=1.0, **NETWORK).fit(X, y)
    assert np.abs(model.coef_).max() < 1e6, "one contribution was 1e20 long, with noise for 1"


@pytest.mark.parametrize("index", [[0, 0, 2], [0, 2, 1, 3], [3, 4, 4, 6]])
def test_rows_that_are_taken_are_those_that_were_asked_for(index: list[int]) -> None:
    """[0, 0, 2] ends two after its start and is taken for [0, 1, 2]: a record that no batch holds is read."""
    X = np.arange(16.0).reshape(8, 2)
    assert (TableRows(X).take(np.array(index)) == X[index]).all()


# -- 2. model files -------------------------------------------------------------------------------------------------


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


# -- 3. searches ----------------------------------------------------------------------------------------------------

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
    assert model is None or model.certificate_ == search.certificate_ == model.plan_.certificate


def test_linear_outputs_do_not_trust_rows_kept_for_a_larger_norm() -> None:
    X = np.full((4, 3), 10.0)
    rows = ShortRows(TableRows(X), 5.0)
    total = LinearOutputs(rows, np.zeros(4, int), Softmax(2), row_norm=1.0)
    found = total.total(np.zeros((1, 6)), np.eye(1, 4, dtype=bool))
    assert np.linalg.norm(found) <= total.bound
