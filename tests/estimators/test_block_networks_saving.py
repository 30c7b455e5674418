"""Networks of blocks on disk: predictions to the bit, plan and layers made again and compared, nothing big on trust."""

from __future__ import annotations

import base64
import json
import math
import tracemalloc
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from typer.testing import CliRunner

from tacit import Convolution, Dense, DPBlockMLPClassifier, DPBlockMLPRegressor, Ledger, load_model, save_model
from tacit._codec import decode, digest, encode
from tacit.cli import app
from tacit.errors import InvalidInput
from tacit.estimators import saving
from tacit.solvers import network as solver
from tacit.solvers.schedules import Optimised

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, size=(200, 4))
PICTURES = RNG.uniform(0, 1, size=(200, 16))
LABELS = RNG.integers(3, size=200)
NUMBERS = np.column_stack([X[:, 0] * X[:, 1], np.abs(X[:, 2])])
COMMON = {"epsilon": 2.0, "delta": 1e-5, "epochs": 2, "batch_size": 100, "sampling": "cyclic", "random_state": 3}
FLAT = {**COMMON, "feature_bounds": (-1, 1)}
PICTURE = {**COMMON, "feature_bounds": (0.0, 1.0), "input_shape": (1, 4, 4), "classes": range(3)}
REGRESSION = {**FLAT, "target_bounds": (-1, 1)}
BOUNDS = (np.full(4, -1.0), np.array([1.0, 1.0, 0.5, 1.0], np.float32))
MODELS = {
    "dense": DPBlockMLPClassifier((5,), classes=range(3), **FLAT),
    "no hidden layer": DPBlockMLPClassifier((), classes=(2, 0, 1), noise_schedule="linear", **FLAT),
    "a size": DPBlockMLPClassifier(4, classes=np.arange(3), loss="squared", noise_schedule="step", **FLAT),
    "a list": DPBlockMLPClassifier([np.int64(4), Dense(np.int64(3))], layer_norms=[1.0, 2.0, 0.5], **FLAT),
    "classes from the data": DPBlockMLPClassifier((5,), **FLAT),
    "statistics": DPBlockMLPClassifier((5, 4), update="statistics", l2=0.01, classes=[0, 1, 2], **FLAT),
    "norms": DPBlockMLPClassifier(
        (5, 4), layer_norms=(1, 2.0, np.float32(0.5)), contribution_norm=(0.01, np.float64(0.02), 0.03), **FLAT
    ),
    "arrays": DPBlockMLPClassifier(
        (4,),
        layer_norms=np.array([1.0, 2.0]),
        contribution_norm=np.array([0.1, 0.2]),
        **{**FLAT, "feature_bounds": BOUNDS},
    ),
    "one norm": DPBlockMLPClassifier((5,), layer_norms=2, contribution_norm=1, l2=0.1, gamma=0.5, init_seed=7, **FLAT),
    "shortcuts": DPBlockMLPClassifier((5, 4), shortcuts=((0, 2), (1, 3)), noise_schedule=Optimised(1.5), **FLAT),
    "convolution": DPBlockMLPClassifier(
        (Convolution(3, 2, stride=1, padding=1), Convolution(2, 2, pool=2), Dense(4)), shortcuts=[[2, 4]], **PICTURE
    ),
    "pooled": DPBlockMLPClassifier(Dense(4, pool=2), adjacency="zero-out", **{**PICTURE, "input_shape": [1, 4, 4]}),
    "everybody": DPBlockMLPClassifier(
        (5,), classes=range(3), noise_schedule="optimised", **{**FLAT, "batch_size": 200}
    ),
    "default batches": DPBlockMLPClassifier((5,), classes=range(3), **{**FLAT, "batch_size": None}),
    "poisson": DPBlockMLPClassifier(
        (5,),
        classes=range(3),
        noise_schedule="step",
        **{**FLAT, "sampling": "poisson", "epsilon": 0.5, "batch_size": 40},
    ),
    "a number": DPBlockMLPRegressor((5,), **REGRESSION),
    "two numbers": DPBlockMLPRegressor((5, 4), shortcuts=((1, 3),), update="statistics", **REGRESSION),
    "a column": DPBlockMLPRegressor((5,), **{**REGRESSION, "target_bounds": np.array([-1.0, 1.0])}),
}
Network = DPBlockMLPClassifier | DPBlockMLPRegressor


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(MODELS[name], DPBlockMLPRegressor):
        return X, {"a number": NUMBERS[:, 0], "two numbers": NUMBERS, "a column": NUMBERS[:, :1]}[name]
    return (X if MODELS[name].input_shape is None else PICTURES), LABELS


