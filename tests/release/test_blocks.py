"""Every problem, replayed on neighbours, block by block; and what a wrong one would do to these tests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

from tacit.errors import InvalidInput, MechanismMismatch
from tacit.kernels.clipping import clipped_total
from tacit.kernels.nonnegative import nonnegative_rows, observed_rows, shorten_rows
from tacit.maps import NonnegativeRows
from tacit.mechanism import Adjacency, Mechanism
from tacit.problem.blocks import Block, GradientStep, joined, separated
from tacit.records import Rows
from tacit.release import PROBLEMS, BlockProblem, BlockSum, Query, replay, sensitivity
from tacit.release.queries import ItemFactors, ItemStatistic, PersonFactors
from tacit.release.queries.factors import all_weights, statistic_size

RECORDS = 5
each_problem = pytest.mark.parametrize("name", ["BlockNetwork", "ItemFactors"])


@pytest.fixture(autouse=True)
def _no_problem_stays(monkeypatch):
    """Problems that a test defines are registered by that, and gone afterwards."""
    monkeypatch.setattr("tacit.release.blocks.PROBLEMS", dict(PROBLEMS))


def test_the_problems_of_the_library_are_those_that_are_tested_here():
    ours = {name for name, cls in PROBLEMS.items() if cls.__module__.startswith("tacit.")}
    assert ours == {"BlockNetwork", "ItemFactors"}


# -- what every problem is held to --------------------------------------------------------------------------------


def remembers(cls, examples=60):
    """Whether a call changes what a later call returns: a hidden variable that is carried along."""
    rng = np.random.default_rng(1)
    for _ in range(examples):
        problem, rows, _, values = cls.example(rng, RECORDS)
        others = tuple(np.abs(value + rng.normal(size=value.shape)) for value in values)
        for i in range(len(problem.blocks)):
            first = problem.total(i, values, rows)
            problem.total(i, others, rows)
            if not np.array_equal(first, problem.total(i, values, rows)):
                return True
    return False


def mixes(cls, examples=60):
    """Whether a record's contribution depends on who else is in the batch."""
    rng = np.random.default_rng(2)
    for _ in range(examples):
        problem, rows, _, values = cls.example(rng, RECORDS)
        for i, block in enumerate(problem.blocks):
            alone = sum(problem.total(i, values, rows.take(np.array([r]))) for r in range(RECORDS))
            if not np.allclose(alone, problem.total(i, values, rows), rtol=1e-9, atol=1e-10 * block.bound):
                return True
    return False


@each_problem
@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.value)
def test_no_block_moves_further_than_declared_and_each_gets_there(name, adjacency):
    for moved in replay(PROBLEMS[name], adjacency).values():
        assert 0.99 <= moved <= 1 + 1e-9


@pytest.mark.parametrize("statistic", list(ItemStatistic))
@pytest.mark.parametrize("unknown", [False, True])
def test_each_statistic_of_items_gets_there(statistic, unknown):
    if unknown and statistic is ItemStatistic.MOMENTS:
        return  # refused

    class Chosen(ItemFactors):
        @classmethod
        def example(cls, rng, records):
            while True:
                found = super().example(rng, records)
                if found.query.statistic is statistic and found.query.people.observed_only == unknown:
                    return found

    assert 0.99 <= replay(Chosen)["items"] <= 1 + 1e-9


@each_problem
def test_a_fast_sum_is_the_sum_of_clipped_contributions(name):
    rng = np.random.default_rng(3)
    for _ in range(60):
        problem, rows, _, values = PROBLEMS[name].example(rng, RECORDS)
        together = problem.totals(values, rows)
        for i, block in enumerate(problem.blocks):
            G = np.ascontiguousarray(problem.contributions(i, values, rows))[None]
            slow = clipped_total(G, np.ones((1, RECORDS), bool), block.bound)[0]
            np.testing.assert_allclose(problem.total(i, values, rows), slow, rtol=1e-7, atol=1e-9 * block.bound)
            np.testing.assert_array_equal(problem.total(i, values, rows), together[i])


@each_problem
def test_nothing_is_remembered_and_nobody_is_mixed(name):
    assert not remembers(PROBLEMS[name])
    assert not mixes(PROBLEMS[name])


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.value)
@pytest.mark.parametrize("cls", [BlockSum, PersonFactors], ids=lambda cls: cls.name)
def test_no_query_moves_further_than_declared_and_each_gets_there(cls, adjacency):
    rng, worst = np.random.default_rng(0), 0.0
    everybody, others = np.ones((1, RECORDS), bool), np.arange(RECORDS)[None] > 0
    mechanism = Mechanism(adjacency=adjacency, ratio=1.0, steps=1)
    for _ in range(200):
        query, here, there, state = cls.example(rng, RECORDS)
        side = (there, everybody) if adjacency is Adjacency.REPLACE_ONE else (here, others)
        moved = query.total(here, state, everybody) - query.total(side[0], state, side[1])
        worst = max(worst, float(np.linalg.norm(moved)) / sensitivity(mechanism, query))
    assert 0.99 <= worst <= 1 + 1e-9


