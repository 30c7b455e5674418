"""CSV and Parquet files, chunk by chunk. No message holds a value, a row number or a name that might be a value."""

from __future__ import annotations

import contextlib
import csv
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput

__all__ = ["Column", "Table", "open_table"]

CHUNK = 20_000
"""Records that are looked at together: bounds the memory for text, not for numbers."""
Column = list[str | None] | NDArray[Any]
"""One column of a chunk: text (None if missing), or an array of numbers (NaN if missing) or truth values."""


class Table(ABC):
    """A table in a file.

    Attributes:
        path: the file.
        names: the columns, in the order of the file. They may be values if the header line was forgotten, so
            messages show those only that the schema names, too.
    """

    path: Path
    names: tuple[str, ...]

    @abstractmethod
    def chunks(self, wanted: Sequence[str]) -> Iterator[dict[str, Column]]:
        """The wanted columns, some thousand records at a time."""


def open_table(path: Path, separator: str = ",") -> Table:
    """Open a table and read its header; no record is looked at.

    Args:
        path: CSV or Parquet; the content decides, not the name.
        separator: between the fields of a CSV file.

    Returns:
        The table.

    Raises:
        InvalidInput: if the file is empty, of another kind, or the separator is not one character.
    """
    if len(separator) != 1 or separator in '"\r\n':
        raise InvalidInput("separator must be one character, such as ',', ';' or a tab")
    with path.open("rb") as file:
        head = file.read(4)
    if head == b"PAR1":
        return _Parquet(path)
    if head[:2] in (b"PK", b"\x1f\x8b") or head in (b"\xd0\xcf\x11\xe0", b"BZh9", b"\xfd7zX"):
        raise InvalidInput(f"{path} is a spreadsheet or an archive: save it as CSV (or Parquet) first")
    return _Csv(path, separator)


# -- CSV --------------------------------------------------------------------------------------------------


class _Csv(Table):
    def __init__(self, path: Path, separator: str) -> None:
        self.path, self._separator = path, separator
        header = next(self._rows(), None)
        if header is None:
            raise InvalidInput(f"{path} is empty: the first line must name the columns")
        if len(header) == 1:
            for other, name in ((";", "semicolons"), ("\t", "tabs"), (",", "commas")):
                if other in header[0] and other != separator:
                    raise InvalidInput(f"{path} seems to be separated by {name}: add --separator {_shown(other)}")
        self.names = tuple(name.strip() for name in header)

    def chunks(self, wanted: Sequence[str]) -> Iterator[dict[str, Column]]:
        rows = self._rows()
        next(rows)
        places = [self.names.index(name) for name in wanted]
        width = len(self.names)
        while chunk := list(islice(rows, CHUNK)):
            if any(len(row) != width for row in chunk):
                raise InvalidInput(
                    f"{self.path} has lines with more or fewer fields than its header: put text that holds the "
                    'separator into "quotes", and leave no field out'
                )
            yield {name: [row[place] for row in chunk] for name, place in zip(wanted, places, strict=True)}

    def _rows(self) -> Iterator[list[str]]:
        """Lines as fields; blank lines are left out."""
        try:
            with self.path.open(encoding="utf-8-sig", newline="") as file:
                yield from filter(None, csv.reader(file, delimiter=self._separator, skipinitialspace=True, strict=True))
        except UnicodeDecodeError:
            raise InvalidInput(
                f"{self.path} is not UTF-8 text: save it as UTF-8 (in a spreadsheet: CSV UTF-8)"
            ) from None
        except csv.Error:
            raise InvalidInput(
                f'{self.path} is not a CSV file that can be read: a field has an unmatched " or is very long'
            ) from None


def _shown(separator: str) -> str:
    return "$'\\t'" if separator == "\t" else f"'{separator}'"


# -- Parquet ----------------------------------------------------------------------------------------------


class _Parquet(Table):
    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            import pyarrow
            import pyarrow.parquet
        except ImportError:
            raise InvalidInput(
                f"{path} is a Parquet file, and pyarrow is not installed: pip install 'tacit-dp[tables]', or save the "
                "table as CSV"
            ) from None
        self._arrow = pyarrow
        with self._readable():
            self._file = pyarrow.parquet.ParquetFile(path)
            self._types = {field.name: field.type for field in self._file.schema_arrow}
            names = self._file.schema_arrow.names
        self.names = tuple(name for name in names if not re.fullmatch(r"__index_level_\d+__", name))

    def chunks(self, wanted: Sequence[str]) -> Iterator[dict[str, Column]]:
        for name in wanted:
            self._check_type(name)
        batches = self._file.iter_batches(batch_size=CHUNK, columns=list(wanted))
        while True:
            with self._readable():
                batch = next(batches, None)
                if batch is None:
                    return
                chunk = {name: self._column(batch.column(name)) for name in wanted}
            yield chunk

    @contextlib.contextmanager
    def _readable(self) -> Iterator[None]:
        """The faults of the reader may quote the file: ours do not."""
        try:
            yield
        except (self._arrow.ArrowException, OSError):
            raise InvalidInput(f"{self.path} is not a Parquet file that can be read: write it again") from None

    def _check_type(self, name: str) -> None:
        types, kind = self._arrow.types, self._types[name]
        if types.is_dictionary(kind):
            kind = kind.value_type
        plain = (types.is_integer, types.is_floating, types.is_boolean, types.is_decimal, types.is_null)
        words = (types.is_string, types.is_large_string, types.is_string_view)
        if not any(test(kind) for test in (*plain, *words)):
            raise InvalidInput(f"column {name!r} is stored as {kind}: tacit reads numbers, words and truth values")

    def _column(self, array: Any) -> Column:
        types = self._arrow.types
        if types.is_dictionary(array.type):
            array = array.dictionary_decode()
        if types.is_boolean(array.type) and array.null_count == 0:
            return np.asarray(array.to_numpy(zero_copy_only=False), bool)
        if types.is_boolean(array.type):
            return [None if item is None else str(item) for item in array.to_pylist()]
        if types.is_integer(array.type) or types.is_floating(array.type) or types.is_decimal(array.type):
            numbers = array.cast(self._arrow.float64(), safe=False)
            return np.asarray(numbers.to_numpy(zero_copy_only=False), np.float64)
        return list(array.to_pylist())
