"""Final-model estimators on disk: public maps by their parameters, weights to the bit, plans rebuilt and compared."""

from __future__ import annotations

import base64
import json
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import FunctionTransformer, Normalizer, PolynomialFeatures
from typer.testing import CliRunner

from tacit import (
    DPConvexReLUClassifier,
    DPConvexReLURegressor,
    DPRidge,
    DPSelection,
    DPSoftmaxRegression,
    load_model,
    save_model,
)
from tacit.cli import app
from tacit.errors import InvalidInput
from tacit.estimators import saving
from tacit.estimators.plain import LARGE, from_plain, to_plain
from tacit.maps import (
    BoundsScaler,
    Deskew,
    Hog,
    Join,
    NormScaler,
    PublicOneHotEncoder,
    RandomFourier,
    RandomRelu,
    ReluGates,
    fourier,
)

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, (300, 16))
Y = np.digitize(X @ RNG.normal(size=16), [0.0, 0.6])
COMMON = {"epsilon": 2.0, "delta": 1e-5, "epochs": 2, "random_state": 3}
LABELLED = COMMON | {"classes": range(3)}
JOINT = Join([("pixels", NormScaler(0.5)), ("kernel", RandomFourier(10, seed=4))], weights={"pixels": 0.6})
MAPS = {
    "scaler": NormScaler(2.0, how="normalise"),
    "fourier": RandomFourier(20, gamma=0.3, seed=7),
    "orthogonal": RandomFourier(40, orthogonal=True),
    "relu": RandomRelu(12, bias=0.5),
    "gates": ReluGates(3, gate_seed=5),
    "deskew": Deskew((4, 4), (0.0, 1.0)),
    "hog": Hog((4, 4), (0, 1), cell=2, orientations=4),
    "join": JOINT,
    "chain": make_pipeline(Deskew((4, 4), [0, 1]), NormScaler(), RandomFourier(10)),
    "nested": Pipeline([("a", "passthrough"), ("b", make_pipeline(JOINT, NormScaler()))]),
    "union": FeatureUnion([("x", NormScaler()), ("z", RandomRelu(5)), ("no", "drop")], transformer_weights={"x": 0.5}),
    "bounds": BoundsScaler(feature_bounds=([0.0] * 16, np.ones(16))),
    "words": make_pipeline(PublicOneHotEncoder([0.0, 1.0]), NormScaler()),
    "theirs": make_pipeline(PolynomialFeatures(2, interaction_only=True), Normalizer(), NormScaler()),
}
MODELS = {
    "softmax": (DPSoftmaxRegression(feature_norm=1.0, **LABELLED), Y),
    "flat": (DPSoftmaxRegression(feature_norm=1.0, fit_intercept=False, loss="one-vs-rest", **LABELLED), Y),
    "shown": (DPSoftmaxRegression(feature_norm=1.0, view="all_iterates", **LABELLED), Y),
    "secret": (DPSoftmaxRegression(feature_norm=1.0, partition="secret", l2=0.1, step_fraction=0.5, **LABELLED), Y),
    "relu": (DPConvexReLUClassifier(5, gate_seed=2, feature_norm=1.0, **LABELLED), Y),
    "linear": (DPConvexReLUClassifier(1, feature_norm=1.0, clip=0.5, step_size=0.1, **LABELLED), Y),
    "labels": (DPConvexReLUClassifier(2, feature_norm=1.0, **COMMON), np.array(["a", "b", "ä"])[Y]),
    "numbers": (DPConvexReLURegressor(4, feature_norm=1.0, target_bounds=(0, 2), **COMMON), 1.0 * Y),
    "column": (DPConvexReLURegressor(4, feature_norm=1.0, target_bounds=(0, 2), **COMMON), 1.0 * Y[:, None]),
    "two": (DPConvexReLURegressor(4, feature_norm=1.0, target_bounds=(0, 2), **COMMON), np.column_stack([Y, Y])),
} | {f"map {name}": (DPSoftmaxRegression(features=part, **LABELLED), Y) for name, part in MAPS.items()}
MODELS["gated chain"] = (DPConvexReLUClassifier(3, features=MAPS["chain"], **LABELLED), Y)


