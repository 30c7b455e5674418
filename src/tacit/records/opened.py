"""What all opened tables have in common, wherever they are: a header, and views behind public maps."""

from __future__ import annotations

import copy
import dataclasses
import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput
from tacit.maps import RowMap
from tacit.records.base import Header, Records, TargetMap
from tacit.records.encoding import Encoder, Part, check_type
from tacit.records.kept import Kept
from tacit.records.persons import Shares
from tacit.records.rows import Mapped, Rows
from tacit.records.schema import Label
from tacit.records.sources import Source

__all__ = ["TICKS", "Opened", "View", "as_type", "no_records"]

TICKS = 1000
"""Steps of a progress bar in one pass: how many rows there are does not show."""


class View(NamedTuple):
    """How queries see the parts of a table; public, so that it can be sent to wherever these are.

    Attributes:
        dtype: of the features.
        maps: that features go through.
        targets: maps that targets go through.
        coded: whether targets are places of labels already.
    """

    dtype: Any
    maps: tuple[RowMap, ...] = ()
    targets: tuple[TargetMap, ...] = ()
    coded: bool = False

    def rows(
        self,
        part: Part,
        kept: Kept | None = None,
        shares: Shares | None = None,
    ) -> Rows:
        """The rows of a part; features are mapped when a query asks for them.

        Args:
            part: some rows as numbers.
            kept: what was derived from them before.
            shares: whose each row is, or None.

        Returns:
            The rows.
        """
        lost, y = part.lost, part.y
        target: Any = y
        if y is not None and self.coded:
            target = y.astype(np.intp)
        for one in self.targets:
            target = one(target)
        X = functools.partial(as_type, part.X, self.dtype)
        return Rows(
            Mapped(X, self.maps, rows=len(part)), target, kept, shares=shares, lost=lost if lost.any() else None
        )


def as_type(X: Any, dtype: Any) -> NDArray[Any]:
    """Features of another type, read now if they were not."""
    return np.asarray((X() if callable(X) else X).astype(dtype, copy=False))


def no_records(source: Source) -> str:
    """What to say about a table without rows."""
    return f"{source.what} has a header but no records: add the data below it"


class Opened(Records):
    """A table that ``tacit.open_records`` opened: what estimators ask of it.

    Args:
        source: the table.
        encoder: of its columns.
        classes: the labels that its schema lists, or None.
    """

    def __init__(self, source: Source, encoder: Encoder, classes: tuple[Label, ...] | None = None) -> None:
        field = next((one for one in source.fields if one.name == encoder.target), None)
        self.header = Header(
            encoder.names if source.named else None, len(encoder.names), np.dtype(encoder.dtype), field, classes
        )
        self._source, self._encoder, self._dtype = source, encoder, np.dtype(encoder.dtype)
        self._maps: tuple[RowMap, ...] = ()
        self._targets: tuple[TargetMap, ...] = ()
        self._tick: Callable[[int], None] | None = None

    @property
    def has_persons(self) -> bool:
        """Whether a column says whose each row is."""
        return self._encoder.person is not None

    @property
    def _view(self) -> View:
        return View(self._dtype, self._maps, self._targets, self._encoder.classes is not None)

    def through(self, features: RowMap | None = None, target: TargetMap | None = None) -> Self:
        """The same table through one more map."""
        out = copy.copy(self)
        out._maps = self._maps if features is None else (*self._maps, features)
        out._targets = self._targets if target is None else (*self._targets, target)
        return out

    def labelled(self, classes: NDArray[Any]) -> Self:
        """The same table, its targets the places of their labels among the classes; other labels count as nothing.

        Args:
            classes: public.

        Returns:
            The view.
        """
        assert self.header is not None
        out, field = copy.copy(self), self.header.target
        assert field is not None
        labels = tuple(classes.tolist())
        check_type(self._source, field, labels)
        out._encoder = dataclasses.replace(self._encoder, classes=labels)
        return out

    def without_target(self) -> Self:
        """The same features alone."""
        out = copy.copy(self)
        out._encoder = dataclasses.replace(self._encoder, target=None, classes=None)
        return out

    @abstractmethod
    def of_persons(self, least: int = 1) -> Self:
        """The same table, for one fit: records are persons, who are counted here.

        Args:
            least: the number of rows that a person is taken to have at least.

        Returns:
            The view.
        """

    def in_type(self, dtype: Any) -> Self:
        """The same table with features of another type."""
        out = copy.copy(self)
        out._dtype = np.dtype(dtype)
        return out

    def watched(self, tick: Callable[[int], None] | None) -> Self:
        """The same table; ``tick`` is called with thousandths of passes."""
        out = copy.copy(self)
        out._tick = tick
        return out

    def features(self) -> Iterator[NDArray[Any]]:
        """Features of all rows in their order, for predictions: no privacy is promised to them.

        Yields:
            Some rows at a time.

        Raises:
            InvalidInput: if a value is missing, or of another type than the model needs.
        """
        encoder = dataclasses.replace(self._encoder, target=None, classes=None, person=None)
        empty = True
        for columns in self._source.batches(encoder.wanted):
            yield encoder(columns, strict=True).X.astype(self._dtype, copy=False)
            empty = False
        if empty:
            raise InvalidInput(no_records(self._source))
