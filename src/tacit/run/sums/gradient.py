"""Gradients of a linear model's loss, clipped per record."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.problem import Design, Huber, Logistic, Loss, SmoothedHinge, Squared
from tacit.run.clipped_sum import ClippedSum, Mask, register

__all__ = ["LinearGradient"]

Array = NDArray[np.float64]

FARTHEST = 1e9
"""Coefficients beyond this are taken as this: a public box."""
CONVEX = (Squared, Huber, Logistic, SmoothedHinge)
"""Losses whose convexity we vouch for."""


@register("linear-gradient")
class LinearGradient(ClippedSum):
    """Σ φ′(z_i)·x_i with each term scaled down to norm C, z = Xv − offset.

    Clipping a scalar-output gradient only clips the slope φ′(z_i) to ±C/‖x_i‖. That is the slope of another convex
    function of z_i (φ continued linearly), no more curved than φ; so a clipped contribution is still the gradient of a
    convex function with smoothness sup φ″·R², R the largest ‖x_i‖, and hidden-state theorems apply.

    Args:
        design: X; rows longer than ``row_norm`` are scaled down to it.
        offset: (records,).
        loss: φ.
        bound: C.
        row_norm: R, public; ∞ for none (then nothing is promised about smoothness).
    """

    def __init__(
        self, design: Design, offset: Array, loss: Loss, bound: float, *, row_norm: float = float("inf")
    ) -> None:
        self._design, self._offset, self._loss = design, offset, loss
        self.records, self.size = design.shape
        if len(offset) != self.records:
            raise InvalidInput(f"{self.records} records but {len(offset)} offsets: they must match")
        norms = design.row_norms()
        self._shrink = np.ones_like(norms)
        if np.isfinite(row_norm):
            R = _validate.positive(row_norm=row_norm)
            self._shrink = R / np.maximum(norms, R)
            self.smoothness = loss.curvature * R * R if type(loss) in CONVEX else None
        self._norms = norms * self._shrink
        self.bound = _validate.positive(bound=bound)

    def _slopes(self, state: Array) -> Array:
        """Clipped slopes, (records, replicas): what multiplies x_i. A slope that is not finite counts as nothing."""
        # A run that diverges must not turn rounding, which may depend on how many records there are, into a signal.
        state = np.clip(np.nan_to_num(state, nan=0.0), -FARTHEST, FARTHEST)
        with np.errstate(all="ignore"):
            z = self._design.dot(state.T) * self._shrink[:, None] - self._offset[:, None]
            slope = self._loss.derivative(z)
            cap = (self.bound / self._norms)[:, None]
            slope = np.clip(slope, -cap, cap) * self._shrink[:, None]
        return np.where(np.isfinite(slope), slope, 0.0)

    def contributions(self, state: Array, index: NDArray[np.intp]) -> Array:
        """φ′(z_i)·x_i, already clipped."""
        X = self._design.dense()[index]
        return self._slopes(state)[index].T[:, :, None] * X[None]

    def total(self, state: Array, batch: Mask) -> Array:
        """Two matrix products."""
        slopes = self._slopes(np.asarray(state, np.float64))
        if not batch.all():
            slopes = slopes * batch.T
        return self._design.transposed_dot(slopes).T

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[LinearGradient, LinearGradient, Array]:
        """Any loss; rows inside and beyond the norm; the neighbour is often the mirror image."""
        loss = [Squared(), Huber(0.7), Logistic(), SmoothedHinge(0.5)][rng.integers(4)]
        X = rng.normal(size=(records, 3)) * rng.choice([0.3, 8.0], size=(records, 1))
        y = rng.normal(size=records) * 20
        X2, y2 = X.copy(), y.copy()
        mirrored = rng.random() < 0.5
        X2[0] = X[0] * (-1 if mirrored and loss.margin else 1) if mirrored else rng.normal(size=3) * 8
        y2[0] = -y[0] if mirrored else 20 * rng.normal()
        C = 0.6 if rng.random() < 0.5 else 3.0
        state = rng.normal(size=(1, 3)) * rng.choice([0.0, 1.0])
        pair = [cls(Design(a), b * (not loss.margin), loss, C, row_norm=2.0) for a, b in ((X, y), (X2, y2))]
        return pair[0], pair[1], state
