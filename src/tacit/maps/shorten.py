"""Rows within a norm: what a model's sums need of its features before anything else is done with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels.rows import shortened
from tacit.maps.rows import Range, RowMap

__all__ = ["Shorten"]


@dataclass(frozen=True)
class Shorten(RowMap):
    """x ↦ (x, constant) in float32, scaled down to a norm where it is longer; zeros where it is not finite.

    Attributes:
        bound: the norm.
        columns: of x.
        constant: the value of one more column, the same for all records, or None for no such column.
    """

    by_rows = True
    bound: float
    columns: int
    constant: float | None = None

    def __call__(self, X: Any) -> NDArray[Any]:
        """A new array, unless X is in float32 already and short enough, and no column is added."""
        with np.errstate(all="ignore"):  # what float32 cannot hold becomes infinite, and then zero
            rows = np.ascontiguousarray(X, np.float32)
            if self.constant is not None:
                rows = np.concatenate([rows, np.full((len(rows), 1), self.constant, np.float32)], axis=1)
            return shortened(rows, self.bound)

    def range(self, before: Range | None) -> Range:
        """The norm, whatever the input."""
        ends = np.full(self.columns + (self.constant is not None), self.bound)
        return Range(-ends, ends, self.bound)

    @classmethod
    def example(cls, rng: np.random.Generator) -> tuple[Shorten, Any]:
        """Long and short rows, some of them not finite."""
        X = rng.normal(size=(60, 4)) * 10.0 ** rng.integers(-3, 40, size=(60, 1))
        X[3, 1] = np.inf
        return cls(1.5, 4, 0.3 if rng.integers(2) else None), X
