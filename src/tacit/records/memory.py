"""Records in the memory of this process: one part, mapped when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tacit.maps import RowMap
from tacit.records.base import Records, TargetMap
from tacit.records.rows import Mapped, Rows

__all__ = ["InMemory"]


class _Table:
    """The caller's arrays, and the last view of them that was asked for.

    One mapped copy at a time: stages of a solver look at the records through one map after another, and what the last
    stage needed is not needed any more.
    """

    def __init__(self, X: Any, y: Any) -> None:
        self.X, self.y = X, y
        self.read: Callable[[], tuple[Any, Any]] | None = None
        self._maps: tuple[RowMap, ...] = ()
        self._features = Mapped(X)
        self._rows: dict[tuple[TargetMap, ...], Rows] = {}

    def through(self, maps: tuple[RowMap, ...], targets: tuple[TargetMap, ...]) -> Rows:
        """The rows through these maps, with all that was derived from them since they were last asked for."""
        if self.read is not None:
            (self.X, self.y), self.read = self.read(), None
            self._features = Mapped(self.X)
        if self._maps != maps:
            self._features, self._maps, self._rows = self._seen(maps), maps, {}
        if targets not in self._rows:
            y = self.y
            for target in targets:
                y = target(y)
            self._rows = {targets: Rows(self._features, y)}
        return self._rows[targets]

    def _seen(self, maps: tuple[RowMap, ...]) -> Mapped:
        """X through these maps: from the copy that is there, if that is on the way."""
        known = len(self._maps)
        if self._features.made and self._maps == maps[:known]:
            return Mapped(self._features.whole(), maps[known:])
        return Mapped(self.X, maps)


class InMemory(Records):
    """An array or sparse matrix with its targets; neither copied nor changed.

    Args:
        X: (records, features).
        y: (records,) or (records, outputs), or None.
    """

    def __init__(self, X: Any, y: Any = None) -> None:
        self.n = int(X.shape[0])
        self._table = _Table(X, y)
        self._maps: tuple[RowMap, ...] = ()
        self._targets: tuple[TargetMap, ...] = ()

    @classmethod
    def unread(cls, n: int, read: Callable[[], tuple[Any, Any]]) -> InMemory:
        """A table of which only the length is known: its values are read when a session first asks, once paid for.

        Args:
            n: the number of records.
            read: reads and validates the table; returns X and y.

        Returns:
            The records.
        """
        out = cls(np.empty((n, 0)))
        out._table.read = read
        return out

    def through(self, features: RowMap | None = None, target: TargetMap | None = None) -> InMemory:
        """The same table through one more map."""
        out = InMemory.__new__(InMemory)
        out.n, out._table = self.n, self._table
        out._maps = self._maps if features is None else (*self._maps, features)
        out._targets = self._targets if target is None else (*self._targets, target)
        return out

    def parts(self) -> Iterator[Rows]:
        """One part."""
        yield self._table.through(self._maps, self._targets)

    @classmethod
    def example(cls, X: Any, y: Any) -> InMemory:
        """As they are."""
        return cls(X, y)
