"""Model files that somebody changed, with a digest that fits: refused in one line, before they cost much."""

from __future__ import annotations

import copy
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from file_helpers import GONE, certified_anew, changed, refused, saved, sealed
from sklearn.base import clone
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures

from tacit import (
    DPNMF,
    DPBlockMLPClassifier,
    DPBlockMLPRegressor,
    DPConvexReLUClassifier,
    DPLogisticRegression,
    DPRidge,
    DPSelection,
    DPSoftmaxRegression,
    DPStandardScaler,
    load_model,
)
from tacit._codec import encode
from tacit.maps import Deskew, NormScaler, RandomFourier, fourier
from tacit.problem.layers import Convolution, Dense
from tacit.solvers.nmf import NMFOptions
from tacit.solvers.schedules import Optimised

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, (200, 16))
FEW = RNG.uniform(-1, 1, (200, 4))
LABELS = RNG.integers(3, size=200)
TWO = np.where(X[:, 0] > 0.5, "yes", "no")
NUMBERS = np.column_stack([FEW[:, 0] * FEW[:, 1], np.abs(FEW[:, 2])])
COUNTS = RNG.gamma(0.5, size=(300, 3)) @ RNG.gamma(0.5, size=(3, 12))
PROMISE = {"epsilon": 2.0, "delta": 1e-5, "random_state": 3}
LINEAR = PROMISE | {"feature_bounds": (0, 1)}
LABELLED = PROMISE | {"epochs": 2, "classes": range(3)}
NETWORK = PROMISE | {"epochs": 2, "batch_size": 100, "sampling": "cyclic", "feature_bounds": (-1, 1)}
NUMERIC = NETWORK | {"target_bounds": (-1, 1)}
FACTORS = PROMISE | {"row_norm": 2.0, "epochs": 4}
CHAIN = make_pipeline(Deskew((4, 4), [0, 1]), NormScaler(), RandomFourier(10))
PICTURE = NETWORK | {"feature_bounds": (0.0, 1.0), "input_shape": (1, 4, 4), "classes": range(3)}
MODELS: dict[str, tuple[Any, Any, Any]] = {
    "logistic": (DPLogisticRegression(**LINEAR, classes=["no", "yes"], view="final_model"), X, TWO),
    "ridge": (DPRidge(**LINEAR, target_bounds=(0, 2)), X, X[:, 0]),
    "gates": (DPConvexReLUClassifier(2, features=CHAIN, **LABELLED), X, LABELS),
    "plain gates": (DPConvexReLUClassifier(4, feature_norm=1.0, **LABELLED), X, LABELS),
    "fourier": (DPSoftmaxRegression(features=RandomFourier(8), **LABELLED), X, LABELS),
    "poly": (DPSoftmaxRegression(features=make_pipeline(PolynomialFeatures(2), NormScaler()), **LABELLED), FEW, LABELS),
    "dense": (DPBlockMLPClassifier((5,), classes=range(3), **NETWORK), FEW, LABELS),
    "statistics": (
        DPBlockMLPClassifier((5, 4), update="statistics", l2=0.01, classes=[0, 1, 2], **NETWORK),
        FEW,
        LABELS,
    ),
    "convolution": (
        DPBlockMLPClassifier(
            (Convolution(3, 2, stride=1, padding=1), Convolution(2, 2, pool=2), Dense(4)), shortcuts=[[2, 4]], **PICTURE
        ),
        X,
        LABELS,
    ),
    "classes from the data": (DPBlockMLPClassifier((5,), **NETWORK), FEW, LABELS),
    "a number": (DPBlockMLPRegressor((5,), **NUMERIC), FEW, NUMBERS[:, 0]),
    "two numbers": (DPBlockMLPRegressor((5, 4), shortcuts=((1, 3),), update="statistics", **NUMERIC), FEW, NUMBERS),
    "poisson": (
        DPBlockMLPClassifier(
            (5,),
            classes=range(3),
            noise_schedule="step",
            **NETWORK | {"sampling": "poisson", "epsilon": 0.5, "batch_size": 40},
        ),
        FEW,
        LABELS,
    ),
    "factors": (DPNMF(3, batch_size=70, options=NMFOptions(noise_schedule="linear"), **FACTORS), COUNTS, None),
    "both": (DPNMF(3, release="both", options=NMFOptions(person_share=0.3), **FACTORS), COUNTS, None),
    "scaler": (DPStandardScaler(feature_bounds=(0, 1), **PROMISE), X, None),
    "pipeline": (
        make_pipeline(DPStandardScaler(feature_bounds=(0, 1), **PROMISE), DPRidge(**LINEAR, target_bounds=(0, 2))),
        X,
        X[:, 0],
    ),
    "search": (
        DPSelection(DPRidge(feature_bounds=(0, 1), target_bounds=(0, 2)), {"alpha": [1e-4, 1.0]}, **PROMISE),
        X,
        X[:, 0],
    ),
}
DOCUMENTS: dict[str, dict] = {}


