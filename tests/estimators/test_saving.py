"""Models on disk: what is saved comes back to the bit, and nothing else is let in."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.pipeline import make_pipeline

import tacit
from tacit import (
    DPElasticNet,
    DPGeneralizedLinear,
    DPHuberRegressor,
    DPLasso,
    DPLinearRegression,
    DPLinearSVC,
    DPLogisticRegression,
    DPRidge,
    Ledger,
    load_model,
    save_model,
)
from tacit.errors import InvalidInput
from tacit.estimators import saving
from tacit.estimators.plain import from_plain, to_plain
from tacit.problem import Huber, Penalty
from tacit.solvers import CoordinateDescent, MetricDescent

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (300, 3))
SCORE = X @ [2.0, -1.0, 0.5] + RNG.normal(0, 0.1, 300)
COMMON = {"epsilon": 2.0, "delta": 1e-5, "feature_bounds": (-1, 1), "random_state": 3}
REGRESSION = COMMON | {"target_bounds": (-4.0, 4.0)}
MARGIN = COMMON | {"classes": ["no", "yes"]}
MODELS = {
    "linear": (DPLinearRegression(**REGRESSION), SCORE),
    "ridge": (DPRidge(**REGRESSION, fit_intercept=False), SCORE),
    "lasso": (DPLasso(1e-3, **REGRESSION), SCORE),
    "elasticnet": (DPElasticNet(1e-3, **REGRESSION, solver="statistics"), SCORE),
    "huber": (DPHuberRegressor(**REGRESSION), SCORE),
    "general": (DPGeneralizedLinear("squared", "box", box=(0.0, np.inf), **REGRESSION), SCORE),
    "margin": (DPGeneralizedLinear("logistic", **MARGIN), np.where(SCORE > 0, "yes", "no")),
    "svc": (DPLinearSVC(**MARGIN), np.where(SCORE > 0, "yes", "no")),
    "logistic": (DPLogisticRegression(**MARGIN, view="final_model"), np.where(SCORE > 0, "yes", "no")),
    "three": (DPLogisticRegression(**(COMMON | {"classes": [0, 1, 2]})), np.digitize(SCORE, [-0.5, 0.5])),
}


@pytest.fixture(autouse=True)
def _state(tmp_path_factory, monkeypatch) -> None:
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))


def again(model, folder: Path):
    save_model(model, folder / "model.json")
    assert [p.name for p in folder.iterdir()] == ["model.json"]
    return load_model(folder / "model.json")


def same(a, b) -> bool:
    if isinstance(a, np.ndarray):
        return (
            a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
            if a.dtype.kind not in "OU"
            else (a.dtype.kind == b.dtype.kind and a.tolist() == b.tolist())  # the width of strings may shrink
        )
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("name", MODELS)
def test_everything_comes_back_to_the_bit(name: str, tmp_path: Path) -> None:
    model, y = MODELS[name]
    model.fit(X, y)
    loaded = again(model, tmp_path)
    assert type(loaded) is type(model)
    for parameter, value in model.get_params().items():
        expected = None if parameter in saving.NOT_KEPT else value
        assert same(getattr(loaded, parameter), expected), parameter
    fitted = {k for k in vars(model) if k.endswith("_")}
    assert fitted == {k for k in vars(loaded) if k.endswith("_")}
    for attribute in fitted:
        assert same(getattr(model, attribute), getattr(loaded, attribute)), attribute
    assert loaded.certificate_.epsilon(1e-5) == model.certificate_.epsilon(1e-5)
    assert loaded.certificate_.marks == ("not private: seeded",)
    fresh = RNG.normal(0, 2, (50, 3))
    for method in ("predict", "decision_function", "predict_proba"):
        if hasattr(model, method):
            assert same(getattr(model, method)(fresh), getattr(loaded, method)(fresh))
    if hasattr(model, "coef_standard_errors_"):
        assert same(model.coef_standard_errors_, loaded.coef_standard_errors_)


@pytest.mark.parametrize(
    "labels",
    [
        np.array(["b", "ä €"]),
        np.array(["a", "b"], dtype=object),
        np.array([0, 1]),
        np.array([-3, 7], dtype=np.int8),
        np.array([False, True]),
        np.array([0.0, 1.0]),
    ],
    ids=lambda a: str(a.dtype),
)
def test_labels_keep_their_type(labels: np.ndarray, tmp_path: Path) -> None:
    y = labels[(SCORE > 0).astype(int)]
    model = DPLogisticRegression(**COMMON, classes=labels).fit(X, y)
    loaded = again(model, tmp_path)
    assert same(loaded.classes_, model.classes_)
    assert same(loaded.predict(X), model.predict(X))
    assert same(loaded.classes, model.classes)


def test_names_and_single_precision(tmp_path: Path) -> None:
    frame = pd.DataFrame(X.astype(np.float32), columns=["a", "größe", "c"])
    model = DPRidge(**REGRESSION).fit(frame, SCORE)
    loaded = again(model, tmp_path)
    assert loaded.feature_names_in_.tolist() == ["a", "größe", "c"]
    assert same(loaded.predict(frame), model.predict(frame))


def test_solvers_losses_and_penalties_of_ours(tmp_path: Path) -> None:
    model = DPGeneralizedLinear(
        Huber(2.0), Penalty.of(3, l1=[0.0, 0.1, 0.2]), MetricDescent(steps=4, clip=1.5), **REGRESSION
    ).fit(X, SCORE)
    loaded = again(model, tmp_path)
    assert loaded.loss == Huber(2.0)
    assert loaded.solver == MetricDescent(steps=4, clip=1.5)
    assert same(loaded.penalty.l1, model.penalty.l1)
    assert np.isinf(loaded.penalty.high).all()
    loaded.set_params(random_state=3).fit(X, SCORE)
    assert same(loaded.coef_, model.coef_)
    solver = CoordinateDescent(passes=2.0)
    assert again(DPRidge(**REGRESSION, solver=solver).fit(X, SCORE), tmp_path).solver.passes == 2.0


def test_the_seed_and_the_ledger_stay_at_home(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "study.ledger", epsilon=5.0, delta=1e-4)
    model = DPRidge(**(REGRESSION | {"random_state": 987654321, "budget": ledger})).fit(X, SCORE)
    path = tmp_path / "model.json"
    save_model(model, path)
    text = path.read_text()
    assert "987654321" not in text
    assert "study.ledger" not in text
    loaded = load_model(path)
    assert loaded.budget is None
    assert loaded.random_state is None
    assert "not private: seeded" in loaded.certificate_.marks


def test_a_path_may_be_text(tmp_path: Path) -> None:
    model = DPRidge(**REGRESSION).fit(X, SCORE)
    save_model(model, str(tmp_path / "m.json"), extra={"a": [1, None]})
    assert saving.load_model_and_extra(str(tmp_path / "m.json"))[1] == {"a": [1, None]}
    assert tacit.load_model is load_model


# -- what is not saved ------------------------------------------------------------------------------------


class Foreign(DPRidge):
    """A subclass, whose code a file cannot hold."""


class OwnSolver(MetricDescent):
    """The same for a solver."""


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (DPRidge(), "not fitted"),
        (Foreign(**REGRESSION).fit(X, SCORE), "cannot be saved"),
        (make_pipeline(DPRidge(**REGRESSION)).fit(X, SCORE), "cannot be saved"),
        (object(), "cannot be saved"),
        (DPRidge(**REGRESSION, solver=OwnSolver()).fit(X, SCORE), "solver is a OwnSolver"),
    ],
)
def test_what_cannot_be_saved_is_said(model, words: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=words):
        save_model(model, tmp_path / "m.json")
    assert not list(tmp_path.iterdir())


def test_a_broken_model_is_not_saved(tmp_path: Path) -> None:
    model = DPRidge(**REGRESSION).fit(X, SCORE)
    model.coef_ = np.array([1.0, np.nan, 2.0])
    with pytest.raises(InvalidInput, match="coef_"):
        save_model(model, tmp_path / "m.json")
    model = DPRidge(**REGRESSION).fit(X, SCORE).set_params(solver=lambda: None)
    with pytest.raises(InvalidInput, match="solver is a function"):
        save_model(model, tmp_path / "m.json")
    with pytest.raises(InvalidInput, match="JSON"):
        save_model(DPRidge(**REGRESSION).fit(X, SCORE), tmp_path / "m.json", extra={"x": float("nan")})
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(28, "No space left on device")])
@pytest.mark.parametrize("place", ["fsync", "replace"])
def test_a_failing_write_leaves_the_old_file(error: BaseException, place: str, tmp_path: Path, monkeypatch) -> None:
    def fails(*_: object) -> None:
        raise error

    path = tmp_path / "m.json"
    path.write_text("old")
    model = DPRidge(**REGRESSION).fit(X, SCORE)
    monkeypatch.setattr(os if place == "fsync" else Path, place, fails)
    with pytest.raises(KeyboardInterrupt if isinstance(error, KeyboardInterrupt) else InvalidInput):
        save_model(model, path)
    monkeypatch.undo()
    assert [p.name for p in tmp_path.iterdir()] == ["m.json"]
    assert path.read_text() == "old"


# -- what is not loaded -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document(tmp_path_factory) -> dict:
    model, y = MODELS["logistic"]
    path = tmp_path_factory.mktemp("whole") / "m.json"
    save_model(model.fit(X, y), path)
    return json.loads(path.read_text())


def refused(document: object, folder: Path, *, seal: bool = False) -> str:
    if seal:
        document["digest"] = saving._digest(document)
    path = folder / "m.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidInput) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


def leaves(data, path=()):
    if isinstance(data, dict | list):
        for key, value in data.items() if isinstance(data, dict) else enumerate(data):
            yield from leaves(value, (*path, key))
    else:
        yield path


def changed(document: dict, path: tuple, value: object) -> dict:
    out = json.loads(json.dumps(document))
    place = out
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return out


def test_every_edit_is_noticed(document: dict, tmp_path: Path) -> None:
    for path in leaves(document):
        refused(changed(document, path, "other"), tmp_path)
    for name in document:
        refused({k: v for k, v in document.items() if k != name}, tmp_path)
    refused(document | {"more": 1}, tmp_path)
    assert "edited" in refused(changed(document, ("fitted", "coef_", "array", 0), 0.25), tmp_path)


FORGED = {
    "another class": (("class",), "Pipeline", "class"),
    "a module": (("class",), "os.system", "class"),
    "no word": (("class",), ["DPRidge"], "class"),
    "another format": (("format",), 2, "format"),
    "a strange parameter": (("parameters", "cmd"), "rm", "parameter"),
    "a seed": (("parameters", "random_state"), 1, "parameter"),
    "a ledger": (("parameters", "budget"), "/tmp/x", "parameter"),
    "a strange type": (("parameters", "solver"), {"type": "Popen", "fields": {}}, "does not know"),
    "strange fields": (("parameters", "solver"), {"type": "MetricDescent", "fields": {"x": 1}}, "unexpected"),
    "a method": (("fitted", "predict"), 1, "attribute"),
    "a private attribute": (("fitted", "__class__"), "x", "attribute"),
    "a certificate": (("fitted", "certificate_"), "x", "attribute"),
    "text for numbers": (("fitted", "coef_", "array", 0), "x", "another kind"),
    "infinity": (("fitted", "coef_", "array", 0), "inf", "coef_"),
    "a truth": (("fitted", "coef_", "array", 0), True, "another kind"),
    "a huge number": (("fitted", "coef_", "array", 0), 10**400, ""),
    "a long shape": (("fitted", "coef_", "shape"), [1, 1, 3], "array"),
    "a wrong shape": (("fitted", "coef_", "shape"), [1, 4], "shape"),
    "another shape": (("fitted", "coef_", "shape"), [3, 1], "coef_"),
    "a negative shape": (("fitted", "coef_", "shape"), [-1, -3], "shape"),
    "another type": (("fitted", "coef_", "dtype"), "object", "another kind"),
    "a fancy type": (("fitted", "coef_", "dtype"), "V8", "array"),
    "no coefficients": (("fitted", "coef_"), None, "coef_"),
    "one class": (("fitted", "classes_"), {"array": ["a"], "dtype": "str", "shape": [1]}, "classes_"),
    "classes in disorder": (("fitted", "classes_", "array"), ["yes", "no"], "classes_"),
    "the same class twice": (("fitted", "classes_", "array"), ["no", "no"], "classes_"),
    "a wrong width": (("fitted", "n_features_in_"), 4, "coef_"),
    "no width": (("fitted", "n_features_in_"), True, "n_features_in_"),
    "an intercept too many": (("fitted", "intercept_"), 1.0, "intercept_"),
    "notes of another kind": (("fitted", "notes_"), 5, "notes_"),
    "nothing fitted": (("fitted",), {}, "n_features_in_"),
    "a list for an object": (("fitted",), [], ""),
    "no plan": (("certificate", "plan"), {}, ""),
    "a smaller claim": (("certificate", "claim", "epsilon"), 0.1, "claims"),
    "no certificate": (("certificate",), None, ""),
    "fewer marks": (("certificate", "marks"), [], "written with"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_file_with_a_good_digest_is_refused(name: str, document: dict, tmp_path: Path) -> None:
    path, value, words = FORGED[name]
    assert words in refused(changed(document, path, value), tmp_path, seal=True)


CONTENTS = [b"", b"[]", b"null", b"{}", b"3", b"\xff\xfe{}", b"[" * 200_000, b'{"tacit": "model"', b'{"a": 1e9999999}']


@pytest.mark.parametrize("content", [*CONTENTS, b'{"tacit": NaN}', b"9" * 5000, b'{"a":' * 500 + b"1" + b"}" * 500])
def test_other_files_are_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "m.json"
    path.write_bytes(content)
    with pytest.raises(InvalidInput, match=r"m\.json is not a model") as caught:
        load_model(path)
    assert "\n" not in str(caught.value)


def test_half_a_file(document: dict, tmp_path: Path) -> None:
    text = json.dumps(document)
    path = tmp_path / "m.json"
    for end in range(0, len(text), 97):
        path.write_text(text[:end])
        with pytest.raises(InvalidInput):
            load_model(path)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="No such file"):  # InvalidInput, too: test_newcomers.py
        load_model(tmp_path / "none.json")


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=4) | st.lists(inner, max_size=4).map(tuple),
    max_leaves=20,
)


@settings(deadline=None, derandomize=True, max_examples=200)
@given(VALUES, st.lists(st.floats(allow_nan=False), min_size=1), st.sampled_from(["float64", "int16", "bool", "str"]))
def test_plain_data_is_exact(value, numbers: list[float], dtype: str) -> None:
    assert same(from_plain(json.loads(json.dumps(to_plain(value, "x"), allow_nan=False))), value)
    array = np.array(numbers) if dtype == "float64" else (np.array(numbers) > 0).astype(dtype)
    assert same(from_plain(json.loads(json.dumps(to_plain(array, "x"), allow_nan=False))), array)
