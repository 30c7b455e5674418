"""What people try first and what cannot work: one line that says what to do, and no silent surprise."""

from __future__ import annotations

import datetime
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tacit import DPNMF, DPBlockMLPClassifier, DPSelection, load_model, save_model
from tacit.errors import InvalidInput
from tacit.estimators import DPConvexReLURegressor, DPLogisticRegression, DPRidge, DPSoftmaxRegression

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, (60, 2))
Y = np.where(X[:, 0] > 0.5, 1, 0)
DAYS = np.datetime64("2020-01-01") + np.arange(120).reshape(60, 2).astype("timedelta64[D]")
PROMISE = {"epsilon": 1.0, "delta": 1e-5}
LINEAR = {**PROMISE, "feature_bounds": (0, 1)}
MODELS = {
    "linear": DPLogisticRegression(classes=[0, 1], **LINEAR),
    "regression": DPRidge(target_bounds=(0, 1), **LINEAR),
    "softmax": DPSoftmaxRegression(classes=[0, 1], feature_norm=1.0, **PROMISE),
    "blocks": DPBlockMLPClassifier((4,), classes=[0, 1], **LINEAR),
    "factors": DPNMF(2, row_norm=1.0, **PROMISE),
    "search": DPSelection(DPLogisticRegression(classes=[0, 1], feature_bounds=(0, 1)), {"alpha": [1e-3]}, **PROMISE),
}
NANO = DAYS.astype("datetime64[ns]")
DATES = {
    "dates": DAYS,
    "nanoseconds": NANO,
    "durations": DAYS - DAYS[0, 0],
    "a frame": pd.DataFrame(DAYS),
    "one column": pd.DataFrame({"when": NANO[:, 0], "x": X[:, 0]}),
    "one duration": pd.DataFrame({"when": NANO[:, 0] - NANO[0, 0], "x": X[:, 0]}),
    "a time zone": pd.DataFrame({"when": pd.DatetimeIndex(NANO[:, 0]).tz_localize("UTC")}),
    "periods": pd.DataFrame({"when": pd.PeriodIndex(NANO[:, 0], freq="D"), "x": X[:, 0]}),
    "categories": pd.DataFrame({"when": pd.Categorical(NANO[:, 0])}),
    "objects": pd.DataFrame({"when": pd.Series(list(DAYS[:, 0].tolist()), dtype=object), "x": X[:, 0]}),
    "lists of numpy's": [list(row) for row in DAYS],
    "lists of arrays": list(NANO),
    "lists of Python's": [[datetime.datetime(2020, 1, 1), 1.0]] * 60,
    "mixed lists": [[np.timedelta64(1, "D"), 1.0]] * 60,
}


@pytest.mark.parametrize("model", MODELS)
def test_dates_are_not_nanoseconds(model):
    for name, table in DATES.items():
        with pytest.raises(InvalidInput, match=r"^X holds dates or times.*np.timedelta64") as caught:
            MODELS[model].fit(table, Y)
        assert "\n" not in str(caught.value), name
        assert "2020-01-02" not in str(caught.value), name


@pytest.mark.parametrize("model", [*MODELS][:4])
def test_targets_neither(model):
    for y in (DAYS[:, 0], pd.Series(NANO[:, 0]), DAYS[:, 0].tolist()):
        with pytest.raises(InvalidInput, match=r"^y holds dates or times"):
            MODELS[model].fit(X, y)
    with pytest.raises(InvalidInput, match=r"^y is a masked array"):
        MODELS[model].fit(X, np.ma.masked_array(Y, Y > 0))
    with pytest.raises(InvalidInput, match=r"^Complex data not supported: y"):
        MODELS[model].fit(X, Y + 1j)


@pytest.mark.parametrize("model", MODELS)
def test_masks_are_not_ignored(model):
    hidden = np.ma.masked_array(X, X > 0.9)
    for table in (hidden, np.ma.masked_array(X), list(hidden)):
        with pytest.raises(InvalidInput, match=r"^X is a masked array.*filled\(0\), or drop"):
            MODELS[model].fit(table, Y)
    MODELS[model].fit(hidden.filled(0), Y)


