"""Designs: the feature matrix, dense in Fortran order or sparse by columns (CSC), behind one face.

Everything a solver does with features is one of: multiply, multiply by the transpose, norms of rows, one column.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit.kernels.rows import row_products

__all__ = ["Design"]

Array = NDArray[np.float64]
TINY = 1e-250
"""Sums of squares below this (or above its inverse) are worked out again, scaled."""


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
        return row_products(self.matrix, np.asarray(columns, np.int64), np.ascontiguousarray(w, np.float64))

    def columns(self) -> tuple[Array, NDArray[np.int32], NDArray[np.int64]]:
        """(data, row indices, column pointers) of a sparse design, as the kernels want them."""
        X = self.matrix
        return X.data.astype(np.float64, copy=False), X.indices.astype(np.int32), X.indptr.astype(np.int64)

    def row_norms(self) -> Array:
        """‖x_i‖ of every record, also where squares would underflow."""
        X = self.matrix
        if self.sparse:
            largest = np.asarray(abs(X).max(axis=1).toarray(), np.float64).ravel()
            data = X.data.astype(np.float64) / np.where(largest > 0, largest, 1.0)[X.indices]
            return largest * np.sqrt(np.bincount(X.indices, data * data, minlength=self.shape[0]))
        squares = np.zeros(self.shape[0])
        with np.errstate(over="ignore", under="ignore"):
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

    def digest(self) -> bytes:
        """sha256 of the entries."""
        h = hashlib.sha256(str((self.shape, self.sparse)).encode())
        if self.sparse:
            for part in (self.matrix.data, self.matrix.indices, self.matrix.indptr):
                h.update(np.ascontiguousarray(part).data)
        else:
            h.update(self.matrix.T.data if self.matrix.T.flags.c_contiguous else self.matrix.tobytes())
        return h.digest()
