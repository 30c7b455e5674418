"""Registered queries: with the session, all the code that reads records."""

from tacit._registry import load_folder
from tacit.release.queries.columns import ColumnsWithin
from tacit.release.queries.coordinates import Blocks, CoordinateSweep
from tacit.release.queries.factors import ItemFactors, ItemStatistic, PersonFactors
from tacit.release.queries.gradient import LossGradient
from tacit.release.queries.greedy import ColumnSquare, CoordinateGradient, CoordinateScores, LogSlope, TypicalEntry
from tacit.release.queries.histogram import HistogramSum
from tacit.release.queries.moments import GramSum, MomentSum, SquareSum, symmetric, upper_triangle
from tacit.release.queries.network import BlockNetwork, LayerStatistic
from tacit.release.queries.outputs import GatedOutputs, LinearOutputs, open_gates
from tacit.release.queries.scores import SCORES, Score
from tacit.release.queries.values import (
    STATISTICS,
    AtMost,
    BoundedSum,
    Curvature,
    One,
    Projection,
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
    "BlockNetwork",
    "Blocks",
    "BoundedSum",
    "ColumnSquare",
    "ColumnsWithin",
    "CoordinateGradient",
    "CoordinateScores",
    "CoordinateSweep",
    "CountedSum",
    "Curvature",
    "GatedOutputs",
    "GramSum",
    "HistogramSum",
    "ItemFactors",
    "ItemStatistic",
    "LayerStatistic",
    "LinearOutputs",
    "LogSlope",
    "LossGradient",
    "MomentSum",
    "One",
    "PersonFactors",
    "Projection",
    "Score",
    "SlopeNorm",
    "SquareSum",
    "SquaredSlope",
    "Statistic",
    "TargetDistance",
    "TargetShare",
    "TypicalEntry",
    "VectorSum",
    "open_gates",
    "symmetric",
    "upper_triangle",
]

load_folder(__name__, __path__)
