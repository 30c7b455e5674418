"""Contributions of a record to a block network do not depend on the other records of its batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tacit.problem.layers import Convolution, Dense
from tacit.problem.network import Architecture, architecture
from tacit.run.blocks import Block, BlockSum, GradientStep, Together, joined
from tacit.run.sums import BlockNetwork, TableRows

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
    places = np.zeros(problem._part, int)  # one record, at every place of a part
    with np.errstate(all="ignore"):
        hidden = problem._hidden(W, places)
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
        with np.errstate(all="ignore"):
            opened = problem._hidden(W, np.arange(N)).residuals[0][:, unit] != 0
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
    problem._target[:], problem._target[edges] = np.eye(2)[0], np.eye(2)[1]
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
        problem = made(network, W, X, y, 0.01)
        with np.errstate(all="ignore"):
            hidden = problem._hidden(W, np.arange(16))
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
        again = problem.totals(W, np.arange(40))
    assert all((a == b).all() for a, b in zip(first, again, strict=True))


def test_sums_that_are_kept_belong_to_their_state_and_batch() -> None:
    """Arrays that change under its hands, zeros of either sign, equal states of another length of batch."""
    rng = np.random.default_rng(3)
    network = architecture((5,), (4,), 3)
    W = tuple(rng.normal(size=c.map.weights) for c in network.connections)
    problem = made(network, W, rng.normal(size=(9, 5)), np.eye(3)[rng.integers(3, size=9)], 0.01)
    together = Together(problem)
    index = np.arange(9)
    for change in range(6):
        if change == 1:
            W[0][0, 0] += 1
        if change == 2:
            index[0] = 3
        if change == 3:
            index = index[:4]
        if change == 4:
            W[1][:] = 0.0
        if change == 5:
            W[1][:] = -0.0
        with np.errstate(all="ignore"):
            for kept, fresh in zip(together.totals(joined(W), index), problem.totals(W, index), strict=True):
                assert (kept == fresh).all()
    total = BlockSum(problem, 0, together)
    everybody = np.ones((1, 9), bool)
    total.total(joined(W)[None], everybody)[:] = 7.0  # what is handed out is nobody else's
    assert (total.total(joined(W)[None], everybody) == BlockSum(problem, 0).total(joined(W)[None], everybody)).all()
