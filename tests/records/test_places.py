"""The contract of every place of records: whoever defines one gets these tests."""

from __future__ import annotations

import numpy as np
import pytest
from contracts import made, nothing_escapes, ours, told

from tacit.accounting import certify
from tacit.maps import AffineTarget, Standardise
from tacit.mechanism import Arithmetic, Mechanism, Poisson
from tacit.problem import Logistic, Squared
from tacit.records import PLACES, InMemory, Records
from tacit.release import open_session
from tacit.release.queries import GramSum, LossGradient

NAMES = ours(PLACES)
RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(31, 3)), RNG.choice([-1.0, 1.0], size=31)

pytestmark = pytest.mark.usefixtures("cluster")


def place(name: str) -> Records:
    cls = PLACES[name]
    return made(cls, lambda: cls.example(X, Y), "example(cls, X, y) must return these rows at this kind of place")


def rows(records) -> tuple[np.ndarray, np.ndarray]:
    parts = list(records.parts())
    tables = [np.asarray(part.X.toarray() if hasattr(part.X, "toarray") else part.X) for part in parts]
    return np.concatenate(tables), np.concatenate([part.y for part in parts])


@pytest.mark.parametrize("name", NAMES)
def test_all_records_are_there_in_their_order(name):
    records = place(name)
    table, target = rows(records)
    told(records.n == 31, f"{name} says n = {records.n} of 31 records: set n to their number")
    told(
        np.array_equal(table, X) and np.array_equal(target, Y),
        f"parts() of {name} does not hand out all records, each once, in a fixed order",
    )


@pytest.mark.parametrize("name", NAMES)
def test_maps_are_applied_one_after_another_and_views_do_not_disturb_each_other(name):
    base = place(name)
    first = Standardise(np.array([1.0, 0.0, -1.0]), np.array([2.0, 1.0, 0.5]))
    second, target = Standardise(np.zeros(3), np.full(3, 3.0)), AffineTarget(0.5, 2.0)
    one = base.through(first)
    both = one.through(second, target)
    expected = second(first(X)), (Y - 0.5) / 2
    for _ in range(2):  # alternating, as the stages of a solver do
        same = [
            *map(np.array_equal, rows(both), expected),
            *map(np.array_equal, rows(one), (first(X), Y)),
            *map(np.array_equal, rows(base), (X, Y)),
        ]
        told(
            all(same),
            f"through(features, target) of {name} must return another view behind all maps so far and one more, and "
            "leave the view that it was called on as it is",
        )


@pytest.mark.parametrize("sampling", [None, Poisson(0.4)])
@pytest.mark.parametrize("query", [GramSum(1.0, with_target=True), LossGradient(Logistic(), 0.5)], ids=["gram", "loss"])
@pytest.mark.parametrize("name", NAMES)
def test_every_place_answers_as_an_array_does(name, query, sampling):
    """To the bit in exact arithmetic: sums of integers do not round by parts, and noise is named after the sum."""
    options = {} if sampling is None else {"sampling": sampling}
    m = Mechanism(adjacency="zero-out", ratio=1.0, steps=2, arithmetic=Arithmetic.EXACT, **options)
    answers = []
    for records in (place(name), InMemory(X, Y)):
        with open_session(certify(m), records, random_state=3) as session:
            answers.append([session.release(query, np.ones(3)) for _ in range(2)])
    told(
        np.array_equal(*answers),
        f"{name} answers a query by another sum than an array does: parts() must hand out the same rows and targets",
    )


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_mapped_before_a_record_is_asked_for(name):
    class Loud(Standardise):
        def __call__(self, X):
            raise AssertionError("a record was read")

    loud = Loud(np.zeros(3), np.ones(3))
    try:
        records = place(name).through(loud)
        assert records.n == 31
    except AssertionError:
        told(False, f"through() of {name} reads records, which are not paid for yet: map them in parts()")
    with pytest.raises(AssertionError, match="was read"):
        rows(records)


def test_every_place_gets_these_tests():
    nothing_escapes(Records, set(PLACES.values()), "derive it from Records under a name of its own")


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
