"""Attacks on networks by block coordinate descent: places, cancellation, rounding, odd records, words, and audits."""

from __future__ import annotations

import math
import pickle
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from scipy import sparse
from sklearn.base import clone

from tacit.audit import audit_epsilon, audit_gdp
from tacit.errors import InvalidInput, NotCovered, TacitError
from tacit.estimators.block_networks import DPBlockMLPClassifier, DPBlockMLPRegressor
from tacit.ledger import Ledger
from tacit.maps import EqualNorm
from tacit.mechanism import Adjacency
from tacit.problem.blocks import Block, GradientStep, joined
from tacit.problem.layers import Convolution, Dense
from tacit.problem.moments import moments_bound, moments_diameter
from tacit.problem.network import Architecture, Hidden, architecture
from tacit.records import InMemory, Rows
from tacit.release import PROBLEMS, SEEDED, BlockSum, Channel, JacobiCache, open_session, sensitivity
from tacit.release.queries import BlockNetwork, LayerStatistic
from tacit.release.queries.network import example_block
from tacit.solvers.blocks import BlockDescent, BlockPlan, plan_blocks
from tacit.solvers.network import block_network

SMALL: dict[str, Any] = {
    "epsilon": 1.0,
    "delta": 1e-6,
    "epochs": 2,
    "batch_size": 20,
    "sampling": "cyclic",
    "progress": False,
}
PUBLIC: dict[str, Any] = {**SMALL, "feature_bounds": (0, 1), "classes": [0, 1]}
NUMBERS: dict[str, Any] = {**SMALL, "feature_bounds": (0, 1), "target_bounds": (0, 1)}
GRADIENT, MOMENTS = LayerStatistic.GRADIENT, LayerStatistic.MOMENTS
CONVOLUTION: dict[str, Any] = {"hidden_layer_sizes": (Convolution(2, 2, pool=2), Dense(3)), "input_shape": (1, 4, 4)}
N = 512


def table(n: int = 60, p: int = 3) -> Any:
    return np.random.default_rng(0).uniform(size=(n, p))


def halves(n: int = 60) -> Any:
    return np.resize([0, 1], n)


class Case:
    """A problem and its records."""

    def __init__(self, problem: BlockNetwork, X: Any, y: Any) -> None:
        self.problem, self.rows = problem, Rows(X, y)

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.problem.blocks

    def hidden(self, W: Any, places: Any = None) -> Hidden:
        """Of all records at once, or of these."""
        rows = self.rows if places is None else self.rows.take(places)
        with np.errstate(all="ignore"):
            (found,) = self.problem._hidden(W, rows, len(rows))
        return found


def made(network: Architecture, W: Any, X: Any, y: Any, C: float) -> Case:
    blocks = tuple(Block(c.name, w, C, GradientStep(1.0)) for c, w in zip(network.connections, W, strict=True))
    return Case(BlockNetwork(network, blocks), X, y)


def summed(case: Case, block: int, W: Any, records: Any = None) -> Any:
    """What a session would add noise to: the sum over these records."""
    mask = np.ones(len(case.rows), bool)
    if records is not None:
        mask[:] = False
        mask[records] = True
    return BlockSum(case.problem, block).total(case.rows, joined(W)[None], mask[None])[0]


def moved(case: Case, block: int, W: Any, gone: int) -> float:
    """How far the sum moves if a record vanishes, in units of the bound."""
    others = np.flatnonzero(np.arange(len(case.rows)) != gone)
    apart = summed(case, block, W) - summed(case, block, W, others)
    return float(np.linalg.norm(apart)) / case.blocks[block].bound


# -- 1. who else is in the batch -----------------------------------------------------------------------------------

SHAPES: dict[str, tuple[tuple[int, ...], tuple[Any, ...]]] = {
    "default": ((32,), (64,)),
    "narrow": ((5,), (4, 3)),
    "convolution": ((1, 8, 8), (Convolution(16, 3), Dense(16, pool=2))),
    "odd part": ((4400,), (7,)),
}


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", list(SHAPES))
def test_hidden_variables_do_not_depend_on_the_place_in_the_batch(name: str, kind: Any) -> None:
    """An ordinary product rounds a row by its place among the rows."""
    shape, layers = SHAPES[name]
    rng = np.random.default_rng(0)
    network = architecture(shape, layers, 10)
    W = tuple(rng.normal(size=c.map.weights) for c in network.connections)
    X, y = rng.normal(size=(1, int(np.prod(shape)))).astype(kind), np.eye(10, dtype=kind)[:1]
    problem = made(network, W, X, y, 0.01)
    hidden = problem.hidden(W, np.zeros(problem.problem._part, int))  # one record, at every place of a part
    for rows in (*hidden.designs, *hidden.residuals):
        assert (rows == rows[:1]).all(), "one and the same record differs from place to place"


