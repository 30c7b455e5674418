"""Records in the memory of this process: one part, mapped when it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tacit.maps import RowMap
from tacit.records.base import Records, TargetMap
from tacit.records.rows import Rows

__all__ = ["InMemory"]


@dataclass
class _Table:
    """The caller's arrays, and the last mapped copy of them that was made.

    One copy at a time: stages of a solver look at the records through one map after another, and what the last stage
    needed is not needed any more.
    """

    X: Any
    y: Any
    read: Callable[[], tuple[Any, Any]] | None = None
    maps: tuple[RowMap, ...] = ()
    mapped: Any = None
    rows: dict[tuple[TargetMap, ...], Rows] = field(default_factory=dict)

    def seen_through(self, maps: tuple[RowMap, ...]) -> Any:
        """X through these maps: from the copy that is there, if that is on the way."""
        if self.read is not None:
            (self.X, self.y), self.read = self.read(), None
        if self.maps == maps and self.mapped is not None:
            return self.mapped
        known = len(self.maps)
        on_the_way = self.mapped is not None and known <= len(maps) and self.maps == maps[:known]
        X, rest = (self.mapped, maps[known:]) if on_the_way else (self.X, maps)
        self.maps, self.mapped, self.rows = (), None, {}
        for one in rest:
            X = one(X)
        self.maps, self.mapped = maps, X
        return X


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
        X = self._table.seen_through(self._maps)
        if self._targets not in self._table.rows:
            y = self._table.y
            for target in self._targets:
                y = target(y)
            self._table.rows = {self._targets: Rows(X, y)}
        yield self._table.rows[self._targets]

    @classmethod
    def example(cls, X: Any, y: Any) -> InMemory:
        """As they are."""
        return cls(X, y)
