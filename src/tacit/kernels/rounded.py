"""Uniform words to rounded normal numbers, wherever float64 decides them beyond doubt (docs/exact_sampler.md).

Compiled without any fast-math flag. The proof does not need that of ``contract`` (every product that a subtraction or
the next step relies on is exact, and a fused operation rounds once instead of twice); it does need the order of
additions as written, so ``reassoc`` must stay off.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numba.cpython.unsafe import numbers
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["CELL_BITS", "COLUMNS", "DEGREE", "OCTAVES", "SLACK", "round_decided"]

OCTAVES: Final = 44
"""Octaves of v that have cells; below 2⁻⁴⁴ nothing is decided here."""
CELL_BITS: Final = 6
"""Each octave has 2⁶ cells."""
DEGREE: Final = 8
"""Of the polynomial of a cell."""
COLUMNS: Final = DEGREE + 3
"""A row of the table: the head of w at the cell's right end, its tail, the coefficients of t to t⁸, the margin E."""
SLACK: Final = 2.0**-50
"""The part of a margin that does not grow with the scale."""

_leading_zeros: Any = numbers.leading_zeros
_HEAD: Final = -(1 << 27)  # a mask that keeps the upper 26 bits of a significand
_UNBOUNDED: Final = 1 << 62
_MASK: Final = np.uint64((1 << CELL_BITS) - 1)


@jit
def round_decided(
    words: NDArray[np.uint64],
    scale: NDArray[np.float64],
    cells: NDArray[np.float64],
    out: NDArray[np.int64],
    start: int,
) -> tuple[int, int, int]:
    """Write ±⌊S·w(v) + ½⌋ from ``start`` on, up to the first word that float64 does not decide.

    The lowest bit of a word is the sign (1: plus), the others are V: v ∈ (V, V + 1)·2⁻⁶³, and w(v) is the absolute
    value that a standard normal number exceeds with probability v.

    Args:
        words: uniform, 64 bits.
        scale: S, one number for all words or one for each, in (0, 2³⁶].
        cells: the table, (OCTAVES·2^CELL_BITS, COLUMNS).
        out: one number for each word.
        start: the first word to look at.

    Returns:
        (i, low, high): the first undecided word with low ≤ ⌊S·w(v) + ½⌋ ≤ high, high = 2⁶² where there is no
        cell; i = words.size if all were decided.
    """
    step = 0 if scale.size == 1 else 1
    for i in range(start, words.size):
        V = words[i] >> np.uint64(1)
        octave = np.int64(_leading_zeros(V)) - 1
        if octave >= OCTAVES:
            return i, 0, _UNBOUNDED
        x = V << np.uint64(octave + 1)  # the leading one is bit 63, the cell's number follows
        row = cells[(octave << CELL_BITS) + np.int64((x >> np.uint64(63 - CELL_BITS)) & _MASK)]
        t = np.float64(np.int64(~(x << np.uint64(1 + CELL_BITS)) >> np.uint64(11))) * 2.0**-53  # exact: 53 bits
        r = row[9]
        for k in range(8, 0, -1):
            r = row[k] + t * r
        S = scale[i * step]
        head = np.int64(np.float64(S).view(np.int64) & _HEAD).view(np.float64)
        a = head * row[0]  # exact: 26 by 26 bits
        whole = np.int64(a)
        y = (((a - np.float64(whole)) + 0.5) + (S - head) * row[0]) + S * r
        units = np.int64(y)
        fraction, margin = y - np.float64(units), S * row[10] + SLACK
        if not (margin < fraction < 1.0 - margin):
            return i, int(whole + np.int64(np.floor(y - margin))), int(whole + np.int64(np.floor(y + margin)))
        magnitude = whole + units
        out[i] = magnitude if words[i] & np.uint64(1) else -magnitude
    return words.size, 0, 0
