"""Mean squares of features, relative to their bounds: coordinate-wise smoothness."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.problem import Design
from tacit.run.clipped_sum import ClippedSum, Mask, register

__all__ = ["SquareSum"]

Array = NDArray[np.float64]


@register("squares")
class SquareSum(ClippedSum):
    """Σ ((x₁/b₁)², …, (x_p/b_p)²), each square clipped to 1: of norm at most √p, and no further than that apart.

    Args:
        design: the features.
        reach: b_j > 0.
    """

    def __init__(self, design: Design, reach: Array) -> None:
        self._design, self._weights = design, 1 / np.asarray(reach, np.float64)
        self.records, self.size = design.shape
        self.bound = float(np.sqrt(self.size))

    @property
    def diameter(self) -> float:
        """From 0 to 1 in every entry."""
        return self.bound

    def contributions(self, state: Array, index: NDArray[np.intp]) -> Array:
        """The squares, whatever the state."""
        rows = np.minimum(np.square(self._design.dense()[index] * self._weights), 1.0)
        return np.broadcast_to(rows, (len(state), len(index), self.size))

    def total(self, state: Array, batch: Mask) -> Array:
        """One pass over the columns, without a copy."""
        if self._design.sparse or not batch.all():
            squares = self._design.scaled(self._weights).squared()
            squares = squares.minimum(1.0) if self._design.sparse else np.minimum(squares, 1.0)
            return np.asarray(batch.astype(np.float64) @ squares, np.float64)
        sums = np.empty(self.size)
        scratch = np.empty(self.records)
        for j, column in enumerate(self._design.matrix.T):
            np.multiply(column, self._weights[j], out=scratch)
            np.minimum(np.square(scratch, out=scratch), 1.0, out=scratch)
            sums[j] = scratch.sum()
        return np.tile(sums, (len(batch), 1))

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[SquareSum, SquareSum, Array]:
        """Values inside and beyond the bounds, dense or sparse."""
        from scipy import sparse

        here = rng.normal(size=(records, 2)) * 3
        there = here.copy()
        here[0], there[0] = rng.choice([0.0, 9.0, 1.0], size=2), rng.choice([0.0, 9.0, 1.0], size=2)
        form = sparse.csc_array if rng.random() < 0.5 else np.asarray
        return (
            cls(Design(form(here)), np.array([2.0, 0.5])),
            cls(Design(form(there)), np.array([2.0, 0.5])),
            np.zeros((1, 1)),
        )
