"""What records contribute to the weights of a network: rank-one gradients, patch by patch, or second moments."""

from __future__ import annotations

import math
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.rows import row_squares
from tacit.problem.layers import Convolution, Dense
from tacit.problem.moments import moments_bound, moments_diameter
from tacit.problem.network import Architecture, Hidden, architecture
from tacit.run.blocks import Block, BlockProblem, GradientStep, Values, register_problem
from tacit.run.sums.gram import upper_triangle
from tacit.run.sums.outputs import FeatureRows, TableRows, shortened

__all__ = ["BlockNetwork", "LayerStatistic", "layer_size"]

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Rows = NDArray[Any]
PART_ENTRIES = 1 << 20
"""Entries of the designs of a part of a batch."""
LARGEST_PART, SMALLEST_PART = 512, 16


class LayerStatistic(Enum):
    """What a record contributes to a layer, r being what its hidden u leaves of Wx."""

    GRADIENT = "−r·xᵀ"
    MOMENTS = "(α·xxᵀ, r·xᵀ)"


def layer_size(shape: tuple[int, int], statistic: LayerStatistic) -> int:
    """The length of a released sum for weights of this shape."""
    outputs, inputs = shape
    square = inputs * (inputs + 1) // 2 if statistic is LayerStatistic.MOMENTS else 0
    return square + outputs * inputs


