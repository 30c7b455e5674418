"""Histograms of oriented gradients: what an image looks like, cell by cell, whatever its contrast."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.rows import row_squares
from tacit.maps.images import ImageMap
from tacit.maps.lengths import scaled_down
from tacit.maps.steps import public_step

__all__ = ["Hog"]

Array = NDArray[Any]


@public_step
class Hog(ImageMap):
    """Histograms of gradient directions in cells, normalised in blocks of cells, then as a whole.

    After Dalal & Triggs, *Histograms of oriented gradients for human detection*, CVPR 2005: central differences; the
    magnitude of each pixel's gradient is shared linearly between the two nearest of ``orientations`` directions and the
    nearest cells; every ``block`` × ``block`` group of cells, v, becomes v/√(‖v‖² + ε²); all groups together, w, become
    w/√(‖w‖² + 1). With ``root``, v becomes √(v/(Σv + ε)) instead, entry by entry: histograms are then compared by
    their Hellinger distance, in which strong edges count less (Arandjelović & Zisserman, *Three things everyone should
    know to improve object retrieval*, CVPR 2012). Pixels are mapped to [0, 1] first, so the public ε is a contrast:
    images far fainter than ε stay near zero instead of showing the noise in them at full length.

    *Formal guarantee.* Every row of the output has norm at most 1; a constant image becomes 0. See ``FeatureMap``.

    *Assumptions.* See ``FeatureMap``.

    Args:
        image_shape: (height, width), each a multiple of ``cell``.
        pixel_range: (low, high), public. Pixels beyond are clipped.
        cell: side of a cell in pixels.
        orientations: directions, at least 2; the first is a gradient that points to the right.
        block: side of a block in cells.
        signed: whether a gradient and its opposite are different directions.
        root: whether to take square roots.
        epsilon: ε of the blocks, a contrast (not a privacy parameter).

    Attributes:
        certificate_: None.
        n_features_in_: height·width.

    >>> import numpy as np
    >>> edge = np.repeat([0.0] * 4 + [1.0] * 4, 8)  # dark above, bright below
    >>> hog = Hog((8, 8), (0, 1), cell=8, orientations=4, block=1)
    >>> hog.fit_transform([edge, np.ones(64)]).round(2).tolist()
    [[0.0, 0.0, 0.71, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """

    def __init__(
        self,
        image_shape: Any = None,
        pixel_range: Any = None,
        *,
        cell: int = 4,
        orientations: int = 9,
        block: int = 2,
        signed: bool = False,
        root: bool = False,
        epsilon: float = 0.1,
    ) -> None:
        self.image_shape = image_shape
        self.pixel_range = pixel_range
        self.cell = cell
        self.orientations = orientations
        self.block = block
        self.signed = signed
        self.root = root
        self.epsilon = epsilon

    @property
    def norm(self) -> float:
        """The bound: 1."""
        return 1.0

    def _prepare(self, p: int) -> int:
        self._size = self._shape(p)
        self._range()
        K, block = _validate.positive_int(orientations=self.orientations), _validate.positive_int(block=self.block)
        if K < 2:
            raise InvalidInput("orientations must be at least 2: a single direction tells nothing")
        self._epsilon = _validate.positive(epsilon=self.epsilon)
        if not 1e-6 <= self._epsilon <= 1e6:
            raise InvalidInput(f"epsilon must lie between 1e-6 and 1e6, got {self.epsilon!r}: pixels are in [0, 1]")
        self._pools = tuple(pooling(side, _validate.positive_int(cell=self.cell)) for side in self._size)
        cells = [pool.shape[1] for pool in self._pools]
        if min(cells) < block:
            raise InvalidInput(
                f"block is {block} cells wide, but the image is {cells[0]} × {cells[1]} cells: shrink it"
            )
        self._directions, self._block, self._turn = K, block, 2 * np.pi if self.signed else np.pi
        return int((cells[0] - block + 1) * (cells[1] - block + 1) * block**2 * K)

    def _rows(self, x: Array) -> Array:
        images = self._unit(x)
        cells = self._cells(images)
        side = (self._block, self._block)
        groups = np.lib.stride_tricks.sliding_window_view(cells, side, axis=(2, 3))  # n, K, down, across, b, b
        if self.root:
            total = groups.sum(axis=(1, 4, 5)) + images.dtype.type(self._epsilon)
            groups = np.sqrt(groups / total[:, None, :, :, None, None])
        else:
            squares = np.einsum("nkdaij,nkdaij->nda", groups, groups)
            groups = groups / np.sqrt(squares + self._epsilon**2)[:, None, :, :, None, None]
        flat = groups.transpose(0, 2, 3, 4, 5, 1).reshape(len(x), -1)
        flat /= np.sqrt(row_squares(flat) + 1.0).astype(flat.dtype)[:, None]
        return scaled_down(flat.astype(x.dtype), self.norm)

    def _cells(self, images: Array) -> Array:
        """Histograms (n, orientations, cells down, cells across)."""
        across, down = _differences(images, 2), _differences(images, 1)
        size = np.sqrt(across**2 + down**2)
        K = self._directions
        direction = (np.arctan2(down, across) * images.dtype.type(K / self._turn)) % K
        tall, wide = (pool.astype(images.dtype) for pool in self._pools)
        out = np.empty((len(images), K, tall.shape[1], wide.shape[1]), images.dtype)
        for k in range(K):
            away = np.abs(direction - k)
            share = np.maximum(1 - np.minimum(away, K - away), 0) * size
            out[:, k] = tall.T @ (share @ wide)
        return out

    def _norm(self, input_norm: float | None) -> float:
        return self.norm


def _differences(images: Array, axis: int) -> Array:
    """Half the difference of the two neighbours along an axis; a border pixel is its own neighbour."""
    after = np.concatenate([images.take(range(1, images.shape[axis]), axis), images.take([-1], axis)], axis)
    before = np.concatenate([images.take([0], axis), images.take(range(images.shape[axis] - 1), axis)], axis)
    return np.asarray((after - before) / 2)


def pooling(side: int, cell: int) -> NDArray[np.float64]:
    """Weights of pixels in cells: 1 at a cell's middle, falling linearly to 0 at the middles of its neighbours.

    Args:
        side: pixels.
        cell: pixels of a cell.

    Returns:
        (side, side/cell).

    Raises:
        InvalidInput: if cells do not fill the side.

    >>> pooling(4, 2).tolist()
    [[0.75, 0.0], [0.75, 0.25], [0.25, 0.75], [0.0, 0.75]]
    """
    if side % cell:
        raise InvalidInput(f"cell must divide the image's sides, got {cell} for {side} pixels: pad it, or change cell")
    middles = (np.arange(side // cell) + 0.5) * cell
    return np.maximum(1 - np.abs(np.arange(side)[:, None] + 0.5 - middles) / cell, 0.0)
