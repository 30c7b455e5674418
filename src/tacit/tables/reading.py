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
from tacit.records.schema import Categories, Feature, Label, Schema, Target, check_names

__all__ = ["Column", "Table", "check_columns", "encode", "open_table"]

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


Array = NDArray[np.float64]
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""What people write for "no value", in any case; a listed category wins over it."""
_UNKNOWN, _ABSENT = -1, -2


def check_columns(table: Table, schema: Schema, target: str | None, *, strict: bool = True) -> None:
    """Compare the header with the schema, before any record is read.

    Args:
        table: the data.
        schema: what is public about it.
        target: the column to predict, if the table must hold it.
        strict: whether further columns must be listed under "ignore".

    Raises:
        InvalidInput: if columns are missing, unknown or doubled. Names from the file are shown only if the file has all
            columns of the schema: its first line might be a record.
    """
    wanted = [feature.name for feature in schema.features] + ([] if target is None else [target])
    missing = [name for name in wanted if name not in table.names]
    if len(missing) == len(wanted):
        raise InvalidInput(f"{table.path} has none of the expected columns: its first line must name the columns")
    if missing:
        raise InvalidInput(f"{table.path} has no column {missing[0]!r}: check the spelling in header and schema")
    check_names(table.names)
    unknown = [name for name in table.names if name not in wanted and name not in schema.ignore]
    if strict and unknown:
        raise InvalidInput(
            f"column {unknown[0]!r} is not in the schema: describe it under features, or list it under ignore"
        )


def encode(table: Table, schema: Schema, target: str | None = None) -> tuple[Array, NDArray[Any] | None]:
    """Read a table into numbers.

    Args:
        table: the data, its columns checked.
        schema: what is public about it.
        target: the column to predict, if it is wanted.

    Returns:
        The features, (records, features of the model), and the target or None.

    Raises:
        InvalidInput: if there is no record, or a column does not hold what the schema says.
    """
    wanted = [feature.name for feature in schema.features] + ([] if target is None else [target])
    rows: list[Array] = []
    targets: list[NDArray[Any]] = []
    for chunk in table.chunks(wanted):
        rows.append(np.column_stack([_encoded(feature, chunk[feature.name]) for feature in schema.features]))
        if target is not None and schema.target is not None:
            targets.append(_target(schema.target, target, chunk[target]))
    if not sum(map(len, rows)):
        raise InvalidInput(f"{table.path} has a header but no records: add the data below it")
    return np.concatenate(rows), np.concatenate(targets) if targets else None


def _encoded(feature: Feature, column: Column) -> Array:
    """One column of numbers, or one of zeros and ones per category."""
    if not isinstance(feature, Categories):
        values = _numbers(feature.name, column)
        return _filled(feature.name, values, np.isnan(values), feature.missing)
    codes = _codes(feature.name, column, feature.categories)
    if feature.missing is not None:
        codes = np.where(codes == _ABSENT, feature.categories.index(feature.missing), codes)
    if (codes == _ABSENT).any():
        raise _absent(feature.name)
    return np.asarray(codes[:, None] == np.arange(len(feature.categories)), np.float64)


def _target(target: Target, name: str, column: Column) -> NDArray[Any]:
    if target.classes is None:
        values = _numbers(name, column)
        gaps = np.isnan(values)
    else:
        codes = _codes(name, column, target.classes)
        gaps = codes == _ABSENT
        if (codes == _UNKNOWN).any():
            raise InvalidInput(
                f"the target {name!r} holds a label that is not in the schema: list every label that may occur under "
                "classes"
            )
        values = np.array(target.classes)[codes]
    if gaps.any():
        raise InvalidInput(f"the target {name!r} has missing values: every record needs one, so complete the file")
    return values


# -- numbers ----------------------------------------------------------------------------------------------


def _numbers(name: str, column: Column) -> Array:
    """float64, NaN where missing; finite otherwise."""
    values = column.astype(np.float64) if isinstance(column, np.ndarray) else _parsed(name, column)
    if np.isinf(values).any():
        raise InvalidInput(f"column {name!r} holds infinite values: write finite numbers")
    return values


def _parsed(name: str, column: Sequence[str | None]) -> Array:
    try:
        return np.fromiter(map(float, column), np.float64, len(column))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        pass  # something is missing, or text; which, the slow way tells
    try:
        return np.array([np.nan if _is_missing(text) else float(text) for text in column])  # type: ignore[arg-type]
    except ValueError:
        raise InvalidInput(
            f"column {name!r} holds text where numbers belong: write numbers as 1.5 (not 1,5), or state categories in "
            "the schema"
        ) from None


def _is_missing(text: str | None) -> bool:
    return text is None or text.strip().lower() in _MISSING


def _filled(name: str, values: Array, gaps: NDArray[np.bool_], missing: float | None) -> Array:
    if not gaps.any():
        return values
    if missing is None:
        raise _absent(name)
    return np.where(gaps, missing, values)


def _absent(name: str) -> InvalidInput:
    return InvalidInput(
        f"column {name!r} has missing values: state in the schema what stands for them, a public value, "
        '{"missing": ...}'
    )


# -- categories -------------------------------------------------------------------------------------------


class _Codes(dict[Any, int]):
    """From a value as it stands in the file to the index of its category; each spelling is looked at once."""

    def __init__(self, categories: Sequence[Label]) -> None:
        super().__init__()
        self._index: dict[Label | None, int] = {label: k for k, label in enumerate(categories)}
        self._words = isinstance(categories[0], str)
        self._truths = isinstance(categories[0], bool)

    def __missing__(self, value: Any) -> int:
        code = self._index.get(self._key(value), _UNKNOWN)
        if code == _UNKNOWN and _is_missing(value):
            code = _ABSENT
        self[value] = code
        return code

    def _key(self, text: str | None) -> Label | None:
        text = "" if text is None else text.strip()
        if self._words:
            return text
        if self._truths:
            return {"true": True, "false": False}.get(text.lower())
        try:
            return float(text)
        except ValueError:
            return None


def _codes(name: str, column: Column, categories: Sequence[Label]) -> NDArray[np.intp]:
    if not isinstance(column, np.ndarray):
        return np.fromiter(map(_Codes(categories).__getitem__, column), np.intp, len(column))
    if isinstance(categories[0], str):
        raise InvalidInput(f"column {name!r} is stored as numbers, but the schema lists words: give both in one type")
    codes = np.full(len(column), _UNKNOWN, np.intp)
    codes[np.isnan(column)] = _ABSENT
    for k, label in enumerate(categories):
        codes[column == label] = k
    return codes
