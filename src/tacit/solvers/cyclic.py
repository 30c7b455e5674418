"""Noisy (cyclic) gradient descent whose final model alone is shown: the hidden-state guarantee."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput, NotCovered
from tacit.mechanism import Adjacency, Arithmetic, Mechanism, Plan, Schedule
from tacit.problem import ElasticNet, Penalty, Problem
from tacit.records import MAX_ROWS
from tacit.release import GradientChain, Session
from tacit.release.queries import LossGradient
from tacit.solvers.base import Budget, Solution, Solver
from tacit.solvers.schedules import decaying
from tacit.solvers.stages import standardise

__all__ = ["NoisyCyclicDescent"]

Array = NDArray[np.float64]
MOMENTS = 0.1
"""The share of μ² for private standardisation."""


@described("NoisyCyclicDescent")
@dataclass(frozen=True)
class NoisyCyclicDescent(Solver):
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
    needs: ClassVar[tuple[str, ...]] = ("convex",)
    final_model_only: ClassVar[bool] = True
    epochs: int | None = None
    batches: int | None = None
    clip: float | None = None
    step: float = 1.5
    row_norm: float = 1.5
    standardise: bool = True

    @classmethod
    def of(cls, passes: float | None, clip: float | None) -> NoisyCyclicDescent:
        """Epochs from the number of passes."""
        return cls(epochs=None if passes is None else max(round(passes), 1), clip=clip)

    def check(self, problem: Problem, budget: Budget) -> None:
        """A convex loss, a public n, and a step that does not expand."""
        super().check(problem, budget)
        if budget.adjacency is Adjacency.ADD_REMOVE:
            raise NotCovered(
                "adjacency: under add-remove the number of records is secret, but the chain divides by it; use "
                "replace-one or zero-out",
                axis="adjacency",
            )
        penalty = problem.penalty
        ours = type(penalty) is ElasticNet and not penalty.prox(np.zeros(problem.facts.size), 0.0).any()
        if budget.arithmetic is Arithmetic.EXACT and (problem.loss.derivative_error is None or not ours):
            raise NotCovered(
                "arithmetic: an exact final model needs a loss that states derivative_error, and an ElasticNet whose "
                "box holds 0, because the rounding of others is not known; use arithmetic='float', or "
                "view='all_iterates'",
                axis="arithmetic",
            )
        if not 0 < self.step <= 2:
            raise InvalidInput(f"step must lie in (0, 2] (in units of 1/β), got {self.step!r}")

    def _query(self, problem: Problem) -> LossGradient:
        facts, loss = problem.facts, problem.loss
        natural = float("inf") if self.standardise else facts.row_norm
        R = min(_validate.positive(row_norm=self.row_norm) * np.sqrt(facts.size), max(natural, 1e-12))
        slope = loss.slope if np.isfinite(loss.slope) else 0.5
        return LossGradient(loss, slope * R if self.clip is None else _validate.positive(clip=self.clip), float(R))

    def _chain(self, problem: Problem, budget: Budget, query: LossGradient, penalty: Penalty | None) -> GradientChain:
        """Without a ridge in every (standardised) coordinate the map is 1-Lipschitz, and that is what is certified."""
        n = problem.facts.n
        k = int(np.clip(n // 100, 1, 16)) if self.batches is None else _validate.positive_int(batches=self.batches)
        if k > n:
            raise InvalidInput(f"batches must not exceed the {n} records, got {k}")
        x = n * budget.mu / problem.facts.size
        epochs = int(np.clip(round(4 * x ** (1 / 3)), 5, 100)) if self.epochs is None else self.epochs
        assert query.smoothness is not None
        eta = self.step / query.smoothness * decaying(_validate.positive_int(epochs=epochs) * k)
        rows = 1 if budget.unit == "record" else MAX_ROWS
        return GradientChain(Schedule(eta), 0.0, k, n, penalty=penalty, rows_per_record=rows)

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """Derive every constant of the theorem, and calibrate the noise."""
        query = self._query(problem)
        chain = self._chain(problem, budget, query, None)

        def make(noise: float) -> Mechanism:
            settings = {"adjacency": budget.adjacency, "arithmetic": budget.arithmetic, "size": problem.facts.size}
            found = chain.mechanism(query, noise, **settings)  # type: ignore[arg-type]
            return dataclasses.replace(found, unit=budget.unit, label="noisy cyclic gradient descent")

        if not self.standardise:
            return budget.calibrated(make)
        moments = budget.mechanism(budget.mu * np.sqrt(MOMENTS), 1, "private standardisation")
        return Plan.of(moments, budget.part(1 - MOMENTS).calibrated(make))

    def solve(self, problem: Problem, budget: Budget, session: Session) -> Solution:
        """Standardise, then run the chain to its end."""
        query, penalty, size = self._query(problem), problem.penalty, problem.facts.size
        if not self.standardise:
            chain = self._chain(problem, budget, query, penalty)
            return Solution(session.run_chain(chain, query, penalty.prox(np.zeros(size), 0.0)))
        standard = standardise(session, 0, problem)
        penalty = penalty.rescaled(1 / standard.map.scale)
        chain = self._chain(problem, budget, query, penalty)
        start = penalty.prox(np.zeros(size), 0.0)
        u = session.through(standard.map, parts_from=1).run_chain(chain, query, start)
        return Solution(standard.back(u, intercept=problem.intercept))
