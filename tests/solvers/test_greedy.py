"""Greedy descent: where it ends, what it spends, how its units are learnt, and when it is chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse
from sklearn.linear_model import Lasso
from solving import PRIVATE, SILENT, certified, curvature, many, objective, problem, solve

from tacit.accounting import certify, gdp_mu
from tacit.errors import InvalidInput
from tacit.mechanism import Adjacency, Mechanism, NoisyMax, Plan
from tacit.problem import ElasticNet, Facts, Logistic, Penalty, Poisson, Problem, Squared
from tacit.release import Session, open_session
from tacit.solvers import Budget, CoordinateDescent, GreedyDescent, MetricDescent, choose

SPARSE = pytest.mark.parametrize("form", [np.asarray, sparse.csc_array])


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(400, 30)) * (rng.random((400, 30)) < 0.7)
    score = 2 * X[:, 3] - X[:, 7] + 0.5 * X[:, 20]
    return X, score + 0.1 * rng.normal(size=400), np.where(score + rng.logistic(size=400) > 0, 1.0, -1.0)


@SPARSE
@pytest.mark.parametrize("smoothness", ["private", "public", "given"])
def test_without_noise_it_finds_the_optimum(smoothness, form, data):
    X, y, labels = data
    for target, loss in ((y, Squared()), (labels, Logistic())):
        task, records = problem(X, target, loss, form=form, l1=0.05)
        given = curvature(task, records) if smoothness == "given" else smoothness
        pairs = 1500 if smoothness == "public" else 250  # bounds are twice what is there, and so steps are short
        v = solve(GreedyDescent(pairs=pairs, clip=200.0, smoothness=given), task, records)
        best = objective(task, records, solve(CoordinateDescent(passes=300, clip=200.0), task, records))
        assert objective(task, records, v) <= best * (1 + 1e-3)
        if loss == Squared():
            w = Lasso(0.05, fit_intercept=False, tol=1e-12, max_iter=10**5).fit(X, y).coef_
            np.testing.assert_allclose(v, w, atol=0.03)


@SPARSE
def test_exact_arithmetic_ends_where_floats_end(form, data):
    X, y, labels = data
    for task, records in (problem(X, y, form=form, l1=0.05), problem(X, labels, Logistic(), form=form, l1=0.02)):
        solver, ends = GreedyDescent(pairs=80, clip=50.0), []
        for arithmetic in ("exact", "float"):
            parts = [replace(part, arithmetic=arithmetic) for part in solver.plan(task, SILENT)]
            with open_session(certify(Plan.of(*parts), delta=SILENT.delta), records, random_state=0) as session:
                ends.append(objective(task, records, solver.solve(task, SILENT, session).v))
        assert ends[0] == pytest.approx(ends[1], rel=1e-3)


def test_exact_runs_depend_on_no_order_of_the_records(data):
    X, y, _ = data
    ends = []
    for order in (np.arange(400), np.random.default_rng(1).permutation(400)):
        task, records = problem(X[order], y[order], l1=0.05)
        solver = GreedyDescent(pairs=5)
        budget = Budget(8.0, 1e-6, arithmetic="exact")
        with open_session(certified(solver, task, budget), records, random_state=0) as session:
            ends.append(solver.solve(task, budget, session).v)
    np.testing.assert_array_equal(*ends)


def test_it_finds_the_few_columns_that_count_among_many():
    """N = 1500, p = 3000, ε = 4: no other solver comes below w = 0."""
    rng = np.random.default_rng(2)
    X = rng.uniform(-1, 1, (1500, 3000))
    y = 2 * X[:, :3].sum(axis=1) + 0.2 * rng.normal(size=1500)
    task, records = problem(X, y, l1=0.05)
    budget = Budget(4.0, 1e-6)

    def value(v):
        return task.loss.value(X @ v, y).mean() + task.penalty.value(v)

    ends = many(GreedyDescent(), task, records, budget, range(3))
    for v in ends:
        assert {0, 1, 2} <= set(np.argsort(-np.abs(v))[:4])
        assert value(v) < 0.35 * value(np.zeros(3000))
    other = many(CoordinateDescent(passes=1), task, records, budget, range(1))[0]
    assert value(other) > value(np.zeros(3000))


# -- what it spends ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothness", ["private", "public"])
@pytest.mark.parametrize("loss", [Squared(), Logistic(), Poisson()])
def test_the_plan_spends_exactly_the_budget_and_all_of_it_is_used(loss, smoothness, data, monkeypatch):
    X, y, labels = data
    task, records = problem(X, labels if loss.labels else np.abs(y) / 10, loss, l1=0.05)
    if loss.positive:
        task = replace(task, facts=Facts(400, task.facts.low, task.facts.high, 1.0))
    for relation in (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT):
        budget, solver = Budget(2.0, 1e-6, relation), GreedyDescent(smoothness=smoothness)
        certificate = certified(solver, task, budget)
        assert certificate.mu == pytest.approx(gdp_mu(2.0, 1e-6), rel=1e-9)
        assert certificate.epsilon(1e-6) <= 2.0
        with open_session(certificate, records, random_state=0) as session:
            solver.solve(task, budget, session)
            assert [session.steps_left(i) for i in range(len(certificate.plan))] == [0] * len(certificate.plan)


def test_half_of_the_rest_is_for_choices(data):
    task, _ = problem(*data[:2], l1=0.05)
    *stages, descent, choices = GreedyDescent(pairs=6).plan(task, PRIVATE)
    assert isinstance(choices, NoisyMax)
    assert (choices.steps, descent.steps) == (6, 12)
    mu = [certify(part, theorem="noisy-max-gdp" if part is choices else None).mu for part in (descent, choices)]
    assert mu[0] == pytest.approx(mu[1], rel=1e-9)
    assert [part.label for part in stages] == ["typical entry", "typical slope", "moments"]
    assert all(isinstance(part, Mechanism) for part in stages)
    without = GreedyDescent(pairs=6, polish=False, clip=1.0, smoothness="public").plan(task, PRIVATE)
    assert [part.steps for part in without] == [6, 6]


def test_the_optimal_composition_spends_its_margin(data):
    task, _ = problem(*data[:2], l1=0.05)
    plain, optimal = (certified(GreedyDescent(composition=c), task, PRIVATE) for c in ("gaussian", "optimal"))
    assert plain.epsilon(PRIVATE.delta) < 0.95 * PRIVATE.epsilon
    assert 0.99 * PRIVATE.epsilon < optimal.epsilon(PRIVATE.delta) <= PRIVATE.epsilon
    assert optimal.mu > 1.05 * plain.mu
    heads = replace(PRIVATE, copies=3)
    plan = GreedyDescent(composition="optimal").plan(task, heads)
    assert 0.97 * PRIVATE.epsilon < certify(Plan.of(*[plan] * 3)).epsilon(PRIVATE.delta) <= PRIVATE.epsilon
    with pytest.raises(InvalidInput, match="composition"):
        certified(GreedyDescent(composition="best"), task, PRIVATE)


def test_pairs_follow_records_and_budget(data):
    def pairs(n, p, mu):
        budget = Budget(1.0, 1e-6)
        facts = Facts(round(n * mu / budget.mu), -np.ones(p), np.ones(p))
        return GreedyDescent()._pairs(Problem(Squared(), ElasticNet.of(p), facts, intercept=False), budget)

    assert pairs(1000, 1000, 1.85) == 11  # nμ/(25·log p)
    assert pairs(100, 50, 0.2) == 3
    assert pairs(10**6, 50, 1.0) == 50
    assert GreedyDescent.of(7, None).pairs == 7


# -- units ------------------------------------------------------------------------------------------------------------


def seen(monkeypatch, solver, task, records, budget=SILENT):
    """The clips and smoothness of the first choice, and the smoothness of the last."""
    found = []
    right = Session.select

    def spy(self, choice, state, part=0):
        found.append(choice)
        return right(self, choice, state, part)

    monkeypatch.setattr(Session, "select", spy)
    solve(solver, task, records, budget)
    return found[0].clips, found[0].smoothness, found[-1].smoothness


@SPARSE
def test_units_come_close_to_the_truth_with_much_budget(form, monkeypatch):
    """Entries of size .1 in a fifth of the places: typical entries are .1, and moments those of each column."""
    rng = np.random.default_rng(3)
    X = 0.1 * (rng.random((500, 20)) < 0.2) * rng.choice([-1.0, 1.0], (500, 20))
    y = np.where(X[:, 0] + 0.01 * rng.normal(size=500) > 0, 1.0, -1.0)
    task, records = problem(X, y, Logistic(), form=form, reach=1.0)
    clips, first, last = seen(monkeypatch, GreedyDescent(pairs=30), task, records)
    np.testing.assert_allclose(np.sqrt(4 * first), 0.1, rtol=0.1)
    np.testing.assert_allclose(clips, 2 * 0.5 * 0.1, rtol=0.1)  # twice the slope at 0, and a typical entry
    learnt = last != first
    assert learnt.any()
    np.testing.assert_allclose(last[learnt], curvature(task, records)[learnt], rtol=0.02)


def test_columns_far_longer_than_a_typical_entry_take_the_steps_of_their_bounds(monkeypatch):
    """Most columns are small: the squares of the large one are all cut off, which would make its steps too long."""
    rng = np.random.default_rng(5)
    X = 0.02 * rng.choice([-1.0, 1.0], (400, 400))
    X[:, 0] *= 50
    task, records = problem(X, np.where(X[:, 0] > 0, 1.0, -1.0), Logistic(), reach=1.0, l1=0.01)
    _, first, last = seen(monkeypatch, GreedyDescent(pairs=6), task, records)
    assert first[0] < 0.1 * 0.25
    assert last[0] == pytest.approx(0.25)
    ends = many(GreedyDescent(pairs=8), task, records, SILENT, range(1))[0]
    assert 1 < ends[0] < 10


def test_clips_never_exceed_what_loss_and_bounds_allow(monkeypatch, data):
    X, _, labels = data
    task, records = problem(X, labels, Logistic())
    clips, *_ = seen(monkeypatch, GreedyDescent(pairs=1, clip=1e9), task, records)
    np.testing.assert_allclose(clips, task.facts.reach)


def test_the_slope_of_a_regression_is_learnt(monkeypatch):
    rng = np.random.default_rng(4)
    X, y = rng.choice([-1.0, 1.0], (2000, 4)), rng.normal(size=2000) * 0.05
    task, records = problem(X, y)
    task = replace(task, facts=Facts(2000, -np.ones(4), np.ones(4), 1.0))  # targets far inside their bounds
    clips, *_ = seen(monkeypatch, GreedyDescent(pairs=1), task, records)
    np.testing.assert_allclose(clips, 2 * 0.05, rtol=0.15)


@pytest.mark.parametrize("given", [[1.0], [0.0] * 30, [np.nan] * 30, "guessed"])
def test_smoothness_that_makes_no_sense_is_refused(given, data):
    with pytest.raises(InvalidInput):
        certified(GreedyDescent(smoothness=given), problem(*data[:2])[0], PRIVATE)
    assert GreedyDescent(smoothness=[1.0]).declared(None)
    assert not GreedyDescent().declared(None)


def test_penalties_must_be_separable(data):
    class Together(Penalty):
        size = 30

        def value(self, w):
            return float(np.linalg.norm(w))

        def prox(self, v, step):
            return v

        def rescaled(self, scale, weight=1.0):
            return self

    task, _ = problem(*data[:2])
    with pytest.raises(InvalidInput, match="not separable"):
        certified(GreedyDescent(), replace(task, penalty=Together()), PRIVATE)


# -- when it is chosen ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("n", "p", "l1", "expected"),
    [
        (1000, 1000, 0.1, GreedyDescent),
        (1000, 1000, 0.0, MetricDescent),  # no ℓ1 part
        (10**6, 1000, 0.1, MetricDescent),  # x = 270
        (100, 50, 0.1, MetricDescent),  # too few columns for a choice to save anything
        (1000, 50_000, 0.1, GreedyDescent),
        (1000, 50_000, 0.0, CoordinateDescent),
    ],
)
def test_the_rule_reads_public_numbers(n, p, l1, expected):
    task = Problem(Squared(), ElasticNet.of(p, l1=l1), Facts(n, -np.ones(p), np.ones(p)), intercept=False)
    assert choose(task, PRIVATE) is expected
