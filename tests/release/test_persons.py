"""Record and replay by person: replace all rows of one, freeze everything else, and see how far each release moves."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from scipy import sparse

from tacit.accounting import certify
from tacit.errors import MechanismMismatch
from tacit.mechanism import Adjacency, Arithmetic, Mechanism
from tacit.problem import Logistic
from tacit.records import InMemory, Mapped, Rows, row_weights
from tacit.records.persons import MAX_ROWS, Persons, id_tags, row_shares, tag_order
from tacit.release import QUERIES, Sweep, sensitivity
from tacit.release.queries import LossGradient, VectorSum

PAIRS = 200
MOST = 50
"""Rows of one person."""
OTHERS = 4
SINGLE = {"person-factors": "every row has places of its own in the sum, so DPNMF refuses it for persons"}
ONE = {name: cls for name, cls in QUERIES.items() if not issubclass(cls, Sweep) and name not in SINGLE}
SWEEPS = {name: cls for name, cls in QUERIES.items() if issubclass(cls, Sweep)}
RATIO = 0.05


def joined(parts: list[Rows], norm: float) -> Rows:
    """Rows of several tables, one after the other."""
    tables = [part.X for part in parts]
    X = sparse.vstack(tables).tocsr() if sparse.issparse(tables[0]) else np.concatenate(tables)
    y = None if parts[0].y is None else np.concatenate([part.y for part in parts])
    return Rows(Mapped(X, norm=norm), y)


class Pair:
    """Two tables of five persons that differ in all rows of one.

    Args:
        example: neighbours that differ in record 0.
        rng: decides how many rows everybody has.
        kind: "worst": one person's rows are alike on either side; "mixed": rows of either kind, and copies of rows that
            belong to others; "rows": as mixed, counted by rows.
    """

    def __init__(self, example, rng: np.random.Generator, kind: str) -> None:
        self.query, here, there, self.state = example
        pool = joined([here, there.take(np.array([0]))], here.norm)
        self.secret = int(rng.integers(2**32))
        self.by = ("rows", int(rng.integers(1, MOST))) if kind == "rows" else ("person", None)
        own, other = (self._rows(rng, first, kind) for first in (0, OTHERS + 1))
        rest = [rng.integers(1, OTHERS + 1, rng.integers(1, 9)) for _ in range(OTHERS)]
        self.here, self.there = (self._table(rng, pool, [one, *rest]) for one in (own, other))
        # ``first``: the secret number of the person who is replaced, the same on both sides.

    def _rows(self, rng, first: int, kind: str) -> np.ndarray:
        count = int(rng.integers(1, MOST + 1))
        return np.full(count, first) if kind == "worst" else rng.choice([0, OTHERS + 1, 1, 2], count)

    def _table(self, rng, pool: Rows, persons: list[np.ndarray]) -> Rows:
        """All rows in a random order, with shares that one secret decides."""
        index, ids = np.concatenate(persons), np.repeat(np.arange(len(persons)), [len(one) for one in persons])
        order = rng.permutation(len(ids))
        rows, weighting = pool.take(index[order]), self.by
        shares = Persons.of(ids[order], len(ids), *weighting).shares(np.random.default_rng(self.secret))
        self.first = int(shares.person[ids[order] == 0][0])
        return Rows(Mapped(rows.X, norm=pool.norm), rows.y, shares=shares)

    def without(self) -> np.ndarray:
        """All persons but one."""
        members = np.ones((1, OTHERS + 1), bool)
        members[0, self.first] = False
        return members


EVERYBODY = np.ones((1, OTHERS + 1), bool)


def mechanism(adjacency: Adjacency, steps: int = 1) -> Mechanism:
    return Mechanism(adjacency=adjacency, ratio=RATIO, steps=steps, unit="person")


def distance(query, grid, a: np.ndarray, b: np.ndarray) -> float:
    """‖a − b‖ of sums, in integers where they are."""
    if grid is None:
        return float(np.linalg.norm(a - b))
    D = query.scales(a.shape[-1])
    squares = [Fraction(1)] * a.shape[-1] if D is None else [Fraction(float(d)) ** 2 for d in D]
    steps = [int(v) for v in np.ravel(a - b)]
    return float(Fraction(grid.unit) ** 2 * sum(s * v * v for s, v in zip(squares, steps, strict=True))) ** 0.5


def sums(pair: Pair, adjacency: Adjacency, grid) -> tuple[np.ndarray, np.ndarray]:
    """Of all persons here, and of all persons there, or here without one."""
    replaced = adjacency is Adjacency.REPLACE_ONE
    other, members = (pair.there, EVERYBODY) if replaced else (pair.here, pair.without())
    a = pair.query.total(pair.here, pair.state, row_weights(pair.here, EVERYBODY), grid)
    return a, pair.query.total(other, pair.state, row_weights(other, members), grid)


def moves(cls, adjacency: Adjacency, kind: str, exact: bool, pairs: int = PAIRS) -> np.ndarray:
    """‖sum on D − sum on D′‖ for neighbouring persons, over the declared sensitivity."""
    rng, out = np.random.default_rng(0), []
    for _ in range(pairs):
        pair = Pair(cls.example(rng, records=OTHERS + 1), rng, kind)
        limit = sensitivity(mechanism(adjacency), pair.query)
        grid = pair.query.grid(limit / RATIO) if exact else None
        out.append(distance(pair.query, grid, *sums(pair, adjacency, grid)) / limit)
    return np.array(out)


@pytest.mark.parametrize("exact", [False, True], ids=["float", "exact"])
@pytest.mark.parametrize("kind", ["worst", "mixed", "rows"])
@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.value)
@pytest.mark.parametrize("name", sorted(ONE))
def test_no_person_moves_a_sum_further_than_declared(name, adjacency, kind, exact):
    ratio = moves(ONE[name], adjacency, kind, exact)
    assert ratio.max() <= 1 + (0 if exact else 1e-9)
    if kind == "worst":
        assert ratio.max() >= 0.99  # and a person who stands for one row gets there


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.value)
def test_the_harness_notices_rows_that_are_taken_for_persons(monkeypatch, adjacency):
    monkeypatch.setitem(globals(), "row_weights", lambda rows, members: members[:, rows.shares.person])
    assert moves(VectorSum, adjacency, "worst", False, 20).max() > 10


@pytest.mark.parametrize("name", sorted(ONE))
def test_a_person_whose_rows_are_alike_counts_as_one_row(name):
    """Σ w_i·c = c: the same sum as from one row each; on a grid up to what is rounded off, next to nothing in σ."""
    rng = np.random.default_rng(1)
    for _ in range(20):
        query, here, _, state = ONE[name].example(rng, records=OTHERS + 1)
        counts = rng.integers(1, MOST, OTHERS + 1)
        index = np.repeat(np.arange(OTHERS + 1), counts)
        rows = here.take(index)
        shares = Persons.of(index, len(index)).shares(rng)
        several = Rows(Mapped(rows.X, norm=here.norm), rows.y, shares=shares)
        alone = query.total(here, state, EVERYBODY)
        np.testing.assert_allclose(
            query.total(several, state, row_weights(several, EVERYBODY)), alone, rtol=1e-7, atol=1e-9
        )
        grid = query.grid(query.bound / RATIO)
        scales = query.scales(alone.shape[1])
        exact = query.total(several, state, row_weights(several, EVERYBODY), grid)
        single = query.total(here, state, EVERYBODY, grid)
        moved = (exact - single) * grid.unit * (1.0 if scales is None else scales)
        assert np.abs(moved).max() <= 5e-4 * query.bound / RATIO


@pytest.mark.parametrize("name", sorted(ONE))
def test_rows_that_change_their_person_move_a_sum_by_two_persons_at_most(name):
    rng = np.random.default_rng(2)
    for _ in range(40):
        query, here, _, state = ONE[name].example(rng, records=OTHERS + 1)
        ids = rng.integers(0, OTHERS + 1, 60)
        ids[: OTHERS + 1] = np.arange(OTHERS + 1)
        rows = here.take(rng.integers(0, OTHERS + 1, 60))
        moved = np.where(ids == 0, 1, ids)
        moved[0] = 0  # one row stays
        a, b = (
            query.total(table, state, row_weights(table, EVERYBODY))
            for table in (
                Rows(
                    Mapped(rows.X, norm=here.norm),
                    rows.y,
                    shares=Persons.of(one, 60).shares(np.random.default_rng(5)),
                )
                for one in (ids, moved)
            )
        )
        limit = sensitivity(mechanism(Adjacency.REPLACE_ONE), query)
        assert np.linalg.norm(a - b) <= 2 * limit * (1 + 1e-9)


# -- what a row counts ------------------------------------------------------------------------------------------


def test_the_rows_of_a_person_count_one_at_most():
    """In fractions: no tolerance."""
    for least in (1, 3, 10, 1000):
        for k in [*range(1, 300), 1000, 4096, 99_991, MAX_ROWS]:
            (weight,) = row_shares(np.array([k]), least)
            total = k * Fraction(float(weight))
            assert total <= 1
            assert total >= min(Fraction(k, least), 1) * (1 - Fraction(1, 2**47))
    assert row_shares(np.array([MAX_ROWS + 1]))[0] == 0


def test_weights_of_rows_are_clipped_to_the_public_maximum():
    ids, weight = np.array([5, 5, 7, 9]), np.array([1.0, 9.0, 2.0, 0.0])
    found = Persons.of(ids, 4, "rows", 4, weight, 4.0).shares(np.random.default_rng(0)).weight
    np.testing.assert_allclose(found, np.array([0.25, 1.0, 0.5, 0.0]) / 4)
    alone = Persons.of(None, 4, sample_weight=weight, max_sample_weight=4.0).shares(np.random.default_rng(0))
    np.testing.assert_allclose(alone.weight, [0.25, 1.0, 0.5, 0.0])
    np.testing.assert_array_equal(alone.person, np.arange(4))


@pytest.mark.parametrize(
    "ids",
    [[3, 1, 2], [3.0, 1.0, 2.0], np.array([3, 1, 2], np.int8), np.array([3, 1, 2], object)],
    ids=["list", "floats", "int8", "objects"],
)
def test_numbers_of_persons_follow_from_ids_whatever_their_type(ids):
    number = Persons.of(ids, 3).shares(np.random.default_rng(4)).person
    np.testing.assert_array_equal(number, Persons.of(np.array([3, 1, 2]), 3).shares(np.random.default_rng(4)).person)
    assert sorted(number) == [0, 1, 2]
    np.testing.assert_array_equal(id_tags(np.array([1.0, 2.5]))[:1], id_tags(np.array([1])))  # each by itself


def test_tags_tell_ids_apart_and_their_order_is_a_matter_of_the_key():
    words = np.array(["a", "b", "ab", "a" * 8, "a" * 9, "", "é"])
    tags = id_tags(words)
    assert len({tuple(tag) for tag in tags.tolist()}) == len(words)
    np.testing.assert_array_equal(tags[:3], id_tags(words[:3]))  # whatever else is beside them
    orders = {tuple(tag_order(tags, np.array([key, 1], np.uint64)).tolist()) for key in range(200)}
    assert len(orders) > 150


# -- sweeps -----------------------------------------------------------------------------------------------------


def sweep_moves(cls, adjacency: Adjacency, kind: str, exact: bool, pairs: int = PAIRS) -> np.ndarray:
    """As ``moves``, for every release of a sweep, at the same coefficients on either side."""
    rng, out = np.random.default_rng(0), []
    for _ in range(pairs):
        pair = Pair(cls.example(rng, records=OTHERS + 1), rng, kind)
        sweep, w = pair.query, pair.state
        limit = sensitivity(mechanism(adjacency, len(sweep.sizes)), sweep)
        grid = sweep.grid(limit / RATIO) if exact else None
        replaced = adjacency is Adjacency.REPLACE_ONE
        other, members = (pair.there, EVERYBODY) if replaced else (pair.here, pair.without())
        left_rows = pair.here.weighted(row_weights(pair.here, EVERYBODY)[0])
        right_rows = other.weighted(row_weights(other, members)[0])
        left, right = sweep.start(left_rows, w), sweep.start(right_rows, w)
        for k in range(len(sweep.sizes)):
            a = sweep.clipped_sum(left_rows, left, k, grid)
            b = sweep.clipped_sum(right_rows, right, k, grid)
            out.append(distance(sweep, grid, a, b) / limit)
            noisy = a * (1.0 if grid is None else grid.unit) + 0.1 * rng.normal(size=a.shape)
            left, right = sweep.apply(left_rows, left, noisy, k), sweep.apply(right_rows, right, noisy, k)
            np.testing.assert_array_equal(sweep.released(left), sweep.released(right))
    return np.array(out)


@pytest.mark.parametrize("exact", [False, True], ids=["float", "exact"])
@pytest.mark.parametrize("kind", ["worst", "mixed", "rows"])
@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.value)
@pytest.mark.parametrize("name", sorted(SWEEPS))
def test_no_person_moves_a_release_of_a_sweep_further_than_declared(name, adjacency, kind, exact):
    ratio = sweep_moves(SWEEPS[name], adjacency, kind, exact)
    assert ratio.max() <= 1 + (0 if exact else 1e-9)
    if kind == "worst":
        assert ratio.max() >= 0.99


# -- sessions ---------------------------------------------------------------------------------------------------


def grouped(n: int = 12) -> InMemory:
    rng = np.random.default_rng(3)
    ids = np.arange(n) // 3
    return InMemory(rng.normal(size=(n, 2)), rng.choice([-1.0, 1.0], n), Persons.of(ids, n))


def test_rows_of_persons_are_refused_under_a_certificate_of_records(opened):
    with pytest.raises(MechanismMismatch, match="person"):
        opened(certify(Mechanism(adjacency="replace-one", ratio=0.5, steps=1)), grouped())


def test_a_session_counts_persons(opened):
    """n is theirs, and a sum with next to no noise is that of persons' means."""
    records = grouped()
    assert records.n == 4
    certificate = certify(Mechanism(adjacency="replace-one", ratio=1e9, steps=1, unit="person"))
    found = opened(certificate, records, random_state=0).release(VectorSum(100.0))
    X = np.random.default_rng(3).normal(size=(12, 2))
    means = X.reshape(4, 3, 2).mean(axis=1)
    np.testing.assert_allclose(np.ravel(found), means.sum(axis=0), atol=1e-5)


@pytest.mark.parametrize("order", [0, 1])
def test_the_order_of_rows_does_not_change_a_bit_of_a_session(opened, order):
    rng = np.random.default_rng(order)
    n = 40
    X, y, ids = rng.normal(size=(n, 3)), rng.choice([-1.0, 1.0], n), rng.integers(0, 9, n)
    certificate = certify(
        Mechanism(adjacency="replace-one", ratio=0.5, steps=3, unit="person", arithmetic=Arithmetic.EXACT)
    )
    ends = []
    for index in (np.arange(n), rng.permutation(n), np.arange(n)[::-1]):
        records = InMemory(X[index], y[index], Persons.of(ids[index], n))
        session = opened(certificate, records, random_state=7)
        state = np.zeros(3)
        for _ in range(3):
            state = state - 0.1 * session.release(LossGradient(Logistic(), 1.0, 1.0), state)
        ends.append(state)
    np.testing.assert_array_equal(ends[0], ends[1])
    np.testing.assert_array_equal(ends[0], ends[2])
