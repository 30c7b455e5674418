"""Noisy proximal gradient descent: on all records, or on Poisson batches (proximal DP-SGD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.mechanism import Mechanism, Plan, Poisson, Schedule
from tacit.problem import Records, Task
from tacit.run.sums import LinearGradient
from tacit.solvers.base import Budget, LinearSolver, Prepared, Session, Solution

__all__ = ["NoisyGradientDescent", "ProximalSGD", "default_clip"]

Array = NDArray[np.float64]


def default_clip(task: Task) -> float:
    """The largest gradient that the bounds allow, or that of a unit slope on a typical record."""
    slope = min(task.loss.slope, task.target_reach or 1.0)
    return float(slope * task.row_norm)


def _whitening(task: Task, diagonal: bool) -> Array:
    """√M_j, M_j from public bounds, so that steps of one size suit every coordinate; 1 without preconditioning."""
    reach = np.where(task.reach > 0, task.reach, 1.0)
    return reach if diagonal else np.ones(task.size)


@dataclass(frozen=True)
class NoisyGradientDescent(LinearSolver):
    """w ← prox(w − η(Σ clipped gradients + noise)/n), T times, on all records.

    Formal guarantee: exact Gaussian composition; every iterate may be shown.

    Assumptions: gradients are clipped (enforced); step, clip and T are public.

    Attributes:
        steps: T; by default a rule in n, μ and p.
        clip: C; by default what the bounds allow.
        step: η in units of 1/(sup φ″·R²).
        diagonal: scale coordinates by their public bounds first.
    """

    name: ClassVar[str] = "gradient"
    steps: int | None = None
    clip: float | None = None
    step: float = 1.0
    diagonal: bool = True

    def prepare(self, task: Task, budget: Budget) -> Prepared:
        """Fix every number."""
        x = task.records * budget.mu / task.size
        steps = int(np.clip(round(10 * x ** (1 / 3)), 10, 300)) if self.steps is None else self.steps
        plan = budget.shares({"noisy gradient descent": (1.0, _validate.positive_int(steps=steps))})
        _validate.positive(step=self.step)
        return _Prepared(task, plan, self.clip, self.step, self.diagonal, task.records)


@dataclass(frozen=True)
class ProximalSGD(LinearSolver):
    """The same on Poisson batches: each record is read with probability b/n at each step.

    Formal guarantee: Poisson-sampled Gaussians by privacy loss distributions; every iterate may be shown.

    Assumptions: batches are Poisson and fresh (enforced); the step divides by the public expected batch size.

    Attributes:
        batch_size: b, expected; by default √n·8.
        passes: how often the data is read.
        clip: C; by default what the bounds allow.
        step: η in units of 1/(sup φ″·R²).
        diagonal: scale coordinates by their public bounds first.
    """

    name: ClassVar[str] = "sgd"
    batch_size: int | None = None
    passes: float = 20.0
    clip: float | None = None
    step: float = 1.0
    diagonal: bool = True

    def prepare(self, task: Task, budget: Budget) -> Prepared:
        """Calibrate the noise to the budget.

        Args:
            task: what to minimise.
            budget: what to spend.

        Returns:
            The prepared solver.

        Raises:
            InvalidInput: if a batch would be larger than the data.
        """
        n = task.records
        b = min(n, round(8 * np.sqrt(n))) if self.batch_size is None else self.batch_size
        if _validate.positive_int(batch_size=b) > n:
            raise InvalidInput(f"batch_size must not exceed the {n} records, got {b}")
        steps = max(round(_validate.positive(passes=self.passes) * n / b), 1)
        _validate.positive(step=self.step)

        def make(noise: float) -> Mechanism:
            return Mechanism(
                adjacency=budget.adjacency,
                ratio=Schedule.constant(budget.adjacency.sum_factor / noise, steps),
                steps=steps,
                sampling=Poisson(b / n),
                unit=budget.unit,
                label="proximal DP-SGD",
            )

        return _Prepared(task, budget.calibrated(make), self.clip, self.step, self.diagonal, b)


class _Prepared(Prepared):
    def __init__(self, task: Task, plan: Plan, clip: float | None, step: float, diagonal: bool, batch: int) -> None:
        self.plan, self._task, self._batch = plan, task, batch
        self._scale = _whitening(task, diagonal)
        norm = task.row_norm if not diagonal else float(np.sqrt(min(task.row_nonzeros or task.size, task.size)))
        natural = task.loss.slope * norm
        wanted = natural if np.isfinite(natural) else default_clip(task)
        self._clip = wanted if clip is None else min(_validate.positive(clip=clip), natural)
        self._eta = step / (task.loss.curvature * norm**2)

    def solve(self, records: Records, session: Session) -> Solution:
        task, scale = self._task, self._scale
        design = records.design if (scale == 1).all() else records.design.scaled(1 / scale)
        penalty = task.penalty.rescaled(1 / scale)
        total = LinearGradient(design, records.offset, task.loss, self._clip)
        channel = session.channel(0)
        v = penalty.prox(np.zeros(task.size), 0.0)
        steps = channel.mechanism.steps
        for k in range(steps):
            g = channel.release(total, v[None])[0] / self._batch
            v = penalty.prox(v - self._eta * g, self._eta)
            if session.progress is not None:
                session.progress(k + 1, steps)
        return Solution(v / scale)
