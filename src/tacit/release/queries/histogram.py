"""Joint histograms of several features on public grids."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.lattice import FLUSH, truncated
from tacit.records import Rows
from tacit.release.query import Example, Grid, Members, Query, Sums, reads_everybody, register, root_above

__all__ = ["HistogramSum"]

Array = NDArray[np.float64]


@register("histogram")
@dataclass(frozen=True, eq=False)
class HistogramSum(Query):
    """The histograms of p features, one after another: each record adds 1 to one bin of each.

    A contribution is p one-hot vectors, of norm exactly √p. Replacing a record moves two bins of each feature by one,
    so two contributions are at most √(2p) apart; √(2·#) where only # features have more than one bin.

    Attributes:
        edges: per feature the strictly increasing ends of its bins; values outside count in the first or last.
    """

    edges: tuple[Array, ...]

    def __post_init__(self) -> None:
        grids = tuple(_validate.real_array(f"edges[{j}]", grid) for j, grid in enumerate(self.edges))
        for j, grid in enumerate(grids):
            if grid.ndim != 1 or len(grid) < 2 or not np.isfinite(grid).all() or not (np.diff(grid) > 0).all():
                raise InvalidInput(f"edges[{j}] must be at least two finite numbers, strictly increasing")
        object.__setattr__(self, "edges", grids)

    @cached_property
    def bins(self) -> NDArray[np.intp]:
        """How many bins each feature has."""
        return np.array([len(grid) - 1 for grid in self.edges], dtype=np.intp)

    @property
    def bound(self) -> float:  # type: ignore[override]
        """√p."""
        return root_above(len(self.edges))

    @property
    def diameter(self) -> float:
        """Two bins of every feature that has two."""
        return root_above(2 * int((self.bins > 1).sum()))

    def _codes(self, rows: Rows) -> NDArray[np.intp]:
        """The bin of each feature, (p, records), counted over all features."""
        p, width = len(self.edges), rows.X.shape[1]
        if width != p:
            raise InvalidInput(f"{p} grids for {width} features: give one each")
        first = np.cumsum(self.bins) - self.bins
        codes = np.empty((p, len(rows)), dtype=np.intp)
        for j, grid in enumerate(self.edges):  # inner edges only: what lies beyond the ends falls into the end bins
            codes[j] = first[j] + np.searchsorted(grid[1:-1], rows.X[:, j], side="right")
        return codes

    def contributions(self, rows: Rows, state: Array) -> Array:
        """One-hot vectors, whatever the state."""
        out = np.zeros((len(rows), int(self.bins.sum())))
        out[np.arange(len(rows))[:, None], self._codes(rows).T] = 1.0
        return np.broadcast_to(out, (len(state), *out.shape))

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """Counts: one-hot vectors need no clipping, and are never formed."""
        codes, full, size = self._codes(rows), reads_everybody(members), int(self.bins.sum())
        if members.dtype != np.bool_:
            return np.stack([_weighted_counts(codes, row, size, grid) for row in members])
        counts = [
            np.bincount((codes if full else codes[:, row]).ravel(), minlength=size)
            for row in (members[:1] if full else members)
        ]
        out = np.repeat(np.stack(counts), len(members) if full else 1, axis=0)
        return out.astype(np.float64) if grid is None else out.astype(np.int64) * int(1 / grid.unit)

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Values inside and beyond the grids; one feature has a single bin."""
        edges = (np.linspace(-1, 1, 5), np.array([0.0, 0.1, 10.0]), np.array([-1.0, 1.0]))
        here = rng.normal(size=(records, 3)) * rng.choice([0.3, 9.0], size=(records, 1))
        there = here.copy()
        there[0] = -here[0] if rng.random() < 0.5 else rng.normal(size=3)
        return Example(cls(edges), Rows(here), Rows(there), np.zeros((1, 1)))


def _weighted_counts(codes: NDArray[np.intp], weights: Array, size: int, grid: Grid | None) -> Sums:
    """How much counts in each bin, as floats or as integers on a grid."""
    if grid is None:
        return np.bincount(codes.ravel(), np.tile(weights, len(codes)), minlength=size)
    out, whole = np.zeros(size, np.int64), truncated(weights, grid.unit)
    for first in range(0, len(weights), FLUSH // max(len(codes), 1) or 1):
        part = slice(first, first + (FLUSH // max(len(codes), 1) or 1))
        own = codes[:, part]
        out += np.bincount(own.ravel(), np.tile(whole[part], len(own)), minlength=size).astype(np.int64)
    return out