def again(model: Network, folder: Path) -> Network:
    save_model(model, folder / "model.json")
    assert [p.name for p in folder.iterdir()] == ["model.json"]
    return load_model(folder / "model.json")


def alike(a: np.ndarray, b: np.ndarray) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def same(a: object, b: object) -> bool:
    """Equal, but for types of numpy's."""
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return alike(a, b) if isinstance(a, np.ndarray) else bool(a == b)


@pytest.mark.parametrize("name", MODELS)
def test_networks_come_back_to_the_bit(name: str, tmp_path: Path) -> None:
    table, target = data(name)
    model = clone(MODELS[name]).fit(table, target)
    loaded = again(model, tmp_path)
    assert type(loaded) is type(model)
    assert vars(loaded).keys() == vars(model).keys()
    assert all(map(alike, loaded.coefs_, model.coefs_))
    assert loaded.network_ == model.network_
    methods = ("predict", "predict_proba", "decision_function") if hasattr(model, "classes_") else ("predict",)
    for method in methods:
        for rows in (table, table[:7].astype(np.float32)):
            assert alike(getattr(loaded, method)(rows), getattr(model, method)(rows))
    if hasattr(model, "classes_"):
        assert alike(loaded.classes_, model.classes_)
    assert loaded.certificate_ == model.certificate_ == loaded.plan_.certificate
    assert alike(loaded.plan_.ratio, model.plan_.ratio)
    for here, there in zip(loaded.plan_.blocks, model.plan_.blocks, strict=True):
        assert alike(here.start, there.start)
        assert here.constants == there.constants
    assert loaded.plan_.describe(1e-5) == model.plan_.describe(1e-5)
    rest = ("n", "n_batches", "epochs", "sampling", "view", "order")
    assert [getattr(loaded.plan_, x) for x in rest] == [getattr(model.plan_, x) for x in rest]
    for parameter, value in model.get_params(deep=False).items():
        if parameter not in saving.NOT_KEPT:
            assert same(getattr(loaded, parameter), value), parameter
    if name != "poisson":  # which takes seconds to plan
        refit = loaded.set_params(random_state=3).fit(table, target)
        assert all(map(alike, refit.coefs_, model.coefs_))  # parameters are whole, too


def test_a_loaded_model_is_saved_as_it_was(tmp_path: Path) -> None:
    model = clone(MODELS["convolution"]).fit(PICTURES, LABELS)
    save_model(again(model, tmp_path), tmp_path / "second.json")
    assert (tmp_path / "second.json").read_bytes() == (tmp_path / "model.json").read_bytes()


def test_names_of_features_and_of_classes(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=list("aäbc"))
    words = np.array(["no", "yes", "perhaps"])[LABELS]
    for classes in (["yes", "no", "perhaps"], None):
        loaded = again(DPBlockMLPClassifier((5,), classes=classes, **FLAT).fit(frame, words), tmp_path)
        assert loaded.feature_names_in_.tolist() == list("aäbc")
        assert set(loaded.predict(frame)) <= set(words)


def test_wide_layers_are_bytes(tmp_path: Path) -> None:
    model = DPBlockMLPClassifier((500,), **{**FLAT, "epochs": 1}).fit(RNG.uniform(-1, 1, size=(200, 100)), LABELS)
    assert all(map(alike, again(model, tmp_path).coefs_, model.coefs_))
    assert (tmp_path / "model.json").stat().st_size < 1.5 * sum(W.nbytes for W in model.coefs_)


