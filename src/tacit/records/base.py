"""Where records are. A place hands rows to the release layer part by part, and to nobody else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, Self

from tacit._registry import enlist
from tacit.maps import RowMap
from tacit.records.rows import Rows

__all__ = ["PLACES", "Records", "TargetMap"]

TargetMap = Callable[[Any], Any]
"""A public map of targets, each by itself."""

PLACES: dict[str, type[Records]] = {}
"""Every place of records that was defined, by the name of its class; the contract suite comes to each."""


class Records(ABC):
    """Records behind a door: their number, and their rows part by part.

    Attributes:
        n: how many there are; secret under add/remove.
    """

    n: int

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        enlist(PLACES, cls, "a place of records")

    @abstractmethod
    def parts(self) -> Iterator[Rows]:
        """All records in a fixed order, cut into parts. Only ``tacit.release`` calls this."""

    def whole(self) -> Rows | None:
        """All records as one part where that is cheap, for random batches and compiled sweeps; None where it is not."""
        return None

    @abstractmethod
    def through(self, features: RowMap | None = None, target: TargetMap | None = None) -> Self:
        """The same records seen through one more public map; nothing is read before ``parts`` is called."""

    @classmethod
    @abstractmethod
    def example(cls, X: Any, y: Any) -> Records:
        """These rows at this kind of place, for the contract suite."""
