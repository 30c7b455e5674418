"""Whose each row of a stream is: distinct tags of ids with their counts, at most 24 bytes a person."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.errors import MechanismMismatch
from tacit.records.persons import Shares, row_shares, tag_order

__all__ = ["Owners", "People", "people_of"]

Words = NDArray[np.uint64]
PENDING = 1 << 18
"""Rows whose tags are held before they are merged with those before."""


@dataclass(frozen=True, eq=False)
class People:
    """Who occurs in a table; **private**.

    Attributes:
        tags: (n, 2), digests of ids, sorted.
        counts: (n,), rows of each.
    """

    tags: Words
    counts: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.tags)

    def find(self, tags: Words) -> NDArray[np.intp]:
        """The places of tags among all.

        Args:
            tags: (rows, 2).

        Returns:
            (rows,); −1 for tags that are not there.
        """
        first, last = self.tags[:, 0], len(self.tags) - 1
        place = np.searchsorted(first, tags[:, 0])
        while True:  # as a rule once: two persons with equal first words are next to each other
            at = np.minimum(place, last)
            same = (first[at] == tags[:, 0]) & (place <= last)
            other = same & (self.tags[at, 1] != tags[:, 1])
            if not other.any():
                return np.where(same, at, -1)
            place = place + other


def people_of(parts: Iterable[Words]) -> People:
    """Who occurs, by one pass over the tags of rows.

    Args:
        parts: tags of some rows at a time.

    Returns:
        The people.
    """
    tags, counts = np.empty((0, 2), np.uint64), np.empty(0, np.int64)
    held: list[Words] = []
    size = 0
    for part in parts:
        held.append(part)
        size += len(part)
        if size >= max(PENDING, len(tags)):
            tags, counts = _merged(tags, counts, held)
            held, size = [], 0
    tags, counts = _merged(tags, counts, held)
    return People(tags, np.minimum(counts, np.iinfo(np.int32).max).astype(np.int32))


def _merged(tags: Words, counts: NDArray[np.int64], more: list[Words]) -> tuple[Words, NDArray[np.int64]]:
    every = np.concatenate([tags, *more])
    weight = np.concatenate([counts, np.ones(len(every) - len(tags), np.int64)])
    order = np.lexsort((every[:, 1], every[:, 0]))
    every, weight = every[order], weight[order]
    if not len(every):
        return every, weight
    new = np.concatenate([[True], (every[1:] != every[:-1]).any(axis=1)])
    return every[new], np.add.reduceat(weight, np.flatnonzero(new))


class Owners:
    """The persons of one fit: numbered secretly by its session, each row with what it counts.

    Args:
        people: who there is.
        least: the number of rows that a person is taken to have at least.
    """

    def __init__(self, people: People, least: int) -> None:
        self.people, self._least = people, least
        self._number: NDArray[np.int32] | None = None

    def key(self, rng: np.random.Generator) -> None:
        """Number persons by the ranks of their tags under a secret key, as every other place does."""
        self._number = tag_order(self.people.tags, np.frombuffer(rng.bytes(16), np.uint64)).astype(np.int32)

    def shares(self, tags: Words, lost: NDArray[np.bool_]) -> tuple[Shares, NDArray[np.bool_]]:
        """Whose each row is, and what it counts.

        Args:
            tags: of the rows' ids, (rows, 2).
            lost: rows that count as nothing.

        Returns:
            The shares, and the rows that count as nothing: those of persons who were not there before, too.

        Raises:
            MechanismMismatch: if no session has numbered the persons.
        """
        if self._number is None:
            raise MechanismMismatch("rows of persons are read by a session only, which numbers persons secretly")
        place = self.people.find(tags)
        lost = lost | (place < 0)
        at = np.where(lost, 0, place)
        return Shares(self._number[at].astype(np.intp), row_shares(self.people.counts[at], self._least)), lost