@pytest.fixture
def good(tmp_path: Path):
    """Good files, parsed, by the name of their model."""

    def document(name: str) -> dict:
        if name not in DOCUMENTS:
            model, rows, y = MODELS[name]
            DOCUMENTS[name] = saved(clone(model).fit(rows, y), tmp_path)
        return copy.deepcopy(DOCUMENTS[name])

    return document


@pytest.mark.parametrize("name", MODELS)
def test_the_files_that_are_forged_are_good(name: str, good, tmp_path: Path) -> None:
    load_model(sealed(good(name), tmp_path / "m.json"))


def words(*shape: int) -> dict:
    return encode(np.full(shape, "x"))


HUGE = 10**9
LONG = {"range": [0, 10**11, 1]}
MANY = "more than 50,000,000 values"
OPTIONS = ("parameters", "options")
LAST = ("parameters", "features", "parameters", "dict", "steps", "list", 2, 1, "parameters", "dict")
DRAWN = ("fitted", "features_", "parameters", "dict", "steps", "list", 2, 1, "parameters", "dict")
PROMISES = {
    "a smaller promise": (("parameters", "epsilon"), 1e-3, "promise"),
    "a smaller delta": (("parameters", "delta"), 1e-12, "promise"),
    "another relation": (("parameters", "adjacency"), "zero-out", "adjacency"),
    "an uncovered relation": (("parameters", "adjacency"), "add-remove", "adjacency"),
    "a smaller claim": (("certificate", "claim", "epsilon"), 1e-3, "claims"),
    "fewer marks": (("certificate", "marks"), [], "written with"),
    "no plan": (("certificate", "plan"), {}, ""),
    "no certificate": (("certificates",), [], ""),
    "nothing for a certificate": (("certificates",), None, ""),
    "a certificate of its own": (("fitted", "certificate_"), 5, "not fitted"),
    "a certificate that is not there": (("fitted", "certificate_", "index"), 7, ""),
    "another class": (("model", "kind"), "DPSomething", "class"),
    "a module": (("model", "kind"), "os.system", "class"),
    "no word": (("model", "kind"), ["DPRidge"], "class"),
    "another format": (("format",), 3, "format"),
    "a strange parameter": (("parameters", "cmd"), "rm", "parameter"),
    "a seed": (("parameters", "random_state"), 1, "parameter"),
    "a ledger": (("parameters", "ledger"), "/tmp/x", "parameter"),
    "a method": (("fitted", "fit"), 1, "attribute"),
    "a private attribute": (("fitted", "__class__"), "x", "attribute"),
    "a parameter among attributes": (("fitted", "epsilon"), 1e-3, "attribute"),
    "no width": (("fitted", "n_features_in_"), True, "n_features_in_"),
    "no features": (("fitted", "n_features_in_"), 0, "n_features_in_"),
    "notes of another kind": (("fitted", "notes_"), 5, "notes_"),
    "names of others": (("fitted", "feature_names_in_"), words(3), "feature_names_in_"),
    "nothing fitted": (("model", "fitted"), {"dict": {}}, "not fitted"),
    "a list for an object": (("model", "fitted"), [], ""),
    "no model": (("model",), 5, "save_model"),
    "code for a parameter": (("parameters", "epsilon"), {"type": "os.system"}, "described"),
    "a long range": (("parameters", "epsilon"), LONG, MANY),
}
FORGED: dict[str, dict[str, tuple[tuple, Any, str]]] = {
    "logistic": {
        "a strange type": (("parameters", "solver"), {"type": "Popen"}, "described"),
        "strange fields": (("parameters", "solver"), {"type": "MetricDescent", "x": 1}, "MetricDescent has no 'x'"),
        "a pipeline": (("model", "kind"), "Pipeline", "parameter"),
        "text for numbers": (("fitted", "coef_"), words(1, 16), "coef_"),
        "infinity": (("fitted", "coef_"), encode(np.full((1, 16), np.inf)), "coef_"),
        "NaN": (("fitted", "coef_"), encode(np.full((1, 16), np.nan)), "NaN"),
        "truths": (("fitted", "coef_"), encode(np.ones((1, 16), bool)), "coef_"),
        "a number beyond numbers": (("fitted", "intercept_"), 10**400, "intercept_"),
        "a long shape": (("fitted", "coef_", "shape"), [1, 1, 16], "coef_"),
        "a wrong shape": (("fitted", "coef_", "shape"), [1, 17], "shape"),
        "another shape": (("fitted", "coef_", "shape"), [16, 1], "coef_"),
        "a negative shape": (("fitted", "coef_", "shape"), [-1, -16], "length"),
        "an immense shape": (("fitted", "coef_", "shape"), [HUGE, 16], MANY),
        "another type": (("fitted", "coef_", "ndarray"), "object", "not a description"),
        "a fancy type": (("fitted", "coef_", "ndarray"), "V8", "array"),
        "no coefficients": (("fitted", "coef_"), None, "coef_"),
        "one class": (("fitted", "classes_"), encode(np.array(["a"])), "classes_"),
        "classes in disorder": (("fitted", "classes_"), encode(np.array(["yes", "no"])), "classes_"),
        "the same class twice": (("fitted", "classes_"), encode(np.array(["no", "no"])), "classes_"),
        "other classes": (("fitted", "classes_"), encode(np.array(["no", "yes!"])), "classes_"),
        "a wrong width": (("fitted", "n_features_in_"), 17, "coef_"),
        "an immense width": (("fitted", "n_features_in_"), 2**45, "coef_"),
        "an intercept too many": (("fitted", "intercept_"), 1.0, "intercept_"),
        "other bounds": (("fitted", "feature_bounds_"), encode(np.ones((2, 16))), "feature_bounds_"),
        "bounds of others": (("parameters", "feature_bounds"), [0, 2], "feature_bounds_"),
        "every iterate": (("parameters", "view"), "all_iterates", "view"),
    },
    "gates": {
        "a foreign map": (("parameters", "features", "kind"), "Popen", "class"),
        "a map that is a model": (("parameters", "features", "kind"), "DPRidge", "parameter"),
        "a strange parameter of a map": ((*LAST, "func"), "os.system", "parameter"),
        "another seed": ((*LAST, "seed"), 1, "features"),
        "another gamma": ((*LAST, "gamma"), 1.01, "features"),
        "another width": ((*LAST, "n_features"), 12, "features"),
        "another drawn seed": ((*DRAWN, "seed"), 1, "features"),
        "another drawn gamma": ((*DRAWN, "gamma"), 1.01, "features"),
        "an immense width": ((*LAST, "n_features"), 2**45, "features"),
        "an immense drawn width": ((*DRAWN, "n_features"), 2**45, "far more"),
        "an unnamed part": ((*LAST[:6], 0), ["x"], ""),
        "a number for a part": ((*LAST[:6], 0), ["deskew", 5], ""),
        "no parts": (LAST[:6], [], ""),
        "a text for maps": (("parameters", "features"), "passthrough", "features"),
        "no maps": (("fitted", "features_"), None, "features_"),
        "other gates": (("parameters", "gate_seed"), 1, "gates"),
        "more gates": (("parameters", "n_gates"), 3, "coef_"),
        "immensely many gates": (("parameters", "n_gates"), 2**45, "coef_"),
        "gates of their own": (("fitted", "gates_"), encode(np.zeros((2, 10))), "gates"),
        "one gate": (("fitted", "gates_"), encode(np.zeros((1, 10))), "gates"),
        "other steps": (("parameters", "epochs"), 3, "steps"),
        "immensely many steps": (("parameters", "epochs"), 10**12, "steps"),
        "less noise": (("fitted", "plan_", "noise_multiplier"), 1e-3, "plan"),
        "more records": (("fitted", "plan_", "n"), 10**6, "steps"),
        "no records": (("fitted", "plan_", "n"), 0, "n must be"),
        "longer steps": (("fitted", "plan_", "step_sizes"), encode(np.full(8, 9.0)), "plan"),
        "no plan": (("fitted", "plan_"), None, "plan"),
        "no sample": (("fitted", "features_", *DRAWN[2:7], 1, "fitted", "dict", "sample"), None, "features"),
        "another norm": (("fitted", "feature_norm_"), 2.0, "feature_norm_"),
        "no norm": (("fitted", "feature_norm_"), "x", "feature_norm_"),
        "another clip": (("fitted", "clip_"), 0.9, "plan"),
        "no clip": (("fitted", "clip_"), -1.0, "clip"),
        "a wide coefficient": (("fitted", "coef_", "shape"), [3, 10, 2], "coef_"),
        "other columns": (("fitted", "n_features_in_"), 17, "features"),
        "immensely many columns": (("fitted", "n_features_in_"), 2**45, "features"),
    },
    # Weights of "dense": (5, 6), (3, 6).
    "dense": {
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
        "code for a schedule": (("parameters", "noise_schedule"), {"type": "os.system"}, "described"),
        "a negative half-life": (
            ("parameters", "noise_schedule"),
            {"type": "Optimised", "half_life": -1.0},
            "half_life",
        ),
        "more records": (("fitted", "plan_", "n"), 10**9, "steps"),
        "no records": (("fitted", "plan_", "n"), 0, "n must be"),
        "no plan": (("fitted", "plan_"), GONE, "plan_"),
        "a plan of its own": (("fitted", "plan_"), 5, "plan_"),
        "no start": (("fitted", "plan_", "blocks", 0, "start"), GONE, ""),
        "a short start": (("fitted", "plan_", "blocks", 0, "start"), encode(np.zeros((1, 1))), "start"),
        "a start of its own": (("fitted", "plan_", "blocks", 0, "start"), encode(np.zeros((5, 6))), "start"),
        "another start": (("parameters", "init_seed"), 9, "start"),
        "no layers": (("fitted", "network_"), GONE, "network_"),
        "a network of its own": (("fitted", "network_"), 5, "network_"),
        "no blocks": (("fitted", "plan_", "blocks"), [], ""),
        "another bound": (("fitted", "plan_", "blocks", 0, "bound"), 0.001, "blocks"),
        "a louder release": (("fitted", "plan_", "ratio"), encode(np.full((4, 2), 1.0)), "plan"),
        "a loss": (("parameters", "loss"), "squared", "layers"),
        "no such loss": (("parameters", "loss"), "hinge", "loss"),
        "a norm": (("parameters", "layer_norms"), 2.0, "layers"),
        "a norm for each": (("parameters", "layer_norms"), [1.0, 0.5], "layers"),
        "a norm too many": (("parameters", "layer_norms"), {"list": [1.0, 1.0, 1.0]}, "layer_norms"),
        "a clip": (("parameters", "contribution_norm"), 0.001, "blocks"),
        "a clip for each": (("parameters", "contribution_norm"), [0.01, 0.02], "blocks"),
        "an update": (("parameters", "update"), "statistics", "plan"),
        "no such update": (("parameters", "update"), "magic", "update"),
        "a step": (("parameters", "step_size"), 1.0, "blocks"),
        "a penalty": (("parameters", "l2"), 1.0, "blocks"),
        "a constraint": (("parameters", "gamma"), 3.0, "layers"),
        "a wider layer": (("parameters", "hidden_layer_sizes"), [6], "coefs_"),
        "one more layer": (("parameters", "hidden_layer_sizes"), [5, 5], "coefs_"),
        "one layer less": (("parameters", "hidden_layer_sizes"), [], "coefs_"),
        "an immense layer": (("parameters", "hidden_layer_sizes"), [HUGE], "single record"),
        "a large layer": (("parameters", "hidden_layer_sizes"), [10**7], "coefs_"),
        "two large layers": (("parameters", "hidden_layer_sizes"), [10**7, 10**7], ""),
        "a layer beyond numbers": (("parameters", "hidden_layer_sizes"), 10**400, ""),
        "half a layer": (("parameters", "hidden_layer_sizes"), [5.5], ""),
        "words for layers": (("parameters", "hidden_layer_sizes"), "x" * 10**5, ""),
        "a range of layers": (("parameters", "hidden_layer_sizes"), LONG, MANY),
        "code for a layer": (("parameters", "hidden_layer_sizes"), {"type": "os"}, "described"),
        "a strange field": (
            ("parameters", "hidden_layer_sizes"),
            {"type": "Dense", "width": 5, "x": 1},
            "Dense has no 'x'",
        ),
        "a convolution of nothing": (
            ("parameters", "hidden_layer_sizes"),
            [encode(Convolution(5))],
            "input_shape",
        ),
        "a shortcut": (("parameters", "shortcuts"), [[0, 2]], "coefs_"),
        "words for shortcuts": (("parameters", "shortcuts"), ["x" * 10**5], "shortcuts"),
        "a picture": (("parameters", "input_shape"), [4], "coefs_"),
        "a picture of gigabytes": (("parameters", "input_shape"), [1, 10**5, 10**5], "input_shape"),
        "words for a picture": (("parameters", "input_shape"), ["x", "y"], "input_shape"),
        "a picture without shape": (("parameters", "input_shape"), 5, "input_shape"),
        "a range for a picture": (("parameters", "input_shape"), LONG, MANY),
        "a range for bounds": (("parameters", "feature_bounds"), [LONG, 1], MANY),
        "bounds of others": (("parameters", "feature_bounds"), [{"list": [0, 0, 0]}, 1], "feature_bounds"),
        "no bounds": (("parameters", "feature_bounds"), None, "feature_bounds"),
        "more features": (("fitted", "n_features_in_"), 5, "coefs_"),
        "immensely many features": (("fitted", "n_features_in_"), 2**45, "single record"),
        "no weights": (("fitted", "coefs_"), GONE, "coefs_"),
        "no weights at all": (("fitted", "coefs_"), {"list": []}, "coefs_"),
        "weights of one layer": (("fitted", "coefs_"), {"list": [encode(np.zeros((5, 6)))]}, "coefs_"),
        "one weight": (("fitted", "coefs_"), encode(np.zeros((5, 6))), "coefs_"),
        "words for weights": (("fitted", "coefs_", "list", 0), words(5, 6), "coefs_"),
        "short numbers": (("fitted", "coefs_", "list", 0), encode(np.zeros((5, 6), np.float32)), "coefs_"),
        "turned weights": (("fitted", "coefs_", "list", 0, "shape"), [6, 5], "coefs_"),
        "NaN": (("fitted", "coefs_", "list", 0), encode(np.full((5, 6), np.nan)), "NaN"),
        "infinite weights": (("fitted", "coefs_", "list", 0), encode(np.full((5, 6), np.inf)), "coefs_"),
        "an immense shape": (("fitted", "coefs_", "list", 0, "shape"), [HUGE, 6], MANY),
        "no classes": (("fitted", "classes_"), GONE, "classes_"),
        "one class less": (("fitted", "classes_"), encode(np.array([0, 1])), "classes"),
        "other classes": (("fitted", "classes_"), encode(np.array([0, 1, 7])), "classes_"),
        "immensely many classes": (("parameters", "classes"), LONG, MANY),
        "many classes": (("parameters", "classes"), {"range": [0, 10**7, 1]}, "classes"),
        "ranges of classes": (("parameters", "classes"), {"list": [LONG, LONG, LONG]}, MANY),
        "classes that nobody stated": (("parameters", "classes"), None, "declaration"),
        "the last model": (("parameters", "view"), "final_model", "view"),
        "a regressor": (("model", "kind"), "DPBlockMLPRegressor", "parameter"),
    },
    # Ratios do not tell what they are ratios of, least of all without the paper's claims (Poisson, statistics).
    "poisson": {
        "a clip": (("parameters", "contribution_norm"), 1.0, "blocks"),
        "a loss": (("parameters", "loss"), "squared", "layers"),
        "a norm": (("parameters", "layer_norms"), 0.5, "layers"),
        "an update": (("parameters", "update"), "statistics", "plan"),
        "a promise": (("parameters", "epsilon"), 0.1, "promise"),
        "sampling": (("parameters", "sampling"), "cyclic", "plan"),
        "a schedule": (("parameters", "noise_schedule"), "linear", "plan"),
    },
    "statistics": {
        "a clip": (("parameters", "contribution_norm"), 1.0, "blocks"),
        "a penalty": (("parameters", "l2"), 0.0, "blocks"),
        "an update": (("parameters", "update"), "gradient", "plan"),
    },
    "convolution": {
        "an update": (("parameters", "update"), "statistics", "gradient"),
        "no shortcuts": (("parameters", "shortcuts"), {"list": []}, "coefs_"),
        "other shortcuts": (("parameters", "shortcuts"), {"list": [{"list": [1, 4]}]}, "coefs_"),
        "a picture": (("parameters", "input_shape"), [1, 2, 8], "does not fit"),
        "no picture": (("parameters", "input_shape"), None, "input_shape"),
        "padding": (("parameters", "hidden_layer_sizes", 0, "padding"), 10**6, ""),
        "a kernel": (("parameters", "hidden_layer_sizes", 0, "kernel"), 10**9, ""),
        "a stride": (("parameters", "hidden_layer_sizes", 0, "stride"), 2, ""),
    },
    "classes from the data": {
        "fewer marks": (("certificate", "marks"), ["not private: seeded"], "plan or marks"),
    },
    "a number": {
        "nothing about the target": (("fitted", "single_target_"), GONE, "single_target_"),
        "a number about the target": (("fitted", "single_target_"), 1, "single_target_"),
        "no bounds": (("parameters", "target_bounds"), None, "target_bounds"),
        "a range for bounds": (("parameters", "target_bounds"), [LONG, 1], MANY),
        "two outputs": (("fitted", "coefs_", "list", 1), encode(np.zeros((2, 6))), "one output"),
    },
    "two numbers": {
        "one target": (("fitted", "single_target_"), True, "one output"),
        "three outputs": (("fitted", "coefs_", "list", 2), encode(np.zeros((3, 5))), "coefs_["),
    },
    "factors": {
        "other steps": (("parameters", "epochs"), 5, "steps"),
        "immensely many steps": (("parameters", "epochs"), 10**12, "steps"),
        "other batches": (("parameters", "batch_size"), 60, "steps"),
        "tiny batches": (("parameters", "batch_size"), 1, "steps"),
        "no batches": (("parameters", "batch_size"), 0, "batch_size"),
        "other sampling": (("parameters", "sampling"), "poisson", "plan"),
        "another schedule": ((*OPTIONS, "noise_schedule"), "step", "plan"),
        "no such schedule": ((*OPTIONS, "noise_schedule"), "sinking", "noise_schedule"),
        "code for a schedule": ((*OPTIONS, "noise_schedule"), {"type": "os.system"}, "described"),
        "a negative half-life": ((*OPTIONS, "noise_schedule"), {"type": "Optimised", "half_life": -1.0}, "half_life"),
        "words for a half-life": ((*OPTIONS, "noise_schedule"), {"type": "Optimised", "half_life": "x"}, "half_life"),
        "more records": (("fitted", "plan_", "n"), 10**9, "steps"),
        "no records": (("fitted", "plan_", "n"), 0, "n must be"),
        "no plan": (("fitted", "plan_"), None, "plan_"),
        "a plan of its own": (("fitted", "plan_"), 5, "plan_"),
        "a short start": (("fitted", "plan_", "blocks", 0, "start"), encode(np.zeros((1, 1))), "start"),
        "another start": (("parameters", "init_seed"), 9, "start"),
        "more components": (("parameters", "n_components"), 4, "components_"),
        "immensely many components": (("parameters", "n_components"), 2**45, "components_"),
        "more items": (("fitted", "n_features_in_"), 13, "components_"),
        "immensely many items": (("fitted", "n_features_in_"), 2**45, "components_"),
        "no factors": (("fitted", "components_"), None, "components_"),
        "words for factors": (("fitted", "components_"), words(3, 12), "components_"),
        "NaN": (("fitted", "components_"), encode(np.full((3, 12), np.nan)), "NaN"),
        "infinite factors": (("fitted", "components_"), encode(np.full((3, 12), np.inf)), "components_"),
        "negative factors": (("fitted", "components_"), encode(np.full((3, 12), -0.1)), "components_"),
        "half of the factors": (("fitted", "components_", "shape"), [3, 6], "shape"),
        "people's factors": (("fitted", "person_factors_"), encode(np.zeros((300, 3))), "person_factors_"),
        "a release that was not paid for": (("parameters", "release"), "both", "person_factors_"),
        "no norm": (("parameters", "row_norm"), None, "row_norm"),
        "a strange update": (("parameters", "update"), "magic", "update"),
        "the update of another plan": (("parameters", "update"), "gradient", "plan"),
        "the last model": (("parameters", "view"), "final_model", "view"),
    },
    "both": {
        "a share": ((*OPTIONS, "person_share"), 0.5, "plan"),
        "the whole": ((*OPTIONS, "person_share"), 1.0, "person_share"),
        "items alone": (("parameters", "release"), "items", "person_"),
        "no factors": (("fitted", "person_factors_"), GONE, "person_factors_"),
        "turned factors": (("fitted", "person_factors_", "shape"), [3, 300], "person_factors_"),
        "one person less": (("fitted", "plan_", "n"), 299, "person_factors_"),
        "one person more": (("fitted", "plan_", "n"), 301, "person_factors_"),
        "many people": (("fitted", "plan_", "n"), 10**9, "person_factors_"),
    },
    "scaler": {
        "another mean": (("fitted", "mean_"), encode(np.zeros(16)), "map"),
        "another map": (("fitted", "_map", "centre"), encode(np.zeros(16)), "map"),
        "no map": (("fitted", "_map"), None, "map"),
        "another reach": (("parameters", "clip_to"), 1.0, "map"),
        "negative scales": (("fitted", "scale_"), encode(-np.ones(16)), "scale_"),
        "a wrong width": (("fitted", "n_features_in_"), 17, ""),
    },
    "search": {
        "another winner": (("fitted", "best_estimator_", "kind"), "DPLasso", ""),
        "no winner": (("fitted", "best_estimator_"), None, "best_"),
        "no score": (("fitted", "best_score_"), None, "best_score_"),
        "a winner of more noise": (("fitted", "best_estimator_", "parameters", "dict", "epsilon"), 0.1, "promise"),
        "a distribution": (
            ("parameters", "param_distributions"),
            {"type": "distribution", "name": "os", "args": [], "options": {"dict": {}}},
            "distribution",
        ),
        "a winner of other weights": (
            ("fitted", "best_estimator_", "fitted", "dict", "coef_"),
            encode(np.zeros(3)),
            "coef_",
        ),
    },
}


