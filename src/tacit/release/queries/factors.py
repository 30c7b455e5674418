"""Non-negative factorisation M ≈ WH with people as rows: what each person contributes to the items H, and W itself.

A person's w is hidden: it is computed where it is needed (``release.queries.people``) and forgotten. Rows are made
non-negative and scaled down to a public norm first, and then divided by it (``NonnegativeRows``): m_i has norm at most
1 below. The queries do that themselves, part by part, so that their bounds hold whatever the records hold, no prepared
copy of the table is kept, and sparse rows are never made dense.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit import _validate
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.kernels.factors import integer_matmul, person_integers, residual_squares
from tacit.kernels.lattice import FLUSH, truncated
from tacit.kernels.nonnegative import observed_rows
from tacit.maps import NonnegativeRows
from tacit.problem.blocks import Block, GradientStep, Values
from tacit.records import Rows
from tacit.release.blocks import BlockProblem, Sum
from tacit.release.queries.item_units import ItemUnits
from tacit.release.queries.moments import upper_triangle
from tacit.release.queries.people import (
    PASSES,
    PERSON_NORM,
    all_weights,
    by_rows,
    coarse_items,
    exact_weights,
    integer_people,
    parts,
    rounding,
    shortened_weights,
    squares_of,
    weights,
)
from tacit.release.query import Example, Grid, Members, Query, Sums, reads_everybody, register

__all__ = ["PASSES", "ItemFactors", "ItemStatistic", "PersonFactors", "all_weights", "statistic_size"]

Array = NDArray[np.float64]
ROW_BITS = 20
"""Of people's rows where their factors are released."""


class ItemStatistic(Enum):
    """What a person contributes to the items."""

    GRADIENT = "wᵀ(wH − m)"
    MOMENTS = "(α·wwᵀ, wᵀm)"
    RESIDUALS = "(α·wwᵀ, wᵀ(m − wH))"


def statistic_size(components: int, items: int, statistic: ItemStatistic) -> int:
    """The length of a released sum."""
    square = 0 if statistic is ItemStatistic.GRADIENT else components * (components + 1) // 2
    return square + components * items


