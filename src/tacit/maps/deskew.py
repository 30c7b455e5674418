"""Centring and deskewing of grey images by their own moments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import OneToOneFeatureMixin

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.maps.images import ImageMap
from tacit.maps.steps import public_step

__all__ = ["Deskew"]

Array = NDArray[Any]
MOST = 1.6
"""The largest change of size, up or down."""


@public_step
class Deskew(OneToOneFeatureMixin, ImageMap):  # type: ignore[misc]
    """Shift each image's centre of mass to the middle, and shear it until rows and columns are uncorrelated.

    With pixels v ≥ 0 as masses, centre (r̄, c̄) and central moments μ_rc, μ_rr, the output at (r, c) is the input at
    (r̄ + a(r − r₀), c̄ + b(c − c₀) + αa(r − r₀)), α = μ_rc/μ_rr within ±``max_shear``, (r₀, c₀) the middle; between
    pixels linearly interpolated, outside the image background. Blank images stay as they are, and images whose mass
    lies in one row are not sheared. Moments as in Hu, *Visual pattern recognition by moment invariants*, 1962.

    a = b = 1 unless a ``spread`` is given, which normalises sizes: a is the standard deviation of the mass's rows over
    the wanted one, b the square root of that of its columns, because widths tell more (a handwritten 1 is narrow); both
    within 1.6 up or down.

    *Formal guarantee.* Every pixel of the output lies in ``pixel_range``, so rows are within
    ``norm`` = max(|low|, |high|)·√pixels. See ``FeatureMap``.

    *Assumptions.* See ``FeatureMap``.

    Args:
        image_shape: (height, width).
        pixel_range: (low, high), public; low is the background. Pixels beyond are clipped.
        max_shear: the largest |α|, columns per row.
        spread: the wanted standard deviations (of rows, of columns), as shares of height and width; None for images of
            the size they have.

    Attributes:
        certificate_: None.
        n_features_in_: height·width.

    >>> import numpy as np
    >>> slanted = np.eye(5)[None].reshape(1, 25)
    >>> Deskew((5, 5), (0, 1)).fit_transform(slanted).reshape(5, 5).astype(int).tolist()[1:4]
    [[0, 0, 1, 0, 0], [0, 0, 1, 0, 0], [0, 0, 1, 0, 0]]
    """

    def __init__(
        self,
        image_shape: Any = None,
        pixel_range: Any = None,
        *,
        max_shear: float = 1.0,
        spread: tuple[float, float] | None = None,
    ) -> None:
        self.image_shape = image_shape
        self.pixel_range = pixel_range
        self.max_shear = max_shear
        self.spread = spread

    @property
    def norm(self) -> float:
        """The bound max(|low|, |high|)·√pixels."""
        return self._norm(None)

    def _prepare(self, p: int) -> int:
        self._limit = _validate.nonnegative(max_shear=self.max_shear)
        self._size = self._shape(p)
        self._wanted = None if self.spread is None else _shares(self.spread)
        return p

    def _rows(self, x: Array) -> Array:
        images = self._unit(x)
        found = moments(images)
        height, width = self._size
        shear = np.clip(found.shear, -self._limit, self._limit)
        a, b = self._paces(found, shear)
        down = np.broadcast_to(found.row[:, None], (len(images), width))
        images = _sampled(images.transpose(0, 2, 1), down, a).transpose(0, 2, 1)
        across = found.column[:, None] + (shear * a)[:, None] * (np.arange(height) - (height - 1) / 2)
        return self._in_range(_sampled(images, across, b).reshape(len(x), -1))

    def _paces(self, found: Moments, shear: Array) -> tuple[Array, Array]:
        """Input pixels per output pixel: a down, b across."""
        if self._wanted is None:
            return np.ones(len(shear)), np.ones(len(shear))
        (down, across), (height, width) = self._wanted, self._size
        tall = np.sqrt(found.rows) / (down * height)
        variance = found.columns - 2 * shear * found.both + shear**2 * found.rows  # after the shear
        wide = np.sqrt(np.maximum(variance, 0.0)) / (across * width)
        paces = np.clip(tall, 1 / MOST, MOST), np.clip(np.sqrt(wide), 1 / MOST, MOST)
        return np.where(found.blank, 1.0, paces[0]), np.where(found.blank, 1.0, paces[1])

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


def _shares(spread: Any) -> tuple[float, float]:
    try:
        down, across = spread
    except (TypeError, ValueError):
        raise InvalidInput(f"spread must be two shares, of height and width, e.g. (0.2, 0.2), got {spread!r}") from None
    shares = _validate.positive(spread=down), _validate.positive(spread=across)
    if not all(1e-3 <= share <= 1 for share in shares):
        raise InvalidInput(f"spread must lie between 0.001 and 1, as shares of height and width, got {spread!r}")
    return shares


@dataclass(frozen=True)
class Moments:
    """Of the mass of images, one number each, float64.

    Attributes:
        row: r̄; the middle if blank.
        column: c̄; the middle if blank.
        rows: μ_rr.
        columns: μ_cc.
        both: μ_rc.
        shear: μ_rc/μ_rr; 0 if the mass lies in one row.
        blank: whether there is no mass.
    """

    row: Array
    column: Array
    rows: Array
    columns: Array
    both: Array
    shear: Array
    blank: NDArray[np.bool_]


def moments(images: Array) -> Moments:
    """Moments of images with pixels ≥ 0.

    Args:
        images: (n, height, width).

    Returns:
        The moments.
    """
    height, width = images.shape[1:]
    top = images.max(axis=(1, 2), initial=0.0).astype(np.float64)
    by_row = images.sum(axis=2, dtype=np.float64)
    by_column = images.sum(axis=1, dtype=np.float64)
    mass = by_row.sum(axis=1)
    blank = (top == 0.0) | ~(mass > np.finfo(np.float64).tiny * 1e20)
    safe = np.where(blank, 1.0, mass)
    r, c = np.arange(height), np.arange(width)
    row = np.where(blank, (height - 1) / 2, np.einsum("nr,r->n", by_row, r) / safe)
    column = np.where(blank, (width - 1) / 2, np.einsum("nc,c->n", by_column, c) / safe)
    from_row = r - row[:, None]
    spread = np.einsum("nr,nr->n", by_row / safe[:, None], from_row**2)
    leaning = np.einsum("nr,nr->n", images @ c.astype(images.dtype) / safe[:, None], from_row)
    wide = np.einsum("nc,nc->n", by_column / safe[:, None], (c - column[:, None]) ** 2)
    flat = blank | (spread < 1e-6)
    shear = np.where(flat, 0.0, leaning / np.where(flat, 1.0, spread))
    return Moments(row, column, spread, wide, leaning, shear, blank)


def _sampled(images: Array, middle: Array, pace: Array) -> Array:
    """Column c of each row sampled at middle + pace·(c − c₀), linearly; background 0 outside.

    Args:
        images: (n, height, width).
        middle: (n, height), in columns.
        pace: (n,).

    Returns:
        (n, height, width).
    """
    width = images.shape[2]
    at = middle[:, :, None] + pace[:, None, None] * (np.arange(width) - (width - 1) / 2)
    at = np.clip(at, -1, width)  # one column of background on either side
    whole = np.floor(at)
    part = (at - whole).astype(images.dtype)
    padded = np.zeros((*images.shape[:2], width + 3), images.dtype)
    padded[:, :, 1 : width + 1] = images
    first = whole.astype(np.intp) + 1
    near, far = np.take_along_axis(padded, first, axis=2), np.take_along_axis(padded, first + 1, axis=2)
    return np.asarray((1 - part) * near + part * far)
