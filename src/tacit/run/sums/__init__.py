"""Registered sums over tables: with the channel, all the code that reads records."""

from tacit.run.sums.coordinates import CoordinateState, CoordinateSweep
from tacit.run.sums.factors import FactorRows, ItemFactors, ItemStatistic, PersonFactors
from tacit.run.sums.gradient import LinearGradient
from tacit.run.sums.gram import GramSum
from tacit.run.sums.moments import MomentSum
from tacit.run.sums.network import BlockNetwork, LayerStatistic
from tacit.run.sums.squares import SquareSum

__all__ = [
    "BlockNetwork",
    "CoordinateState",
    "CoordinateSweep",
    "FactorRows",
    "GramSum",
    "ItemFactors",
    "ItemStatistic",
    "LayerStatistic",
    "LinearGradient",
    "MomentSum",
    "PersonFactors",
    "SquareSum",
]
