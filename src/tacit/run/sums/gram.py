"""Second-moment matrices of records of bounded norm."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.run.clipped_sum import ClippedSum, Mask, records_array, register

__all__ = ["GramSum", "symmetric", "upper_triangle"]

Array = NDArray[np.float64]


def upper_triangle(G: Array) -> Array:
    """The entries on and above the diagonal, those off it times √2: an isometry from the Frobenius norm."""
    rows, columns = np.triu_indices(G.shape[-1])
    return np.asarray(G[..., rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2)))


def symmetric(flat: Array, size: int) -> Array:
    """The inverse of ``upper_triangle``: noise of deviation σ on the flat vector becomes σ/√2 off the diagonal."""
    rows, columns = np.triu_indices(size)
    G = np.zeros((size, size))
    G[rows, columns] = flat / np.where(rows == columns, 1.0, np.sqrt(2))
    return np.asarray(G + np.triu(G, 1).T)


@register("gram")
class GramSum(ClippedSum):
    """Σ zzᵀ over records scaled down to norm R, as a flat upper triangle.

    A contribution has Frobenius norm ‖z‖² ≤ R². Two of them are at most √2·R² apart: ‖zzᵀ − vvᵀ‖² = ‖z‖⁴ + ‖v‖⁴ −
    2(zᵀv)² ≤ 2R⁴, reached by orthogonal records of full norm.

    Args:
        vectors: (records, m).
        norm: R.
    """

    def __init__(self, vectors: ArrayLike, norm: float) -> None:
        Z = records_array("vectors", vectors, 2)
        R = _validate.positive(norm=norm)
        with np.errstate(over="ignore"):
            norms = np.sqrt(np.einsum("ij,ij->i", Z, Z))
        self._Z = Z * (R / np.maximum(norms, R))[:, None]
        self.bound = R * R
        self.records, self.width = Z.shape
        self.size = self.width * (self.width + 1) // 2

    @property
    def diameter(self) -> float:
        """√2·R², unless there is only one dimension."""
        return self.bound * (np.sqrt(2) if self.width > 1 else 1.0)

    def contributions(self, state: Array, index: NDArray[np.intp]) -> Array:
        """The upper triangles, whatever the state."""
        Z = self._Z[index]
        return np.broadcast_to(upper_triangle(Z[:, :, None] * Z[:, None, :]), (len(state), len(index), self.size))

    def total(self, state: Array, batch: Mask) -> Array:
        """One matrix product per replica."""
        full = bool(batch.all())
        parts = [self._Z.T @ (self._Z if full else self._Z * row[:, None]) for row in (batch[:1] if full else batch)]
        out = upper_triangle(np.stack(parts))
        return np.repeat(out, len(batch), axis=0) if full else out

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[GramSum, GramSum, Array]:
        """Long and short vectors; the neighbour's is often orthogonal."""
        here = rng.normal(size=(records, 3)) * rng.choice([0.1, 30.0], size=(records, 1))
        there = here.copy()
        here[0] = 5 * np.eye(3)[rng.integers(3)]
        there[0] = 5 * np.eye(3)[rng.integers(3)] if rng.random() < 0.7 else rng.normal(size=3)
        return cls(here, 1.5), cls(there, 1.5), np.zeros((1, 1))
