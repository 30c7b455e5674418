"""Noisy proximal gradient descent, on all records or on Poisson batches (proximal DP-SGD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.maps import Standardise
from tacit.mechanism import Mechanism, Plan, Poisson, Schedule
from tacit.problem import Problem
from tacit.release import Session
from tacit.release.queries import LossGradient
from tacit.solvers.base import Budget, Solution, Solver

__all__ = ["NoisyGradientDescent", "ProximalSGD", "default_clip"]

Array = NDArray[np.float64]


def default_clip(problem: Problem) -> float:
    """The largest gradient that the bounds allow, or that of a unit slope on a typical record."""
    return float(min(problem.loss.slope, problem.facts.target or 1.0) * problem.facts.row_norm)


def _descend(
    problem: Problem, session: Session, divisor: int, *, clip: float | None, step: float, diagonal: bool
) -> Array:
    """W ← prox(w − η·(noisy sum)/divisor), as often as certified; coordinates scaled by their public bounds first."""
    facts, loss = problem.facts, problem.loss
    scale = np.where(facts.reach > 0, facts.reach, 1.0) if diagonal else np.ones(facts.size)
    norm = float(np.sqrt(min(facts.row_nonzeros or facts.size, facts.size))) if diagonal else facts.row_norm
    natural = loss.slope * norm
    wanted = natural if np.isfinite(natural) else default_clip(problem)
    query = LossGradient(loss, wanted if clip is None else min(_validate.positive(clip=clip), natural))
    eta = step / (loss.curvature * norm**2)
    if not (scale == 1).all():
        session = session.through(Standardise(np.zeros(facts.size), scale))
    penalty = problem.penalty.rescaled(1 / scale)
    v = penalty.prox(np.zeros(facts.size), 0.0)
    steps = session.steps_left()
    for k in range(steps):
        v = penalty.prox(v - eta * (session.release(query, v) / divisor), eta)
        session.tick(k + 1, steps)
    return np.asarray(v / scale)


@described("NoisyGradientDescent")
@dataclass(frozen=True)
class NoisyGradientDescent(Solver):
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

    @classmethod
    def of(cls, passes: float | None, clip: float | None) -> NoisyGradientDescent:
        """T from the number of passes."""
        return cls(None if passes is None else max(round(passes), 1), clip)

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """Fix every number."""
        _validate.positive(step=self.step)
        x = problem.facts.n * budget.mu / problem.facts.size
        steps = int(np.clip(round(10 * x ** (1 / 3)), 10, 300)) if self.steps is None else self.steps
        return budget.shares({"noisy gradient descent": (1.0, _validate.positive_int(steps=steps))})

    def solve(self, problem: Problem, budget: Budget, session: Session) -> Solution:
        """Run it."""
        settings = {"clip": self.clip, "step": self.step, "diagonal": self.diagonal}
        return Solution(_descend(problem, session, problem.facts.n, **settings))  # type: ignore[arg-type]


@described("ProximalSGD")
@dataclass(frozen=True)
class ProximalSGD(Solver):
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

    @classmethod
    def of(cls, passes: float | None, clip: float | None) -> ProximalSGD:
        """Passes as they are."""
        return cls(clip=clip) if passes is None else cls(passes=passes, clip=clip)

    def _batch(self, n: int) -> int:
        b = min(n, round(8 * np.sqrt(n))) if self.batch_size is None else self.batch_size
        if _validate.positive_int(batch_size=b) > n:
            raise InvalidInput(f"batch_size must not exceed the {n} records, got {b}")
        return int(b)

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """Calibrate the noise to the budget."""
        n, b = problem.facts.n, self._batch(problem.facts.n)
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
                arithmetic=budget.arithmetic,
            )

        return budget.calibrated(make)

    def solve(self, problem: Problem, budget: Budget, session: Session) -> Solution:
        """Run it."""
        settings = {"clip": self.clip, "step": self.step, "diagonal": self.diagonal}
        return Solution(_descend(problem, session, self._batch(problem.facts.n), **settings))  # type: ignore[arg-type]
