"""What records contribute to the layers of a network: against the slow way, on neighbours, and what mutants do."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.errors import InvalidInput
from tacit.mechanism import Adjacency
from tacit.problem.blocks import Block, GradientStep, joined
from tacit.problem.layers import Convolution, Dense
from tacit.problem.moments import moments_bound, moments_diameter
from tacit.problem.network import architecture
from tacit.records import Rows
from tacit.release import BlockSum, JacobiCache, replay
from tacit.release.queries import BlockNetwork, LayerStatistic
from tacit.release.queries.network import example_block

ALL = np.arange(7)
CASES = {
    "dense": ((5,), (4, 3), (), LayerStatistic.GRADIENT),
    "shortcut": ((5,), (4, 3), ((0, 2), (1, 3)), LayerStatistic.GRADIENT),
    "moments": ((5,), (4,), (), LayerStatistic.MOMENTS),
    "convolution": ((1, 6, 6), (Convolution(2, 3), Dense(3, pool=2)), (), LayerStatistic.GRADIENT),
    "many channels": ((2, 4, 4), (Convolution(9, 3),), (), LayerStatistic.GRADIENT),
}
each_case = pytest.mark.parametrize("case", CASES)


def made(case, seed=0, bound=0.05, weight=0.02, kind=np.float64, records=7, cls=BlockNetwork):
    shape, layers, shortcuts, statistic = CASES[case]
    rng = np.random.default_rng(seed)
    network = architecture(shape, layers, 3, shortcuts=shortcuts)
    blocks = tuple(
        example_block(c.name, rng.normal(size=c.map.weights), network.design_norm(c), statistic, bound, weight)
        for c in network.connections
    )
    x = rng.normal(size=(records, int(np.prod(shape)))).astype(kind)
    y = np.eye(3, dtype=kind)[rng.integers(3, size=records)]
    extra = {"weights": (weight,) * len(blocks), "residual_norms": (bound,) * len(blocks)}
    return cls(network, blocks, statistic, **extra), Rows(x, y), tuple(block.start for block in blocks)


@each_case
@pytest.mark.parametrize("bound", [0.05, 1e3])
def test_fast_sums_are_sums_of_clipped_contributions(case, bound):
    problem, rows, values = made(case, bound=bound)
    together = problem.totals(values, rows)
    for i, block in enumerate(problem.blocks):
        G = problem.contributions(i, values, rows)
        norms = np.maximum(np.linalg.norm(G, axis=1, keepdims=True), 1e-300)
        slow = (G * np.minimum(1.0, block.bound / norms)).sum(axis=0)
        assert np.allclose(problem.total(i, values, rows), slow, rtol=1e-9, atol=1e-10 * block.bound)
        assert np.array_equal(problem.total(i, values, rows), together[i])


def test_a_convolutions_norm_is_that_of_its_whole_gradient():
    """DESIGN: ‖Σ_p r_p x_pᵀ‖² = tr(RRᵀ·XXᵀ): a lone record is clipped by it, not by a product or a sum of norms."""
    problem, rows, values = made("convolution", bound=1e-4)
    one = rows.take(ALL[:1])
    (hidden,) = problem._hidden(values, one, 1)
    c = problem.network.connections[0]
    X, R = hidden.designs[0][0], c.map.by_patch(hidden.residuals[0])[0]
    norm = math.sqrt(np.trace((R @ R.T) @ (X @ X.T)))
    assert norm > 1e-3
    assert np.allclose(problem.total(0, values, one), -(R.T @ X).ravel() * 1e-4 / norm, rtol=1e-9)


@each_case
@pytest.mark.parametrize("adjacency", ["replace-one", "zero-out"])
def test_neighbours_stay_within_what_is_declared(case, adjacency):
    """Any record in place of record 0: the sums at the same weights move by at most the declared distance."""
    rng = np.random.default_rng(5)
    relation, worst = Adjacency.parse(adjacency), 0.0
    for seed in range(25):
        problem, rows, values = made(case, seed)
        x, y = rows.X.copy(), rows.y.copy()
        x[0], y[0] = rng.normal(size=x.shape[1]) * 10.0 ** rng.integers(-3, 9), rng.normal(size=3)
        other = Rows(x, y) if relation is Adjacency.REPLACE_ONE else rows.take(ALL[1:])
        for i, block in enumerate(problem.blocks):
            moved = problem.total(i, values, rows) - problem.total(i, values, other)
            declared = block.reach if relation is Adjacency.REPLACE_ONE else block.bound
            worst = max(worst, float(np.linalg.norm(moved)) / declared)
    assert 0.3 < worst <= 1 + 1e-9


@pytest.mark.parametrize("weight", [0.02, 0.5], ids=["2RU", "curved"])
def test_moments_reach_their_diameter(weight):
    """x and y at the worst angle, residuals opposite: DESIGN's formula is attained by the sum itself."""
    network = architecture((2,), (1,), 2, loss="squared")
    R, U = network.design_norm(network.connections[0]), 0.3
    a = weight
    block = example_block("layer 1", np.zeros((1, 3)), R, LayerStatistic.MOMENTS, U, a)
    rng = np.random.default_rng(0)
    far = 0.0
    for _ in range(4000):
        x, y = (v / np.linalg.norm(v) * R for v in rng.normal(size=(2, 3)))
        if rng.random() < 0.3:
            y = x
        far = max(far, math.hypot(a * np.linalg.norm(np.outer(x, x) - np.outer(y, y)), U * np.linalg.norm(x + y)))
    assert far <= moments_diameter(R, U, a) * (1 + 1e-9)
    assert far >= 0.99 * block.reach


