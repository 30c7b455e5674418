"""A constant model from one noisy mean: all that can be learned when budget and records are few."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit._codec import described
from tacit.mechanism import Plan
from tacit.problem import Problem
from tacit.release import Session
from tacit.release.queries import BoundedSum, TargetShare
from tacit.solvers.base import Budget, Solution, Solver

__all__ = ["ConstantModel"]

Array = NDArray[np.float64]


@described("ConstantModel")
@dataclass(frozen=True)
class ConstantModel(Solver):
    """The constant that fits the mean of the target, or the share of a class, and no slopes; zero without an intercept.

    Formal guarantee: one Gaussian release of a mean of numbers in [0, 1].

    Assumptions: targets are clipped to their bounds (enforced).
    """

    name: ClassVar[str] = "constant"
    one_pass: ClassVar[bool] = True

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """One release with the whole budget."""
        return budget.shares({"noisy mean": (1.0, 1)})

    def solve(self, problem: Problem, budget: Budget, session: Session) -> Solution:
        """The noisy mean as a model."""
        loss, facts = problem.loss, problem.facts
        query = BoundedSum(TargetShare(*loss.target_range))
        edge = min(0.5, session.noise_std(query) / facts.n)
        share = session.release(query)[0] / facts.n
        v, errors = problem.penalty.prox(np.zeros(facts.size), 0.0), np.zeros(facts.size)
        if problem.intercept:
            inside = float(np.clip(share, edge, 1 - edge) if loss.labels or loss.positive else np.clip(share, 0.0, 1.0))
            v[0], errors[0] = _fitted(problem, inside, edge)
        x = facts.n * budget.mu / facts.size
        note = (
            f"constant model: x = records × μ / coordinates = {x:.2g} is small, so slopes would be noise; more "
            "records, fewer features or a larger ε help"
        )
        return Solution(v, errors, (note,))


def _fitted(problem: Problem, share: float, edge: float) -> tuple[float, float]:
    """The constant f for a mean target, and its standard error."""
    loss, (low, high) = problem.loss, problem.loss.target_range
    mean = low + (high - low) * share
    if loss.labels and not 0 < share < 1:  # noise as large as the data: no odds
        return 2 * share - 1, edge / 1e-12
    constant = loss.constant(max(mean, 1e-12) if loss.positive else mean)
    if loss.labels:
        return constant, edge / max(share * (1 - share), 1e-12)
    return constant, (high - low) * edge / (max(mean, 1e-12) if loss.positive else 1.0)
