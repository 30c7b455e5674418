"""Exact sums of every block problem and statistic: bounds in fractions, records to the bit, one pass for all blocks."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from tacit.accounting import certify
from tacit.errors import MechanismMismatch
from tacit.kernels.softmax import softmax
from tacit.maps import NonnegativeRows
from tacit.mechanism import Adjacency, Mechanism
from tacit.problem import OneVsRest, Softmax, SquaredOutputs
from tacit.problem.blocks import Block, GradientStep, joined
from tacit.problem.layers import Convolution, Dense
from tacit.problem.network import architecture
from tacit.records import InMemory, Rows
from tacit.release import BlockSum, open_session, sensitivity
from tacit.release.blocks import PROBLEMS
from tacit.release.queries import (
    BlockNetwork,
    GatedOutputs,
    ItemFactors,
    ItemStatistic,
    LayerStatistic,
    LinearOutputs,
    PersonFactors,
)
from tacit.release.queries.factors import statistic_size
from tacit.release.queries.network import example_block
from tacit.solvers.blocks import BlockDescent, plan_blocks

FORMS = ("dense", "sparse", "unknown")
ITEMS = [(s, f) for s in ItemStatistic for f in FORMS if (s, f) != (ItemStatistic.MOMENTS, "unknown")]
LAYERS = [("dense", s) for s in LayerStatistic] + [("picture", LayerStatistic.GRADIENT)]
RATIOS = (0.003, 0.4, 20.0)


def moved(query, grid, here, there) -> Fraction:
    """‖D·g·(q − q′)‖², exactly."""
    D = query.scales(here.shape[1])
    weights = [Fraction(1)] * here.shape[1] if D is None else [Fraction(d) ** 2 for d in D]
    steps = (here[0].astype(object) - there[0].astype(object)).tolist()
    return Fraction(grid.unit) ** 2 * sum(w * s * s for w, s in zip(weights, steps, strict=True))


def item_form(problem, rows):
    if problem.people.observed_only:
        return "unknown"
    return "sparse" if sparse.issparse(rows.X) else "dense"


def examples(cls, wanted, count, records=5, seed=3):
    """Random neighbours of one problem, of one kind only."""
    rng = np.random.default_rng(seed)
    while count:
        found = cls.example(rng, records)
        if wanted(found.query, found.here):
            count -= 1
            yield found, rng


def of_items(statistic, form):
    return ItemFactors, lambda problem, rows: problem.statistic is statistic and item_form(problem, rows) == form


def of_layers(kind, statistic):
    def wanted(problem, rows):
        patches = max(c.map.patches for c in problem.network.connections)
        return problem.statistic is statistic and (patches > 1) == (kind == "picture")

    return BlockNetwork, wanted


KINDS = [of_items(*one) for one in ITEMS] + [of_layers(*one) for one in LAYERS]
NAMES = [f"items {s.name.lower()} {f}" for s, f in ITEMS] + [f"layers {s.name.lower()} {k}" for k, s in LAYERS]
each_kind = pytest.mark.parametrize(("cls", "wanted"), KINDS, ids=NAMES)


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.value)
@each_kind
def test_no_block_moves_further_than_declared(cls, wanted, adjacency):
    worst, m = 0.0, Mechanism(adjacency=adjacency, ratio=1.0, steps=1)
    everyone, others = np.ones((1, 5), bool), np.arange(5)[None] > 0
    for (problem, here, there, values), rng in examples(cls, wanted, 80):
        state = joined(values)[None]
        for i in range(len(problem.blocks)):
            query = BlockSum(problem, i)
            grid = query.grid(sensitivity(m, query) / RATIOS[rng.integers(3)])
            side = (there, everyone) if adjacency is Adjacency.REPLACE_ONE else (here, others)
            a, b = query.total(here, state, everyone, grid), query.total(side[0], state, side[1], grid)
            assert a.dtype == b.dtype == np.int64
            square, limit = moved(query, grid, a, b), Fraction(sensitivity(m, query)) ** 2
            assert square <= limit
            worst = max(worst, float(square / limit))
    assert worst**0.5 > 0.98


@each_kind
def test_no_order_and_no_partition_changes_a_bit_of_a_block(cls, wanted):
    for (problem, rows, _, values), rng in examples(cls, wanted, 6, records=37):
        state, n = joined(values)[None], 37
        for i in range(len(problem.blocks)):
            query = BlockSum(problem, i)
            grid = query.grid(query.bound * 10.0 ** rng.integers(-1, 3))
            whole = query.total(rows, state, np.ones((1, n), bool), grid)
            cuts = np.array_split(rng.permutation(n), int(rng.integers(1, n + 1)))
            parts = [query.total(rows.take(cut), state, np.ones((1, len(cut)), bool), grid) for cut in cuts]
            np.testing.assert_array_equal(np.sum(parts, axis=0), whole)


@each_kind
def test_integers_are_the_sum_of_a_block_that_floats_approximate(cls, wanted):
    for (problem, rows, _, values), _ in examples(cls, wanted, 12, records=9):
        state, everyone = joined(values)[None], np.ones((1, 9), bool)
        for i in range(len(problem.blocks)):
            query = BlockSum(problem, i)
            grid = query.grid(query.bound / 20)
            D = query.scales(query._described.release_size)
            q, plain = query.total(rows, state, everyone, grid), query.total(rows, state, everyone)
            found = q * grid.unit * (1.0 if D is None else D)
            np.testing.assert_allclose(found, plain, atol=1e-4 * query.bound, rtol=1e-4)


# -- other sizes, other records --------------------------------------------------------------------------------------


def factorisation(statistic, form, k=7, d=53, n=300, bound=0.05):
    rng = np.random.default_rng(k)
    H = rng.gamma(0.5, size=(k, d))
    H /= np.linalg.norm(H, axis=1, keepdims=True)
    M = rng.gamma(0.5, size=(n, d)) * rng.choice([0.1, 9.0], size=(n, 1))
    M *= rng.random((n, d)) < (1.0 if form == "dense" else 0.2)
    block = Block("items", H, bound, GradientStep(1.0), statistic_size(k, d, statistic))
    problem = ItemFactors((block,), statistic, NonnegativeRows(d, 1.0, form == "unknown"), weight=0.3, ridge=0.01)
    return problem, Rows(M if form == "dense" else sparse.csr_matrix(M)), (H,)


def network(kind, statistic=LayerStatistic.GRADIENT, n=200):
    rng = np.random.default_rng(5)
    shape, layers = ((1, 9, 9), (Convolution(3, 3, pool=2), Dense(11))) if kind == "picture" else ((23,), (17, 11))
    net = architecture(shape, layers, 10, norms=1.0)
    starts = [rng.normal(size=c.map.weights) / 3 for c in net.connections]
    blocks = [
        example_block(c.name, W, net.design_norm(c), statistic, 0.1, 0.2)
        for W, c in zip(starts, net.connections, strict=True)
    ]
    more = (0.2,) * len(blocks), (0.1,) * len(blocks)
    X = rng.normal(size=(n, int(np.prod(shape)))).astype(np.float32)
    return BlockNetwork(net, tuple(blocks), statistic, *more), Rows(X, np.eye(10)[rng.integers(10, size=n)]), starts


LARGE = {f"items {s.name.lower()} {f}": (factorisation, s, f) for s, f in ITEMS} | {
    f"layers {s.name.lower()} {k}": (network, k, s) for k, s in LAYERS
}


@pytest.mark.parametrize("name", LARGE)
def test_a_record_of_many_is_what_it_is_alone(name):
    """Sums over one record each, over odd numbers of them and over all agree to the bit."""
    make, *kind = LARGE[name]
    problem, rows, values = make(*kind)
    state, n = joined(tuple(values))[None], len(rows)
    for i in range(len(problem.blocks)):
        query = BlockSum(problem, i)
        grid = query.grid(3 * query.bound)
        whole = query.total(rows, state, np.ones((1, n), bool), grid)
        for size in (1, 3, 64):
            cuts = [np.arange(first, min(first + size, n)) for first in range(0, n, size)]
            parts = [query.total(rows.take(cut), state, np.ones((1, len(cut)), bool), grid) for cut in cuts]
            np.testing.assert_array_equal(np.sum(parts, axis=0), whole)


def outputs(gated, loss, kind, n=150, d=41):
    rng = np.random.default_rng(1)
    X = (rng.normal(size=(n, d)) * rng.choice([0.01, 1.0, 50.0], size=(n, 1))).astype(kind)
    y = rng.normal(size=(n, 10)) if isinstance(loss, SquaredOutputs) else rng.integers(10, size=n)
    query = GatedOutputs(loss, 1.5, rng.normal(size=(6, d))) if gated else LinearOutputs(loss, 1.5)
    return query, Rows(X, y), rng.normal(size=(1, 10 * d * (6 if gated else 1)))


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("loss", [Softmax(10, 0.4), OneVsRest(10), SquaredOutputs(10, 0.7)], ids=lambda loss: loss.name)
@pytest.mark.parametrize("gated", [False, True])
def test_outputs_of_a_record_of_many_are_its_own(gated, loss, kind):
    query, rows, theta = outputs(gated, loss, kind)
    n, grid = len(rows), query.grid(2 * query.bound)
    whole = query.total(rows, theta, np.ones((1, n), bool), grid)
    each = [query.total(rows, theta, one[None], grid) for one in np.eye(n, dtype=bool)]
    np.testing.assert_array_equal(np.sum(each, axis=0), whole)
    longest = Fraction(query.bound) ** 2
    assert all(Fraction(grid.unit) ** 2 * sum(int(t) ** 2 for t in one[0]) <= longest for one in each)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LARGE)
def test_a_record_that_fails_counts_as_zero_and_harms_nobody(name):
    make, *kind = LARGE[name]
    problem, rows, values = make(*kind, n=12)
    state, others = joined(tuple(values))[None], np.arange(12)[None] > 0
    bad = rows.X.toarray() if sparse.issparse(rows.X) else rows.X.copy()
    for value in (np.inf, 1e308 if bad.dtype == np.float64 else 1e38, np.nan):
        bad[0] = value
        table = Rows(sparse.csr_matrix(bad) if sparse.issparse(rows.X) else bad, rows.y)
        for i in range(len(problem.blocks)):
            query = BlockSum(problem, i)
            grid = query.grid(query.bound)
            a, b = query.total(table, state, others | True, grid), query.total(table, state, others, grid)
            np.testing.assert_array_equal(b, query.total(rows, state, others, grid))
            assert moved(query, grid, a, b) <= Fraction(query.bound) ** 2


def test_tiny_bounds_keep_some_of_a_sum():
    """Clipped factors are as short as C: their unit follows it."""
    for statistic in ItemStatistic:
        problem, rows, values = factorisation(statistic, "dense", bound=1e-9)
        query, everyone = BlockSum(problem, 0), np.ones((1, len(rows)), bool)
        grid = query.grid(1e-9)
        D = query.scales(query._described.release_size)
        q = query.total(rows, joined(values)[None], everyone, grid) * grid.unit * (1.0 if D is None else D)
        plain = query.total(rows, joined(values)[None], everyone)
        assert np.linalg.norm(q - plain) < 0.02 * np.linalg.norm(plain)


def test_items_beyond_their_grid_are_refused_with_a_reason():
    problem, rows, (H,) = factorisation(ItemStatistic.RESIDUALS, "dense")
    query = BlockSum(problem, 0)
    with pytest.raises(MechanismMismatch, match="norm 1"):
        query.total(rows, 9 * H.ravel()[None], np.ones((1, len(rows)), bool), query.grid(1.0))


def test_people_stand_in_their_own_places():
    query, rows, _, state = PersonFactors.example(np.random.default_rng(0), 9)
    grid = query.grid(0.5)
    q = query.total(rows, state, np.ones((1, 9), bool), grid).reshape(9, 2)
    for i in range(9):
        one = query.total(rows, state, np.arange(9)[None] == i, grid).reshape(9, 2)
        np.testing.assert_array_equal(one[i], q[i])
        assert not np.delete(one, i, axis=0).any()


# -- runs ------------------------------------------------------------------------------------------------------------


def exact_plan(problem, n, **more):
    """The plan of a run, in exact arithmetic."""
    plan = plan_blocks(None, 1e-5, blocks=problem.blocks, n=n, epochs=2, noise_multiplier=5.0, **more)
    parts = tuple(dataclasses.replace(part, arithmetic="exact") for part in plan.certificate.plan.parts)
    certificate = certify(dataclasses.replace(plan.certificate.plan, parts=parts), delta=1e-5)
    return dataclasses.replace(plan, certificate=certificate)


@pytest.mark.parametrize("sampling", ["full", "cyclic", "poisson"])
def test_one_pass_gives_the_exact_sums_of_all_blocks(sampling, monkeypatch):
    problem, rows, _ = network("dense")
    more = {} if sampling == "full" else {"batch_size": 50}
    plan, ends, passes = exact_plan(problem, len(rows), sampling=sampling, order="jacobi", **more), [], []
    hidden = BlockNetwork._hidden
    monkeypatch.setattr(BlockNetwork, "_hidden", lambda self, *args: passes.append(1) or hidden(self, *args))
    for at_once in (True, False):
        if not at_once:
            monkeypatch.setattr(BlockSum, "with_grids", lambda self, grids: self)
        with open_session(plan.certificate, InMemory(rows.X, rows.y), random_state=0) as session:
            ends.append(joined(BlockDescent(plan, problem).solve(session)))
        passes.append(0)
    first = passes.index(0)
    assert 0 < first <= (len(passes) - 2) / 3 + 1
    np.testing.assert_array_equal(ends[0], ends[1])


@pytest.mark.parametrize("statistic", list(ItemStatistic), ids=lambda s: s.name)
def test_a_run_lies_on_its_grid(statistic):
    problem, rows, _ = factorisation(statistic, "sparse")
    seen = []

    def keep(value, noisy, at):
        seen.append(noisy)
        return value

    (block,) = problem.blocks
    problem = dataclasses.replace(problem, blocks=(dataclasses.replace(block, update=keep),))
    plan = exact_plan(problem, len(rows), sampling="poisson", batch_size=100)
    with open_session(plan.certificate, InMemory(rows.X), random_state=0) as session:
        (grid,) = session.grids([BlockSum(problem, 0)])
        BlockDescent(plan, problem).solve(session)
    D = problem.scales(0)
    for noisy in seen:
        steps = noisy / (grid.unit * (1.0 if D is None else D))
        np.testing.assert_allclose(steps, np.rint(steps), rtol=1e-12)


def test_a_total_that_knows_no_grid_is_refused_before_anything_is_read(monkeypatch):
    def total(self, block, values, rows):
        raise AssertionError

    made, rows, _ = factorisation(ItemStatistic.GRADIENT, "dense")
    plain = type("_Plain", (ItemFactors,), {"total": total})
    monkeypatch.setitem(PROBLEMS, "_Plain", plain)
    problem = plain(made.blocks, made.statistic, made.people)
    plan = exact_plan(problem, len(rows), sampling="full")
    with (
        open_session(plan.certificate, InMemory(rows.X)) as session,
        pytest.raises(MechanismMismatch, match="no integer sums"),
    ):
        BlockDescent(plan, problem).solve(session)


def test_our_own_exponential_is_the_exponential():
    Z = -np.abs(np.random.default_rng(0).normal(size=(5000, 2))) * 200
    Z[:, 0] = 0.0
    ours, theirs = softmax(Z)[:, 1], np.exp(Z[:, 1]) / (1 + np.exp(Z[:, 1]))
    np.testing.assert_allclose(ours, theirs, rtol=1e-14, atol=1e-300)
    np.testing.assert_array_equal(softmax(np.array([[-1e300, 0.0], [-np.inf, 3.0]])), [[0.0, 1.0], [0.0, 1.0]])
    assert np.isnan(softmax(np.array([[np.nan, 0.0]]))).all()
