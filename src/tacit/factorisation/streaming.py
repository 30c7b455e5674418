"""Rows of C⁻¹Z one after the other, from a few earlier rows: x_t = (z_t − Σ_{i≥1} C[t, t−i]·x_{t−i})/C[t, t].

``init`` makes a state, ``next_row`` advances it. Rows are drawn in slices that stay in the cache, so that one pass over
the earlier rows is all that is added to the cost of drawing.

The earlier rows are **as secret as the data**: with them and a release the clean sum is known.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from tacit import _validate
from tacit.errors import BudgetExhausted, InvalidInput
from tacit.kernels.banded import combine

__all__ = ["StreamState", "init", "next_row"]

Array = NDArray[np.float64]
Rows = NDArray[Any]  # float32 or float64
_SLICE = 4096


@dataclass(eq=False)
class StreamState:
    """Where a stream of correlated noise stands; advanced in place.

    Attributes:
        bands: C by columns, (T, b) or (1, b) for a Toeplitz matrix without an end.
        ring: the last max(b − 1, 1) rows.
        step: the next row.
    """

    bands: Array
    ring: Rows = field(repr=False)  # never printed: earlier rows of noise are secret
    step: int = 0

    def coefficients(self) -> Array:
        """Of the next row: 1/C[t, t], then −C[t, t−i]/C[t, t] for the earlier rows that exist."""
        t, b = self.step, self.bands.shape[1]
        lags = np.arange(min(b, t + 1))
        row = self.bands[0, lags] if len(self.bands) == 1 else self.bands[t - lags, lags]
        out = -row / row[0]
        out[0] = 1.0 / row[0]
        return np.asarray(out)


def init(bands: Array, size: int, dtype: DTypeLike = np.float64) -> StreamState:
    """A stream before its first row.

    Args:
        bands: C by columns, (T, b), or (1, b) for a Toeplitz matrix.
        size: how many numbers a row has.
        dtype: float32 or float64.

    Returns:
        Its state.

    Raises:
        InvalidInput: if the diagonal is not positive, or the type is another.
    """
    C = _validate.real_array("bands", bands)
    if C.ndim != 2 or C.size == 0 or not np.isfinite(C).all() or (C[:, 0] <= 0).any():
        raise InvalidInput("bands must be a finite (T, b) array with a positive first column")
    if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
        raise InvalidInput(f"dtype must be float32 or float64, got {np.dtype(dtype)}")
    n = _validate.positive_int(size=size)
    return StreamState(C, np.zeros((max(C.shape[1] - 1, 1), n), dtype))


def next_row(state: StreamState, rng: np.random.Generator) -> Rows:
    """The next row of C⁻¹Z, Z standard normal from ``rng``.

    Args:
        state: advanced by one row.
        rng: draws one row of Z.

    Returns:
        A read-only view, valid until the row is overwritten b − 1 rows later: copy it to keep it.

    Raises:
        BudgetExhausted: if C has no further row.
    """
    if len(state.bands) > 1 and state.step >= len(state.bands):
        raise BudgetExhausted(f"C has {len(state.bands)} rows: make a longer strategy")
    ring = state.ring
    slots, size = ring.shape
    coefficients = state.coefficients().astype(ring.dtype)
    target = state.step % slots
    newest = (state.step - 1) % slots
    z = np.empty(min(_SLICE, size), ring.dtype)
    for start in range(0, size, _SLICE):
        part = z[: min(_SLICE, size - start)]
        rng.standard_normal(out=part, dtype=ring.dtype.type)
        combine(ring, coefficients, newest, target, part, start)
    state.step += 1
    row: Rows = ring[target]
    row.flags.writeable = False
    return row
