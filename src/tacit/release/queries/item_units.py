"""Powers of two behind the integers of a factorisation."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tacit.errors import MechanismMismatch
from tacit.kernels.lattice import PRODUCT_BITS
from tacit.release.query import MAX_SCALE, exponent

__all__ = ["ItemUnits"]

HEADROOM = 10
"""log₂ of the longest clipped factors, in units of C: they are longer only of people whose residual is below 0.1 %."""
FEWEST = 6
"""Bits of a product, at least."""


@dataclass(frozen=True)
class ItemUnits:
    """Units of a person's row m, of clipped factors v, of items H and of P = vwᵀ; row·factor = items·outer = g.

    v is at most 2^a long, a = min(0, ⌈log₂ C⌉ + 10), and m, w and the entries of H are at most 1: with L = a − log₂ g ≤
    40 bits for products vm, sums over 2¹³ people are exact in float64. H has so few bits that Hm and HHᵀ are, too.

    Attributes:
        row: of m.
        factor: of v.
        items: of H.
        outer: of vwᵀ.
        longest: 2^a.
    """

    row: float
    factor: float
    items: float
    outer: float
    longest: float

    @property
    def unit(self) -> float:
        """The unit g of a sum."""
        return self.row * self.factor

    @property
    def row_bits(self) -> int:
        """Of m."""
        return -exponent(self.row)

    @staticmethod
    def finest(sigma: float, bound: float) -> float:
        """The smallest g for noise of deviation σ: σ/g ≤ 2³⁶, and at most 40 bits.

        Args:
            sigma: of the noise, over the smallest scale.
            bound: C.

        Returns:
            g.

        Raises:
            MechanismMismatch: if nothing of a product would be left.
        """
        a = _reach(bound)
        bits = min(PRODUCT_BITS, a - exponent(sigma) + MAX_SCALE)
        if bits < FEWEST:
            raise MechanismMismatch(f"noise of deviation {sigma:g} hides any sum over these people: raise epsilon")
        return 2.0 ** (a - bits)

    @classmethod
    def of(cls, unit: float, bound: float, items: int) -> ItemUnits:
        """All units, from g, C and the number of items."""
        a = _reach(bound)
        bits, width = a - exponent(unit), math.ceil(math.log2(max(items, 2)))
        r = bits // 2
        t = max(min(r, (53 - width) // 2, 53 - r - width), 1)
        return cls(2.0**-r, 2.0 ** (a - bits + r), 2.0**-t, 2.0 ** (a - bits + t), 2.0**a)


def _reach(bound: float) -> int:
    return min(0, exponent(bound) + HEADROOM)
