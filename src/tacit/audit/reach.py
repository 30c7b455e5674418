"""Which numbers a release can be at all: what noise of finite precision reaches from a known sum.

A sum that gets noise in floating point is fl(q + w). Where q and w nearly cancel the addition is exact, so the release
is a multiple of the last bit of w, and which multiples there are depends on q: a release on one data set may be one
that no noise value gives on its neighbour, however much noise there is (Mironov 2012, "On significance of the least
significant bits for differential privacy").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["multiples", "reaches"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
NEAR = (0, -1, 1, -2, 2, -3, 3)
"""Floats around a first guess. Of three floats in a row at least one is fl(σz), so seven decide."""


def reaches(x: ArrayLike, q: ArrayLike, sigma: float | None = None) -> Mask:
    """Whether some noise value turns the sum q into the release x: fl(q + w) = x for a float64 w.

    If any w does, then one of the floats next to fl(x − q) does: it is at least as close to x − q.

    Args:
        x: releases.
        q: clean sums, of a shape that broadcasts.
        sigma: if given, w must be fl(σz) for a float64 z, which is how noise is usually made.

    Returns:
        The mask, of the shape of x; False where x is not finite.

    >>> bool(reaches(0.1, 0.0)), bool(reaches(0.1, -2.0)), bool(reaches(0.125, -2.0))
    (True, False, True)
    """
    x, q = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(q, np.float64))
    found = np.zeros(x.shape, bool)
    with np.errstate(all="ignore"):
        for w in _around(x - q):
            hit = (q + w == x) & np.isfinite(x)
            found |= hit if sigma is None else hit & _is_product(w, sigma)
    return found


def multiples(x: ArrayLike, unit: ArrayLike) -> Mask:
    """Whether x is fl(k·unit) for an integer k: what an exact release is, on any data.

    Args:
        x: releases.
        unit: g, or g·D_j for each entry.

    Returns:
        The mask, of the shape of x.

    >>> bool(multiples(0.75, 0.25)), bool(multiples(0.7, 0.25))
    (True, False)
    """
    x, unit = np.broadcast_arrays(np.asarray(x, np.float64), np.asarray(unit, np.float64))
    with np.errstate(all="ignore"):
        k = np.rint(x / unit)
        found = np.zeros(x.shape, bool)
        for step in (0, -1, 1):
            found |= (k + step) * unit == x
    return np.asarray(found & np.isfinite(x))


def _around(guess: Array) -> list[Array]:
    # The floats next to a guess, nearest first.
    out = []
    for steps in NEAR:
        w = guess
        for _ in range(abs(steps)):
            w = np.nextafter(w, np.copysign(np.inf, steps))
        out.append(w)
    return out


def _is_product(w: Array, sigma: float) -> Mask:
    found = np.zeros(w.shape, bool)
    for z in _around(w / sigma):
        found |= sigma * z == w
    return found
