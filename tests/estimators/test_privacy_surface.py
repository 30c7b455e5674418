"""What a fit lets out besides the released model: the same for all data of one shape."""

from __future__ import annotations

import os
import pickle
import traceback
from unittest import mock

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from tacit import Ledger
from tacit.errors import BudgetExhausted, InvalidInput, LedgerError, NotCovered
from tacit.estimators import DPGeneralizedLinear, DPHuberRegressor, DPLasso, DPLinearSVC, DPLogisticRegression, DPRidge
from tacit.estimators.base import PrivateEstimator
from tacit.maps import BoundsScaler, FeatureBounds, feature_bounds
from tacit.release import SEEDED, Session, channel
from tacit.solvers import CoordinateDescent

N, P = 200, 3
COMMON = {"epsilon": 1.0, "delta": 1e-5, "feature_bounds": (-1, 1)}
REGRESSION = {**COMMON, "target_bounds": (-2, 2)}
LABELS = {**COMMON, "classes": ["no", "yes"]}
MODELS = {
    "auto": DPRidge(**REGRESSION),
    "coordinate": DPLasso(0.01, **REGRESSION, solver="coordinate"),
    "gradient": DPHuberRegressor(**REGRESSION, solver="gradient"),
    "statistics": DPRidge(**REGRESSION, solver="statistics"),
    "sgd": DPRidge(**REGRESSION, solver="sgd", max_passes=2),
    "final model": DPRidge(**REGRESSION, view="final_model"),
    "logistic": DPLogisticRegression(**LABELS),
    "hinge": DPLinearSVC(**LABELS, solver="coordinate"),
    "nonnegative": DPGeneralizedLinear("squared", "nonnegative", "gradient", **REGRESSION),
}
each_model = pytest.mark.parametrize("name", MODELS)


def data(model, seed: int = 0):
    """Records for a model, of one shape for every seed."""
    rng = np.random.default_rng(seed)
    X = rng.uniform(-1, 1, (N, P))
    y = X @ [1.0, -0.5, 0.0] + rng.normal(0, 0.2, N)
    return X, (y if hasattr(model, "target_bounds") else np.where(y > 0, "yes", "no"))


def public(model) -> dict[str, object]:
    """All that a fitted model holds, except for the released numbers."""
    released = {"coef_", "intercept_", "coef_standard_errors_"}
    fitted = {k: v for k, v in vars(model).items() if k.endswith("_") and k not in released}
    return {k: v.tolist() if isinstance(v, np.ndarray) else v for k, v in fitted.items()}


# -- the same for neighbours, and for any other data ------------------------------------------------------------------


@each_model
def test_everything_but_the_coefficients_is_the_same_for_all_data(name):
    model = MODELS[name]
    X, y = data(model)
    others = []
    X1, y1 = X.copy(), y.copy()
    X1[0], y1[0] = -X[0], y[1]
    others.append((X1, y1))
    others.append(data(model, 1))
    others.append((np.zeros_like(X), y[::-1].copy()))
    others.append((X * 1e9, y))
    here = clone(model).fit(X, y)
    for there in others:
        fitted = clone(model).fit(*there)
        assert public(fitted) == public(here)
        assert fitted.certificate_.plan == here.certificate_.plan
        assert fitted.certificate_.digest == here.certificate_.digest
        assert set(vars(fitted)) == set(vars(here))
        assert np.shape(fitted.coef_) == np.shape(here.coef_)
        assert (fitted.coef_standard_errors_ is None) == (here.coef_standard_errors_ is None)


@each_model
def test_no_trace_of_the_optimisation_is_kept(name):
    model = clone(MODELS[name])
    fitted = {k for k in vars(model.fit(*data(model))) if k not in model.get_params()}
    allowed = {"coef_", "intercept_", "coef_standard_errors_", "certificate_", "solver_", "notes_", "n_features_in_"}
    assert fitted <= allowed | {"classes_", "feature_bounds_", "clipped_to_"}  # no n_iter_, no loss curve, no streams


