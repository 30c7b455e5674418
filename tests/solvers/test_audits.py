"""Every solver attacked through the code that users call, and bugs planted there."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.accounting import certify
from tacit.audit import audit_gdp
from tacit.mechanism import Adjacency
from tacit.problem import Design, Logistic, Penalty, Records, Squared, Task
from tacit.run import Streams
from tacit.run import channel as channel_module
from tacit.run.sums import gradient as gradient_module
from tacit.run.sums import gram as gram_module
from tacit.solvers import (
    Budget,
    CoordinateDescent,
    MetricDescent,
    NoisyCyclicDescent,
    NoisyGradientDescent,
    NoisyStatistics,
    ObjectiveTilt,
    ProximalSGD,
    Session,
)

RUNS, CONFIDENCE = 1200, 0.8
"""As sharp as 2000 runs at 95 %: of Gaussian pairs 5, 10, 15 % beyond a claim of μ = 2.08 it catches 41, 89 and 99 %,
2000 runs 22, 88 and 100 %; of pairs that just attain the claim it blames 2 %, they none. Seeds are fixed."""
MANY = 20_000
HERE, THERE = 1_000_000, 2_000_000
BUDGET = Budget(8.0, 1e-3)


def task(n: int, p: int, loss=None, **more) -> Task:
    loss = loss or Squared()
    return Task(loss, Penalty.of(p), n, np.full(p, -1.0), np.ones(p), False, 0.0 if loss.margin else 1.0, **more)


def neighbours(p: int, loss=None, n: int = 3):
    """Two record sets that differ in the last record, which pulls every coefficient the other way."""
    X = np.zeros((n, p))
    X[-1] = 1.0
    if loss is not None and loss.margin:
        y, y2 = np.ones(n), np.ones(n)
        y2[-1] = -1.0
        return (Records(Design(X), np.zeros(n), label) for label in (y, y2))
    t, t2 = np.zeros(n), np.zeros(n)
    t[-1], t2[-1] = 1.0, -1.0
    return (Records(Design(X), target) for target in (t, t2))


def audit(solver, problem: Task, pair, budget: Budget = BUDGET, n: int = RUNS, confidence: float = CONFIDENCE):
    """The audit of the sum of a solver's coefficients, and the certificate it must not exceed."""
    prepared = solver.prepare(problem, budget)
    certificate = certify(prepared.plan, delta=budget.delta)
    assert certificate.epsilon(budget.delta) <= budget.epsilon * (1 + 1e-9)

    def sampler(records: Records, seed: int):
        def one(i: int) -> float:
            session = Session(certificate, problem.records, Streams(seed + i))
            return float(prepared.solve(records, session).v.sum())

        return lambda k: np.array([one(i) for i in range(k)])

    here, there = pair
    return audit_gdp(sampler(here, HERE), sampler(there, THERE), n, confidence=confidence), certificate


# Small steps and clips: every release carries the record's full, constant contribution, and the end is their sum.
CASES = {
    "coordinate": (CoordinateDescent(passes=4, step=1e-3, clip=0.5, smoothness="public"), 1, None),
    "coordinate, blocks": (CoordinateDescent("nice", 2, passes=2, step=1e-3, clip=0.5, smoothness="public"), 3, None),
    "coordinate, full": (CoordinateDescent("full", passes=3, step=1e-3, clip=0.5, smoothness="public"), 2, None),
    "coordinate, private smoothness": (CoordinateDescent(passes=4, step=1e-3, clip=0.5), 1, None),
    "coordinate, logistic": (CoordinateDescent(passes=4, step=1e-3, clip=0.2, smoothness="public"), 1, Logistic()),
    "gradient": (NoisyGradientDescent(steps=4, step=1e-3, clip=0.5), 2, None),
    "statistics": (NoisyStatistics(), 1, None),
    "metric": (MetricDescent(), 1, None),
    "metric, logistic": (MetricDescent(), 1, Logistic()),
}


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_is_right_stays_below_its_certificate(name):
    solver, p, loss = CASES[name]
    found, certificate = audit(solver, task(3, p, loss), neighbours(p, loss))
    assert not found.verdict(certificate).violated
    assert found.mu_lower >= (0.6 if "metric" in name else 0.75) * certificate.mu  # of the metric not all is visible


@pytest.mark.attack
@pytest.mark.parametrize("name", sorted(CASES))
def test_many_runs_stay_below_and_come_near(name, record_property):
    solver, p, loss = CASES[name]
    found, certificate = audit(solver, task(3, p, loss), neighbours(p, loss), n=MANY, confidence=0.95)
    record_property("runs", MANY)
    record_property("mu_lower", found.mu_lower)
    record_property("mu", certificate.mu)
    assert not found.verdict(certificate).violated
    assert found.mu_lower >= (0.7 if "metric" in name else 0.85) * certificate.mu


