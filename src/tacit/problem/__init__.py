"""The mathematics, all of it public: losses, penalties, and the problem they form.

A loss or penalty takes part by being defined in a file of this folder: no list names it.
"""

from tacit._registry import load_folder
from tacit.problem.blocks import Block, GradientStep, Position, Update
from tacit.problem.losses import LOSSES, Gamma, Huber, Logistic, Loss, Poisson, SmoothedHinge, Squared
from tacit.problem.moments import moments_bound, moments_diameter, moments_weight
from tacit.problem.outputs import OUTPUT_LOSSES, OneVsRest, OutputLoss, Softmax, SquaredOutputs
from tacit.problem.problem import (
    PENALTIES,
    ElasticNet,
    Facts,
    Penalty,
    Problem,
    elastic_net,
    loss_named,
    penalty_named,
)

__all__ = [
    "LOSSES",
    "OUTPUT_LOSSES",
    "PENALTIES",
    "Block",
    "ElasticNet",
    "Facts",
    "Gamma",
    "GradientStep",
    "Huber",
    "Logistic",
    "Loss",
    "OneVsRest",
    "OutputLoss",
    "Penalty",
    "Poisson",
    "Position",
    "Problem",
    "SmoothedHinge",
    "Softmax",
    "Squared",
    "SquaredOutputs",
    "Update",
    "elastic_net",
    "loss_named",
    "moments_bound",
    "moments_diameter",
    "moments_weight",
    "penalty_named",
]

load_folder(__name__, __path__)
