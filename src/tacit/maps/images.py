"""Rows as grey images of a public shape, with pixels in a public range."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.maps.feature_map import FeatureMap

__all__ = ["ImageMap"]


class ImageMap(FeatureMap):
    """A map of grey images stored as rows, pixels clipped to a public range; see ``FeatureMap``.

    Args:
        image_shape: (height, width).
        pixel_range: (low, high); low is the background.
    """

    image_shape: Any
    pixel_range: Any
    _size: tuple[int, int]

    def _shape(self, p: int) -> tuple[int, int]:
        """(height, width), checked against the number of columns."""
        height, width = self._sides()
        if height * width != p:
            raise InvalidInput(f"image_shape ({height}, {width}) has {height * width} pixels, but X has {p} columns")
        return height, width

    def _sides(self) -> tuple[int, int]:
        """(height, width), checked."""
        given = self.image_shape
        if not isinstance(given, tuple | list) or len(given) != 2:
            raise InvalidInput(f"image_shape must be (height, width), e.g. (28, 28), got {given!r}")
        height, width = (_validate.positive_int(image_shape=side) for side in given)
        return height, width

    def _range(self) -> tuple[float, float]:
        """(low, high), checked."""
        if self.pixel_range is None:
            raise InvalidInput("pixel_range is missing: state it, e.g. (0, 255); found in the data it would leak")
        if not isinstance(self.pixel_range, tuple | list) or len(self.pixel_range) != 2:
            raise InvalidInput(f"pixel_range must be (low, high), e.g. (0, 255), got {self.pixel_range!r}")
        low, high = (_validate.finite(pixel_range=value) for value in self.pixel_range)
        if not (low < high and 1e-30 <= max(abs(low), abs(high)) <= 1e30 and high - low >= 1e-30):
            raise InvalidInput(f"pixel_range must have low < high, within 1e-30 to 1e30, got {self.pixel_range!r}")
        return low, high

    def _unit(self, x: NDArray[Any]) -> NDArray[Any]:
        """Images (n, height, width) with pixels in [0, 1], 0 the background."""
        low, high = self._range()
        pixels = (np.clip(x, low, high) - low) / (high - low)
        return np.asarray(np.clip(pixels, 0.0, 1.0), dtype=x.dtype).reshape(-1, *self._size)

    @classmethod
    def example(cls, rng: np.random.Generator) -> tuple[FeatureMap, Any]:
        """Noise, 8 × 8 pixels, some of them out of range."""
        made: Any = cls
        return made((8, 8), (-2, 3)).fit(np.zeros((1, 64))), rng.normal(size=(30, 64)) * 2
