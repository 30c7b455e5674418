"""Metric descent: private standardisation, a noisy metric, then noisy proximal steps in it. The untuned default."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.problem import Design, Records, Squared, Task
from tacit.run.sums import BoundedValues, GramSum, LinearGradient, MomentSum
from tacit.run.sums.gram import symmetric
from tacit.solvers.base import Budget, LinearSolver, Prepared, Session, Solution, release_once
from tacit.solvers.quadratic import minimise, positive_part

__all__ = ["MetricDescent"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class MetricDescent(LinearSolver):
    """TO BE REPLACED by the researched recipe."""

    name: ClassVar[str] = "metric"
    steps: int | None = None
    clip: float | None = None

    def prepare(self, task: Task, budget: Budget) -> Prepared:
        """Fix every number."""
        return _Prepared(self, task, budget)


class _Prepared(Prepared):
    def __init__(self, solver: MetricDescent, task: Task, budget: Budget) -> None:
        self._task, self._mu = task, budget.mu
        self._factor = budget.adjacency.sum_factor
        x = task.records * budget.mu / task.size
        self._x = x
        squared = not task.loss.margin
        k = 3.0 if squared else 4.5
        self._T = int(np.clip(round(k * x ** (1 / 3)), 2, 100)) if solver.steps is None else solver.steps
        self._clip = None if solver.clip is None else _validate.positive(clip=solver.clip)
        self.plan = budget.shares(
            {
                "moments": (0.08, 1),
                "metric": (0.2, 1),
                "residual scale": (0.02, 1),
                "metric descent": (0.7, self._T),
            }
        )

    def solve(self, records: Records, session: Session) -> Solution:
        task, n, p, x, mu = self._task, self._task.records, self._task.size, self._x, self._mu
        moments = MomentSum(records.features.matrix, task.low, task.high)
        m1, m2 = np.split(release_once(session, 0, moments) / n, 2)
        s1 = moments.diameter / n / (mu * np.sqrt(0.08))
        sd = np.minimum(1.0, np.sqrt(np.maximum(m2 - m1**2, 2 * s1)))
        mean = m1.copy()
        if task.intercept:
            mean[0], sd[0] = 0.0, 1.0
        else:
            mean[:] = 0.0
        X = (records.features.dense() - mean) / sd
        y = records.offset if records.labels is None else records.labels
        m = p + 1
        R = 0.28 * x**0.25 * np.sqrt(m)
        G = symmetric(release_once(session, 1, GramSum(np.column_stack([X, y]), R)), m) / n
        sigma = np.sqrt(2) * R * R / n / (mu * np.sqrt(0.2))
        h = 1.0 if records.labels is None else task.loss.curvature
        A = h * (positive_part(G[:p, :p]) + 0.5 * sigma * np.sqrt(2 * m) * np.eye(p))
        penalty = task.penalty.rescaled(1 / sd)
        rho = (0.3 if records.labels is None else 1.0) * x ** (-4 / 3)
        penalty = type(penalty)(penalty.l1, penalty.l2 + rho * np.diag(A), penalty.low, penalty.high)
        u = minimise(A, G[:p, p] * (1.0 if records.labels is None else 0.5), penalty)
        residual = np.minimum(np.square(X @ u - y), 1.0)[:, None]
        s2 = release_once(session, 2, BoundedValues(residual))[0] / n
        s = float(np.sqrt(np.clip(s2, 0.05, 1.0))) if isinstance(task.loss, Squared) else 1.0
        c = 0.3 * x**0.45 if records.labels is None else min(0.27 * x ** (1 / 3), 3)
        C = c * np.sqrt(p) * s if self._clip is None else self._clip
        values, Q = np.linalg.eigh(A)
        root, inverse = (Q * np.sqrt(values)) @ Q.T, (Q / np.sqrt(values)) @ Q.T
        white = X @ inverse
        if records.labels is not None:
            white *= records.labels[:, None]
        total = LinearGradient(Design(white), records.offset, task.loss, C)
        channel = session.channel(3)
        kept = []
        for _ in range(self._T):
            g = root @ channel.release(total, (root @ u)[None])[0] / n
            u = minimise(A, A @ u - g, penalty, u)
            kept.append(u)
        u = np.mean(kept[int(0.3 * self._T) :], axis=0)
        v = u / sd
        if task.intercept:
            v[0] -= (mean / sd) @ u
        return Solution(v)
