"""A draw from exp(κ·k_j)/Σ exp(κ·k_i), k integers, with exact probabilities given uniform random bits.

The law of argmax_j κ·k_j + Gumbel, without a logarithm of a logarithm whose low-order bits would tell scores apart.
With U uniform on [0, 1) and F_j = Σ_{i≤j} w_i, w_i = e^{−κ(max k − k_i)}, the draw is the smallest j with U·F_p < F_j.
Float64 bounds every F_j from both sides, by products and sums whose errors are counted; where that does not decide,
integers of growing length do, from more bits of U. Nothing is approximated, so nothing is added to δ.

*Errors of float64*, u = 2⁻⁵³. x_i = κ(max k − k_i) is off by 2u relative to it: its conversion and the product.
Beyond ``FAR`` the weight lies between 0 and 2⁻⁹², as e^−64 < 2⁻⁹². Up to it, y = x/64 ≤ 1 is exact, and e^y by
Horner's scheme of degree 22 errs by 47u: positive terms, 44 operations, coefficients off by u, a remainder below u.
Six squarings make that (64·47 + 63)u, the inverse adds u, and the error of x at most 64·2u·(1 + u): together less
than 2⁻⁴¹. Partial sums of p positive terms add p·u at most.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput

__all__ = ["exact_softmax"]

Array = NDArray[np.float64]
Integers = NDArray[np.int64]
FAR = 64.0
"""x beyond which a weight counts as unknown, between 0 and 2⁻⁹²."""
_FAR_WEIGHT = 2.0**-92
_WEIGHT_ERROR = 2.0**-41
_COEFFICIENTS = [1 / math.factorial(i) for i in range(22, -1, -1)]
_MAX_SPREAD = 1 << 62
_GUARD = 96


def exact_softmax(rng: np.random.Generator, scores: Integers, scale: float) -> int:
    """Draw j with probability exp(κ·k_j)/Σ_i exp(κ·k_i).

    Formal guarantee: if the words of ``rng`` are uniform and independent, these probabilities are exact.

    Args:
        rng: the source of random words, one for most draws.
        scores: k, integers of absolute value at most 2⁶¹.
        scale: κ ≥ 0, finite: a float, and so a fraction.

    Returns:
        j.

    Raises:
        InvalidInput: if there are no scores, or they are no such integers.

    >>> exact_softmax(np.random.default_rng(0), np.array([3, 1, 4, 1, 5]), 0.5)
    4
    """
    kappa = _validate.nonnegative(scale=scale)
    k = np.asarray(scores)
    if k.ndim != 1 or not k.size or k.dtype != np.int64 or int(k.max()) - int(k.min()) > _MAX_SPREAD:
        raise InvalidInput("scores must be a vector of int64 that differ by at most 2**62")
    below = k.max() - k
    u = _word(rng)
    found = _decided(below, kappa, u)
    bits = 64
    while found is None:
        u, bits = u << 64 | _word(rng), bits + 64
        found = _settled(below, kappa, u, bits)
    return found


def _word(rng: np.random.Generator) -> int:
    return int(rng.integers(2**64 - 1, dtype=np.uint64, endpoint=True))


def _weights(x: Array) -> Array:
    """e^−x for 0 ≤ x ≤ 64, off by less than 2⁻⁴¹ relative to it; no library function is trusted."""
    y = x / 64
    out = np.full_like(y, _COEFFICIENTS[0])
    for c in _COEFFICIENTS[1:]:
        out = out * y + c
    for _ in range(6):
        out = out * out
    return np.asarray(1 / out)


def _decided(below: Integers, kappa: float, u: int) -> int | None:
    """The draw for U in [u, u + 1)·2⁻⁶⁴ where float64 decides it, else None."""
    x = below.astype(np.float64) * kappa
    near = x <= FAR
    sums = np.cumsum(np.where(near, _weights(np.where(near, x, 0.0)), 0.0))
    far, error = _FAR_WEIGHT * below.size, 2 * (_WEIGHT_ERROR + below.size * 2.0**-53)
    total, first = float(sums[-1]), (u >> 11) * 2.0**-53  # exact
    least, most = first * total * (1 - error), (first + 2.0**-53) * (total + far) * (1 + error)
    j = int(np.searchsorted(sums, first * total, side="right"))
    if j >= below.size or float(sums[j]) * (1 - error) <= most:
        return None
    return j if j == 0 or float(sums[j - 1]) * (1 + error) + far < least else None


def _settled(below: Integers, kappa: float, u: int, bits: int) -> int | None:
    """The draw for U in [u, u + 1)·2^−bits where integers of bits + guard places decide it, else None."""
    low, high = _bounded_weights(below, kappa, bits + _GUARD + below.size.bit_length())
    least, most = u * sum(low), (u + 1) * sum(high)
    under = over = 0
    for j, (a, b) in enumerate(zip(low, high, strict=True)):
        under, over = under + a, over + b
        if most <= under << bits:  # U·F_p < F_j, and not less than F_{j−1}
            return j
        if least < over << bits:
            return None
    return None


def _bounded_weights(below: Integers, kappa: float, places: int) -> tuple[list[int], list[int]]:
    """Integers around e^−κd·2^places: products of e^−κ2^i over the bits i of d."""
    numerator, denominator = kappa.as_integer_ratio()
    powers = [_exponential(numerator << i, denominator, places) for i in range(int(below.max()).bit_length())]
    known: dict[int, tuple[int, int]] = {}
    for d in map(int, np.unique(below)):
        low = high = 1 << places
        for i, (a, b) in enumerate(powers):
            if d >> i & 1:
                low, high = low * a >> places, (high * b >> places) + 1
        known[d] = low, high
    found = [known[int(d)] for d in below]
    return [a for a, _ in found], [b for _, b in found]


def _exponential(numerator: int, denominator: int, places: int) -> tuple[int, int]:
    """Integers around e^−x·2^places, x = numerator/denominator ≥ 0: its series at x/2^s ≤ ½, squared s times."""
    if numerator > places * denominator:
        return 0, 1
    halvings = max((2 * numerator // denominator).bit_length(), 0)
    inner, denominator = places + halvings + _GUARD, denominator << halvings
    low = high = below = above = 1 << inner
    n = 0
    while above > 1:
        n += 1
        below, above = below * numerator // (denominator * n), -(-above * numerator // (denominator * n))
        low, high = (low - above, high - below) if n & 1 else (low + below, high + above)
    low, high = low - 2, high + 2  # the terms that follow are halved at least, each below one unit
    for _ in range(halvings):
        low, high = low * low >> inner, (high * high >> inner) + 1
    return max(low >> (inner - places), 0), (high >> (inner - places)) + 1
