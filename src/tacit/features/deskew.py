"""Centring and deskewing of grey images by their own moments."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import OneToOneFeatureMixin

from tacit import _validate
from tacit.features._images import ImageMap
from tacit.preprocessing.certificates import public_step

__all__ = ["Deskew"]

Array = NDArray[Any]


@public_step
class Deskew(OneToOneFeatureMixin, ImageMap):  # type: ignore[misc]
    """Shift each image's centre of mass to the middle, and shear it until rows and columns are uncorrelated.

    With pixels v ≥ 0 as masses, centre (r̄, c̄) and central moments μ_rc, μ_rr, the output at (r, c) is the input at
    (r̄ + r − r₀, c̄ + c − c₀ + α(r − r₀)), α = μ_rc/μ_rr within ±``max_shear``, (r₀, c₀) the middle; between pixels
    linearly interpolated, outside the image background. Blank images stay as they are, and images whose mass lies in
    one row are not sheared. Moments as in Hu, *Visual pattern recognition by moment invariants*, 1962.

    *Formal guarantee.* Every pixel of the output lies in ``pixel_range``, so rows are within
    ``norm`` = max(|low|, |high|)·√pixels. See ``FeatureMap``.

    *Assumptions.* See ``FeatureMap``.

    Args:
        image_shape: (height, width).
        pixel_range: (low, high), public; low is the background. Pixels beyond are clipped.
        max_shear: the largest |α|, columns per row.

    Attributes:
        certificate_: None.
        n_features_in_: height·width.

    >>> import numpy as np
    >>> slanted = np.eye(5)[None].reshape(1, 25)
    >>> Deskew((5, 5), (0, 1)).fit_transform(slanted).reshape(5, 5).astype(int).tolist()[1:4]
    [[0, 0, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0]]
    """

    def __init__(self, image_shape: Any = None, pixel_range: Any = None, *, max_shear: float = 1.0) -> None:
        self.image_shape = image_shape
        self.pixel_range = pixel_range
        self.max_shear = max_shear

    @property
    def norm(self) -> float:
        """The bound max(|low|, |high|)·√pixels."""
        return self._norm(None)

    def _prepare(self, p: int) -> int:
        self._limit = _validate.nonnegative(max_shear=self.max_shear)
        self._size = self._shape(p)
        return p

    def _rows(self, x: Array) -> Array:
        images = self._unit(x)
        row, column, shear = moments(images)
        height, width = self._size
        shear = np.clip(shear, -self._limit, self._limit)
        middle = (height - 1) / 2
        down = np.broadcast_to((row - middle)[:, None], (len(images), width))
        images = _moved(images.transpose(0, 2, 1), down).transpose(0, 2, 1)
        across = (column - (width - 1) / 2)[:, None] + shear[:, None] * (np.arange(height) - middle)
        return self._in_range(_moved(images, across).reshape(len(x), -1))

    def _in_range(self, unit: Array) -> Array:
        """From [0, 1] to the range of pixels, whose ends are rounded inwards."""
        low, high = self._range()
        kind = unit.dtype.type
        ends = kind(low), kind(high)
        inner = (
            ends[0] if ends[0] >= low else np.nextafter(ends[0], kind(np.inf)),
            ends[1] if ends[1] <= high else np.nextafter(ends[1], kind(-np.inf)),
        )
        return np.clip(low + unit * (high - low), *inner).astype(kind)

    def _norm(self, input_norm: float | None) -> float:
        height, width = getattr(self, "_size", None) or self._sides()
        return float(np.nextafter(max(map(abs, self._range())) * np.sqrt(float(height * width)), np.inf))


def moments(images: Array) -> tuple[Array, Array, Array]:
    """The centre of mass (rows, columns) and μ_rc/μ_rr of images with pixels ≥ 0; the middle and 0 if blank.

    Args:
        images: (n, height, width).

    Returns:
        Three arrays of n numbers, float64.
    """
    height, width = images.shape[1:]
    top = images.max(axis=(1, 2), initial=0.0).astype(np.float64)
    by_row = images.sum(axis=2, dtype=np.float64)
    by_column = images.sum(axis=1, dtype=np.float64)
    mass = by_row.sum(axis=1)
    blank = (top == 0.0) | ~(mass > np.finfo(np.float64).tiny * 1e20)
    safe = np.where(blank, 1.0, mass)
    r, c = np.arange(height), np.arange(width)
    row = np.where(blank, (height - 1) / 2, by_row @ r / safe)
    column = np.where(blank, (width - 1) / 2, by_column @ c / safe)
    from_row = r - row[:, None]
    spread = np.einsum("nr,nr->n", by_row / safe[:, None], from_row**2)
    leaning = np.einsum("nr,nr->n", images @ c.astype(images.dtype) / safe[:, None], from_row)
    flat = blank | (spread < 1e-6)
    return row, column, np.where(flat, 0.0, leaning / np.where(flat, 1.0, spread))


def _moved(images: Array, shift: Array) -> Array:
    """Each row of each image sampled ``shift`` columns to the right, linearly; background 0 outside.

    Args:
        images: (n, height, width).
        shift: (n, height).

    Returns:
        (n, height, width).
    """
    width = images.shape[2]
    shift = np.clip(shift, -width, width)
    whole = np.floor(shift)
    part = (shift - whole).astype(images.dtype)[:, :, None]
    padded = np.zeros((*images.shape[:2], 3 * width + 1), images.dtype)
    padded[:, :, width : 2 * width] = images
    first = (width + whole).astype(np.intp)[:, :, None] + np.arange(width)
    sampled = np.take_along_axis(padded, np.concatenate([first, first[:, :, -1:] + 1], axis=2), axis=2)
    return np.asarray((1 - part) * sampled[:, :, :-1] + part * sampled[:, :, 1:])
