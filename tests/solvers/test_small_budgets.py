"""Few records, crude bounds: what is done then, by public numbers, and that it is no worse than knowing nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tacit import DPLogisticRegression, DPPoissonRegressor, DPRidge
from tacit.accounting import certify, gdp_epsilon
from tacit.problem import ElasticNet, Facts, Logistic, Problem, Squared
from tacit.records import InMemory
from tacit.release import open_session
from tacit.solvers import Budget, ClassMeans, MetricDescent
from tacit.solvers.stages import Located, located, location_steps

DELTA = 1e-6


def budget(x: float, n: int, p: int) -> Budget:
    """The one at which nμ/p is x, for p coordinates."""
    return Budget(gdp_epsilon(x * p / n, DELTA), DELTA)


def classes(n: int, p: int, strength: float, seed: int = 0):
    """Independent features in [−1, 1], a tenth of them different between the classes; the first one is constant."""
    rng = np.random.default_rng(seed)
    y = rng.choice([-1.0, 1.0], n)
    X = rng.uniform(-0.7, 0.7, (n, p))
    X[:, : p // 10] += 0.3 * strength * y[:, None]
    return np.column_stack([np.ones(n), X]), y


def task(n: int, p: int, loss=None) -> Problem:
    ends = -np.ones(p + 1), np.ones(p + 1)
    ends[0][0] = 1.0
    return Problem(loss or Logistic(), ElasticNet.of(p).with_free_intercept(), Facts(n, *ends))


def solved(solver, problem, X, y, promise, seed=0):
    with open_session(
        certify(solver.plan(problem, promise), delta=DELTA), InMemory(X, y), random_state=seed
    ) as session:
        return solver.solve(problem, promise, session)


def labels(plan):
    return [part.label for part in plan.parts]


@pytest.mark.parametrize(
    ("x", "loss", "first", "last"),
    [
        (0.29, Logistic(), "noisy mean", "noisy mean"),
        (0.31, Logistic(), "class share", "class means"),
        (1.1, Logistic(), "class share", "class means"),
        (7.9, Logistic(), "class share", "class means"),
        (8.1, Logistic(), "target mean", "metric descent"),
        (29.0, Logistic(), "target mean", "metric descent"),
        (31.0, Logistic(), "location", "metric descent"),
        (2.9, Squared(), "noisy mean", "noisy mean"),
        (3.1, Squared(), "target mean", "metric descent"),
    ],
)
def test_the_rule_reads_public_numbers_only(x, loss, first, last):
    problem, promise = task(4000, 39, loss), budget(x, 4000, 40)
    found = labels(MetricDescent().plan(problem, promise))
    assert (found[0], found[-1]) == (first, last)


def test_settings_of_the_users_own_are_for_the_descent():
    problem, promise = task(4000, 39), budget(5.0, 4000, 40)
    assert labels(MetricDescent(clip=1.0).plan(problem, promise))[-1] == "metric descent"


def test_a_handful_of_records_gets_a_constant():
    problem = task(60, 3)
    assert labels(MetricDescent().plan(problem, budget(1.2, 60, 4))) == ["noisy mean"]  # nμ = 4.8
    assert labels(MetricDescent().plan(problem, budget(5.0, 60, 4))) == ["class share", "class means"]  # nμ = 20


def test_class_means_point_where_the_classes_differ():
    X, y = classes(4000, 30, 1.0)
    problem = task(4000, 30)
    scores = []
    for seed in range(5):
        v = solved(ClassMeans(), problem, X, y, budget(4.0, 4000, 31), seed).v
        assert v[1:4].min() > np.abs(v[4:]).mean()
        scores.append(np.logaddexp(0, -y * (X @ v)).mean())
    assert np.mean(scores) < np.log(2) - 0.1
    silent = solved(ClassMeans(), problem, X, y, Budget(1e6, DELTA)).v
    assert np.abs(silent[4:]).max() < 0.15 * silent[1:4].min()


def test_where_there_is_no_signal_nothing_is_learned():
    """What noise makes of nothing: mostly no slopes to speak of, and no loss far above the constant model's."""
    worse, zero = [], 0
    for seed in range(20):
        X, y = classes(3000, 30, 0.0, seed)
        v = solved(ClassMeans(), task(3000, 30), X, y, budget(3.0, 3000, 31), seed).v
        worse.append(np.logaddexp(0, -y * (X @ v)).mean() - np.log(2))
        zero += np.abs(v[1:]).max() < 0.03
    assert zero >= 12
    assert np.mean(worse) < 0.03


def test_the_least_budgets_rank_rows_and_hardly_move_probabilities():
    X, y = classes(400, 30, 1.0)
    ranks = []
    for seed in range(10):
        v = solved(MetricDescent(), task(400, 30), X, y, budget(0.5, 400, 31), seed).v
        assert np.abs(v[1:]).sum() <= 0.5 + 1e-12
        scores = X[:, 1:] @ v[1:]
        ranks.append((scores[y > 0][:, None] > scores[y < 0]).mean())
    assert np.mean(ranks) > 0.55


