"""Every solver attacked through the code that users call, and bugs planted there."""

from __future__ import annotations

import numpy as np
import pytest
from solving import certified, solver_of

from tacit.audit import audit_gdp
from tacit.mechanism import Adjacency
from tacit.problem import ElasticNet, Facts, Logistic, Problem, Squared
from tacit.records import InMemory
from tacit.release import Streams, open_session
from tacit.release import channel as channel_module
from tacit.release.queries import GramSum, LossGradient
from tacit.solvers import (
    Budget,
    CoordinateDescent,
    GreedyDescent,
    MetricDescent,
    NoisyCyclicDescent,
    NoisyGradientDescent,
    NoisyStatistics,
    ProximalSGD,
)
from tacit.solvers.base import SOLVERS

N = 2000
HERE, THERE = 1_000_000, 2_000_000
BUDGET = Budget(8.0, 1e-3)


def task(n: int, p: int, loss=None) -> Problem:
    return Problem(loss or Squared(), ElasticNet.of(p), Facts(n, np.full(p, -1.0), np.ones(p)), intercept=False)


def neighbours(p: int, loss=None, n: int = 3):
    """Two record sets that differ in the last record, which pulls every coefficient the other way."""
    X = np.zeros((n, p))
    X[-1] = 1.0
    y = np.ones(n) if loss is not None and loss.labels else np.zeros(n)
    y[-1] = 1.0
    other = y.copy()
    other[-1] = -1.0
    return InMemory(X, y), InMemory(X, other)


def audit(solver, problem: Problem, pair, budget: Budget = BUDGET, statistic=lambda v: v.sum(), n: int = N):
    """The audit of a solver's coefficients, and the certificate it must not exceed."""
    certificate = certified(solver, problem, budget)
    assert certificate.epsilon(budget.delta) <= budget.epsilon * (1 + 1e-9)

    def sampler(records: InMemory, seed: int):
        def one(i: int) -> float:
            with open_session(certificate, records, random_state=seed + i) as session:
                return float(statistic(solver.solve(problem, budget, session).v))

        return lambda k: np.array([one(i) for i in range(k)])

    here, there = pair
    return audit_gdp(sampler(here, HERE), sampler(there, THERE), n), certificate


# Small steps and clips: every release carries the record's full, constant contribution, and the end is their sum.
CASES = {
    "coordinate": (CoordinateDescent(passes=4, step=1e-3, clip=0.5, smoothness="public"), 1, None),
    "coordinate, blocks": (CoordinateDescent("nice", 2, passes=2, step=1e-3, clip=0.5, smoothness="public"), 3, None),
    "coordinate, full": (CoordinateDescent("full", passes=3, step=1e-3, clip=0.5, smoothness="public"), 2, None),
    "coordinate, private smoothness": (CoordinateDescent(passes=4, step=1e-3, clip=0.5), 1, None),
    "coordinate, logistic": (CoordinateDescent(passes=4, step=1e-3, clip=0.2, smoothness="public"), 1, Logistic()),
    "gradient": (NoisyGradientDescent(steps=4, step=1e-3, clip=0.5), 2, None),
    "statistics": (NoisyStatistics(), 1, None),
    "greedy": (GreedyDescent(pairs=3, clip=0.5, smoothness="public"), 2, None),
    "greedy, own rules": (GreedyDescent(pairs=3), 2, None),
    "metric": (MetricDescent(), 1, None),
    "metric, logistic": (MetricDescent(), 1, Logistic()),
}


AUDITED = {"coordinate", "greedy", "gradient", "statistics", "metric", "sgd", "cyclic"}
NEW = sorted(name for name, cls in SOLVERS.items() if cls.__module__.startswith("tacit.") and name not in AUDITED)


@pytest.mark.parametrize("name", NEW)
def test_a_new_solver_stays_below_its_certificate(name):
    """Whoever defines a solver gets this attack; one whose every release counts belongs among the cases below."""
    solver = solver_of(name)
    budget = Budget(8.0, 1e-3, view="final_model") if solver.final_model_only else BUDGET
    loss = Logistic() if "labels" in solver.needs else None
    found, certificate = audit(solver, task(3, 1, loss), neighbours(1, loss), budget)
    assert not found.verdict(certificate).violated


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_right_stays_below_its_certificate(name):
    solver, p, loss = CASES[name]
    found, certificate = audit(solver, task(3, p, loss), neighbours(p, loss))
    assert not found.verdict(certificate).violated
    if name in {"coordinate", "coordinate, blocks", "coordinate, full", "gradient"}:  # where every release counts
        assert found.mu_lower >= 0.75 * certificate.mu


