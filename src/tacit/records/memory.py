"""Records in the memory of this process: chunks of the caller's table, mapped whenever they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any

import numpy as np
from scipy import sparse

from tacit.errors import MechanismMismatch
from tacit.maps import RowMap
from tacit.records.base import Records, TargetMap
from tacit.records.persons import Persons, Shares
from tacit.records.rows import Mapped, Rows

__all__ = ["InMemory", "part_rows"]

CHUNK_ENTRIES = 1 << 18
"""Entries of a chunk: its mapped rows stay in the processor's cache."""
MIN_CHUNK, MAX_CHUNK = 512, 8192


def part_rows(features: int) -> int:
    """Rows of a part of so many features."""
    return min(max(CHUNK_ENTRIES // max(features, 1), MIN_CHUNK), MAX_CHUNK)


class _Table:
    """The caller's arrays, and what was derived from them through the maps that were last asked for.

    Targets are mapped once for each view. Chunks of features are mapped anew in every pass; what a query keeps of a
    chunk (``Rows.kept``) stays until the records are looked at through other maps. Stages of a solver look through one
    map after another, and what one stage kept is not needed by the next. A table of one chunk, or a sparse one, is
    mapped once for each view.
    """

    def __init__(self, X: Any, y: Any, persons: Persons | None = None) -> None:
        self.X, self.y, self.persons = X, y, persons
        self.rng: np.random.Generator | None = None
        self._shares: Shares | None = None
        self.read: Callable[[], tuple[Any, Any]] | None = None
        self._view: tuple[Any, ...] = ()
        self._target: Any = None
        self._kept: list[tuple[slice, dict[Hashable, Any]]] = []
        self._whole: Rows | None = None

    def number_by(self, rng: np.random.Generator) -> None:
        """Number persons by another secret."""
        self.rng, self._shares, self._view = rng, None, ()

    def _look_through(self, maps: tuple[RowMap, ...], targets: tuple[TargetMap, ...]) -> None:
        if self.read is not None:
            (self.X, self.y), self.read = self.read(), None
        if self.persons is not None and self._shares is None:
            if self.rng is None:
                raise MechanismMismatch("rows of persons are read by a session only, which numbers persons secretly")
            self._shares = self.persons.shares(self.rng)
        if self._view != (maps, targets):
            before, self._view = self._view, (maps, targets)
            self._kept = [(chunk, {}) for chunk in self._chunks()]
            self._target = self.y
            for target in targets:
                self._target = target(self._target)
            self._whole = self._seen(before)

    def _chunks(self) -> list[slice]:
        n, p = self.X.shape
        size = part_rows(p)
        if sparse.issparse(self.X) or n <= size:
            return [slice(0, n)]
        return [slice(first, min(first + size, n)) for first in range(0, n, size)]

    def _seen(self, before: tuple[Any, ...]) -> Rows:
        """The whole table, mapped from the last view if that is on the way and was made whole."""
        maps, source, rest = self._view[0], self.X, self._view[0]
        if before and self._whole is not None and self._whole.made and before[0] == maps[: len(before[0])]:
            source, rest = self._whole.X, maps[len(before[0]) :]
        return Rows(Mapped(source, rest), self._target, shares=self._shares)

    def whole(self, maps: tuple[RowMap, ...], targets: tuple[TargetMap, ...]) -> Rows:
        """All rows through these maps, kept once they were made."""
        self._look_through(maps, targets)
        assert self._whole is not None
        return self._whole

    def parts(self, maps: tuple[RowMap, ...], targets: tuple[TargetMap, ...]) -> Iterator[Rows]:
        """The rows through these maps, chunk by chunk."""
        whole = self.whole(maps, targets)
        if len(self._kept) == 1:
            yield whole
            return
        for chunk, kept in self._kept:
            y = None if self._target is None else self._target[chunk]
            shares = None if self._shares is None else self._shares.taken(chunk)
            yield Rows(Mapped(self.X[chunk], maps), y, kept, shares)


class InMemory(Records):
    """An array or sparse matrix with its targets; neither copied nor changed.

    Args:
        X: (records, features).
        y: (records,) or (records, outputs), or None.
        persons: whose each row is; None if every row is a record of its own.
    """

    in_memory = True

    def __init__(self, X: Any, y: Any = None, persons: Persons | None = None) -> None:
        self.n = int(X.shape[0]) if persons is None else persons.n
        self.by_person = persons is not None and persons.by_person
        self._table = _Table(X, y, persons)
        self._maps: tuple[RowMap, ...] = ()
        self._targets: tuple[TargetMap, ...] = ()

    @classmethod
    def unread(cls, n: int, read: Callable[[], tuple[Any, Any]], persons: Persons | None = None) -> InMemory:
        """A table of which only the length is known: its values are read when a session first asks, once paid for.

        Args:
            n: the number of rows.
            read: reads and validates the table; returns X and y.
            persons: whose each row is, or None.

        Returns:
            The records.
        """
        out = cls(np.empty((n, 0)), None, persons)
        out._table.read = read
        return out

    def through(self, features: RowMap | None = None, target: TargetMap | None = None) -> InMemory:
        """The same table through one more map."""
        out = InMemory.__new__(InMemory)
        out.n, out.by_person, out._table = self.n, self.by_person, self._table
        out._maps = self._maps if features is None else (*self._maps, features)
        out._targets = self._targets if target is None else (*self._targets, target)
        return out

    def key(self, rng: np.random.Generator) -> None:
        """Number persons by this secret, when rows are first read."""
        self._table.number_by(rng)

    def parts(self) -> Iterator[Rows]:
        """Chunks that fit into the processor's cache; a sparse table is one part."""
        return self._table.parts(self._maps, self._targets)

    def whole(self) -> Rows:
        """All records as one part, which is mapped once."""
        return self._table.whole(self._maps, self._targets)

    @classmethod
    def example(cls, X: Any, y: Any) -> InMemory:
        """As they are."""
        return cls(X, y)
