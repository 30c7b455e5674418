"""Sums of numbers in a known interval: counts, clipped residuals, scores."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit import _validate
from tacit.run.clipped_sum import ClippedSum, Mask, records_array, register

__all__ = ["BoundedValues"]

Array = NDArray[np.float64]


@register("bounded-values")
class BoundedValues(ClippedSum):
    """Σ of vectors clipped to [0, top]^k: of norm at most top·√k, and no further than that from each other.

    Args:
        values: (records, k), dense or sparse.
        top: the largest entry.
    """

    def __init__(self, values: Any, top: float = 1.0) -> None:
        top = _validate.positive(top=top)
        if sparse.issparse(values):
            self._values = sparse.csc_array(values, copy=True)
            self._values.sum_duplicates()  # an entry stored in parts would be clipped part by part
            self._values.data = np.clip(self._values.data, 0.0, top)
        else:
            self._values = np.clip(records_array("values", values, 2), 0.0, top)
        self.records, self.size = self._values.shape
        self.bound = top * float(np.sqrt(self.size))

    @property
    def diameter(self) -> float:
        """From 0 to ``top`` in every entry."""
        return self.bound

    def contributions(self, state: Array, index: NDArray[np.intp]) -> Array:
        """The values, whatever the state."""
        rows = self._values[index]
        rows = rows.toarray() if sparse.issparse(rows) else rows
        return np.broadcast_to(rows, (len(state), len(index), self.size))

    def total(self, state: Array, batch: Mask) -> Array:
        """One product."""
        return np.asarray(batch.astype(np.float64) @ self._values)

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[BoundedValues, BoundedValues, Array]:
        """Values inside and beyond both ends."""
        here = rng.normal(size=(records, 2)) * 3
        there = here.copy()
        here[0], there[0] = rng.normal(scale=9, size=2), rng.normal(scale=9, size=2)
        return cls(here, 1.5), cls(there, 1.5), np.zeros((1, 1))
