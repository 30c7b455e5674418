"""Features seen through public maps: made once if they fit into memory, else some rows at a time."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit.maps import RowMap

__all__ = ["MAX_CACHE_BYTES", "Mapped"]

MAX_CACHE_BYTES = 2**30
"""A mapped table up to this size is made once and kept; rows of a larger one are made whenever a query takes them."""
CHUNK = 4096
"""Rows that are mapped at a time where maps go by rows."""
PUBLIC_VALUE = 0.5
"""Of a row that is mapped only to see how wide a mapped row is."""


class Mapped:
    """A table of features and the maps through which queries see it; nothing is mapped before it is asked for.

    How a query asks decides what is made. One that works on the whole table (``whole``: products, compiled sweeps) gets
    it, made once, whatever its size. One that works batch by batch (``take``) gets its rows from a table that was made
    once if that takes at most ``MAX_CACHE_BYTES``; else just these rows are mapped. Maps treat each row by itself, so
    the values are the same either way: random Fourier features of 60,000 pictures need the memory of one batch.

    Args:
        source: an array or a sparse matrix; neither copied nor changed.
        maps: applied in this order.
        norm: no row of the source is longer; infinite if that is not known.
    """

    def __init__(self, source: Any, maps: tuple[RowMap, ...] = (), norm: float = float("inf")) -> None:
        self._source, self._maps = source, maps
        self._n = int(source.shape[0])
        self._made: Any = None if maps else source
        self.norm = maps[-1].range(None).norm if maps else norm

    def __len__(self) -> int:
        return self._n

    @property
    def made(self) -> bool:
        """Whether the whole table is there."""
        return self._made is not None

    @property
    def fits(self) -> bool:
        """Whether the whole table is there, or is small enough to be made once."""
        return self.made or self._is_small

    def whole(self) -> Any:
        """The mapped table, made once."""
        if self._made is None:
            self._made = self._by_chunks() if self._goes_by_rows() else self._mapped(self._source)
            self._source = None  # an intermediate copy is not needed any more
        return self._made

    def take(self, index: NDArray[np.intp]) -> Any:
        """Some mapped rows: a copy, or a view of a private table if they follow each other."""
        if self.fits:
            whole = self.whole()
            private = bool(self._maps) and isinstance(whole, np.ndarray)
            return whole[index[0] : index[-1] + 1] if private and _follow(index) else _taken(whole, index)
        return self._mapped(_taken(self._source, index))

    def _goes_by_rows(self) -> bool:
        return self._maps[-1].by_rows and isinstance(self._source, np.ndarray) and self._n > 0

    def _mapped(self, X: Any) -> Any:
        for one in self._maps:
            X = one(X)
        return X

    def _by_chunks(self) -> NDArray[Any]:
        """The whole table, with the memory of one chunk for what lies between source and result.

        Chunks are copied first: between a map's check of a row and its result, the caller may change the source.

        Returns:
            (records, width), in C order; a private copy.
        """
        out: Any = None
        for first in range(0, self._n, CHUNK):
            rows = self._mapped(np.array(self._source[first : first + CHUNK]))
            if out is None:
                out = np.empty((self._n, rows.shape[1]), rows.dtype)
            out[first : first + CHUNK] = rows
        return np.asarray(out)

    @cached_property
    def _is_small(self) -> bool:
        """Whether the mapped table takes little memory; how wide it is shows in a public row."""
        if sparse.issparse(self._source):
            return True  # mapped rows are about as sparse
        row = self._mapped(np.full((1, self._source.shape[1]), PUBLIC_VALUE, self._source.dtype))
        return self._n * int(row.nbytes) <= MAX_CACHE_BYTES


def _taken(X: Any, index: NDArray[np.intp]) -> Any:
    return X.tocsr()[index] if sparse.issparse(X) else X[index]


def _follow(index: NDArray[np.intp]) -> bool:
    """Whether each number is the one after the last."""
    if not len(index) or index[-1] - index[0] != len(index) - 1:
        return False
    return bool((index[1:] > index[:-1]).all())
