"""What queries derive from the parts of a stream and need again in the next pass: records as integers."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from pathlib import Path
from typing import Any, TypeVar

from tacit.records.integers import Integers
from tacit.records.kept import Kept
from tacit.records.scratch import Scratch

__all__ = ["Keeper"]

T = TypeVar("T")
KEY = "integers"
"""Under which rows keep them (``Rows.integers``)."""


class Keeper:
    """The integers of all parts, as they are seen through the maps of the last passes.

    They are copied like the records: from the second pass through the same maps on, within the same budget, and beyond
    it to a file without a name. Everything else that a query derives goes with its part.

    Args:
        folder: for the file.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self._folder = folder
        self._view: tuple[Any, ...] = ()
        self._passes = 0
        self._kept: Scratch | None = None

    def begin(self, view: tuple[Any, ...], rows: int, memory: int) -> None:
        """A pass begins.

        Args:
            view: names what parts are seen through.
            rows: of a part.
            memory: bytes that may stay in memory.
        """
        if view != self._view:
            self._view, self._passes, self._kept = view, 0, None
        self._passes += 1
        if self._passes == 2:
            self._kept = Scratch(rows, memory, self._folder, frozenset(["columns"]), silent=True)

    def of(self, k: int) -> Kept:
        """What is kept of part k, and what will be."""
        return Kept() if self._kept is None else _Kept(self._kept, k)


class _Kept(Kept):
    """What is derived from one part; its integers outlive it."""

    def __init__(self, made: Scratch, k: int) -> None:
        super().__init__()
        self._made, self._k = made, k

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of this name: integers from the copy, once they are there."""
        if key != KEY:
            return super().get(key, make)
        if self._k < self._made.count:
            return super().get(key, lambda: Integers.of(**self._made.part(self._k)))  # type: ignore[return-value]
        value = super().get(key, make)
        if self._k == self._made.count and isinstance(value, Integers):
            self._made.add(value.arrays)
        return value