def test_the_length_is_that_of_correlated_columns():
    """Thirty copies of one column hold the signal once: coefficients must not add it up thirty times."""
    rng = np.random.default_rng(0)
    y = rng.choice([-1.0, 1.0], 4000)
    X = np.clip(np.repeat((0.25 * y + rng.normal(0, 0.35, 4000))[:, None], 30, axis=1), -1, 1)
    X = np.column_stack([np.ones(4000), X])
    v = solved(ClassMeans(), task(4000, 30), X, y, budget(6.0, 4000, 31)).v
    assert np.logaddexp(0, -y * (X @ v)).mean() < np.log(2) - 0.08


def test_models_of_classes_are_shrunk_toward_the_constant_one():
    losses = []
    for seed in range(8):
        X, y = classes(4000, 30, 0.0, seed)
        v = solved(MetricDescent(), task(4000, 30), X, y, budget(10.0, 4000, 31), seed).v
        losses.append(np.logaddexp(0, -y * (X @ v)).mean() - np.log(2))
    assert np.mean(losses) < 0.03  # 0.09 without


def test_counts_need_more_than_numbers():
    stated = {"delta": DELTA, "feature_bounds": (-1, 1), "target_bounds": (0, 20)}
    epsilon = gdp_epsilon(5.0 * 21 / 2000, DELTA)
    assert labels(DPPoissonRegressor(epsilon=epsilon, **stated).planned_certificate(2000, 20).plan) == ["noisy mean"]


# -- crude bounds -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def crude():
    """Columns within ±1 of 3 under bounds of ±100; one of rare ones; one with right bounds; a target within ±1."""
    rng = np.random.default_rng(0)
    n = 5000
    narrow = 3 + 0.4 * rng.normal(size=n)
    rare = (rng.random(n) < 0.05).astype(float)
    right = rng.uniform(-100, 100, n)
    X = np.column_stack([narrow, rare, right])
    y = (narrow - 3) + 0.5 * rare + 0.3 * right / 100 + 0.2 * rng.normal(size=n)
    return X, y


def test_intervals_hold_the_data(crude):
    X, y = crude
    facts = Facts(len(X), -100 * np.ones(3), 100 * np.ones(3), 100.0)
    problem = Problem(Squared(), ElasticNet.of(3), facts, intercept=False)
    plan = Budget(5.0, DELTA).shares({"location": (1.0, location_steps())})
    with open_session(certify(plan, delta=DELTA), InMemory(X, y / 100), random_state=0) as session:
        found = located(session, 0, problem)
    whole = Located.by_bounds(problem)
    assert found.high[0] - found.low[0] < 10
    assert found.low[0] < X[:, 0].min() + 0.5
    assert found.high[0] > X[:, 0].max() - 0.5
    assert (found.low[1:3] == whole.low[1:3]).all()  # rare ones, and right bounds
    assert (found.high[1:3] == whole.high[1:3]).all()
    assert found.high[3] - found.low[3] < 0.1  # the target


@pytest.mark.parametrize("factor", [10, 100])
def test_crude_bounds_cost_little(crude, factor):
    X, y = crude
    tight = np.array([[1.0, 0.0, -100.0], [5.0, 1.0, 100.0]])
    wide = tight * np.array([factor, 1, 1])
    wide[0, 0] = -wide[1, 0]
    stated = {"epsilon": 1.0, "delta": DELTA, "random_state": 0}
    right = DPRidge(feature_bounds=tuple(tight), target_bounds=(-3, 3), **stated).fit(X, y)
    model = DPRidge(feature_bounds=tuple(wide), target_bounds=(-3 * factor, 3 * factor), **stated).fit(X, y)
    assert model.score(X, y) > 0.95 * right.score(X, y)


def test_rows_are_clipped_to_what_was_found_in_fits_and_predictions(crude):
    X, y = crude
    bounds = (np.array([-500.0, 0, -100]), np.array([500.0, 1, 100]))
    model = DPRidge(epsilon=1.0, delta=DELTA, feature_bounds=bounds, target_bounds=(-3, 3), random_state=0).fit(X, y)
    low, high = model.clipped_to_[0]
    assert -20 < low[0] < 2.5
    assert 3.5 < high[0] < 20
    far = np.array([[400.0, 0, 0]]), np.array([[high[0], 0, 0]])
    assert model.predict(far[0]) == pytest.approx(model.predict(far[1]))
    same = DPRidge(epsilon=1.0, delta=DELTA, feature_bounds=([1, 0, -100], [5, 1, 100]), target_bounds=(-3, 3))
    assert (same.fit(X, y).clipped_to_[0] == same.feature_bounds_).all()


def test_heads_clip_by_themselves(crude):
    X, _ = crude
    y = np.digitize(X[:, 0], [2.7, 3.3])
    model = DPLogisticRegression(
        epsilon=5.0, delta=DELTA, feature_bounds=(-100, 100), classes=[0, 1, 2], random_state=0
    ).fit(X, y)
    assert model.clipped_to_.shape == (3, 2, 3)
    assert model.predict_proba(X[:5]).shape == (5, 3)
    assert (model.predict(X) == y)[X[:, 0] < 2.5].mean() > 0.9
