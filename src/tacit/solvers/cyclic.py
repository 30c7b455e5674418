"""Noisy (cyclic) gradient descent whose final model alone is shown: the hidden-state guarantee."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput, NotCovered
from tacit.mechanism import Adjacency, Mechanism, Schedule
from tacit.problem import Penalty, Records, Task
from tacit.run import GradientChain, drive_chain
from tacit.run.sums import LinearGradient
from tacit.run.sums.gradient import CONVEX
from tacit.solvers.base import Budget, LinearSolver, Prepared, Session, Solution

__all__ = ["NoisyCyclicDescent"]

Array = NDArray[np.float64]
CONSTANT_SHARE = 0.5
"""How much of the run keeps the full step before it decays."""


@dataclass(frozen=True)
class NoisyCyclicDescent(LinearSolver):
    """θ ← prox(θ − η_t(noisy batch mean gradient + λθ)) over disjoint batches in a fixed order; the end is released.

    Formal guarantee: the last iterate is μ-GDP by the greatest convex minorant (docs/theorems.md); intermediate
    iterates are not covered and never leave the loop.

    Assumptions: records are scaled to norm R and gradients clipped (enforced), so a step is max(|1−ηλ|, |1−η(β+λ)|)-
    Lipschitz with β = sup φ″·R² (checked); λ is a ridge in every coordinate. An unpenalised intercept makes λ = 0, and
    the guarantee then rests on Ση alone.

    Attributes:
        epochs: how often the data is read.
        batches: k; 1 for all records at each step.
        clip: C; by default what the bounds allow.
        step: η in units of 1/β, at most 2.
        row_norm: R; by default the largest norm that the bounds allow.
    """

    name: ClassVar[str] = "cyclic"
    epochs: int | None = None
    batches: int = 1
    clip: float | None = None
    step: float = 1.0
    row_norm: float | None = None

    def prepare(self, task: Task, budget: Budget) -> Prepared:
        """Derive every constant of the theorem, and calibrate the noise.

        Args:
            task: what to minimise.
            budget: what to spend; its view must be the final model.

        Returns:
            The prepared solver.

        Raises:
            NotCovered: if the loss is not one whose convexity is known, or the relation hides n.
            InvalidInput: if a setting is out of range.
        """
        if budget.view != "final_model":
            raise InvalidInput(
                "solver='cyclic' shows its final model only: set view='final_model', or use another solver"
            )
        if not isinstance(task.loss, CONVEX):
            raise NotCovered(
                f"loss: a final-model guarantee needs a convex loss, and nobody has vouched for {task.loss.name}; use "
                "view='all_iterates'",
                axis="loss",
            )
        if budget.adjacency is Adjacency.ADD_REMOVE:
            raise NotCovered(
                "adjacency: under add-remove the number of records is secret, but the chain divides by it; use "
                "replace-one or zero-out",
                axis="adjacency",
            )
        if not 0 < self.step <= 2:
            raise InvalidInput(f"step must lie in (0, 2] (in units of 1/β), got {self.step!r}")
        return _Prepared(self, task, budget)


def balanced(eta: float, steps: int) -> Array:
    """Full steps first, then a linear decay to 1 % (DESIGN: S nearly linear in W)."""
    k = np.arange(steps)
    flat = int(CONSTANT_SHARE * steps)
    return np.asarray(eta * np.where(k < flat, 1.0, 1 - 0.99 * (k - flat + 1) / max(steps - flat, 1)))


class _Prepared(Prepared):
    def __init__(self, solver: NoisyCyclicDescent, task: Task, budget: Budget) -> None:
        self._task = task
        R = (
            task.row_norm
            if solver.row_norm is None
            else min(_validate.positive(row_norm=solver.row_norm), task.row_norm)
        )
        self._R = max(R, 1e-12)
        natural = task.loss.slope * self._R
        typical = min(task.loss.slope, task.target_reach or 1.0) * self._R
        self._clip = typical if solver.clip is None else min(_validate.positive(clip=solver.clip), natural)
        n, k = task.records, _validate.positive_int(batches=solver.batches)
        if k > n:
            raise InvalidInput(f"batches must not exceed the {n} records, got {k}")
        x = n * budget.mu / task.size
        epochs = int(np.clip(round(20 * x ** (1 / 3)), 20, 400)) if solver.epochs is None else solver.epochs
        eta = solver.step / (task.loss.curvature * self._R**2)
        # The ridge is part of the chain only as far as it is in every coordinate; the rest is a prox.
        shared = float(task.penalty.l2.min())
        rest = Penalty(task.penalty.l1, task.penalty.l2 - shared, task.penalty.low, task.penalty.high)
        schedule = balanced(eta, _validate.positive_int(epochs=epochs) * k)
        self._chain = GradientChain(Schedule(schedule), shared, k, n, penalty=rest)
        probe = _Probe(self._clip, task.loss.curvature * self._R**2, n)

        def make(noise: float) -> Mechanism:
            found = self._chain.mechanism(probe, noise, adjacency=budget.adjacency)
            return dataclasses.replace(found, unit=budget.unit, label="noisy cyclic gradient descent")

        self.plan = budget.calibrated(make)

    def solve(self, records: Records, session: Session) -> Solution:
        task = self._task
        total = LinearGradient(records.design, records.offset, task.loss, self._clip, row_norm=self._R)
        start = task.penalty.prox(np.zeros((1, task.size)), 0.0)
        end = drive_chain(self._chain, total, session.channel(0), start, session.progress)
        return Solution(end[0])


@dataclass(frozen=True)
class _Probe:
    """The public constants of the sum, before it exists."""

    bound: float
    smoothness: float
    records: int
