"""Hidden factors of people: w ≥ 0 that fits a person's row, from that row and the items H alone.

    w_i = argmin_{w ≥ 0} ½‖m_i − wH‖² + λ/2‖w‖²        by a fixed number of coordinate passes

For exact sums a row is a vector of integers, and every product with H is exact: w is a function of its row to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit.kernels.exact import coarse
from tacit.kernels.nonnegative import nonnegative_rows, observed_rows
from tacit.kernels.rows import row_squares
from tacit.maps import NonnegativeRows
from tacit.records import Rows

__all__ = [
    "PASSES",
    "PERSON_NORM",
    "all_weights",
    "by_rows",
    "coarse_items",
    "exact_weights",
    "integer_people",
    "parts",
    "rounding",
    "shortened_weights",
    "squares_of",
    "weights",
]

Array = NDArray[np.float64]
PASSES = 50
"""Coordinate passes for a person's factors: fixed, so that nothing of the record decides when to stop."""
PERSON_NORM = 1.0
"""R: no person's factors are longer, in units of the row norm. At the optimum of rows H ≥ 0 of norm 1 none are."""
PART_ENTRIES = 1 << 18
"""Entries of a part of a batch: what a table needs besides itself."""


def parts(X: Any, most: int | None = None) -> Iterator[slice]:
    """The rows of a table in parts that fit into memory, of at most ``most`` rows."""
    n, items = X.shape
    width = X.nnz / max(n, 1) if sparse.issparse(X) else items
    size = min(max(1, int(PART_ENTRIES / max(width, 1.0))), most or n)
    return (slice(first, first + size) for first in range(0, n, size))


def weights(H: Array, part: Any, people: NonnegativeRows, ridge: float, longest: float) -> tuple[Array, Any, Array]:
    """W of each person of a part, at most ``longest``; the rows; and what w leaves of stored entries.

    Args:
        H: (k, items).
        part: of the table, as it is.
        people: the map of a row.
        ridge: λ.
        longest: R.

    Returns:
        W (m, k), the mapped rows, and residuals of stored entries (empty unless only they count).
    """
    rows = people(part)
    if people.observed_only:
        Ht = np.ascontiguousarray(H.T)
        W, left = observed_rows(rows.indptr, rows.indices, rows.data, Ht, ridge, longest, PASSES)
        return W, rows, left
    G = H @ H.T + ridge * np.eye(len(H))
    W = nonnegative_rows(G, np.ascontiguousarray(np.asarray(rows @ H.T)), PASSES)
    if math.isfinite(longest):
        norms = np.sqrt((W * W).sum(axis=1))
        W = W * (longest / np.maximum(norms, longest))[:, None]
    return W, rows, np.empty(0)


def all_weights(X: Any, H: Array, *, ridge: float = 0.0, observed_only: bool = False) -> Array:
    """W of rows of any length, in their own units, part by part: for the holder of the rows.

    Args:
        X: (rows, items), an array or a CSR matrix.
        H: (k, items).
        ridge: λ.
        observed_only: whether absent entries are unknown.

    Returns:
        (rows, k).
    """
    people = NonnegativeRows(X.shape[1], None, observed_only)
    return np.concatenate([weights(H, X[part], people, ridge, math.inf)[0] for part in parts(X)])


def by_rows(rows: Rows) -> Any:
    """The table, an array or a CSR matrix."""
    X = rows.X
    return rows.kept("csr", X.tocsr) if sparse.issparse(X) and X.format != "csr" else X


def squares_of(rows: Any) -> Array:
    """‖row‖² of an array or a CSR matrix."""
    if sparse.issparse(rows):
        squares = sparse.csr_matrix((rows.data * rows.data, rows.indices, rows.indptr), shape=rows.shape)
        return np.asarray(squares @ np.ones(rows.shape[1]))
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def rounding(H: Array, W: Array, squares: Array) -> Array:
    """More than ‖m‖² − 2w·Hm + wHHᵀwᵀ is off, computed: sums of at most d + 2k products of ‖m‖ + Σ|w_j|‖h_j‖."""
    k, d = H.shape
    reach = np.sqrt(squares) + np.abs(W) @ np.sqrt((H * H).sum(axis=1))
    return np.asarray(4 * np.finfo(np.float64).eps * (d + 2 * k + 8) * reach**2)


# -- integers -----------------------------------------------------------------------------------------------------


def integer_people(part: Any, people: NonnegativeRows, unit: float) -> tuple[Any, Array]:
    """People's rows in units of a grid, rounded to the nearest, and their squared lengths.

    Args:
        part: of the table, as it is.
        people: the map of a row.
        unit: a power of two.

    Returns:
        An array or a CSR matrix of integers, and ‖row‖² in the same units, (m,).
    """
    rows = people(part)
    if sparse.issparse(rows):
        rows.data = np.rint(rows.data / unit)
        return rows, squares_of(rows)
    rows = np.rint(rows / unit)
    return rows, row_squares(rows)


def exact_weights(B: Array, G: Array, ridge: float) -> Array:
    """Factors of each person, at most ``PERSON_NORM`` long; a function of its row of B, to the bit.

    Args:
        B: (m, k), Hm of each person.
        G: (k, k), HHᵀ.
        ridge: λ.

    Returns:
        (m, k).
    """
    W = nonnegative_rows(G + ridge * np.eye(len(G)), np.ascontiguousarray(B), PASSES)
    return shortened_weights(W)


def shortened_weights(W: Array) -> Array:
    """W scaled down to ``PERSON_NORM``, and a little less, so that rounding cannot make it longer; not finite → 0."""
    inside = PERSON_NORM * (1 - (W.shape[1] + 8) * 2.0**-50)
    factor = inside / np.maximum(np.sqrt(row_squares(W)), inside)
    return np.where(np.isfinite(factor)[:, None], W * factor[:, None], 0.0)


def coarse_items(H: Array, row_bits: int) -> Array:
    """H rounded, relative to its largest entry, so that HHᵀ and products with integer rows are exact."""
    return coarse(coarse(H), row_bits)
