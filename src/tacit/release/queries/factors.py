"""Non-negative factorisation M ≈ WH with people as rows: what each person contributes to the items H, and W itself.

    w_i = argmin_{w ≥ 0} ½‖m_i − wH‖² + λ/2‖w‖²        from m_i and H alone, by a fixed number of coordinate passes

A person's w is hidden: it is computed where it is needed and forgotten. Rows are made non-negative and scaled down to a
public norm first, and then divided by it (``NonnegativeRows``): m_i has norm at most 1 below. The queries do that
themselves, part by part, so that their bounds hold whatever the records hold, no prepared copy of the table is kept,
and sparse rows are never made dense.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.nonnegative import nonnegative_rows, observed_rows
from tacit.maps import NonnegativeRows
from tacit.problem.blocks import Block, GradientStep, Values
from tacit.records import Rows
from tacit.release.blocks import BlockProblem
from tacit.release.queries.moments import upper_triangle
from tacit.release.query import Example, Grid, Members, Query, Sums, register

__all__ = ["PASSES", "ItemFactors", "ItemStatistic", "PersonFactors", "all_weights", "statistic_size"]

Array = NDArray[np.float64]
PASSES = 50
"""Coordinate passes for a person's factors: fixed, so that nothing of the record decides when to stop."""
PERSON_NORM = 1.0
"""R: no person's factors are longer, in units of the row norm. At the optimum of rows H ≥ 0 of norm 1 none are."""
PART_ENTRIES = 1 << 18
"""Entries of a part of a batch: what a table needs besides itself."""


class ItemStatistic(Enum):
    """What a person contributes to the items."""

    GRADIENT = "wᵀ(wH − m)"
    MOMENTS = "(α·wwᵀ, wᵀm)"
    RESIDUALS = "(α·wwᵀ, wᵀ(m − wH))"


def statistic_size(components: int, items: int, statistic: ItemStatistic) -> int:
    """The length of a released sum."""
    square = 0 if statistic is ItemStatistic.GRADIENT else components * (components + 1) // 2
    return square + components * items


# -- hidden factors -----------------------------------------------------------------------------------------------


def _parts(X: Any) -> Iterator[slice]:
    """The rows of a table in parts that fit into memory."""
    n, items = X.shape
    width = X.nnz / max(n, 1) if sparse.issparse(X) else items
    size = max(1, int(PART_ENTRIES / max(width, 1.0)))
    return (slice(first, first + size) for first in range(0, n, size))


def _weights(H: Array, part: Any, people: NonnegativeRows, ridge: float, longest: float) -> tuple[Array, Any, Array]:
    """W of each person of a part, at most ``longest``; the rows; and what w leaves of stored entries.

    Args:
        H: (k, items).
        part: of the table, as it is.
        people: the map of a row.
        ridge: λ.
        longest: R.

    Returns:
        W (m, k), the mapped rows, and residuals of stored entries (empty unless only they count).
    """
    rows = people(part)
    if people.observed_only:
        Ht = np.ascontiguousarray(H.T)
        W, left = observed_rows(rows.indptr, rows.indices, rows.data, Ht, ridge, longest, PASSES)
        return W, rows, left
    G = H @ H.T + ridge * np.eye(len(H))
    W = nonnegative_rows(G, np.ascontiguousarray(np.asarray(rows @ H.T)), PASSES)
    if math.isfinite(longest):
        norms = np.sqrt((W * W).sum(axis=1))
        W = W * (longest / np.maximum(norms, longest))[:, None]
    return W, rows, np.empty(0)


def all_weights(X: Any, H: Array, *, ridge: float = 0.0, observed_only: bool = False) -> Array:
    """W of rows of any length, in their own units, part by part: for whoever holds the rows.

    Args:
        X: (rows, items), an array or a CSR matrix.
        H: (k, items).
        ridge: λ.
        observed_only: whether absent entries are unknown.

    Returns:
        (rows, k).
    """
    people = NonnegativeRows(X.shape[1], None, observed_only)
    return np.concatenate([_weights(H, X[part], people, ridge, math.inf)[0] for part in _parts(X)])


