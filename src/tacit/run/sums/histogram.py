"""Joint histograms of several features on public grids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.run.clipped_sum import ClippedSum, Mask, records_array, register

__all__ = ["HistogramSum"]

Array = NDArray[np.float64]


@register("histogram")
class HistogramSum(ClippedSum):
    """The histograms of p features, one after another: each record adds 1 to one bin of each.

    A contribution is p one-hot vectors, of norm exactly √p. Replacing a record moves two bins of each feature by one,
    so two contributions are at most √(2p) apart; √(2·#) where only # features have more than one bin.

    Args:
        values: (records, p).
        edges: per feature the strictly increasing ends of its bins; values outside count in the first or last.
    """

    def __init__(self, values: ArrayLike, edges: Sequence[ArrayLike]) -> None:
        table = records_array("values", values, 2)
        self.records, p = table.shape
        grids = [_validate.real_array(f"edges[{j}]", grid) for j, grid in enumerate(edges)]
        if len(grids) != p:
            raise InvalidInput(f"{len(grids)} grids for {p} features: give one each")
        for j, grid in enumerate(grids):
            if grid.ndim != 1 or len(grid) < 2 or not np.isfinite(grid).all() or not (np.diff(grid) > 0).all():
                raise InvalidInput(f"edges[{j}] must be at least two finite numbers, strictly increasing")
        self.bins = np.array([len(grid) - 1 for grid in grids], dtype=np.intp)
        self.size = int(self.bins.sum())
        self.bound = float(np.sqrt(p))
        first = np.cumsum(self.bins) - self.bins
        self._codes = np.empty((p, self.records), dtype=np.intp)
        for j, grid in enumerate(grids):  # inner edges only: what lies beyond the ends falls into the end bins
            self._codes[j] = first[j] + np.searchsorted(grid[1:-1], table[:, j], side="right")

    @property
    def diameter(self) -> float:
        """Two bins of every feature that has two."""
        return max(float(np.sqrt(2 * (self.bins > 1).sum())), 1e-300)

    def contributions(self, state: Array, index: NDArray[np.intp]) -> Array:
        """One-hot vectors, whatever the state."""
        out = np.zeros((len(index), self.size))
        out[np.arange(len(index))[:, None], self._codes[:, index].T] = 1.0
        return np.broadcast_to(out, (len(state), *out.shape))

    def total(self, state: Array, batch: Mask) -> Array:
        """Counts: one-hot vectors need no clipping, and are never formed."""
        full = bool(batch.all())
        rows = [
            np.bincount((self._codes if full else self._codes[:, row]).ravel(), minlength=self.size)
            for row in (batch[:1] if full else batch)
        ]
        out = np.stack(rows).astype(np.float64)
        return np.repeat(out, len(batch), axis=0) if full else out

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[HistogramSum, HistogramSum, Array]:
        """Values inside and beyond the grids; one feature has a single bin."""
        edges = [np.linspace(-1, 1, 5), np.array([0.0, 0.1, 10.0]), np.array([-1.0, 1.0])]
        here = rng.normal(size=(records, 3)) * rng.choice([0.3, 9.0], size=(records, 1))
        there = here.copy()
        there[0] = -here[0] if rng.random() < 0.5 else rng.normal(size=3)
        return cls(here, edges), cls(there, edges), np.zeros((1, 1))
