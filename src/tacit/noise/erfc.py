"""Comparison of a number with erfc by integers alone: every error is counted (docs/exact_sampler.md)."""

from __future__ import annotations

import functools

__all__ = ["compare_erfc"]

_GUARD = 32


def compare_erfc(V: int, bits: int, numerator: int, denominator: int) -> int:
    """Compare v ∈ (V, V + 1)·2^−bits with erfc(x), x² = numerator/denominator.

    Formal guarantee: 1 is returned only if v ≤ erfc(x) for all those v, −1 only if v ≥ erfc(x) for all of them, 0 if
    the bits do not tell.

    erf(x) = (2x/√π)·Σ(−1)ⁿx²ⁿ/(n!(2n+1)), so v ≤ erfc(x) means 4x²Σ² ≤ π(1 − v)²; x² enters as the fraction that it is.

    Args:
        V: the bits of v that are known, as an integer.
        bits: their number.
        numerator: of x², positive.
        denominator: of x², positive.

    Returns:
        1, −1 or 0.
    """
    growth = 1443 * numerator // (1000 * denominator) + 1  # exp(x²) ≤ 2^growth, as 1/log 2 < 1.443
    places = -(-(bits + growth + _GUARD) // 64) * 64
    total, error = _series(numerator, denominator, places, growth)
    pi_low, pi_high = _pi(places)
    # Both sides times denominator·2^(2·bits + 3·places).
    unit = numerator << (2 * bits + places + 2)
    if unit * (total + error) ** 2 <= denominator * pi_low * (((1 << bits) - V - 1) << places) ** 2:
        return 1
    below = max(total - error, 0)
    if unit * below**2 >= denominator * pi_high * (((1 << bits) - V) << places) ** 2:
        return -1
    return 0


def _series(numerator: int, denominator: int, places: int, growth: int) -> tuple[int, int]:
    """Σ(−1)ⁿx²ⁿ/(n!(2n+1))·2^places, and how far off it may be."""
    square = (numerator << places) // denominator
    term = total = 1 << places
    n = 0
    while term or n * denominator < numerator:
        n += 1
        term = (term * square >> places) // n
        total += -(term // (2 * n + 1)) if n & 1 else term // (2 * n + 1)
    return total, (n + 1) << (growth + 1)


@functools.lru_cache(32)
def _pi(places: int) -> tuple[int, int]:
    """Integers around π·2^places, by π = 16·arctan(1/5) − 4·arctan(1/239) (Machin) with 32 more places."""
    pi = 16 * _arctan_inverse(5, places + _GUARD) - 4 * _arctan_inverse(239, places + _GUARD)
    return (pi >> _GUARD) - 1, (pi >> _GUARD) + 2


def _arctan_inverse(m: int, places: int) -> int:
    """arctan(1/m)·2^places by its series, off by less than 3·places."""
    power = total = (1 << places) // m
    n = 0
    while power:
        n += 1
        power //= m * m
        total += -(power // (2 * n + 1)) if n & 1 else power // (2 * n + 1)
    return total
