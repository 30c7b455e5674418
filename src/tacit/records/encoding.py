"""From columns to numbers, by a public schema: features, a target, and the rows that count as nothing.

What a row holds is no reason for an error: that would tell about a record, after the charge. A row whose values are
missing, no numbers, infinite or not listed counts as nothing. ``strict`` raises instead, for tables that are read
before anything is charged, or predicted.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput
from tacit.records.persons import id_tags
from tacit.records.schema import Categories, Feature, Label, Numbers, Schema, check_names
from tacit.records.sources import Coded, Column, Field, Source

__all__ = ["Encoder", "Part", "check_columns", "check_type", "column_tags", "plain_features"]

Array = NDArray[np.float64]
Bad = NDArray[np.bool_]
_MISSING = frozenset({"", "na", "n/a", "nan", "null", "none"})
"""What people write for "no value", in any case; a listed category wins over it."""
_UNKNOWN, _ABSENT = -1, -2


@dataclass(frozen=True, eq=False)
class Part:
    """Some rows as numbers; **private**.

    Attributes:
        X: (rows, features), in C order; or a function that reads it.
        y: (rows,), or None.
        lost: which rows count as nothing; their numbers are zeros.
        tags: digests of the ids of persons, (rows, 2), or None.
    """

    X: Any
    y: Array | None
    lost: Bad
    tags: NDArray[np.uint64] | None = None

    def __len__(self) -> int:
        return len(self.lost)


class _Faults:
    """The rows of a batch that count as nothing, or the first error about one."""

    def __init__(self, rows: int, strict: bool) -> None:
        self.lost, self._strict = np.zeros(rows, bool), strict

    def add(self, bad: Bad, error: Callable[[], InvalidInput]) -> None:
        """These rows have a fault."""
        if not bad.any():
            return
        if self._strict:
            raise error()
        self.lost |= bad


@dataclass(frozen=True)
class Encoder:
    """A public map from columns to numbers.

    Attributes:
        features: what is known of the columns to learn from.
        dtype: of the numbers: float32 if all columns are.
        target: the column to predict, or None.
        classes: its labels, whose places stand for them; None for numbers.
        person: the column of ids, or None.
    """

    features: tuple[Feature, ...]
    dtype: Any = np.float64
    target: str | None = None
    classes: tuple[Label, ...] | None = None
    person: str | None = None

    @property
    def wanted(self) -> list[str]:
        """The columns to read."""
        besides = (self.target, self.person)
        return [feature.name for feature in self.features] + [name for name in besides if name is not None]

    @property
    def names(self) -> tuple[str, ...]:
        """Of the features of the model."""
        return tuple(name for feature in self.features for name in feature.outputs)

    def __call__(self, columns: dict[str, Column], *, strict: bool = False) -> Part:
        """Encode a batch.

        Args:
            columns: by name.
            strict: raise at the first fault, without showing a value.

        Returns:
            The numbers.
        """
        first = columns[self.wanted[0]]
        faults = _Faults(len(first.place if isinstance(first, Coded) else first), strict)
        X = np.empty((len(faults.lost), len(self.names)), self.dtype)
        at = 0
        for feature in self.features:
            width = len(feature.outputs)
            with np.errstate(over="ignore"):
                _write(X[:, at : at + width], feature, columns[feature.name], faults)
            at += width
        y = None if self.target is None else self._target(self.target, columns[self.target], faults)
        tags = None if self.person is None else self.tags_of(columns, faults)
        if faults.lost.any():
            X[faults.lost] = 0.0
            if y is not None:
                y[faults.lost] = 0.0
        return Part(X, y, faults.lost, tags)

    def tags_of(self, columns: dict[str, Column], faults: _Faults | None = None) -> NDArray[np.uint64]:
        """Digests of a batch's ids, a function of each id alone.

        Args:
            columns: by name.
            faults: takes rows without an id; without it these are left out.

        Returns:
            (rows, 2).
        """
        assert self.person is not None
        tags, missing = column_tags(columns[self.person])
        if faults is None:
            return tags[~missing]
        faults.add(missing, lambda: InvalidInput(f"column {self.person!r} has missing ids: drop these rows"))
        return tags

    def _target(self, name: str, column: Column, faults: _Faults) -> Array:
        missing = InvalidInput(f"the target {name!r} has missing values: every record needs one, so complete the file")
        if self.classes is None:
            values = _numbers(name, column, faults)
            faults.add(np.isnan(values), lambda: missing)
            return values
        codes = _codes(name, column, self.classes)
        faults.add(codes == _UNKNOWN, lambda: _unlisted(name))
        faults.add(codes == _ABSENT, lambda: missing)
        return codes.astype(np.float64)


def _unlisted(name: str) -> InvalidInput:
    return InvalidInput(
        f"the target {name!r} holds a label that is not in the schema: list every label that may occur under classes"
    )


def _write(out: NDArray[Any], feature: Feature, column: Column, faults: _Faults) -> None:
    """One column of numbers, or one of zeros and ones per category."""
    if isinstance(feature, Categories):
        codes = _codes(feature.name, column, feature.categories)
        if feature.missing is not None:
            codes = np.where(codes == _ABSENT, feature.categories.index(feature.missing), codes)
        faults.add(codes == _ABSENT, lambda: _absent(feature.name))
        out[:] = codes[:, None] == np.arange(len(feature.categories))
        return
    values = _numbers(feature.name, column, faults)
    gaps = np.isnan(values)
    if gaps.any():
        if feature.missing is None:
            faults.add(gaps, lambda: _absent(feature.name))
        else:
            values = np.where(gaps, feature.missing, values)
    out[:, 0] = values


def _absent(name: str) -> InvalidInput:
    return InvalidInput(
        f"column {name!r} has missing values: state in the schema what stands for them, a public value, "
        '{"missing": ...}'
    )


# -- numbers ----------------------------------------------------------------------------------------------


def _numbers(name: str, column: Column, faults: _Faults) -> Array:
    """Numbers, NaN where missing (or faulty); a private copy unless they are floats as they are."""
    if isinstance(column, Coded):
        values = np.append(_parsed(name, list(column.words), None), np.nan)[column.place]
    elif isinstance(column, np.ndarray):
        values = column if column.dtype.kind == "f" else column.astype(np.float64)
    else:
        values = _parsed(name, column, faults)
    infinite = np.isinf(values)
    if infinite.any():
        faults.add(infinite, lambda: InvalidInput(f"column {name!r} holds infinite values: write finite numbers"))
        values = np.where(infinite, np.nan, values)
    return np.asarray(values)


def _parsed(name: str, column: Sequence[str | None], faults: _Faults | None) -> Array:
    try:
        return np.fromiter(map(float, column), np.float64, len(column))  # type: ignore[arg-type]
    except (ValueError, TypeError):
        pass  # something is missing, or text; which, the slow way tells
    values = np.array([_number(text) for text in column], object)
    words = np.array([one is None for one in values], bool)
    if faults is not None:
        faults.add(
            words,
            lambda: InvalidInput(
                f"column {name!r} holds text where numbers belong: write numbers as 1.5 (not 1,5), or state categories "
                "in the schema"
            ),
        )
    return np.where(words, np.nan, values).astype(np.float64)


def _number(text: str | None) -> float | None:
    """A number, NaN if it is missing, None if it is text."""
    if _is_missing(text):
        return np.nan
    try:
        return float(text)  # type: ignore[arg-type]
    except ValueError:
        return None


def _is_missing(text: str | None) -> bool:
    return text is None or text.strip().lower() in _MISSING


# -- persons ----------------------------------------------------------------------------------------------


def column_tags(column: Column) -> tuple[NDArray[np.uint64], Bad]:
    """Digests of ids, and where they are missing: whole numbers by value, all others by their text."""
    if isinstance(column, Coded):
        words = id_tags(np.array([*(word.strip() for word in column.words), ""], object))
        return words[column.place], column.place < 0
    if not isinstance(column, np.ndarray):
        missing = np.array([_is_missing(text) for text in column], bool)
        distinct, place = np.unique(
            np.array(["" if one is None else one.strip() for one in column]), return_inverse=True
        )
        return id_tags(distinct.astype(object))[place], missing
    if column.dtype.kind != "f":
        return id_tags(column), np.zeros(len(column), bool)
    missing = ~np.isfinite(column)
    whole = ~missing & (column == np.trunc(column)) & (np.abs(column) < 2.0**53)
    tags = np.zeros((len(column), 2), np.uint64)
    for some in (whole, ~whole & ~missing):  # by each number alone, whatever the others of the batch are
        if some.any():
            tags[some] = id_tags(column[some])
    return tags, missing


# -- categories -------------------------------------------------------------------------------------------


class _Codes(dict[Any, int]):
    """From a value as it stands in the file to the index of its category; each spelling is looked at once."""

    LIMIT = 100_000
    """Spellings that are remembered: a column of names must not fill the memory."""

    def __init__(self, categories: Sequence[Label]) -> None:
        super().__init__()
        self._index: dict[Label | None, int] = {label: k for k, label in enumerate(categories)}
        self._words = isinstance(categories[0], str)
        self._truths = isinstance(categories[0], bool)

    def __missing__(self, value: Any) -> int:
        code = self._index.get(self._key(value), _UNKNOWN)
        if code == _UNKNOWN and _is_missing(value):
            code = _ABSENT
        if len(self) < self.LIMIT:
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
    found = _Codes(categories)
    if isinstance(column, Coded):
        known = np.fromiter(map(found.__getitem__, column.words), np.intp, len(column.words))
        return np.asarray(np.append(known, _ABSENT)[column.place])
    if not isinstance(column, np.ndarray):
        return np.fromiter(map(found.__getitem__, column), np.intp, len(column))
    if isinstance(categories[0], str):
        raise InvalidInput(_not_words(name))
    codes = np.full(len(column), _UNKNOWN, np.intp)
    if column.dtype.kind == "f":
        codes[np.isnan(column)] = _ABSENT
    for k, label in enumerate(categories):
        codes[column == label] = k
    return codes


def _not_words(name: str) -> str:
    return f"column {name!r} is stored as numbers, but the schema lists words: give both in one type"


# -- what types and names tell ------------------------------------------------------------------------------------


def check_columns(source: Source, schema: Schema, needed: Sequence[str], *, strict: bool = True) -> None:
    """Compare the header with the schema, before any record is read.

    Args:
        source: the data.
        schema: what is public about it.
        needed: further columns that it must hold: target, person.
        strict: whether further columns must be listed under "ignore".

    Raises:
        InvalidInput: if columns are missing, unknown or doubled. Names from a file of text are shown only if it has all
            columns of the schema: its first line might be a record.
    """
    wanted = [feature.name for feature in schema.features] + list(needed)
    names = [field.name for field in source.fields]
    missing = [name for name in wanted if name not in names]
    if len(missing) == len(wanted):
        raise InvalidInput(f"{source.what} has none of the expected columns: its first line must name the columns")
    if missing:
        raise InvalidInput(f"{source.what} has no column {missing[0]!r}: check the spelling in header and schema")
    check_names(names)
    unknown = [n for n in names if n not in wanted and not any(fnmatch.fnmatchcase(n, one) for one in schema.ignore)]
    if strict and unknown:
        raise InvalidInput(
            f"column {unknown[0]!r} is not in the schema: describe it under features, or list it under ignore"
        )


def check_type(source: Source, field: Field, categories: Sequence[Label] | None) -> None:
    """Refuse a column whose stated type does not fit what it should hold.

    Args:
        source: the data.
        field: the column.
        categories: what it may hold; None for numbers.

    Raises:
        InvalidInput: naming the type.
    """
    if field.kind == "other":
        raise source.type_fault(field)
    if categories is not None and isinstance(categories[0], str) and field.kind in ("number", "truth"):
        raise InvalidInput(_not_words(field.name))
    if categories is None and field.kind == "word":
        raise InvalidInput(
            f"column {field.name!r} is stored as words ({field.type}), where numbers belong: convert it, or state "
            "categories in a schema"
        )


def plain_features(source: Source, without: Sequence[str]) -> tuple[Feature, ...]:
    """All columns of numbers and truth values but some, in their order; by types alone.

    Args:
        source: the data.
        without: names of target and person.

    Returns:
        The features.

    Raises:
        InvalidInput: if the source states no types, or no column is left.
    """
    if all(field.kind == "text" for field in source.fields):
        raise InvalidInput(
            f"{source.what} is text, which states no types: pass schema=… (tacit schema FILE --target NAME writes one "
            "to fill in), or open polars.scan_csv(path), which does"
        )
    check_names([field.name for field in source.fields])
    found = [field for field in source.fields if field.kind in ("number", "truth") and field.name not in without]
    if not found:
        raise InvalidInput(f"{source.what} has no column of numbers besides the target: state categories in a schema")
    return tuple(Numbers(field.name, -np.inf, np.inf) for field in found)
