"""Numpy arrays and memory maps, and pandas frames."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput
from tacit.inputs.foreign import refused_source
from tacit.records.sources.base import BATCH, Column, Field, Source, source

__all__ = ["ArraySource", "PandasSource"]


@source(("numpy", "ndarray"))
class ArraySource(Source):
    """A numpy array or memory map; its columns are called by their numbers, from "0" on."""

    what = "a numpy array"
    named: ClassVar[bool] = False

    def __init__(self, X: NDArray[Any], separator: str = ",") -> None:
        if isinstance(X, np.ma.MaskedArray):
            raise InvalidInput(refused_source(X))
        if X.dtype.names:
            raise InvalidInput("source is an array of records with named fields: pass pandas.DataFrame(array)")
        if X.ndim != 2:
            raise InvalidInput(
                f"source is a numpy array of {X.ndim} dimensions: pass one of two, with a row for each record"
            )
        if X.dtype.kind not in "biuf":
            raise InvalidInput(
                f"source is a numpy array of type {X.dtype}: pass an array of numbers, or a frame with columns of "
                "their own types"
            )
        self._X = X
        kind = "truth" if X.dtype.kind == "b" else "number"
        self.fields = tuple(Field(str(j), kind, X.dtype.name) for j in range(X.shape[1]))

    def count(self) -> int:
        """Of the array."""
        return len(self._X)

    def batches(self, wanted: Sequence[str]) -> Iterator[dict[str, Column]]:
        """Views of columns."""
        for first in range(0, len(self._X), BATCH):
            rows = self._X[first : first + BATCH]
            yield {name: np.asarray(rows[:, int(name)]) for name in wanted}


@source(("pandas", "DataFrame"))
class PandasSource(Source):
    """A pandas frame."""

    what = "a pandas DataFrame"

    def __init__(self, frame: Any, separator: str = ",") -> None:
        self._frame = frame
        if getattr(frame.columns, "nlevels", 1) > 1:
            raise InvalidInput("source is a pandas DataFrame with several levels of column names: flatten them")
        self._names = {str(name): j for j, name in enumerate(frame.columns)}
        self.fields = tuple(_pandas_field(str(name), kind) for name, kind in frame.dtypes.items())

    def count(self) -> int:
        """Of the frame."""
        return len(self._frame)

    def batches(self, wanted: Sequence[str]) -> Iterator[dict[str, Column]]:
        """Some rows at a time."""
        kinds = {field.name: field.kind for field in self.fields}
        for first in range(0, len(self._frame), BATCH):
            rows = self._frame.iloc[first : first + BATCH]
            yield {name: _pandas_column(rows.iloc[:, self._names[name]], kinds[name]) for name in wanted}


def _pandas_field(name: str, kind: Any) -> Field:
    """What a column's type says; one of categories is of the kind of its categories."""
    inner = getattr(getattr(kind, "categories", None), "dtype", kind)
    letter = getattr(inner, "kind", "O")
    if "time" in str(inner) or "period" in str(inner):
        return Field(name, "other", str(inner))
    if letter in "iuf":
        return Field(name, "number", str(getattr(inner, "numpy_dtype", inner)).lower())
    if letter == "b":
        return Field(name, "truth", "bool")
    if letter == "O" and str(inner) == "object":
        return Field(name, "text", "object")  # of any type: how its values are written counts
    return Field(name, "word", str(inner)) if letter in "OUT" else Field(name, "other", str(inner))


def _pandas_column(column: Any, kind: str) -> Column:
    if kind == "number":
        if column.dtype.kind in "iuf" and isinstance(column.dtype, np.dtype):
            return np.asarray(column)
        return np.asarray(column.astype("Float64").to_numpy(np.float64, na_value=np.nan))
    if kind == "truth":
        return np.asarray(column.astype("Float64").to_numpy(np.float64, na_value=np.nan) if column.hasnans else column)
    return [
        None if one is None or one != one else str(one) for one in column.astype(object).where(column.notna(), None)
    ]
