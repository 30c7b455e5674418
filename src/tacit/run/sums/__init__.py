"""Registered sums over tables: with the channel, all the code that reads records."""

from tacit.run.sums.coordinates import CoordinateState, CoordinateSweep
from tacit.run.sums.counted import CountedSum
from tacit.run.sums.gradient import LinearGradient
from tacit.run.sums.gram import GramSum
from tacit.run.sums.histogram import HistogramSum
from tacit.run.sums.moments import MomentSum
from tacit.run.sums.outputs import (
    FeatureRows,
    GatedOutputs,
    LinearOutputs,
    ShortRows,
    TableRows,
    open_gates,
    shortened,
)
from tacit.run.sums.squares import SquareSum
from tacit.run.sums.values import BoundedValues

__all__ = [
    "BoundedValues",
    "CoordinateState",
    "CoordinateSweep",
    "CountedSum",
    "FeatureRows",
    "GatedOutputs",
    "GramSum",
    "HistogramSum",
    "LinearGradient",
    "LinearOutputs",
    "MomentSum",
    "ShortRows",
    "SquareSum",
    "TableRows",
    "open_gates",
    "shortened",
]