FAMILIES = ["logistic", "gates", "dense", "factors", "scaler", "search"]
NO_NOTES = ("search", "notes of another kind")


@pytest.mark.parametrize(
    ("model", "name"), [(model, name) for model in FAMILIES for name in PROMISES if (model, name) != NO_NOTES]
)
def test_no_model_promises_more_than_its_certificate(model: str, name: str, good, tmp_path: Path) -> None:
    path, value, said = PROMISES[name]
    assert said in refused(changed(good(model), (path, value)), tmp_path)


@pytest.mark.parametrize(("model", "name"), [(model, name) for model in FORGED for name in FORGED[model]])
def test_a_forged_file_with_a_good_digest_is_refused(model: str, name: str, good, tmp_path: Path) -> None:
    path, value, said = FORGED[model][name]
    assert said in refused(changed(good(model), (path, value)), tmp_path)


STEP = ("model", "parameters", "dict", "steps", "list")
PIPELINE = {
    "a step's promise": ((*STEP, 1, 1, "parameters", "dict", "epsilon"), 1e-3, "promise"),
    "a scaler's promise": ((*STEP, 0, 1, "parameters", "dict", "epsilon"), 1e-3, "promise"),
    "a step that is not fitted": ((*STEP, 0, 1, "fitted"), {"dict": {}}, "not fitted"),
    "a step that learned": (
        (*STEP, 0, 1),
        {"type": "model", "kind": "StandardScaler", "parameters": {"dict": {}}, "fitted": {"dict": {}}},
        "class",
    ),
    "a step that may learn": (
        (*STEP, 0, 1),
        {"type": "model", "kind": "OneHotEncoder", "parameters": {"dict": {}}, "fitted": {"dict": {}}},
        "categories",
    ),
    "the certificate of another step": ((*STEP, 0, 1, "fitted", "dict", "certificate_", "index"), 1, "plan"),
    "a text": ((*STEP, 1, 1), "x", ""),
}


