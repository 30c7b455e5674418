"""Convex ReLU networks and softmax regression: exact without noise, honest constants, refusing what is unsound."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from tacit import DPConvexReLUClassifier, DPConvexReLURegressor, DPSoftmaxRegression, Ledger
from tacit.errors import BudgetExhausted, InvalidInput, NotCovered
from tacit.maps import NormScaler, RandomFourier
from tacit.release import SEEDED


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))
    X = X[order] / np.linalg.norm(X[order], axis=1, keepdims=True)
    return X[:1400], y[order][:1400], X[1400:], y[order][1400:]


def softmax(**change) -> DPSoftmaxRegression:
    settings = {"epsilon": 4.0, "delta": 1e-5, "feature_norm": 1.0, "classes": range(10), "random_state": 0}
    return DPSoftmaxRegression(**{**settings, **change})


def relu(**change) -> DPConvexReLUClassifier:
    settings = {"epsilon": 4.0, "delta": 1e-5, "feature_norm": 1.0, "classes": range(10), "random_state": 0}
    return DPConvexReLUClassifier(change.pop("n_gates", 8), **{**settings, **change})


@pytest.mark.parametrize("make", [softmax, relu])
def test_they_learn(make, digits):
    X, y, X_test, y_test = digits
    model = make().fit(X, y)
    assert model.score(X_test, y_test) > 0.8
    assert model.certificate_.view == "the final model"
    assert model.certificate_.epsilon(1e-5) <= 4.0
    assert model.certificate_.marks == (SEEDED,)
    np.testing.assert_allclose(model.predict_proba(X_test).sum(axis=1), 1.0)
    assert (model.predict(X_test) == model.classes_[model.predict_proba(X_test).argmax(axis=1)]).all()


def test_shapes_are_as_documented(digits):
    X, y, *_ = digits
    model = relu(n_gates=5, epochs=2).fit(X, y)
    assert (model.coef_.shape, model.gates_.shape) == ((10, 5, 64), (5, 64))
    flat = softmax(epochs=2).fit(X, y)
    assert (flat.coef_.shape, flat.intercept_.shape) == ((10, 64), (10,))


@pytest.mark.parametrize("gates", [1, 3])
def test_without_noise_the_lifted_problem_is_solved(gates):
    """Against scikit-learn on materialised features: the same optimum of mean loss + λ/2‖V‖²."""
    rng = np.random.default_rng(1)
    X = rng.normal(size=(300, 4))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    y = (X @ rng.normal(size=(4, 3))).argmax(axis=1)
    lam = 0.02
    model = DPConvexReLUClassifier(
        gates, epsilon=1e9, delta=1e-3, feature_norm=2.0, classes=[0, 1, 2], clip=1.0, l2=lam, batch_size=300,
        epochs=4000, random_state=0,
    ).fit(X, y)  # fmt: skip
    mask = X @ model.gates_.T >= 0
    lifted = np.sqrt(2 / gates) * (mask[:, :, None] * X[:, None, :]).reshape(300, -1)
    best = LogisticRegression(C=1 / (300 * lam), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(lifted, y)

    def objective(W: np.ndarray) -> float:
        Z = lifted @ W.T
        lse = np.log(np.exp(Z).sum(axis=1))
        return float((lse - Z[np.arange(300), y]).mean() + lam / 2 * (W**2).sum())

    ours = objective(model.coef_.reshape(3, -1))
    assert objective(best.coef_) <= ours <= objective(best.coef_) + 1e-5


def test_one_gate_is_the_linear_model(digits):
    X, y, *_ = digits
    a = relu(n_gates=1, feature_norm=np.sqrt(2), epochs=2).fit(X, y)
    assert not a.gates_.any()
    assert a.coef_.shape == (10, 1, 64)


def test_regression():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (4000, 3))
    y = np.maximum(X[:, 0], 0) - 0.5 * X[:, 1]
    model = DPConvexReLURegressor(
        16, epsilon=3.0, delta=1e-6, feature_norm=1.7, target_bounds=(-1, 1.5), random_state=0
    ).fit(X, y)
    assert model.score(X, y) > 0.6
    assert model.predict(X * 100).max() <= 1.5


def test_two_outputs():
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (3000, 3))
    Y = np.column_stack([X[:, 0], -X[:, 1]])
    model = DPConvexReLURegressor(4, epsilon=3.0, delta=1e-6, feature_norm=1.7, target_bounds=(-1, 1), random_state=0)
    assert model.fit(X, Y).predict(X).shape == (3000, 2)
    assert model.score(X, Y) > 0.5


def test_features_certify_their_norm_and_are_made_batch_by_batch(digits):
    X, y, X_test, y_test = digits
    maps = make_pipeline(NormScaler(1.0), RandomFourier(400, gamma=2.0))
    inside = softmax(feature_norm=None, features=maps).fit(X, y)
    assert inside.feature_norm_ == pytest.approx(np.sqrt(1.09), rel=1e-6)
    assert inside.score(X_test, y_test) > 0.8
    outside = make_pipeline(maps, softmax(feature_norm=1.0)).fit(X, y)
    np.testing.assert_allclose(outside[-1].coef_, inside.coef_, atol=1e-4)


def test_unsound_or_missing_things_are_refused(digits):
    X, y, *_ = digits
    with pytest.raises(InvalidInput, match="feature_norm is missing"):
        softmax(feature_norm=None).fit(X, y)
    with pytest.raises(InvalidInput, match="delta is missing"):
        softmax(delta=None).fit(X, y)
    with pytest.raises(InvalidInput, match="loss"):
        softmax(loss="radially clipped").fit(X, y)
    with pytest.raises(InvalidInput, match="such a step expands"):
        softmax(step_size=1000.0).fit(X, y)
    with pytest.raises(NotCovered, match="add-remove"):
        softmax(adjacency="add-remove").fit(X, y)
    with pytest.raises(InvalidInput, match="label that is not in classes"):
        softmax(classes=range(9)).fit(X, y)
    with pytest.raises(InvalidInput, match="n_gates"):
        relu(n_gates=0).fit(X, y)
    with pytest.raises(InvalidInput, match="target_bounds"):
        DPConvexReLURegressor(2, delta=1e-5, feature_norm=1.0).fit(X, y)


def test_the_plan_shows_its_constants(digits):
    X, y, *_ = digits
    model = softmax(clip=0.3, l2=0.01).fit(X, y)
    plan = model.plan_
    R = model.feature_norm_
    assert plan.smoothness == pytest.approx(2 * 0.3 * 0.7 * R**2)
    assert plan.bound == pytest.approx(np.sqrt(2) * 0.3 * R)
    assert plan.contraction < 1
    for word in ("η·λ", "β", "σ", "c ="):
        assert word in plan.describe()


def test_every_iterate_may_be_asked_for(digits):
    X, y, *_ = digits
    model = softmax(view="all_iterates", epochs=5).fit(X, y)
    assert model.certificate_.view == "every iterate"


def test_a_fit_is_charged_before_records_are_read(digits, tmp_path, monkeypatch):
    monkeypatch.setenv("TACIT_STATE_DIR", str(tmp_path))
    X, y, *_ = digits
    ledger = Ledger(tmp_path / "b.ledger", 5.0, 1e-4, adjacency="replace-one")
    softmax(ledger=ledger, epochs=2).fit(X, y)
    with pytest.raises(BudgetExhausted):
        softmax(ledger=ledger, epochs=2).fit(X, y)
    assert len(ledger.entries()) == 1


def test_seeds_repeat_and_clones_fit(digits):
    X, y, *_ = digits
    a, b = softmax(epochs=2).fit(X, y), clone(softmax(epochs=2)).fit(X, y)
    assert np.array_equal(a.coef_, b.coef_)
    assert not np.array_equal(a.coef_, softmax(epochs=2, random_state=None).fit(X, y).coef_)


def test_hostile_records_are_bounded(digits):
    X, y, *_ = digits
    X = X.copy()
    X[0] = 1e30
    assert np.isfinite(softmax(epochs=2).fit(X, y).coef_).all()


# -- public bounds of single features ----------------------------------------------------------------------------


@pytest.fixture(scope="module")
def table():
    """Four classes by a multinomial model of features in very different units."""
    rng = np.random.default_rng(0)
    unit = rng.normal(size=(6000, 5))
    scores = unit @ rng.normal(size=(4, 5)).T + rng.normal(size=4)
    y = (scores + rng.gumbel(size=scores.shape)).argmax(axis=1)
    centre, scale = np.array([0.0, 50.0, 1.0, -3.0, 0.0]), np.array([1.0, 10.0, 0.01, 1.0, 100.0])
    return centre + scale * unit, y, (centre - 3 * scale, centre + 3 * scale)


def bounded(bounds, kind=DPSoftmaxRegression, **change):
    settings = {"epsilon": 2.0, "delta": 1e-6, "feature_bounds": bounds, "classes": range(4), "random_state": 0}
    return kind(**{**settings, **change})


def test_bounds_make_it_multinomial_logistic_regression(table):
    X, y, bounds = table
    model = bounded(bounds).fit(X[:5000], y[:5000])
    units = (X - bounds[0]) / (bounds[1] - bounds[0])
    best = LogisticRegression(max_iter=1000).fit(units[:5000], y[:5000]).score(units[5000:], y[5000:])
    assert model.score(X[5000:], y[5000:]) > best - 0.04
    assert model.certificate_.view == "the final model"
    assert model.certificate_.plan == model.planned_certificate(5000, 5).plan
    assert model.feature_norm_ == pytest.approx(np.sqrt(5 * 1.09))  # √p, with the constant


@pytest.mark.parametrize("intercept", [True, False])
def test_without_noise_it_finds_the_multinomial_optimum(table, intercept):
    """In the units of X: a ridge on coefficients of mapped features, whose constant is 0.3·√p, against scikit-learn."""
    X, y, (low, high) = table
    X, y, lam = np.clip(X[:300], low, high), y[:300], 0.02
    model = bounded(
        (low, high), epsilon=1e9, delta=1e-3, clip=1.0, l2=lam, batch_size=300, epochs=4000, fit_intercept=intercept
    ).fit(X, y)
    centre, scale = ((low + high) / 2, (high - low) / 2) if intercept else (0.0, np.maximum(np.abs(low), np.abs(high)))
    U = (X - centre) / scale
    U = np.column_stack([U, np.full(300, 0.3 * np.sqrt(5))]) if intercept else U
    best = LogisticRegression(C=1 / (300 * lam), fit_intercept=False, tol=1e-10, max_iter=10_000).fit(U, y)
    np.testing.assert_allclose(model.decision_function(X), U @ best.coef_.T, atol=0.01)
    np.testing.assert_allclose(model.coef_ * scale, best.coef_[:, :5], atol=0.01)


@pytest.mark.parametrize("kind", [DPSoftmaxRegression, DPConvexReLUClassifier])
def test_rows_are_clipped_to_their_bounds_in_fits_and_predictions(kind, table):
    X, y, (low, high) = table
    inside = np.clip(X, low, high)
    outside = np.where(inside == low, low - 1e6, np.where(inside == high, high + 1e9, inside))
    assert (outside != inside).any()
    a, b = (bounded((low, high), kind, epochs=2).fit(rows, y) for rows in (inside, outside))
    assert np.array_equal(a.coef_, b.coef_)
    assert np.array_equal(a.predict_proba(inside), a.predict_proba(outside))
    np.testing.assert_array_equal(a.feature_bounds_, np.stack([low, high]))
    others = inside * np.array([1, -2, 1, 1, 1])
    assert not np.allclose(a.predict_proba(inside), a.predict_proba(others))


def test_bounds_that_fix_a_feature_leave_it_out(table):
    X, y, (low, high) = table
    low, high = low.copy(), high.copy()
    low[2] = high[2] = 1.0
    model = bounded((low, high), epochs=2).fit(X, y)
    assert not model.coef_[:, 2].any()
    assert np.isfinite(model.intercept_).all()
    fixed = bounded((low, low), epochs=2).fit(X, y)
    assert not fixed.coef_.any()
    assert np.ptp(fixed.predict_proba(X), axis=0).max() == 0  # a constant model


def test_networks_take_bounds_as_well(table):
    X, y, bounds = table
    gates = bounded(bounds, DPConvexReLUClassifier, n_gates=4, epsilon=8.0).fit(X, y)
    assert gates.score(X, y) > 0.6
    assert gates.feature_norm_ == pytest.approx(np.sqrt(5))
    numbers = DPConvexReLURegressor(
        4, epsilon=8.0, delta=1e-6, feature_bounds=bounds, target_bounds=(low := -3.0, 3.0), random_state=0
    ).fit(X, (X[:, 1] - 50) / 10)
    assert numbers.score(X, (X[:, 1] - 50) / 10) > 0.7
    assert numbers.predict(X).min() >= low


def test_exactly_one_thing_bounds_the_norm(table):
    X, y, bounds = table
    for name, value in {"feature_norm": 1.0, "features": NormScaler()}.items():
        with pytest.raises(InvalidInput, match=f"either feature_bounds or {name}"):
            bounded(bounds, **{name: value}).fit(X, y)
    with pytest.raises(InvalidInput, match=r"feature_norm is missing.*feature_bounds=\(low, high\)"):
        bounded(None).fit(X, y)
    with pytest.raises(InvalidInput, match="low ≤ high"):
        bounded((1, 0)).fit(X, y)
    with pytest.raises(NotCovered, match="PCA"):
        bounded(None, features=make_pipeline(NormScaler(), PCA(2))).fit(X, y)
