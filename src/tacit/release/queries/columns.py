"""How many records lie within an interval, for every column at once: where data is within bounds that are too wide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.records import Rows
from tacit.release.query import Example, Grid, Members, Query, Sums, register, root_above

__all__ = ["ColumnsWithin"]

Array = NDArray[np.float64]


@register("columns-within")
@dataclass(frozen=True, eq=False)
class ColumnsWithin(Query):
    """Σ (1{|u₁ − c₁| ≤ r₁}, …, 1{|u_p − c_p| ≤ r_p}): counts of each column, asked at once.

    A contribution is a vector of 0 and 1, of norm at most √#, # the columns with r_j ≥ 0; another record may answer
    every question the other way, so two contributions are as far apart. A column with r_j < 0 is not asked about.

    Attributes:
        centre: c_j.
        radius: r_j.
        with_target: whether the target is the last column.
    """

    centre: Array
    radius: Array
    with_target: bool = False

    def __post_init__(self) -> None:
        for name in ("centre", "radius"):
            object.__setattr__(self, name, _validate.real_array(name, getattr(self, name)))
        if self.centre.shape != self.radius.shape or not np.isfinite(self.centre + self.radius).all():
            raise InvalidInput("an interval needs a finite centre and a finite radius for each column")

    @property
    def bound(self) -> float:  # type: ignore[override]
        """√#."""
        return root_above(max(int((self.radius >= 0).sum()), 1e-300))

    @property
    def diameter(self) -> float:
        """√#, too: from all to none."""
        return self.bound

    def _column(self, rows: Rows, j: int) -> NDArray[np.bool_]:
        """Which records answer yes."""
        if self.with_target and j == len(self.centre) - 1:
            u = rows.y
        else:
            u = rows.X[:, [j]].toarray().ravel() if sparse.issparse(rows.X) else rows.X[:, j]
        with np.errstate(invalid="ignore"):
            return np.asarray(np.abs(np.asarray(u, np.float64) - self.centre[j]) <= self.radius[j])

    def contributions(self, rows: Rows, state: Array) -> Array:
        """The answers, whatever the state."""
        out = np.stack([self._column(rows, j) for j in range(len(self.centre))], axis=1).astype(np.float64)
        return np.broadcast_to(out, (len(state), *out.shape))

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """Counts, column by column; answers need no clipping, and are never kept."""
        counted = [_in_units(row, grid) for row in members]
        asked = np.flatnonzero(self.radius >= 0)
        out = np.zeros((len(members), len(self.centre)), np.float64 if grid is None else np.int64)
        for j in asked:
            inside = self._column(rows, int(j))
            out[:, j] = [row[inside].sum() for row in counted]
        return out

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Records at both sides of the ends; one column is not asked about; dense or sparse, with a target or not."""
        here = rng.choice([-2.0, 0.0, 0.5, 3.0], size=(records, 3))
        there = here.copy()
        here[0], there[0] = (np.full(3, 0.0), np.full(3, 3.0)) if rng.random() < 0.5 else rng.normal(size=(2, 3)) * 2
        centre, radius = np.array([0.0, 0.25, 0.0]), np.array([0.5, 0.3, -1.0])
        if rng.random() < 0.3:
            one, two = (Rows(table[:, 1:], table[:, 0]) for table in (here, there))
            order = [1, 2, 0]
            return Example(cls(centre[order], radius[order], True), one, two, np.zeros((1, 3)))
        form = sparse.csc_array if rng.random() < 0.5 else np.asarray
        return Example(cls(centre, radius), Rows(form(here)), Rows(form(there)), np.zeros((1, 3)))


def _in_units(row: Any, grid: Grid | None) -> NDArray[Any]:
    """What rows count: numbers, or integers on a grid, rounded toward zero."""
    counts = np.asarray(row, np.float64)
    return counts if grid is None else np.trunc(counts / grid.unit).astype(np.int64)