@pytest.mark.parametrize("name", PIPELINE)
def test_a_forged_pipeline_is_refused(name: str, good, tmp_path: Path) -> None:
    path, value, said = PIPELINE[name]
    assert said in refused(changed(good("pipeline"), (path, value)), tmp_path)


def test_an_edit_is_noticed(good, tmp_path: Path) -> None:
    for model, path, value in (
        ("dense", ("parameters", "progress"), False),
        ("gates", ("fitted", "plan_", "n"), 201),
        ("factors", ("parameters", "row_norm"), 1.0),
    ):
        assert "edited" in refused(changed(good(model), (path, value)), tmp_path, seal=False)


# -- what is stored is what counts ----------------------------------------------------------------------------------


def test_a_change_of_the_generator_is_noticed(good, tmp_path: Path, monkeypatch) -> None:
    path = sealed(good("gates"), tmp_path / "m.json")
    honest = fourier.gaussians
    load_model(path)

    def other(seed, purpose, shape):
        out = honest(seed, purpose, shape)
        out[-1, -1] += 1e-3  # one number of all
        return out

    monkeypatch.setattr(fourier, "gaussians", other)
    assert "are not those that it was fitted with" in refused(json.loads(path.read_text()), tmp_path)


@pytest.mark.parametrize(
    ("model", "module", "name"), [("dense", "network", "public_weights"), ("factors", "nmf", "public_rows")]
)
def test_another_start_is_noticed(model: str, module: str, name: str, good, tmp_path: Path, monkeypatch) -> None:
    home = __import__(f"tacit.solvers.{module}", fromlist=[name])
    honest = getattr(home, name)

    def other(*arguments):
        out = honest(*arguments)
        (out[-1] if isinstance(out, list) else out)[-1, -1] += 1e-3
        return out

    document = good(model)
    monkeypatch.setattr(home, name, other)
    assert "start is not the one" in refused(document, tmp_path)