# -- mutants --------------------------------------------------------------------------------------------------------


def mutant(**methods):
    return type("Mutant", (ItemFactors,), methods)


def test_clipping_the_batch_instead_of_people_is_noticed():
    """Errata E10: the mean gradient clipped to C moves by up to 2C, its sum by 2bC."""

    def whole(self, block, values, rows):
        mean = self.contributions(block, values, rows).mean(axis=0)
        bound = self.blocks[0].bound
        return mean * min(1.0, bound / max(np.linalg.norm(mean), 1e-300)) * len(rows)

    wrong = mutant(total=whole)
    assert replay(wrong)["items"] > 1.5
    assert mixes(wrong)


def test_hidden_factors_that_are_carried_along_are_noticed():
    """Errata E6: a warm start from the last step's w lets the record into every later release a second time."""

    def total(self, block, values, rows):
        old = self.__dict__.setdefault("_last", values)
        self.__dict__["_last"] = values
        return ItemFactors.total(self, block, tuple(0.5 * (a + b) for a, b in zip(old, values, strict=True)), rows)

    assert remembers(mutant(total=total))


def test_forgetting_to_clip_is_noticed():
    assert replay(mutant(_factors=lambda self, W, squares: np.ones(len(W))))["items"] > 1.5


# -- blocks and sums ---------------------------------------------------------------------------------------------------


def endless(name="Endless"):
    def contributions(self, block, values, rows):
        return np.full((len(rows), 2), np.inf)

    methods = {"contributions": contributions, "example": classmethod(lambda cls, rng, records: None)}
    return type(name, (BlockProblem,), {"blocks": (Block("a", np.zeros(2), 1.0, GradientStep(0.1)),), **methods})


def test_a_problem_registers_by_being_defined_and_only_such_are_summed():
    assert BlockSum(endless()(), 0).bound == 1.0
    private = endless("_Endless")()
    with pytest.raises(MechanismMismatch, match="not a registered problem"):
        BlockSum(private, 0)
    with pytest.raises(MechanismMismatch, match="not a registered problem"):  # a subclass in its parent's place
        BlockSum(type("_Quiet", (ItemFactors,), {})(*made_items()), 0)


def test_a_name_belongs_to_one_class():
    with pytest.raises(InvalidInput, match="exists already"):
        endless("ItemFactors")


def test_contributions_that_are_not_finite_count_as_nothing():
    problem, rows = endless()(), Rows(np.zeros((2, 1)))
    assert not problem.total(0, (np.zeros(2),), rows).any()
    assert not BlockSum(problem, 0).total(rows, np.zeros((1, 2)), np.ones((1, 2), bool)).any()


def test_an_empty_batch_is_zeros_and_nobody_is_read():
    query = BlockSum(ItemFactors(*made_items()), 0)
    rows = Rows(np.ones((3, 4)))
    rows.take = lambda index: pytest.fail("a record was read")
    assert not query.total(rows, query.problem.blocks[0].start.reshape(1, -1), np.zeros((1, 3), bool)).any()


def made_items(statistic=ItemStatistic.GRADIENT, k=2, d=4):
    H = np.full((k, d), 1 / math.sqrt(d))
    block = Block("items", H, 0.1, GradientStep(1.0), statistic_size(k, d, statistic))
    return (block,), statistic, NonnegativeRows(d, 1.0)


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"start": np.array(1.0)},
        {"start": [np.nan]},
        {"bound": 0.0},
        {"update": 3},
        {"diameter": 3.0},
        {"diameter": 0.5},
        {"size": 0},
    ],
)
def test_bad_blocks_are_refused(change):
    good = {"name": "a", "start": np.zeros(2), "bound": 1.0, "update": GradientStep(0.1)}
    Block(**good)
    with pytest.raises(InvalidInput):
        Block(**{**good, **change})


def test_blocks_join_and_separate():
    blocks = tuple(Block(str(i), np.ones(shape), 1.0, GradientStep(1.0)) for i, shape in enumerate([(2, 3), (4,)]))
    values = (np.arange(6.0).reshape(2, 3), np.arange(4.0))
    for a, b in zip(separated(joined(values), blocks), values, strict=True):
        np.testing.assert_array_equal(a, b)


# -- rows and hidden factors ---------------------------------------------------------------------------------------


def test_hidden_factors_are_the_non_negative_least_squares_solution():
    from scipy.optimize import nnls

    rng = np.random.default_rng(0)
    H, M = rng.gamma(0.5, size=(4, 30)), rng.gamma(0.5, size=(20, 30))
    ours = nonnegative_rows(H @ H.T, M @ H.T, 2000)
    seen = observed_rows(*_csr(M), np.ascontiguousarray(H.T), 0.0, math.inf, 2000)
    for row, w in zip(M, ours, strict=True):
        np.testing.assert_allclose(w, nnls(H.T, row)[0], atol=1e-6)
    np.testing.assert_allclose(seen[0], ours, atol=1e-9)  # every entry is stored
    np.testing.assert_allclose(seen[1].reshape(M.shape), M - ours @ H, atol=1e-8)


