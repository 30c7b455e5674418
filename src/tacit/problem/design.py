"""Designs: the feature matrix, dense in Fortran order or sparse by columns (CSC), behind one face.

Everything a solver does with features is one of: multiply, multiply by the transpose, norms of rows, one column.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

__all__ = ["Design"]

Array = NDArray[np.float64]


class Design:
    """(n, p) features; float64 or float32, finite, in mapped units.

    Args:
        matrix: a numpy array (made Fortran-ordered) or a scipy sparse matrix (made CSC).
    """

    __slots__ = ("matrix",)

    def __init__(self, matrix: Any) -> None:
        if sparse.issparse(matrix):
            self.matrix = sparse.csc_array(matrix)
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
        """X w; (n,) or (n, k)."""
        return np.asarray(self.matrix @ w, np.float64)

    def transposed_dot(self, s: Array) -> Array:
        """Xᵀ s; (p,) or (p, k)."""
        return np.asarray(self.matrix.T @ s, np.float64)

    def columns_dot(self, columns: NDArray[np.int64], w: Array) -> Array:
        """X_U w for some columns."""
        if len(columns) == 1 and not self.sparse:
            return np.asarray(self.matrix[:, columns[0]] * w[0], np.float64)
        return np.asarray(self.matrix[:, columns] @ w, np.float64)

    def columns(self) -> tuple[Array, NDArray[np.int32], NDArray[np.int64]]:
        """(data, row indices, column pointers) of a sparse design, as the kernels want them."""
        X = self.matrix
        return X.data.astype(np.float64, copy=False), X.indices.astype(np.int32), X.indptr.astype(np.int64)

    def row_norms(self, weights: Array | None = None) -> Array:
        """‖x_i·weights‖ of every record."""
        squares = np.ones(self.shape[1]) if weights is None else np.square(weights)
        if self.sparse:
            return np.sqrt(np.asarray(self.matrix.power(2) @ squares, np.float64))
        out = np.zeros(self.shape[0])
        for j in range(self.shape[1]):  # column by column: no copy of the matrix
            out += squares[j] * np.square(self.matrix[:, j], dtype=np.float64)
        return np.sqrt(out)

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