@pytest.mark.parametrize("model", ["dense", "factors"])
def test_another_machine_may_round_otherwise(model: str, good, tmp_path: Path) -> None:
    """Ratios a few units in the last place away are those of the certificate; ε comes from the certificate alone."""

    def rounded(certificate: dict) -> None:
        schedule = certificate["plan"]["parts"][0]["ratio"]["schedule"]
        schedule["values"] = [value * (1 + 4e-16 * (-1) ** i) for i, value in enumerate(schedule["values"])]

    out = certified_anew(good(model), rounded)
    assert out["certificates"][0]["plan"] != good(model)["certificates"][0]["plan"]
    loaded = load_model(sealed(out, tmp_path / "m.json"))
    assert loaded.plan_.certificate == loaded.certificate_
    assert loaded.plan_.ratio.ravel() == pytest.approx(loaded.certificate_.plan.parts[0].ratio.to_array(), rel=1e-12)


# -- certificates of other plans ------------------------------------------------------------------------------------


@pytest.mark.parametrize("every", [1, 2], ids=["first step", "first layer"])
def test_a_certificate_of_more_noise_is_refused(every: int, good, tmp_path: Path) -> None:
    """It tells the truth about its own plan; but shares or schedule are not those which ran."""

    def quieter(certificate: dict) -> None:
        values = certificate["plan"]["parts"][0]["ratio"]["schedule"]["values"]
        chosen = values[:2] if every == 1 else values[::2]
        values[: len(chosen) * every : every] = [value * 0.1 for value in chosen]

    assert "plan" in refused(certified_anew(good("dense"), quieter), tmp_path)