# -- items --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ItemFactors(BlockProblem):
    """What people contribute to the item factors H (k, items): gradients, or statistics to solve for H from.

    Contributions are clipped to the block's bound person by person; a gradient has rank one, so that its norm is
    ‖w‖·‖m − wH‖. Clipped moments are non-negative, and so never further than √2·C apart.

    On a grid every person contributes integers (``ItemUnits``): m, the clipped factors v = f·w rounded toward zero, and
    P = vwᵀ, rounded entry by entry. *Moments* are (α·P, vᵀm) with P rounded toward zero: no entry is longer than that
    of the clipped moments or negative, so that bound and diameter stay. Where only *stored entries* count, the residual
    is a vector of integers r, and (α·P, vᵀr) is no longer for the same reason. *Residuals* of whole rows are
    (α·P, vᵀm − PH) with H on a grid, too: sums of P and of vᵀm give the sum at once, and sparse rows stay sparse. With
    |P − vwᵀ| ≤ p/2, p the unit of P, a contribution differs from (α·vwᵀ, vᵀ(m − wH)) by at most k·p/2·√(α² + ‖H‖²):
    people are clipped to C less that.

    Attributes:
        blocks: the public description of H, alone.
        statistic: what is summed.
        people: the map of a person's row.
        weight: α.
        ridge: λ on a person's factors.
    """

    blocks: tuple[Block, ...]
    statistic: ItemStatistic
    people: NonnegativeRows
    weight: float = 1.0
    ridge: float = 0.0

    def __post_init__(self) -> None:
        (block,) = self.blocks
        (k, d), items = block.shape, self.people.items
        if d != items or block.release_size != statistic_size(k, d, self.statistic):
            raise InvalidInput(f"the block must hold one column for each of {items} items, and announce its sums")
        if not 1e-60 <= block.bound <= 1e60:
            raise InvalidInput(f"the bound {block.bound:g} is out of range: its square must be an ordinary number")
        if self.people.norm is None:
            raise InvalidInput("a factorisation needs a public norm of rows: NonnegativeRows(items, norm)")
        if self.people.observed_only and self.statistic is ItemStatistic.MOMENTS:
            raise InvalidInput("moments need every entry of a row: use residuals or gradients for unknown entries")
        _validate.positive(weight=self.weight)
        _validate.nonnegative(ridge=self.ridge)

    def _hidden(self, H: Array, part: Any) -> tuple[Array, Any, Array]:
        """w, what it is multiplied with (m, or its residual where only stored entries count), and that one's norm²."""
        W, rows, left = weights(H, part, self.people, self.ridge, PERSON_NORM)
        if self.people.observed_only:
            residual = sparse.csr_matrix((left, rows.indices, rows.indptr), shape=rows.shape)
            return W, residual, squares_of(residual)
        squares = squares_of(rows)
        if self.statistic is not ItemStatistic.MOMENTS:
            if not sparse.issparse(rows):
                rows = rows - W @ H
                return W, rows, squares_of(rows)
            # ‖m − wH‖² without making the row dense, and never below: the slack is more than rounding can take off.
            slack = rounding(H, W, squares)
            squares = squares - 2 * np.einsum("ij,ij->i", W, rows @ H.T) + np.einsum("ij,ij->i", W @ (H @ H.T), W)
            squares = np.maximum(squares, 0.0) + slack
        return W, rows, squares

    def grid(self, block: int, sigma: float) -> Grid:
        """The finest grid on which all integers add up exactly (``ItemUnits``)."""
        least = 1.0 if self.statistic is ItemStatistic.GRADIENT else min(1.0, self.weight)
        return Grid(ItemUnits.finest(sigma / least, self.blocks[0].bound))

    def scales(self, block: int) -> Array | None:
        """α, times √2 off the diagonal, for squares; 1 for products with items."""
        if self.statistic is ItemStatistic.GRADIENT:
            return None
        k, d = self.blocks[0].shape
        return np.concatenate([self.weight * upper_triangle(np.ones((k, k))), np.ones(k * d)])

    def total(self, block: int, values: Values, rows: Rows, grid: Grid | None = None) -> Sum:
        """Two products with the rows of each part; contributions are never formed."""
        (H,), X = values, by_rows(rows)
        counts = np.ones(len(rows)) if rows.weights is None else rows.weights
        if grid is not None:
            return self._integers(H, X, ItemUnits.of(grid.unit, self.blocks[0].bound, H.shape[1]), counts)
        k, d = H.shape
        square, cross = np.zeros((k, k)), np.zeros((d, k))
        for part in parts(X):
            W, left, squares = self._hidden(H, X[part])
            short = W * (self._factors(W, squares) * counts[part])[:, None]
            square += short.T @ W
            cross += np.asarray(left.T @ short)
        if self._fitted_later(X):
            cross -= H.T @ square
        return self._laid_out(square, cross.T)

    # -- integers -------------------------------------------------------------------------------------------------

    @property
    def _takes_off(self) -> bool:
        """Whether PH is taken off sums of vᵀm: residuals of whole rows."""
        return self.statistic is not ItemStatistic.MOMENTS and not self.people.observed_only

    def _integers(self, H: Array, X: Any, units: ItemUnits, counts: Array) -> NDArray[np.int64]:
        """The sums in units of the grid, part by part, each row times what it counts."""
        k, d = H.shape
        a = 0.0 if self.statistic is ItemStatistic.GRADIENT else self.weight
        inside, slack, off = self.blocks[0].bound * (1 - 2.0**-40), 0.0, self._takes_off
        h = self._public_items(H, units)
        if off:
            slack = k * units.outer * (0.5 + 2.0**-20) * math.hypot(a, units.items * _spectral_bound(h))
        square, cross = np.zeros((k, k), np.int64), np.zeros((d, k), np.int64)
        for part in parts(X, FLUSH):
            W, second, squares = self._exact(H, h, X[part], units)
            most = (inside, slack), units.longest, (units.factor, units.outer)
            V, P = person_integers(W, squares, a, *most, off, np.ascontiguousarray(counts[part], np.float64))
            square += P
            cross += np.asarray(second.T @ V).astype(np.int64)
        out = cross.T - integer_matmul(square, h) if off else cross.T
        if self.statistic is ItemStatistic.GRADIENT:
            return np.asarray(-out.ravel())
        steps = round(units.outer / units.unit)  # of the grid in a unit of P
        return np.concatenate([square[np.triu_indices(k)] * steps, out.ravel()])

    def _public_items(self, H: Array, units: ItemUnits) -> Array:
        """H as integers in units of its grid where PH is taken off, else rounded relative to its largest entry."""
        if not self._takes_off:
            return coarse_items(H, units.row_bits)
        h = np.rint(H / units.items)
        if np.abs(h).max() > 1 / units.items:
            raise MechanismMismatch("exact sums of residuals need items H between -1 and 1: keep its rows at norm 1")
        return h

    def _exact(self, H: Array, h: Array, part: Any, units: ItemUnits) -> tuple[Array, Any, Array]:
        """Factors w, the integers that v is multiplied with, and the square of their length, no less."""
        if self.people.observed_only:
            rows = self.people(part)
            Ht = np.ascontiguousarray(H.T)
            W, left = observed_rows(rows.indptr, rows.indices, rows.data, Ht, self.ridge, PERSON_NORM, PASSES)
            entries = truncated(np.clip(left, -1.0, 1.0), units.row)
            residual = sparse.csr_matrix((entries, rows.indices, rows.indptr), shape=rows.shape)
            return shortened_weights(W), residual, squares_of(residual) * units.row**2
        rows, squares = integer_people(part, self.people, units.row)
        size = units.items if self._takes_off else 1.0
        B, G = np.asarray(rows @ h.T) * (units.row * size), h @ h.T * size**2
        W, squares = exact_weights(B, G, self.ridge), squares * units.row**2
        return W, rows, residual_squares(W, B, G, squares) if self._takes_off else squares

    # -- floating point -------------------------------------------------------------------------------------------

    def _fitted_later(self, X: Any) -> bool:
        """Whether wH must still be taken off: sparse rows whose absent entries are zeros."""
        zeros = sparse.issparse(X) and not self.people.observed_only
        return zeros and self.statistic is not ItemStatistic.MOMENTS

    def _factors(self, W: Array, squares: Array) -> Array:
        """min(1, C/‖contribution‖)."""
        lengths, bound = (W * W).sum(axis=1), self.blocks[0].bound
        a = 0.0 if self.statistic is ItemStatistic.GRADIENT else self.weight
        norms = np.sqrt(lengths * (a * a * lengths + squares))
        factor = bound / np.maximum(norms, bound)
        return np.where(np.isfinite(factor), factor, 0.0)

    def _laid_out(self, square: Array, cross: Array) -> Array:
        if self.statistic is ItemStatistic.GRADIENT:
            return np.asarray(-cross.ravel())
        return np.concatenate([self.weight * upper_triangle(square), cross.ravel()])

    def contributions(self, block: int, values: Values, rows: Rows) -> Array:
        """One person at a time: for tests, and slow."""
        (H,), X = values, by_rows(rows)
        out = []
        for i in range(len(rows)):
            W, left, _ = self._hidden(H, X[i : i + 1])
            x = left.toarray() if sparse.issparse(left) else left
            if self._fitted_later(X):
                x = x - W @ H
            out.append(self._laid_out(np.outer(W[0], W[0]), np.outer(W[0], x[0])))
        return np.array(out)

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Any statistic; dense, sparse (entries in parts) and partly unknown tables; the neighbour shares no item."""
        k, d = 2, 4
        statistic = list(ItemStatistic)[rng.integers(3)]
        unknown = bool(rng.integers(2)) and statistic is not ItemStatistic.MOMENTS
        H = np.abs(rng.normal(size=(k, d))) * (rng.random((k, d)) < 0.7)
        H[0, :2], H[1, 2:] = (1.0, 0.0) if rng.random() < 0.7 else (H[0, :2], H[1, 2:])
        H /= np.maximum(np.linalg.norm(H, axis=1, keepdims=True), 1e-9)
        here = np.abs(rng.normal(size=(records, d))) * rng.choice([0.1, 30.0], size=(records, 1))
        here[0] = [40.0, 40.0, 0, 0]
        there = here.copy()
        there[0] = [0, 0, 40.0, 40.0] if statistic is ItemStatistic.MOMENTS else rng.permutation([40.0, 0, 0, 0])
        if statistic is not ItemStatistic.MOMENTS:
            H = np.ones((k, d)) * [[1.0], [0.0]] / 2 if rng.random() < 0.7 else H
            here[0], there[0] = ([40.0, 40.0, 0, 0], [0, 0, 40.0, 40.0]) if rng.random() < 0.7 else (here[0], there[0])
        tables: list[Any] = [here, there]
        if rng.integers(2):
            tables = [_in_parts(table) for table in tables]
        block = Block("items", H, 0.2, GradientStep(1.0), statistic_size(k, d, statistic), _reach(statistic, 0.2))
        weight = 0.5 if statistic is ItemStatistic.MOMENTS else 0.05  # signs cancel in residuals, not in squares
        problem = cls((block,), statistic, NonnegativeRows(d, 1.5, unknown), weight=weight, ridge=0.1)
        return Example(problem, Rows(tables[0]), Rows(tables[1]), (H,))


def _spectral_bound(h: Array) -> float:
    """No less than the largest singular value: √ of the largest row sum of |hhᵀ|."""
    return math.sqrt(float(np.abs(h @ h.T).sum(axis=1).max())) * (1 + 2.0**-40)


def _reach(statistic: ItemStatistic, bound: float) -> float:
    """Moments are non-negative, so that two of them are never further than √2·C apart."""
    return math.sqrt(2) * bound if statistic is ItemStatistic.MOMENTS else 2 * bound


def _in_parts(table: Array) -> Any:
    """A CSR matrix that stores every entry in two parts."""
    halves = sparse.csr_matrix(table / 2)
    data, indices = np.repeat(halves.data, 2), np.repeat(halves.indices, 2)
    return sparse.csr_matrix((data, indices, 2 * halves.indptr), shape=table.shape)


# -- people -------------------------------------------------------------------------------------------------------


@register("person-factors")
@dataclass(frozen=True, eq=False)
class PersonFactors(Query):
    """The factors of all people, one after another: a person contributes w in their own place, and nothing elsewhere.

    w ≥ 0 has norm at most R = 1, so that two of them are never further than √2 apart, whatever their places: on a grid,
    too, where w is rounded toward zero. The state is H; the target of a record is its place, a public number.

    Attributes:
        people: the map of a person's row.
        components: k.
        places: how many there are.
        ridge: λ.
    """

    people: NonnegativeRows
    components: int
    places: int
    ridge: float = 0.0
    bound = PERSON_NORM

    def __post_init__(self) -> None:
        _validate.positive_int(components=self.components)
        _validate.positive_int(places=self.places)
        _validate.nonnegative(ridge=self.ridge)

    @property
    def diameter(self) -> float:
        """√2·R."""
        return math.sqrt(2) * self.bound

    def _places(self, rows: Rows) -> NDArray[np.intp]:
        return np.clip(np.asarray(rows.y, np.intp), 0, self.places - 1)

    def _factors(self, part: Any, state: Array) -> Array:
        return weights(state.reshape(self.components, -1), part, self.people, self.ridge, self.bound)[0]

    def _rounded(self, part: Any, state: Array) -> Array:
        """Factors of each person by itself, to the bit."""
        H = state.reshape(self.components, -1)
        if self.people.observed_only:
            W = shortened_weights(self._factors(part, state))
        else:
            rows, h = integer_people(part, self.people, 2.0**-ROW_BITS)[0], coarse_items(H, ROW_BITS)
            W = exact_weights(np.asarray(rows @ h.T) * 2.0**-ROW_BITS, h @ h.T, self.ridge)
        return W

    def contributions(self, rows: Rows, state: Array) -> Array:
        """Zeros, but for the person's own place."""
        X, m = by_rows(rows), len(rows)
        out = np.zeros((len(state), m, self.places, self.components))
        for r, H in enumerate(state):
            out[r, np.arange(m), self._places(rows)] = self._factors(X, H)
        return out.reshape(len(state), m, -1)

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """Everybody of the batch in their place."""
        kind = np.float64 if grid is None else np.int64
        out = np.zeros((len(state), self.places, self.components), kind)
        for r, (H, mask) in enumerate(zip(state, members, strict=True)):
            batch = rows if reads_everybody(mask) else rows.take(np.flatnonzero(mask))
            X, places, counts = by_rows(batch), self._places(batch), mask[mask != 0].astype(np.float64)
            for part in parts(X):
                found = self._factors(X[part], H) if grid is None else self._rounded(X[part], H)
                own = found * counts[part, None]
                np.add.at(out[r], places[part], own if grid is None else truncated(own, grid.unit).astype(np.int64))
        return out.reshape(len(state), -1)

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """People who share no item."""
        H = np.array([[1.0, 1, 0, 0], [0, 0, 1, 1]]) / math.sqrt(2)
        here = np.abs(rng.normal(size=(records, 4))) * rng.choice([0.1, 9.0], size=(records, 1))
        there, places = here.copy(), np.arange(records)
        here[0], there[0] = [9.0, 9, 0, 0], [0, 0, 9.0, 9] if rng.random() < 0.7 else [1.0, 2, 3, 4]
        query = cls(NonnegativeRows(4, 2.0), 2, records)
        return Example(query, Rows(here, places), Rows(there, places), H.ravel()[None])
