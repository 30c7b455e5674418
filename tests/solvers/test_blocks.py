"""Plans of block coordinate descent: the certificate by hand, what runs is what was planned, and attacks on it."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from tacit.accounting import block_sweep_mu, certify, gdp_epsilon, poisson_epsilon
from tacit.audit import audit_gdp
from tacit.errors import BudgetExhausted, InvalidInput, MechanismMismatch, NotCovered
from tacit.mechanism import AllIterates, Cyclic, FullBatch, Poisson, Schedule
from tacit.problem import ElasticNet
from tacit.problem.blocks import Block, GradientStep
from tacit.records import InMemory, Rows
from tacit.release import BlockProblem, BlockSum, Channel, Example, noise_std, open_session
from tacit.solvers.blocks import BlockDescent, plan_blocks

DELTA, N, AUDIT = 1e-5, 12, 4000


class TwoBlocks(BlockProblem):
    """f(a, b; x) = ½‖a − x‖² + ½(b − x̄)²: a vector, and a scalar."""

    def __init__(self, blocks):
        self.blocks = tuple(blocks)

    def contributions(self, block, values, rows):
        a, b = values
        return a - rows.X if block == 0 else b - rows.X.mean(axis=1, keepdims=True)

    @classmethod
    def example(cls, rng, records):
        X = rng.normal(size=(records, 2)) * 30
        Y = X.copy()
        Y[0] = -X[0]
        return Example(cls(pair()), Rows(X), Rows(Y), (rng.normal(size=2), rng.normal(size=1)))


def pair(step=0.5, **change):
    return (
        Block("a", np.zeros(2), 1.5, GradientStep(step), **change),
        Block("b", np.zeros(1), 0.5, GradientStep(step), **change),
    )


def planned(epsilon=2.0, **change):
    settings = {"blocks": pair(), "n": N, "batch_size": 4, "epochs": 5}
    return plan_blocks(epsilon, DELTA, **{**settings, **change})


SCHEDULES = ["constant", "linear", "step", "optimised", lambda k, j: 1.0 + k + 2 * j]


# -- the number ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_cyclic_batches_cost_the_exact_composition_of_all_block_releases(schedule, adjacency):
    plan = planned(noise_schedule=schedule, adjacency=adjacency, shares={"a": 3.0, "b": 1.0})
    assert plan.mechanism.sampling == Cyclic(3)
    factor = 2.0 if adjacency == "replace-one" else 1.0
    energy = np.zeros(3)
    for step in range(15):
        for i, block in enumerate(plan.blocks):
            sigma = noise_std(plan.mechanism, BlockSum(TwoBlocks(plan.blocks), i), 2 * step + i)
            energy[step % 3] += (factor * block.bound / sigma) ** 2
    assert plan.certificate.epsilon(DELTA) == pytest.approx(gdp_epsilon(math.sqrt(energy.max()), DELTA), rel=1e-9)
    assert 2.0 * (1 - 1e-4) <= plan.certificate.epsilon(DELTA) <= 2.0
    np.testing.assert_allclose(plan.ratio[:, 0] ** 2 / plan.ratio[:, 1] ** 2, 3.0)


def test_poisson_batches_are_amplified_and_only_they():
    poisson, cyclic = planned(sampling="poisson"), planned()
    assert poisson.mechanism.sampling == Poisson(1 / 3)
    r = np.hypot(*poisson.ratio[0])
    by_hand = poisson_epsilon(2 / r, 1 / 3, 15, DELTA, adjacency="replace-one")
    assert poisson.certificate.epsilon(DELTA) == pytest.approx(by_hand, rel=1e-3)
    assert cyclic.certificate.theorems[0].id == "gaussian-composition"
    assert planned(sampling="full", batch_size=None).mechanism.sampling == FullBatch()


def test_a_smaller_diameter_means_less_noise_where_every_record_is_read():
    narrow = tuple(replace(block, diameter=math.sqrt(2) * block.bound) for block in pair())
    sigma = {}
    for name, blocks in (("wide", pair()), ("narrow", narrow)):
        for batch in (None, 4):
            plan = planned(blocks=blocks, batch_size=batch)
            sigma[name, batch] = noise_std(plan.mechanism, BlockSum(TwoBlocks(blocks), 0), 0)
    assert sigma["narrow", None] == pytest.approx(sigma["wide", None] / math.sqrt(2))
    assert sigma["narrow", 4] == sigma["wide", 4]


# -- the final model ------------------------------------------------------------------------------------------------


def test_a_final_model_needs_a_coupling_and_gets_the_block_shift():
    with pytest.raises(NotCovered, match="E6"):
        planned(view="final_model")
    with pytest.raises(NotCovered, match="plan_cyclic"):
        planned(view="final_model", blocks=pair()[:1])
    L = np.array([[0.5, 0.0], [0.3, 0.6]])
    plan = planned(view="final_model", coupling=L)
    factor, s = 2.0, []
    for i, block in enumerate(plan.blocks):
        s.append(0.5 * factor * block.bound / plan.ratio[0, i] / plan.expected)
    np.testing.assert_allclose(plan.mechanism.view.noise_std.values, s)
    worst = 0.0
    for j in range(3):
        d = np.zeros((15, 2))
        d[j::3] = plan.ratio[j::3] * s
        worst = max(worst, block_sweep_mu(L, d, s))
    assert plan.certificate.epsilon(DELTA) == pytest.approx(gdp_epsilon(worst, DELTA), rel=1e-6)
    assert plan.ratio[0, 0] > planned().ratio[0, 0]  # less noise than composition
    assert plan.certificate.view == "the final model"
    assert any("Lipschitz" in str(a) and "declared" in str(a) for a in plan.certificate.assumptions)
    values = run(plan, np.ones((N, 2)))
    assert [v.shape for v in values] == [(2,), (1,)]


def test_a_final_model_is_what_releases_one_by_one_would_give():
    """The session owns the blocks until the end; the steps are the same."""
    L, X = np.array([[0.5, 0.0], [0.3, 0.6]]), np.random.default_rng(0).normal(size=(N, 2))
    blocks = [replace(b, update=GradientStep(0.5, ElasticNet.of(1, l1=0.01))) for b in pair()]
    hidden = planned(blocks=blocks, view="final_model", coupling=L)
    shown = replace(hidden, certificate=certify(replace(hidden.mechanism, view=AllIterates())), view="all_iterates")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Channel, "_noise", lambda self, sigma, index, clean, history: sigma * np.cos(index + clean))
        for replicas in (1, 3):
            for a, b in zip(run(hidden, X, replicas=replicas), run(shown, X, replicas=replicas), strict=True):
                np.testing.assert_array_equal(a, b)


def test_what_a_certificate_hides_is_not_handed_out():
    """In 0.1 every release of a hidden run went through the hands of the solver."""
    plan = planned(view="final_model", coupling=np.eye(2) / 2)
    problem = TwoBlocks(plan.blocks)
    with open_session(plan.certificate, InMemory(np.ones((N, 2)))) as session:
        with pytest.raises(MechanismMismatch, match="hides"):
            session.release(BlockSum(problem, 0), np.zeros(3))
        assert session.steps_left() == plan.steps


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n": 24, "batch_size": 8}, "records"),
        ({"batch_size": 6}, "batches"),
        ({"blocks": [replace(b, update=GradientStep(0.25)) for b in pair()]}, "noise of a block"),
        ({"blocks": [replace(b, bound=3 * b.bound) for b in pair()]}, "queries"),
    ],
    ids=["records", "batches", "steps", "bounds"],
)
def test_a_chain_that_was_not_certified_is_refused_before_a_record_is_read(change, words):
    hidden = {"view": "final_model", "coupling": np.eye(2) / 2}
    plan, other = planned(**hidden), planned(**hidden, **change)
    blocks = plan.blocks if words == "queries" else other.blocks
    queries = tuple(BlockSum(TwoBlocks(blocks), i) for i in range(2))
    with open_session(plan.certificate, InMemory(np.full((N, 2), np.nan))) as session:
        with pytest.raises(MechanismMismatch, match=words):
            session.run_chain(other.chain, queries, np.zeros(3))
        assert session.steps_left() == plan.steps


@pytest.mark.parametrize(
    "change",
    [
        {"noise_schedule": "linear"},
        {"blocks": pair(step=lambda at: 0.1)},
        {"blocks": [replace(b, update=GradientStep(0.5, constraint=np.abs)) for b in pair()]},
        {"blocks": [replace(b, update=lambda value, noisy, at: value) for b in pair()]},
    ],
)
def test_other_updates_and_schedules_have_no_final_model_guarantee(change):
    with pytest.raises(NotCovered, match="block-shift"):
        planned(view="final_model", coupling=np.eye(2), **change)


# -- the run ----------------------------------------------------------------------------------------------------------


def run(plan, X, seed=0, replicas=1):
    with open_session(
        plan.certificate, InMemory(np.asarray(X, float)), random_state=seed, replicas=replicas
    ) as session:
        return BlockDescent(plan, TwoBlocks(plan.blocks)).solve(session)


def test_without_noise_it_is_block_descent():
    X = np.random.default_rng(0).normal(size=(N, 2)) * 0.1
    plan = plan_blocks(None, DELTA, blocks=pair(), n=N, epochs=60, noise_multiplier=1e-12)
    a, b = run(plan, X)
    np.testing.assert_allclose(a, X.mean(axis=0), atol=1e-8)
    np.testing.assert_allclose(b, X.mean(), atol=1e-8)
    shrunk = [replace(p, update=GradientStep(0.5, ElasticNet.of(1, l1=10.0))) for p in pair()]
    plan = plan_blocks(None, DELTA, blocks=shrunk, n=N, epochs=5, noise_multiplier=1e-12)
    assert not np.concatenate(run(plan, X)).any()


def test_an_update_sees_public_things_and_the_blocks_updated_before_it():
    seen = []

    def spy(value, noisy, at):
        seen.append((at.epoch, at.batch, at.step, at.steps, at.expected, at.noise_std, dict(at.values)))
        return value + 1.0

    blocks = [replace(block, update=spy) for block in pair()]
    plan = planned(blocks=blocks, epochs=2)
    run(plan, np.zeros((N, 2)))
    assert [entry[:5] for entry in seen[::2]] == [(t // 3, t % 3, t, 6, 4.0) for t in range(6)]
    assert seen[1][6]["a"].tolist() == [1.0, 1.0]  # Gauss–Seidel: b's update sees the new a
    assert seen[0][5] == pytest.approx(2 * 1.5 / plan.ratio[0, 0])


@pytest.mark.parametrize("order", ["gauss-seidel", "jacobi"])
@pytest.mark.parametrize("replicas", [1, 3])
def test_an_update_may_work_in_place_and_keep_its_arrays(order, replicas):
    """What it changes is its own block, what it keeps stays as it was, and blocks that serve a second run are fresh."""
    kept = []

    def in_place(value, noisy, at):
        kept.append((value.copy(), value))
        value += 1.0
        out = value.copy()
        kept.append((out.copy(), out))
        return out

    blocks = [replace(block, update=in_place) for block in pair()]
    plan = planned(blocks=blocks, epochs=1, order=order)
    for _ in range(2):
        a, b = run(plan, np.zeros((N, 2)), replicas=replicas)
        assert (a == 3.0).all()
        assert (b == 3.0).all()
        assert a.shape == ((2,) if replicas == 1 else (replicas, 2))
    assert all((then == now).all() or (then + 1 == now).all() for then, now in kept)
    assert not any(block.start.any() for block in blocks)


def test_what_does_not_belong_together_is_refused_before_a_record_is_read():
    plan, X = planned(), np.zeros((N, 2))

    class _Trap(InMemory):
        def parts(self):
            raise AssertionError("a record was read")

    wrong = [replace(pair()[0], bound=9.0), pair()[1]]
    with pytest.raises(MechanismMismatch, match="blocks"):
        BlockDescent(plan, TwoBlocks(wrong))
    descent = BlockDescent(plan, TwoBlocks(plan.blocks))
    for records, certificate, words in [
        (_Trap(np.zeros((5, 2))), plan.certificate, "records"),
        (_Trap(X), planned(1.0).certificate, "another plan"),
    ]:
        with open_session(certificate, records) as session, pytest.raises(MechanismMismatch, match=words):
            descent.solve(session)
    with open_session(plan.certificate, InMemory(X)) as session:
        descent.solve(session)
        with pytest.raises(MechanismMismatch, match="has taken steps"):
            descent.solve(session)
        with pytest.raises(BudgetExhausted):
            session.release(BlockSum(TwoBlocks(plan.blocks), 0), np.zeros(3))
    bad = [replace(b, update=lambda value, noisy, at: np.zeros(7)) for b in pair()]
    with pytest.raises(MechanismMismatch, match="returned shape"):
        run(planned(blocks=bad), X)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"blocks": []}, "at least one"),
        ({"blocks": [pair()[0], pair()[0]]}, "same name"),
        ({"batch_size": 13}, "exceeds"),
        ({"sampling": "full"}, "full"),
        ({"sampling": "shuffled"}, "sampling"),
        ({"shares": {"a": 1.0}}, "every block"),
        ({"shares": {"a": 1.0, "b": 0.0}}, "positive"),
        ({"noise_schedule": lambda k, j: -1.0}, "positive"),
        ({"noise_multiplier": 1.0}, "either"),
        ({"coupling": np.eye(2)}, "final_model"),
        ({"epochs": 0}, "epochs"),
        ({"view": "final_model", "coupling": np.eye(3)}, "shape"),
        ({"adjacency": "add-remove"}, "add/remove"),
    ],
)
def test_bad_plans_are_refused_in_one_line(change, words):
    with pytest.raises((InvalidInput, NotCovered), match=words) as caught:
        planned(**change)
    assert "\n" not in str(caught.value)


def test_add_remove_divides_by_a_nominal_number():
    plan = planned(adjacency="add-remove", sampling="poisson")
    for n in (N, N + 1):
        a, _ = run(plan, np.ones((n, 2)))
        assert np.isfinite(a).all()
    assert plan.expected == 4.0


# -- audits -----------------------------------------------------------------------------------------------------------


def audited(plan, here, there, statistic, count=AUDIT):
    def sampler(X, seed):
        return lambda k: statistic(run(plan, X, seed, k))

    return audit_gdp(sampler(here, 11), sampler(there, 12), count)


def sides(size=2.0):
    X = np.zeros((4, 2))
    Y = X.copy()
    X[0], Y[0] = size, -size
    return X, Y


def both(values):
    a, b = values
    return a.sum(axis=1) / 1.5 + b[:, 0] / 0.5  # the best test for one step from zero, nearly


def test_an_attack_on_both_blocks_stays_below_the_certificate_and_comes_near():
    plan = plan_blocks(8.0, DELTA, blocks=pair(), n=4, epochs=1, shares={"a": 2.0, "b": 1.0})
    audit = audited(plan, *sides(), both)
    assert not audit.verdict(plan.certificate).violated
    assert audit.mu_lower >= 0.75 * plan.certificate.mu


def test_paying_for_one_of_two_blocks_is_caught():
    """Errata E6 in its simplest form: the release of the second block counts, too."""
    plan = plan_blocks(3.0, DELTA, blocks=pair(), n=4, epochs=1, shares={"a": 2.0, "b": 1.0})
    cheap = replace(plan.mechanism, ratio=Schedule([plan.ratio[0, 1]]), releases=1, view=AllIterates())
    assert audited(plan, *sides(), both).verdict(certify(cheap)).violated


def test_a_matrix_of_records_after_the_noise_is_caught():
    """Errata E11: (I + ηxᵀx)⁻¹ after the noise is no post-processing: the spread of the output tells x."""
    here, there = np.zeros((4, 2)), np.zeros((4, 2))
    here[0] = 30.0

    def times(X):
        shrink = np.linalg.inv(np.eye(2) + 0.5 * X.T @ X / len(X))
        return lambda value, noisy, at: (value - 0.5 * noisy / at.expected) @ shrink

    def output(X, seed, update):
        blocks = (replace(pair()[0], update=update), pair()[1])
        plan = plan_blocks(1.0, DELTA, blocks=blocks, n=4, epochs=1)

        return lambda k: -np.abs(run(plan, X, seed, k)[0][:, 0]), plan.certificate

    (a, certificate), (b, _) = output(here, 1, GradientStep(0.5)), output(there, 2, GradientStep(0.5))
    assert not audit_gdp(a, b, AUDIT).verdict(certificate).violated
    (a, _), (b, _) = output(here, 1, times(here)), output(there, 2, times(there))
    assert audit_gdp(a, b, AUDIT).verdict(certificate).violated


def test_noise_only_where_somebody_contributed_is_caught(monkeypatch):
    """Support-revealing noise: an entry that nobody touched would stay exactly as it was."""
    here, there = np.zeros((4, 2)), np.zeros((4, 2))
    here[0, 0] = 0.01
    plan = plan_blocks(1.0, DELTA, blocks=pair(), n=4, epochs=1)
    untouched = lambda values: (values[0][:, 0] != 0).astype(float)  # noqa: E731
    assert not audited(plan, here, there, untouched).verdict(plan.certificate).violated
    right, total, last = Channel._noise, BlockSum.total, {}

    def watched(self, *a):
        last["sum"] = total(self, *a)
        return last["sum"]

    monkeypatch.setattr(BlockSum, "total", watched)
    monkeypatch.setattr(Channel, "_noise", lambda self, *a: right(self, *a) * (last["sum"] != 0))
    assert audited(plan, here, there, untouched).verdict(plan.certificate).violated


def test_an_attack_on_a_final_model_stays_below_its_certificate_and_a_false_coupling_is_caught():
    """Clipped gradients of a − x: a step is 1-Lipschitz in its own block, and does not look at the other."""
    settings = {"blocks": pair(), "n": 4, "epochs": 8, "view": "final_model"}
    right, wrong = (plan_blocks(6.0, DELTA, **settings, coupling=L) for L in (np.eye(2), np.zeros((2, 2))))
    assert not audited(right, *sides(), both).verdict(right.certificate).violated
    assert audited(wrong, *sides(), both).verdict(wrong.certificate).violated
