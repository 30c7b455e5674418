"""Who reads records: queries, and the session that pays, draws, counts and adds noise."""

from tacit.noise.streams import SEEDED, Streams
from tacit.release.blocks import PROBLEMS, BlockChain, BlockProblem, BlockSum, JacobiCache, replay
from tacit.release.chain import Chain, GradientChain, contraction
from tacit.release.channel import Channel, Checkpoint, noise_std, sensitivity
from tacit.release.choice import CHOICES, Choice
from tacit.release.query import QUERIES, Bounded, Example, Members, Query, register
from tacit.release.session import Progress, Session, marked_certificate, open_session
from tacit.release.sweep import Sweep

__all__ = [
    "CHOICES",
    "PROBLEMS",
    "QUERIES",
    "SEEDED",
    "BlockChain",
    "BlockProblem",
    "BlockSum",
    "Bounded",
    "Chain",
    "Channel",
    "Checkpoint",
    "Choice",
    "Example",
    "GradientChain",
    "JacobiCache",
    "Members",
    "Progress",
    "Query",
    "Session",
    "Streams",
    "Sweep",
    "contraction",
    "marked_certificate",
    "noise_std",
    "open_session",
    "register",
    "replay",
    "sensitivity",
]
