"""Sums of the records themselves, and of any query with a count beside it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import MechanismMismatch
from tacit.records import Rows
from tacit.release.query import QUERIES, UNIT_ROUNDOFF, Example, Grid, Members, Query, Sums, integer_sums, register

__all__ = ["CountedSum", "VectorSum"]

Array = NDArray[np.float64]


@register("vectors")
@dataclass(frozen=True)
class VectorSum(Query):
    """The sum of the rows, each clipped to norm C: private means.

    Attributes:
        bound: C.
    """

    bound: float
    smoothness = 0.0  # the gradient of a linear function

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", _validate.positive(bound=self.bound))

    def rounding_error(self, batch: int, size: int, radius: float, terms: int | None = None) -> float:
        """b·u·C·(d + m + 17): the norm is off by (d + 8)u, its quotient by 3u, a weight by u, m terms by (m + 2)u."""
        return batch * UNIT_ROUNDOFF * self.bound * (size + (terms or batch) + 17)

    def contributions(self, rows: Rows, state: Array) -> Array:
        """The rows, whatever the state."""
        return np.broadcast_to(np.asarray(rows.X, np.float64), (len(state), *rows.X.shape))

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Neighbours with one long vector each, half of the time opposite."""
        here = rng.normal(size=(records, 3)) * rng.choice([0.1, 10.0], size=(records, 1))
        there = here.copy()
        there[0] = -here[0] if rng.random() < 0.5 else rng.normal(size=3) * 10
        return Example(cls(1.5), Rows(here), Rows(there), np.zeros((1, 3)))


@register("counted")
@dataclass(frozen=True)
class CountedSum(Query):
    """Another query with a 1 appended to every contribution, so that its last entry counts the records.

    A contribution has norm at most √(C² + 1). Replacing a record leaves the count alone, so two contributions are as
    far apart as those of the inner query. For relations under which n is secret.

    Attributes:
        inner: a registered query.
    """

    inner: Query

    def __post_init__(self) -> None:
        if QUERIES.get(getattr(self.inner, "name", "")) is not type(self.inner):
            kind = type(self.inner).__name__
            raise MechanismMismatch(f"{kind} is not a registered query: decorate it with @register(name)")

    @property
    def bound(self) -> float:  # type: ignore[override]
        """√(C² + 1)."""
        return float(np.nextafter(np.hypot(self.inner.bound, 1.0), np.inf))

    @property
    def diameter(self) -> float:
        """That of the inner query."""
        return self.inner.diameter

    def contributions(self, rows: Rows, state: Array) -> Array:
        """Those of the inner query, clipped there, each followed by 1."""
        inner = np.stack(
            [
                self.inner.total(rows, state, np.broadcast_to(one, (len(state), len(rows))))
                for one in np.eye(len(rows), dtype=bool)
            ],
            axis=1,
        )
        return np.concatenate([inner, np.ones((*inner.shape[:2], 1))], axis=2)

    def grid(self, sigma: float) -> Grid:
        """That of the inner query."""
        return self.inner.grid(sigma)

    def scales(self, size: int) -> Array | None:
        """Those of the inner query, and 1 for the count."""
        inner = self.inner.scales(size - 1)
        return None if inner is None else np.append(inner, 1.0)

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """The inner total (clipped there), and how much all members count."""
        ones = np.ones((len(rows), 1))
        count = members.astype(np.float64) @ ones if grid is None else integer_sums(ones, members, grid.unit)
        return np.hstack([self.inner.total(rows, state, members, grid), count])

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Around vectors."""
        inner = VectorSum.example(rng, records)
        return inner._replace(query=cls(inner.query))
