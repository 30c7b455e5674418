"""A problem: what a solver minimises, and all that it may know of the records beforehand."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.problem.losses import Loss
from tacit.problem.penalties import Penalty

__all__ = ["Facts", "Problem"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Facts:
    """What is public about mapped records.

    Attributes:
        n: how many there are (nominal, or released with noise, where that is secret).
        low: the smallest value of each column; the maps in front enforce it.
        high: the largest value of each column.
        target: the largest |target|; 1 for labels.
        row_nonzeros: the largest number of non-zero entries of a row, if one is enforced.
    """

    n: int
    low: Array
    high: Array
    target: float = 1.0
    row_nonzeros: int | None = None

    @property
    def size(self) -> int:
        """The number of columns, a constant one included."""
        return len(self.low)

    @property
    def reach(self) -> Array:
        """The largest absolute value of each column."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def row_norm(self) -> float:
        """The largest ℓ2 norm of a row."""
        squares = np.sort(np.square(self.reach))[::-1]
        return float(np.sqrt(squares[: self.row_nonzeros].sum()))


@dataclass(frozen=True, eq=False)
class Problem:
    """Minimise (1/n)·Σ φ(u_iᵀv, t_i) + ψ(v) over mapped records (u_i, t_i); public throughout.

    Attributes:
        loss: φ.
        penalty: ψ, of one coefficient per column.
        facts: about the records.
        intercept: whether column 0 is a constant 1.
    """

    loss: Loss
    penalty: Penalty
    facts: Facts
    intercept: bool = True
