"""Descriptions of private computations: public, frozen, hashable, free of data."""

from tacit._registry import load_folder
from tacit.mechanism.batches import batch_count, batch_runs, batch_sizes
from tacit.mechanism.frozen import FrozenArray, Schedule
from tacit.mechanism.mechanism import Adjacency, Arithmetic, Mechanism, Part, Plan, Selection, Trials
from tacit.mechanism.noise import CorrelatedNoise, Independent, Noise
from tacit.mechanism.noisy_max import NoisyMax
from tacit.mechanism.sampling import (
    Cyclic,
    CyclicPoisson,
    FullBatch,
    Groups,
    Partition,
    Poisson,
    Sampling,
    Separated,
    Shuffled,
    WithoutReplacement,
)
from tacit.mechanism.view import (
    AllIterates,
    BlockSweeps,
    Evidence,
    LastIterate,
    Memory,
    NoiseShape,
    Output,
    Rounding,
    Start,
    View,
)

__all__ = [
    "Adjacency",
    "AllIterates",
    "Arithmetic",
    "BlockSweeps",
    "CorrelatedNoise",
    "Cyclic",
    "CyclicPoisson",
    "Evidence",
    "FrozenArray",
    "FullBatch",
    "Groups",
    "Independent",
    "LastIterate",
    "Mechanism",
    "Memory",
    "Noise",
    "NoiseShape",
    "NoisyMax",
    "Output",
    "Part",
    "Partition",
    "Plan",
    "Poisson",
    "Rounding",
    "Sampling",
    "Schedule",
    "Selection",
    "Separated",
    "Shuffled",
    "Start",
    "Trials",
    "View",
    "WithoutReplacement",
    "batch_count",
    "batch_runs",
    "batch_sizes",
]

load_folder(__name__, __path__)
