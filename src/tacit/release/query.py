"""Queries: what one record contributes to a sum. With the session, all the code that reads records.

A query is public and frozen: a name, a bound, and a function from rows and a public state to contributions. It holds no
record, so it can be sent to wherever the records are. Registering one subjects it to record-and-replay
(``tests/release/test_replay.py``): on random neighbours its sum must never move by more than it declares, and must come
within 1 % of that somewhere. Everything else is post-processing of what queries release.

In exact arithmetic a contribution is a vector of integers in units of a public ``Grid``, a function of its own record
to the bit, and sums are int64: the same in any order and any partition (docs/exact.md).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from tacit._registry import claim, drop_inherited
from tacit.kernels.clipping import clipped_total
from tacit.kernels.dyadic import exponent
from tacit.kernels.lattice import FLUSH, PRODUCT_BITS, lattice_total, truncated
from tacit.records import Rows

__all__ = [
    "QUERIES",
    "UNIT_ROUNDOFF",
    "Bounded",
    "Example",
    "Grid",
    "Members",
    "Query",
    "Sums",
    "exponent",
    "integer_sums",
    "reads_everybody",
    "register",
    "root_above",
    "roots",
    "zero_where_it_fails",
]

Array = NDArray[np.float64]
Members = NDArray[Any]
"""Which records a step reads, (replicas, records): booleans, or what each row of a person counts, from 0 to 1
(``tacit.records.row_weights``)."""
Sums = NDArray[Any]
"""(replicas, size): float64, or int64 in units of a grid."""
UNIT_ROUNDOFF = 2.0**-53
"""u: a float64 operation is off by at most u relative to its result; a sum of n terms by n·u·(1 + n·u) of Σ|terms|."""
MAX_SCALE = 36
"""log₂ of the largest noise, in units of a grid: beyond it the sampler would decide too few draws at once."""


@dataclass(frozen=True)
class Grid:
    """The public lattice of one release: every contribution is a vector of integers in units of g.

    Attributes:
        unit: g, a power of two.
        bits: of each factor, where a contribution is a product of a record with itself.
    """

    unit: float
    bits: int = 0

    @classmethod
    def fine(cls, sigma: float, bound: float) -> Grid:
        """The finest grid that noise of deviation σ allows: σ/g ≤ 2³⁶, and C/g ≤ 2³⁹.

        2¹³ such integers add up exactly in float64 (``tacit.kernels.lattice``). Rounding toward zero moves a sum over n
        records by at most n·g: less than σ/1000 for sixty million records.

        Args:
            sigma: of the noise.
            bound: C.

        Returns:
            The grid.
        """
        return cls(2.0 ** max(exponent(sigma) - MAX_SCALE, exponent(bound) - PRODUCT_BITS + 1))

    @classmethod
    def of_squares(cls, sigma: float, longest: float) -> Grid:
        """The finest grid for products of two integers of equal length.

        Args:
            sigma: of the noise.
            longest: the largest factor.

        Returns:
            The grid; each factor has at most 20 bits.
        """
        e = exponent(longest)
        bits = max(min(2 * e - exponent(sigma) + MAX_SCALE, PRODUCT_BITS) // 2, 1)
        return cls(4.0 ** (e - bits), bits)


def zero_where_it_fails(function: Callable[[Array, Array], Any], f: Array, y: Array) -> Array:
    """A loss's function of every record; records for which it raises count as zero.

    An exception would tell about a record. Records that fail are found by halving, and the others are computed without
    them: functions of one record each have the same bits in any company. In a hidden chain a loss that raises for some
    predictions is not the convex function that its user declares.

    Args:
        function: of predictions and targets, elementwise.
        f: predictions, one row per record.
        y: targets.

    Returns:
        As many values as there are predictions.
    """
    try:
        return np.asarray(function(f, y), np.float64)
    except Exception:
        if len(f) <= 1:
            return np.zeros(f.shape)
    half = len(f) // 2
    return np.concatenate(
        [zero_where_it_fails(function, f[part], y[part]) for part in (slice(half), slice(half, None))]
    )


def reads_everybody(members: Members) -> bool:
    """Whether every row counts one for every replica: then a sum needs no weights."""
    if members.dtype != np.bool_:
        return False
    return bool(members.flat[0]) if members.strides == (0, 0) and members.size else bool(members.all())


def root_above(square: float) -> float:
    """A float just above √square: a bound that rounding must not make smaller."""
    return float(np.nextafter(math.sqrt(square), math.inf))


def integer_sums(values: Array, members: Members, unit: float) -> NDArray[np.int64]:
    """Σ of values over each replica's members, each times what it counts and rounded toward zero to a grid.

    Args:
        values: (records, size), none above 2³⁹ units; what is not finite counts as zero.
        members: (replicas, records).
        unit: g.

    Returns:
        (replicas, size).
    """
    out = np.zeros((len(members), values.shape[1]), np.int64)
    for first in range(0, len(values), FLUSH):
        part = slice(first, first + FLUSH)
        if members.dtype == np.bool_:
            out += (members[:, part].astype(np.float64) @ truncated(values[part], unit)).astype(np.int64)
        else:
            out += [truncated(values[part] * row[part, None], unit).sum(axis=0).astype(np.int64) for row in members]
    return out


def roots(members: NDArray[Any]) -> Array:
    """√w of what one replica's rows count: a row z that counts w contributes to a sum of zzᵀ as √w·z does."""
    return np.sqrt(members.astype(np.float64))


