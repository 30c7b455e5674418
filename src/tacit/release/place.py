"""Sums that stay where they are computed: noise is added to them in place, and nothing of their size is copied."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

__all__ = ["Place", "RowStore"]

Array = NDArray[np.float64]


class RowStore(Protocol):
    """Earlier rows of correlated noise, beside the sums that they hide: **as secret as the data**."""

    def array(self) -> NDArray[Any]:
        """A copy, (slots, size), for a checkpoint."""


class Place(Protocol):
    """One sum in the memory of some device, which learns nothing of how it is hidden."""

    @property
    def size(self) -> int:
        """How many numbers it has."""

    def feed(self, digest: Any) -> None:
        """Pass the bytes of the sum to ``digest.update``."""

    def store(self, slots: int, rows: NDArray[Any] | None) -> RowStore:
        """Room for earlier rows of noise: those of a checkpoint, or zeros."""

    def add_noise(
        self, sigma: float, key: bytes, rows: RowStore | None, target: int, coefficients: NDArray[np.float64]
    ) -> None:
        """Add σ times a row of noise.

        Args:
            sigma: σ.
            key: 32 secret bytes, of this row only.
            rows: earlier rows; None for independent noise.
            target: the slot of ``rows`` that the new row takes.
            coefficients: of fresh normal noise, then of the row before, the row before that, and so on.
        """