def test_zero_out_costs_half():
    solver = NoisyGradientDescent(steps=4, step=1e-3, clip=0.5)
    budget = Budget(8.0, 1e-3, Adjacency.ZERO_OUT)
    here, _ = neighbours(2)
    nobody = Records(Design(np.zeros((3, 2))), np.zeros(3))
    found, certificate = audit(solver, task(3, 2), (here, nobody), budget)
    assert not found.verdict(certificate).violated
    assert found.mu_lower >= 0.75 * certificate.mu


def test_poisson_batches_stay_below():
    solver = ProximalSGD(batch_size=1, passes=1, step=1e-3, clip=0.5)
    found, certificate = audit(solver, task(3, 1), neighbours(1), Budget(4.0, 1e-3))
    verdict = found.verdict(certificate)
    assert not verdict.violated
    assert verdict.observed_delta >= 0.85 * verdict.certified_delta  # the attack sees nearly all of it


def test_the_final_model_of_a_cyclic_run_stays_below():
    solver = NoisyCyclicDescent(epochs=3, batches=2, step=1.0, clip=0.5)
    found, certificate = audit(solver, task(3, 1), neighbours(1), Budget(8.0, 1e-3, view="final_model"))
    assert not found.verdict(certificate).violated
    assert found.mu_lower >= 0.5 * certificate.mu


def perturbation_audit():
    """Opposite labels of one record on one feature, through the code that users call."""
    budget = Budget(8.0, 1e-3, view="final_model")
    return audit(ObjectiveTilt(), task(3, 1, Logistic()), neighbours(1, Logistic()), budget)


def test_the_tilted_optimum_stays_below():
    found, certificate = perturbation_audit()
    assert not found.verdict(certificate).violated
    assert found.mu_lower > 0.3  # and the attack sees something


# -- planted bugs ---------------------------------------------------------------------------------------------------

LOUD = ("coordinate", "coordinate, blocks", "gradient", "metric", "metric, logistic")


@pytest.mark.parametrize("name", LOUD)
def test_noise_too_small_is_caught(name, monkeypatch):
    right = channel_module.sensitivity
    monkeypatch.setattr(channel_module, "sensitivity", lambda *a: 0.6 * right(*a))
    solver, p, loss = CASES[name]
    found, certificate = audit(solver, task(3, p, loss), neighbours(p, loss), n=400)
    assert found.verdict(certificate).violated


@pytest.mark.parametrize("name", LOUD[:1])
def test_a_sensitivity_without_the_factor_two_is_caught(name, monkeypatch):
    monkeypatch.setattr(channel_module, "sensitivity", lambda mechanism, total: total.bound)
    solver, p, loss = CASES[name]
    found, certificate = audit(solver, task(3, p, loss), neighbours(p, loss))
    assert found.verdict(certificate).violated


def test_gradients_that_are_not_clipped_are_caught(monkeypatch):
    def unclipped(self, state):
        return self._loss.derivative(self._design.dot(state.T) - self._offset[:, None])

    monkeypatch.setattr(gradient_module.LinearGradient, "_slopes", unclipped)
    found, certificate = audit(NoisyGradientDescent(steps=4, step=1e-3, clip=0.3), task(3, 2), neighbours(2))
    assert found.verdict(certificate).violated


def test_records_that_are_not_clipped_are_caught(monkeypatch):
    def long(self, vectors, norm):
        right(self, vectors, 1e9)
        self.bound = norm * norm

    right = gram_module.GramSum.__init__
    solver = NoisyStatistics(clip=0.5, ridge=50.0)  # a large ridge: the solution follows the cross moment linearly
    assert not (lambda a: a[0].verdict(a[1]).violated)(audit(solver, task(3, 1), neighbours(1)))
    monkeypatch.setattr(gram_module.GramSum, "__init__", long)
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


def test_a_tilt_too_small_is_caught(monkeypatch):
    """The tilt of objective perturbation drawn with a fifth of its certified deviation."""
    at = Streams.at

    class Weak:
        def __init__(self, rng):
            self._rng = rng

        def standard_normal(self, size):
            return 0.2 * self._rng.standard_normal(size)

    def weak(self, purpose, *a):
        return Weak(at(self, purpose, *a)) if purpose == "tilt" else at(self, purpose, *a)

    monkeypatch.setattr(Streams, "at", weak)
    found, certificate = perturbation_audit()
    assert found.verdict(certificate).violated