def test_a_file_holds_what_was_released_and_nothing_else(tmp_path: Path) -> None:
    for name, fitted in (("dense", {"classes_"}), ("a number", {"single_target_"})):
        table, target = data(name)
        ledger = Ledger(tmp_path / f"{name}.ledger", 9.0, 1e-3)
        model = clone(MODELS[name]).set_params(budget=ledger).fit(table, target)
        save_model(model, tmp_path / "m.json")
        document = json.loads((tmp_path / "m.json").read_text())
        assert document["fitted"].keys() == {"coefs_", "n_features_in_"} | fitted
        assert document["public"].keys() == {"plan", "start", "network", "blocks"}
        assert document["public"]["plan"] == {"n": 200}
        assert document["parameters"].keys() == model.get_params(deep=False).keys() - {"budget", "random_state"}


# -- what is not saved ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parameter", "value", "words"),
    [
        ("noise_schedule", lambda epoch, batch: 1.0 + epoch, r"noise_schedule is a function.*cannot hold.*Optimised"),
        ("hidden_layer_sizes", (type("Own", (Dense,), {})(5),), r"hidden_layer_sizes holds a Own.*tacit.Dense"),
        ("feature_bounds", (range(-4, 0), 1), "feature_bounds holds a range"),
    ],
    ids=["schedule", "layer", "range"],
)
def test_what_a_file_cannot_hold_is_refused_in_one_line(
    parameter: str, value: object, words: str, tmp_path: Path
) -> None:
    model = DPBlockMLPClassifier((5,), **FLAT).set_params(**{parameter: value}).fit(X, LABELS)
    with pytest.raises(InvalidInput, match=words) as caught:
        save_model(model, tmp_path / "m.json")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def fitted() -> DPBlockMLPClassifier:
    return clone(MODELS["dense"]).fit(X, LABELS)


CHANGES = [
    {"epochs": 5},
    {"batch_size": 50},
    {"batch_size": 200},
    {"noise_schedule": "linear"},
    {"sampling": "poisson"},
    {"adjacency": "zero-out"},
    {"epsilon": 1.0},
    {"delta": 1e-9},
    {"hidden_layer_sizes": (4,)},
    {"hidden_layer_sizes": (5, 5)},
    {"hidden_layer_sizes": (10**9,)},
    {"hidden_layer_sizes": ()},
    {"shortcuts": ((0, 2),)},
    {"loss": "squared"},
    {"update": "statistics"},
    {"layer_norms": 2.0},
    {"layer_norms": (1.0, 2.0)},
    {"contribution_norm": 0.02},
    {"contribution_norm": (0.01, 0.02)},
    {"step_size": 2.0},
    {"last_step": 0.2},
    {"l2": 0.1},
    {"gamma": 2.0},
    {"input_shape": (2, 1, 2)},
    {"init_seed": 1},
    {"classes": range(1, 4)},
    {"classes": range(4)},
    {"classes": None},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: " ".join(map(str, change.items())))
def test_parameters_that_changed_after_the_fit_are_noticed(
    change: dict, fitted: DPBlockMLPClassifier, tmp_path: Path
) -> None:
    model = clone(fitted)
    vars(model).update(vars(fitted))
    with pytest.raises(InvalidInput, match=r"after fit|init_seed|was changed|classes|certificate") as caught:
        save_model(model.set_params(**change), tmp_path / "m.json")
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_broken_models_are_not_saved(fitted: DPBlockMLPClassifier, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="not fitted"):
        save_model(MODELS["dense"], tmp_path / "m.json")
    for value in (np.nan, np.inf):
        model = clone(fitted)
        vars(model).update(vars(fitted))
        model.coefs_ = [W.copy() for W in fitted.coefs_]
        model.coefs_[1][1, 2] = value
        with pytest.raises(InvalidInput, match="coefs_"):
            save_model(model, tmp_path / "m.json")
    assert not list(tmp_path.iterdir())


