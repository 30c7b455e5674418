"""Objective perturbation as a solver: one tilted optimum, no iterations to pay for."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.mechanism import Evidence, ObjectivePerturbation
from tacit.problem import Records, Task
from tacit.run.perturbed import SIGNED, perturbed_minimiser, solver_tolerance
from tacit.solvers.base import Budget, LinearSolver, Prepared, Session, Solution

__all__ = ["ObjectiveTilt"]

LARGEST_J = 1.0
"""Beyond this a smaller Λ gains nothing: it is the curvature of a few records only."""
SOLVER_SHARE = 1e-3
"""ν of the noise that covers the solver's error, relative to ε: it costs next to nothing of either."""


@dataclass(frozen=True)
class ObjectiveTilt(LinearSolver):
    """Minimise Σφ + Λ/2‖v‖² + nψ(v) + b·v with b ~ N(0, σ²I), and release the minimiser.

    Formal guarantee: docs/theorems.md, "Objective perturbation"; the final model only.

    Assumptions: records are scaled to norm R (enforced); the loss is logistic, smoothed hinge or Huber (checked); a
    ridge Λ on every coordinate, the intercept included (added); the solver's tolerance is part of the proof (checked).

    Attributes:
        curvature_share: the part of ε that pays for J = log(1 + βR²/Λ); Λ follows.
        clip: R; by default the largest norm that the bounds allow.
    """

    name: ClassVar[str] = "perturbation"
    curvature_share: float = 0.25
    clip: float | None = None

    def prepare(self, task: Task, budget: Budget) -> Prepared:
        """Choose Λ from ε, then calibrate σ.

        Args:
            task: what to minimise.
            budget: what to spend; its view must be the final model.

        Returns:
            The prepared solver.

        Raises:
            InvalidInput: for a view, loss or penalty that the theorem or the solver does not cover.
        """
        if budget.view != "final_model":
            raise InvalidInput(
                "solver='perturbation' shows its final model only: set view='final_model', or use another solver"
            )
        if type(task.loss) not in SIGNED:
            raise InvalidInput(
                f"solver='perturbation' needs a loss of bounded slope (logistic, smoothed hinge, Huber), not "
                f"{task.loss.name}: use solver='auto'"
            )
        if not task.penalty.smooth:
            raise InvalidInput("solver='perturbation' takes ℓ2 penalties only: use solver='auto' for ℓ1 or boxes")
        share = _validate.probability(curvature_share=self.curvature_share)
        return _Prepared(self, task, budget, share)


class _Prepared(Prepared):
    def __init__(self, solver: ObjectiveTilt, task: Task, budget: Budget, share: float) -> None:
        self._task, loss = task, task.loss
        R = max(task.row_norm, 1e-12)
        R = R if solver.clip is None else min(_validate.positive(clip=solver.clip), R)
        J = min(share * budget.epsilon / budget.copies, LARGEST_J)
        l2 = loss.curvature * R * R / math.expm1(J)

        def make(noise: float) -> ObjectivePerturbation:
            sigma = noise * loss.slope * R
            tolerance = solver_tolerance(task.records, task.size, loss, R, l2, sigma)
            return ObjectivePerturbation(
                adjacency=budget.adjacency,
                slope_bound=loss.slope,
                smoothness=loss.curvature,
                feature_norm=R,
                l2=l2,
                noise_std=sigma,
                tolerance=tolerance,
                output_std=2 * tolerance / (l2 * SOLVER_SHARE * min(J, 1.0)),
                signed_slopes=SIGNED[type(loss)],
                evidence=Evidence.ENFORCED,
                unit=budget.unit,
            )

        self.plan = budget.calibrated(make)

    def solve(self, records: Records, session: Session) -> Solution:
        ridge = self._task.records * self._task.penalty.l2
        v = perturbed_minimiser(
            session.certificate,
            session.first,
            records.design,
            records.offset,
            self._task.loss,
            np.asarray(ridge),
            session.streams,
        )
        return Solution(v)
