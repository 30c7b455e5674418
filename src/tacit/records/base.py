"""Where records are. A place hands rows to the release layer part by part, and to nobody else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tacit._registry import enlist
from tacit.maps import RowMap
from tacit.records.rows import Rows
from tacit.records.sources import Field

__all__ = ["PLACES", "Asked", "Header", "Records", "Sums", "TargetMap", "row_weights"]

TargetMap = Callable[[Any], Any]
"""A public map of targets, each by itself."""

Sums = NDArray[Any]
"""(replicas, size): float64, or int64 in units of a grid."""

PLACES: dict[str, type[Records]] = {}
"""Every place of records that was defined, by the name of its class; the contract suite comes to each."""


class Asked(Protocol):
    """What a place needs of a query (``tacit.release.Query``): its sum over a part."""

    def total(self, rows: Rows, state: Any, members: NDArray[Any], grid: Any = None) -> Sums:
        """Σ over each replica's members of a part."""


def row_weights(rows: Rows, members: NDArray[Any]) -> NDArray[Any]:
    """What each row of some persons counts, from 0 to 1; 0 if its person is no member.

    Args:
        rows: with shares.
        members: which persons a step reads, (replicas, persons).

    Returns:
        (replicas, rows).
    """
    assert rows.shares is not None
    if members.all():
        return np.broadcast_to(rows.shares.weight, (len(members), len(rows)))
    return np.asarray(members[:, rows.shares.person] * rows.shares.weight)


@dataclass(frozen=True, eq=False)
class Header:
    """What is known of records that are somewhere else before one is read.

    Attributes:
        names: of the features; None if they have none.
        width: the number of features.
        dtype: of the features.
        target: what is stated about the target; None if there is none.
        classes: the labels that a schema lists, or None.
    """

    names: tuple[str, ...] | None
    width: int
    dtype: Any
    target: Field | None = None
    classes: tuple[Any, ...] | None = None


class Records(ABC):
    """Records behind a door: their number, and their rows part by part.

    Attributes:
        n: how many there are (of persons, where rows have owners); secret under add/remove.
        by_person: whether rows belong to persons, who may have several.
        header: what is known of the table, where estimators are given records instead of a table.
        in_memory: whether all of them are in the memory of this process, for compiled sweeps.
        by_index: whether some of them can be fetched by their places, for random batches.
    """

    n: int
    by_person: bool = False
    header: Header | None = None
    in_memory: bool = False
    by_index: bool = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        enlist(PLACES, cls, "a place of records")

    @abstractmethod
    def parts(self) -> Iterator[Rows]:
        """All records in a fixed order, cut into parts. Only ``tacit.release`` calls this."""

    def first(self) -> Rows:
        """Some records (none, perhaps), of the types that all of them have."""
        return next(iter(self.parts()))

    def whole(self) -> Rows | None:
        """All records as one part where that is cheap, for random batches and compiled sweeps; None where it is not."""
        return None

    @abstractmethod
    def through(self, features: RowMap | None = None, target: TargetMap | None = None) -> Self:
        """The same records seen through one more public map; nothing is read before ``parts`` is called."""

    def total(self, query: Asked, state: Any, members: NDArray[Any], grid: Any) -> Sums:
        """A query's sum over all parts; each part sees its own members. Only ``tacit.release`` calls this.

        Random batches are taken from all rows at once where those are in memory: a few rows of many parts cost more.
        Places that are not in this process override it: they send the query to their rows, and add up integers.

        Args:
            query: what is asked; public.
            state: where to evaluate it, one row per replica; public, or released before.
            members: which records (persons) a step reads, (replicas, n).
            grid: of an exact release; None in floating point.

        Returns:
            (replicas, size).
        """
        whole = None if members.all() else self.whole()
        sums, first = [], 0
        for rows in self.parts() if whole is None else (whole,):
            if rows.shares is None:
                own = members[:, first : first + len(rows)]
                first += len(rows)
            else:
                own = row_weights(rows, members)
            sums.append(query.total(rows, state, rows.kept_members(own), grid))
        return reduce(np.add, sums)

    def key(self, rng: np.random.Generator) -> None:  # noqa: B027 - only places that know persons need it
        """Take the secret by which persons are numbered; the session calls this once, before it reads anything."""

    @classmethod
    @abstractmethod
    def example(cls, X: Any, y: Any) -> Records:
        """These rows at this kind of place, for the contract suite."""
