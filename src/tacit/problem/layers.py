"""Layers of a network as linear maps of one weight matrix: dense, and convolution by columns of patches.

A layer maps a state x (one row per record) to pre-activations W·design(x), where the design of a dense layer is
(x, c) and that of a convolution holds one row (patch, c) per position: c is a public constant that stands for a bias.
Average pooling in front of a layer is linear, too, and so belongs to it. States are flat: (records, channels·h·w).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.kernels.exact import exact_product
from tacit.kernels.patches import fold, pool, unfold, unpool
from tacit.kernels.rows import scaled_with_constant

__all__ = ["BIAS", "Convolution", "ConvolutionMap", "Dense", "DenseMap", "LayerMap", "Shape", "layer_map"]

Rows = NDArray[np.float64]
Shape = tuple[int, ...]
"""Of a state: (features,), or (channels, height, width)."""
BIAS = 0.3
"""c, in units of the norm of the state that it stands beside."""


@described("Dense")
@dataclass(frozen=True)
class Dense:
    """A fully connected layer.

    Attributes:
        width: outputs.
        pool: side of the squares that a picture is averaged over first.
    """

    width: int
    pool: int = 1

    def __post_init__(self) -> None:
        for name in ("width", "pool"):  # 64.0 is taken as 64
            object.__setattr__(self, name, _validate.positive_int(**{name: getattr(self, name)}))


@described("Convolution")
@dataclass(frozen=True)
class Convolution:
    """A convolution with square kernels.

    Attributes:
        channels: outputs per position.
        kernel: side of a patch.
        stride: between patches.
        padding: zeros around the picture.
        pool: side of the squares that the picture is averaged over first.
    """

    channels: int
    kernel: int = 5
    stride: int = 1
    padding: int = 0
    pool: int = 1

    def __post_init__(self) -> None:
        for name in ("channels", "kernel", "stride", "pool"):
            object.__setattr__(self, name, _validate.positive_int(**{name: getattr(self, name)}))
        if isinstance(self.padding, bool) or not isinstance(self.padding, int) or self.padding < 0:
            raise InvalidInput(f"padding must be a non-negative integer, got {self.padding!r}")


@dataclass(frozen=True)
class LayerMap:
    """A layer between states of known shapes.

    Attributes:
        source: shape of the state that it reads.
        pool: of the average pooling in front.
    """

    source: Shape
    pool: int

    @property
    def pooled(self) -> Shape:
        """The shape after pooling."""
        if self.pool == 1:
            return self.source
        c, h, w = self.source
        return c, h // self.pool, w // self.pool

    @property
    def target(self) -> Shape:
        """Shape of the pre-activations."""
        raise NotImplementedError

    @property
    def weights(self) -> tuple[int, int]:
        """Shape of W: (outputs, inputs and the constant)."""
        raise NotImplementedError

    @property
    def patches(self) -> int:
        """Rows of a record's design."""
        return 1

    @property
    def uses(self) -> float:
        """How many patches an entry of the state is in."""
        return 1.0

    def design(self, x: Rows, constant: float, factors: Rows | None = None) -> Rows:
        """(records, patches, inputs + 1) of the states, each times its factor."""
        raise NotImplementedError

    def spread(self, columns: Rows) -> Rows:
        """The adjoint of ``design`` without its constant: (records, patches, inputs) → states."""
        raise NotImplementedError

    def forward(self, W: Rows, design: Rows) -> Rows:
        """Pre-activations, flat, channel by channel: those of a record do not depend on its place. W is ``coarse``."""
        m, patches, width = design.shape
        out = exact_product(design.reshape(m * patches, width), W).reshape(m, patches, len(W))
        return np.ascontiguousarray(out.transpose(0, 2, 1)).reshape(m, -1)

    def by_patch(self, flat: Rows) -> Rows:
        """Flat pre-activations as (records, patches, outputs)."""
        m, outputs = len(flat), self.weights[0]
        return np.ascontiguousarray(flat.reshape(m, outputs, -1).transpose(0, 2, 1))

    def backward(self, transposed: Rows, residual: Rows) -> Rows:
        """The adjoint of x ↦ W·design(x): flat residuals → states; from Wᵀ without the constant, ``coarse``."""
        r = self.by_patch(residual)
        m, patches, outputs = r.shape
        columns = exact_product(r.reshape(m * patches, outputs), transposed)
        return self.spread(columns.reshape(m, patches, -1))

    def _pooled(self, x: Rows) -> Rows:
        if self.pool == 1:
            return x.reshape(len(x), *self.source)
        return np.asarray(pool(x.reshape(len(x), *self.source), self.pool))

    def _unpooled(self, x: Rows) -> Rows:
        """The adjoint of ``_pooled``, flat."""
        if self.pool == 1:
            return x.reshape(len(x), -1)
        _, h, w = self.source
        return np.asarray(unpool(x, h, w, self.pool).reshape(len(x), -1))


