"""Rows: some records in memory as a query sees them, the maps between, and the matrices behind products."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit.kernels.rows import row_products
from tacit.maps import RowMap
from tacit.records.integers import Integers
from tacit.records.kept import Kept
from tacit.records.persons import Shares

__all__ = ["MAX_CACHE_BYTES", "Design", "Mapped", "Rows"]

Array = NDArray[np.float64]
TINY = 1e-250
"""Sums of squares below this (or above its inverse) are worked out again, scaled."""


LONG = 1e150
"""Rows beyond this norm, or its inverse, leave the range in which products of floats keep their digits."""


class Design:
    """(n, p) features; float64 or float32, finite, in mapped units.

    Args:
        matrix: a numpy array (made Fortran-ordered) or a scipy sparse matrix (made CSC).
    """

    __slots__ = ("matrix",)

    def __init__(self, matrix: Any) -> None:
        if sparse.issparse(matrix):
            stored_in_parts = matrix.format == "csc" and not matrix.has_canonical_format
            self.matrix = sparse.csc_array(matrix, copy=stored_in_parts)  # the caller's arrays stay as they are
            self.matrix.sum_duplicates()  # a duplicate entry would be clipped twice
        else:
            self.matrix = np.asfortranarray(matrix)

    @property
    def sparse(self) -> bool:
        """Whether it is stored by columns without zeros."""
        return bool(sparse.issparse(self.matrix))

    @property
    def shape(self) -> tuple[int, int]:
        """(records, features)."""
        n, p = self.matrix.shape
        return int(n), int(p)

    def dot(self, w: Array) -> Array:
        """X w; (n,) or (n, k). One vector's product is a function of each record by itself, to the bit."""
        if not self.sparse and np.size(w) == self.shape[1]:
            out = self.columns_dot(np.arange(self.shape[1]), np.ravel(w))
            return out if np.ndim(w) == 1 else out[:, None]
        return np.asarray(self.matrix @ w, np.float64)

    def transposed_dot(self, s: Array) -> Array:
        """Xᵀ s; (p,) or (p, k)."""
        return np.asarray(self.matrix.T @ s, np.float64)

    def columns_dot(self, columns: NDArray[np.int64], w: Array) -> Array:
        """X_U w for some columns; each record's by itself, to the bit."""
        if self.sparse:
            return np.asarray(self.matrix[:, columns] @ w, np.float64)
        return row_products(self.matrix.T, np.asarray(columns, np.int64), np.ascontiguousarray(w, np.float64))

    def columns(self) -> tuple[Array, NDArray[np.int32], NDArray[np.int64]]:
        """(data, row indices, column pointers) of a sparse design, as the kernels want them."""
        X = self.matrix
        return X.data.astype(np.float64, copy=False), X.indices.astype(np.int32), X.indptr.astype(np.int64)

    def row_norms(self) -> Array:
        """‖x_i‖ of every record, also where squares would underflow."""
        X = self.matrix
        if self.sparse:
            largest = np.asarray(abs(X).max(axis=1).toarray(), np.float64).ravel()
            with np.errstate(all="ignore"):
                data = X.data.astype(np.float64) / np.where(largest > 0, largest, 1.0)[X.indices]
                return np.asarray(largest * np.sqrt(np.bincount(X.indices, data * data, minlength=self.shape[0])))
        squares = np.zeros(self.shape[0])
        with np.errstate(all="ignore"):
            for j in range(self.shape[1]):  # column by column: no copy of the matrix
                squares += np.square(X[:, j], dtype=np.float64)
            out = np.sqrt(squares)
            odd = np.flatnonzero((squares < TINY) | (squares > 1 / TINY))
            if odd.size:  # rows of zeros, and those whose squares leave the range of floats
                rows = np.abs(X[odd].astype(np.float64))
                largest = rows.max(axis=1)
                scaled = rows / np.where(largest > 0, largest, 1.0)[:, None]
                out[odd] = largest * np.sqrt(np.square(scaled).sum(axis=1))
        return np.asarray(out)

    def within_range(self, norms: Array) -> Design:
        """A design whose products with bounded vectors neither overflow nor lose their digits; as a rule this one.

        Rows longer than ``LONG`` are divided by a power of two (still longer than any R that they are shortened to),
        those shorter than 1/LONG or not finite become zeros: each by itself, whatever it will be multiplied by.

        Args:
            norms: of the rows.

        Returns:
            This design, or a copy in float64.
        """
        if (((norms >= 1 / LONG) & (norms <= LONG)) | (norms == 0)).all():
            return self
        lost = ~(np.isfinite(norms) & (norms >= 1 / LONG))
        power = np.ceil(np.log2(np.where(lost, 1.0, np.maximum(norms / LONG, 1.0)))).astype(np.int64)
        if self.sparse:
            X = self.matrix.copy()
            X.data = np.where(lost[X.indices], 0.0, np.ldexp(X.data.astype(np.float64), -power[X.indices]))
            return Design(X)
        return Design(np.where(lost[:, None], 0.0, np.ldexp(self.matrix.astype(np.float64), -power[:, None])))

    def scaled(self, weights: Array) -> Design:
        """X·diag(weights), a new design."""
        if self.sparse:
            return Design(self.matrix @ sparse.diags_array(np.asarray(weights, np.float64)))
        return Design(np.asarray(self.matrix * weights))

    def rows_scaled(self, weights: Array) -> Design:
        """diag(weights)·X, a new design."""
        if self.sparse:
            return Design(sparse.diags_array(np.asarray(weights, np.float64)) @ self.matrix)
        return Design(self.matrix * np.asarray(weights, self.matrix.dtype)[:, None])

    def squared(self) -> Any:
        """The squares of all entries, dense or sparse as the design is."""
        return self.matrix.power(2) if self.sparse else np.square(self.matrix)

    def with_column(self, column: Array) -> Any:
        """The matrix with one more column at its end, dense or sparse as the design is."""
        if self.sparse:
            return sparse.hstack([self.matrix, column[:, None]], format="csc")
        return np.column_stack([self.matrix, column])

    def dense(self) -> Array:
        """As a dense float64 array."""
        return np.asarray(self.matrix.toarray() if self.sparse else self.matrix, np.float64)


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
        rows: None, or how many rows there are in a source that is a function, which reads them when they are needed.
    """

    def __init__(
        self, source: Any, maps: tuple[RowMap, ...] = (), norm: float = float("inf"), rows: int | None = None
    ) -> None:
        self._source, self._maps = source, maps
        self._unread = rows is not None
        self._n = int(source.shape[0]) if rows is None else rows
        self._made: Any = None if maps or self._unread else source
        self._norm = norm

    def __len__(self) -> int:
        return self._n

    @cached_property
    def norm(self) -> float:
        """No row is longer: certified by the last map."""
        return self._maps[-1].range(None).norm if self._maps else self._norm

    @property
    def made(self) -> bool:
        """Whether the whole table is there."""
        return self._made is not None

    @property
    def fits(self) -> bool:
        """Whether the whole table is there, or is small enough to be made once."""
        return self.made or self._unread or self._is_small  # what is read when it is needed is one part

    def whole(self) -> Any:
        """The mapped table, made once."""
        if self._made is None:
            if self._unread:
                self._source, self._unread = self._source(), False
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
        return bool(self._maps) and self._maps[-1].by_rows and isinstance(self._source, np.ndarray) and self._n > 0

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


T = TypeVar("T")


class Rows:
    """A table of features and a column (or table) of targets, one row per record. **Private**: no solver sees one.

    A query that works batch by batch asks for ``take(index)``, never for ``X``: mapped features may be too large to be
    made whole (``tacit.records.Mapped``).

    Args:
        X: (records, features): an array, a sparse matrix, or a table seen through maps.
        y: (records,) or (records, outputs), or None.
        kept: what was derived from these records before, and what will be; it outlives the rows.
        shares: whose each row is and what it counts; None if every row is a record of its own.
        lost: which rows count as nothing, because they hold no numbers; None if all count.

    Attributes:
        weights: what each row of a batch counts, (rows,), in units of the sum; None if each counts one. Block problems
            and sweeps read it; queries find weights in ``members``.
    """

    def __init__(
        self,
        X: Any,
        y: Any = None,
        kept: Kept | None = None,
        shares: Shares | None = None,
        lost: NDArray[np.bool_] | None = None,
    ) -> None:
        self._features = X if isinstance(X, Mapped) else Mapped(X)
        self.y, self.shares, self.lost = y, shares, lost
        self.weights: Array | None = None
        self._kept = Kept() if kept is None else kept

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
    def made(self) -> bool:
        """Whether the whole table was made."""
        return self._features.made

    @property
    def fits(self) -> bool:
        """Whether the whole table is in memory, or small enough for it; else rows are made for each ``take``."""
        return self._features.fits

    @cached_property
    def design(self) -> Design:
        """The features by columns, as products and compiled sweeps want them."""
        return Design(self.X)

    @property
    def integers(self) -> Integers:
        """The features as integers with a scale for each record, kept."""
        return self.kept("integers", self._integers)

    def _integers(self) -> Integers:
        """Made of canonical columns: an entry stored in parts would be rounded part by part."""
        X = self.X
        return Integers(Design(X).matrix if sparse.issparse(X) else np.ascontiguousarray(np.asarray(X).T))

    def kept_members(self, members: NDArray[Any]) -> NDArray[Any]:
        """Which of these rows a step reads, (replicas, rows), or what they count: those that are lost do not."""
        return members if self.lost is None else members * ~self.lost

    def weighted(self, weights: Array) -> Rows:
        """The same rows, of which each counts what is stated here."""
        out = copy.copy(self)
        out.weights = weights
        return out

    def take(self, index: NDArray[np.intp]) -> Rows:
        """Some of the records; not to be changed."""
        return Rows(Mapped(self._features.take(index), norm=self.norm), None if self.y is None else self.y[index])

    def kept(self, key: Hashable, make: Callable[[], T]) -> T:
        """A value derived from these rows (norms, gates, a statistic), made once where there is room for it.

        Args:
            key: names it; a query passes itself or a tuple of public numbers.
            make: makes it.

        Returns:
            The value.
        """
        return self._kept.get(key, make)
