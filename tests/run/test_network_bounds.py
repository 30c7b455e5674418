"""Contributions to a block network are bounded: patches that cancel, weights and targets beyond all measure."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tacit.errors import InvalidInput
from tacit.problem.layers import Convolution
from tacit.problem.network import Architecture, Hidden, architecture
from tacit.run.blocks import Block, BlockSum, GradientStep, joined
from tacit.run.sums import BlockNetwork, LayerStatistic, TableRows
from tacit.run.sums.network import example_block
from tacit.solvers.network import layer_blocks

GRADIENT, MOMENTS = LayerStatistic.GRADIENT, LayerStatistic.MOMENTS
N = 512


def made(network: Architecture, W: Any, X: Any, y: Any, C: float, cls: type[BlockNetwork] = BlockNetwork) -> Any:
    blocks = tuple(Block(c.name, w, C, GradientStep(1.0)) for c, w in zip(network.connections, W, strict=True))
    return cls(TableRows(X), y, network, blocks)


def summed(problem: BlockNetwork, block: int, W: Any, records: Any = None) -> Any:
    """What the channel would add noise to: the sum over these records."""
    mask = np.ones(problem.records, bool)
    if records is not None:
        mask[:] = False
        mask[records] = True
    return BlockSum(problem, block).total(joined(W)[None], mask[None])[0]


def moved(problem: BlockNetwork, block: int, W: Any, gone: int) -> float:
    """How far the sum moves if a record vanishes, in units of the bound."""
    others = np.flatnonzero(np.arange(problem.records) != gone)
    apart = summed(problem, block, W) - summed(problem, block, W, others)
    return float(np.linalg.norm(apart)) / problem.blocks[block].bound


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
    described = layer_blocks(
        network,
        "gradient" if statistic is GRADIENT else "statistics",
        seed=0,
        steps=1,
        step_size=1.0,
        last_step=1.0,
        contribution_norm=C,
        l2=0.0,
    )
    norms, weights = described.residual_norms, described.weights
    problem = BlockNetwork(TableRows(X), y, network, described.blocks, statistic, weights=weights, residual_norms=norms)
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
    assert 0 < np.linalg.norm(problem._summed(0, Hidden((design,), (residual,)))) <= 1e-30 * (1 + 1e-6)


@pytest.mark.parametrize("size", [64, 1024])
def test_patches_that_almost_cancel_are_measured_by_what_is_left(size: int) -> None:
    """Long sums of equal terms, all rounded the same way: what leaves is what was measured."""
    rng = np.random.default_rng(size)
    network = architecture((1, 2, size), (Convolution(size, 1),), 2)
    blocks = tuple(Block(c.name, np.ones(c.map.weights), 1e-6, GradientStep(1.0)) for c in network.connections)
    problem = BlockNetwork(TableRows(np.zeros((1, 2 * size))), np.zeros((1, 2)), network, blocks)
    for _ in range(5):
        s, tiny = rng.uniform(0.6, 1.9), 10.0 ** rng.uniform(-12, -2)
        r = np.full(size, rng.uniform(0.5, 2))
        residual, design = np.zeros((1, 2 * size, size)), np.zeros((1, 2 * size, 2))
        residual[0, 0], residual[0, 1] = r, -s * r
        design[0, 0], design[0, 1] = s * (1 + tiny), 1.0
        flat = residual.transpose(0, 2, 1).reshape(1, -1)
        assert np.linalg.norm(problem._summed(0, Hidden((design,), (flat,)))) <= 1e-6 * (1 + 1e-9)


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
    problem = BlockNetwork(TableRows(X), y, network, blocks, statistic, weights=alpha, residual_norms=U)
    for scale in (0.0, 1e-30, 1.0, 1e6, 1e12):
        W = tuple(start * scale for start in starts)
        for i, block in enumerate(blocks):
            each = [summed(problem, i, W, [record]) for record in range(len(ODD))]
            assert max(map(np.linalg.norm, each)) <= block.bound * (1 + 1e-6)
            assert max(np.linalg.norm(a - b) for a in each for b in each) <= block.reach * (1 + 1e-6)
