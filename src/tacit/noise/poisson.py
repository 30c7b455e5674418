"""Poisson numbers with exact probabilities, given uniform random bits.

With U uniform on [0, 1), K is the smallest k with U·e^m < S_k = Σ_{j≤k} m^j/j!, so P(K ≤ k) = S_k/e^m. m is a float,
hence a fraction. Integers bound every S_k and e^m from both sides, and U from its first bits; where they do not decide
a comparison, more bits of U are drawn and all bounds are made again, finer. Nothing is approximated: a law at a
distance τ from Poisson's would add τ to the δ of a search, and this one adds nothing.
"""

from __future__ import annotations

import functools

import numpy as np

from tacit import _validate
from tacit.kernels.dyadic import exponent

__all__ = ["exact_poisson"]

_LOG_PART = 5
"""A mean above 2⁵ is drawn in equal parts: their sum has the same law, and e^m stays short."""
_GUARD = 64
"""Bits of the bounds beyond those of U."""


def exact_poisson(rng: np.random.Generator, mean: float) -> int:
    """Draw K ~ Poisson(m): P(K = k) = e^−m·m^k/k!.

    Formal guarantee: if the words of ``rng`` are uniform and independent, these probabilities are exact.

    Args:
        rng: the source of random words, one for most draws.
        mean: m > 0.

    Returns:
        K.

    >>> exact_poisson(np.random.default_rng(0), 10.0)
    11
    """
    m = _validate.positive(mean=mean)
    parts = 1 << max(exponent(m) - _LOG_PART, 0)
    return sum(_part(rng, m / parts) for _ in range(parts))  # a power of two: the quotient is exact


def _part(rng: np.random.Generator, mean: float) -> int:
    u = bits = k = 0
    while True:
        u, bits = u << 64 | int(rng.integers(2**64 - 1, dtype=np.uint64, endpoint=True)), bits + 64
        sums, (low, high) = _bounds(mean, bits + _GUARD)
        for k, (below, above) in enumerate(sums):
            if (u + 1) * high <= below << bits:  # U < (u + 1)/2^bits, so U·e^m < S_k
                return k
            if u * low < above << bits:  # neither: U is too near to the boundary
                break


@functools.lru_cache(maxsize=32)
def _bounds(mean: float, bits: int) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Integers around S_0, S_1, … and around e^m, in units of 2^−bits.

    A term m^j/j! is rounded down in one sequence and up in the other. From j ≥ 2m on terms halve at least, so all that
    follow term j add up to no more than term j.

    Returns:
        Bounds (below, above) of each sum until terms are below one unit, and those of e^m.
    """
    numerator, denominator = mean.as_integer_ratio()
    low = high = below = above = 1 << bits
    sums, j = [(below, above)], 0
    while low > 0 or j < 2 * mean:
        j += 1
        low, high = low * numerator // (denominator * j), -(-high * numerator // (denominator * j))
        below, above = below + low, above + high
        sums.append((below, above))
    return sums, (below, above + high)
