"""Entries that would silently become other numbers (dates, and what a mask hides) are refused, by their types alone."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from tacit.errors import InvalidInput

__all__ = ["check_entries"]

_TIMES = (np.datetime64, np.timedelta64, datetime.date, datetime.time, datetime.timedelta)
_TIME_WORDS = re.compile(r"date|time|duration|period", re.IGNORECASE)
"""How types of dates and times begin: those of pandas, Arrow and Polars, too."""


def check_entries(name: str, table: Any, *, dates: bool = False, each: bool = True) -> None:
    """Refuse masked arrays, dates, times and complex numbers; no value is read.

    Args:
        name: for the message.
        table: what the user passed: an array, a frame, a column, lists.
        dates: True where they are categories like others.
        each: also look at the type of every entry where the table states none (lists, objects).

    Raises:
        InvalidInput: if it holds something that would be read as what it is not.
    """
    parts = table if isinstance(table, list | tuple) else (table,)
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise InvalidInput(
            f"{name} is a masked array, whose mask would be ignored: fill it with a public constant, e.g. "
            f"{name}.filled(0), or drop what is masked"
        )
    kinds = _stated(table) | {part.dtype for part in parts if isinstance(part, np.ndarray | np.generic)}
    if each and any(getattr(kind, "kind", "O") == "O" for kind in kinds):
        kinds |= _types(table)
    if not dates and any(map(_is_time, kinds)):
        raise InvalidInput(
            f"{name} holds dates or times, which would be read as huge numbers: subtract a public date and divide by a "
            f"unit first, e.g. ({name} - np.datetime64('2020-01-01')) / np.timedelta64(1, 'D')"
        )
    if any(map(_is_complex, kinds)):
        raise InvalidInput(f"Complex data not supported: {name} must hold real numbers, e.g. {name}.real")


def _stated(table: Any) -> set[Any]:
    """The types that a table states: one per column of a frame."""
    found = getattr(table, "dtypes", None)
    if found is None or not isinstance(found, Iterable):
        found = [getattr(table, "dtype", object)]
    return {getattr(getattr(kind, "categories", None), "dtype", kind) for kind in found}


def _types(table: Any) -> set[Any]:
    try:
        entries = np.asarray(table, dtype=object)
    except Exception:  # no table at all: the validation says so
        return set()
    return {type(entry) for entry in entries.ravel().tolist()}


def _is_time(kind: Any) -> bool:
    if isinstance(kind, type):
        return issubclass(kind, _TIMES) or kind.__name__ == "Period"
    return getattr(kind, "kind", None) in ("m", "M") or _TIME_WORDS.match(str(kind)) is not None


def _is_complex(kind: Any) -> bool:
    if isinstance(kind, type):
        return issubclass(kind, complex | np.complexfloating)
    return getattr(kind, "kind", None) == "c"
