"""From a table to a matrix, by a public schema. Faults name a column and a kind, never a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput
from tacit.tables.reading import Column, Table
from tacit.tables.schema import Categories, Feature, Label, Schema, Target, check_names

__all__ = ["check_columns", "encode"]

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
