"""Per-record gradients of any module near the cost of a plain step: rules of layers, taps inside of ``vmap``."""

from tacit.torch.taps.attention import AttentionTap
from tacit.torch.taps.factors import Factors, Gradient, Looked, Rows, combined
from tacit.torch.taps.recurrent import RecurrentTap
from tacit.torch.taps.rules import RULES, Site, Tap, register_tap
from tacit.torch.taps.tapped import Tapped

__all__ = [
    "RULES",
    "AttentionTap",
    "Factors",
    "Gradient",
    "Looked",
    "RecurrentTap",
    "Rows",
    "Site",
    "Tap",
    "Tapped",
    "combined",
    "register_tap",
]
