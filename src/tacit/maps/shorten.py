"""Rows within a norm: what a model's sums need of its features before anything else is done with them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels.rows import row_squares
from tacit.maps.rows import Range, RowMap

__all__ = ["SHRINK", "Shorten", "confined"]

ROUNDING = 2.0**-32
"""More than the relative error of a norm in float64."""
SHRINK = 1 - 2.0**-16
"""Long rows are made this much shorter than the norm, so that rounding to float32 cannot make them longer."""


def confined(rows: NDArray[Any], norm: float) -> NDArray[Any]:
    """Rows within ``norm``: longer ones scaled down, those that are not finite replaced by zeros.

    Done before anything else, so that no product can overflow for some weights and not for others: a contribution that
    vanished for some weights only would not be a gradient. (``maps.lengths.shortened`` is more exact, and slower.)

    Args:
        rows: (m, p), float32 or float64; left as they are.
        norm: the bound.

    Returns:
        (m, p), in the same type; the very same array if nothing had to be changed.
    """
    odd = ~(np.sqrt(row_squares(rows)) <= norm * (1 - ROUNDING))  # also those whose squares overflowed, and NaN
    if not odd.any():
        return rows
    out = np.array(rows)
    wide = np.array(rows[odd], np.float64)
    wide[~np.isfinite(wide).all(axis=1)] = 0
    top = np.maximum(np.abs(wide).max(axis=1, initial=0.0, keepdims=True), 1e-300)
    wide /= top
    length = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    out[odd] = wide * np.minimum(top, norm * SHRINK / np.maximum(length, 1e-300))
    return out


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
            return confined(rows, self.bound)

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