# -- what is not loaded -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def documents(tmp_path_factory) -> dict[str, dict]:
    """Good files, parsed, by the name of their model."""
    path, out = tmp_path_factory.mktemp("whole") / "m.json", {}
    for name in ("dense", "statistics", "convolution", "classes from the data", "a number", "two numbers", "poisson"):
        table, target = data(name)
        save_model(clone(MODELS[name]).fit(table, target), path)
        out[name] = json.loads(path.read_text())
    return out


def refused(document: dict, folder: Path) -> str:
    document["digest"] = saving._digest(document)
    path = folder / "m.json"
    path.write_text(json.dumps(document))
    tracemalloc.start()
    with pytest.raises(InvalidInput) as caught:
        load_model(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**24, f"a file of {path.stat().st_size} bytes took {peak / 2**20:.0f} MB"
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600
    return str(caught.value)


def changed(document: dict, *edits: tuple[tuple, object]) -> dict:
    out = json.loads(json.dumps(document))
    for path, value in edits:
        place = out
        for key in path[:-1]:
            place = place[key]
        if value is GONE:
            del place[path[-1]]
        else:
            place[path[-1]] = value
    return out


GONE = object()
HUGE = 10**9
LONG = {"range": [0, 10**11, 1]}


def table(shape: tuple[int, int], value: float = 0.0) -> dict:
    raw = base64.b64encode(np.full(shape, value).tobytes()).decode()
    return {"base64": raw, "dtype": "float64", "shape": list(shape)}


def layer(kind: str, **fields: int) -> dict:
    defaults = {"Dense": {"pool": 1}, "Convolution": {"kernel": 5, "stride": 1, "padding": 0, "pool": 1}}
    return {"layer": kind, "fields": {**defaults[kind], **fields}}


# Weights of "dense": (5, 6), (3, 6).
FORGED = {
    "a smaller promise": (("parameters", "epsilon"), 1e-3, "promise"),
    "a smaller delta": (("parameters", "delta"), 1e-12, "promise"),
    "another relation": (("parameters", "adjacency"), "zero-out", "adjacency"),
    "an uncovered relation": (("parameters", "adjacency"), "add-remove", "adjacency"),
    "a smaller claim": (("certificate", "claim", "epsilon"), 1e-3, "claims"),
    "a plan of another relation": (("certificate", "plan", "parts", 0, "adjacency", "name"), "ZERO_OUT", ""),
    "other steps": (("parameters", "epochs"), 5, "steps"),
    "immensely many steps": (("parameters", "epochs"), 10**12, "steps"),
    "no steps": (("parameters", "epochs"), 0, "epochs"),
    "other batches": (("parameters", "batch_size"), 60, "steps"),
    "tiny batches": (("parameters", "batch_size"), 1, "steps"),
    "no batches": (("parameters", "batch_size"), 0, "batch_size"),
    "default batches": (("parameters", "batch_size"), None, "steps"),
    "other sampling": (("parameters", "sampling"), "poisson", "plan"),
    "no such sampling": (("parameters", "sampling"), "full", "sampling"),
    "another schedule": (("parameters", "noise_schedule"), "step", "plan"),
    "no such schedule": (("parameters", "noise_schedule"), "sinking", "noise_schedule"),
    "code for a schedule": (("parameters", "noise_schedule"), {"type": "os.system", "fields": {}}, ""),
    "a negative half-life": (("parameters", "noise_schedule"), {"optimised": -1.0}, "half_life"),
    "more records": (("public", "plan", "n"), 10**9, "steps"),
    "no records": (("public", "plan", "n"), 0, "n"),
    "no plan": (("public", "plan"), GONE, ""),
    "nothing public": (("public",), GONE, ""),
    "no start": (("public", "start"), GONE, ""),
    "a short start": (("public", "start"), [[[0.0]]], "start"),
    "half of the start": (("public", "start", 1), None, "start"),
    "another start": (("parameters", "init_seed"), 9, "start"),
    "no layers": (("public", "network"), GONE, ""),
    "no blocks": (("public", "blocks"), [], "blocks"),
    "another bound": (("public", "blocks", 0, "constants", 2), 0.001, "blocks"),
    "a loss": (("parameters", "loss"), "squared", "layers"),
    "no such loss": (("parameters", "loss"), "hinge", "loss"),
    "a norm": (("parameters", "layer_norms"), 2.0, "layers"),
    "a norm for each": (("parameters", "layer_norms"), {"tuple": [1.0, 0.5]}, "layers"),
    "a norm too many": (("parameters", "layer_norms"), [1.0, 1.0, 1.0], "layer_norms"),
    "a clip": (("parameters", "contribution_norm"), 0.001, "blocks"),
    "a clip for each": (("parameters", "contribution_norm"), {"tuple": [0.01, 0.02]}, "blocks"),
    "an update": (("parameters", "update"), "statistics", "plan"),
    "no such update": (("parameters", "update"), "magic", "update"),
    "a step": (("parameters", "step_size"), 1.0, "blocks"),
    "a penalty": (("parameters", "l2"), 1.0, "blocks"),
    "a constraint": (("parameters", "gamma"), 3.0, "layers"),
    "a wider layer": (("parameters", "hidden_layer_sizes"), {"tuple": [6]}, "coefs_"),
    "one more layer": (("parameters", "hidden_layer_sizes"), {"tuple": [5, 5]}, "coefs_"),
    "one layer less": (("parameters", "hidden_layer_sizes"), {"tuple": []}, "coefs_"),
    "an immense layer": (("parameters", "hidden_layer_sizes"), {"tuple": [HUGE]}, "single record"),
    "a large layer": (("parameters", "hidden_layer_sizes"), {"tuple": [10**7]}, "coefs_"),
    "two large layers": (("parameters", "hidden_layer_sizes"), {"tuple": [10**7, 10**7]}, "coefs_"),
    "a layer beyond numbers": (("parameters", "hidden_layer_sizes"), 10**400, "width"),
    "half a layer": (("parameters", "hidden_layer_sizes"), {"tuple": [5.0]}, "hidden_layer_sizes"),
    "words for layers": (("parameters", "hidden_layer_sizes"), "x" * 10**5, "hidden_layer_sizes"),
    "a range of layers": (("parameters", "hidden_layer_sizes"), LONG, "hidden_layer_sizes"),
    "code for a layer": (("parameters", "hidden_layer_sizes"), {"layer": "os", "fields": {}}, "hidden_layer_sizes"),
    "a strange field": (("parameters", "hidden_layer_sizes"), layer("Dense", width=5, x=1), "hidden_layer_sizes"),
    "a convolution of nothing": (
        ("parameters", "hidden_layer_sizes"),
        {"tuple": [layer("Convolution", channels=5)]},
        "input_shape",
    ),
    "a shortcut": (("parameters", "shortcuts"), {"tuple": [{"tuple": [0, 2]}]}, "coefs_"),
    "words for shortcuts": (("parameters", "shortcuts"), ["x" * 10**5], "shortcuts"),
    "a picture": (("parameters", "input_shape"), {"tuple": [4]}, "coefs_"),
    "a picture of gigabytes": (("parameters", "input_shape"), {"tuple": [1, 10**5, 10**5]}, "input_shape"),
    "words for a picture": (("parameters", "input_shape"), {"tuple": ["x", "y"]}, "input_shape"),
    "a picture without shape": (("parameters", "input_shape"), 5, "input_shape"),
    "a range for a picture": (("parameters", "input_shape"), LONG, "input_shape"),
    "a range for bounds": (("parameters", "feature_bounds"), {"tuple": [LONG, 1]}, "feature_bounds"),
    "bounds of others": (("parameters", "feature_bounds"), {"tuple": [[0, 0, 0], 1]}, "feature_bounds"),
    "no bounds": (("parameters", "feature_bounds"), None, "feature_bounds"),
    "more features": (("fitted", "n_features_in_"), 5, "coefs_"),
    "immensely many features": (("fitted", "n_features_in_"), 2**45, "single record"),
    "no features": (("fitted", "n_features_in_"), 0, "n_features_in_"),
    "no weights": (("fitted", "coefs_"), GONE, "coefs_"),
    "no weights at all": (("fitted", "coefs_"), [], "coefs_"),
    "weights of one layer": (("fitted", "coefs_"), [table((5, 6))], "coefs_"),
    "one weight": (("fitted", "coefs_"), table((5, 6)), "coefs_"),
    "words for weights": (("fitted", "coefs_", 0), {"array": ["x"] * 30, "dtype": "str", "shape": [5, 6]}, "coefs_"),
    "short numbers": (("fitted", "coefs_", 0, "dtype"), "float32", "coefs_"),
    "turned weights": (("fitted", "coefs_", 0, "shape"), [6, 5], "coefs_"),
    "NaN": (("fitted", "coefs_", 0), table((5, 6), np.nan), "NaN"),
    "infinite weights": (("fitted", "coefs_", 0), table((5, 6), np.inf), "coefs_"),
    "an immense shape": (("fitted", "coefs_", 0, "shape"), [HUGE, 6], "shape"),
    "no classes": (("fitted", "classes_"), GONE, "classes_"),
    "one class less": (("fitted", "classes_"), {"array": [0, 1], "dtype": "int64", "shape": [2]}, "classes"),
    "other classes": (("fitted", "classes_"), {"array": [0, 1, 7], "dtype": "int64", "shape": [3]}, "classes_"),
    "immensely many classes": (("parameters", "classes"), LONG, "classes"),
    "ranges of classes": (("parameters", "classes"), [LONG, LONG, LONG], "classes"),
    "classes that nobody stated": (("parameters", "classes"), None, "declaration"),
    "a plan of its own": (("fitted", "plan_"), 5, "attribute"),
    "a network of its own": (("fitted", "network_"), 5, "attribute"),
    "a certificate of its own": (("fitted", "certificate_"), 5, "attribute"),
    "a seed": (("parameters", "random_state"), 3, "parameter"),
    "the last model": (("parameters", "view"), "final_model", "view"),
    "another class": (("class",), "DPBlockMLPRegressor", "parameter"),
}


@pytest.mark.parametrize("name", FORGED)
def test_a_forged_file_with_a_good_digest_is_refused(name: str, documents: dict, tmp_path: Path) -> None:
    path, value, words = FORGED[name]
    assert words in refused(changed(documents["dense"], (path, value)), tmp_path)


def test_the_files_that_are_forged_are_good(documents: dict, tmp_path: Path) -> None:
    for document in documents.values():
        (tmp_path / "m.json").write_text(json.dumps(document))
        load_model(tmp_path / "m.json")


@pytest.mark.parametrize(
    ("name", "path", "value", "words"),
    [
        # Ratios do not tell what they are ratios of, least of all without the paper's claims (Poisson, statistics).
        ("poisson", ("parameters", "contribution_norm"), 1.0, "blocks"),
        ("poisson", ("parameters", "loss"), "squared", "layers"),
        ("poisson", ("parameters", "layer_norms"), 0.5, "layers"),
        ("poisson", ("parameters", "update"), "statistics", "plan"),
        ("poisson", ("parameters", "epsilon"), 0.1, "promise"),
        ("poisson", ("parameters", "sampling"), "cyclic", "plan"),
        ("poisson", ("parameters", "noise_schedule"), "linear", "plan"),
        ("statistics", ("parameters", "contribution_norm"), 1.0, "blocks"),
        ("statistics", ("parameters", "l2"), 0.0, "blocks"),
        ("statistics", ("parameters", "update"), "gradient", "plan"),
        ("convolution", ("parameters", "update"), "statistics", "gradient"),
        ("convolution", ("parameters", "shortcuts"), [], "coefs_"),
        ("convolution", ("parameters", "shortcuts"), [[1, 4]], "coefs_"),
        ("convolution", ("parameters", "input_shape"), {"tuple": [1, 2, 8]}, "does not fit"),
        ("convolution", ("parameters", "input_shape"), None, "input_shape"),
        ("convolution", ("parameters", "hidden_layer_sizes", "tuple", 0, "fields", "padding"), 10**6, ""),
        ("convolution", ("parameters", "hidden_layer_sizes", "tuple", 0, "fields", "kernel"), 10**9, ""),
        ("convolution", ("parameters", "hidden_layer_sizes", "tuple", 0, "fields", "stride"), 2, ""),
        ("classes from the data", ("certificate", "marks"), ["not private: seeded"], "plan or marks"),
        ("a number", ("fitted", "single_target_"), GONE, "single_target_"),
        ("a number", ("fitted", "single_target_"), 1, "single_target_"),
        ("a number", ("parameters", "target_bounds"), None, "target_bounds"),
        ("a number", ("parameters", "target_bounds"), {"tuple": [LONG, 1]}, "target_bounds"),
        ("a number", ("fitted", "coefs_", 1), table((2, 6)), "every output"),
        ("two numbers", ("fitted", "single_target_"), True, "every output"),
        ("two numbers", ("fitted", "coefs_", 2), table((3, 5)), "coefs_[3]"),
    ],
)
def test_other_networks_are_compared_as_well(
    name: str, path: tuple, value: object, words: str, documents: dict, tmp_path: Path
) -> None:
    assert words in refused(changed(documents[name], (path, value)), tmp_path)


@pytest.mark.parametrize(
    ("first", "pool", "shape"),
    [
        ({"stride": 25_000, "padding": 1}, 2, (1, 10**5, 10**5)),
        ({"stride": 500_000, "padding": 10**6}, 2, (1, 4, 4)),
        ({"padding": 10**6}, 10**6, (1, 4, 4)),
        ({"padding": 1}, 2, (1, 3, 0xAAAAAAAAAAAAAAB0)),  # 16 pixels, in 64 bits
    ],
    ids=["picture", "padding", "pool", "overflow"],
)
def test_small_kernels_for_pictures_of_gigabytes(
    first: dict, pool: int, shape: tuple, documents: dict, tmp_path: Path
) -> None:
    """Weights have the shapes that such layers ask for, too: what tells is the size of a record."""
    layers = [
        layer("Convolution", channels=3, kernel=2, **first),
        layer("Convolution", channels=2, kernel=2, pool=pool),
    ]
    out = changed(
        documents["convolution"],
        (("parameters", "hidden_layer_sizes"), {"tuple": [*layers, layer("Dense", width=4)]}),
        (("parameters", "input_shape"), {"tuple": list(shape)}),
        (("fitted", "n_features_in_"), math.prod(shape) % 2**64),
    )
    said = refused(out, tmp_path)
    assert "single record" in said or "does not hold" in said


def certified_anew(document: dict, edit) -> dict:
    """As by somebody who can write a certificate's digest, too."""
    out = json.loads(json.dumps(document))
    certificate = out["certificate"]
    edit(certificate)
    plan = decode(certificate["plan"], limit=math.inf)
    certificate["plan"] = encode(plan)
    certificate["digest"] = digest((plan, tuple(certificate["marks"]), tuple(certificate["only"])))
    return out


@pytest.mark.parametrize("every", [1, 2], ids=["first step", "first layer"])
def test_a_certificate_of_more_noise_is_refused(every: int, documents: dict, tmp_path: Path) -> None:
    """It tells the truth about its own plan; but shares or schedule are not those which ran."""

    def quieter(certificate: dict) -> None:
        values = certificate["plan"]["parts"][0]["ratio"]["schedule"]["values"]
        chosen = values[:2] if every == 1 else values[::2]
        values[: len(chosen) * every : every] = [value * 0.1 for value in chosen]

    assert "plan" in refused(certified_anew(documents["dense"], quieter), tmp_path)


def test_a_certificate_with_fewer_releases_is_refused(documents: dict, tmp_path: Path) -> None:
    def one_layer(certificate: dict) -> None:
        part = certificate["plan"]["parts"][0]
        part["ratio"]["schedule"] = {"values": [0.1], "counts": [4]}
        part["releases"] = 1

    assert "releases" in refused(certified_anew(documents["dense"], one_layer), tmp_path)


def test_a_certificate_without_its_words_is_refused(documents: dict, tmp_path: Path) -> None:
    def silent(certificate: dict) -> None:
        certificate["marks"] = ["not private: seeded"]

    assert "declaration" in refused(certified_anew(documents["classes from the data"], silent), tmp_path)


@pytest.mark.parametrize(("steps", "releases"), [(10**9, 1), (10**11, 2), (10**6, 10**3), (4, 10**8)])
def test_a_long_run_in_a_short_file_is_not_laid_out(steps: int, releases: int, documents: dict, tmp_path: Path) -> None:
    """Two values that stand for gigabytes of releases; loading must say no before it certifies them."""

    def long(certificate: dict) -> None:
        part = certificate["plan"]["parts"][0]
        half = steps * releases // 2
        part["ratio"]["schedule"] = {"values": [1e-9, 2e-9], "counts": [half, half]}
        part["steps"], part["releases"] = steps, releases

    out = certified_anew(documents["dense"], long)
    assert "files hold at most" in refused(changed(out, (("parameters", "epochs"), steps // 2)), tmp_path)


def test_an_edit_is_noticed(documents: dict, tmp_path: Path) -> None:
    out = changed(documents["dense"], (("parameters", "progress"), False))
    (tmp_path / "m.json").write_text(json.dumps(out))
    with pytest.raises(InvalidInput, match="edited"):
        load_model(tmp_path / "m.json")


def test_a_change_of_the_generator_is_noticed(documents: dict, tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "m.json").write_text(json.dumps(documents["dense"]))
    honest = solver.public_weights

    def other(network, seed):
        out = honest(network, seed)
        out[-1][-1, -1] += 1e-3  # one number of all
        return out

    monkeypatch.setattr(solver, "public_weights", other)
    with pytest.raises(InvalidInput, match="start is not the one"):
        load_model(tmp_path / "m.json")


def test_another_machine_may_round_otherwise(documents: dict, tmp_path: Path) -> None:
    """Ratios a few units in the last place away are those of the certificate; ε comes from the certificate alone."""

    def rounded(certificate: dict) -> None:
        schedule = certificate["plan"]["parts"][0]["ratio"]["schedule"]
        schedule["values"] = [value * (1 + 4e-16 * (-1) ** i) for i, value in enumerate(schedule["values"])]

    out = certified_anew(documents["dense"], rounded)
    out["public"]["blocks"][0]["constants"][2] *= 1 + 4e-16
    out["digest"] = saving._digest(out)
    (tmp_path / "m.json").write_text(json.dumps(out))
    loaded = load_model(tmp_path / "m.json")
    assert alike(loaded.plan_.ratio.ravel(), loaded.certificate_.plan.parts[0].ratio.to_array())
    assert out["certificate"]["plan"] != documents["dense"]["certificate"]["plan"]


def test_the_commands_are_kind(documents: dict, tmp_path: Path) -> None:
    path, csv = tmp_path / "m.json", tmp_path / "t.csv"
    path.write_text(json.dumps(documents["dense"]))
    csv.write_text("a,b\n1,2\n")
    told = CliRunner().invoke(app, ["report", str(path)])
    assert told.exit_code == 0
    said = CliRunner().invoke(app, ["predict", str(path), str(csv)])
    assert said.exit_code != 0
    assert "load_model" in " ".join((said.output + str(said.exception)).split())