def knife_edge() -> tuple[Any, Any, Any]:
    """Weights and a record that eq. (10) decides by its last bit, and how it is decided at each place of a batch."""
    rng = np.random.default_rng(0)
    network = architecture((32,), (64,), 2)
    x = rng.normal(size=32).astype(np.float32)
    X = np.tile(x * np.float32(0.9 / np.linalg.norm(x)), (N, 1))
    first = rng.normal(size=(64, 33)).astype(np.float32).astype(np.float64)
    products = np.concatenate([X, np.full((N, 1), 0.3, np.float32)], axis=1) @ first.astype(np.float32).T
    unit = int((products != products[0]).any(axis=0).argmax())
    row = first[unit].copy()
    first[:], first[:, -1], first[unit] = 0.0, -10.0, row
    second = np.zeros((2, 65))
    second[:, unit] = -1, 1
    plain = float(X[0] @ row[:-1])
    low, high = (-2 - plain) / 0.3, (-0.01 - plain) / 0.3  # closed, open
    for _ in range(60):
        first[unit, -1] = (low + high) / 2
        W = (first.copy(), second)
        problem = made(network, W, X, np.tile(np.eye(2, dtype=np.float32)[1], (N, 1)), 0.01)
        opened = problem.hidden(W).residuals[0][:, unit] != 0
        if opened.any() and not opened.all():
            break
        low, high = ((low + high) / 2, high) if not opened.any() else (low, (low + high) / 2)
    return problem, W, opened


def test_a_record_that_vanishes_does_not_turn_the_others() -> None:
    """Poisson batches are compared with those that lack the record: all later records move up by one place.

    Those that the jump of eq. (10) decides by a last bit then contribute C instead of nothing.
    """
    problem, W, opened = knife_edge()
    edges = np.flatnonzero(opened[1:] & ~opened[:-1]) + 1
    problem.rows.y[:], problem.rows.y[edges] = np.eye(2)[0], np.eye(2)[1]
    for block in range(2):
        assert moved(problem, block, W, 0) <= 1 + 1e-3


