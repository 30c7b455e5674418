"""Rows of C⁻¹Z one after the other, from a few earlier rows.

- banded: x_t = (z_t − Σ_{i≥1} C[t, t−i]·x_{t−i})/C[t, t], from the b − 1 rows before;
- buffered: x_t = z_t − Σ_l ω_l s_l, then s_l ← θ_l s_l + x_t.

Rows are made in slices that stay in the cache, so that one pass over the earlier rows is all that is added to the cost
of drawing. What is kept is **as secret as the data**: with it and a release the clean sum is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from tacit import _validate
from tacit.errors import BudgetExhausted, InvalidInput
from tacit.kernels.banded import combine
from tacit.noise.blt import BufferedToeplitz
from tacit.noise.strategies import Strategy, checked_bands

__all__ = ["StreamState", "StreamingNoise"]

Array = NDArray[np.float64]
Rows = NDArray[Any]  # float32 or float64
_SLICE = 4096


@dataclass(eq=False)
class StreamState:
    """Where a stream of correlated noise stands; advanced in place.

    Attributes:
        rows: what later rows are made from, (slots, size); **as secret as the data**, never printed.
        step: the next row. It may be set back by one, to make the last row again.
        reached: one more than the last row that was begun; ``step`` if missing.
    """

    rows: Rows = field(repr=False)
    step: int = 0
    reached: int = -1

    def __post_init__(self) -> None:
        self.reached = max(self.reached, self.step)


class StreamingNoise:
    """Rows of C⁻¹Z, as many numbers in memory as C has bands (or twice its buffers) per coordinate.

    Formal guarantee: row t is row t of C⁻¹Z for the rows z_0, …, z_t that were given, up to rounding. Row t overwrites
    nothing that row t itself is made from, so a row that was interrupted can be made again with the same z_t.

    Assumptions: every z_t is standard normal, drawn once, and kept secret; a row made again uses the same z_t.

    Args:
        strategy: a ``Strategy``, a ``BufferedToeplitz``, or C by columns: (T, b), or (1, b) for a Toeplitz matrix
            without an end.

    >>> noise = StreamingNoise([[1.0, 0.5]])
    >>> state = noise.init(2)
    >>> [noise.next(state, z).tolist() for z in np.ones((3, 2))]
    [[1.0, 1.0], [0.5, 0.5], [0.75, 0.75]]
    >>> state
    StreamState(step=3, reached=3)
    """

    def __init__(self, strategy: Strategy | BufferedToeplitz | ArrayLike) -> None:
        self._buffered = strategy if isinstance(strategy, BufferedToeplitz) else None
        self._bands = np.ones((1, 1)) if isinstance(strategy, BufferedToeplitz) else _bands(strategy)
        endless = self._buffered is not None or (not isinstance(strategy, Strategy) and len(self._bands) == 1)
        self._steps = None if endless else len(self._bands)
        self._slots = self._bands.shape[1] if self._buffered is None else 2 * len(self._buffered.scale) + 1

    @property
    def steps(self) -> int | None:
        """How many rows there are; None without an end."""
        return self._steps

    @property
    def slots(self) -> int:
        """How many rows a state keeps."""
        return self._slots

    def __repr__(self) -> str:
        return f"StreamingNoise(steps={self._steps}, slots={self._slots})"

    def init(self, size: int, dtype: DTypeLike = np.float64) -> StreamState:
        """A stream before its first row.

        Args:
            size: how many numbers a row has.
            dtype: float32 or float64.

        Returns:
            Its state.

        Raises:
            InvalidInput: if the type is another.
        """
        if np.dtype(dtype) not in (np.dtype(np.float32), np.dtype(np.float64)):
            raise InvalidInput(f"dtype must be float32 or float64, got {np.dtype(dtype)}")
        return StreamState(np.zeros((self._slots, _validate.positive_int(size=size)), dtype))

    def next(self, state: StreamState, draws: np.random.Generator | Rows) -> Rows:
        """The next row of C⁻¹Z.

        Args:
            state: advanced by one row; unless that is interrupted: then ``next`` begins the same row again.
            draws: a generator that draws z_t, or z_t itself (left as it is).

        Returns:
            A read-only view that a later row overwrites (after b rows; buffered: the next one): copy it to keep it.

        Raises:
            BudgetExhausted: if C has no further row.
            InvalidInput: if the state was set back by more than one row, or does not fit C, or the row does not fit it.
        """
        t = state.step
        if self._steps is not None and t >= self._steps:
            raise BudgetExhausted(f"C has {self._steps} rows: make a longer strategy")
        if len(state.rows) != self._slots:
            raise InvalidInput(f"the state keeps {len(state.rows)} rows, C needs {self._slots}: use this stream's init")
        if not max(0, state.reached - 1) <= t <= state.reached:
            raise InvalidInput(f"the state has begun {state.reached} rows, not row {t}: set step back by one at most")
        slices = _slices(draws, state.rows)
        state.reached = t + 1
        make = self._banded_row if self._buffered is None else self._buffered_row
        row = make(t, state.rows, slices)
        state.step = t + 1
        row.flags.writeable = False
        return row

    def coefficients(self, t: int) -> Array:
        """1/C[t, t], then −C[t, t−i]/C[t, t] for the earlier rows that exist."""
        lags = np.arange(min(self._bands.shape[1], t + 1))
        row = self._bands[0, lags] if self._steps is None else self._bands[t - lags, lags]
        out = -row / row[0]
        out[0] = 1.0 / row[0]
        return np.asarray(out)

    def _banded_row(self, t: int, ring: Rows, slices: Iterator[tuple[int, Rows]]) -> Rows:
        coefficients = self.coefficients(t).astype(ring.dtype)
        target, newest = t % self._slots, (t - 1) % self._slots
        for start, z in slices:
            combine(ring, coefficients, newest, target, z, start)
        return np.asarray(ring[target])

    def _buffered_row(self, t: int, rows: Rows, slices: Iterator[tuple[int, Rows]]) -> Rows:
        """Two generations of buffers in turns, then the row itself."""
        assert self._buffered is not None
        d = len(self._buffered.scale)
        scale, decay = self._buffered.scale.astype(rows.dtype), self._buffered.decay.astype(rows.dtype)[:, None]
        old, new = (rows[:d], rows[d : 2 * d])[:: 1 if t % 2 == 0 else -1]
        for start, z in slices:
            part = slice(start, start + len(z))
            z -= scale @ old[:, part]
            np.multiply(old[:, part], decay, out=new[:, part])
            new[:, part] += z
            rows[-1, part] = z
        return np.asarray(rows[-1])


def _bands(strategy: Strategy | ArrayLike) -> Array:
    """C by columns; (1, b) stays what it is."""
    if isinstance(strategy, Strategy):
        return strategy.bands
    C = checked_bands(strategy)
    return C if len(C) == 1 else Strategy(C).bands


def _slices(draws: np.random.Generator | Rows, rows: Rows) -> Iterator[tuple[int, Rows]]:
    """(first column, a slice of z_t that may be overwritten), from left to right."""
    size, dtype = rows.shape[1], rows.dtype
    if isinstance(draws, np.random.Generator):
        return _drawn(draws, size, dtype)
    given = np.asarray(draws)
    if given.shape != (size,) or given.dtype.kind != "f":
        raise InvalidInput(f"draws must be a Generator or {size} floats, got shape {given.shape} of {given.dtype}")
    return _copied(given, dtype)


def _drawn(rng: np.random.Generator, size: int, dtype: np.dtype[Any]) -> Iterator[tuple[int, Rows]]:
    z = np.empty(min(_SLICE, size), dtype)
    for start in range(0, size, _SLICE):
        part = z[: min(_SLICE, size - start)]
        rng.standard_normal(out=part, dtype=dtype.type)
        yield start, part


def _copied(given: Rows, dtype: np.dtype[Any]) -> Iterator[tuple[int, Rows]]:
    z = np.empty(min(_SLICE, len(given)), dtype)
    for start in range(0, len(given), _SLICE):
        part = z[: min(_SLICE, len(given) - start)]
        part[:] = given[start : start + _SLICE]
        yield start, part
