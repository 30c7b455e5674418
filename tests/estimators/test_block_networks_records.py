"""Block networks as estimators: odd records and parameters, words, charges, interrupted fits and copies."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

import tacit.estimators.block_networks as block_networks
from tacit.errors import InvalidInput, NotCovered, TacitError
from tacit.estimators import DPSelection
from tacit.estimators.block_networks import DPBlockMLPClassifier, DPBlockMLPRegressor
from tacit.estimators.saving import save_model
from tacit.ledger import Ledger
from tacit.problem.layers import Convolution, Dense
from tacit.run import SEEDED, Channel

SMALL: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "epochs": 2,
    "batch_size": 20,
    "sampling": "cyclic",
    "progress": False,
}
PUBLIC: dict[str, Any] = {**SMALL, "feature_bounds": (0, 1), "classes": [0, 1]}
NUMBERS: dict[str, Any] = {**SMALL, "feature_bounds": (0, 1), "target_bounds": (0, 1)}
CONVOLUTION: dict[str, Any] = {"hidden_layer_sizes": (Convolution(2, 2, pool=2), Dense(3)), "input_shape": (1, 4, 4)}


def table(n: int = 60, p: int = 3) -> Any:
    return np.random.default_rng(0).uniform(size=(n, p))


def halves(n: int = 60) -> Any:
    return np.resize([0, 1], n)


class Reached(Exception):
    pass


def stop(*_: Any, **__: Any) -> Any:
    raise Reached


ROWS = {"1e-300": 1e-300, "1e-40": 1e-40, "5e-324": 5e-324, "1e308": 1e308, "-1e308": -1e308, "0": 0.0}


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("row", list(ROWS))
def test_no_row_raises_a_floating_point_error(row: str, kind: Any) -> None:
    """numpy.seterr belongs to the user; an error, or a warning, would tell about a record."""
    X = table()
    X[7] = ROWS[row]
    with np.errstate(all="ignore"):
        X = np.clip(X, -3e38, 3e38).astype(kind)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        DPBlockMLPClassifier((4,), random_state=0, **{**PUBLIC, "epochs": 1}).fit(X, halves())


@pytest.mark.parametrize("row", list(ROWS))
def test_no_target_raises_a_floating_point_error(row: str) -> None:
    y = table()[:, 0]
    y[7] = ROWS[row]
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        DPBlockMLPRegressor((4,), random_state=0, **{**NUMBERS, "target_bounds": (-1, 1)}).fit(table(), y)


def test_no_picture_raises_a_floating_point_error() -> None:
    X = table(60, 16)
    X[7], X[8] = 1e-30, 0.0
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        DPBlockMLPClassifier(**CONVOLUTION, random_state=0, **{**PUBLIC, "epochs": 1}).fit(X, halves())


def test_no_warning_tells_about_a_record_within_wide_bounds() -> None:
    """(0, 7e38) of a float32 table: small values less the centre overflow, and numpy says so, unasked."""
    said = []
    for value in (0.0, 1e38):
        X = np.full((60, 3), 1e38, np.float32)
        X[5, 0] = value
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            DPBlockMLPClassifier((4,), random_state=0, **{**PUBLIC, "feature_bounds": (0, 7e38)}).fit(X, halves())
        said.append(len(caught))
    assert said[0] == said[1]


def test_no_warning_tells_about_a_target_of_extended_precision() -> None:
    y = np.ones(60, np.longdouble)
    y[7] = np.longdouble("1e400")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            DPBlockMLPRegressor((4,), random_state=0, **NUMBERS).fit(table(), y)
        except InvalidInput:
            return


TARGETS: dict[str, Callable[[], Any]] = {
    "words": lambda: np.array(["0.5"] * 59 + ["secret4711"]),
    "bytes": lambda: np.array(["0.5"] * 59 + ["secret4711"]).astype("S"),
    "list": lambda: ["0.5"] * 59 + ["secret4711"],
    "objects": lambda: np.array(["0.5"] * 59 + ["secret4711"], object),
    "none": lambda: np.array([0.5] * 59 + [None], object),
    "sparse": lambda: sparse.csr_matrix(np.ones((60, 1))),
}


@pytest.mark.parametrize("name", list(TARGETS))
def test_targets_that_are_no_numbers_are_refused_without_being_quoted(name: str) -> None:
    with pytest.raises((InvalidInput, TypeError)) as caught:
        DPBlockMLPRegressor((4,), random_state=0, **NUMBERS).fit(table(), TARGETS[name]())
    assert "4711" not in str(caught.value)


def test_labels_and_rows_are_refused_without_being_quoted() -> None:
    labels, X = halves(), table()
    labels[3], X[3, 0] = 4711, np.nan
    for rows, y in ((table(), labels), (X, halves()), (table(), halves() + 0.4711)):
        with pytest.raises(InvalidInput) as caught:
            DPBlockMLPClassifier((4,), **PUBLIC).fit(rows, y)
        assert "4711" not in str(caught.value)


def test_values_outside_of_their_bounds_count_as_the_bounds() -> None:
    fits = []
    for top in (1.0, 1e308):
        X, y = table(), table()[:, 0]
        X[3], y[3] = top, top
        fits.append(DPBlockMLPRegressor((4,), random_state=0, **NUMBERS).fit(X, y).coefs_)
    assert all((a == b).all() for a, b in zip(*fits, strict=True))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308])
@pytest.mark.filterwarnings("ignore")
def test_rows_that_change_during_a_fit_stay_bounded(value: float) -> None:
    """A schedule of the user's runs after the schema was checked; the bar, and other threads, between the steps."""
    X, y = table(), halves()

    def schedule(k: int, j: int) -> float:
        X[:], y[:] = value, 0
        return 1.0

    model = DPBlockMLPClassifier((4,), noise_schedule=schedule, random_state=0, **PUBLIC).fit(X, y)
    assert all(np.isfinite(W).all() for W in model.coefs_)


