"""Sums of numbers in a known interval: counts, shares, mean slopes and curvatures, quantiles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import MechanismMismatch
from tacit.problem import Loss
from tacit.records import Rows
from tacit.release.query import Example, Grid, Members, Query, Sums, integer_sums, register, zero_where_it_fails

__all__ = [
    "STATISTICS",
    "AtMost",
    "BoundedSum",
    "Curvature",
    "One",
    "Projection",
    "SlopeNorm",
    "SquaredSlope",
    "Statistic",
    "TargetDistance",
    "TargetShare",
]

Array = NDArray[np.float64]
SMALLEST = 2.0**-20
"""Logarithms of smaller numbers are taken as that of this one."""

STATISTICS: dict[str, type[Statistic]] = {}
"""Every statistic that was defined; row-locality is tested for each."""


class Statistic(ABC):
    """A public function of one record: a number, or a few."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        STATISTICS[cls.__qualname__] = cls

    @abstractmethod
    def __call__(self, rows: Rows) -> Array:
        """One number per record, (records,), each a function of its record alone, to the bit."""


@register("bounded-values")
@dataclass(frozen=True, eq=False)
class BoundedSum(Query):
    """Σ of a statistic clipped to [0, top]: of size at most ``top``, and no further than that from each other.

    A value that is not a number counts as 0.

    Attributes:
        of: the statistic.
        top: the largest value.
    """

    of: Statistic
    top: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "top", _validate.positive(top=self.top))
        if STATISTICS.get(type(self.of).__qualname__) is not type(self.of):
            raise MechanismMismatch(f"{type(self.of).__name__} is not a statistic: derive it from Statistic")

    @property
    def bound(self) -> float:  # type: ignore[override]
        """``top``."""
        return self.top

    @property
    def diameter(self) -> float:
        """From 0 to ``top``."""
        return self.top

    def _values(self, rows: Rows) -> Array:
        with np.errstate(all="ignore"):
            values = np.minimum(np.maximum(self.of(rows), 0.0), self.top)
        return np.where(np.isnan(values), 0.0, values)

    def contributions(self, rows: Rows, state: Array) -> Array:
        """The clipped values, whatever the state."""
        return np.broadcast_to(self._values(rows)[:, None], (len(state), len(rows), 1))

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """One product."""
        values = self._values(rows)[:, None]
        if grid is None:
            return np.asarray(members.astype(np.float64) @ values)
        return integer_sums(values, members, grid.unit)

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Values inside and beyond both ends."""
        here = rng.normal(size=records) * 3
        there = here.copy()
        here[0], there[0] = rng.choice([0.0, 9.0, rng.normal()], size=2)
        X = np.zeros((records, 1))
        return Example(
            cls(TargetDistance(0.0, logarithmic=False), 1.5), Rows(X, here), Rows(X, there), np.zeros((1, 1))
        )


@dataclass(frozen=True)
class One(Statistic):
    """1 for every record: their number."""

    def __call__(self, rows: Rows) -> Array:
        """Ones."""
        return np.ones(len(rows))


@dataclass(frozen=True)
class TargetShare(Statistic):
    """(y − low)/(high − low): a mean of it is a mean of the target, or the share of the class y = high.

    Attributes:
        low: what becomes 0.
        high: what becomes 1.
    """

    low: float = -1.0
    high: float = 1.0

    def __call__(self, rows: Rows) -> Array:
        """A number in [0, 1]."""
        return np.asarray((rows.y - self.low) / (self.high - self.low))


@dataclass(frozen=True)
class TargetDistance(Statistic):
    """|y − centre|, or its binary logarithm.

    Attributes:
        centre: public or released.
        logarithmic: whether to take log₂.
    """

    centre: float
    logarithmic: bool = True

    def __call__(self, rows: Rows) -> Array:
        """One number per record."""
        distance = np.abs(rows.y - self.centre)
        return np.asarray(np.log2(np.maximum(distance, SMALLEST)) if self.logarithmic else distance)


@dataclass(frozen=True, eq=False)
class Projection(Statistic):
    """xᵀv: the score of a record in a released direction.

    Attributes:
        v: the direction.
    """

    v: Array

    def __call__(self, rows: Rows) -> Array:
        """One number per record, of its row alone to the bit."""
        return np.asarray(rows.integers.dot(self.v) * rows.integers.scales)


@dataclass(frozen=True, eq=False)
class _AtCoefficients(Statistic):
    """A statistic of a record at public coefficients.

    Attributes:
        loss: φ.
        v: the coefficients.
    """

    loss: Loss
    v: Array

    def _predictions(self, rows: Rows) -> Array:
        """X·v of each record by itself, to the bit."""
        return rows.integers.dot(self.v) * rows.integers.scales

    def __call__(self, rows: Rows) -> Array:
        """One number per record."""
        raise NotImplementedError


class Curvature(_AtCoefficients):
    """∂²φ/∂f² at f = xᵀv; the bound where the loss knows no more."""

    def __call__(self, rows: Rows) -> Array:
        """One number per record."""
        if self.loss.second(np.zeros(1), np.ones(1)) is None:  # at public numbers: it knows no more than a bound
            return np.full(len(rows), self.loss.curvature)
        return zero_where_it_fails(self.loss.second, self._predictions(rows), rows.y)


class SquaredSlope(_AtCoefficients):
    """(∂φ/∂f)² at f = xᵀv."""

    def __call__(self, rows: Rows) -> Array:
        """One number per record."""
        return np.square(zero_where_it_fails(self.loss.derivative, self._predictions(rows), rows.y))


class SlopeNorm(_AtCoefficients):
    """log₂ of |∂φ/∂f|·‖x‖/√p at f = xᵀv: how long a contribution is, in units of √p."""

    def __call__(self, rows: Rows) -> Array:
        """One number per record."""
        slope = np.abs(zero_where_it_fails(self.loss.derivative, self._predictions(rows), rows.y))
        norms = rows.integers.norms * rows.integers.scales / np.sqrt(len(self.v))
        return np.asarray(np.log2(np.maximum(slope * norms, SMALLEST)))


@dataclass(frozen=True, eq=False)
class AtMost(Statistic):
    """1 where another statistic is at most ``threshold``: bisections for quantiles.

    Attributes:
        of: the statistic; worked out once for all thresholds.
        threshold: public.
    """

    of: Statistic
    threshold: float

    def __call__(self, rows: Rows) -> Array:
        """0 or 1."""
        return (rows.kept(self.of, lambda: self.of(rows)) <= self.threshold).astype(np.float64)
