"""One separable penalty, of which the usual ones are special cases.

    ψ(w) = Σ_j  λ₁ⱼ |w_j| + λ₂ⱼ/2 · w_j²   on the box  low_j ≤ w_j ≤ high_j,   ∞ outside.

In one dimension the prox of a convex function restricted to an interval is the unrestricted prox, projected onto the
interval; so one formula serves ridge, lasso, elastic net, boxes and non-negativity, in numpy and in the kernels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.errors import InvalidInput

__all__ = ["Penalty"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Penalty:
    """λ₁‖w‖₁ + λ₂/2‖w‖² on a box; each entry may differ per coordinate.

    Attributes:
        l1: λ₁.
        l2: λ₂.
        low: the lower end of the box.
        high: the upper end.
    """

    l1: Array
    l2: Array
    low: Array
    high: Array

    @classmethod
    def of(
        cls,
        size: int,
        *,
        l1: ArrayLike = 0.0,
        l2: ArrayLike = 0.0,
        low: ArrayLike = -np.inf,
        high: ArrayLike = np.inf,
    ) -> Penalty:
        """From numbers or arrays.

        Args:
            size: how many coordinates.
            l1: λ₁, not negative.
            l2: λ₂, not negative.
            low: the lower end of the box (−∞ for none).
            high: the upper end (∞ for none).

        Returns:
            The penalty, with one entry per coordinate.

        Raises:
            InvalidInput: if a weight is negative or infinite, or the box is empty.
        """
        parts = {
            "l1": _validate.nonnegative_array("l1", l1),
            "l2": _validate.nonnegative_array("l2", l2),
            "low": _validate.real_array("low", low),
            "high": _validate.real_array("high", high),
        }
        try:
            full = {name: np.broadcast_to(part, (size,)).astype(np.float64) for name, part in parts.items()}
        except ValueError:
            raise InvalidInput(f"a penalty needs one number, or one per coordinate ({size})") from None
        if not (full["low"] <= full["high"]).all():
            raise InvalidInput("the box of the penalty is empty: low must be a number that does not exceed high")
        return cls(**full)

    @property
    def size(self) -> int:
        """How many coordinates."""
        return len(self.l1)

    @property
    def smooth(self) -> bool:
        """Whether it is differentiable: no ℓ1 part and no box."""
        return not (self.l1.any() or np.isfinite(self.low).any() or np.isfinite(self.high).any())

    def value(self, w: Array) -> float:
        """ψ(w) of a point in the box."""
        return float(self.l1 @ np.abs(w) + 0.5 * self.l2 @ (w * w))

    def prox(self, v: Array, step: ArrayLike) -> Array:
        """argmin_w ½(w − v)² + step·ψ(w), coordinate by coordinate."""
        s = np.asarray(step, np.float64)
        soft = np.sign(v) * np.maximum(np.abs(v) - s * self.l1, 0.0)
        return np.clip(soft / (1 + s * self.l2), self.low, self.high)

    def rescaled(self, scale: ArrayLike, weight: float = 1.0) -> Penalty:
        """The same penalty, times ``weight``, as a function of v where w = scale·v (scale > 0)."""
        s = np.broadcast_to(np.asarray(scale, np.float64), self.l1.shape)
        return Penalty(weight * self.l1 * s, weight * self.l2 * s * s, self.low / s, self.high / s)

    def with_free_intercept(self) -> Penalty:
        """One coordinate more, in front, that nothing restricts."""
        ends = ((self.l1, 0.0), (self.l2, 0.0), (self.low, -np.inf), (self.high, np.inf))
        return Penalty(*(np.concatenate([[free], part]) for part, free in ends))