def test_records_are_the_problems_own_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes in the caller's arrays after the first release changes nothing any more."""
    fits, release = [], Channel.release
    for meddle in (False, True):
        X, y = table().astype(np.float32), table()[:, :2].astype(np.float32)

        def meanwhile(self: Any, *arguments: Any, X: Any = X, y: Any = y, meddle: bool = meddle) -> Any:
            if meddle:
                X[:], y[:] = 1e20, 1e20
            return release(self, *arguments)

        with monkeypatch.context() as patch:
            patch.setattr(Channel, "release", meanwhile)
            fits.append(DPBlockMLPRegressor((4,), random_state=0, **NUMBERS).fit(X, y).coefs_)
    assert all((a == b).all() for a, b in zip(*fits, strict=True))


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_a_ledger_is_charged_once_and_before_any_row_is_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(ledger: Ledger) -> Any:
        if kind == "classifier":
            return DPBlockMLPClassifier((4,), budget=ledger, **PUBLIC)
        return DPBlockMLPRegressor((4,), budget=ledger, **NUMBERS)

    monkeypatch.setattr(block_networks, "BlockNetwork", stop)
    monkeypatch.setattr(block_networks._BlockNetworkModel, "_inputs", stop)
    poor = Ledger(tmp_path / "small.ledger", epsilon=0.5, delta=1e-5)
    with pytest.raises(TacitError):
        model(poor).fit(table(), halves())
    assert len(poor.entries()) == 0
    rich = Ledger(tmp_path / "large.ledger", epsilon=3.0, delta=1e-5)
    with pytest.raises(Reached):
        model(rich).fit(table(), halves())
    assert len(rich.entries()) == 1


