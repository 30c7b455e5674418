"""Attacks on the names of noise: what is repeated is the same release, and nothing else shares noise."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.accounting import certify
from tacit.mechanism import Adjacency, Mechanism, Schedule
from tacit.records import InMemory
from tacit.release import Channel, Streams, open_session
from tacit.release.queries import VectorSum


def certificate(steps: int) -> Any:
    ratio = Schedule.constant(1.0, steps)
    return certify(Mechanism(adjacency=Adjacency.ZERO_OUT, ratio=ratio, steps=steps), delta=1e-6)


def resumed_twice(first: tuple[Any, float], second: tuple[Any, float]) -> tuple[Any, Any]:
    """The first release of two sessions that go on from one checkpoint: of these rows, with these bounds."""
    with open_session(certificate(2), InMemory(first[0]), random_state=0) as session:
        checkpoint = session.checkpoint()
        promise = session.certificate
    found = []
    for X, bound in (first, second):
        plain = certificate(2)
        with open_session(plain, InMemory(X), resume=checkpoint) as session:
            assert session.certificate == promise
            found.append(session.release(VectorSum(bound)))
    return found[0], found[1]


def test_a_step_that_is_repeated_with_another_bound_shares_no_noise() -> None:
    """Same sum, same name, same z, but σ and 2σ: 2a − b is the sum in the clear."""
    X = np.array([[0.1, 0.2, 0.3]] * 3)
    a, b = resumed_twice((X, 1.0), (X, 2.0))
    assert not np.allclose(2 * a - b, X.sum(axis=0), rtol=1e-9), "both releases together show the sum without noise"


def test_sums_that_hardly_differ_share_no_noise_and_equal_ones_share_all() -> None:
    X = np.array([[0.1, 0.2, 0.3]] * 3)
    moved = X.copy()
    moved[0, 0] += 1e-15
    a, b = resumed_twice((X, 1.0), (moved, 1.0))
    assert np.abs(a - b).min() > 1e-6
    a, b = resumed_twice((X, 1.0), (np.asfortranarray(X), 1.0))
    assert (a == b).all()


def test_names_do_not_depend_on_the_layout_of_a_sum() -> None:
    (mechanism,) = certificate(1).plan.parts
    channel = Channel(mechanism, certificate(1).digest, 3, Streams())
    sums = np.arange(12.0).reshape(3, 4)
    same = [sums, np.asfortranarray(sums), np.repeat(sums, 2, axis=1)[:, ::2]]
    assert len({channel._named(one) for one in same}) == 1
    assert channel._named(sums) != channel._named(sums[::-1])
