"""Public random numbers: a function of a seed, the same on every platform and in every version of numpy."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tacit.errors import InvalidInput
from tacit.kernels.exact import grid_product

__all__ = ["GRID", "gaussians", "projected", "public_seed"]

GRID = 2.0**-20
"""Gaussians are rounded to this grid: exact in float32, too, and blind to the last bits of a platform's logarithm."""


def public_seed(**named: object) -> int:
    """A seed of a public map: a non-negative integer (None would make a map that nobody can repeat).

    Args:
        **named: one name with its value.

    Returns:
        The seed.

    Raises:
        InvalidInput: if it is anything else.
    """
    ((name, value),) = named.items()
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or not 0 <= int(value) < 2**63:
        raise InvalidInput(f"{name} must be a non-negative integer, got {value!r}: the map is public and repeatable")
    return int(value)


def gaussians(seed: int, purpose: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Standard Gaussians Φ⁻¹(u), u from 52 bits of Philox, rounded to multiples of 2⁻²⁰.

    numpy guarantees the bits of its bit generators for a seed, not the numbers that ``Generator`` makes of them, so
    these are made here.

    Args:
        seed: public.
        purpose: keeps maps with the same seed apart.
        shape: of the result.

    Returns:
        The numbers, each exact in float32.

    >>> gaussians(0, 1, (3,)).tolist() == gaussians(0, 1, (3,)).tolist()
    True
    >>> bool((gaussians(0, 1, (3,)) == gaussians(0, 2, (3,))).any())
    False
    """
    bits = np.random.Philox(np.random.SeedSequence([seed, purpose])).random_raw(int(np.prod(shape)))
    u = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    return np.asarray(np.rint(ndtri(u) / GRID) * GRID).reshape(shape)


def projected(x: NDArray[Any], directions: NDArray[np.float64]) -> NDArray[Any]:
    """Records along directions that were drawn here: each row from its own record alone, to the bit.

    A product of the library's rounds a row by its place among the others, and whatever jumps behind it (a gate) would
    then tell one record about another.

    Args:
        x: (n, p), finite.
        directions: (q, p), multiples of 2⁻²⁰.

    Returns:
        (n, q), of the type of x.
    """
    return grid_product(x, directions, GRID, bits=20 if x.dtype == np.float32 else 40).astype(x.dtype)