@pytest.mark.parametrize("model", MODELS)
def test_complex_numbers_are_named(model):
    forms = (X + 1j, pd.DataFrame({"a": X[:, 0] + 1j, "b": X[:, 1]}), (X + 1j).tolist(), (X + 1j).astype(object))
    for table in forms:
        with pytest.raises(InvalidInput, match=r"^Complex data not supported: X must hold real numbers"):
            MODELS[model].fit(table, Y)


def test_predictions_say_the_same():
    model = MODELS["linear"].fit(X, Y)
    for table, words in ((DAYS, "dates"), (np.ma.masked_array(X, X > 0.9), "masked")):
        with pytest.raises(InvalidInput, match=words):
            model.predict(table)


# -- classes ----------------------------------------------------------------------------------------------------------

CLASSES = {
    "words and numbers": (["yes", 0], "of one kind"),
    "numbers as words": ([0, "1"], "of one kind"),
    "objects": (np.array(["a", 0], object), "of one kind"),
    "bytes": ([b"a", "b"], "of one kind"),
    "nothing": (["a", None], "of one kind"),
    "lists": ([0, [1]], "of one kind"),
    "ragged": ([[0], [1, 2]], "of one kind"),
    "tables": ([np.zeros((2, 2)), np.zeros((2, 3))], "at least two"),
    "a set": ({0, 1}, "no order: pass a list"),
    "frozen": (frozenset({0, 1}), "no order: pass a list"),
    "keys": ({0: "a", 1: "b"}, "no order: pass a list"),
    "masked": (np.ma.masked_array([0, 1, 2], [0, 0, 1]), "masked"),
    "one": ([1], "at least two"),
    "twice": ([1, 1], "at least two different"),
}


@pytest.mark.parametrize("name", CLASSES)
def test_bad_classes(name):
    stated, words = CLASSES[name]
    for model in (
        DPLogisticRegression(classes=stated, **LINEAR),
        DPSoftmaxRegression(classes=stated, feature_norm=1.0, **PROMISE),
        DPBlockMLPClassifier((4,), classes=stated, **LINEAR),
        DPSelection(DPLogisticRegression(classes=stated, feature_bounds=(0, 1)), {"alpha": [1e-3]}, **PROMISE),
    ):
        for y in (Y, Y.astype(str)):
            with pytest.raises(InvalidInput, match=f"^classes .*{words}") as caught:
                model.fit(X, y)
            assert "\n" not in str(caught.value)


def test_classes_in_every_good_form():
    for stated in ([0, 1], (1, 0), range(2), np.array([0, 1]), pd.Series([0, 1]), [False, True], [np.False_, True]):
        assert DPLogisticRegression(classes=stated, **LINEAR).fit(X, Y).classes_.tolist() == [0, 1]


# -- files and searches -----------------------------------------------------------------------------------------------


def test_files_that_are_no_models(tmp_path: Path):
    model = DPRidge(target_bounds=(0, 1), **LINEAR).fit(X, X[:, 0])
    save_model(model, tmp_path / "m.json")
    whole = (tmp_path / "m.json").read_text()
    (tmp_path / "half.json").write_text(whole[: len(whole) // 2])
    (tmp_path / "words.json").write_text("not JSON")
    cases = {
        tmp_path / "none.json": "No such file",
        tmp_path / "m.json" / "below": "cannot be read",
        tmp_path: "is a folder",
        tmp_path / "half.json": "not JSON",
        tmp_path / "words.json": "not JSON",
        None: "path must name a file",
    }
    for path, words in cases.items():
        with pytest.raises(InvalidInput, match=words) as caught:
            load_model(path)
        assert "\n" not in str(caught.value)
        assert caught.value.__cause__ is None


def test_a_factorisation_cannot_be_searched_over():
    with pytest.raises(InvalidInput, match="DPNMF cannot be searched over: it predicts no target"):
        DPSelection(DPNMF(2, row_norm=1.0), {"l1": [0.0, 0.1]}, **PROMISE).fit(X, Y)
    with pytest.raises(InvalidInput, match="target_bounds is missing"):
        DPSelection(DPConvexReLURegressor(2, feature_norm=1.0), {"l2": [0.1]}, **PROMISE).fit(X, Y)
