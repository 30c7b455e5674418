"""Solvers of linear models: post-processing of what the channel releases."""

from tacit.solvers.auto import SOLVERS, choose, named
from tacit.solvers.base import Budget, LinearSolver, Prepared, Session, Solution
from tacit.solvers.blocks import BlockPlan, plan_blocks, run_blocks
from tacit.solvers.coordinate import CoordinateDescent
from tacit.solvers.cyclic import NoisyCyclicDescent
from tacit.solvers.gradient import NoisyGradientDescent, ProximalSGD
from tacit.solvers.metric import MetricDescent
from tacit.solvers.schedules import Optimised, balanced_shares
from tacit.solvers.statistics import NoisyStatistics

__all__ = [
    "SOLVERS",
    "BlockPlan",
    "Budget",
    "CoordinateDescent",
    "LinearSolver",
    "MetricDescent",
    "NoisyCyclicDescent",
    "NoisyGradientDescent",
    "NoisyStatistics",
    "Optimised",
    "Prepared",
    "ProximalSGD",
    "Session",
    "Solution",
    "balanced_shares",
    "choose",
    "named",
    "plan_blocks",
    "run_blocks",
]