@register_problem("block-network")
class BlockNetwork(BlockProblem):
    """A network whose weights are the released blocks; x and u of every record are hidden (``tacit.problem.network``).

    A dense layer's gradient is rank one, so that its norm is ‖r‖·‖x‖; a convolution's is a sum over patches, formed
    record by record. Moments: r is clipped to its own norm U (the design is within its ρ already).

    All parts of a batch are padded to one shape: how a row of a product is rounded can depend on the number of rows,
    and eq. (10) jumps.

    Args:
        rows: (records, features) of the input.
        target: (records, K): one-hot classes, or values in [−1, 1].
        network: the public architecture.
        blocks: one per connection.
        statistic: what is summed.
        weights: α of each connection, for moments.
        residual_norms: U of each connection, for moments.
        expected: public size of a batch, so that parts are not much larger than that.
    """

    def __init__(
        self,
        rows: FeatureRows,
        target: Rows,
        network: Architecture,
        blocks: tuple[Block, ...],
        statistic: LayerStatistic = LayerStatistic.GRADIENT,
        *,
        weights: tuple[float, ...] = (),
        residual_norms: tuple[float, ...] = (),
        expected: float = LARGEST_PART,
    ) -> None:
        self.blocks, self.records, self._rows, self._target = blocks, len(rows), rows, target
        self._network, self._statistic = network, statistic
        self._weights = tuple(_validate.positive(weights=value) for value in weights)
        self._residual_norms = tuple(_validate.positive(residual_norms=value) for value in residual_norms)
        if rows.width != int(np.prod(network.shapes[0])) or target.shape != (len(rows), network.outputs):
            raise InvalidInput(f"the network reads {network.shapes[0]} and has {network.outputs} outputs: data differ")
        shapes = [c.map.weights for c in network.connections]
        if [block.shape for block in blocks] != shapes or any(
            block.release_size != layer_size(shape, statistic) for block, shape in zip(blocks, shapes, strict=True)
        ):
            raise InvalidInput("blocks must hold the weights of every connection, in order, and announce their sums")
        if not all(1e-60 <= block.bound <= 1e60 for block in blocks):
            raise InvalidInput("bounds of blocks must lie between 1e-60 and 1e60: their squares are needed")
        if statistic is LayerStatistic.MOMENTS:
            self._check_moments()
        widest = sum(c.map.patches * c.map.weights[1] for c in network.connections)
        whole = SMALLEST_PART * math.ceil(1.2 * _validate.positive(expected=expected) / SMALLEST_PART)
        self._part = int(np.clip(min(PART_ENTRIES // widest, whole), SMALLEST_PART, LARGEST_PART))

    def _check_moments(self) -> None:
        """Bounds and diameters must be those of the statistics."""
        network, U, weights = self._network, self._residual_norms, self._weights
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

    def total(self, block: int, values: Values, index: Index) -> Array:
        """One of ``totals``."""
        return self._sums(values, index, (block,))[0]

    def totals(self, values: Values, index: Index) -> tuple[Array, ...]:
        """The sums of all blocks at the same weights, from one pass over the records."""
        return self._sums(values, index, tuple(range(len(self.blocks))))

    def _sums(self, values: Values, index: Index, blocks: tuple[int, ...]) -> tuple[Array, ...]:
        out = [np.zeros(self.blocks[j].release_size) for j in blocks]
        weights = self._cast(values)
        for first in range(0, len(index), self._part):
            part = index[first : first + self._part]
            hidden = self._hidden(weights, part)
            for total, j in zip(out, blocks, strict=True):
                total += self._summed(j, hidden, len(part))
        return tuple(out)

    def _cast(self, values: Values) -> list[Rows]:
        kind = self._rows.take(np.arange(min(1, self.records))).dtype
        return [np.asarray(value, kind) for value in values]

    def _hidden(self, weights: list[Rows], part: Index) -> Hidden:
        rows = shortened(self._rows.take(part), self._network.norms[0])
        x = np.zeros((self._part, rows.shape[1]), rows.dtype)
        y = np.zeros((self._part, self._network.outputs), rows.dtype)
        x[: len(part)], y[: len(part)] = rows, self._target[part]
        return self._network.hidden(weights, x, y)

    def _clipped(self, j: int, hidden: Hidden, count: int) -> tuple[Rows, Rows]:
        """Designs (records, patches, inputs) and residuals (records, patches, outputs), so scaled that none is long."""
        c = self._network.connections[j]
        design = hidden.designs[j][:count]
        residual = c.map.by_patch(hidden.residuals[c.target][:count])
        if c.map.patches > 1:
            longest, norms = self.blocks[j].bound, self._patch_norms(design, residual)
        else:
            norms = np.sqrt(row_squares(residual[:, 0]))
            if self._statistic is LayerStatistic.MOMENTS:
                longest = self._residual_norms[j]
            else:
                longest, norms = self.blocks[j].bound, norms * np.sqrt(row_squares(design[:, 0]))
        inside = longest * (1 - _hair(residual))
        factor = inside / np.maximum(norms, inside)
        ok = np.isfinite(factor) & np.isfinite(row_squares(design.reshape(count, -1)))
        if not ok.all():
            design, residual = np.where(ok[:, None, None], design, 0), np.where(ok[:, None, None], residual, 0)
        return design, residual * np.where(ok, factor, 0.0).astype(residual.dtype)[:, None, None]

    @staticmethod
    def _patch_norms(design: Rows, residual: Rows) -> Array:
        """‖Σ_patches r·xᵀ‖ of each record, exactly: formed, which is cheaper than tr(RRᵀ·XXᵀ) if patches are many."""
        patches, inputs = design.shape[1:]
        outputs = residual.shape[2]
        if outputs * inputs <= patches * (outputs + inputs):
            formed = np.matmul(residual.transpose(0, 2, 1), design)
            return np.asarray(np.sqrt(row_squares(formed.reshape(len(formed), -1))))
        R, X = np.matmul(residual, residual.transpose(0, 2, 1)), np.matmul(design, design.transpose(0, 2, 1))
        squares = np.einsum("ipq,ipq->i", R, X, dtype=np.float64)
        # Rounding may make a small trace of large terms too small: never by more than this.
        slack = 1e-5 * np.sqrt(row_squares(R.reshape(len(R), -1)) * row_squares(X.reshape(len(X), -1)))
        return np.asarray(np.sqrt(np.maximum(squares, 0.0) + slack))

    def _summed(self, j: int, hidden: Hidden, count: int) -> Array:
        design, residual = self._clipped(j, hidden, count)
        X, R = design.reshape(-1, design.shape[2]), residual.reshape(-1, residual.shape[2])
        cross = np.asarray(np.ascontiguousarray(R.T) @ X, np.float64).ravel()  # R.T alone is several times slower
        if self._statistic is LayerStatistic.GRADIENT:
            return -cross
        return np.concatenate([self._weights[j] * upper_triangle(np.asarray(X.T @ X, np.float64)), cross])

    def contributions(self, block: int, values: Values, index: Index) -> Array:
        """One record at a time: for tests, and slow. Residuals of moments are clipped already."""
        weights, out = self._cast(values), []
        for i in index:
            hidden = self._hidden(weights, np.array([i]))
            if self._statistic is LayerStatistic.MOMENTS:
                out.append(self._summed(block, hidden, 1))
                continue
            c = self._network.connections[block]
            X = hidden.designs[block][0].astype(np.float64)
            R = c.map.by_patch(hidden.residuals[c.target][:1])[0].astype(np.float64)
            out.append(-(R.T @ X).ravel())
        return np.array(out)

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[BlockNetwork, BlockNetwork, Values]:
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
        y2[0] = np.roll(y[0], 1) * rng.choice([1.0, 1.0, 9.0])
        sides = [
            cls(TableRows(a), b, network, blocks, statistic, weights=weights, residual_norms=U)
            for a, b in ((x, y), (x2, y2))
        ]
        return sides[0], sides[1], tuple(block.start for block in blocks)


def _hair(rows: Rows) -> float:
    """By how much long contributions are made shorter still, so that rounding cannot make them longer."""
    return 2.0**-16 if rows.dtype == np.float32 else 2.0**-40


def example_block(name: str, start: Array, R: float, statistic: LayerStatistic, U: float, weight: float) -> Block:
    """A block with the bounds of its statistic."""
    if statistic is LayerStatistic.GRADIENT:
        return Block(name, start, U, GradientStep(1.0))
    size = layer_size((start.shape[0], start.shape[1]), statistic)
    bound, reach = moments_bound(R, U, weight), moments_diameter(R, U, weight)
    return Block(name, start, bound, GradientStep(1.0), size, max(bound, min(reach, 2 * bound)))
