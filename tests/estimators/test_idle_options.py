"""An option that would have no effect is refused, before anything is spent."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

from tacit import DPNMF, DPBlockMLPClassifier, DPBlockMLPRegressor, DPSelection, Ledger, load_model, save_model
from tacit.errors import InvalidInput
from tacit.estimators import (
    DPConvexReLUClassifier,
    DPConvexReLURegressor,
    DPGeneralizedLinear,
    DPLogisticRegression,
    DPRidge,
    DPSoftmaxRegression,
)
from tacit.problem import ElasticNet
from tacit.solvers import MetricDescent, NoisyCyclicDescent, solver_factory
from tacit.solvers.nmf import NMFOptions

RNG = np.random.default_rng(0)
X = RNG.uniform(0, 1, (200, 3))
Y = np.where(X[:, 0] > 0.5, 1, 0)
T = X[:, 0]
PROMISE = {"epsilon": 1.0, "delta": 1e-5, "random_state": 0}
LINEAR = {**PROMISE, "feature_bounds": (0, 1)}
REGRESSION = {**LINEAR, "target_bounds": (0, 1)}
LABELS = {**LINEAR, "classes": [0, 1]}
NETWORK = {**PROMISE, "feature_norm": 2.0, "epochs": 2}
BLOCKS = {**LINEAR, "epochs": 2}
SHOWN = {"view": "all_iterates"}
FACTORS = {**PROMISE, "row_norm": 2.0, "epochs": 3}
STATISTICS = {"update": "statistics"}

IDLE = {
    "softmax": (DPSoftmaxRegression(classes=[0, 1], **NETWORK, **SHOWN), Y, {"partition": "secret"}),
    "gates": (DPConvexReLUClassifier(2, classes=[0, 1], **NETWORK, **SHOWN), Y, {"partition": "secret"}),
    "numbers": (DPConvexReLURegressor(2, target_bounds=(0, 1), **NETWORK, **SHOWN), T, {"partition": "secret"}),
    "passes, statistics": (DPRidge(solver="statistics", **REGRESSION), T, {"max_passes": 3}),
    "passes, object": (DPRidge(solver=MetricDescent(), **REGRESSION), T, {"max_passes": 3}),
    "clip, object": (DPRidge(solver=MetricDescent(), **REGRESSION), T, {"clip": 1.0}),
    "step of residuals": (DPNMF(2, **FACTORS), None, {"options": NMFOptions(step_size=5.0)}),
    "step of statistics": (DPNMF(2, **FACTORS, **STATISTICS), None, {"options": NMFOptions(step_size=5.0)}),
    "threshold": (DPNMF(2, update="gradient", **FACTORS), None, {"options": NMFOptions(noise_threshold=0.0)}),
    "share": (DPNMF(2, **FACTORS), None, {"options": NMFOptions(person_share=0.5)}),
    "layers": (DPBlockMLPClassifier((4,), classes=[0, 1], **BLOCKS, **STATISTICS), Y, {"step_size": 4.0}),
    "last layers": (DPBlockMLPClassifier((4,), classes=[0, 1], **BLOCKS, **STATISTICS), Y, {"last_step": 0.1}),
    "layers of numbers": (DPBlockMLPRegressor((4,), target_bounds=(0, 1), **BLOCKS, **STATISTICS), T, {"step_size": 1}),
    "box": (DPGeneralizedLinear("squared", "l2", **REGRESSION), T, {"box": (0, 1)}),
    "box, object": (DPGeneralizedLinear("squared", ElasticNet.of(3), **REGRESSION), T, {"box": (0, 1)}),
    "ratio": (DPGeneralizedLinear("squared", "l1", **REGRESSION), T, {"l1_ratio": 0.5}),
    "ratio of a box": (DPGeneralizedLinear("squared", "box", box=(0, 1), **REGRESSION), T, {"l1_ratio": 0.5}),
    "weight": (DPGeneralizedLinear("squared", "none", **REGRESSION), T, {"alpha": 0.1}),
    "classes": (DPGeneralizedLinear("squared", **REGRESSION), T, {"classes": [0, 1]}),
    "bounds": (DPGeneralizedLinear("logistic", **LABELS), Y, {"target_bounds": (0, 1)}),
}


def _named(option: dict) -> str:
    """The option that is stated, also inside of options=."""
    ((name, value),) = option.items()
    if not isinstance(value, NMFOptions):
        return name
    return next(entry.name for entry in fields(value) if getattr(value, entry.name) != entry.default)


@pytest.mark.parametrize("name", IDLE)
def test_an_option_without_effect_is_refused_and_its_default_is_not(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    model, y, option = IDLE[name]
    ledger = Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-3)
    with pytest.raises(InvalidInput, match=rf"{_named(option)}.* has no effect with .*: leave it out") as caught:
        clone(model).set_params(**option, ledger=ledger).fit(X, y)
    assert "\n" not in str(caught.value)
    assert ledger.entries() == ()
    fitted = clone(model).fit(X, y)
    assert clone(fitted).get_params().keys() == model.get_params().keys()


def test_the_defaults_are_what_they_were():
    def same(model, y, **stated):
        attribute = next(a for a in ("components_", "coefs_", "coef_") if hasattr(clone(model).fit(X, y), a))
        here, there = (getattr(clone(model).set_params(**more).fit(X, y), attribute) for more in ({}, stated))
        return all(map(np.array_equal, here, there))

    assert same(DPNMF(2, update="gradient", **FACTORS), None, options=NMFOptions(step_size=5.0))
    assert same(DPNMF(2, release="both", **FACTORS), None, options=NMFOptions(person_share=0.5))
    assert same(DPBlockMLPClassifier((4,), classes=[0, 1], **BLOCKS), Y, step_size=4.0, last_step=0.1)
    assert same(DPBlockMLPRegressor((4,), target_bounds=(0, 1), **BLOCKS), T, step_size=1.0, last_step=0.1)
    assert same(DPGeneralizedLinear("squared", "elasticnet", **REGRESSION), T, l1_ratio=0.5)


def test_a_search_refuses_them_before_it_spends(tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path / "state"))
    ledger = Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-3)
    model = DPGeneralizedLinear("squared", feature_bounds=(0, 1), target_bounds=(0, 1))
    space = {"penalty": ["l2", "elasticnet"], "l1_ratio": [0.1]}
    with pytest.raises(InvalidInput, match=r"'l2'.*l1_ratio has no effect"):
        DPSelection(model, space, epsilon=1.0, delta=1e-5, ledger=ledger).fit(X, T)
    assert ledger.entries() == ()


def test_the_solver_of_one_release_takes_no_number_of_passes():
    with pytest.raises(InvalidInput, match="max_passes has no effect with solver='statistics'"):
        solver_factory("statistics", 3, None)
    solver_factory("statistics", None, 1.0)


# -- the final model only -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", ["cyclic", NoisyCyclicDescent()])
def test_solvers_that_show_a_final_model_do_not_promise_every_iterate(solver):
    """Its certificate is about less than view='all_iterates' asks for: refused, whether asked for or by default."""
    with pytest.raises(InvalidInput, match="shows its final model only: set view='final_model'"):
        DPLogisticRegression(solver=solver, **LABELS).fit(X, Y)
    model = DPLogisticRegression(solver=solver, view="final_model", **LABELS).fit(X, Y)
    assert model.certificate_.view == "the final model"
    assert any("final model only" in note for note in model.notes_)


def test_a_promise_about_every_iterate_needs_no_such_note():
    for view in ("all_iterates", "final_model"):
        model = DPRidge(solver="metric", view=view, **REGRESSION).fit(X, T)
        assert model.certificate_.view == "every iterate"
        assert not any("final model" in note for note in model.notes_)


# -- files of version 0.1, which wrote every default ------------------------------------------------------------------


def test_a_file_of_version_0_1_is_refused_in_one_line(tmp_path: Path):
    """It may hold options without effect, and its format is another one."""
    model = DPNMF(2, **FACTORS).fit(X)
    path = tmp_path / "m.json"
    save_model(model, path)
    document = json.loads(path.read_text()) | {"format": 1}
    path.write_text(json.dumps(document))
    with pytest.raises(InvalidInput, match=r"0\.1 wrote it.*: fit the model again$") as caught:
        load_model(path)
    assert "\n" not in str(caught.value)