@pytest.mark.parametrize("bad", [np.nan, np.inf, 3e38, 1e-45, -1.0])
@pytest.mark.parametrize("name", list(SHAPES))
def test_a_record_does_not_notice_what_its_neighbours_hold(name: str, bad: float) -> None:
    shape, layers = SHAPES[name]
    rng = np.random.default_rng(1)
    network = architecture(shape, layers, 3)
    W = tuple(rng.normal(size=c.map.weights) for c in network.connections)
    X = rng.normal(size=(16, int(np.prod(shape)))).astype(np.float32)
    y = np.eye(3, dtype=np.float32)[rng.integers(3, size=16)]
    found = []
    for value in (0.5, bad):
        X[np.arange(16) != 5], y[np.arange(16) != 5] = value, value
        hidden = made(network, W, X, y, 0.01).hidden(W)
        found.append([rows[5] for rows in (*hidden.designs, *hidden.residuals)])
    assert all((a == b).all() for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("name", list(SHAPES))
def test_sums_leave_no_trace_and_single_ones_are_those_together(name: str) -> None:
    shape, layers = SHAPES[name]
    rng = np.random.default_rng(2)
    network = architecture(shape, layers, 3)
    W = tuple(rng.normal(size=c.map.weights) for c in network.connections)
    X = rng.normal(size=(40, int(np.prod(shape)))).astype(np.float32)
    problem = made(network, W, X, np.eye(3, dtype=np.float32)[rng.integers(3, size=40)], 0.01)
    first = [summed(problem, i, W) for i in range(len(W))]
    summed(problem, 0, tuple(1e25 * w for w in W))
    summed(problem, 0, tuple(np.nan * w for w in W), [3, 7])
    with np.errstate(all="ignore"):
        again = problem.problem.totals(W, problem.rows)
    assert all((a == b).all() for a, b in zip(first, again, strict=True))


def test_sums_that_are_kept_belong_to_their_state_and_batch() -> None:
    """Arrays that change under its hands, zeros of either sign, equal states of another length of batch."""
    rng = np.random.default_rng(3)
    network = architecture((5,), (4,), 3)
    W = tuple(rng.normal(size=c.map.weights) for c in network.connections)
    case = made(network, W, rng.normal(size=(9, 5)), np.eye(3)[rng.integers(3, size=9)], 0.01)
    problem, rows = case.problem, case.rows
    together = JacobiCache(problem)
    mask = np.ones(9, bool)
    for change in range(6):
        if change == 1:
            W[0][0, 0] += 1
        if change == 2:
            mask[0] = False
        if change == 3:
            mask[:2] = True, False  # as many as before, others
        if change == 4:
            W[1][:] = 0.0
        if change == 5:
            W[1][:] = -0.0
        with np.errstate(all="ignore"):
            fresh = problem.totals(W, rows.take(np.flatnonzero(mask)))
            for kept, own in zip(together.totals(rows, joined(W), mask), fresh, strict=True):
                assert (kept == own).all()
    state, everybody = joined(W)[None], np.ones((1, 9), bool)
    query = BlockSum(problem, 0, jacobi=True)
    query.total(rows, state, everybody)[:] = 7.0  # what is handed out is nobody else's
    assert (query.total(rows, state, everybody) == BlockSum(problem, 0).total(rows, state, everybody)).all()


# -- 2. lengths ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("C", "norm"), [(1e-9, 1.0), (1e-9, 1024.0), (1e-6, 2.0**19)])
def test_patches_that_cancel_do_not_wipe_out_the_sum(C: float, norm: float) -> None:
    """Σ_p r_p x_pᵀ is 0, so that nothing is clipped; but r_p x_pᵀ is 10⁶·C, and float32 forgets what it is added to."""
    network = architecture((1, 4, 4), (Convolution(1, 1),), 1, loss="squared", norms=norm)
    W = (np.array([[1.0, 0.0]]), np.append(np.repeat([0.25, -0.25], 8), 0.0)[None])
    X = (np.random.default_rng(0).uniform(0.025, 0.225, size=(N, 16)) * norm).astype(np.float32)
    y = np.full((N, 1), 0.7, np.float32)
    X[N // 2], y[N // 2] = norm / 8, 1.0
    problem = made(network, W, X, y, C)
    assert moved(problem, 0, W, N // 2) <= 1 + 1e-3


def test_patches_that_nearly_cancel_are_clipped() -> None:
    """What is left is rounding, and another one in the sum than in the norm."""
    network = architecture((1, 1, 2), (Convolution(1, 1),), 1, loss="squared")
    W = (np.array([[1.0, 0.0]]), np.array([[1.0, -1.0, 0.0]]))
    for t in (0.5, 0.25, 0.125):
        problem = made(network, W, np.full((1, 2), t, np.float32), np.full((1, 1), t, np.float32), 1e-9)
        assert np.linalg.norm(summed(problem, 0, W)) <= 1e-9 * (1 + 1e-3)


def test_sums_of_many_patches_move_by_the_bound_at_most() -> None:
    """Three hundred records of 576 patches each, one after another in float32: half a per cent more than declared."""
    network = architecture((1, 24, 24), (Convolution(1, 1),), 1, loss="squared", norms=(1.0, 2.0))
    W = (np.array([[1.0, 0.0]]), np.append(np.full(576, 0.04), 0.0)[None])
    X, y = np.full((300, 576), 0.5 / 24, np.float32), np.full((300, 1), 1.0, np.float32)
    worst = 0.0
    for C in (1.1e-3, 1.3e-3, 1.5e-3, 1.7e-3, 1.9e-3):
        problem = made(network, W, X, y, C)
        worst = max(worst, *(moved(problem, 0, W, gone) for gone in (0, 100, 299)))
    assert worst <= 1 + 1e-5


def test_sums_of_many_records_move_by_the_bound_at_most() -> None:
    """512 records that agree, one after another in float32: 8e-5 more than declared; the margin is 2⁻¹⁶."""
    network = architecture((1,), (), 1, loss="squared")
    W, X, y = (np.zeros((1, 2)),), np.full((N, 1), 10.0, np.float32), np.ones((N, 1), np.float32)
    rng = np.random.default_rng(0)
    worst = max(moved(made(network, W, X, y, rng.uniform(0.005, 0.01)), 0, W, int(rng.integers(N))) for _ in range(100))
    assert worst <= 1 + 1e-5


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("statistic", [GRADIENT, MOMENTS], ids=["gradient", "moments"])
@pytest.mark.parametrize(("C", "norm"), [(0.01, 1.0), (1e9, 1e-6), (1e-9, 1e4), (1e-9, 1e6)])
def test_weights_beyond_all_measure_do_not_lengthen_a_contribution(
    C: float, norm: float, statistic: LayerStatistic, depth: int
) -> None:
    """C/‖r‖‖x‖ below 1e-38 is a denormal float32, rounded by up to a half: twice the bound.

    Weights are confined to 1e25 only; step_size=1e30 gets them there in one step.
    """
    network = architecture((3,), (2,) * depth, 2, loss="squared", norms=norm)
    X, y = np.full((1, 3), 1e9, np.float32), np.zeros((1, 2), np.float32)
    update = "gradient" if statistic is GRADIENT else "statistics"
    steps: dict[str, Any] = {"step_size": 1.0, "last_step": 1.0, "l2": 0.0}
    problem = Case(block_network(network, update, seed=0, contribution_norm=C, **steps), X, y)
    for size in np.logspace(15, 25, 41):
        W = tuple(np.full(c.map.weights, size) for c in network.connections)
        for i, block in enumerate(problem.blocks):
            assert np.linalg.norm(summed(problem, i, W)) <= block.bound * (1 + 1e-6)


@pytest.mark.parametrize("C", [0.01, 1e-4, 1e-9])
def test_targets_beyond_all_measure_do_not_lengthen_a_contribution(C: float) -> None:
    """The same rounding, at ordinary weights: targets in [−1, 1] are a promise of the caller."""
    network = architecture((3,), (), 2, loss="squared")
    W, X, y = (np.zeros((2, 4)),), np.ones((1, 3), np.float32), np.zeros((1, 2), np.float32)
    for size in np.logspace(28, 38.4, 80):
        y[0, 0] = size
        assert np.linalg.norm(summed(made(network, W, X, y, C), 0, W)) <= C * (1 + 1e-6)


@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan, 1e39, 1e308])
@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("layers", [(), (4,)], ids=["linear", "hidden"])
def test_a_target_that_is_not_finite_does_not_poison_the_sum(layers: Any, kind: Any, bad: float) -> None:
    """factor = C/∞ = 0 is finite, so that ∞·0 = NaN is added: everything released tells that such a record is there."""
    network = architecture((3,), layers, 2, loss="squared")
    W = tuple(np.random.default_rng(0).normal(size=c.map.weights) for c in network.connections)
    X, y = np.ones((4, 3), kind), np.zeros((4, 2))
    y[0] = bad
    problem = made(network, W, X, y, 0.01)
    for i in range(len(W)):
        assert np.isfinite(summed(problem, i, W)).all()
        assert moved(problem, i, W, 0) <= 1 + 1e-4


def test_norms_of_patches_do_not_underflow_for_bounds_that_are_accepted() -> None:
    """r rᵀ of residuals of 1e-23 was 0 in float32, and so was their norm; blocks may have bounds down to 1e-60."""
    network = architecture((2, 4, 4), (Convolution(9, 3),), 2)
    W = tuple(np.ones(c.map.weights) for c in network.connections)
    try:
        problem = made(network, W, np.zeros((1, 32), np.float32), np.zeros((1, 2), np.float32), 1e-30)
    except InvalidInput:
        return
    layer = network.connections[0].map
    design = np.ones((1, layer.patches, layer.weights[1]))
    residual = np.full((1, layer.patches * 9), 1e-23)
    assert 0 < np.linalg.norm(problem.problem._summed(0, Hidden((design,), (residual,)), None)) <= 1e-30 * (1 + 1e-6)


@pytest.mark.parametrize("size", [64, 1024])
def test_patches_that_almost_cancel_are_measured_by_what_is_left(size: int) -> None:
    """Long sums of equal terms, all rounded the same way: what leaves is what was measured."""
    rng = np.random.default_rng(size)
    network = architecture((1, 2, size), (Convolution(size, 1),), 2)
    blocks = tuple(Block(c.name, np.ones(c.map.weights), 1e-6, GradientStep(1.0)) for c in network.connections)
    problem = BlockNetwork(network, blocks)
    for _ in range(5):
        s, tiny = rng.uniform(0.6, 1.9), 10.0 ** rng.uniform(-12, -2)
        r = np.full(size, rng.uniform(0.5, 2))
        residual, design = np.zeros((1, 2 * size, size)), np.zeros((1, 2 * size, 2))
        residual[0, 0], residual[0, 1] = r, -s * r
        design[0, 0], design[0, 1] = s * (1 + tiny), 1.0
        flat = residual.transpose(0, 2, 1).reshape(1, -1)
        assert np.linalg.norm(problem._summed(0, Hidden((design,), (flat,)), None)) <= 1e-6 * (1 + 1e-9)


ODD = [0.0, 1e-45, 1e-30, 1e-19, 1.0, 1e19, 3e38, -3e38, np.inf, np.nan]
KINDS: dict[str, tuple[tuple[int, ...], tuple[Any, ...], Any]] = {
    "gradient": ((3,), (4,), GRADIENT),
    "moments": ((3,), (4,), MOMENTS),
    "patches": ((1, 3, 3), (Convolution(2, 2),), GRADIENT),
    "trace": ((2, 3, 3), (Convolution(9, 2),), GRADIENT),
}


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("name", list(KINDS))
@pytest.mark.parametrize(("C", "norm"), [(0.01, 1.0), (1e-9, 1e-6), (1e9, 1e6)])
def test_contributions_are_bounded_whatever_a_record_holds(C: float, norm: float, name: str, kind: Any) -> None:
    shape, layers, statistic = KINDS[name]
    rng = np.random.default_rng(0)
    network = architecture(shape, layers, 2, norms=norm)
    p = int(np.prod(shape))
    with np.errstate(all="ignore"):
        X = np.array([rng.choice([1.0, -1.0, 0.5], size=p) * a for a in ODD]).astype(kind)
        y = np.eye(2)[np.arange(len(ODD)) % 2]
    R = [network.design_norm(c) for c in network.connections]
    U = tuple(C / r for r in R)
    alpha = tuple(u / (math.sqrt(2) * r) for u, r in zip(U, R, strict=True))
    starts = [rng.normal(size=c.map.weights) for c in network.connections]
    if statistic is MOMENTS:
        blocks = tuple(
            example_block(c.name, W, r, MOMENTS, u, a)
            for c, W, r, u, a in zip(network.connections, starts, R, U, alpha, strict=True)
        )
    else:
        blocks = tuple(Block(c.name, W, C, GradientStep(1.0)) for c, W in zip(network.connections, starts, strict=True))
    problem = Case(BlockNetwork(network, blocks, statistic, weights=alpha, residual_norms=U), X, y)
    for scale in (0.0, 1e-30, 1.0, 1e6, 1e12):
        W = tuple(start * scale for start in starts)
        for i, block in enumerate(blocks):
            each = [summed(problem, i, W, [record]) for record in range(len(ODD))]
            assert max(map(np.linalg.norm, each)) <= block.bound * (1 + 1e-6)
            assert max(np.linalg.norm(a - b) for a in each for b in each) <= block.reach * (1 + 1e-6)


# -- 3. plan, order and noise --------------------------------------------------------------------------------------


def planned(model: Any, n: int = 60, p: int = 3) -> tuple[BlockPlan, BlockNetwork]:
    shape = model._shape(n, p)
    found = model._planned(shape, model._budget(shape))
    return found.numbers, found.problem


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
@pytest.mark.parametrize(("batch_size", "sampling"), [(60, "poisson"), (20, "poisson"), (20, "cyclic")])
def test_diameters_count_only_where_every_step_reads_everybody(relation: str, batch_size: int, sampling: str) -> None:
    sizes = {**PUBLIC, "batch_size": batch_size, "sampling": sampling, "adjacency": relation, "update": "statistics"}
    plan, problem = planned(DPBlockMLPClassifier((4,), **sizes))
    assert problem.statistic is MOMENTS
    network = problem.network
    for i, (c, a, U) in enumerate(zip(network.connections, problem.weights, problem.residual_norms, strict=True)):
        R = network.design_norm(c)
        found = sensitivity(plan.mechanism, BlockSum(problem, i))
        if Adjacency.parse(relation) is not Adjacency.REPLACE_ONE:
            assert found >= moments_bound(R, U, a) * (1 - 1e-12)
        elif batch_size == 60:
            assert found >= moments_diameter(R, U, a) * (1 - 1e-12)
        else:
            assert found >= 2 * moments_bound(R, U, a) * (1 - 1e-12)


def test_every_release_of_a_jacobi_step_is_paid_for_and_taken_at_its_beginning(monkeypatch: pytest.MonkeyPatch) -> None:
    network = architecture((3,), (4,), 2)
    rng = np.random.default_rng(0)
    seen: list[tuple[int, Any]] = []

    class _Watching(BlockNetwork):
        def totals(self, values: Any, rows: Any) -> Any:
            seen.append((len(rows), joined(values)))
            return super().totals(values, rows)

    W = tuple(rng.normal(size=c.map.weights) for c in network.connections)
    blocks = tuple(Block(c.name, w, 0.01, GradientStep(1.0)) for c, w in zip(network.connections, W, strict=True))
    X, y = rng.uniform(size=(12, 3)), np.eye(2)[halves(12)]
    plans = [
        plan_blocks(1.0, 1e-5, blocks=blocks, n=12, batch_size=4, epochs=3, sampling="poisson", order=order)
        for order in ("jacobi", "gauss-seidel")
    ]
    assert plans[0].mechanism == plans[1].mechanism
    assert plans[0].mechanism.steps * plans[0].mechanism.releases == 9 * 2
    monkeypatch.setitem(PROBLEMS, "_Watching", _Watching)
    with open_session(plans[0].certificate, InMemory(X, y), random_state=0) as session:
        BlockDescent(plans[0], _Watching(network, blocks)).solve(session)
        assert session.steps_left() == 0
    assert len(seen) <= 9
    assert len({state.tobytes() for _, state in seen}) == len(seen)  # one state a step


def test_replicas_of_a_jacobi_run_are_single_runs() -> None:
    network = architecture((3,), (4,), 2)
    problem = block_network(network, "gradient", seed=0, step_size=1.0, last_step=1.0, contribution_norm=None, l2=0.0)
    plan = plan_blocks(1.0, 1e-5, blocks=problem.blocks, n=8, batch_size=4, epochs=2, order="jacobi")

    def run(replicas: int) -> Any:
        records = InMemory(table(8), np.eye(2)[halves(8)])
        with open_session(plan.certificate, records, random_state=0, replicas=replicas) as session:
            return BlockDescent(plan, problem).solve(session)

    both = run(2)
    assert all(len(part) == 2 and np.abs(part[0] - part[1]).max() > 0 for part in both)
    with pytest.MonkeyPatch.context() as patch:  # the same noise for every replica: then each is the single run
        wave = lambda self, sigma, index, clean, history: sigma * np.cos(index + np.arange(clean.shape[1]))  # noqa: E731
        patch.setattr(Channel, "_noise", lambda self, *a: np.broadcast_to(wave(self, *a), a[2].shape))
        single, several = run(1), run(3)
    for one, rows in zip(single, several, strict=True):
        assert all(np.array_equal(one, row) for row in rows)


def test_steps_do_not_touch_the_certificate() -> None:
    found = set()
    for step_size, last in ((1e-6, 0.1), (4.0, 0.1), (4.0, 1.0), (1e30, 1e-6)):
        model = DPBlockMLPClassifier((4,), **{**PUBLIC, "sampling": "cyclic"}, step_size=step_size, last_step=last)
        plan, _ = planned(model)
        squares = (plan.ratio**2).sum(axis=1)
        worst = max(squares[j :: plan.n_batches].sum() for j in range(plan.n_batches))
        assert plan.certificate.mu == pytest.approx(math.sqrt(worst), rel=1e-9)
        found.add(plan.certificate.epsilon(1e-6))
    assert len(found) == 1


def test_a_schedule_that_changes_its_mind_is_asked_once() -> None:
    asked: list[tuple[int, int]] = []

    def moody(k: int, j: int) -> float:
        asked.append((k, j))
        return 1.0 + len(asked)

    model = DPBlockMLPClassifier((4,), **PUBLIC, noise_schedule=moody, random_state=0)
    model.fit(table(), halves())
    assert len(asked) == len(set(asked)) == 2 * 3
    ratio = model.plan_.ratio
    assert np.allclose(ratio[0] ** 2 * 2, ratio[5] ** 2 * 7)


# -- 4. records, words and models -----------------------------------------------------------------------------------


class Reached(Exception):
    pass


def stop(*_: Any, **__: Any) -> Any:
    raise Reached


ROWS = {"1e-300": 1e-300, "1e-40": 1e-40, "5e-324": 5e-324, "1e308": 1e308, "-1e308": -1e308, "0": 0.0}


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("row", list(ROWS))
def test_no_row_raises_a_floating_point_error(row: str, kind: Any) -> None:
    """numpy.seterr belongs to the user; an error, or a warning, would tell about a record."""
    X = table()
    X[7] = ROWS[row]
    with np.errstate(all="ignore"):
        X = np.clip(X, -3e38, 3e38).astype(kind)
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        DPBlockMLPClassifier((4,), random_state=0, **{**PUBLIC, "epochs": 1}).fit(X, halves())


@pytest.mark.parametrize("row", list(ROWS))
def test_no_target_raises_a_floating_point_error(row: str) -> None:
    y = table()[:, 0]
    y[7] = ROWS[row]
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        DPBlockMLPRegressor((4,), random_state=0, **{**NUMBERS, "target_bounds": (-1, 1)}).fit(table(), y)


def test_no_picture_raises_a_floating_point_error() -> None:
    X = table(60, 16)
    X[7], X[8] = 1e-30, 0.0
    with np.errstate(all="raise"), warnings.catch_warnings():
        warnings.simplefilter("error")
        DPBlockMLPClassifier(**CONVOLUTION, random_state=0, **{**PUBLIC, "epochs": 1}).fit(X, halves())


def test_no_warning_tells_about_a_record_within_wide_bounds() -> None:
    """(0, 7e38) of a float32 table: small values less the centre overflow, and numpy says so, unasked."""
    said = []
    for value in (0.0, 1e38):
        X = np.full((60, 3), 1e38, np.float32)
        X[5, 0] = value
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            DPBlockMLPClassifier((4,), random_state=0, **{**PUBLIC, "feature_bounds": (0, 7e38)}).fit(X, halves())
        said.append(len(caught))
    assert said[0] == said[1]


def test_no_warning_tells_about_a_target_of_extended_precision() -> None:
    y = np.ones(60, np.longdouble)
    y[7] = np.longdouble("1e400")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            DPBlockMLPRegressor((4,), random_state=0, **NUMBERS).fit(table(), y)
        except InvalidInput:
            return


TARGETS: dict[str, Callable[[], Any]] = {
    "words": lambda: np.array(["0.5"] * 59 + ["secret4711"]),
    "bytes": lambda: np.array(["0.5"] * 59 + ["secret4711"]).astype("S"),
    "list": lambda: ["0.5"] * 59 + ["secret4711"],
    "objects": lambda: np.array(["0.5"] * 59 + ["secret4711"], object),
    "none": lambda: np.array([0.5] * 59 + [None], object),
    "sparse": lambda: sparse.csr_matrix(np.ones((60, 1))),
}


@pytest.mark.parametrize("name", list(TARGETS))
def test_targets_that_are_no_numbers_are_refused_without_being_quoted(name: str) -> None:
    with pytest.raises((InvalidInput, TypeError)) as caught:
        DPBlockMLPRegressor((4,), random_state=0, **NUMBERS).fit(table(), TARGETS[name]())
    assert "4711" not in str(caught.value)


def test_labels_and_rows_are_refused_without_being_quoted() -> None:
    labels, X = halves(), table()
    labels[3], X[3, 0] = 4711, np.nan
    for rows, y in ((table(), labels), (X, halves()), (table(), halves() + 0.4711)):
        with pytest.raises(InvalidInput) as caught:
            DPBlockMLPClassifier((4,), **PUBLIC).fit(rows, y)
        assert "4711" not in str(caught.value)


def test_values_outside_of_their_bounds_count_as_the_bounds() -> None:
    fits = []
    for top in (1.0, 1e308):
        X, y = table(), table()[:, 0]
        X[3], y[3] = top, top
        fits.append(DPBlockMLPRegressor((4,), random_state=0, **NUMBERS).fit(X, y).coefs_)
    assert all((a == b).all() for a, b in zip(*fits, strict=True))


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e308])
@pytest.mark.filterwarnings("ignore")
def test_rows_that_change_during_a_fit_stay_bounded(value: float) -> None:
    """A schedule of the user's runs after the schema was checked; the bar, and other threads, between the steps."""
    X, y = table(), halves()

    def schedule(k: int, j: int) -> float:
        X[:], y[:] = value, 0
        return 1.0

    model = DPBlockMLPClassifier((4,), noise_schedule=schedule, random_state=0, **PUBLIC).fit(X, y)
    assert all(np.isfinite(W).all() for W in model.coefs_)


