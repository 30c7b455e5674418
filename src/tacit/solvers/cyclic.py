"""Noisy (cyclic) gradient descent whose final model alone is shown: the hidden-state guarantee."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput, NotCovered
from tacit.mechanism import Adjacency, Mechanism, Plan, Schedule
from tacit.problem import Design, Penalty, Records, Task
from tacit.run import GradientChain, drive_chain
from tacit.run.sums import LinearGradient
from tacit.run.sums.gradient import CONVEX
from tacit.solvers.base import Budget, LinearSolver, Prepared, Session, Solution
from tacit.solvers.schedules import decaying
from tacit.solvers.standardise import standardised

__all__ = ["NoisyCyclicDescent"]

Array = NDArray[np.float64]
MOMENTS = 0.1
"""The share of μ² for private standardisation."""


@dataclass(frozen=True)
class NoisyCyclicDescent(LinearSolver):
    """θ ← prox(θ − η_t(noisy batch mean gradient + λθ)) over disjoint batches in a fixed order; the end is released.

    Features are standardised privately first (a release of its own, composed with the chain).

    Formal guarantee: the last iterate is μ-GDP by the greatest convex minorant (docs/theorems.md); intermediate
    iterates are not covered and never leave the loop.

    Assumptions: records are scaled to norm R and slopes clipped (enforced), so a step is max(|1−ηλ|, |1−η(β+λ)|)-
    Lipschitz with β = sup φ″·R² (checked). Penalties enter by their prox, which is 1-Lipschitz; the intercept is not
    penalised, so λ = 0 is what is certified, and the guarantee rests on Ση alone.

    Attributes:
        epochs: how often the data is read.
        batches: k, by default as many as leave 100 records each, at most 16; 1 for all records at each step.
        clip: C; by default R times the largest slope of the loss, or times ½ where slopes have no limit.
        step: η in units of 1/β, at most 2.
        row_norm: R, in units of √p; longer (standardised) records are scaled down.
        standardise: whether to standardise privately, for 10 % of μ².
    """

    name: ClassVar[str] = "cyclic"
    epochs: int | None = None
    batches: int | None = None
    clip: float | None = None
    step: float = 1.5
    row_norm: float = 1.5
    standardise: bool = True

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
        if type(task.loss) not in CONVEX:
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


class _Prepared(Prepared):
    def __init__(self, solver: NoisyCyclicDescent, task: Task, budget: Budget) -> None:
        self._solver, self._task = solver, task
        n = task.records
        natural = task.row_norm if not solver.standardise else float("inf")
        self._R = min(_validate.positive(row_norm=solver.row_norm) * np.sqrt(task.size), max(natural, 1e-12))
        slope = task.loss.slope if np.isfinite(task.loss.slope) else 0.5
        self._clip = slope * self._R if solver.clip is None else _validate.positive(clip=solver.clip)
        k = int(np.clip(n // 100, 1, 16)) if solver.batches is None else _validate.positive_int(batches=solver.batches)
        if k > n:
            raise InvalidInput(f"batches must not exceed the {n} records, got {k}")
        x = n * budget.mu / task.size
        epochs = int(np.clip(round(4 * x ** (1 / 3)), 5, 100)) if solver.epochs is None else solver.epochs
        self._smoothness = task.loss.curvature * self._R**2
        self._eta = solver.step / self._smoothness * decaying(_validate.positive_int(epochs=epochs) * k)
        self._batches = k
        self.plan = self._plan(budget)

    def _plan(self, budget: Budget) -> Plan:
        """Without a ridge in every (standardised) coordinate the map is 1-Lipschitz, and that is what is certified."""
        probe, chain = _Probe(self._clip, self._smoothness), self._chain(None)

        def make(noise: float) -> Mechanism:
            found = chain.mechanism(probe, noise, adjacency=budget.adjacency)
            return dataclasses.replace(found, unit=budget.unit, label="noisy cyclic gradient descent")

        if not self._solver.standardise:
            return budget.calibrated(make)
        moments = budget.mechanism(budget.mu * np.sqrt(MOMENTS), 1, "private standardisation")
        return Plan.of(moments, budget.part(1 - MOMENTS).calibrated(make))

    def _chain(self, penalty: Penalty | None) -> GradientChain:
        return GradientChain(Schedule(self._eta), 0.0, self._batches, self._task.records, penalty=penalty)

    def solve(self, records: Records, session: Session) -> Solution:
        task, design, penalty, last = self._task, records.design, self._task.penalty, 0
        if self._solver.standardise:
            found = standardised(session, 0, task, records)
            X = found.apply(records.features)
            design = Design(X if records.labels is None else X * records.labels[:, None])
            penalty, last = penalty.rescaled(1 / found.scale), 1
        total = LinearGradient(design, records.offset, task.loss, self._clip, row_norm=self._R)
        start = penalty.prox(np.zeros((1, task.size)), 0.0)
        u = drive_chain(self._chain(penalty), total, session.channel(last), start, session.progress)[0]
        return Solution(found.back(u, intercept=task.intercept) if self._solver.standardise else u)


@dataclass(frozen=True)
class _Probe:
    """The public constants of the sum, before it exists."""

    bound: float
    smoothness: float