@pytest.mark.parametrize("model", ["dense", "factors", "gates"])
def test_a_certificate_of_less_is_refused(model: str, good, tmp_path: Path) -> None:
    def quieter(certificate: dict) -> None:
        schedule = certificate["plan"]["parts"][0]["ratio"]["schedule"]
        schedule["values"] = [value * 0.1 for value in schedule["values"]]

    assert "plan" in refused(certified_anew(good(model), quieter), tmp_path)


def test_a_certificate_with_fewer_releases_is_refused(good, tmp_path: Path) -> None:
    def one_layer(certificate: dict) -> None:
        part = certificate["plan"]["parts"][0]
        part["ratio"]["schedule"] = {"values": [0.1], "counts": [4]}
        part["releases"] = 1

    assert "plan" in refused(certified_anew(good("dense"), one_layer), tmp_path)


def test_a_certificate_without_its_words_is_refused(good, tmp_path: Path) -> None:
    def silent(certificate: dict) -> None:
        certificate["marks"] = ["not private: seeded"]

    assert "declaration" in refused(certified_anew(good("classes from the data"), silent), tmp_path)
    assert "promise" in refused(certified_anew(good("factors"), silent), tmp_path)


# -- small files that ask for much ----------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["dense", "factors", "ridge"])
@pytest.mark.parametrize(
    ("steps", "releases"), [(10**8, 1), (10**9, 1), (10**11, 2), (2 * 10**6, 1), (10**6, 10**3), (4, 10**8)]
)
def test_a_long_run_in_a_short_file_is_not_laid_out(
    model: str, steps: int, releases: int, good, tmp_path: Path
) -> None:
    """Two values that stand for gigabytes of releases; loading must say no before it certifies them."""

    def long(certificate: dict) -> None:
        part = certificate["plan"]["parts"][0]
        half = steps * releases // 2
        part["ratio"]["schedule"] = {"values": [1e-9, 2e-9], "counts": [half, half]}
        part["steps"], part["releases"] = steps, releases

    out = certified_anew(good(model), long)
    if model != "ridge":
        out = changed(out, (("parameters", "epochs"), steps // 2))
    said = refused(out, tmp_path)
    assert "files hold at most" in said or MANY in said


def test_a_small_file_does_not_take_minutes(good, tmp_path: Path) -> None:
    """Many parts that are hard to certify."""
    document = good("poisson")
    begun = time.monotonic()

    def many(certificate: dict) -> None:
        (part,) = certificate["plan"]["parts"]
        steps = 2 * part["steps"]
        ratios = [{"schedule": {"values": [0.01 + k / 1e4], "counts": [steps]}} for k in range(100)]
        certificate["plan"]["parts"] = [{**part, "ratio": one, "steps": steps, "releases": 1} for one in ratios]
        certificate["only"] = [None] * 100

    said = refused(certified_anew(document, many), tmp_path)
    assert "parts" in said or MANY in said
    assert time.monotonic() - begun < 30


ABSURD = {
    "fourier features": ("fourier", ((("parameters", "features", "parameters", "dict", "n_features"), 4 * 10**6),)),
    "drawn features": (
        "fourier",
        (
            (("parameters", "features", "parameters", "dict", "n_features"), 4 * 10**6),
            (("fitted", "features_", "parameters", "dict", "n_features"), 4 * 10**6),
        ),
    ),
    "fourier columns": ("fourier", ((("fitted", "n_features_in_"), 10**6),)),
    "drawn columns": (
        "fourier",
        (
            (("fitted", "n_features_in_"), 10**6),
            (("fitted", "features_", "fitted", "dict", "n_features_in_"), 10**6),
        ),
    ),
    "polynomial degree": (
        "poly",
        tuple(
            ((*place, "parameters", "dict", "steps", "list", 0, 1, "parameters", "dict", "degree"), 300)
            for place in (("parameters", "features"), ("fitted", "features_"))
        ),
    ),
    "gates": ("plain gates", ((("parameters", "n_gates"), 10**12),)),
    "epochs": ("plain gates", ((("parameters", "epochs"), 10**5),)),
    "batches": ("plain gates", ((("parameters", "batch_size"), 1), (("fitted", "plan_", "n"), 4 * 10**5))),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ABSURD)
def test_small_files_do_not_ask_for_much(name: str, good, tmp_path: Path) -> None:
    """4 kB that take 100 MB; a few digits more, and loading takes minutes or all memory before it says no."""
    model, edits = ABSURD[name]
    refused(changed(good(model), *edits), tmp_path)


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
def test_small_kernels_for_pictures_of_gigabytes(first: dict, pool: int, shape: tuple, good, tmp_path: Path) -> None:
    """Weights have the shapes that such layers ask for, too: what tells is the size of a record."""
    layers = (Convolution(3, 2, **first), Convolution(2, 2, pool=pool), Dense(4))
    out = changed(
        good("convolution"),
        (("parameters", "hidden_layer_sizes"), encode(layers)),
        (("parameters", "input_shape"), list(shape)),
        (("fitted", "n_features_in_"), math.prod(shape) % 2**64),
    )
    said = refused(out, tmp_path)
    assert "single record" in said or "does not hold" in said


def test_optimised_schedules_are_known() -> None:
    assert encode(Optimised(1.5)) == {"type": "Optimised", "half_life": 1.5}
