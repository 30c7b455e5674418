"""Tables that are read when they are first asked for."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.accounting import certify
from tacit.errors import InvalidInput
from tacit.maps import Columns
from tacit.mechanism import Mechanism
from tacit.records import InMemory
from tacit.release import open_session
from tacit.release.queries import VectorSum

X = np.random.default_rng(0).normal(size=(9, 3))


def test_a_table_is_read_once_whatever_it_is_seen_through():
    reads = []
    records = InMemory.unread(9, lambda: (reads.append(1) or X, None))
    seen = records.through(Columns((2, 0)))
    assert (records.n, seen.n, reads) == (9, 9, [])
    for place, table in ((seen, X[:, [2, 0]]), (records, X), (seen, X[:, [2, 0]])):
        (rows,) = place.parts()
        np.testing.assert_array_equal(rows.X, table)
    assert reads == [1]


def test_a_fault_found_on_reading_takes_no_release():
    def read():
        raise InvalidInput("not a table")

    certificate = certify(Mechanism(adjacency="zero-out", ratio=1.0, steps=1))
    with open_session(certificate, InMemory.unread(9, read)) as session:
        with pytest.raises(InvalidInput, match="not a table"):
            session.release(VectorSum(1.0))
        assert session.steps_left() == 1