def test_moments_with_too_small_bounds_are_refused():
    network = architecture((5,), (4,), 3)
    R = network.design_norm(network.connections[0])
    blocks = [
        example_block(c.name, np.ones(c.map.weights), network.design_norm(c), LayerStatistic.MOMENTS, 0.1, 0.2)
        for c in network.connections
    ]
    extra = {"weights": (0.2, 0.2), "residual_norms": (0.1, 0.1)}
    BlockNetwork(network, tuple(blocks), LayerStatistic.MOMENTS, **extra)
    short = moments_bound(R, 0.1, 0.2)
    for bound, reach, words in [(short / 2, short, "bound"), (short, short, "diameter")]:
        wrong = Block(blocks[0].name, blocks[0].start, bound, GradientStep(1.0), blocks[0].size, reach)
        with pytest.raises(InvalidInput, match=words):
            BlockNetwork(network, (wrong, blocks[1]), LayerStatistic.MOMENTS, **extra)


class _WholeBatch(BlockNetwork):
    """Errata E10: the gradient of the batch is clipped, not that of each record."""

    def total(self, block, values, rows):
        loose = [Block(b.name, b.start, 1e9, b.update) for b in self.blocks]
        G = BlockNetwork(self.network, tuple(loose), self.statistic).total(block, values, rows)
        return G * min(1.0, len(rows) * self.blocks[block].bound / max(np.linalg.norm(G), 1e-300))


class _Unclipped(BlockNetwork):
    """Errata E10: S_g = γρ² is taken for the longest gradient, because x is short; u is not."""

    def total(self, block, values, rows):
        return self.contributions(block, values, rows).sum(axis=0)


class _ProductOfNorms(BlockNetwork):
    """Patches are clipped by the root of the sum of their squares, as if they were orthogonal."""

    def total(self, block, values, rows):
        (hidden,), c = self._hidden(values, rows, len(rows)), self.network.connections[block]
        X, R = hidden.designs[block], c.map.by_patch(hidden.residuals[c.target])
        norms = np.sqrt(((X**2).sum(axis=2) * (R**2).sum(axis=2)).sum(axis=1))
        factor = np.minimum(1.0, self.blocks[block].bound / np.maximum(norms, 1e-300))
        return -np.einsum("i,ipq,ipw->qw", factor, R, X).ravel()


class _Preconditioned(BlockNetwork):
    """Errata E11: the sum is multiplied by (I + ηxᵀx)⁻¹ of all records: one of them now turns what the others gave."""

    def total(self, block, values, rows):
        G = super().total(block, values, rows).reshape(self.blocks[block].shape)
        (hidden,) = self._hidden(values, rows, len(rows))
        X = hidden.designs[block][:, 0].copy()
        X[:, -1] = 0.0
        return (G @ np.linalg.inv(np.eye(X.shape[1]) + 2 * X.T @ X)).ravel()


@pytest.mark.parametrize(
    ("mutant", "case"),
    [(_WholeBatch, "dense"), (_Unclipped, "dense"), (_ProductOfNorms, "convolution")],
)
def test_mutants_move_further_than_declared(mutant, case):
    rng = np.random.default_rng(1)
    worst = 0.0
    for seed in range(40):
        sides = []
        for extreme in (1.0, -1.0):
            problem, rows, values = made(case, seed, cls=mutant)
            rows.X[0], rows.y[0] = np.abs(rows.X[0]), extreme
            sides.append(rows)
        for i, block in enumerate(problem.blocks):
            index = ALL[: rng.integers(1, 8)]
            moved = np.subtract(*(problem.total(i, values, side.take(index)) for side in sides))
            worst = max(worst, float(np.linalg.norm(moved)) / block.reach)
    assert worst > 1.05