def _csr(M):
    matrix = sparse.csr_matrix(M)
    return matrix.indptr, matrix.indices, matrix.data


@pytest.mark.parametrize("scale", [1e-160, 1.0, 1e160, 1e307])
def test_rows_are_shortened_without_overflow(scale):
    rows = np.array([[3.0, -1.0, 4.0], [0.0, 0.0, 0.0]]) * scale
    data = sparse.csr_matrix(rows)
    values = data.data.copy()
    shorten_rows(data.indptr, values, 1.0)
    expected = [0.6, 0.0, 0.8] if scale >= 1 else [3 * scale, 0.0, 4 * scale]
    np.testing.assert_allclose(values, expected, rtol=1e-12)
    for table in (rows, data):
        part = NonnegativeRows(3, 1.0)(table)
        part = part.toarray() if sparse.issparse(part) else part
        np.testing.assert_allclose(part[0], expected, rtol=1e-4 if scale >= 1 else 1e-12)
        assert np.linalg.norm(part[0]) <= 1 + 1e-12
        assert not part[1].any()


@pytest.mark.parametrize("statistic", list(ItemStatistic))
def test_sparse_and_dense_rows_contribute_the_same(statistic):
    rng = np.random.default_rng(0)
    M = rng.gamma(0.5, size=(7, 9)) * (rng.random((7, 9)) < 0.4)
    H = rng.gamma(0.5, size=(3, 9))
    H /= np.linalg.norm(H, axis=1, keepdims=True)
    block = Block("items", H, 0.1, GradientStep(1.0), statistic_size(3, 9, statistic))
    tables = (M, sparse.csr_matrix(M), sparse.csr_matrix(M, dtype=np.float32), sparse.csc_array(M))
    problem = ItemFactors((block,), statistic, NonnegativeRows(9, 1.0), weight=0.3)
    sums = [problem.total(0, (H,), Rows(t)) for t in tables]
    np.testing.assert_allclose(sums[3], sums[1], rtol=1e-12)
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(sums[2], sums[0], rtol=1e-4, atol=1e-6)


def test_unknown_entries_do_not_count():
    rng = np.random.default_rng(0)
    M, H = rng.gamma(1.0, size=(4, 6)), rng.gamma(1.0, size=(2, 6))
    H /= np.linalg.norm(H, axis=1, keepdims=True)
    M[:, 3:] = np.nan
    w = all_weights(M, H, observed_only=True)
    np.testing.assert_allclose(w, all_weights(M[:, :3], H[:, :3]), atol=1e-8)
    block = Block("items", H, 0.1, GradientStep(1.0))
    problem = ItemFactors((block,), ItemStatistic.GRADIENT, NonnegativeRows(6, 1.0, observed_only=True))
    total = problem.total(0, (H,), Rows(M))
    assert not total.reshape(2, 6)[:, 3:].any()
    assert total.any()


def test_factors_of_people_are_a_sum_in_which_everybody_has_a_place():
    rng = np.random.default_rng(0)
    M, H = rng.gamma(1.0, size=(4, 6)), np.eye(2, 6)
    query, rows = PersonFactors(NonnegativeRows(6, 1.0), 2, 4), Rows(M, np.arange(4))
    batch = np.array([[True, False, True, True]])
    out = query.total(rows, H.ravel()[None], batch).reshape(4, 2)
    assert not out[1].any()
    assert (np.linalg.norm(out, axis=1) <= 1 + 1e-12).all()
    slow = Query.total(query, rows, H.ravel()[None], batch).reshape(4, 2)  # by contributions
    np.testing.assert_allclose(out, slow)
    for places in ([9, 9, -3, 1], [2, 2, 2, 2]):  # public numbers, whatever they are: nobody counts for more
        moved = query.total(Rows(M, np.array(places)), H.ravel()[None], np.ones((1, 4), bool)).reshape(4, 2)
        np.testing.assert_allclose(
            moved.sum(axis=0), query.total(rows, H.ravel()[None], np.ones((1, 4), bool)).reshape(4, 2).sum(axis=0)
        )


@pytest.mark.parametrize("statistic", list(ItemStatistic))
def test_many_parts_are_one_sum(statistic, monkeypatch):
    """A table that does not fit into one part of a batch, dense and sparse."""
    rng = np.random.default_rng(0)
    M = rng.gamma(0.5, size=(40, 4)) * (rng.random((40, 4)) < 0.7)
    problem = ItemFactors(*made_items(statistic))
    H = problem.blocks[0].start
    for table in (M, sparse.csr_matrix(M)):
        whole = problem.total(0, (H,), Rows(table))
        with monkeypatch.context() as patch:
            patch.setattr("tacit.release.queries.people.PART_ENTRIES", 12)
            np.testing.assert_allclose(problem.total(0, (H,), Rows(table)), whole, rtol=1e-12, atol=1e-15)
