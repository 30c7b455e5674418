"""Rows: some records in memory, as a query sees them."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tacit.records.design import Design
from tacit.records.mapped import Mapped

__all__ = ["Rows"]

T = TypeVar("T")
MAX_KEPT = 8
"""Derived values that are kept beside the rows; the oldest one makes room."""


class Rows:
    """A table of features and a column (or table) of targets, one row per record. **Private**: no solver sees one.

    A query that works batch by batch asks for ``take(index)``, never for ``X``: mapped features may be too large to be
    made whole (``tacit.records.Mapped``).

    Args:
        X: (records, features): an array, a sparse matrix, or a table seen through maps.
        y: (records,) or (records, outputs), or None.
    """

    def __init__(self, X: Any, y: Any = None) -> None:
        self._features = X if isinstance(X, Mapped) else Mapped(X)
        self.y = y
        self._kept: dict[Hashable, Any] = {}

    def __len__(self) -> int:
        return len(self._features)

    @property
    def X(self) -> Any:
        """The whole table, made once."""
        return self._features.whole()

    @property
    def norm(self) -> float:
        """No row is longer: certified by the last map, infinite without one."""
        return self._features.norm

    @property
    def fits(self) -> bool:
        """Whether the whole table is in memory, or small enough for it; else rows are made for each ``take``."""
        return self._features.fits

    @property
    def design(self) -> Design:
        """The features by columns, as products and compiled sweeps want them."""
        return self.kept("design", lambda: Design(self.X))

    def take(self, index: NDArray[np.intp]) -> Rows:
        """Some of the records; not to be changed."""
        return Rows(Mapped(self._features.take(index), norm=self.norm), None if self.y is None else self.y[index])

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """A value derived from these rows (norms, gates, a statistic), made once.

        Args:
            key: names it; a query passes itself or a tuple of public numbers.
            make: makes it.

        Returns:
            The value.
        """
        if key not in self._kept:
            while len(self._kept) >= MAX_KEPT:
                self._kept.pop(next(iter(self._kept)))
            self._kept[key] = make()
        return self._kept[key]  # type: ignore[no-any-return]
