"""What was derived from rows and is kept beside them, within a budget of bytes."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

__all__ = ["Kept", "Room", "bytes_of"]

T = TypeVar("T")
MAX_KEPT = 8
"""Derived values that are kept of the same rows; the oldest one makes room."""


class Room:
    """How many bytes may be held beside a table, and how many are.

    Args:
        limit: in bytes; None for any number.
    """

    __slots__ = ("_limit", "_used")

    def __init__(self, limit: float | None = None) -> None:
        self._limit, self._used = float("inf") if limit is None else limit, 0

    def take(self, size: int) -> bool:
        """Whether there is room for so much more; then it is taken."""
        fits = self._used + size <= self._limit
        self._used += size if fits else 0
        return fits

    def give(self, size: int) -> None:
        """So much is not held any more."""
        self._used -= size


class Kept:
    """Values derived from the same rows, by name: made once where there is room, else whenever they are asked for.

    Args:
        room: shared with other rows; None for any number of bytes.
    """

    __slots__ = ("_room", "_values")

    def __init__(self, room: Room | None = None) -> None:
        self._room = Room() if room is None else room
        self._values: dict[Hashable, tuple[int, Any]] = {}

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of this name.

        Args:
            key: names it.
            make: makes it.

        Returns:
            The value.
        """
        if key in self._values:
            return self._values[key][1]  # type: ignore[no-any-return]
        value = make()
        if len(self._values) >= MAX_KEPT:
            self._room.give(self._values.pop(next(iter(self._values)))[0])
        size = bytes_of(value)
        if self._room.take(size):
            self._values[key] = size, value
        return value


def bytes_of(value: Any) -> int:
    """How much memory a value takes: of arrays, and of objects and tuples that hold some."""
    if isinstance(value, tuple | list):
        return sum(map(bytes_of, value))
    if hasattr(value, "nbytes"):
        return int(value.nbytes)
    parts = (getattr(value, name, None) for name in ("data", "indices", "indptr", "matrix"))
    return sum(bytes_of(part) for part in parts if part is not None)
