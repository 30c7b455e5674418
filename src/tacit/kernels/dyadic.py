"""Numbers on dyadic grids: whole multiples of a power of two, rounded in the direction that keeps a bound."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["COIN_BITS", "coin_rate", "dyadic_unit", "exponent", "toward_zero"]

Array = NDArray[np.float64]
COIN_BITS = 53
"""Bits of a coin: ``Generator.random`` returns j/2⁵³, j the upper 53 bits of one word."""


def exponent(value: float) -> int:
    """The smallest e with value ≤ 2^e."""
    mantissa, e = math.frexp(value)
    return e - (mantissa == 0.5)


def toward_zero(values: Array, bits: int) -> Array:
    """Values rounded toward zero to multiples of 2^(e−bits), 2^e the first power of two that none of them exceeds.

    No entry grows, so no norm does.

    Args:
        values: finite, not all zero.
        bits: of the largest entry.

    Returns:
        A new array of the same shape.
    """
    shift = bits - exponent(float(np.abs(values).max()))
    return np.asarray(np.ldexp(np.trunc(np.ldexp(values, shift)), -shift))


def dyadic_unit(values: NDArray[Any], bits: int) -> float | None:
    """The largest power of two of which all values are whole multiples.

    Args:
        values: finite, not all zero.
        bits: how many the largest multiple may have.

    Returns:
        The unit; None if the multiples would be longer than ``bits``.
    """
    shift = bits - exponent(float(np.abs(values).max()))
    multiples = np.ldexp(values, shift)
    if (multiples != np.rint(multiples)).any():
        return None
    ones = int(np.bitwise_or.reduce(np.abs(multiples).astype(np.int64), axis=None))
    return math.ldexp(1.0, (ones & -ones).bit_length() - 1 - shift)


def coin_rate(probability: float) -> float:
    """⌊q·2⁵³⌋/2⁵³: the probability of ``random() < rate`` for this rate, to the last bit, and at most q."""
    return math.ldexp(math.floor(math.ldexp(probability, COIN_BITS)), -COIN_BITS)
