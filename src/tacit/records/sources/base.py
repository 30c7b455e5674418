"""Sources: tables that are read batch by batch, again and again, from wherever they are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput
from tacit.inputs.foreign import foreign_kind, refused_source, type_names

__all__ = ["BATCH", "SOURCES", "Coded", "Column", "Field", "Source", "find_source", "source"]

BATCH = 16_384
"""Rows that are read together."""


class Coded(NamedTuple):
    """A column of words of which each distinct one is written once.

    Attributes:
        words: distinct ones.
        place: (rows,), which; −1 where a value is missing.
    """

    words: list[str]
    place: NDArray[np.intp]


Column = list[str | None] | NDArray[Any] | Coded
"""One column of a batch: text (None if missing), words, or an array of numbers (NaN if missing) or truth values."""


class Field(NamedTuple):
    """What a source states about a column.

    Attributes:
        name: of the column.
        kind: "number", "truth", "word", "text" (a file that states no types), or "other".
        type: in the words of the source; numpy's name of it for numbers.
    """

    name: str
    kind: str
    type: str


class Source(ABC):
    """A table, batch by batch.

    Attributes:
        what: it is called in messages.
        once: whether it can be read a single time.
        slow: whether reading it means unpacking or parsing, so that a copy saves time.
        named: whether columns have names of their own.
        fields: the columns; no record is read for them.
    """

    what: str
    once: ClassVar[bool] = False
    slow: ClassVar[bool] = False
    named: ClassVar[bool] = True
    fields: tuple[Field, ...]

    @abstractmethod
    def count(self) -> int:
        """The number of rows: from metadata, or by a pass that looks at nothing else."""

    @abstractmethod
    def batches(self, wanted: Sequence[str]) -> Iterator[dict[str, Column]]:
        """All rows in a fixed order, ``BATCH`` or so at a time; only the wanted columns."""

    def type_fault(self, field: Field) -> InvalidInput:
        """The error about a column of a type that cannot be used."""
        return InvalidInput(
            f"column {field.name!r} is stored as {field.type}: tacit reads numbers, words and truth values"
        )


S = TypeVar("S", bound=Callable[..., "Source"])
SOURCES: dict[tuple[str, str], Callable[[Any, str], Source]] = {}
"""What opens the data of a library's class."""


def source(*names: tuple[str, str]) -> Callable[[S], S]:
    """Let a class open all data of some types (a class decorator); its constructor takes the data and ``separator``.

    Args:
        *names: (library, class) of each type: ("polars", "LazyFrame").

    Returns:
        The decorator.
    """

    def add(cls: S) -> S:
        for name in names:
            SOURCES[name] = cls
        return cls

    return add


def find_source(data: Any, separator: str = ",") -> Source:
    """The source that opens some data; no record is read.

    Args:
        data: what the user passed.
        separator: between the fields of a CSV file.

    Returns:
        The source.

    Raises:
        InvalidInput: if no source opens it, naming its type and the way out.
    """
    for name in type_names(data):
        if name in SOURCES:
            return SOURCES[name](data, separator)
    streamed = hasattr(data, "__arrow_c_stream__") and not isinstance(data, type)
    if streamed and foreign_kind(data) is None:  # a column has a stream, too
        return SOURCES["", "__arrow_c_stream__"](data, separator)
    raise InvalidInput(refused_source(data))
