"""Running what was certified: streams, batches, registered sums, the channel, and the loops."""

from tacit.run.channel import Channel, Checkpoint
from tacit.run.clipped_sum import REGISTRY, ClippedSum, LeastSquaresGradient, VectorSum, register
from tacit.run.gradient_chain import GradientChain, contraction
from tacit.run.loop import ChainStep, Release, Solver, drive_chain, run, run_chain
from tacit.run.randomness import SEEDED, Streams
from tacit.run.sampling import Batches, batch_count, batch_runs, batch_sizes
from tacit.run.sweep import SWEEPS, Sweep, register_sweep

__all__ = [
    "REGISTRY",
    "SEEDED",
    "SWEEPS",
    "Batches",
    "ChainStep",
    "Channel",
    "Checkpoint",
    "ClippedSum",
    "GradientChain",
    "LeastSquaresGradient",
    "Release",
    "Solver",
    "Streams",
    "Sweep",
    "VectorSum",
    "batch_count",
    "batch_runs",
    "batch_sizes",
    "contraction",
    "drive_chain",
    "register",
    "register_sweep",
    "run",
    "run_chain",
]