@each_model
def test_the_certificate_keeps_the_promise(name):
    model = clone(MODELS[name])
    model.fit(*data(model))
    assert model.certificate_.epsilon(model.delta) <= model.epsilon * (1 + 1e-9)
    assert model.certificate_.epsilon(model.delta) > 0.9 * model.epsilon  # nothing is wasted either
    assert model.certificate_.adjacency.value == "replace-one"
    assert model.certificate_.marks == ()


@each_model
def test_records_outside_the_bounds_are_clipped_in_silence(name):
    model = clone(MODELS[name]).set_params(random_state=3)
    X, y = data(model)
    wild = 2.5 * X
    far = 3 * y if hasattr(model, "target_bounds") else y
    near = np.clip(far, -2, 2) if hasattr(model, "target_bounds") else y
    np.testing.assert_array_equal(clone(model).fit(wild, far).coef_, clone(model).fit(np.clip(wild, -1, 1), near).coef_)


def test_duplicate_entries_of_a_sparse_matrix_are_one_value():
    rows, columns, values = [0, 0, 1, 2], [0, 0, 1, 0], [0.8, 0.7, 0.5, -0.2]
    twice = sparse.coo_array((values, (rows, columns)), shape=(3, 2))
    units = feature_bounds((-1, 1), 2, sparse=True)
    raw = sparse.csc_array((np.array([0.8, 0.7, -0.2, 0.5]), np.array([0, 0, 2, 1]), np.array([0, 3, 4])), shape=(3, 2))
    for stored in (twice, raw):
        np.testing.assert_array_equal(units(stored).toarray(), [[1.0, 0.0], [0.0, 0.5], [-0.2, 0.0]])


# -- classes ----------------------------------------------------------------------------------------------------------


def test_classes_read_off_the_data_are_declared():
    model = DPLogisticRegression(**COMMON)
    X, y = data(model)
    model.fit(X, y)
    assert any("classes" in mark and "declared" in mark for mark in model.certificate_.marks)
    assert clone(model).set_params(classes=["no", "yes"]).fit(X, y).certificate_.marks == ()


@pytest.mark.parametrize("kind", [DPLogisticRegression, DPLinearSVC])
def test_a_public_class_may_be_absent(kind):
    X, y = data(kind(**COMMON))
    model = kind(**COMMON, classes=["yes", "no", "maybe"]).fit(X, y)
    assert model.classes_.tolist() == ["maybe", "no", "yes"]
    assert model.coef_.shape == (3, P)
    assert model.certificate_.epsilon(1e-5) <= 1.0 + 1e-9
    only = kind(**COMMON, classes=["no", "yes"]).fit(X, np.full(N, "yes"))
    assert only.coef_.shape == (1, P)


def test_several_heads_share_one_budget():
    X, y = data(DPLogisticRegression())
    model = DPLogisticRegression(**COMMON, classes=["a", "no", "yes", "z"]).fit(X, y)
    assert len(model.certificate_.plan) % 4 == 0
    assert 0.9 < model.certificate_.epsilon(1e-5) <= 1.0 + 1e-9


# -- refusals ---------------------------------------------------------------------------------------------------------


@each_model
def test_delta_has_no_default(name):
    model = clone(MODELS[name]).set_params(delta=None)
    with pytest.raises(InvalidInput, match=r"delta is missing.*1/n² = 2.5e-05"):
        model.fit(*data(model))


GAUSSIAN = [name for name in MODELS if name not in {"sgd", "final model"}]


@pytest.mark.parametrize("name", GAUSSIAN)
def test_add_remove_counts_first_and_then_knows_nothing_else_about_n(name, tmp_path):
    ledger = Ledger(tmp_path / "budget", epsilon=1.5, delta=1e-3)
    model = clone(MODELS[name]).set_params(adjacency="add-remove", ledger=ledger)
    model.fit(*data(model))
    certificate = model.certificate_
    assert certificate.adjacency.value == "add-remove"
    assert certificate.plan.parts[0].label == "noisy count"
    assert certificate.epsilon(model.delta) <= model.epsilon * (1 + 1e-9)
    (entry,) = ledger.entries()  # reserved once, before the count
    assert entry.mu >= certificate.mu


