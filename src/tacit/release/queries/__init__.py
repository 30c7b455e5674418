"""Registered queries: with the session, all the code that reads records."""

from tacit.release.queries.coordinates import Blocks, CoordinateSweep
from tacit.release.queries.gradient import LossGradient
from tacit.release.queries.histogram import HistogramSum
from tacit.release.queries.moments import GramSum, MomentSum, SquareSum, symmetric, upper_triangle
from tacit.release.queries.outputs import GatedOutputs, LinearOutputs, open_gates
from tacit.release.queries.scores import SCORES, Score
from tacit.release.queries.values import (
    STATISTICS,
    AtMost,
    BoundedSum,
    Curvature,
    One,
    SlopeNorm,
    SquaredSlope,
    Statistic,
    TargetDistance,
    TargetShare,
)
from tacit.release.queries.vectors import CountedSum, VectorSum

__all__ = [
    "SCORES",
    "STATISTICS",
    "AtMost",
    "Blocks",
    "BoundedSum",
    "CoordinateSweep",
    "CountedSum",
    "Curvature",
    "GatedOutputs",
    "GramSum",
    "HistogramSum",
    "LinearOutputs",
    "LossGradient",
    "MomentSum",
    "One",
    "Score",
    "SlopeNorm",
    "SquareSum",
    "SquaredSlope",
    "Statistic",
    "TargetDistance",
    "TargetShare",
    "VectorSum",
    "open_gates",
    "symmetric",
    "upper_triangle",
]
