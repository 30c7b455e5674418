"""Non-negative factorisation M ≈ WH with people as rows: what each person contributes to the items H, and W itself.

    w_i = argmin_{w ≥ 0} ½‖m_i − wH‖² + λ/2‖w‖²        from m_i and H alone, by a fixed number of coordinate passes

A person's w is hidden: it is computed where it is needed and forgotten. Rows are made non-negative and scaled down to a
public norm first, and then divided by it: m_i has norm at most 1 below. Sparse rows are never made dense.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.nonnegative import nonnegative_rows, observed_rows, shorten_rows
from tacit.run.blocks import Block, BlockProblem, GradientStep, Values, register_problem
from tacit.run.clipped_sum import ClippedSum, Mask, register
from tacit.run.sums.gram import upper_triangle
from tacit.run.sums.outputs import shortened

__all__ = ["PASSES", "FactorRows", "ItemFactors", "ItemStatistic", "PersonFactors", "statistic_size"]

Array = NDArray[np.float64]
Index = NDArray[np.intp]
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


class FactorRows:
    """People's rows, prepared part by part: non-negative, and at most 1 long if a norm is given.

    Args:
        table: (people, items): an array, or a CSR matrix; not copied and not changed.
        row_norm: U; longer rows are scaled down to it, and all are divided by it. None for rows as they are, where
            nobody else will see what becomes of them.
        observed_only: whether entries that are absent (not stored, or NaN in an array) are unknown instead of zero.
    """

    def __init__(self, table: Any, row_norm: float | None, *, observed_only: bool = False) -> None:
        self._table, self._U = table, None if row_norm is None else _validate.positive(row_norm=row_norm)
        self.sparse, self.observed_only = sparse.issparse(table), observed_only
        self.people, self.items = map(int, table.shape)

    def parts(self, index: Index) -> list[Index]:
        """A batch in parts that fit into memory."""
        width = self._table.nnz / max(self.people, 1) if self.sparse else self.items
        size = max(1, int(PART_ENTRIES / max(width, 1.0)))
        return [index[a : a + size] for a in range(0, len(index), size)]

    def take(self, index: Index) -> Any:
        """Rows of the batch: an array, or a CSR matrix (always one where absent entries are unknown)."""
        rows = self._table[index]
        if not self.sparse and not self.observed_only:
            rows = np.maximum(np.asarray(rows, np.float64), 0.0)
            return rows if self._U is None else shortened(rows, self._U) / self._U
        out = sparse.csr_matrix(rows, dtype=np.float64) if self.sparse else _stored(np.asarray(rows, np.float64))
        out.sum_duplicates()  # an entry may be stored in parts; its parts are one contribution
        shorten_rows(out.indptr, out.data, math.inf if self._U is None else self._U)
        out.data /= 1.0 if self._U is None else self._U
        return out

    def weights(self, H: Array, index: Index, ridge: float, longest: float) -> tuple[Array, Any, Array]:
        """W of each person of a (part of a) batch, at most ``longest``; the rows; and what w leaves of stored entries.

        Args:
            H: (k, items).
            index: the part.
            ridge: λ.
            longest: R.

        Returns:
            W (m, k), the rows, and residuals of stored entries (empty unless only they count).
        """
        rows = self.take(index)
        if self.observed_only:
            Ht = np.ascontiguousarray(H.T)
            W, left = observed_rows(rows.indptr, rows.indices, rows.data, Ht, ridge, longest, PASSES)
            return W, rows, left
        G = H @ H.T + ridge * np.eye(len(H))
        W = nonnegative_rows(G, np.ascontiguousarray(np.asarray(rows @ H.T)), PASSES)
        if math.isfinite(longest):
            norms = np.sqrt((W * W).sum(axis=1))
            W = W * (longest / np.maximum(norms, longest))[:, None]
        return W, rows, np.empty(0)

    def all_weights(self, H: Array, ridge: float = 0.0) -> Array:
        """W of everybody, of any length, part by part: for the people themselves."""
        parts = self.parts(np.arange(self.people))
        return np.concatenate([self.weights(H, part, ridge, math.inf)[0] for part in parts])


def _stored(rows: Array) -> Any:
    """Everything but NaN as a CSR matrix; zeros are stored, because they were seen."""
    seen = ~np.isnan(rows)
    indptr = np.concatenate([[0], np.cumsum(seen.sum(axis=1))])
    return sparse.csr_matrix((rows[seen], np.nonzero(seen)[1], indptr), shape=rows.shape)


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


@register_problem("item-factors")
class ItemFactors(BlockProblem):
    """What people contribute to the item factors H (k, items): gradients, or statistics to solve for H from.

    Contributions are clipped to the block's bound person by person; a gradient has rank one, so that its norm is
    ‖w‖·‖m − wH‖. Clipped moments are non-negative, and so never further than √2·C apart.

    Args:
        rows: the people.
        block: the public description of H.
        statistic: what is summed.
        weight: α.
        ridge: λ on a person's factors.
    """

    def __init__(
        self, rows: FactorRows, block: Block, statistic: ItemStatistic, *, weight: float = 1.0, ridge: float = 0.0
    ) -> None:
        k, d = block.shape
        if d != rows.items or block.release_size != statistic_size(k, d, statistic):
            raise InvalidInput(f"the block must hold one column for each of {rows.items} items, and announce its sums")
        if not 1e-60 <= block.bound <= 1e60:
            raise InvalidInput(f"the bound {block.bound:g} is out of range: its square must be an ordinary number")
        if rows.observed_only and statistic is ItemStatistic.MOMENTS:
            raise InvalidInput("moments need every entry of a row: use residuals or gradients for unknown entries")
        self.blocks, self.records, self._rows, self._statistic = (block,), rows.people, rows, statistic
        self._weight, self._ridge = _validate.positive(weight=weight), _validate.nonnegative(ridge=ridge)

    def _hidden(self, H: Array, index: Index) -> tuple[Array, Any, Array]:
        """w, what it is multiplied with (m, or its residual where only stored entries count), and that one's norm²."""
        W, rows, left = self._rows.weights(H, index, self._ridge, PERSON_NORM)
        if self._rows.observed_only:
            residual = sparse.csr_matrix((left, rows.indices, rows.indptr), shape=rows.shape)
            return W, residual, _squares(residual)
        squares = _squares(rows)
        if self._statistic is not ItemStatistic.MOMENTS:
            if not sparse.issparse(rows):
                rows = rows - W @ H
                return W, rows, _squares(rows)
            # ‖m − wH‖² without making the row dense, and never below: the slack is more than rounding can take off.
            slack = _rounding(H, W, squares)
            squares = squares - 2 * np.einsum("ij,ij->i", W, rows @ H.T) + np.einsum("ij,ij->i", W @ (H @ H.T), W)
            squares = np.maximum(squares, 0.0) + slack
        return W, rows, squares

    def total(self, block: int, values: Values, index: Index) -> Array:
        """Two products with the rows of each part; contributions are never formed."""
        (H,) = values
        k, d = H.shape
        square, cross = np.zeros((k, k)), np.zeros((d, k))
        for part in self._rows.parts(index):
            W, rows, squares = self._hidden(H, part)
            short = W * self._factors(W, squares)[:, None]
            square += short.T @ W
            cross += np.asarray(rows.T @ short)
        if self._fitted_later:
            cross -= H.T @ square
        return self._laid_out(square, cross.T)

    @property
    def _fitted_later(self) -> bool:
        """Whether wH must still be taken off: sparse rows whose absent entries are zeros."""
        return self._statistic is not ItemStatistic.MOMENTS and self._rows.sparse and not self._rows.observed_only

    def _factors(self, W: Array, squares: Array) -> Array:
        """min(1, C/‖contribution‖)."""
        lengths = (W * W).sum(axis=1)
        a = 0.0 if self._statistic is ItemStatistic.GRADIENT else self._weight
        norms = np.sqrt(lengths * (a * a * lengths + squares))
        factor = self.blocks[0].bound / np.maximum(norms, self.blocks[0].bound)
        return np.where(np.isfinite(factor), factor, 0.0)

    def _laid_out(self, square: Array, cross: Array) -> Array:
        if self._statistic is ItemStatistic.GRADIENT:
            return np.asarray(-cross.ravel())
        return np.concatenate([self._weight * upper_triangle(square), cross.ravel()])

    def contributions(self, block: int, values: Values, index: Index) -> Array:
        """One person at a time: for tests, and slow."""
        (H,) = values
        out = []
        for i in index:
            W, rows, _ = self._hidden(H, np.array([i]))
            x = rows.toarray() if sparse.issparse(rows) else rows
            if self._fitted_later:
                x = x - W @ H
            out.append(self._laid_out(np.outer(W[0], W[0]), np.outer(W[0], x[0])))
        return np.array(out)

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[ItemFactors, ItemFactors, Values]:
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
        sides = [
            cls(FactorRows(table, 1.5, observed_only=unknown), block, statistic, weight=weight, ridge=0.1)
            for table in tables
        ]
        return sides[0], sides[1], (H,)