@pytest.mark.parametrize("name", ["sgd", "final model"])
def test_add_remove_is_refused_where_it_does_not_compose_and_costs_nothing(name, tmp_path):
    ledger = Ledger(tmp_path / "budget", epsilon=1.5, delta=1e-3)
    model = clone(MODELS[name]).set_params(adjacency="add-remove", ledger=ledger)
    with pytest.raises(NotCovered, match="replace-one") as caught:
        model.fit(*data(model))
    assert caught.value.axis == "adjacency"
    assert ledger.entries() == ()


def test_under_add_remove_nothing_but_the_count_sees_the_number_of_records(monkeypatch):
    """With the count frozen, one record that contributes nothing more or less changes nothing."""
    monkeypatch.setattr(channel, "rounded_normal", lambda rng, scale, size: np.zeros(size, np.int64))
    frozen, release, seen = PrivateEstimator._counted, Session.release, []

    def counted(self, session, table, budget):
        with monkeypatch.context() as once:

            def count(session, query, *where):
                seen.append(round(float(release(session, query, *where)[0])))
                return np.array([100.0])

            once.setattr(Session, "release", count)
            return frozen(self, session, table, budget)

    monkeypatch.setattr(PrivateEstimator, "_counted", counted)
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (100, 2))
    y = X @ [1.0, -1.0]
    found = []
    for n in (100, 101):
        model = clone(MODELS["gradient"]).set_params(adjacency="add-remove", fit_intercept=False)
        model.set_params(feature_bounds=(-1, 1), target_bounds=(-3, 3))
        more = np.zeros((n - 100, 2))
        found.append(model.fit(np.vstack([X, more]), np.append(y, np.zeros(n - 100))).coef_)
    assert seen == [100, 101]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-12)


@each_model
def test_zero_out_is_served_too(name):
    model = clone(MODELS[name]).set_params(adjacency="zero-out")
    model.fit(*data(model))
    assert model.certificate_.adjacency.value == "zero-out"
    assert model.certificate_.epsilon(model.delta) <= 1.0 + 1e-9


@pytest.mark.parametrize(
    ("bounds", "hint"),
    [
        (None, "feature_bounds is missing"),
        ([(0, 1), (0, 5), (-1, 2)], r"one \(low, high\) pair per feature.*np.transpose"),
        (np.array([[0, 1], [0, 5], [-1, 2]]), r"np.transpose"),
        ({"a": (0, 1)}, "in the order of the columns"),
        (([0, 0], [1, 1]), r"one number per feature \(3\)"),
        ((1, 0), "smaller number first"),
    ],
)
def test_bounds_in_another_form_are_answered_with_the_right_one(bounds, hint):
    model = DPRidge(**{**REGRESSION, "feature_bounds": bounds})
    with pytest.raises(InvalidInput, match=hint):
        model.fit(*data(model))


def test_pairs_per_feature_are_not_mistaken_for_limits_of_two_features():
    pairs = [(0, 10), (1, 20)]
    with pytest.raises(InvalidInput, match="pair per feature"):
        feature_bounds(pairs, 2)
    with pytest.raises(InvalidInput, match="pair per feature"):
        feature_bounds(((0, 1), (0, 5)), 2)  # as limits they would fix the first feature
    units = feature_bounds(tuple(np.transpose(pairs)), 2)
    assert (units.low.tolist(), units.high.tolist()) == ([0, 1], [10, 20])
    fixed = feature_bounds((np.array([0, 1]), np.array([0, 5])), 2)
    assert fixed.fixed.tolist() == [True, False]


def test_a_message_shows_no_record_and_has_no_other_behind_it():
    model = DPRidge(**REGRESSION)
    X, y = data(model)
    frame = pd.DataFrame(X).astype(object)
    frame.iloc[3, 1] = "hush-hush"
    with pytest.raises(InvalidInput) as caught:
        model.fit(frame, y)
    assert "hush" not in "".join(traceback.format_exception(caught.value, chain=True)).replace('"hush-hush"', "")
    assert caught.value.__context__ is None
    with pytest.raises(InvalidInput) as caught:
        model.fit(X * (1 + 2j), y)
    assert "[" not in str(caught.value)


