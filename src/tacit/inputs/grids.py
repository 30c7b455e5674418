"""Public grids for histograms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.inputs.bounds import bounds_of

__all__ = ["FINEST", "grids_of"]

Array = NDArray[np.float64]

FINEST = 1e-4
"""Where a geometric grid turns linear, relative to the largest bound, unless the user says otherwise."""


def grids_of(
    grid: object, bounds: object, size: int, bins: object, resolution: object, *, name: str = "feature_bounds"
) -> list[Array]:
    """The edges of every feature's bins: strictly increasing, or a single number for a feature without a choice.

    A geometric grid is uniform in t = sign(x)·log(1 + |x|/r): linear within ±r around 0, then growing by a constant
    factor, so that it resolves small values under wide bounds.

    Args:
        grid: "uniform", "geometric", or one entry per feature, each of these words or increasing edges.
        bounds: (low, high), for features without edges of their own.
        size: p.
        bins: how many bins a feature has (where no edges are given).
        resolution: r, a number or one per feature; None for ``FINEST`` × the largest bound.
        name: of the bounds, for messages.

    Returns:
        One array per feature.

    Raises:
        InvalidInput: if an argument is malformed.
    """
    count = _validate.positive_int(bins=bins)
    if count > 1_000_000:
        raise InvalidInput(f"bins must not exceed a million, got {count}: noise grows with their number")
    entries = _entries(grid, size)
    if all(not isinstance(entry, str) for entry in entries):
        return [_given(j, entry) for j, entry in enumerate(entries)]
    low, high = bounds_of(name, bounds, size)
    r = _resolutions(resolution, np.maximum(np.abs(low), np.abs(high)))
    return [
        _spread(entry, low[j], high[j], count, r[j]) if isinstance(entry, str) else _given(j, entry)
        for j, entry in enumerate(entries)
    ]


def _entries(grid: object, size: int) -> list[object]:
    if isinstance(grid, str):
        return [_validate.one_of(("uniform", "geometric"), grid=grid)] * size
    if not isinstance(grid, Sequence | np.ndarray) or len(grid) != size:
        raise InvalidInput(f"grid must be 'uniform', 'geometric', or a list with one entry per feature ({size})")
    for entry in grid:
        if isinstance(entry, str):
            _validate.one_of(("uniform", "geometric"), grid=entry)
    return list(grid)


def _given(j: int, entry: object) -> Array:
    edges = _validate.real_array(f"grid[{j}]", entry)
    if edges.ndim != 1 or len(edges) < 2 or not np.isfinite(edges).all() or not (np.diff(edges) > 0).all():
        raise InvalidInput(f"grid[{j}] must hold at least two finite edges, strictly increasing")
    return edges


def _resolutions(resolution: object, largest: Array) -> Array:
    p = len(largest)
    if resolution is None:
        return np.maximum(FINEST * largest, 1e-290)
    r = _validate.nonnegative_array("resolution", resolution)
    if r.shape not in ((), (p,)) or (r == 0).any():
        raise InvalidInput(f"resolution must be positive: one number, or one per feature ({p})")
    return np.broadcast_to(r, (p,))


def _spread(kind: str, low: float, high: float, bins: int, r: float) -> Array:
    if kind == "uniform":
        edges = np.linspace(low, high, bins + 1)
    else:
        with np.errstate(over="ignore"):
            first, last = (float(np.sign(x) * np.log1p(min(abs(x) / r, 1e300))) for x in (low, high))
        t = np.linspace(first, last, bins + 1)
        edges = np.clip(np.sign(t) * r * np.expm1(np.abs(t)), low, high)
        edges[0], edges[-1] = low, high
    return np.unique(edges)  # bounds so close that floats run out leave fewer bins