@pytest.mark.parametrize("where", ["first", "later"])
def test_an_interrupted_fit_leaves_no_model(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = DPBlockMLPClassifier((4,), random_state=0, **PUBLIC).fit(table(), halves())
    assert SEEDED in model.certificate_.marks
    release, done = Channel.release, []

    def some(self: Any, *arguments: Any) -> Any:
        done.append(1)
        if where == "first" or len(done) > 3:
            raise Reached
        return release(self, *arguments)

    monkeypatch.setattr(Channel, "release", some)
    with pytest.raises(Reached):
        model.fit(table(), halves())
    assert {key for key in vars(model) if key.endswith("_")} <= {"n_features_in_"}


def test_marks_say_what_was_read_off_the_data_and_what_is_no_secret() -> None:
    private = DPBlockMLPClassifier((4,), **PUBLIC).fit(table(), halves())
    assert private.certificate_.marks == ()
    told = DPBlockMLPClassifier((4,), random_state=0, **{**PUBLIC, "classes": None}).fit(table(), halves())
    assert any("classes" in mark for mark in told.certificate_.marks)
    assert SEEDED in told.certificate_.marks
    assert told.certificate_ == told.plan_.certificate


def test_models_and_their_copies_hold_no_row() -> None:
    X = table() + 0.123456789
    for kind in (np.float64, np.float32):
        model = DPBlockMLPRegressor((4,), **NUMBERS).fit(X.astype(kind), X[:, 0])
        raw = pickle.dumps(model)
        assert not any(row.astype(form).tobytes() in raw for row in X for form in (np.float32, np.float64))
        assert not any(key.endswith("_") for key in vars(clone(model)))
        assert {key for key in vars(model) if key.endswith("_")} == {
            "certificate_",
            "coefs_",
            "n_features_in_",
            "network_",
            "plan_",
            "single_target_",
        }


BAD: dict[str, dict[str, Any]] = {
    "no units": {"hidden_layer_sizes": (0,)},
    "true": {"hidden_layer_sizes": (True,)},
    "minus": {"hidden_layer_sizes": (-3,)},
    "picture of truth": {"input_shape": (True, 4, 4)},
    "minus minus": {"input_shape": (-1, -4, 4)},
    "wrapped": {"input_shape": (2**60, 16, 16, 1)},
    "huge kernel": {"hidden_layer_sizes": (Convolution(2, 99),), "input_shape": (1, 4, 4)},
    "huge pool": {"hidden_layer_sizes": (Dense(2, pool=9),), "input_shape": (1, 4, 4)},
    "moments of patches": {
        "hidden_layer_sizes": (Convolution(2, 2),),
        "input_shape": (1, 4, 4),
        "update": "statistics",
    },
    "short": {"layer_norms": 1e-7},
    "not a norm": {"layer_norms": [1.0, math.nan]},
    "tiny": {"contribution_norm": 1e-10},
    "endless": {"contribution_norm": math.inf},
    "final model": {"view": "final_model"},
    "secret number": {"adjacency": "add-remove"},
    "seed": {"random_state": True},
    "start": {"init_seed": None},
    "loop": {"shortcuts": ((1, 1),)},
    "bounds": {"feature_bounds": (0, math.inf)},
    "no bounds": {"feature_bounds": None},
    "no delta": {"delta": None},
    "batch": {"batch_size": 61},
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_parameters_are_refused_before_anything_is_spent_or_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_networks._BlockNetworkModel, "_inputs", stop)
    ledger = Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-3)
    model = DPBlockMLPClassifier(**{"hidden_layer_sizes": (4,), **PUBLIC, "budget": ledger, **BAD[name]})
    with pytest.raises((InvalidInput, NotCovered)):
        model.fit(table(60, 16), halves())
    assert len(ledger.entries()) == 0


EXTREME: dict[str, dict[str, Any]] = {
    "long steps": {"step_size": 1e300},
    "long states": {"layer_norms": 1e6, "contribution_norm": 1e-9, "step_size": 1e30},
    "short states": {"layer_norms": 1e-6, "contribution_norm": 1e9},
    "no constraint": {"gamma": 1e-300},
    "all constraint": {"gamma": 1e300},
    "statistics": {"update": "statistics", "layer_norms": 1e6, "contribution_norm": 1e-9},
}


@pytest.mark.parametrize("name", list(EXTREME))
def test_extreme_parameters_keep_their_promise_in_silence(name: str) -> None:
    """The certificate does not follow them, and no record's overflow is told."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = DPBlockMLPClassifier((4, 3), random_state=0, **PUBLIC, **EXTREME[name]).fit(table(), halves())
    usual = DPBlockMLPClassifier((4, 3), **PUBLIC)
    assert model.certificate_.epsilon(1e-6) == pytest.approx(usual.planned_certificate(table()).epsilon(1e-6))
    assert not any(np.isnan(W).any() for W in model.coefs_)


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