def test_a_label_that_is_not_public_is_refused_without_naming_it():
    model = DPLogisticRegression(**LABELS)
    X, y = data(model)
    y = y.astype(object)
    y[5] = "hush-hush"
    with pytest.raises(InvalidInput, match="not in classes") as caught:
        model.fit(X, y)
    assert "hush" not in str(caught.value)


# -- the ledger -------------------------------------------------------------------------------------------------------


def ledger(path, epsilon: float = 100.0, delta: float = 1e-4) -> Ledger:
    return Ledger(path / "study.ledger", epsilon=epsilon, delta=delta)


def test_a_grid_search_is_charged_once_per_fit(tmp_path):
    book = ledger(tmp_path)
    model = DPRidge(**REGRESSION, ledger=book)
    X, y = data(model)
    search = GridSearchCV(model, {"alpha": [1e-3, 1e-2, 1e-1]}, cv=3, error_score="raise").fit(X, y)
    assert len(book.entries()) == 10  # three folds of three candidates, and the refit
    assert search.best_estimator_.ledger is book
    assert {entry.note for entry in book.entries()} == {"DPRidge"}


def test_a_grid_search_ends_with_the_budget(tmp_path):
    book = ledger(tmp_path, epsilon=2.0, delta=1e-5)
    model = DPRidge(**REGRESSION, ledger=book)
    X, y = data(model)
    with pytest.raises(BudgetExhausted):
        GridSearchCV(model, {"alpha": [1e-3, 1e-2, 1e-1]}, cv=3, error_score="raise").fit(X, y)
    assert 1 < len(book.entries()) < 10
    assert book.spent().epsilon <= 2.0


def test_a_pipeline_is_charged_too(tmp_path):
    book = ledger(tmp_path)
    model = make_pipeline(BoundsScaler((-1, 1)), DPRidge(**REGRESSION, ledger=book))
    clone(model).fit(*data(model[-1]))
    assert len(book.entries()) == 1


def test_clones_and_pickles_share_the_ledger(tmp_path):
    book = ledger(tmp_path)
    model = DPRidge(**REGRESSION, ledger=book)
    assert clone(model).ledger is book
    again = pickle.loads(pickle.dumps(model.fit(*data(model))))
    assert again.ledger.path == book.path
    assert again.certificate_ == model.certificate_
    assert again.certificate_.epsilon(1e-5) == model.certificate_.epsilon(1e-5)
    np.testing.assert_array_equal(again.coef_, model.coef_)
    again.fit(*data(model))
    assert len(book.entries()) == 2


@each_model
def test_the_budget_is_reserved_before_a_record_is_read(name, tmp_path):
    book = ledger(tmp_path, epsilon=0.5, delta=1e-5)
    model = clone(MODELS[name]).set_params(ledger=book)
    X, y = data(model)
    with mock.patch.object(FeatureBounds, "__call__") as read, pytest.raises((BudgetExhausted, LedgerError)):
        model.fit(X, y)
    assert not read.called
    assert book.entries() == ()
    assert not hasattr(model, "certificate_")
    assert not hasattr(model, "coef_")


@each_model
def test_a_fit_that_fails_later_has_been_charged(name, tmp_path):
    book = ledger(tmp_path)
    model = clone(MODELS[name]).set_params(ledger=book)
    with mock.patch.object(FeatureBounds, "__call__", side_effect=KeyboardInterrupt), pytest.raises(KeyboardInterrupt):
        model.fit(*data(model))
    assert len(book.entries()) == 1
    assert not hasattr(model, "coef_")


# -- randomness -------------------------------------------------------------------------------------------------------


@each_model
def test_seeded_fits_repeat_to_the_bit_and_say_so(name):
    model = clone(MODELS[name]).set_params(random_state=7)
    one, two = clone(model).fit(*data(model)), clone(model).fit(*data(model))
    np.testing.assert_array_equal(one.coef_, two.coef_)
    np.testing.assert_array_equal(one.intercept_, two.intercept_)
    assert SEEDED in one.certificate_.marks
    other = clone(model).set_params(random_state=8).fit(*data(model))
    assert not np.array_equal(one.coef_, other.coef_)


