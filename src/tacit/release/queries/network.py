"""What records contribute to the weights of a network: rank-one gradients, patch by patch, or second moments."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.exact import rounded_rows
from tacit.kernels.lattice import PRODUCT_BITS, lattice_total, truncated
from tacit.kernels.outer import capped_rows, integer_rows
from tacit.kernels.rows import row_squares
from tacit.problem.blocks import Block, GradientStep, Values
from tacit.problem.layers import Convolution, Dense
from tacit.problem.moments import moments_bound, moments_diameter
from tacit.problem.network import Architecture, Hidden, Prepared, architecture
from tacit.records import Rows
from tacit.records.integers import BITS
from tacit.release.blocks import BlockProblem, Grids, Sum
from tacit.release.queries.moments import integer_gram, integer_product, upper_triangle
from tacit.release.query import MAX_SCALE, Example, Grid, exponent, roots

__all__ = ["BlockNetwork", "LayerStatistic", "layer_size"]

Array = NDArray[np.float64]
PART_ENTRIES = 1 << 20
"""Entries of the designs of a part of a batch."""
LARGEST_PART, SMALLEST_PART = 256, 16
TOLERANCE = 2e-9
"""Of bounds that are stated for moments, twice: records are made so much shorter."""
EXACT_BITS = 52
"""Of products of patches and residuals, with their sums over patches."""


class LayerStatistic(Enum):
    """What a record contributes to a layer, r being what its hidden u leaves of Wx."""

    GRADIENT = "−r·xᵀ"
    MOMENTS = "(α·xxᵀ, r·xᵀ)"


def layer_size(shape: tuple[int, int], statistic: LayerStatistic) -> int:
    """The length of a released sum for weights of this shape."""
    outputs, inputs = shape
    square = inputs * (inputs + 1) // 2 if statistic is LayerStatistic.MOMENTS else 0
    return square + outputs * inputs


@dataclass(frozen=True, eq=False)
class BlockNetwork(BlockProblem):
    """A network whose weights are the released blocks; x and u of every record are hidden (``tacit.problem.network``).

    Features are the input of the network, float32 or float64; targets are one-hot classes, or values in [−1, 1], to
    which they are clipped. A dense layer's gradient is rank one, so that its norm is ‖r‖·‖x‖; a convolution's is a sum
    over patches, which is formed, measured and clipped record by record (patches may cancel). Moments: r is clipped to
    its own norm U (the design is within its ρ already). What a record contributes does not depend on its place or its
    neighbours, to the bit; sums are made in float64.

    On a grid the design of a dense layer is scale·a with integers a, and a gradient is t·aᵀ: integers t are −r·scale/g,
    rounded with ‖t‖·‖a‖ ≤ C/g. That of a convolution is formed from factors of so few bits that it is exact, clipped,
    and rounded toward zero entry by entry. Moments: x and r are rounded toward zero, each in a unit of its own, and so
    stay within their norms; bound and diameter are those of any such x and r.

    Attributes:
        network: the public architecture.
        blocks: one per connection.
        statistic: what is summed.
        weights: α of each connection, for moments.
        residual_norms: U of each connection, for moments.
    """

    network: Architecture
    blocks: tuple[Block, ...]
    statistic: LayerStatistic = LayerStatistic.GRADIENT
    weights: tuple[float, ...] = ()
    residual_norms: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        for name in ("weights", "residual_norms"):
            for value in getattr(self, name):
                _validate.positive(**{name: value})
        shapes = [c.map.weights for c in self.network.connections]
        if [block.shape for block in self.blocks] != shapes or any(
            block.release_size != layer_size(shape, self.statistic)
            for block, shape in zip(self.blocks, shapes, strict=True)
        ):
            raise InvalidInput("blocks must hold the weights of every connection, in order, and announce their sums")
        if not all(1e-60 <= block.bound <= 1e60 for block in self.blocks):
            raise InvalidInput("bounds of blocks must lie between 1e-60 and 1e60: their squares are needed")
        if self.statistic is LayerStatistic.MOMENTS:
            self._check_moments()

    @cached_property
    def _part(self) -> int:
        """Records of a part of a batch."""
        maps = [c.map for c in self.network.connections]
        widest = sum(m.patches * m.weights[1] + (m.patches > 1) * m.weights[0] * m.weights[1] for m in maps)
        return int(np.clip(PART_ENTRIES // widest, SMALLEST_PART, LARGEST_PART))

    def _check_moments(self) -> None:
        """Bounds and diameters must be those of the statistics."""
        network, U, weights = self.network, self.residual_norms, self.weights
        if any(c.map.patches > 1 for c in network.connections):
            raise InvalidInput("moments are for dense layers: a convolution takes gradients")
        if not len(U) == len(weights) == len(self.blocks):
            raise InvalidInput("residual_norms and weights must hold one number per connection")
        for block, c, u, a in zip(self.blocks, network.connections, U, weights, strict=True):
            R = network.design_norm(c)
            if block.bound < moments_bound(R, u, a) * (1 - 1e-9):
                raise InvalidInput(f"the bound of {block.name!r} is smaller than its longest statistic")
            if block.reach < moments_diameter(R, u, a) * (1 - 1e-9):
                raise InvalidInput(f"the diameter of {block.name!r} is smaller than that of its statistics")

    # -- sums -------------------------------------------------------------------------------------------------

    def total(self, block: int, values: Values, rows: Rows, grid: Grid | None = None) -> Sum:
        """One of ``totals``."""
        return self._sums(values, rows, (block,), (grid,))[0]

    def totals(self, values: Values, rows: Rows, grids: Grids | None = None) -> tuple[Sum, ...]:
        """The sums of all blocks at the same weights, from one pass over the records."""
        everything = tuple(range(len(self.blocks)))
        return self._sums(values, rows, everything, (None,) * len(everything) if grids is None else grids)

    def _sums(
        self, values: Values, rows: Rows, blocks: tuple[int, ...], grids: tuple[Grid | None, ...]
    ) -> tuple[Sum, ...]:
        kinds = [np.float64 if grid is None else np.int64 for grid in grids]
        out: list[Sum] = [np.zeros(self.blocks[j].release_size, kind) for j, kind in zip(blocks, kinds, strict=True)]
        first = 0
        for hidden in self._hidden(values, rows, self._part):
            own = None if rows.weights is None else rows.weights[first : first + self._part]
            for total, j, grid in zip(out, blocks, grids, strict=True):
                total += self._summed(j, hidden, own) if grid is None else self._integers(j, hidden, grid, own)
            first += self._part
        return tuple(out)

    # -- integers -------------------------------------------------------------------------------------------------

    def grid(self, block: int, sigma: float) -> Grid:
        """The finest one; for moments that of products of x and r, each of half of the bits."""
        if self.statistic is LayerStatistic.GRADIENT:
            return Grid.fine(sigma, self.blocks[block].bound)
        R, U = self.network.design_norm(self.network.connections[block]), self.residual_norms[block]
        e, least = exponent(R) + exponent(U), sigma / min(1.0, self._square_scale(block))
        bits = max(min(e - exponent(least) + MAX_SCALE, PRODUCT_BITS) // 2, 1)
        return Grid(2.0 ** (e - 2 * bits), bits)

    def scales(self, block: int) -> Array | None:
        """For moments: α and the units of x over those of r, times √2 off the diagonal, for squares; 1 for products."""
        if self.statistic is LayerStatistic.GRADIENT:
            return None
        outputs, inputs = self.blocks[block].shape
        square = self._square_scale(block) * upper_triangle(np.ones((inputs, inputs)))
        return np.concatenate([square, np.ones(outputs * inputs)])

    def _square_scale(self, j: int) -> float:
        """α·(unit of x)/(unit of r)."""
        R, U = self.network.design_norm(self.network.connections[j]), self.residual_norms[j]
        return self.weights[j] * 2.0 ** (exponent(R) - exponent(U))

    def _integers(self, j: int, hidden: Hidden, grid: Grid, counts: Array | None) -> NDArray[np.int64]:
        """The sum of a part in units of the grid, each record times what it counts."""
        c, bound = self.network.connections[j], self.blocks[j].bound
        design, residual = hidden.designs[j], c.map.by_patch(hidden.residuals[c.target])
        if c.map.patches > 1:
            formed = -_formed(design, residual)[None]
            batch: NDArray[Any] = np.ones(len(design), bool) if counts is None else counts
            return np.asarray(lattice_total(formed, batch[None], bound, grid.unit)[0])
        X, R = design[:, 0], residual[:, 0]
        if self.statistic is LayerStatistic.GRADIENT:
            A, scales, norms = integer_rows(X, BITS)
            own = np.ones(len(X)) if counts is None else counts
            T = capped_rows(R * -(scales * own / grid.unit)[:, None], bound / grid.unit / norms * own)
            return integer_product(T, A.astype(np.float64))
        ok = np.isfinite(row_squares(X)) & np.isfinite(row_squares(R))  # a record that fails counts as zero, all of it
        root = np.ones(int(ok.sum())) if counts is None else roots(counts[ok])
        x = _within(X[ok], self.network.design_norm(c), grid.bits, root)
        r = _within(R[ok], self.residual_norms[j], grid.bits, root)
        return np.concatenate([integer_gram(x), integer_product(r, x)])

    # -- floating point -------------------------------------------------------------------------------------------

    def _hidden(self, values: Values, rows: Rows, size: int) -> Iterator[Hidden]:
        """Hidden variables, ``size`` records at a time."""
        X, y, network = rows.X, rows.y, self.network
        if X.shape[1] != int(np.prod(network.shapes[0])) or y.shape != (len(rows), network.outputs):
            raise InvalidInput(f"the network reads {network.shapes[0]} and has {network.outputs} outputs: data differ")
        weights: Prepared = network.prepared(values)
        for first in range(0, len(rows), size):
            part = slice(first, first + size)
            target = np.clip(np.nan_to_num(np.array(y[part], np.float64)), -1.0, 1.0)
            yield network.hidden(weights, np.array(X[part]), target)  # copies: nothing changes while it is looked at

    def _summed(self, j: int, hidden: Hidden, counts: Array | None) -> Array:
        """The sum of clipped contributions of a part, each times what it counts."""
        c = self.network.connections[j]
        design, residual = hidden.designs[j], c.map.by_patch(hidden.residuals[c.target])
        lengths, norms = (np.sqrt(row_squares(_flat(A))) for A in (design, residual))
        ok = np.isfinite(lengths) & np.isfinite(norms)
        if not ok.all():
            design, residual = (np.where(ok[:, None, None], A, 0.0) for A in (design, residual))
            lengths, norms = (np.where(ok, length, 0.0) for length in (lengths, norms))
        if c.map.patches > 1:
            formed = _flat(np.matmul(residual.transpose(0, 2, 1), design))
            factor = _factor(np.sqrt(row_squares(formed)), self.blocks[j].bound)
            return np.asarray(-(_counted(factor, counts) @ formed))
        X, R = design[:, 0], residual[:, 0]
        if self.statistic is LayerStatistic.GRADIENT:
            return _cross(R * -_counted(_factor(norms * lengths, self.blocks[j].bound), counts)[:, None], X)
        cross = _cross(R * _counted(_factor(norms, self.residual_norms[j]), counts)[:, None], X)
        square = X.T @ (X if counts is None else X * counts[:, None])
        return np.concatenate([self.weights[j] * upper_triangle(square), cross])

    def contributions(self, block: int, values: Values, rows: Rows) -> Array:
        """One record at a time: for tests, and slow. Residuals of moments are clipped already."""
        out, c = [], self.network.connections[block]
        for hidden in self._hidden(values, rows, 1):
            if self.statistic is LayerStatistic.MOMENTS:
                out.append(self._summed(block, hidden, None))
            else:
                R = c.map.by_patch(hidden.residuals[c.target])[0]
                out.append(-(R.T @ hidden.designs[block][0]).ravel())
        return np.array(out)

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Dense, with shortcuts or convolutions, either loss and statistic; the neighbour points elsewhere."""
        picture = bool(rng.integers(2))
        statistic = LayerStatistic.GRADIENT if picture else list(LayerStatistic)[rng.integers(2)]
        layers = (Convolution(2, 2, pool=int(rng.integers(1, 3))), Dense(3)) if picture else (3, 4)
        shape, K = ((1, 4, 4) if picture else (5,)), int(rng.choice([2, 2, 3]))
        loss = ("cross_entropy", "squared")[rng.integers(2)]
        network = architecture(shape, layers, K, norms=1.0, loss=loss, shortcuts=() if picture else ((1, 3),))
        U, weights = (tuple(value for _ in network.connections) for value in (1e-3, rng.choice([4e-4, 2e-3])))
        starts = [rng.normal(size=c.map.weights) for c in network.connections]
        x = rng.normal(size=(records, int(np.prod(shape)))) * rng.choice([0.1, 30.0])
        if rng.random() < 0.5:  # every unit open: then residuals of opposite labels are opposite
            starts = [np.abs(W) if c.target < 2 else W for W, c in zip(starts, network.connections, strict=True)]
            x = 0.05 * np.abs(x / np.linalg.norm(x, axis=1, keepdims=True))
        if rng.random() < 0.3:  # hidden variables that hardly follow the label: then outputs' residuals are opposite
            starts = [W if c.target < 2 else 1e-3 * W for W, c in zip(starts, network.connections, strict=True)]
        blocks = tuple(
            example_block(c.name, W, network.design_norm(c), statistic, U[0], weights[0])
            for W, c in zip(starts, network.connections, strict=True)
        )
        y = np.eye(K)[rng.integers(K, size=records)]
        x2, y2 = x.copy(), y.copy()
        x2[0] = x[0] * rng.choice([1.0, 1.0, -1.0])
        y2[0] = np.roll(y[0], 1) * rng.choice([1.0, 1.0, -1.0])
        problem = cls(network, blocks, statistic, weights=weights, residual_norms=U)
        return Example(problem, Rows(x, y), Rows(x2, y2), tuple(block.start for block in blocks))