def _reach(statistic: ItemStatistic, bound: float) -> float:
    """Moments are non-negative, so that two of them are never further than √2·C apart."""
    return math.sqrt(2) * bound if statistic is ItemStatistic.MOMENTS else 2 * bound


def _in_parts(table: Array) -> Any:
    """A CSR matrix that stores every entry in two parts."""
    halves = sparse.csr_matrix(table / 2)
    data, indices = np.repeat(halves.data, 2), np.repeat(halves.indices, 2)
    return sparse.csr_matrix((data, indices, 2 * halves.indptr), shape=table.shape)


@register("person-factors")
class PersonFactors(ClippedSum):
    """The factors of all people, one after another: person i contributes w_i in the i-th place, and nothing elsewhere.

    w ≥ 0 has norm at most R = 1, so that two of them are never further than √2 apart. The state is H.

    Args:
        rows: the people.
        components: k.
        ridge: λ.
    """

    def __init__(self, rows: FactorRows, components: int, *, ridge: float = 0.0) -> None:
        self._rows, self._k = rows, _validate.positive_int(components=components)
        self._ridge = _validate.nonnegative(ridge=ridge)
        self.records, self.bound, self.size = rows.people, PERSON_NORM, rows.people * self._k

    @property
    def diameter(self) -> float:
        """√2·R."""
        return math.sqrt(2) * self.bound

    def _weights(self, flat: Array, index: Index) -> Array:
        return self._rows.weights(flat.reshape(self._k, -1), index, self._ridge, self.bound)[0]

    def contributions(self, state: Array, index: Index) -> Array:
        """Zeros, but for the person's own place."""
        out = np.zeros((len(state), len(index), self.records, self._k))
        for r, row in enumerate(state):
            out[r, np.arange(len(index)), index] = self._weights(row, index)
        return out.reshape(len(state), len(index), self.size)

    def total(self, state: Array, batch: Mask) -> Array:
        """Everybody of the batch in their place."""
        out = np.zeros((len(state), self.records, self._k))
        for r, (row, mask) in enumerate(zip(state, batch, strict=True)):
            for part in self._rows.parts(np.flatnonzero(mask)):
                out[r, part] = self._weights(row, part)
        return out.reshape(len(state), self.size)

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[PersonFactors, PersonFactors, Array]:
        """People who share no item."""
        H = np.array([[1.0, 1, 0, 0], [0, 0, 1, 1]]) / math.sqrt(2)
        here = np.abs(rng.normal(size=(records, 4))) * rng.choice([0.1, 9.0], size=(records, 1))
        there = here.copy()
        here[0], there[0] = [9.0, 9, 0, 0], [0, 0, 9.0, 9] if rng.random() < 0.7 else [1.0, 2, 3, 4]
        sides = [cls(FactorRows(table, 2.0), 2) for table in (here, there)]
        return sides[0], sides[1], H.ravel()[None]