@each_model
def test_unseeded_fits_differ(name):
    model = MODELS[name]
    one, two = clone(model).fit(*data(model)), clone(model).fit(*data(model))
    assert not np.array_equal(one.intercept_, two.intercept_)
    assert SEEDED not in one.certificate_.marks


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_forked_fits_draw_noise_of_their_own():
    model = DPRidge(**REGRESSION, solver="statistics")
    X, y = data(model)
    found = [clone(model).fit(X, y).coef_]
    for _ in range(2):
        read, write = os.pipe()
        pid = os.fork()
        if pid == 0:  # pragma: no cover - child
            os.write(write, clone(model).fit(X, y).coef_.tobytes())
            os._exit(0)
        os.waitpid(pid, 0)
        found.append(np.frombuffer(os.read(read, 8 * P)))
        os.close(read)
        os.close(write)
    assert all(len(coef) == P for coef in found)
    assert len({coef.tobytes() for coef in found}) == 3


# -- views ------------------------------------------------------------------------------------------------------------


def test_a_final_model_has_a_certificate_about_the_last_iterate():
    model = DPRidge(**REGRESSION, view="final_model")
    model.fit(*data(model))
    assert model.solver_ == "cyclic"
    assert "last iterate" in model.certificate_.theorem
    assert model.certificate_.view != "every iterate"


@pytest.mark.parametrize("solver", ["coordinate", "gradient", "statistics", "metric"])
def test_a_stronger_promise_serves_a_final_model_too(solver):
    model = DPRidge(**REGRESSION, view="final_model", solver=solver)
    model.fit(*data(model))
    assert model.certificate_.view == "every iterate"


def test_a_hidden_chain_does_not_serve_all_iterates():
    model = DPRidge(**REGRESSION, solver="cyclic")
    with pytest.raises(InvalidInput, match="set view='final_model'"):
        model.fit(*data(model))


# -- containers -------------------------------------------------------------------------------------------------------


def containers(X, folder):
    yield "C", np.ascontiguousarray(X)
    yield "F", np.asfortranarray(X)
    yield "float32", X.astype(np.float32)
    yield "frame", pd.DataFrame(X, columns=[*"abc"])
    yield "list", X.tolist()
    np.save(folder / "X.npy", X)
    yield "memmap", np.load(folder / "X.npy", mmap_mode="r")
    for kind in (sparse.csr_array, sparse.csc_array, sparse.coo_array, sparse.csr_matrix):
        yield kind.__name__, kind(X)
    wide = sparse.csr_array(X)
    wide.indices, wide.indptr = wide.indices.astype(np.int64), wide.indptr.astype(np.int64)
    yield "64-bit indices", wide


@each_model
def test_the_container_does_not_matter(name, tmp_path):
    model = clone(MODELS[name]).set_params(epsilon=100.0 if name == "sgd" else 1e5, random_state=0)
    X, y = data(model)
    reference = clone(model).fit(X, y)
    for _, there in containers(X, tmp_path):
        fitted = clone(model).fit(there, y)
        np.testing.assert_allclose(fitted.coef_, reference.coef_, atol=0.3 if name == "sgd" else 0.03)
        np.testing.assert_allclose(fitted.intercept_, reference.intercept_, atol=0.3 if name == "sgd" else 0.03)
        assert fitted.certificate_.digest == reference.certificate_.digest


def test_smoothness_that_the_user_states_is_declared():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (50, 2))
    settings = {"delta": 1e-4, "feature_bounds": (-1, 1), "target_bounds": (-1, 1), "fit_intercept": False}
    marks = {
        str(given): DPRidge(solver=CoordinateDescent(passes=1, smoothness=given), **settings)
        .fit(X, X[:, 0])
        .certificate_.marks
        for given in ("public", "private", (1.0, 0.5))
    }
    assert marks["public"] == marks["private"] == ()
    assert any("smoothness" in mark and mark.startswith("declared") for mark in marks["(1.0, 0.5)"])
