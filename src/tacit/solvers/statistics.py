"""Noisy statistics: one noisy second-moment matrix, then an exact solve (squared loss only)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.problem import Records, Squared, Task
from tacit.run.sums import GramSum
from tacit.run.sums.gram import symmetric
from tacit.solvers.base import Budget, LinearSolver, Prepared, Session, Solution, release_once
from tacit.solvers.quadratic import minimise, positive_part

__all__ = ["NoisyStatistics"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class NoisyStatistics(LinearSolver):
    """Release Σ zzᵀ of z = (u, t) clipped to norm R, and minimise the quadratic it describes, with any penalty.

    Formal guarantee: one Gaussian release, √2·R² apart at most under replace-one, so it is μ-GDP at noise √2R²/μ.

    Assumptions: records are clipped to R (enforced); R is public.

    Attributes:
        clip: R; by default the largest norm that the bounds allow.
        ridge: added to the noisy matrix, in units of its noise level.
    """

    name: ClassVar[str] = "statistics"
    clip: float | None = None
    ridge: float = 1.0

    def prepare(self, task: Task, budget: Budget) -> Prepared:
        """One release.

        Args:
            task: must have the squared loss.
            budget: what to spend.

        Returns:
            The prepared solver.

        Raises:
            InvalidInput: for any other loss.
        """
        if not isinstance(task.loss, Squared):
            raise InvalidInput(
                f"solver='statistics' needs the squared loss, whose optimum depends on second moments only; for "
                f"{task.loss.name} use solver='auto'"
            )
        natural = float(np.hypot(task.row_norm, task.target_reach))
        R = natural if self.clip is None else min(_validate.positive(clip=self.clip), natural)
        return _Prepared(task, budget, R, self.ridge)


class _Prepared(Prepared):
    def __init__(self, task: Task, budget: Budget, R: float, ridge: float) -> None:
        self.plan = budget.shares({"noisy second moments": (1.0, 1)})
        self._task, self._R, self._ridge = task, R, ridge
        total = np.sqrt(2) * R * R if budget.adjacency.sum_factor == 2 else R * R
        self._noise = total / budget.mu / task.records

    def solve(self, records: Records, session: Session) -> Solution:
        Z = np.column_stack([records.design.dense(), records.offset])
        m = Z.shape[1]
        G = symmetric(release_once(session, 0, GramSum(Z, self._R)), m) / self._task.records
        G = positive_part(G) + self._ridge * self._noise * np.sqrt(m) * np.diag([1.0] * (m - 1) + [0.0])
        return Solution(minimise(G[:-1, :-1], G[:-1, -1], self._task.penalty))
