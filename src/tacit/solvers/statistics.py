"""Noisy statistics: one noisy second-moment matrix, then an exact solve (squared loss only)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.mechanism import Plan
from tacit.problem import Problem, Squared
from tacit.release import Session
from tacit.release.queries import GramSum, symmetric
from tacit.solvers.base import Budget, Solution, Solver
from tacit.solvers.stages import minimise, positive_part

__all__ = ["NoisyStatistics"]


@described("NoisyStatistics")
@dataclass(frozen=True)
class NoisyStatistics(Solver):
    """Release Σ zzᵀ of z = (u, t) clipped to norm R, and minimise the quadratic it describes, with any penalty.

    Formal guarantee: one Gaussian release, √2·R² apart at most under replace-one, so it is μ-GDP at noise √2R²/μ.

    Assumptions: records are clipped to R (enforced); R is public.

    Attributes:
        clip: R; by default the largest norm that the bounds allow.
        ridge: added to the noisy matrix, in units of its noise level.
    """

    name: ClassVar[str] = "statistics"
    one_pass: ClassVar[bool] = True
    clip: float | None = None
    ridge: float = 1.0

    @classmethod
    def of(cls, passes: float | None, clip: float | None) -> NoisyStatistics:
        """R from the clip."""
        return cls(clip)

    def check(self, problem: Problem, budget: Budget) -> None:
        """Only the squared loss has an optimum that depends on second moments alone."""
        super().check(problem, budget)
        if type(problem.loss) is not Squared:
            raise InvalidInput(
                f"solver='statistics' needs the squared loss, whose optimum depends on second moments only; for "
                f"{problem.loss.name} use solver='auto'"
            )

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """One release."""
        return budget.shares({"noisy second moments": (1.0, 1)})

    def solve(self, problem: Problem, budget: Budget, session: Session) -> Solution:
        """Repair the released matrix, and minimise."""
        facts = problem.facts
        natural = float(np.hypot(facts.row_norm, facts.target))
        R = natural if self.clip is None else min(_validate.positive(clip=self.clip), natural)
        m, query = facts.size + 1, GramSum(R, with_target=True)
        noise = session.noise_std(query) / facts.n
        G = symmetric(session.release(query), m) / facts.n
        G = positive_part(G) + self.ridge * noise * np.sqrt(m) * np.diag([1.0] * (m - 1) + [0.0])
        return Solution(minimise(G[:-1, :-1], G[:-1, -1], problem.penalty))