class Bounded:
    """What a session must know about a sum over records.

    Attributes:
        bound: C, public: no contribution exceeds it in ℓ2 norm, whatever the records hold.
    """

    bound: float

    @property
    def diameter(self) -> float:
        """The largest distance between two possible contributions: 2C, unless a query knows better."""
        return 2 * self.bound

    def grid(self, sigma: float) -> Grid:
        """The lattice of a release with noise of deviation σ."""
        return Grid.fine(sigma, self.bound)

    def scales(self, size: int) -> Array | None:
        """Public factors of the entries of a sum, which stay out of its integers; None for ones.

        Entry j of a release is D_j·g·(q_j + ⌊σZ_j/(g·D_j)⌉): irrational factors cost a sum of integers nothing.

        Args:
            size: of the sum.

        Returns:
            D, or None.
        """
        return None


class Example(NamedTuple):
    """Random neighbours for record-and-replay.

    Attributes:
        query: what is asked.
        here: some records.
        there: the same but for record 0.
        state: where to evaluate, with a leading axis of one replica.
    """

    query: Any
    here: Rows
    there: Rows
    state: Any


class Query(Bounded, ABC):
    """A sum of per-record contributions, each clipped to norm ``bound``.

    Attributes:
        name: in the registry.
        smoothness: β of the convex function whose gradient a clipped contribution is, or None if it is no such
            gradient; hidden-state theorems need it.
    """

    name: ClassVar[str]
    smoothness: float | None = None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        drop_inherited(cls, Query, "contributions", ("total", "grid", "scales", "diameter", "smoothness"))

    def rounding_error(self, batch: int, size: int, radius: float, terms: int | None = None) -> float | None:
        """How far ``total`` in float64 is from the ideal sum at most, in norm; None where that is not proven.

        The ideal sum is that of real arithmetic, of which ``bound`` and ``smoothness`` speak. Exact hidden chains add
        noise to the state, so their sums are in floating point, and what that may be off by is part of the price.

        Args:
            batch: the most records in a batch.
            size: of the state and of the sum.
            radius: no state is longer.
            terms: the most rows that are added up, where a record has several; None for one each.

        Returns:
            A bound for all records, from public numbers.
        """
        return None

    def check_precision(self, rows: Rows) -> None:
        """Refuse rows for which ``rounding_error`` does not hold, by their type alone.

        Args:
            rows: some records.

        Raises:
            MechanismMismatch: naming the type.
        """

    @abstractmethod
    def contributions(self, rows: Rows, state: Array) -> Array:
        """Unclipped contributions of these records at each replica's state: (replicas, records, size)."""

    @classmethod
    @abstractmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Random neighbours that differ in record 0, for record-and-replay."""

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """Σ of clipped contributions over each replica's members: (replicas, size).

        Overrides form no contributions where a product gives the sum at once; they must clip as this does, multiply a
        row by what ``members`` says it counts, and then round.

        Args:
            rows: a part of the records.
            state: one row per replica.
            members: which of these records each replica reads, or what each of them counts.
            grid: of an exact release; None in floating point.

        Returns:
            The sums: int64 in units of the grid, or float64.
        """
        index = np.flatnonzero(members.any(axis=0))  # records that no replica reads are never touched
        read = rows if len(index) == len(rows) else rows.take(index)
        G = np.ascontiguousarray(self.contributions(read, state))
        mask = np.ascontiguousarray(members[:, index])
        if grid is None:
            return clipped_total(G, mask, self.bound)
        return lattice_total(G, mask, self.bound, grid.unit)


QUERIES: dict[str, type[Bounded]] = {}
"""Every registered query, by name."""

Q = TypeVar("Q", bound=type[Bounded])


def register(name: str) -> Callable[[Q], Q]:
    """Add a query to the trusted code, and with it to record-and-replay (a class decorator).

    Args:
        name: of the query.

    Returns:
        The decorator.
    """

    def add(cls: Q) -> Q:
        claim(QUERIES, name, cls, "a query")
        cls.name = name  # type: ignore[attr-defined]
        return cls

    return add