def _factor(norms: Array, longest: float) -> Array:
    """min(1, C/norm), and a hair less, so that rounding cannot make a contribution longer; 0 if it is not finite."""
    inside = longest * (1 - 2.0**-40)
    return np.where(np.isfinite(norms), inside / np.maximum(norms, inside), 0.0)


def _counted(factors: Array, counts: Array | None) -> Array:
    """Factors of records, each times what the record counts."""
    return factors if counts is None else factors * counts


def _formed(design: Array, residual: Array) -> Array:
    """Σ r·xᵀ over the patches of each record, flat: of factors that are rounded to so few bits that it is exact."""
    bits = (EXACT_BITS - math.ceil(math.log2(design.shape[1]))) // 2
    R, X = (rounded_rows(_flat(A), bits).reshape(A.shape) for A in (residual, design))
    return np.ascontiguousarray(_flat(np.matmul(R.transpose(0, 2, 1), X)))


def _within(rows: Array, norm: float, bits: int, root: Array) -> Array:
    """Rows of norm at most ``norm``, less the tolerance of bounds, times √w, as integers, rounded toward zero."""
    factor = _factor(np.sqrt(row_squares(rows)), norm * (1 - TOLERANCE)) * root
    return truncated(rows * factor[:, None], 2.0 ** (exponent(norm) - bits))


def _cross(R: Array, X: Array) -> Array:
    """Σ r·xᵀ, flat; a contiguous Rᵀ is several times faster."""
    return (np.ascontiguousarray(R.T) @ X).ravel()


def _flat(rows: Array) -> Array:
    return rows.reshape(len(rows), -1)


def example_block(name: str, start: Array, R: float, statistic: LayerStatistic, U: float, weight: float) -> Block:
    """A block with the bounds of its statistic."""
    if statistic is LayerStatistic.GRADIENT:
        return Block(name, start, U, GradientStep(1.0))
    size = layer_size((start.shape[0], start.shape[1]), statistic)
    bound, reach = moments_bound(R, U, weight), moments_diameter(R, U, weight)
    return Block(name, start, bound, GradientStep(1.0), size, max(bound, min(reach, 2 * bound)))