def again(model, folder: Path):
    save_model(model, folder / "model.json")
    assert [p.name for p in folder.iterdir()] == ["model.json"]
    return load_model(folder / "model.json")


def alike(a, b) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def predictions(model, rows):
    names = ("predict", "decision_function", "predict_proba")
    return [getattr(model, name)(rows) for name in names if hasattr(model, name)]


@pytest.mark.parametrize("name", MODELS)
def test_predictions_come_back_to_the_bit(name: str, tmp_path: Path) -> None:
    model, y = MODELS[name]
    model = clone(model).fit(X, y)
    loaded = again(model, tmp_path)
    assert type(loaded) is type(model)
    fitted = {k for k in vars(model) if k.endswith("_")}
    assert vars(loaded).keys() == vars(model).keys()
    for attribute in fitted - {"features_", "plan_", "certificate_"}:
        mine, theirs = getattr(model, attribute), getattr(loaded, attribute)
        assert type(mine) is type(theirs), attribute
        if not isinstance(mine, np.ndarray):
            assert mine == theirs, attribute
        elif mine.dtype.kind == "U":
            assert mine.tolist() == theirs.tolist()
        else:
            assert alike(np.ascontiguousarray(mine), theirs), attribute
    assert loaded.certificate_ == model.certificate_ == loaded.plan_.certificate
    assert loaded.plan_.describe(1e-5) == model.plan_.describe(1e-5)
    assert alike(loaded.plan_.step_sizes, model.plan_.step_sizes)
    assert alike(loaded.plan_.noise, model.plan_.noise)
    for rows in (RNG.normal(0.5, 1, (50, 16)), RNG.uniform(0, 1, (7, 16)).astype(np.float32)):
        for mine, theirs in zip(predictions(model, rows), predictions(loaded, rows), strict=True):
            assert alike(mine, theirs) if mine.dtype.kind != "U" else mine.tolist() == theirs.tolist()
    kept = {k: v for k, v in loaded.get_params(deep=False).items() if k not in ("features", *saving.NOT_KEPT)}
    assert kept == {k: v for k, v in model.get_params(deep=False).items() if k in kept}
    refit = loaded.set_params(random_state=3).fit(X, y)
    assert alike(np.ascontiguousarray(refit.coef_), np.ascontiguousarray(model.coef_))  # parameters are whole, too


def test_maps_are_stored_by_their_parameters(tmp_path: Path) -> None:
    wide = DPSoftmaxRegression(features=RandomFourier(300, seed=9), **LABELLED).fit(X, Y)
    save_model(wide, tmp_path / "m.json")
    document = json.loads((tmp_path / "m.json").read_text())
    assert document["parameters"]["features"] == {
        "map": "RandomFourier",
        "parameters": {"gamma": 1.0, "n_features": 300, "orthogonal": False, "seed": 9},
    }
    assert "features_" not in document["fitted"]
    assert "gates_" not in document["fitted"]
    assert "plan_" not in document["fitted"]


def test_names_of_columns(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=[f"ä{i}" for i in range(16)])
    model = DPSoftmaxRegression(features=MAPS["chain"], **LABELLED).fit(frame, Y)
    loaded = again(model, tmp_path)
    assert loaded.feature_names_in_.tolist() == list(frame.columns)
    assert alike(loaded.predict_proba(frame), model.predict_proba(frame))


@pytest.mark.parametrize("norm", [1, np.float64(1.5), np.float32(1.5), np.int64(2)])
def test_numbers_of_other_types(norm, tmp_path: Path) -> None:
    model = DPConvexReLUClassifier(np.int64(3), gate_seed=np.uint8(1), feature_norm=norm, **LABELLED).fit(X, Y)
    assert alike(again(model, tmp_path).predict_proba(X), model.predict_proba(X))


