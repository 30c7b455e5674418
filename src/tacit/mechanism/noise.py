"""How the noise of different releases is related."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.kernels.dyadic import dyadic_unit, toward_zero
from tacit.mechanism.frozen import FrozenArray

__all__ = ["CorrelatedNoise", "Independent", "Noise"]

Array = NDArray[np.float64]
MAX_BITS = 24
"""Bits of the largest entry of a strategy in exact arithmetic: each of them takes one from the grid of the sums."""


class Noise:
    """How noise is drawn. A subclass is a frozen dataclass with ``@described``; theorems list those they cover."""

    def check_exact(self) -> None:
        """Refuse parameters with which a mechanism cannot run in exact arithmetic."""


@described("Independent")
@dataclass(frozen=True)
class Independent(Noise):
    """Every release has fresh Gaussian noise."""

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (cls(),)


@described("Factorised")
@dataclass(frozen=True)
class CorrelatedNoise(Noise):
    """Noise rows of C⁻¹Z, with Z independent Gaussian and C lower-triangular, public.

    Equivalently, C·(sums) is released with independent noise, so a record's effect is a combination of
    columns of C.

    Attributes:
        bands: shape (T, b) with ``bands[j, i] = C[j+i, j]`` (column j below its diagonal), or (1, b) for a
            Toeplitz matrix. Entries beyond the last row do not count.
    """

    bands: FrozenArray

    def __post_init__(self) -> None:
        values = self.bands.values
        if values.ndim != 2 or values.size == 0:
            raise InvalidInput(f"bands must have shape (steps, b) or (1, b), got {values.shape}")
        if (values[:, 0] <= 0).any():
            raise InvalidInput("the diagonal of C must be positive: C⁻¹ is applied row by row")

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (cls(FrozenArray([[1.0, 0.5]])), cls(FrozenArray([[1.0, 0.5], [2.0, 0.0]])))

    @property
    def unit(self) -> float | None:
        """g_c, the largest power of two with C = g_c·K for a matrix K of integers; None if K needs over 24 bits."""
        return dyadic_unit(self.bands.values, MAX_BITS)

    def rounded(self, bits: int = 14) -> CorrelatedNoise:
        """C on a grid, which exact arithmetic needs: its entries become multiples of g_c = 2^(e − bits).

        2^e is the first power of two that no entry exceeds. Entries are rounded toward zero, so no column gets longer;
        14 bits raise the root error of a strategy of 32 bands by less than 0.02 %, 10 bits by 0.3 %.

        Args:
            bits: of the largest entry, at most 24.

        Returns:
            The strategy that runs, and that must be certified.

        Raises:
            InvalidInput: if an entry of the diagonal would become zero.
        """
        if _validate.positive_int(bits=bits) > MAX_BITS:
            raise InvalidInput(f"bits must not exceed {MAX_BITS}, got {bits}: 14 is usual")
        values = toward_zero(self.bands.values, bits)
        if (values[:, 0] == 0).any():
            raise InvalidInput(f"{bits} bits round an entry of C's diagonal to zero: use more bits")
        return CorrelatedNoise(FrozenArray(values, name="bands"))

    def check_exact(self) -> None:
        """Bands on a grid.

        Raises:
            InvalidInput: if they are not.
        """
        if self.unit is None:
            raise InvalidInput(
                "exact arithmetic multiplies sums by whole numbers, and these bands are not multiples of one power of "
                f"two with at most {MAX_BITS} bits: certify noise.rounded(), or use arithmetic='float'"
            )

    @classmethod
    def toeplitz(cls, coefficients: ArrayLike) -> CorrelatedNoise:
        """C[i, j] = coefficients[i − j]."""
        return cls(FrozenArray(np.atleast_2d(np.asarray(coefficients, float)), name="coefficients"))

    @classmethod
    def dense(cls, C: ArrayLike) -> CorrelatedNoise:
        """From a full lower-triangular matrix (small T).

        Args:
            C: square and lower-triangular.

        Returns:
            The same matrix, by columns, without its zero outer bands.

        Raises:
            InvalidInput: if C is not square or not lower-triangular.
        """
        M = np.asarray(C, float)
        if M.ndim != 2 or M.shape[0] != M.shape[1] or np.triu(M, 1).any():
            raise InvalidInput("C must be square and lower-triangular")
        T = len(M)
        bands = np.zeros((T, T))
        for j in range(T):
            bands[j, : T - j] = M[j:, j]
        used = np.flatnonzero(bands.any(axis=0))
        return cls(FrozenArray(bands[:, : used[-1] + 1 if used.size else 1], name="C"))

    @property
    def n_bands(self) -> int:
        """b: how many rows a column may touch."""
        return int(self.bands.values.shape[1])

    def columns(self, steps: int) -> Array:
        """Bands for ``steps`` steps, entries beyond the last row set to zero.

        Args:
            steps: the number of rows and columns of C.

        Returns:
            An array of shape (steps, b).

        Raises:
            InvalidInput: if the matrix was given for another number of steps.
        """
        values = self.bands.values
        if values.shape[0] not in (1, steps):
            raise InvalidInput(f"C has {values.shape[0]} columns for {steps} steps")
        out = np.array(np.broadcast_to(values, (steps, values.shape[1])))
        row = np.arange(steps)[:, None] + np.arange(values.shape[1])[None, :]
        out[row >= steps] = 0.0
        return out

    def to_dense(self, steps: int) -> Array:
        """C as a full matrix (small T)."""
        out = np.zeros((steps, steps))
        for j, column in enumerate(self.columns(steps)):
            rows = min(len(column), steps - j)
            out[j : j + rows, j] = column[:rows]
        return out
