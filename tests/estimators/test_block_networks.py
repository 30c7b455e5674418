"""Networks by block coordinate descent: they learn, promise what all releases tell, and refuse unsound wishes."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits

from tacit import DPBlockMLPClassifier, DPBlockMLPRegressor, Ledger
from tacit.accounting import gdp_epsilon
from tacit.errors import BudgetExhausted, InvalidInput, NotCovered
from tacit.problem.layers import Convolution, Dense
from tacit.release import SEEDED


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    return X[order][:1400], y[order][:1400], X[order][1400:], y[order][1400:]


def classifier(**change) -> DPBlockMLPClassifier:
    settings = {"epsilon": 1e4, "delta": 1e-5, "feature_bounds": (0, 16), "classes": range(10), "random_state": 0}
    settings |= {"batch_size": 100, "sampling": "cyclic", "epochs": 15}
    return DPBlockMLPClassifier(change.pop("layers", (32,)), **{**settings, **change})


@pytest.mark.parametrize(
    ("change", "least"),
    [
        ({}, 0.9),
        ({"update": "statistics"}, 0.9),
        ({"loss": "squared", "update": "statistics"}, 0.85),
        ({"layers": (24, 16), "shortcuts": ((1, 3),)}, 0.85),
        ({"layers": (Convolution(6, 3), Dense(24, pool=2)), "input_shape": (1, 8, 8)}, 0.85),
        ({"sampling": "poisson", "epsilon": 20.0}, 0.8),
    ],
    ids=str,
)
def test_they_learn(change, least, digits):
    X, y, X_test, y_test = digits
    model = classifier(**change).fit(X, y)
    assert model.score(X_test, y_test) > least
    assert model.certificate_.epsilon(1e-5) <= change.get("epsilon", 1e4)
    assert model.certificate_.view == "every iterate"
    assert model.certificate_.marks == (SEEDED,)
    np.testing.assert_allclose(model.predict_proba(X_test).sum(axis=1), 1.0)
    assert (model.predict(X_test) == model.classes_[model.predict_proba(X_test).argmax(axis=1)]).all()


def test_numbers_are_learnt_too():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, size=(3000, 2))
    y = 10 * np.column_stack([X[:, 0] * X[:, 1], np.abs(X[:, 0])])
    settings = {"epsilon": 1e4, "delta": 1e-5, "feature_bounds": (-1, 1), "target_bounds": (-10, 10)}
    settings |= {"sampling": "cyclic", "random_state": 0, "update": "statistics", "epochs": 60, "batch_size": 300}
    both = DPBlockMLPRegressor((32,), **settings).fit(X, y)
    assert both.score(X, y) > 0.5
    single = DPBlockMLPRegressor((32,), **settings).fit(X, y[:, 1])
    assert single.predict(X).shape == (3000,)
    assert single.score(X, y[:, 1]) > 0.5


def test_the_promise_is_the_composition_of_all_layers(digits):
    X, y, *_ = digits
    model = classifier(epsilon=2.0, layers=(8, 8)).fit(X, y)
    plan = model.plan_
    assert plan.ratio.shape == (15 * 14, 3)
    mu = math.sqrt((plan.ratio[::14] ** 2).sum())  # what one batch of an epoch tells: every layer, every epoch
    assert gdp_epsilon(mu, 1e-5) == pytest.approx(2.0, rel=1e-3)
    assert model.planned_certificate(*X.shape).plan == model.certificate_.plan
    poisson = classifier(epsilon=2.0, layers=(8, 8), sampling="poisson").fit(X, y)
    assert poisson.plan_.ratio.min() > plan.ratio.min()


def test_the_plan_of_numbers_is_known_before_the_data():
    rng = np.random.default_rng(0)
    X, y = rng.uniform(-1, 1, size=(300, 2)), rng.uniform(-1, 1, size=(300, 3))
    settings = {"epsilon": 1.0, "delta": 1e-5, "feature_bounds": (-1, 1), "target_bounds": (-1, 1), "epochs": 2}
    model = DPBlockMLPRegressor((4,), **settings)
    assert model.planned_certificate(300, 2, n_outputs=3).plan == model.fit(X, y).certificate_.plan
    assert model.planned_certificate(300, 2).plan == model.fit(X, y[:, 0]).certificate_.plan
    assert model.predict(X).shape == (300,)


def test_layers_and_weights_have_the_documented_shapes(digits):
    X, y, *_ = digits
    layers = (Convolution(4, 3, pool=2), Dense(6), 5)
    model = classifier(layers=layers, input_shape=(1, 8, 8), epochs=1, shortcuts=((2, 4),)).fit(X, y)
    assert [W.shape for W in model.coefs_] == [(4, 10), (6, 17), (5, 7), (10, 6), (10, 7)]
    assert [block.name for block in model.plan_.blocks] == ["layer 1", "layer 2", "layer 3", "layer 4", "shortcut 2–4"]


def test_a_seed_repeats_and_the_start_is_public(digits):
    X, y, *_ = digits
    runs = [classifier(epochs=2, epsilon=1.0).fit(X, y).coefs_[0] for _ in range(2)]
    assert np.array_equal(*runs)
    other = classifier(epochs=2, epsilon=1.0, random_state=None).fit(X, y)
    assert not np.array_equal(other.coefs_[0], runs[0])
    assert other.certificate_.marks == ()


def test_budget_is_reserved_before_records_are_read(digits, tmp_path):
    X, y, *_ = digits
    ledger = Ledger(tmp_path / "ledger.jsonl", epsilon=0.8, delta=1e-5)
    model = classifier(epsilon=0.8, epochs=1, ledger=ledger).fit(X, y)
    with pytest.raises(BudgetExhausted):
        model.fit(X, y)
    assert model.coefs_[0].shape == (32, 66)  # a refused fit changes nothing
    (entry,) = ledger.entries()
    assert entry.digest == model.certificate_.digest  # with the mark of the seed
    assert SEEDED in entry.certificate


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"view": "final_model"}, NotCovered, "E6"),
        ({"adjacency": "add-remove"}, NotCovered, "add-remove"),
        ({"feature_bounds": None}, InvalidInput, "feature_bounds is missing"),
        ({"delta": None}, InvalidInput, "delta"),
        ({"loss": "hinge"}, InvalidInput, "loss"),
        ({"update": "newton"}, InvalidInput, "update"),
        ({"layers": "big"}, InvalidInput, "hidden_layer_sizes"),
        ({"layers": (Convolution(4, 3),)}, InvalidInput, "input_shape"),
        ({"layers": (Convolution(4, 3),), "input_shape": (1, 5, 5)}, InvalidInput, "does not hold"),
        ({"layers": (Convolution(4, 9),), "input_shape": (1, 8, 8)}, InvalidInput, "does not fit"),
        ({"layers": (Convolution(4, 3),), "input_shape": (1, 8, 8), "update": "statistics"}, InvalidInput, "gradient"),
        ({"layer_norms": (1.0,)}, InvalidInput, "layer_norms"),
        ({"contribution_norm": -1.0}, InvalidInput, "contribution_norm"),
        ({"contribution_norm": (1.0,)}, InvalidInput, "contribution_norm"),
        ({"step_size": 0.0}, InvalidInput, "step_size"),
        ({"last_step": 2.0}, InvalidInput, "last_step"),
        ({"shortcuts": ((0, 1),)}, InvalidInput, "shortcuts"),
        ({"shortcuts": 3}, InvalidInput, "shortcuts"),
        ({"batch_size": 0}, InvalidInput, "batch_size"),
        ({"epochs": 1.5}, InvalidInput, "epochs"),
        ({"sampling": "full"}, InvalidInput, "sampling"),
        ({"init_seed": -1}, InvalidInput, "init_seed"),
        ({"random_state": "a generator"}, InvalidInput, "random_state"),
        ({"ledger": 1.0}, InvalidInput, "ledger"),
        ({"progress": "yes"}, InvalidInput, "progress"),
        ({"gamma": -1.0}, InvalidInput, "gamma"),
        ({"classes": [1]}, InvalidInput, "classes"),
    ],
    ids=str,
)
def test_wrong_wishes_are_refused_in_one_line_and_nothing_is_spent(change, error, words, digits, tmp_path):
    X, y, *_ = digits
    ledger = Ledger(tmp_path / "ledger.jsonl", epsilon=1e9, delta=0.1)
    with pytest.raises(error, match=words) as raised:
        classifier(**{"ledger": ledger, **change}).fit(X, y)
    assert "\n" not in str(raised.value)
    assert not list(ledger.entries())


def test_clones_have_the_same_parameters():
    model = classifier(layers=(3, 4), shortcuts=((0, 2),))
    assert clone(model).get_params() == model.get_params()


def test_long_and_odd_records_do_not_show(digits):
    """Values far outside the bounds are clipped without a word, whatever the type."""
    X, y, *_ = digits
    wild = X.copy()
    wild[0], wild[1] = 1e300, -1e300
    model = classifier(epochs=1).fit(wild, y)
    assert np.isfinite(model.predict_proba(wild)).all()
