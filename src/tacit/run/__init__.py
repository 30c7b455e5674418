"""Running what was certified: streams, batches, registered sums, the channel, and the loops."""

from tacit.run.blocks import Block, BlockProblem, GradientStep, Position, Update, register_problem
from tacit.run.channel import Channel, Checkpoint
from tacit.run.clipped_sum import REGISTRY, ClippedSum, LeastSquaresGradient, VectorSum, register
from tacit.run.gradient_chain import GradientChain, contraction
from tacit.run.loop import ChainStep, drive_chain, run_chain
from tacit.run.randomness import SEEDED, Streams
from tacit.run.sweep import SWEEPS, Sweep, register_sweep

__all__ = [
    "REGISTRY",
    "SEEDED",
    "SWEEPS",
    "Block",
    "BlockProblem",
    "ChainStep",
    "Channel",
    "Checkpoint",
    "ClippedSum",
    "GradientChain",
    "GradientStep",
    "LeastSquaresGradient",
    "Position",
    "Streams",
    "Sweep",
    "Update",
    "VectorSum",
    "contraction",
    "drive_chain",
    "register",
    "register_problem",
    "register_sweep",
    "run_chain",
]
