"""A constant model from one noisy mean: all that can be learned when budget and records are few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.problem import Logistic, Records, Task
from tacit.run.channel import noise_std
from tacit.run.sums import BoundedValues
from tacit.solvers.base import Budget, LinearSolver, Prepared, Session, Solution

__all__ = ["ConstantModel"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class ConstantModel(LinearSolver):
    """The mean of the target, or the share of a class, and no slopes; without an intercept, zero.

    Formal guarantee: one Gaussian release of a mean of numbers in [0, 1].

    Assumptions: targets are clipped to their bounds (enforced).
    """

    name: ClassVar[str] = "constant"

    def prepare(self, task: Task, budget: Budget) -> Prepared:
        """One release with the whole budget."""
        return _Prepared(task, budget)


class _Prepared(Prepared):
    def __init__(self, task: Task, budget: Budget) -> None:
        self._task, self._x = task, task.records * budget.mu / task.size
        self.plan = budget.shares({"noisy mean": (1.0, 1)})

    def solve(self, records: Records, session: Session) -> Solution:
        task, n = self._task, self._task.records
        y = records.offset if records.labels is None else records.labels
        total = BoundedValues(((y + 1) / 2)[:, None])
        channel = session.channel(0)
        edge = min(0.5, noise_std(channel.mechanism, total, 0) / n)
        share = channel.release(total, np.zeros((1, 1)))[0, 0] / n
        v = task.penalty.prox(np.zeros(task.size), 0.0)
        errors = np.zeros(task.size)
        if task.intercept and records.labels is None:
            v[0], errors[0] = 2 * np.clip(share, 0.0, 1.0) - 1, 2 * edge
        elif task.intercept:
            pi = float(np.clip(share, edge, 1 - edge))
            v[0] = np.log(pi / (1 - pi)) if isinstance(task.loss, Logistic) and 0 < pi < 1 else 2 * pi - 1
            errors[0] = edge / max(pi * (1 - pi), 1e-12)
        note = (
            f"constant model: x = records × μ / coordinates = {self._x:.2g} is below 3, so slopes would be noise; more "
            "records, fewer features or a larger ε help"
        )
        return Solution(v, errors, (note,))