def test_records_are_the_sessions_own_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What changes in the caller's arrays after the first release changes nothing any more."""
    fits, release = [], Channel.release
    for meddle in (False, True):
        X, y = table().astype(np.float32), table()[:, :2].astype(np.float32)

        def meanwhile(self: Any, *arguments: Any, X: Any = X, y: Any = y, meddle: bool = meddle) -> Any:
            out = release(self, *arguments)
            if meddle:
                X[:], y[:] = 1e20, 1e20
            return out

        with monkeypatch.context() as patch:
            patch.setattr(Channel, "release", meanwhile)
            fits.append(DPBlockMLPRegressor((4,), random_state=0, **NUMBERS).fit(X, y).coefs_)
    assert all((a == b).all() for a, b in zip(*fits, strict=True))


@pytest.mark.parametrize("kind", ["classifier", "regressor"])
def test_a_ledger_is_charged_once_and_before_any_row_is_read(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def model(ledger: Ledger) -> Any:
        if kind == "classifier":
            return DPBlockMLPClassifier((4,), ledger=ledger, **PUBLIC)
        return DPBlockMLPRegressor((4,), ledger=ledger, **NUMBERS)

    monkeypatch.setattr(InMemory, "parts", stop)
    monkeypatch.setattr(EqualNorm, "__call__", stop)
    poor = Ledger(tmp_path / "small.ledger", epsilon=0.5, delta=1e-5)
    with pytest.raises(TacitError):
        model(poor).fit(table(), halves())
    assert len(poor.entries()) == 0
    rich = Ledger(tmp_path / "large.ledger", epsilon=3.0, delta=1e-5)
    with pytest.raises(Reached):
        model(rich).fit(table(), halves())
    assert len(rich.entries()) == 1


@pytest.mark.parametrize("where", ["first", "later"])
def test_an_interrupted_fit_leaves_the_model_as_it_was(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = DPBlockMLPClassifier((4,), random_state=0, **PUBLIC).fit(table(), halves())
    assert SEEDED in model.certificate_.marks
    before = {key: value for key, value in vars(model).items() if key.endswith("_")}
    release, done = Channel.release, []

    def some(self: Any, *arguments: Any) -> Any:
        done.append(1)
        if where == "first" or len(done) > 3:
            raise Reached
        return release(self, *arguments)

    monkeypatch.setattr(Channel, "release", some)
    with pytest.raises(Reached):
        model.set_params(random_state=None).fit(table(), halves()[::-1])
    after = {key: value for key, value in vars(model).items() if key.endswith("_")}
    assert after.keys() == before.keys()
    assert all(after[key] is before[key] for key in after if key != "n_features_in_")
    fresh = DPBlockMLPClassifier((4,), **PUBLIC)
    done.clear()
    with pytest.raises(Reached):
        fresh.fit(table(), halves())
    assert {key for key in vars(fresh) if key.endswith("_")} <= {"n_features_in_"}


def test_marks_say_what_was_read_off_the_data_and_what_is_no_secret() -> None:
    private = DPBlockMLPClassifier((4,), **PUBLIC).fit(table(), halves())
    assert private.certificate_.marks == ()
    told = DPBlockMLPClassifier((4,), random_state=0, **{**PUBLIC, "classes": None}).fit(table(), halves())
    assert any("classes" in mark for mark in told.certificate_.marks)
    assert SEEDED in told.certificate_.marks
    assert told.certificate_ == told.plan_.certificate


def test_models_and_their_copies_hold_no_row() -> None:
    X = table() + 0.123456789
    for kind in (np.float64, np.float32):
        model = DPBlockMLPRegressor((4,), **NUMBERS).fit(X.astype(kind), X[:, 0])
        raw = pickle.dumps(model)
        assert not any(row.astype(form).tobytes() in raw for row in X for form in (np.float32, np.float64))
        assert not any(key.endswith("_") for key in vars(clone(model)))
        assert {key for key in vars(model) if key.endswith("_")} == {
            "certificate_",
            "coefs_",
            "n_features_in_",
            "network_",
            "notes_",
            "plan_",
            "single_target_",
        }


BAD: dict[str, dict[str, Any]] = {
    "no units": {"hidden_layer_sizes": (0,)},
    "true": {"hidden_layer_sizes": (True,)},
    "minus": {"hidden_layer_sizes": (-3,)},
    "picture of truth": {"input_shape": (True, 4, 4)},
    "minus minus": {"input_shape": (-1, -4, 4)},
    "wrapped": {"input_shape": (2**60, 16, 16, 1)},
    "huge kernel": {"hidden_layer_sizes": (Convolution(2, 99),), "input_shape": (1, 4, 4)},
    "huge pool": {"hidden_layer_sizes": (Dense(2, pool=9),), "input_shape": (1, 4, 4)},
    "moments of patches": {
        "hidden_layer_sizes": (Convolution(2, 2),),
        "input_shape": (1, 4, 4),
        "update": "statistics",
    },
    "short": {"layer_norms": 1e-7},
    "not a norm": {"layer_norms": [1.0, math.nan]},
    "tiny": {"contribution_norm": 1e-10},
    "endless": {"contribution_norm": math.inf},
    "final model": {"view": "final_model"},
    "secret number": {"adjacency": "add-remove"},
    "seed": {"random_state": True},
    "start": {"init_seed": None},
    "loop": {"shortcuts": ((1, 1),)},
    "bounds": {"feature_bounds": (0, math.inf)},
    "no bounds": {"feature_bounds": None},
    "no delta": {"delta": None},
    "batch": {"batch_size": 61},
}


@pytest.mark.parametrize("name", list(BAD))
def test_bad_parameters_are_refused_before_anything_is_spent_or_read(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(InMemory, "parts", stop)
    ledger = Ledger(tmp_path / "a.ledger", epsilon=9.0, delta=1e-3)
    model = DPBlockMLPClassifier(**{"hidden_layer_sizes": (4,), **PUBLIC, "ledger": ledger, **BAD[name]})
    with pytest.raises((InvalidInput, NotCovered)):
        model.fit(table(60, 16), halves())
    assert len(ledger.entries()) == 0


EXTREME: dict[str, dict[str, Any]] = {
    "long steps": {"step_size": 1e300},
    "long states": {"layer_norms": 1e6, "contribution_norm": 1e-9, "step_size": 1e30},
    "short states": {"layer_norms": 1e-6, "contribution_norm": 1e9},
    "no constraint": {"gamma": 1e-300},
    "all constraint": {"gamma": 1e300},
    "statistics": {"update": "statistics", "layer_norms": 1e6, "contribution_norm": 1e-9},
}


@pytest.mark.parametrize("name", list(EXTREME))
def test_extreme_parameters_keep_their_promise_in_silence(name: str) -> None:
    """The certificate does not follow them, and no record's overflow is told."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = DPBlockMLPClassifier((4, 3), random_state=0, **PUBLIC, **EXTREME[name]).fit(table(), halves())
    usual = DPBlockMLPClassifier((4, 3), **PUBLIC)
    assert model.certificate_.epsilon(1e-6) == pytest.approx(usual.planned_certificate(60, 3).epsilon(1e-6))
    assert not any(np.isnan(W).any() for W in model.coefs_)


# -- 5. audits ------------------------------------------------------------------------------------------------------

RUNS = 1000
HERE, THERE = 11, 12


def audited(update: str, monkeypatch: pytest.MonkeyPatch, batches: int = 1) -> Any:
    """Opposite labels of one record, through the estimator's own plan; weights hardly move, so their sum tells all."""
    kept: dict[Any, Any] = {}
    right = BlockNetwork.total

    def once(self: Any, block: int, values: Any, rows: Any, grid: Any = None) -> Any:
        key = (
            block,
            rows.X.tobytes(),
            rows.y.tobytes(),
            joined(values).tobytes(),
            grid,
        )  # sums leave no trace: see above
        if key not in kept:
            kept[key] = right(self, block, values, rows, grid)
        return kept[key]

    monkeypatch.setattr(BlockNetwork, "total", once)
    n = 2
    sizes: dict[str, Any] = {"batch_size": n // batches, "epochs": 3, "sampling": "poisson"}
    model = DPBlockMLPClassifier((2,), **{**PUBLIC, "epsilon": 4.0, "delta": 1e-3, **sizes}, update=update)
    plan, problem = planned(model, n, 2)
    blocks = tuple(replace(block, update=_Keep()) for block in plan.blocks)  # all that privacy depends on is the same
    plan, problem = replace(plan, blocks=blocks), replace(problem, blocks=blocks)
    X = np.array([[0.9, 0.8, 0.5], [0.0, 0.0, 0.0]], np.float32)
    sides = [Case(problem, X, np.eye(2, dtype=np.float32)[labels]) for labels in ([0, 0], [1, 0])]
    start = tuple(b.start for b in blocks)
    ways = [summed(sides[0], i, start) - summed(sides[1], i, start) for i in range(len(blocks))]
    scales = [sensitivity(plan.mechanism, BlockSum(problem, i)) / plan.ratio[0, i] for i in range(len(blocks))]

    def sampler(case: Case, seed: int) -> Any:
        def sample(k: int) -> Any:
            _Keep.seen.clear()
            records = InMemory(case.rows.X, case.rows.y)
            with open_session(plan.certificate, records, replicas=k, random_state=seed) as session:
                BlockDescent(plan, problem).solve(session)
            return sum(
                np.array(_Keep.seen[b.name]).reshape(plan.steps, k, -1).sum(axis=0) @ way / scale**2
                for b, way, scale in zip(blocks, ways, scales, strict=True)
            )

        return sample

    return sampler(sides[0], HERE), sampler(sides[1], THERE), plan.certificate


class _Keep:
    """An update that keeps what was released, and the weights as they are."""

    seen: ClassVar[dict[str, list[Any]]] = {}

    def __call__(self, value: Any, noisy: Any, at: Any) -> Any:
        name = next(name for name, kept in at.values.items() if kept is value or np.shares_memory(kept, value))
        self.seen.setdefault(name, []).append(noisy)
        return value


@pytest.mark.parametrize(("update", "near"), [("gradient", 0.5), ("statistics", 0.3)])
def test_what_is_right_stays_below_its_certificate_and_comes_near(
    update: str, near: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there, certificate = audited(update, monkeypatch)
    found = audit_gdp(here, there, RUNS)
    assert not found.verdict(certificate).violated
    assert found.mu_lower >= near * certificate.mu


def test_poisson_batches_stay_below(monkeypatch: pytest.MonkeyPatch) -> None:
    here, there, certificate = audited("gradient", monkeypatch, batches=2)
    found = audit_epsilon(here, there, RUNS // 2, delta=1e-3)
    assert not found.verdict(certificate).violated


def test_contributions_that_are_not_clipped_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tacit.release.queries.network.capped_rows", lambda T, longest: np.rint(T))
    here, there, certificate = audited("gradient", monkeypatch)
    assert audit_gdp(here, there, RUNS).verdict(certificate).violated