def test_a_selected_model_keeps_the_promise_of_its_search(tmp_path: Path) -> None:
    search = DPSelection(
        DPConvexReLUClassifier(feature_norm=1.0, epochs=2, classes=range(3)), {"n_gates": [2, 3]},
        epsilon=3.0, delta=1e-5, mean_trials=5, holdout=0.2, random_state=0,
    ).fit(X, Y)  # fmt: skip
    loaded = again(search.best_estimator_, tmp_path)
    assert loaded.certificate_ == search.certificate_ == loaded.plan_.certificate
    assert loaded.certificate_.view == "the selected model"
    assert alike(loaded.predict_proba(X), search.predict_proba(X))
    loaded.plan_ = search.best_estimator_.plan_.__class__(
        **{**vars(search.best_estimator_.plan_), "noise_multiplier": 0.01}
    )
    with pytest.raises(InvalidInput, match="plan_"):
        save_model(loaded, tmp_path / "m.json")


def test_a_million_numbers(tmp_path: Path) -> None:
    model = DPConvexReLUClassifier(128, feature_norm=1.0, epochs=1, classes=range(10), epsilon=1.0, delta=1e-5)
    wide = RNG.uniform(0, 1, (100, 784))
    model.fit(wide, RNG.integers(10, size=100))
    assert model.coef_.size == 1_003_520
    begun = time.process_time()
    loaded = again(model, tmp_path)
    assert time.process_time() - begun < 5
    assert (tmp_path / "model.json").stat().st_size < 30e6
    assert alike(loaded.coef_, model.coef_)
    assert alike(loaded.predict_proba(wide), model.predict_proba(wide))


# -- arrays ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16", "uint8", "bool"])
@pytest.mark.parametrize("shape", [(LARGE + 1,), (2, LARGE), (2, 3, 4), (0, 3, 4)])
def test_large_arrays_are_bytes(dtype: str, shape: tuple[int, ...]) -> None:
    array = RNG.normal(size=shape).astype(dtype) if dtype != "bool" else RNG.normal(size=shape) > 0
    data = json.loads(json.dumps(to_plain(array, "x"), allow_nan=False))
    assert "base64" in data
    assert alike(from_plain(data), array)
    assert alike(from_plain(json.loads(json.dumps(to_plain(np.asfortranarray(array), "x")))), array)
    assert from_plain(data).flags.writeable


def test_small_arrays_are_still_lists() -> None:
    assert to_plain(np.ones((2, 2)), "x") == {"array": [1.0] * 4, "dtype": "float64", "shape": [2, 2]}
    assert "array" in to_plain(np.array(["a"] * (LARGE + 1)), "x")


@pytest.mark.parametrize(
    "change",
    [
        {"base64": "ä"},
        {"base64": "A" * 11},
        {"base64": 5},
        {"base64": ""},
        {"dtype": "object"},
        {"dtype": "str"},
        {"dtype": "V8"},
        {"dtype": ["float64"]},
        {"shape": [2, 3, 5]},
        {"shape": [2, 3, 4, 1]},
        {"shape": [-2, -3, 4]},
        {"shape": [24.0]},
        {"shape": "24"},
    ],
)
def test_strange_bytes_are_refused(change: dict) -> None:
    data = to_plain(RNG.normal(size=(2, 3, 4)), "x")
    with pytest.raises(InvalidInput):
        from_plain(data | change)


def test_bytes_hold_numbers_only() -> None:
    array = RNG.normal(size=(2, 3, 4))
    array[1, 2, 3] = np.nan
    with pytest.raises(InvalidInput, match="NaN"):
        to_plain(array, "x")
    data = to_plain(np.zeros((1, 1, 1)), "x")
    data["base64"] = base64.b64encode(np.array(np.nan).tobytes()).decode()
    with pytest.raises(InvalidInput, match="NaN"):
        from_plain(data)
    data = to_plain(np.zeros((1, 1, 1), bool), "x")
    data["base64"] = base64.b64encode(b"\x02").decode()
    with pytest.raises(InvalidInput):
        from_plain(data)


