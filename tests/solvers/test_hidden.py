"""Plans for hidden chains: consistent constants, the theorem's number, and a run that is what was certified."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.accounting import certify, gdp_epsilon, last_iterate_mu
from tacit.audit import audit_gdp
from tacit.errors import InvalidInput, MechanismMismatch, NotCovered
from tacit.mechanism import Adjacency, Poisson
from tacit.problem import Softmax, SquaredOutputs
from tacit.records import InMemory, Rows
from tacit.release import QUERIES, contraction, open_session
from tacit.release import channel as channel_module
from tacit.release.queries import GatedOutputs, LinearOutputs
from tacit.solvers import Budget, hidden
from tacit.solvers.hidden import CertifiedNumbers, HiddenDescent, OutputProblem, decaying, plan_cyclic

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3))
X /= np.linalg.norm(X, axis=1, keepdims=True)
Y = RNG.integers(3, size=60)


def query(loss=None, R: float = 1.0) -> LinearOutputs:
    return LinearOutputs(loss or Softmax(3, 0.5), R)


def run(numbers: CertifiedNumbers, asked, rows=X, target=Y, seed: int = 3, size: int = 9) -> np.ndarray:
    with open_session(numbers.certificate, InMemory(rows, target), random_state=seed) as session:
        return numbers.run(session, asked, np.zeros(size))


def planned(asked, **change):
    settings = {"n": 60, "batch_size": 12, "epochs": 4, "bound": asked.bound, "smoothness": asked.smoothness}
    return plan_cyclic(change.pop("epsilon", 2.0), 1e-5, **{**settings, **change})


@pytest.mark.parametrize("l2", [0.0, 0.05])
@pytest.mark.parametrize("decay", [True, False])
def test_the_number_is_the_theorems_with_constants_put_in_by_hand(l2, decay):
    s = query()
    plan = planned(s, l2=l2, decay=decay)
    T, k, b = 20, 5, 12
    eta, sigma = plan.step_sizes, plan.sigma * plan.noise
    c = np.maximum(np.abs(1 - eta * l2), np.abs(1 - eta * (s.smoothness + l2)))
    worst = 0.0
    for j in range(k):
        moved = np.where(np.arange(T) % k == j, eta * 2 * s.bound / b, 0.0)
        worst = max(worst, last_iterate_mu(c, moved, eta * sigma / b))
    assert plan.certificate.epsilon(1e-5) == pytest.approx(gdp_epsilon(worst, 1e-5), rel=1e-9)
    assert plan.certificate.epsilon(1e-5) <= 2.0


def test_decaying_steps_with_matching_noise_need_half_the_noise():
    """Design, "balanced schedules": n = 60000, b = 500, 50 epochs."""
    sizes = {"n": 60_000, "batch_size": 500, "epochs": 50}
    balanced, flat = (plan_cyclic(1.33, 1e-5, **sizes, decay=d).sigma for d in (True, False))
    assert 0.4 < balanced / flat < 0.55
    poisson = plan_cyclic(1.33, 1e-5, **sizes, view="all_iterates")
    assert balanced < poisson.sigma


def test_a_secret_partition_costs_less_than_the_worst_position():
    s = query()
    assert planned(s, partition="secret").sigma < planned(s).sigma


def test_the_longest_step_is_the_default_and_a_longer_one_is_refused():
    s = query()
    assert planned(s).step_size == pytest.approx(2 / s.smoothness)
    assert planned(s).contraction == pytest.approx(1.0)
    assert planned(s, l2=0.1).contraction < 1
    with pytest.raises(InvalidInput, match="such a step expands"):
        planned(s, step_size=2.01 / s.smoothness)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"batch_size": 61}, "exceeds"),
        ({"epochs": 0}, "epochs"),
        ({"l2": -1.0}, "l2"),
        ({"view": "loss curve"}, "view"),
        ({"partition": "public"}, "partition"),
        ({"noise_multiplier": 1.0}, "either epsilon or noise_multiplier"),
        ({"smoothness": 0.0}, "smoothness"),
    ],
)
def test_bad_numbers(change, words):
    with pytest.raises(InvalidInput, match=words):
        planned(query(), **change)


def test_add_remove_is_refused():
    with pytest.raises(NotCovered, match="add-remove"):
        planned(query(), adjacency="add-remove")


def test_the_run_is_the_recursion_that_was_certified():
    s = query()
    plan = planned(s, l2=0.05, epsilon=1e4)
    theta = run(plan, s)
    by_hand = np.zeros(9)
    with open_session(plan.certificate, InMemory(X, Y), random_state=3) as session:
        for eta in plan.step_sizes:  # in the same order of operations: noise is named by the last bit of the sums
            by_hand = by_hand * (1 - eta * 0.05) - (eta / 12) * session._release(s, by_hand, 0)
    np.testing.assert_allclose(theta, by_hand, rtol=1e-12, atol=1e-12)


def test_every_iterate_of_poisson_batches_is_one_release():
    s = query()
    plan = planned(s, l2=0.05, view="all_iterates")
    (mechanism,) = plan.certificate.plan.parts
    assert mechanism.sampling == Poisson(1 / 5)
    theta, by_hand = run(plan, s), np.zeros(9)
    with open_session(plan.certificate, InMemory(X, Y), random_state=3) as session:
        for eta in plan.step_sizes:
            by_hand = by_hand - eta * (session._release(s, by_hand, 0) / 12 + 0.05 * by_hand)
        assert session.steps_left() == 0
    np.testing.assert_array_equal(theta, by_hand)


@pytest.mark.parametrize("view", ["final_model", "all_iterates"])
def test_a_solver_plans_and_runs_what_plan_cyclic_finds(view):
    s, budget = query(), Budget(2.0, 1e-5, Adjacency.REPLACE_ONE, view)
    solver, problem = HiddenDescent(12, 4, l2=0.05), OutputProblem(query(), 60, 9)
    found = planned(s, l2=0.05, view=view)
    assert solver.plan(problem, budget) == found.certificate.plan == found.plan
    assert solver.numbers(problem, budget).describe() == found.describe()
    with open_session(certify(solver.plan(problem, budget)), InMemory(X, Y), random_state=3) as session:
        assert np.array_equal(solver.solve(problem, budget, session), run(found, s))


def test_a_query_with_other_constants_is_refused():
    plan = planned(query())
    with pytest.raises(MechanismMismatch):
        run(plan, query(Softmax(3, 1.0)))


def test_noise_follows_the_schedule():
    shape = decaying(20)
    assert shape[0] == 1.0
    assert shape[-1] == pytest.approx(0.01)
    plan = planned(query())
    np.testing.assert_allclose(plan.noise, shape**-0.5)
    (mechanism,) = plan.certificate.plan.parts
    np.testing.assert_allclose(mechanism.ratio.to_array(), 2 / (plan.noise_multiplier * plan.noise))


# -- attacked -------------------------------------------------------------------------------------------------------


def ends(sign: float, plan, seed: int):
    """The last iterate on data whose first record points one way or the other: a linear function of it."""
    rows = np.zeros((8, 1))
    rows[0] = sign
    s = LinearOutputs(SquaredOutputs(1, 1.0), 1.0)
    records = InMemory(rows, np.zeros((8, 1)) + 50.0)

    def sample(k: int) -> np.ndarray:
        with open_session(plan.certificate, records, random_state=seed, replicas=k) as session:
            return session.run_chain(plan.chain(), s, np.zeros((k, 1)))[:, 0]

    return sample


def attacked(plan, N: int = 2000):
    return audit_gdp(ends(1.0, plan, 1), ends(-1.0, plan, 2), N)


def small(**change):
    settings = {"n": 8, "batch_size": 2, "epochs": 6, "bound": 1.0, "smoothness": 1.0}
    return plan_cyclic(2.0, 1e-5, **{**settings, **change})


def test_the_last_iterate_stays_below_its_certificate():
    plan = small(step_size=0.3)
    audit = attacked(plan)
    assert not audit.verdict(plan.certificate).violated
    assert audit.mu_lower > 0.5 * plan.certificate.mu


def test_noise_that_ignores_the_schedule_is_caught(monkeypatch):
    plan = small(step_size=0.3)
    noise = channel_module.noise_std
    monkeypatch.setattr(channel_module, "noise_std", lambda m, s, k: noise(m, s, 0) * 0.5)
    assert attacked(plan).verdict(plan.certificate).violated


def test_clipping_that_is_switched_off_is_caught(monkeypatch):
    plan = small(step_size=0.3)
    monkeypatch.setattr(SquaredOutputs, "gradient", lambda self, Z, target: Z - target)
    assert attacked(plan).verdict(plan.certificate).violated
    assert QUERIES["linear-outputs"] is LinearOutputs


def test_published_constants_of_gates_are_refused():
    """Errata E1: β = ‖x‖² for the lifted model; the sum states the constant of x̃, and the chain is held to it."""
    gates = np.abs(RNG.normal(size=(16, 3)))
    positive = np.abs(X)  # every gate is open: ‖x̃‖² = 2‖x‖² before it is scaled down
    s = GatedOutputs(Softmax(3), np.sqrt(2.0), gates)
    claimed = plan_cyclic(2.0, 1e-5, n=60, batch_size=12, epochs=2, bound=s.bound, smoothness=0.5)  # β of ‖x‖ = 1
    with pytest.raises(MechanismMismatch, match="less contractive"):
        run(claimed, s, positive, size=3 * 16 * 3)


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
def test_the_first_step_is_full_and_its_noise_is_the_one_that_is_told(steps):
    assert decaying(steps)[0] == 1
    plan = plan_cyclic(1.0, 1e-5, n=100, batch_size=100, epochs=steps)
    assert plan.noise[0] == 1
    assert plan.certificate.plan.parts[0].ratio[0] == pytest.approx(2 / plan.noise_multiplier)


def test_certificates_can_be_made_again():
    plan = planned(query())
    assert certify(plan.certificate.plan, delta=1e-5).epsilon(1e-5) == plan.certificate.epsilon(1e-5)
    assert "ε = 2" in plan.describe(1e-5)
    assert hidden.MAX_STEP_FACTOR == 2.0


@pytest.mark.parametrize("scale", [1e-5, 1e5])
def test_units_of_the_features_do_not_matter(scale):
    """A box for the weights in fixed units would confine those of small features, which no theorem covers."""
    ends = []
    for unit in (1.0, scale):
        s = query(R=unit)
        plan = plan_cyclic(
            None, 1e-5, n=60, batch_size=12, epochs=300, bound=s.bound, smoothness=s.smoothness, noise_multiplier=1e-9
        )
        ends.append(unit * run(plan, s, X * unit, seed=0))
    np.testing.assert_allclose(ends[1], ends[0], rtol=1e-3, atol=1e-4)


def test_the_published_contraction_of_gates_expands():
    """Errata E1: P = 128 gates, 58 of them open, ‖x‖ = 1, squared loss: claimed 0.999, true 56.9.

    Our x̃ are shorter by √(2/P), so that the published constant is β = 2/P and its step P/2 times as long.
    """
    rng, P, active = np.random.default_rng(0), 128, 58
    x = rng.normal(size=20)
    x /= np.linalg.norm(x)
    gates = rng.normal(size=(P, 20))
    gates *= np.where(np.arange(P) < active, 1.0, -1.0)[:, None] * np.sign(gates @ x)[:, None]
    s, rows = GatedOutputs(SquaredOutputs(1, 1e6), np.sqrt(2.0), gates), Rows(x[None], np.zeros((1, 1)))
    everyone, u = np.ones((1, 1), bool), np.outer(gates @ x >= 0, x).ravel()[None]

    def stretched(eta, l2=0.0):
        """How far the real step, on our sum, moves 0 and u apart."""
        moved = u - eta * (s.total(rows, u, everyone) - s.total(rows, 0 * u, everyone) + l2 * u)
        return np.linalg.norm(moved) / np.linalg.norm(u)

    unit = P / 2
    eta, l2 = 0.999 * unit, 0.001 / unit
    assert contraction(eta, 1 / unit, l2) == pytest.approx(0.999, abs=1e-5)  # with the published constant
    assert stretched(eta, l2) == pytest.approx(56.9, abs=0.05)
    assert s.smoothness >= active / unit  # ours: R² = ‖x̃‖² at worst, all gates open
    assert stretched(eta, l2) <= contraction(eta, s.smoothness, l2)
    with pytest.raises(InvalidInput, match="such a step expands"):
        planned(s, n=1, batch_size=1, step_size=eta, l2=l2)
    assert stretched(planned(s, n=1, batch_size=1).step_size) <= 1.0