@described("DenseMap")
@dataclass(frozen=True)
class DenseMap(LayerMap):
    """W·(x, c).

    Attributes:
        width: outputs.
    """

    width: int

    @property
    def target(self) -> Shape:
        """(width,)."""
        return (self.width,)

    @property
    def weights(self) -> tuple[int, int]:
        """(width, inputs + 1)."""
        return self.width, int(np.prod(self.pooled)) + 1

    def design(self, x: Rows, constant: float, factors: Rows | None = None) -> Rows:
        """(x, c)."""
        scale = np.ones(len(x)) if factors is None else factors
        if self.pool > 1:
            x, scale = self._pooled(x * scale[:, None]).reshape(len(x), -1), np.ones(len(x))
        return scaled_with_constant(x, scale, constant)[:, None]

    def spread(self, columns: Rows) -> Rows:
        """Back to states."""
        return self._unpooled(columns.reshape(len(columns), *self.pooled))


@described("ConvolutionMap")
@dataclass(frozen=True)
class ConvolutionMap(LayerMap):
    """W times patches of the (pooled, padded) picture.

    Attributes:
        channels: outputs per position.
        kernel: k.
        stride: between patches.
        padding: zeros around.
    """

    channels: int
    kernel: int
    stride: int
    padding: int

    @property
    def _side(self) -> tuple[int, int]:
        _, h, w = self.pooled
        rows, columns = ((side + 2 * self.padding - self.kernel) // self.stride + 1 for side in (h, w))
        return rows, columns

    @property
    def target(self) -> Shape:
        """(channels, h, w)."""
        return (self.channels, *self._side)

    @property
    def weights(self) -> tuple[int, int]:
        """(channels, k²·inputs + 1)."""
        return self.channels, self.pooled[0] * self.kernel**2 + 1

    @property
    def patches(self) -> int:
        """Positions."""
        h, w = self._side
        return h * w

    @property
    def uses(self) -> float:
        """k²/stride²."""
        return self.kernel**2 / self.stride**2

    def design(self, x: Rows, constant: float, factors: Rows | None = None) -> Rows:
        """One row (patch, c) per position (im2col)."""
        short = x if factors is None else x * factors[:, None]
        return np.asarray(unfold(self._pooled(short), self.kernel, self.stride, self.padding, constant))

    def spread(self, columns: Rows) -> Rows:
        """Every patch added to where it came from (col2im)."""
        c, h, w = self.pooled
        return self._unpooled(fold(columns, c, h, w, self.kernel, self.stride, self.padding))


def layer_map(layer: Dense | Convolution | int, source: Shape) -> LayerMap:
    """A layer on states of this shape.

    Args:
        layer: a width, or a layer.
        source: (features,) or (channels, height, width).

    Returns:
        The map.

    Raises:
        InvalidInput: if the layer does not fit the shape.
    """
    if isinstance(layer, Convolution):
        if len(source) != 3:
            raise InvalidInput(
                f"a Convolution needs a picture (channels, height, width), not {source}: give input_shape, and put "
                "convolutions before dense layers"
            )
        found = ConvolutionMap(source, layer.pool, layer.channels, layer.kernel, layer.stride, layer.padding)
        if min(found.target) < 1:
            raise InvalidInput(f"{layer} does not fit into a picture of shape {source}: a smaller kernel or pool does")
        return found
    if not isinstance(layer, Dense):
        layer = Dense(layer)
    if layer.pool > 1 and (len(source) != 3 or min(source[1:]) < layer.pool):
        raise InvalidInput(f"{layer} cannot pool a state of shape {source}: leave pool out")
    return DenseMap(source, layer.pool, layer.width)
