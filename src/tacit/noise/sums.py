"""Sums behind correlated noise in exact arithmetic: r_t = Σ_i K[t, t−i]·q_{t−i} + R_t, then forward substitution.

C = g_c·K for a matrix K of integers, q_t is a sum of integers in units of g, and R_t = ⌊σZ_t/(g·g_c)⌉. So g·g_c·r_t is
row t of C·G + Z rounded to a grid, G the rows g·q_t and Z Gaussian: a function of row t of the release that was
certified, for streams whose sums depend on earlier releases, too. What is made of r_0, …, r_t afterwards is
post-processing, in floating point:

    ĝ_t = (g·g_c·r_t − Σ_{i≥1} C[t, t−i]·ĝ_{t−i})/C[t, t],

which is g·q_t plus noise of the law of row t of C⁻¹Z, up to rounding. Integers wrap around at 2⁶⁴: (q + R) mod 2⁶⁴ is a
function of q + R. The last b sums and outputs are kept; the sums are **as secret as the data**.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput
from tacit.kernels.banded import integer_row
from tacit.kernels.dyadic import dyadic_unit
from tacit.noise.streaming import StreamingNoise, StreamState

__all__ = ["CorrelatedSums", "SumState"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(eq=False)
class SumState:
    """The last b sums and outputs of a stream; advanced in place.

    Attributes:
        sums: integers, (b, size); **as secret as the data**, never printed.
        outputs: of the forward substitution, (b, size).
    """

    sums: Integers = field(repr=False)
    outputs: StreamState


class CorrelatedSums:
    """Rows of K·Q in integers, and the forward substitution of what was released of them.

    A row that was begun and not released is made again by asking for it again: neither call overwrites what its own
    row is made from.

    Args:
        bands: C by columns: (T, b), or (1, b) for a Toeplitz matrix without an end; multiples of a power of two.

    Attributes:
        unit: g_c.

    Raises:
        InvalidInput: if the bands are not on a grid.

    >>> stream = CorrelatedSums(np.array([[1.0, 0.5]]))
    >>> state = stream.init(1)
    >>> rows = [stream.mixed(state, t, np.array([q])) for t, q in enumerate((4, 4, 5))]
    >>> [row.tolist() for row in rows]
    [[8], [12], [14]]
    >>> [stream.solved(state, t, row * stream.unit).tolist() for t, row in enumerate(rows)]
    [[4.0], [4.0], [5.0]]
    """

    def __init__(self, bands: Array) -> None:
        unit = dyadic_unit(bands, 53)
        if unit is None:
            raise InvalidInput("bands must be multiples of one power of two: round them, e.g. by Strategy.rounded()")
        self.unit = unit
        self._integers = (bands / unit).astype(np.int64)
        self._solution = StreamingNoise(bands)

    def init(self, size: int) -> SumState:
        """A stream of sums of ``size`` numbers, before its first row."""
        outputs = self._solution.init(size)
        return SumState(np.zeros((self._integers.shape[1], size), np.int64), outputs)

    def mixed(self, state: SumState, t: int, sums: Integers) -> Integers:
        """Row t of K·Q.

        Args:
            state: keeps the sums.
            t: the row.
            sums: q_t.

        Returns:
            Σ_i K[t, t−i]·q_{t−i}, a new array; as secret as the sums.
        """
        lags = np.arange(min(self._integers.shape[1], t + 1))
        row = self._integers[0, lags] if len(self._integers) == 1 else self._integers[t - lags, lags]
        return integer_row(state.sums, row, t, sums)

    def solved(self, state: SumState, t: int, released: Array) -> Array:
        """Row t of the forward substitution: post-processing of what was released.

        Args:
            state: keeps the outputs.
            t: the row.
            released: g·g_c·r_t.

        Returns:
            ĝ_t, a new array.
        """
        state.outputs.step = t
        return np.array(self._solution.next(state.outputs, released))