def test_zero_out_costs_half():
    solver = NoisyGradientDescent(steps=4, step=1e-3, clip=0.5)
    budget = Budget(8.0, 1e-3, Adjacency.ZERO_OUT)
    here, _ = neighbours(2)
    nobody = InMemory(np.zeros((3, 2)), np.zeros(3))
    found, certificate = audit(solver, task(3, 2), (here, nobody), budget)
    assert not found.verdict(certificate).violated
    assert found.mu_lower >= 0.75 * certificate.mu


def test_poisson_batches_stay_below():
    solver = ProximalSGD(batch_size=1, passes=1, step=1e-3, clip=0.5)
    found, certificate = audit(solver, task(3, 1), neighbours(1))
    assert not found.verdict(certificate).violated


def test_the_final_model_of_a_cyclic_run_stays_below():
    solver = NoisyCyclicDescent(epochs=3, batches=2, step=1.0, clip=0.5)
    found, certificate = audit(solver, task(3, 1), neighbours(1), Budget(8.0, 1e-3, view="final_model"))
    assert not found.verdict(certificate).violated
    assert found.mu_lower >= 0.5 * certificate.mu


# -- planted bugs ---------------------------------------------------------------------------------------------------

LOUD = ("coordinate", "coordinate, blocks", "gradient")


def _plant_sensitivity(monkeypatch, wrong) -> None:
    """The one function that says how far a sum moves, wherever it was imported."""
    right = channel_module.sensitivity
    monkeypatch.setattr(channel_module, "sensitivity", lambda *a: wrong(right, *a))


@pytest.mark.parametrize("name", LOUD)
def test_noise_too_small_is_caught(name, monkeypatch):
    _plant_sensitivity(monkeypatch, lambda right, *a: 0.6 * right(*a))
    solver, p, loss = CASES[name]
    found, certificate = audit(solver, task(3, p, loss), neighbours(p, loss))
    assert found.verdict(certificate).violated


@pytest.mark.parametrize("name", LOUD[:1])
def test_a_sensitivity_without_the_factor_two_is_caught(name, monkeypatch):
    _plant_sensitivity(monkeypatch, lambda right, mechanism, query: query.bound)
    solver, p, loss = CASES[name]
    found, certificate = audit(solver, task(3, p, loss), neighbours(p, loss))
    assert found.verdict(certificate).violated


def test_gradients_that_are_not_clipped_are_caught(monkeypatch):
    def unclipped(self, rows, state):
        return self.loss.derivative(rows.design.dot(state.T), rows.y[:, None])

    monkeypatch.setattr(LossGradient, "_slopes", unclipped)
    found, certificate = audit(NoisyGradientDescent(steps=4, step=1e-3, clip=0.3), task(3, 2), neighbours(2))
    assert found.verdict(certificate).violated


def test_records_that_are_not_clipped_are_caught(monkeypatch):
    def long(self, rows, grid=None):
        return np.column_stack([rows.design.dense(), rows.y])

    solver = NoisyStatistics(clip=0.5, ridge=50.0)  # a large ridge: the solution follows the cross moment linearly
    assert not (lambda a: a[0].verdict(a[1]).violated)(audit(solver, task(3, 1), neighbours(1)))
    monkeypatch.setattr(GramSum, "_rows", long)
    found, certificate = audit(solver, task(3, 1), neighbours(1))
    assert found.verdict(certificate).violated


def test_coordinates_that_keep_their_noise_to_the_first_release_are_caught(monkeypatch):
    """Noise drawn once per sweep and reused."""
    right = np.random.Generator.standard_normal

    class Stuck:
        def __init__(self, rng):
            self._rng = rng

        def standard_normal(self, size):
            return np.full(size, right(self._rng)) * np.resize([1.0, -1.0], size)

    at = Streams.at

    def stuck(self, purpose, *a):
        return Stuck(at(self, purpose, *a)) if purpose == "sweep" else at(self, purpose, *a)

    monkeypatch.setattr(Streams, "at", stuck)
    solver, p, loss = CASES["coordinate"]
    found, certificate = audit(solver, task(3, p, loss), neighbours(p, loss))
    assert found.verdict(certificate).violated
