"""Records in the memory of this process: chunks of the caller's table, mapped whenever they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import sparse

from tacit.errors import MechanismMismatch
from tacit.maps import RowMap
from tacit.records.base import Records, TargetMap
from tacit.records.kept import Kept, Room, bytes_of
from tacit.records.persons import Persons, Shares
from tacit.records.rows import Mapped, Rows

__all__ = ["InMemory", "part_rows"]

CHUNK_ENTRIES = 1 << 18
"""Entries of a chunk: its mapped rows stay in the processor's cache."""
MIN_CHUNK, MAX_CHUNK = 512, 32768
MAX_SPARSE_COLUMNS = 4096
"""Sparse tables with more columns stay in one part: every part costs time for every column."""
SHARE, LEAST_MEMORY = 0.48, 64 * 2**20
"""What may be kept beside a dense table: this share of it, and so many bytes of a small one."""


def default_memory(X: Any) -> float:
    """How many bytes may be kept beside a table where nobody says: a sparse one's own size, half of a dense one."""
    return bytes_of(X) if sparse.issparse(X) else max(bytes_of(X) * SHARE, LEAST_MEMORY)


def part_rows(features: int) -> int:
    """Rows of a part of so many features."""
    return min(max(CHUNK_ENTRIES // max(features, 1) // MIN_CHUNK * MIN_CHUNK, MIN_CHUNK), MAX_CHUNK)


class _Table:
    """The caller's arrays, and what was derived from them through the maps that were last asked for.

    Targets are mapped once for each view. Chunks of features are mapped anew in every pass; what a query keeps of a
    chunk (``Rows.kept``) stays until the records are looked at through other maps, as far as ``memory`` allows: chunks
    for which there is no room are worked out anew. Stages of a solver look through one map after another, and what one
    stage kept is not needed by the next. A table of one chunk is mapped once for each view.
    """

    def __init__(self, X: Any, y: Any, persons: Persons | None = None, memory: float | None = None) -> None:
        self.X, self.y, self.persons, self._memory = X, y, persons, memory
        self.rng: np.random.Generator | None = None
        self._shares: Shares | None = None
        self.read: Callable[[], tuple[Any, Any]] | None = None
        self._view: tuple[Any, ...] = ()
        self._target: Any = None
        self._kept: list[tuple[slice, Kept]] = []
        self._whole: Rows | None = None
        self._by_rows: Any = None

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
            self._kept = []  # what the last view kept makes room
            room = Room(default_memory(self.X) if self._memory is None else self._memory)
            self._kept = [(chunk, Kept(room)) for chunk in self._chunks()]
            self._target = self.y
            for target in targets:
                self._target = target(self._target)
            self._whole = self._seen(before)

    def _chunks(self) -> list[slice]:
        n, p = self.X.shape
        size = part_rows(p)
        if n <= size or (sparse.issparse(self.X) and p > MAX_SPARSE_COLUMNS):
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
        source = self._rows()
        for chunk, kept in self._kept:
            y = None if self._target is None else self._target[chunk]
            shares = None if self._shares is None else self._shares.taken(chunk)
            yield Rows(Mapped(_slice(source, chunk), maps), y, kept, shares)

    def _rows(self) -> Any:
        """The table as one whose rows are found quickly: a copy of a sparse one that is stored by columns."""
        if not sparse.issparse(self.X):
            return self.X
        if self._by_rows is None:
            self._by_rows = self.X if self.X.format == "csr" else self.X.tocsr()
        return self._by_rows


def _slice(X: Any, chunk: slice) -> Any:
    """Some rows; those of a sparse table without a copy."""
    if not sparse.issparse(X):
        return X[chunk]
    starts = X.indptr[chunk.start : chunk.stop + 1]
    part = slice(int(starts[0]), int(starts[-1]))
    shape = (chunk.stop - chunk.start, X.shape[1])
    return sparse.csr_array((X.data[part], X.indices[part], starts - starts[0]), shape)


class InMemory(Records):
    """An array or sparse matrix with its targets; neither copied nor changed.

    Args:
        X: (records, features).
        y: (records,) or (records, outputs), or None.
        persons: whose each row is; None if every row is a record of its own.
        memory: how many bytes queries may keep beside it; None for ``default_memory``.
    """

    in_memory = True

    def __init__(self, X: Any, y: Any = None, persons: Persons | None = None, memory: float | None = None) -> None:
        self.n = int(X.shape[0]) if persons is None else persons.n
        self.by_person = persons is not None and persons.by_person
        self._table = _Table(X, y, persons, memory)
        self._maps: tuple[RowMap, ...] = ()
        self._targets: tuple[TargetMap, ...] = ()

    @classmethod
    def unread(
        cls, n: int, read: Callable[[], tuple[Any, Any]], persons: Persons | None = None, memory: float | None = None
    ) -> InMemory:
        """A table of which only the length is known: its values are read when a session first asks, once paid for.

        Args:
            n: the number of rows.
            read: reads and validates the table; returns X and y.
            persons: whose each row is, or None.
            memory: as of ``InMemory``.

        Returns:
            The records.
        """
        out = cls(np.empty((n, 0)), None, persons, memory)
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
        """Chunks that fit into the processor's cache."""
        return self._table.parts(self._maps, self._targets)

    def whole(self) -> Rows:
        """All records as one part, which is mapped once."""
        return self._table.whole(self._maps, self._targets)

    @classmethod
    def example(cls, X: Any, y: Any) -> InMemory:
        """As they are."""
        return cls(X, y)
