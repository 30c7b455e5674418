"""Rows as integers with a scale, and their products."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit.kernels import slopes
from tacit.kernels.exact import coarse
from tacit.kernels.lattice import column_sums_sparse, row_integers_sparse
from tacit.kernels.logistic import logistic
from tacit.kernels.rows import sparse_row_products
from tacit.kernels.slopes import short_products, short_rows, short_sums

__all__ = ["Integers"]

Array = NDArray[np.float64]
BITS = 16
"""Of the largest entry of a row, where integers are stored in float32: those of a sparse matrix, and of networks."""


@lru_cache(maxsize=64)
def _coarse(state: bytes) -> Array:
    """A state so rounded that products with rows of 15 bits are exact: once for all parts of a table."""
    rounded: Array = coarse(np.frombuffer(state).reshape(1, -1), slopes.BITS)[0]
    return rounded


class Integers:
    """Rows x ≈ scale·u with integers u of 15 bits (16 of a sparse matrix); each a function of its own row.

    Args:
        columns: the entries by columns, canonical CSC where the table is sparse; (p, records) where it is dense.

    Attributes:
        norms: (records,), no less than ‖u‖.
    """

    __slots__ = ("_columns", "_scales", "_sparse", "norms")

    def __init__(self, columns: Any) -> None:
        self._sparse = sparse.issparse(columns)
        self._scales: Any
        self.norms: NDArray[Any]
        if self._sparse:
            data = columns.data.astype(np.float64, copy=False)
            rows, starts = columns.indices.astype(np.int32), columns.indptr.astype(np.int64)
            u, self._scales, self.norms = row_integers_sparse((data, rows, starts), columns.shape[0], BITS)
            self._columns: Any = (u, rows, starts)
        else:
            self._columns, self._scales, self.norms = short_rows(columns)

    @classmethod
    def of(cls, columns: NDArray[np.int16], scales: NDArray[np.int8], norms: NDArray[np.float32]) -> Integers:
        """Dense ones that were made before.

        Args:
            columns: u, in tiles of rows.
            scales: their exponents.
            norms: of the records.

        Returns:
            The same integers.
        """
        out = cls.__new__(cls)
        out._sparse, out._columns, out._scales, out.norms = False, columns, scales, norms
        return out

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """What ``of`` takes; only of dense ones."""
        return {"scales": self._scales, "norms": self.norms, "columns": self._columns}

    @property
    def scales(self) -> Array:
        """(records,), powers of two; any for rows of zeros and rows that are not finite, whose integers are zeros."""
        scales: Array = self._scales if self._sparse else slopes.powers_of_two(self._scales)
        return scales

    @property
    def nbytes(self) -> int:
        """How much memory they take."""
        parts = self._columns if self._sparse else (self._columns,)
        return sum(part.nbytes for part in (*parts, self._scales, self.norms))

    def dot(self, w: Array) -> Array:
        """u·w of each record, w rounded to about 30 bits of its largest entry; of each by itself, to the bit."""
        if self._sparse:
            u, rows, starts = self._columns
            return sparse_row_products(u, rows, starts, len(self._scales), w)
        return short_products(self._columns, len(self._scales), _coarse(w.tobytes()))

    def logistic_sums(self, w: Array, y: Array, *limits: Any) -> NDArray[np.int64]:
        """Σ t·u, t the capped slopes of the logistic loss at predictions u·w·scale (``tacit.kernels.slopes``).

        Args:
            w: the state.
            y: (records,), ±1.
            *limits: of ``capped_slopes``.

        Returns:
            (p,).
        """
        if not self._sparse:
            return slopes.logistic_sums(self._columns, _coarse(w.tobytes()), y, *limits)
        return self.sums(slopes.capped_slopes(-y * logistic(-y * (self.dot(w) * limits[0])), *limits))

    def sums(self, t: Array) -> NDArray[np.int64]:
        """Σ t·u over the records, exact; t (records,) integers such that no product exceeds 2⁴⁰."""
        t = np.ascontiguousarray(t, np.float64)
        return column_sums_sparse(self._columns, t) if self._sparse else short_sums(self._columns, t)
