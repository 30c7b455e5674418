"""What is minimised, and its public constants: losses, penalties, designs, units, tasks."""

from tacit.problem.design import Design
from tacit.problem.losses import LOSSES, Huber, Logistic, Loss, SmoothedHinge, Squared
from tacit.problem.moments import moments_bound, moments_diameter, moments_weight
from tacit.problem.outputs import OUTPUT_LOSSES, OneVsRest, OutputLoss, Softmax, SquaredOutputs
from tacit.problem.penalties import Penalty
from tacit.problem.task import Records, Task
from tacit.problem.units import FeatureUnits, TargetUnits

__all__ = [
    "LOSSES",
    "OUTPUT_LOSSES",
    "Design",
    "FeatureUnits",
    "Huber",
    "Logistic",
    "Loss",
    "OneVsRest",
    "OutputLoss",
    "Penalty",
    "Records",
    "SmoothedHinge",
    "Softmax",
    "Squared",
    "SquaredOutputs",
    "TargetUnits",
    "Task",
    "moments_bound",
    "moments_diameter",
    "moments_weight",
]
