"""Exact arithmetic: integers of one record to the bit, sums that no order changes, and bounds without a tolerance."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tacit.accounting import certify
from tacit.errors import MechanismMismatch
from tacit.mechanism import Adjacency, Mechanism
from tacit.records import InMemory
from tacit.release import QUERIES, Sweep, open_session, sensitivity
from tacit.release.queries import VectorSum
from tacit.release.query import Query

EXACT = {name: cls for name, cls in QUERIES.items() if not issubclass(cls, Sweep) and name != "per-record-gradients"}
RATIOS = (0.003, 0.4, 20.0)


def settings(cls, rng, records):
    """An example with a grid for one of several budgets."""
    example = cls.example(rng, records=records)
    m = Mechanism(adjacency="replace-one", ratio=1.0, steps=1)
    return example, example.query.grid(sensitivity(m, example.query) / RATIOS[rng.integers(3)])


def moved(query, grid, here, there) -> Fraction:
    """‖D·g·(q − q′)‖², exactly."""
    D = query.scales(here.shape[1])
    weights = [Fraction(1)] * here.shape[1] if D is None else [Fraction(d) ** 2 for d in D]
    steps = (here[0].astype(object) - there[0].astype(object)).tolist()
    return Fraction(grid.unit) ** 2 * sum(w * s * s for w, s in zip(weights, steps, strict=True))


@pytest.mark.parametrize("adjacency", list(Adjacency), ids=lambda a: a.value)
@pytest.mark.parametrize("name", sorted(EXACT))
def test_integers_never_move_further_than_declared(name, adjacency):
    """Computed in fractions: there is no tolerance, and 99 % is reached."""
    rng, worst = np.random.default_rng(3), 0.0
    everyone, others = np.ones((1, 5), bool), np.array([[False, True, True, True, True]])
    m = Mechanism(adjacency=adjacency, ratio=1.0, steps=1)
    for _ in range(200):
        (query, here, there, state), grid = settings(EXACT[name], rng, 5)
        a = query.total(here, state, everyone, grid)
        replaced = adjacency is Adjacency.REPLACE_ONE
        b = query.total(there, state, everyone, grid) if replaced else query.total(here, state, others, grid)
        assert a.dtype == np.int64
        square, limit = moved(query, grid, a, b), Fraction(sensitivity(m, query)) ** 2
        assert square <= limit
        worst = max(worst, float(square / limit))
    assert worst**0.5 > 0.99


@pytest.mark.parametrize("name", sorted(EXACT))
def test_integers_are_the_sum_that_floats_approximate(name):
    rng = np.random.default_rng(5)
    for _ in range(40):
        (query, rows, _, state), _ = settings(EXACT[name], rng, 7)
        grid = query.grid(query.bound / 20)
        members = rng.random((1, 7)) < rng.choice([0.5, 1.0])
        q, plain = query.total(rows, state, members, grid), query.total(rows, state, members)
        D = query.scales(q.shape[1])
        np.testing.assert_allclose(q * grid.unit * (1.0 if D is None else D), plain, atol=1e-4 * query.bound, rtol=1e-4)


@pytest.mark.parametrize("name", sorted(EXACT))
def test_no_order_and_no_partition_changes_a_bit(name):
    """A record's integers do not depend on its place, on its neighbours, or on how many there are."""
    rng = np.random.default_rng(7)
    for _ in range(15):
        n = int(rng.integers(1, 40))
        (query, rows, _, state), grid = settings(EXACT[name], rng, n)
        everyone = np.ones((1, n), bool)
        whole = query.total(rows, state, everyone, grid)
        cuts = np.array_split(rng.permutation(n), int(rng.integers(1, n + 1)))
        parts = [query.total(rows.take(cut), state, np.ones((1, len(cut)), bool), grid) for cut in cuts if len(cut)]
        np.testing.assert_array_equal(np.sum(parts, axis=0), whole)
        masks = [np.isin(np.arange(n), cut)[None] for cut in cuts]
        np.testing.assert_array_equal(np.sum([query.total(rows, state, m, grid) for m in masks], axis=0), whole)


def exact(steps: int = 1, ratio: float = 0.5, **more) -> Mechanism:
    return Mechanism(adjacency="replace-one", ratio=ratio, steps=steps, arithmetic="exact", **more)


def test_a_release_lies_on_its_grid_and_has_the_certified_noise():
    X = np.random.default_rng(0).normal(size=(50, 2000)) / 100
    with open_session(certify(exact()), InMemory(X), random_state=0) as session:
        sigma = session.noise_std(VectorSum(1.0))
        found = session.release(VectorSum(1.0))
    unit = VectorSum(1.0).grid(sigma).unit
    assert (found / unit == np.rint(found / unit)).all()
    noise = found - np.array([x * min(1, 1 / np.linalg.norm(x)) for x in X]).sum(axis=0)
    assert 0.93 * sigma < noise.std() < 1.07 * sigma


def test_a_query_without_integer_sums_is_refused():
    class Plain(Query):
        bound = 1.0

        def contributions(self, rows, state):
            return np.ones((1, len(rows), 1))

        @classmethod
        def example(cls, rng, records):
            raise NotImplementedError

        def total(self, rows, state, members, grid=None):
            return members.sum(axis=1, keepdims=True).astype(float)

    Plain.name = "plain-for-this-test"
    QUERIES[Plain.name] = Plain
    try:
        with (
            open_session(certify(exact()), InMemory(np.ones((3, 1)))) as session,
            pytest.raises(MechanismMismatch, match="no integer sums"),
        ):
            session.release(Plain())
    finally:
        del QUERIES[Plain.name]