def _by_rows(rows: Rows) -> Any:
    """The table, an array or a CSR matrix."""
    X = rows.X
    return rows.kept("csr", X.tocsr) if sparse.issparse(X) and X.format != "csr" else X


def _squares(rows: Any) -> Array:
    """‖row‖² of an array or a CSR matrix."""
    if sparse.issparse(rows):
        squares = sparse.csr_matrix((rows.data * rows.data, rows.indices, rows.indptr), shape=rows.shape)
        return np.asarray(squares @ np.ones(rows.shape[1]))
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def _rounding(H: Array, W: Array, squares: Array) -> Array:
    """More than ‖m‖² − 2w·Hm + wHHᵀwᵀ is off, computed: sums of at most d + 2k products of ‖m‖ + Σ|w_j|‖h_j‖."""
    k, d = H.shape
    reach = np.sqrt(squares) + np.abs(W) @ np.sqrt((H * H).sum(axis=1))
    return np.asarray(4 * np.finfo(np.float64).eps * (d + 2 * k + 8) * reach**2)


# -- items --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ItemFactors(BlockProblem):
    """What people contribute to the item factors H (k, items): gradients, or statistics to solve for H from.

    Contributions are clipped to the block's bound person by person; a gradient has rank one, so that its norm is
    ‖w‖·‖m − wH‖. Clipped moments are non-negative, and so never further than √2·C apart.

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
        W, rows, left = _weights(H, part, self.people, self.ridge, PERSON_NORM)
        if self.people.observed_only:
            residual = sparse.csr_matrix((left, rows.indices, rows.indptr), shape=rows.shape)
            return W, residual, _squares(residual)
        squares = _squares(rows)
        if self.statistic is not ItemStatistic.MOMENTS:
            if not sparse.issparse(rows):
                rows = rows - W @ H
                return W, rows, _squares(rows)
            # ‖m − wH‖² without making the row dense, and never below: the slack is more than rounding can take off.
            slack = _rounding(H, W, squares)
            squares = squares - 2 * np.einsum("ij,ij->i", W, rows @ H.T) + np.einsum("ij,ij->i", W @ (H @ H.T), W)
            squares = np.maximum(squares, 0.0) + slack
        return W, rows, squares

    def total(self, block: int, values: Values, rows: Rows) -> Array:
        """Two products with the rows of each part; contributions are never formed."""
        (H,), X = values, _by_rows(rows)
        k, d = H.shape
        square, cross = np.zeros((k, k)), np.zeros((d, k))
        for part in _parts(X):
            W, left, squares = self._hidden(H, X[part])
            short = W * self._factors(W, squares)[:, None]
            square += short.T @ W
            cross += np.asarray(left.T @ short)
        if self._fitted_later(X):
            cross -= H.T @ square
        return self._laid_out(square, cross.T)

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
        (H,), X = values, _by_rows(rows)
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

    w ≥ 0 has norm at most R = 1, so that two of them are never further than √2 apart, whatever their places. The state
    is H; the target of a record is its place, a public number.

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
        return _weights(state.reshape(self.components, -1), part, self.people, self.ridge, self.bound)[0]

    def contributions(self, rows: Rows, state: Array) -> Array:
        """Zeros, but for the person's own place."""
        X, m = _by_rows(rows), len(rows)
        out = np.zeros((len(state), m, self.places, self.components))
        for r, H in enumerate(state):
            out[r, np.arange(m), self._places(rows)] = self._factors(X, H)
        return out.reshape(len(state), m, -1)

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """Everybody of the batch in their place."""
        out = np.zeros((len(state), self.places, self.components))
        for r, (H, mask) in enumerate(zip(state, members, strict=True)):
            batch = rows if mask.all() else rows.take(np.flatnonzero(mask))
            X, places = _by_rows(batch), self._places(batch)
            for part in _parts(X):
                np.add.at(out[r], places[part], self._factors(X[part], H))
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