def test_ranges() -> None:
    assert from_plain(to_plain(range(2, 9, 3), "x")) == range(2, 9, 3)
    for bad in ([1, 2], [0, 10, 0], [0, 1.0, 1], "abc", [0, 1, True]):
        with pytest.raises(InvalidInput):
            from_plain({"range": bad})


# -- what is not saved -------------------------------------------------------------------------------------------


class OwnMap(NormScaler):
    """A subclass, whose code a file cannot hold."""


@pytest.mark.parametrize(
    "features",
    [
        make_pipeline(FunctionTransformer(np.tanh), NormScaler()),
        FunctionTransformer(),
        Join([("a", NormScaler()), ("b", make_pipeline(FunctionTransformer(), NormScaler()))]),
    ],
)
def test_foreign_code_is_not_saved(features, tmp_path: Path) -> None:
    model = DPSoftmaxRegression(features=features, feature_norm=1.0, **LABELLED).fit(X, Y)
    with pytest.raises(InvalidInput, match=r"a FunctionTransformer.*cannot hold") as caught:
        save_model(model, tmp_path / "m.json")
    assert "\n" not in str(caught.value)
    model.features = OwnMap()
    with pytest.raises(InvalidInput, match="OwnMap"):
        save_model(model, tmp_path / "m.json")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "change",
    [{"epochs": 3}, {"l2": 0.5}, {"n_gates": 7}, {"gate_seed": 9}, {"features": NormScaler()}, {"batch_size": 20}],
)
def test_parameters_that_changed_after_the_fit_are_noticed(change, tmp_path: Path) -> None:
    model = DPConvexReLUClassifier(5, feature_norm=1.0, features=RandomFourier(16), **LABELLED).fit(X, Y)
    with pytest.raises(InvalidInput, match=r"after fit|not those"):
        save_model(model.set_params(**change), tmp_path / "m.json")
    assert not list(tmp_path.iterdir())


def test_broken_models_are_not_saved(tmp_path: Path) -> None:
    model = DPConvexReLUClassifier(5, feature_norm=1.0, **LABELLED)
    with pytest.raises(InvalidInput, match="not fitted"):
        save_model(model, tmp_path / "m.json")
    model.fit(X, Y).coef_[0, 0, 0] = np.inf
    with pytest.raises(InvalidInput, match="coef_"):
        save_model(model, tmp_path / "m.json")


# -- what is not loaded ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document(tmp_path_factory) -> dict:
    path = tmp_path_factory.mktemp("whole") / "m.json"
    save_model(DPConvexReLUClassifier(2, features=MAPS["chain"], **LABELLED).fit(X, Y), path)
    return json.loads(path.read_text())


def refused(document: dict, folder: Path) -> str:
    document["digest"] = saving._digest(document)
    path = folder / "m.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidInput) as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    return str(caught.value)


def changed(document: dict, path: tuple, value: object) -> dict:
    out = json.loads(json.dumps(document))
    place = out
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return out


