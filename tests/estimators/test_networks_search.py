"""Private selection over final-model estimators: plans known without records, honest costs, nothing shown."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from tacit import DPConvexReLUClassifier, DPConvexReLURegressor, DPGeneralizedLinear, DPSelection, DPSoftmaxRegression
from tacit.accounting import certify, gdp_delta, gdp_mu, selection_epsilon
from tacit.accounting.selection import theorem_51_delta
from tacit.errors import InvalidInput, NotCovered
from tacit.estimators import _search as search_module
from tacit.estimators import selection as module
from tacit.estimators.base import PrivateEstimator
from tacit.maps import NormScaler, RandomFourier
from tacit.mechanism import Selection, Trials
from tacit.problem import Logistic
from tacit.release import SEEDED

DELTA = 1e-5
FEW: dict = {"epochs": 2, "feature_norm": 1.0}


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    order = np.random.default_rng(0).permutation(len(X))
    return X[order], y[order]


def relu(**change) -> DPConvexReLUClassifier:
    return DPConvexReLUClassifier(**{"n_gates": 4, "classes": range(10), **FEW, **change})


def softmax(**change) -> DPSoftmaxRegression:
    return DPSoftmaxRegression(**{"classes": range(10), **FEW, **change})


def regressor(**change) -> DPConvexReLURegressor:
    return DPConvexReLURegressor(**{"n_gates": 4, "target_bounds": (0, 9), **FEW, **change})


def search(estimator, space, **change) -> DPSelection:
    given = {"epsilon": 4.0, "delta": DELTA, "mean_trials": 3.0, "holdout": 0.2, "random_state": 2}
    return DPSelection(estimator, space, **{**given, **change})


# -- the plan ----------------------------------------------------------------------------------------------------

CHANGES = [
    {},
    {"view": "all_iterates"},
    {"partition": "secret"},
    {"l2": 0.01, "step_fraction": 0.3},
    {"adjacency": "zero-out", "batch_size": 200},
    {"features": make_pipeline(NormScaler(), RandomFourier(20)), "feature_norm": None},
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: "-".join(change) or "plain")
@pytest.mark.parametrize("make", [relu, softmax, regressor])
def test_what_is_planned_is_what_runs(make, change, digits):
    X, y = digits
    model = make(epsilon=1.0, delta=DELTA, random_state=0, **change)
    assert isinstance(model, PrivateEstimator)
    planned = model.planned_certificate(*X.shape)
    assert vars(model).keys() == vars(clone(model)).keys()  # planning leaves nothing behind
    model.fit(X, y)
    assert model.certificate_.plan == planned.plan
    assert model.certificate_.marks == (*planned.marks, SEEDED)
    assert model.plan_.plan == planned.plan  # the numbers that are shown are those that were certified


def test_outputs_count_in_a_plan(digits):
    X, y = digits
    model = regressor(epsilon=1.0, delta=DELTA, random_state=0)
    planned = model.planned_certificate(*X.shape, n_outputs=3)
    assert model.fit(X, np.column_stack([y, y, y])).certificate_.plan == planned.plan
    with pytest.raises(InvalidInput, match="n_outputs"):
        model.planned_certificate(*X.shape, n_outputs=0)


def test_what_fit_would_refuse_is_refused_in_planning():
    good = {"epsilon": 1.0, "delta": DELTA}
    for make in (softmax, relu, regressor):
        with pytest.raises(InvalidInput, match="sparse"):
            make(**good).planned_certificate(100, 5, sparse=True)
    with pytest.raises(InvalidInput, match="two different labels"):
        softmax(**good, classes=[1]).planned_certificate(100, 5)
    bad = {"gate_seed": -1, "n_gates": 0, "progress": "yes", "step_fraction": 1.5, "batch_size": 101}
    for name, value in bad.items():
        for make in (relu, regressor):
            with pytest.raises(InvalidInput, match=name):
                make(**good, **{name: value}).planned_certificate(100, 5)
    with pytest.raises(InvalidInput, match="target_bounds"):
        regressor(**good, target_bounds=None).planned_certificate(100, 5)
    with pytest.raises(InvalidInput, match="either step_size or step_fraction"):
        relu(**good, step_size=1.0, step_fraction=0.5).planned_certificate(100, 5)


def test_a_step_may_be_a_fraction_of_the_longest(digits):
    X, y = digits
    whole, half = (relu(epsilon=1.0, delta=DELTA, step_fraction=f).fit(X, y).plan_ for f in (1.0, 0.5))
    assert half.step_size == pytest.approx(whole.step_size / 2)
    assert half.sigma == pytest.approx(whole.sigma)  # without a ridge the noise does not depend on η


# -- what a search costs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("base", "theorem", "refined"), [(1.33, 4.323, 3.697), (4.76, 13.641, 12.473)])
def test_twenty_candidates_cost_what_the_refined_bound_says(base, theorem, refined, digits):
    """Base certificates as in the convex ReLU paper's tables, from an estimator's own plan."""
    X, _ = digits
    mu = relu(epsilon=base, delta=DELTA).planned_certificate(*X.shape).mu
    assert mu == pytest.approx(gdp_mu(base, DELTA), rel=1e-6)
    assert selection_epsilon(mu, 20, DELTA) == pytest.approx(refined, abs=6e-4)
    assert theorem_51_delta(lambda e: float(gdp_delta(mu, e)), 20, theorem + 6e-4) <= DELTA
    assert theorem_51_delta(lambda e: float(gdp_delta(mu, e)), 20, theorem - 6e-4) > DELTA


def test_a_search_over_step_and_gates(digits, capfd):
    """ε = 3.697 of the whole search leaves each of Poisson(20) candidates its ε = 1.33, to the digits shown."""
    X, y = digits
    found = search(
        relu(epochs=3), {"step_fraction": [0.1, 1.0], "n_gates": [1, 4]}, epsilon=3.697, mean_trials=20.0
    ).fit(X, y)
    (plan,) = found.certificate_.plan.parts
    assert isinstance(plan, Selection)
    assert plan.trials == Trials(20.0)
    assert 3.697 * (1 - 1e-4) < found.certificate_.epsilon(DELTA) <= 3.697
    winner = found.best_estimator_
    assert winner.certificate_ == found.certificate_  # never one candidate's smaller ε
    assert not hasattr(winner.plan_, "certificate")  # the numbers of a candidate promise nothing
    assert "ε" not in winner.plan_.describe()
    assert set(found.best_params_) == {"step_fraction", "n_gates"}
    assert found.score(X, y) > 0.5
    train = plan.base[0].ratio.max
    assert train == pytest.approx(gdp_mu(1.33, DELTA), rel=2e-3)
    again = certify(winner.plan_.plan, delta=DELTA)
    assert again.mu == pytest.approx(train, rel=1e-5)
    assert again.mu <= train
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("make", "space"),
    [
        (relu, {"step_fraction": [0.3, 1.0], "n_gates": [1, 4]}),
        (softmax, {"features": [RandomFourier(30, gamma=0.5), make_pipeline(NormScaler(), RandomFourier(20))]}),
        (regressor, {"n_gates": [1, 4], "step_size": [0.1, 1.0]}),
    ],
)
def test_they_can_be_searched_over_in_processes(make, space, digits):
    X, y = digits
    one, two = (search(make(), space, n_jobs=jobs).fit(X, y) for jobs in (None, 2))
    assert one.best_params_.keys() == space.keys()
    assert one.best_score_ == two.best_score_
    np.testing.assert_array_equal(one.best_estimator_.coef_, two.best_estimator_.coef_)
    assert one.predict(X).shape == y.shape
    free = search(make(), space, random_state=None).fit(X, y)
    assert free.certificate_.marks == ()


def test_parameters_of_feature_maps_can_be_searched_over(digits):
    X, y = digits
    model = softmax(features=make_pipeline(NormScaler(), RandomFourier(20)), feature_norm=None)
    found = search(model, {"features__randomfourier__gamma": [0.5, 2.0]}).fit(X, y)
    (gamma,) = found.best_params_.values()
    assert found.best_estimator_.features_[-1].gamma == gamma
    assert model.features[-1].gamma == 1.0


def test_in_single_precision_with_names_and_without_a_hold_out(digits):
    pandas = pytest.importorskip("pandas")
    X, y = digits
    frame = pandas.DataFrame(X.astype(np.float32), columns=[f"pixel{i}" for i in range(64)])
    found = search(relu(), {"n_gates": [1, 2]}, holdout=None, scoring="brier").fit(frame, y)
    assert found.predict(frame).shape == found.best_estimator_.predict(frame).shape == y.shape


# -- refusals, all before a record is read -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("estimator", "space", "kind", "words"),
    [
        (relu(), {"view": ["all_iterates"]}, NotCovered, "gives no μ.*view='final_model'"),
        (relu(), {"partition": ["secret"]}, NotCovered, "gives no μ.*partition='fixed'"),
        (relu(), {"step_size": [1.0, 1e6]}, InvalidInput, "'step_size': 1000000.0.*such a step expands"),
        (relu(), {"n_gates": [4, 0]}, InvalidInput, "'n_gates': 0"),
        (relu(feature_norm=None), {"n_gates": [4]}, InvalidInput, "feature_norm is missing"),
        (relu(), {"progress": [True]}, InvalidInput, "same for all candidates"),
        (relu(classes=[1, 77]), {"n_gates": [4]}, InvalidInput, "not in classes"),
        (
            softmax(),
            {"features": [None, FunctionTransformer(np.tanh)]},
            NotCovered,
            "rests on a declaration",
        ),
    ],
)
def test_refusals(estimator, space, kind, words, digits, monkeypatch):
    monkeypatch.setattr(module, "_trial", lambda *a, **k: pytest.fail("a record was read"))
    for seed in range(3):  # a bad point of a list is refused whether or not it is drawn
        with pytest.raises(kind, match=words) as caught:
            search(estimator, space, random_state=seed).fit(*digits)
        assert "\n" not in str(caught.value)


def test_a_bad_point_is_refused_even_if_there_is_no_candidate(digits, monkeypatch):
    monkeypatch.setattr(search_module, "_number", lambda rng, m: 0)
    with pytest.raises(InvalidInput, match="such a step expands"):
        search(relu(), {"step_size": [1.0, 1e6]}).fit(*digits)


def test_sparse_records_are_refused_before_anything_is_spent(digits):
    X, y = digits
    with pytest.raises(InvalidInput, match="sparse"):
        search(relu(), {"n_gates": [1]}).fit(sparse.csr_array(X), y)


def test_what_the_user_vouches_for_stays_on_the_certificate(digits):
    """A declaration of the estimator is the same for every candidate: it is passed on, not dropped."""
    X, y = digits
    model = softmax(features=make_pipeline(FunctionTransformer(np.tanh), NormScaler()), feature_norm=None)
    found = search(model, {"step_fraction": [1.0]}).fit(X, y)
    assert any("treats each record by itself" in mark for mark in found.certificate_.marks)
    assert found.best_estimator_.certificate_.marks == found.certificate_.marks


class OwnLoss(Logistic):
    """Somebody else's loss."""


def test_a_loss_of_the_users_own_is_declared_by_a_search_too(digits):
    X, y = digits
    model = DPGeneralizedLinear(OwnLoss(), feature_bounds=(0, 1), classes=[0, 1])
    found = search(model, {"alpha": [1e-3]}).fit(X[:, :4], (y > 4).astype(int))
    assert any("loss treats each record by itself" in mark for mark in found.certificate_.marks)
    with pytest.raises(NotCovered, match="rests on a declaration"):
        search(clone(model).set_params(loss="logistic"), {"loss": [OwnLoss()]}).fit(X[:, :4], (y > 4).astype(int))


# -- what is shown -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("jobs", [None, 2])
def test_a_search_shows_no_bar_whatever_was_asked_for(jobs, digits, monkeypatch, capfd):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    found = search(relu(progress=True), {"n_gates": [1, 2]}, n_jobs=jobs).fit(*digits)
    assert capfd.readouterr() == ("", "")
    assert found.best_estimator_.progress is True
