"""The contract of every place of records: whoever defines one gets these tests."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.accounting import certify
from tacit.maps import AffineTarget, Standardise
from tacit.mechanism import Mechanism, Poisson
from tacit.problem import Logistic, Squared
from tacit.records import PLACES, InMemory
from tacit.release import open_session
from tacit.release.queries import GramSum, LossGradient

NAMES = sorted(name for name, cls in PLACES.items() if cls.__module__.startswith("tacit."))
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(31, 3)), RNG.choice([-1.0, 1.0], size=31)


def rows(records) -> tuple[np.ndarray, np.ndarray]:
    parts = list(records.parts())
    tables = [np.asarray(part.X.toarray() if hasattr(part.X, "toarray") else part.X) for part in parts]
    return np.concatenate(tables), np.concatenate([part.y for part in parts])


@pytest.mark.parametrize("name", NAMES)
def test_all_records_are_there_in_their_order(name):
    records = PLACES[name].example(X, Y)
    table, target = rows(records)
    assert records.n == 31
    assert np.array_equal(table, X)
    assert np.array_equal(target, Y)


@pytest.mark.parametrize("name", NAMES)
def test_maps_are_applied_one_after_another_and_views_do_not_disturb_each_other(name):
    base = PLACES[name].example(X, Y)
    first = Standardise(np.array([1.0, 0.0, -1.0]), np.array([2.0, 1.0, 0.5]))
    second, target = Standardise(np.zeros(3), np.full(3, 3.0)), AffineTarget(0.5, 2.0)
    one = base.through(first)
    both = one.through(second, target)
    expected = second(first(X)), (Y - 0.5) / 2
    for _ in range(2):  # alternating, as the stages of a solver do
        assert np.array_equal(rows(both)[0], expected[0])
        assert np.array_equal(rows(both)[1], expected[1])
        assert np.array_equal(rows(one)[0], first(X))
        assert np.array_equal(rows(one)[1], Y)
        assert np.array_equal(rows(base)[0], X)


@pytest.mark.parametrize("sampling", [None, Poisson(0.4)])
@pytest.mark.parametrize("query", [GramSum(1.0, with_target=True), LossGradient(Logistic(), 0.5)], ids=["gram", "loss"])
@pytest.mark.parametrize("name", NAMES)
def test_every_place_answers_as_an_array_does(name, query, sampling):
    m = Mechanism(adjacency="zero-out", ratio=1.0, steps=2, **({} if sampling is None else {"sampling": sampling}))
    answers = []
    for place in (PLACES[name], InMemory):
        with open_session(certify(m), place.example(X, Y), random_state=3) as session:
            answers.append([session.release(query, np.ones(3)) for _ in range(2)])
    np.testing.assert_allclose(*answers, rtol=1e-12, atol=1e-12)


def test_nothing_is_mapped_before_a_record_is_asked_for():
    class Loud(Standardise):
        def __call__(self, X):
            raise AssertionError("a record was read")

    records = InMemory(X, Y).through(Loud(np.zeros(3), np.ones(3)))
    assert records.n == 31
    (part,) = records.parts()
    assert len(part) == 31
    with pytest.raises(AssertionError, match="was read"):
        part.X


def test_chunks_are_mapped_anew_and_what_was_kept_of_them_stays_until_another_view():
    rng = np.random.default_rng(0)
    table = rng.normal(size=(20_000, 30))
    one = InMemory(table).through(Standardise(np.zeros(30), np.ones(30)))
    parts = list(one.parts())
    assert len(parts) > 1
    assert np.array_equal(np.vstack([part.X for part in parts]), table)
    made = parts[0].kept("row norms", lambda: [1])
    again = next(iter(one.parts()))
    assert again is not parts[0]
    assert again.kept("row norms", lambda: [2]) is made
    two = one.through(Standardise(np.zeros(30), np.full(30, 2.0)))
    assert next(iter(two.parts())).kept("row norms", lambda: [3]) == [3]
    assert next(iter(one.parts())).kept("row norms", lambda: [4]) == [4]


def test_the_whole_table_is_mapped_once_for_each_view():
    one = InMemory(X, Y).through(Standardise(np.zeros(3), np.ones(3)))
    first = one.whole()
    assert one.whole() is first
    assert np.array_equal(first.X, X)
    two = one.through(Standardise(np.zeros(3), np.full(3, 2.0)))
    assert np.array_equal(two.whole().X, X / 2)
    assert one.whole() is not first


def test_losses_of_numbers_see_mapped_targets():
    with open_session(
        certify(Mechanism(adjacency="zero-out", ratio=1e9, steps=1)), InMemory(X, Y), random_state=0
    ) as session:
        seen = session.through(target=AffineTarget(1.0, 4.0)).release(LossGradient(Squared(), 100.0), np.zeros(3))
    np.testing.assert_allclose(seen, -X.T @ ((Y - 1) / 4), atol=1e-6)
