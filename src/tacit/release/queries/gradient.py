"""Gradients of a linear model's loss, clipped per record."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.kernels.slopes import capped_slopes
from tacit.problem import Huber, Logistic, Loss, SmoothedHinge, Squared
from tacit.records import Design, Rows
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


def _bounded(state: Array) -> Array:
    """Coefficients in a public box.

    A run that diverges must not turn rounding, which may depend on how many records there are, into a signal.

    Args:
        state: any numbers.

    Returns:
        As many; 0 for NaN.
    """
    return np.where(np.isnan(state), 0.0, np.minimum(np.maximum(state, -MAX_COEFFICIENT), MAX_COEFFICIENT))


@lru_cache(maxsize=16)
def _same_bounded(state: bytes, shape: tuple[int, ...]) -> Array:
    """``_bounded``, worked out once for all parts of a table."""
    return _bounded(np.frombuffer(state).reshape(shape))


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
        state = _bounded(state)
        design, norms = self._design(rows)
        with np.errstate(all="ignore"):
            R = self.row_norm
            shrink = (R / np.maximum(norms, R) if np.isfinite(R) else np.ones_like(norms))[:, None]
            slope = zero_where_it_fails(self.loss.derivative, design.dot(state.T) * shrink, rows.y[:, None])
            cap = self.bound / (norms[:, None] * shrink)
            slope = np.clip(slope, -cap, cap) * shrink
        return np.where(np.isfinite(slope), slope, 0.0)

    def _integer_sums(self, rows: Rows, state: Array, members: Members, grid: Grid) -> NDArray[np.int64]:
        """Σ t·u over records scale·u, with integers t ≈ φ′·scale/g: 0 of a record that a replica does not read."""
        made, R = rows.integers, self.row_norm
        scale = made.scales if np.isinf(R) else made.scales * (R / np.maximum(made.norms * made.scales, R))
        everybody = np.empty(0) if reads_everybody(members) else None
        out = np.empty(state.shape, np.int64)
        for k, v in enumerate(state):
            own = np.asarray(members[k], np.float64) if everybody is None else everybody
            limits = (scale, made.norms, own, grid.unit, self.bound / grid.unit)
            if type(self.loss) is Logistic:
                out[k] = made.logistic_sums(v, rows.y, *limits)
                continue
            slope = zero_where_it_fails(self.loss.derivative, made.dot(v) * scale, rows.y)
            out[k] = made.sums(capped_slopes(slope, *limits))
        return out

    def contributions(self, rows: Rows, state: Array) -> Array:
        """φ′·x, already clipped."""
        return self._slopes(rows, np.asarray(state, np.float64)).T[:, :, None] * self._design(rows)[0].dense()[None]

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """Two matrix products; on a grid one pass over rows of integers."""
        if grid is not None:
            with np.errstate(all="ignore"):
                state = np.ascontiguousarray(state, np.float64)
                return self._integer_sums(rows, _same_bounded(state.tobytes(), state.shape), members, grid)
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
