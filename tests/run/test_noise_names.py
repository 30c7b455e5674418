"""Noise is named after what it hides: different sums share none of it, equal ones all of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from tacit.accounting import certify
from tacit.mechanism import Adjacency, Mechanism, Schedule
from tacit.run import Channel, Streams
from tacit.run.clipped_sum import VectorSum


def resumed_twice(first: Any, second: Any, n: int = 3) -> tuple[Any, Any]:
    certificate = certify(Mechanism(adjacency=Adjacency.ZERO_OUT, ratio=Schedule.constant(1.0, 2), steps=2), delta=1e-6)
    checkpoint = Channel(certificate, n, streams=Streams(0)).checkpoint()
    a, b = (Channel(certificate, n, resume=checkpoint).release(total, np.zeros((1, 3)))[0] for total in (first, second))
    return a, b


def test_a_step_that_is_repeated_with_another_bound_shares_no_noise() -> None:
    """Same sum, same name, same z, but σ and 2σ: 2a − b is the sum in the clear."""
    X = np.array([[0.1, 0.2, 0.3]] * 3)
    a, b = resumed_twice(VectorSum(X, 1.0), VectorSum(X, 2.0))
    assert not np.allclose(2 * a - b, X.sum(axis=0), rtol=1e-9), "both releases together show the sum without noise"


def test_sums_that_hardly_differ_share_no_noise_and_equal_ones_share_all() -> None:
    X = np.array([[0.1, 0.2, 0.3]] * 3)
    moved = X.copy()
    moved[0, 0] += 1e-15
    a, b = resumed_twice(VectorSum(X, 1.0), VectorSum(moved, 1.0))
    assert np.abs(a - b).min() > 1e-6
    a, b = resumed_twice(VectorSum(X, 1.0), VectorSum(np.asfortranarray(X), 1.0))
    assert (a == b).all()


def test_names_do_not_depend_on_the_layout_of_a_sum() -> None:
    certificate = certify(Mechanism(adjacency=Adjacency.ZERO_OUT, ratio=Schedule.constant(1.0, 1), steps=1), delta=1e-6)
    channel = Channel(certificate, 3)
    sums = np.arange(12.0).reshape(3, 4)
    same = [sums, np.asfortranarray(sums), np.repeat(sums, 2, axis=1)[:, ::2]]
    assert len({channel._named(one) for one in same}) == 1
    assert channel._named(sums) != channel._named(sums[::-1])
