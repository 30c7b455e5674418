"""Every registered problem, replayed on neighbours, block by block; and what a wrong one would do to these tests."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import sparse

from tacit.errors import InvalidInput, MechanismMismatch
from tacit.kernels.clipping import clipped_total
from tacit.kernels.nonnegative import nonnegative_rows, observed_rows, shorten_rows
from tacit.mechanism import Adjacency
from tacit.run.blocks import (
    PROBLEMS,
    Block,
    BlockProblem,
    BlockSum,
    GradientStep,
    joined,
    register_problem,
    replay,
    separated,
)
from tacit.run.clipped_sum import ClippedSum
from tacit.run.sums import FactorRows, ItemFactors, ItemStatistic, PersonFactors
from tacit.run.sums.factors import statistic_size

RECORDS = 5
ALL = np.arange(RECORDS)
each_problem = pytest.mark.parametrize("name", sorted(PROBLEMS))


# -- what every problem is held to --------------------------------------------------------------------------------


def remembers(cls, examples=60):
    """Whether a call changes what a later call returns: a hidden variable that is carried along."""
    rng = np.random.default_rng(1)
    for _ in range(examples):
        problem, _, values = cls.example(rng, RECORDS)
        others = tuple(np.abs(value + rng.normal(size=value.shape)) for value in values)
        for i in range(len(problem.blocks)):
            first = problem.total(i, values, ALL)
            problem.total(i, others, ALL)
            if not np.array_equal(first, problem.total(i, values, ALL)):
                return True
    return False


def mixes(cls, examples=60):
    """Whether a record's contribution depends on who else is in the batch."""
    rng = np.random.default_rng(2)
    for _ in range(examples):
        problem, _, values = cls.example(rng, RECORDS)
        for i, block in enumerate(problem.blocks):
            alone = sum(problem.total(i, values, np.array([r])) for r in ALL)
            if not np.allclose(alone, problem.total(i, values, ALL), rtol=1e-9, atol=1e-10 * block.bound):
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
                here, there, values = super().example(rng, records)
                if here._statistic is statistic and here._rows.observed_only == unknown:
                    return here, there, values

    register_problem("test-chosen")(Chosen)
    try:
        assert 0.99 <= replay(Chosen)["items"] <= 1 + 1e-9
    finally:
        del PROBLEMS["test-chosen"]


@each_problem
def test_a_fast_sum_is_the_sum_of_clipped_contributions(name):
    rng = np.random.default_rng(3)
    for _ in range(60):
        problem, _, values = PROBLEMS[name].example(rng, RECORDS)
        for i, block in enumerate(problem.blocks):
            G = np.ascontiguousarray(problem.contributions(i, values, ALL))[None]
            slow = clipped_total(G, np.ones((1, RECORDS), bool), block.bound)[0]
            np.testing.assert_allclose(problem.total(i, values, ALL), slow, rtol=1e-7, atol=1e-9 * block.bound)


@each_problem
def test_nothing_is_remembered_and_nobody_is_mixed(name):
    assert not remembers(PROBLEMS[name])
    assert not mixes(PROBLEMS[name])


# -- mutants --------------------------------------------------------------------------------------------------------


def mutant(**methods):
    return type("Mutant", (ItemFactors,), methods)


def test_clipping_the_batch_instead_of_people_is_noticed():
    """Errata E10: the mean gradient clipped to C moves by up to 2C, its sum by 2bC."""

    def whole(self, block, values, index):
        mean = self.contributions(block, values, index).mean(axis=0)
        bound = self.blocks[0].bound
        return mean * min(1.0, bound / max(np.linalg.norm(mean), 1e-300)) * len(index)

    wrong = register_problem("mutant-e10")(mutant(total=whole))
    try:
        assert replay(wrong)["items"] > 1.5
        assert mixes(wrong)
    finally:
        del PROBLEMS["mutant-e10"]


def test_hidden_factors_that_are_carried_along_are_noticed():
    """Errata E6: a warm start from the last step's w lets the record into every later release a second time."""

    def total(self, block, values, index):
        old = self.__dict__.setdefault("_last", values)
        self._last = values
        return ItemFactors.total(self, block, tuple(0.5 * (a + b) for a, b in zip(old, values, strict=True)), index)

    assert remembers(mutant(total=total))


def test_forgetting_to_clip_is_noticed():
    wrong = register_problem("mutant-clip")(mutant(_factors=lambda self, W, squares: np.ones(len(W))))
    try:
        assert replay(wrong)["items"] > 1.5
    finally:
        del PROBLEMS["mutant-clip"]


# -- blocks and sums ---------------------------------------------------------------------------------------------------


class Unregistered(BlockProblem):
    blocks = (Block("a", np.zeros(2), 1.0, GradientStep(0.1)),)
    records = 2

    def contributions(self, block, values, index):
        return np.full((len(index), 2), np.inf)

    @classmethod
    def example(cls, rng, records):
        raise NotImplementedError


def test_only_registered_problems_are_summed():
    with pytest.raises(MechanismMismatch, match="register_problem"):
        BlockSum(Unregistered(), 0)


def test_a_name_belongs_to_one_class():
    with pytest.raises(InvalidInput, match="registered already"):
        register_problem("item-factors")(Unregistered)


def test_contributions_that_are_not_finite_count_as_nothing():
    assert not Unregistered().total(0, (np.zeros(2),), np.arange(2)).any()


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
        part = FactorRows(table, 1.0).take(np.arange(2))
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
    tables = (M, sparse.csr_matrix(M), sparse.csr_matrix(M, dtype=np.float32))
    sums = [ItemFactors(FactorRows(t, 1.0), block, statistic, weight=0.3).total(0, (H,), np.arange(7)) for t in tables]
    np.testing.assert_allclose(sums[1], sums[0], rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(sums[2], sums[0], rtol=1e-4, atol=1e-6)


def test_unknown_entries_do_not_count():
    rng = np.random.default_rng(0)
    M, H = rng.gamma(1.0, size=(4, 6)), rng.gamma(1.0, size=(2, 6))
    H /= np.linalg.norm(H, axis=1, keepdims=True)
    M[:, 3:] = np.nan
    w = FactorRows(M, None, observed_only=True).all_weights(H)
    np.testing.assert_allclose(w, FactorRows(M[:, :3], None).all_weights(H[:, :3]), atol=1e-8)
    block = Block("items", H, 0.1, GradientStep(1.0))
    total = ItemFactors(FactorRows(M, 1.0, observed_only=True), block, ItemStatistic.GRADIENT).total(
        0, (H,), np.arange(4)
    )
    assert not total.reshape(2, 6)[:, 3:].any()
    assert total.any()


def test_factors_of_people_are_a_sum_in_which_everybody_has_a_place():
    rng = np.random.default_rng(0)
    M, H = rng.gamma(1.0, size=(4, 6)), np.eye(2, 6)
    total = PersonFactors(FactorRows(M, 1.0), 2)
    batch = np.array([[True, False, True, True]])
    out = total.total(H.ravel()[None], batch).reshape(4, 2)
    assert not out[1].any()
    assert (np.linalg.norm(out, axis=1) <= 1 + 1e-12).all()
    slow = ClippedSum.total(total, H.ravel()[None], batch).reshape(4, 2)  # by contributions
    np.testing.assert_allclose(out, slow)