def test_a_matrix_of_records_after_the_sum_is_no_post_processing():
    """Errata E11: thirty records that agree, and a first one beside or across them."""
    moved = {}
    for cls in (_Preconditioned, BlockNetwork):
        sides = []
        for direction in (0, 1):
            problem, rows, values = made("dense", records=40, bound=1e-3, cls=cls)
            rows.X[:], rows.y[:] = 0.1 * np.eye(5)[0], np.eye(3)[0]
            rows.X[0] = np.eye(5)[direction]
            sides.append(problem.total(0, values, rows))
        moved[cls] = float(np.linalg.norm(sides[0] - sides[1])) / problem.blocks[0].reach
    assert moved[_Preconditioned] > 1.5
    assert moved[BlockNetwork] <= 1


@np.errstate(all="ignore")
def test_records_that_overflow_add_nothing_and_harm_nobody():
    for kind in (np.float32, np.float64):
        problem, rows, values = made("dense", kind=kind)
        before = problem.totals(values, rows.take(ALL[1:]))
        for bad in (np.nan, np.inf, 1e38 if kind is np.float32 else 1e300):
            rows.X[0], rows.y[0] = bad, bad
            for i, (a, b) in enumerate(zip(problem.totals(values, rows), before, strict=True)):
                assert np.isfinite(a).all()
                assert np.linalg.norm(a - b) <= problem.blocks[i].bound * (1 + 1e-5)


def test_sums_together_are_made_once_and_belong_to_their_state():
    calls = []

    class _Counting(BlockNetwork):
        def totals(self, values, rows):
            calls.append(len(rows))
            return super().totals(values, rows)

    problem, rows, values = made("dense", cls=_Counting)
    together = JacobiCache(problem)
    plain = BlockNetwork(problem.network, problem.blocks, problem.statistic)
    state = joined(values)
    for mask in (ALL >= 0, ALL < 4, ALL >= 0):
        for flat in (state, state * 0.5):
            cut = tuple(v * (flat[0] / state[0]) for v in values)
            for i in range(len(problem.blocks)):
                assert np.array_equal(together.totals(rows, flat, mask)[i], plain.total(i, cut, rows.take(ALL[mask])))
    assert len(calls) == 6  # three batches, two states, three blocks each


def test_each_part_of_the_records_has_sums_of_its_own():
    """Two parts, the same state and the same places in them: what is kept for one must not be given for the other."""
    problem, rows, values = made("dense")
    halves = [rows.take(ALL[:3]), rows.take(ALL[3:6])]
    state, mask = joined(values)[None], np.ones((1, 3), bool)
    found = [BlockSum(problem, 0, jacobi=True).total(half, state, mask) for half in halves for _ in range(2)]
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[2], found[3])
    assert not np.array_equal(found[0], found[2])
    other = BlockNetwork(problem.network, tuple(Block(b.name, b.start, 1e-9, b.update) for b in problem.blocks))
    assert np.linalg.norm(BlockSum(other, 0, jacobi=True).total(halves[0], state, mask)) <= 3e-9


def test_every_block_of_the_example_gets_to_its_limit():
    for adjacency in Adjacency:
        for moved in replay(BlockNetwork, adjacency).values():
            assert 0.99 <= moved <= 1 + 1e-9


def test_a_sum_in_float32_equals_one_in_float64_to_its_precision():
    wide, rows, values = made("convolution")
    _, narrow, _ = made("convolution", kind=np.float32)
    for i in range(len(wide.blocks)):
        a, b = wide.total(i, values, narrow), wide.total(i, values, rows)
        assert np.allclose(a, b, atol=2e-5 * wide.blocks[i].bound * len(ALL))


@pytest.mark.parametrize("shape", [(4, 3), (5, 2)])
def test_data_of_other_shapes_are_refused(shape):
    network = architecture((5,), (4,), 3)
    blocks = tuple(Block(c.name, np.ones(c.map.weights), 1.0, GradientStep(1.0)) for c in network.connections)
    problem, start = BlockNetwork(network, blocks), tuple(b.start for b in blocks)
    with pytest.raises(InvalidInput, match="data differ"):
        problem.totals(start, Rows(np.zeros((6, shape[0])), np.zeros((6, shape[1]))))
    with pytest.raises(InvalidInput, match="announce their sums"):
        BlockNetwork(network, blocks[:1])


def test_block_sums_are_what_a_session_releases():
    problem, rows, values = made("dense")
    mask = np.ones((1, 7), bool)
    for jacobi in (False, True):
        found = BlockSum(problem, 1, jacobi).total(rows, joined(values)[None], mask)[0]
        assert np.array_equal(found, problem.total(1, values, rows))
