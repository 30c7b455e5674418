"""Gradients of a linear model's loss, clipped per record."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.kernels.lattice import capped_integers
from tacit.problem import Huber, Logistic, Loss, SmoothedHinge, Squared
from tacit.records import Design, Integers, Rows
from tacit.release.query import (
    UNIT_ROUNDOFF,
    Example,
    Grid,
    Members,
    Query,
    Sums,
    reads_everybody,
    register,
    zero_where_it_fails,
)

__all__ = ["LossGradient"]

Array = NDArray[np.float64]

MAX_COEFFICIENT = 1e9
"""Coefficients beyond this are taken as this: a public box."""


@register("loss-gradient")
@dataclass(frozen=True, eq=False)
class LossGradient(Query):
    """Σ φ′(xᵀv, y)·x with each term scaled down to norm C; the state is v.

    Clipping the gradient of a loss of one prediction only clips its slope φ′ to ±C/‖x‖. That is the slope of another
    convex function of f (φ continued linearly), no more curved than φ; so a clipped contribution is still the gradient
    of a convex function with smoothness sup φ″·R², R the largest ‖x‖, and hidden-state theorems apply.

    On a grid a record is scale·u with integers u, and contributes t·u, t = φ′·scale rounded to an integer of absolute
    value at most C/(g‖u‖): the norm is measured on what is released, so rounding to the nearest needs no allowance. No
    product t·u_j exceeds C/g ≤ 2³⁹.

    Attributes:
        loss: φ.
        bound: C.
        row_norm: R, public; longer rows are scaled down to it. ∞ for none (then no smoothness is promised).
    """

    loss: Loss
    bound: float
    row_norm: float = float("inf")

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", _validate.positive(bound=self.bound))
        if np.isfinite(self.row_norm):
            object.__setattr__(self, "row_norm", _validate.positive(row_norm=self.row_norm))

    @property
    def smoothness(self) -> float | None:  # type: ignore[override]
        """Sup φ″·R² of a convex loss on rows of bounded norm."""
        if not np.isfinite(self.row_norm) or not self.loss.convex:
            return None
        return self.loss.curvature * self.row_norm**2

    def rounding_error(self, batch: int, size: int, radius: float, terms: int | None = None) -> float | None:
        """b·u·(β·B·(2p + 24) + C·(4p + m + r + 48) + a·R), (r, a) the error of the loss's derivative.

        Of one record, s = min(1, R/‖x‖), x̃ = s·x. *Norm*: off by (p + 8)u relative to it, s by (p + 11)u. *Prediction*:
        x·v by (p + 4)u·‖x‖·B in any order of additions, f = s·x·v by (2p + 16)u·R·B. *Slope*: φ′ by sup φ″ times that,
        u·a, and u·r relative to it; where that is more than the cap C/‖x̃‖ the clip takes it off, so that u·r·C/‖x̃‖ is
        left. The cap is off by (2p + 22)u relative to it. *Contribution*: ‖x̃‖ ≤ R times these, and once more the error
        of s, (p + 12)u·C. *Sum* of m rows, which count b in all: (m + 5)u·Σ‖contribution‖ ≤ (m + 5)u·b·C; terms that
        are 0 add nothing. β = sup φ″·R².

        Returns:
            The bound; None for a loss whose derivative's error is not proven, and without a row norm.
        """
        sizes = min(self.bound, self.row_norm), max(self.bound, self.row_norm)
        if self.loss.derivative_error is None or not 1e-100 <= sizes[0] <= sizes[1] <= 1e100:  # squares keep digits
            return None
        relative, absolute = self.loss.derivative_error
        of_state = self.loss.curvature * self.row_norm**2 * radius * (2 * size + 24)
        rest = self.bound * (4 * size + (terms or batch) + relative + 48) + absolute * self.row_norm
        return batch * UNIT_ROUNDOFF * (of_state + rest)

    def _design(self, rows: Rows) -> tuple[Design, Array]:
        """The features and their norms; rows that leave the range of floats are scaled, or count as nothing."""

        def make() -> tuple[Design, Array]:
            norms = rows.design.row_norms()
            design = rows.design.within_range(norms)
            return design, norms if design is rows.design else design.row_norms()

        return rows.kept("design", make)

    def _slopes(self, rows: Rows, state: Array) -> Array:
        """Clipped slopes, (records, replicas): what multiplies x. A slope that is not finite counts as nothing."""
        # A run that diverges must not turn rounding, which may depend on how many records there are, into a signal.
        state = np.clip(np.nan_to_num(state, nan=0.0), -MAX_COEFFICIENT, MAX_COEFFICIENT)
        design, norms = self._design(rows)
        with np.errstate(all="ignore"):
            R = self.row_norm
            shrink = (R / np.maximum(norms, R) if np.isfinite(R) else np.ones_like(norms))[:, None]
            slope = zero_where_it_fails(self.loss.derivative, design.dot(state.T) * shrink, rows.y[:, None])
            cap = self.bound / (norms[:, None] * shrink)
            slope = np.clip(slope, -cap, cap) * shrink
        return np.where(np.isfinite(slope), slope, 0.0)

    def _integers(self, rows: Rows, state: Array, members: Members, grid: Grid) -> tuple[Integers, list[Array]]:
        """Records as integers, and the integers t of every replica: 0 of a record that it does not read."""
        made = rows.integers
        shrink = (
            self.row_norm / np.maximum(made.norms * made.scales, self.row_norm) if np.isfinite(self.row_norm) else 1.0
        )
        scale = made.scales * shrink
        state = np.clip(np.nan_to_num(state, nan=0.0), -MAX_COEFFICIENT, MAX_COEFFICIENT)
        out, full = [], reads_everybody(members)
        with np.errstate(all="ignore"):
            factors, longest = scale / grid.unit, self.bound / grid.unit / made.norms
            for v, own in zip(state, members, strict=True):
                slope = zero_where_it_fails(self.loss.derivative, made.dot(v) * scale, rows.y)
                both = (factors, longest) if full else (factors * own, longest * own)
                out.append(capped_integers(slope, both[0], np.floor(both[1])))
        return made, out

    def contributions(self, rows: Rows, state: Array) -> Array:
        """φ′·x, already clipped."""
        return self._slopes(rows, np.asarray(state, np.float64)).T[:, :, None] * self._design(rows)[0].dense()[None]

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """Two matrix products."""
        if grid is not None:
            made, t = self._integers(rows, np.asarray(state, np.float64), members, grid)
            return np.stack([made.sums(row) for row in t])
        slopes = self._slopes(rows, np.asarray(state, np.float64))
        if not reads_everybody(members):
            slopes = slopes * members.T
        return self._design(rows)[0].transposed_dot(slopes).T

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Any loss; rows inside and beyond the norm; the neighbour is often the mirror image."""
        loss = [Squared(), Huber(0.7), Logistic(), SmoothedHinge(0.5)][rng.integers(4)]
        X = rng.normal(size=(records, 3)) * rng.choice([0.3, 8.0], size=(records, 1))
        y = rng.choice([-1.0, 1.0], size=records) if loss.labels else rng.normal(size=records) * 20
        X2, y2 = X.copy(), y.copy()
        if rng.random() < 0.5:
            y2[0] = -y[0]
        else:
            X2[0], y2[0] = rng.normal(size=3) * 8, y[0] * (-1 if loss.labels else rng.normal())
        C = 0.6 if rng.random() < 0.5 else 3.0
        state = rng.normal(size=(1, 3)) * rng.choice([0.0, 1.0])
        return Example(cls(loss, C, 2.0), Rows(X, y), Rows(X2, y2), state)