LAST = ("parameters", "features", "parts", 2, 1)
FORGED = {
    "a foreign map": ((*LAST, "map"), "FunctionTransformer", "map"),
    "a module": ((*LAST, "map"), "os.system", "map"),
    "no word": ((*LAST, "map"), ["RandomFourier"], "map"),
    "a strange parameter": ((*LAST, "parameters", "func"), "os.system", "parameter"),
    "another seed": ((*LAST, "parameters", "seed"), 1, "features"),
    "another gamma": ((*LAST, "parameters", "gamma"), 1.01, "features"),
    "another width": ((*LAST, "parameters", "n_features"), 12, "coef_"),
    "an immense width": ((*LAST, "parameters", "n_features"), 2**45, ""),
    "another shape": (("parameters", "features", "parts", 0, 1, "parameters", "image_shape"), [5, 5], "image_shape"),
    "an unnamed part": (("parameters", "features", "parts", 0), ["x"], ""),
    "a number for a part": (("parameters", "features", "parts", 0, 1), 5, "map"),
    "no parts": (("parameters", "features", "parts"), [], ""),
    "a text for maps": (("parameters", "features"), "passthrough", "features"),
    "other gates": (("parameters", "gate_seed"), 1, "gates"),
    "more gates": (("parameters", "n_gates"), 3, "coef_"),
    "immensely many gates": (("parameters", "n_gates"), 2**45, "coef_"),
    "gates of their own": (("fitted", "gates_"), {"array": [0.0], "dtype": "float64", "shape": [1]}, "attribute"),
    "maps of their own": (("fitted", "features_"), None, "attribute"),
    "other steps": (("parameters", "epochs"), 3, "plan"),
    "less noise": (("public", "plan", "noise_multiplier"), 1e-3, "plan"),
    "more records": (("public", "plan", "n"), 10**6, "plan"),
    "no records": (("public", "plan", "n"), 0, ""),
    "no plan": (("public", "plan"), None, ""),
    "no sample": (("public", "features"), None, "features"),
    "a short sample": (("public", "features"), [[0.0]], "features"),
    "nothing public": (("public",), None, ""),
    "another norm": (("fitted", "feature_norm_"), 2.0, "feature_norm_"),
    "no norm": (("fitted", "feature_norm_"), "x", "feature_norm_"),
    "another clip": (("fitted", "clip_"), 0.9, "plan"),
    "no clip": (("fitted", "clip_"), -1.0, "clip"),
    "a wide coefficient": (("fitted", "coef_", "shape"), [3, 10, 2], "coef_"),
    "other columns": (("fitted", "n_features_in_"), 17, ""),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_file_with_a_good_digest_is_refused(name: str, document: dict, tmp_path: Path) -> None:
    path, value, words = FORGED[name]
    assert words in refused(changed(document, path, value), tmp_path)


def test_an_edit_is_noticed(document: dict, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text(json.dumps(changed(document, ("public", "plan", "n"), 301)))
    with pytest.raises(InvalidInput, match="edited"):
        load_model(tmp_path / "m.json")


def test_a_change_of_the_generator_is_noticed(document: dict, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "m.json").write_text(json.dumps(document))
    honest = fourier.gaussians
    load_model(tmp_path / "m.json")

    def other(seed, purpose, shape):
        out = honest(seed, purpose, shape)
        out[-1, -1] += 1e-3  # one number of all
        return out

    monkeypatch.setattr(fourier, "gaussians", other)
    with pytest.raises(InvalidInput, match="features are not those"):
        load_model(tmp_path / "m.json")


def test_linear_models_look_as_before(tmp_path: Path) -> None:
    model = DPRidge(epsilon=1.0, delta=1e-5, feature_bounds=(0, 1), target_bounds=(0, 2)).fit(X, Y)
    save_model(model, tmp_path / "m.json")
    assert "public" not in json.loads((tmp_path / "m.json").read_text())


# -- the command line --------------------------------------------------------------------------------------------


def test_the_commands_are_kind(document: dict, tmp_path: Path) -> None:
    path, table = tmp_path / "m.json", tmp_path / "t.csv"
    path.write_text(json.dumps(document))
    table.write_text("a,b\n1,2\n")
    told = CliRunner().invoke(app, ["report", str(path)])
    assert told.exit_code == 0
    assert "differentially private" in told.output
    refused = CliRunner().invoke(app, ["predict", str(path), str(table)])
    assert refused.exit_code != 0
    assert "load_model" in " ".join((refused.output + str(refused.exception)).split())
