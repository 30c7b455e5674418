"""Queries: what one record contributes to a sum. With the session, all the code that reads records.

A query is public and frozen: a name, a bound, and a function from rows and a public state to contributions. It holds no
record, so it can be sent to wherever the records are. Registering one subjects it to record-and-replay
(``tests/release/test_replay.py``): on random neighbours its sum must never move by more than it declares, and must come
within 1 % of that somewhere. Everything else is post-processing of what queries release.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tacit._registry import claim, drop_inherited
from tacit.kernels.clipping import clipped_total
from tacit.records import Rows

__all__ = ["QUERIES", "Bounded", "Example", "Members", "Query", "register"]

Array = NDArray[np.float64]
Members = NDArray[np.bool_]
"""Which records a step reads: (replicas, records)."""


class Bounded:
    """What a session must know about a sum over records.

    Attributes:
        bound: C, public: no contribution exceeds it in ℓ2 norm, whatever the records hold.
    """

    bound: float

    @property
    def diameter(self) -> float:
        """The largest distance between two possible contributions: 2C, unless a query knows better."""
        return 2 * self.bound


class Example(NamedTuple):
    """Random neighbours for record-and-replay.

    Attributes:
        query: what is asked.
        here: some records.
        there: the same but for record 0.
        state: where to evaluate, with a leading axis of one replica.
    """

    query: Any
    here: Rows
    there: Rows
    state: Any


class Query(Bounded, ABC):
    """A sum of per-record contributions, each clipped to norm ``bound``.

    Attributes:
        name: in the registry.
        smoothness: β of the convex function whose gradient a clipped contribution is, or None if it is no such
            gradient; hidden-state theorems need it.
    """

    name: ClassVar[str]
    smoothness: float | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        drop_inherited(cls, Query, "contributions", ("total", "diameter", "smoothness"))

    @abstractmethod
    def contributions(self, rows: Rows, state: Array) -> Array:
        """Unclipped contributions of these records at each replica's state: (replicas, records, size)."""

    @classmethod
    @abstractmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Random neighbours that differ in record 0, for record-and-replay."""

    def total(self, rows: Rows, state: Array, members: Members) -> Array:
        """Σ of clipped contributions over each replica's members: (replicas, size).

        Overrides form no contributions where a product gives the sum at once; they must clip as this does.

        Args:
            rows: a part of the records.
            state: one row per replica.
            members: which of these records each replica reads.

        Returns:
            The sums.
        """
        index = np.flatnonzero(members.any(axis=0))  # records that no replica reads are never touched
        read = rows if len(index) == len(rows) else rows.take(index)
        G = np.ascontiguousarray(self.contributions(read, state))
        return clipped_total(G, np.ascontiguousarray(members[:, index]), self.bound)


QUERIES: dict[str, type[Bounded]] = {}
"""Every registered query, by name."""

Q = TypeVar("Q", bound=type[Bounded])


def register(name: str) -> Callable[[Q], Q]:
    """Add a query to the trusted code, and with it to record-and-replay (a class decorator).

    Args:
        name: of the query.

    Returns:
        The decorator.

    """

    def add(cls: Q) -> Q:
        claim(QUERIES, name, cls, "a query")
        cls.name = name  # type: ignore[attr-defined]
        return cls

    return add
