"""What asks: solvers turn what a session releases into a model, and have no record in their scope."""

from tacit._registry import load_folder
from tacit.solvers.base import SOLVERS, VIEWS, Budget, Solution, Solver, choose, solver_factory
from tacit.solvers.class_means import ClassMeans
from tacit.solvers.constant import ConstantModel
from tacit.solvers.coordinate import CoordinateDescent
from tacit.solvers.cyclic import NoisyCyclicDescent
from tacit.solvers.gradient import NoisyGradientDescent, ProximalSGD
from tacit.solvers.greedy import GreedyDescent
from tacit.solvers.metric import MetricDescent
from tacit.solvers.schedules import Optimised, balanced_shares
from tacit.solvers.statistics import NoisyStatistics

__all__ = [
    "SOLVERS",
    "VIEWS",
    "Budget",
    "ClassMeans",
    "ConstantModel",
    "CoordinateDescent",
    "GreedyDescent",
    "MetricDescent",
    "NoisyCyclicDescent",
    "NoisyGradientDescent",
    "NoisyStatistics",
    "Optimised",
    "ProximalSGD",
    "Solution",
    "Solver",
    "balanced_shares",
    "choose",
    "solver_factory",
]

load_folder(__name__, __path__)
