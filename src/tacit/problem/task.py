"""A task: all that a solver may know before the budget is reserved; and the records it will then reach."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tacit.problem.design import Design
from tacit.problem.losses import Loss
from tacit.problem.penalties import Penalty

__all__ = ["Records", "Task"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Task:
    """Minimise (1/n) Σ φ(z_i) + ψ(v), z_i = u_iᵀv − t_i (or the margin), in mapped units; public throughout.

    Attributes:
        loss: φ.
        penalty: ψ, one entry per coordinate of v.
        records: n.
        low: the smallest value of each feature.
        high: the largest; features outside were clipped.
        intercept: whether coordinate 0 is a constant 1.
        target_reach: the largest |t|; 0 for margin losses.
        row_nonzeros: ω, the largest number of non-zero features of a record (enforced where stated).
    """

    loss: Loss
    penalty: Penalty
    records: int
    low: Array
    high: Array
    intercept: bool = True
    target_reach: float = 1.0
    row_nonzeros: int | None = None

    @property
    def size(self) -> int:
        """The number of coordinates, the intercept included."""
        return len(self.low)

    @property
    def reach(self) -> Array:
        """b_j: the largest |u_j|."""
        return np.maximum(np.abs(self.low), np.abs(self.high))

    @property
    def row_norm(self) -> float:
        """The largest ‖u‖."""
        squares = np.sort(np.square(self.reach))[::-1]
        return float(np.sqrt(squares[: self.row_nonzeros].sum()))


@dataclass(eq=False)
class Records:
    """The private part: mapped features (intercept column included), and offsets or labels.

    Attributes:
        features: (n, size).
        offset: t for regression, 0 for margin losses.
        labels: ±1 for margin losses, else None.
    """

    features: Design
    offset: Array
    labels: Array | None = None

    @cached_property
    def design(self) -> Design:
        """Features with labels folded in, so that z = design·v − offset for every loss."""
        return self.features if self.labels is None else self.features.rows_scaled(self.labels)

    def objective(self, task: Task, v: Array) -> float:
        """The mean loss plus penalty at v: **private**, for tests and benchmarks only."""
        return float(task.loss.value(self.design.dot(v) - self.offset).mean()) + task.penalty.value(v)
