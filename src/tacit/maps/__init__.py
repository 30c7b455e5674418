"""Public maps of one row, each with a certified range."""

from tacit.maps.bounds import FeatureBounds, TargetBounds
from tacit.maps.norms import EqualNorm, NonnegativeRows
from tacit.maps.rows import ROW_MAPS, AffineTarget, Linear, Range, RowMap, Standardise

__all__ = [
    "ROW_MAPS",
    "AffineTarget",
    "EqualNorm",
    "FeatureBounds",
    "Linear",
    "NonnegativeRows",
    "Range",
    "RowMap",
    "Standardise",
    "TargetBounds",
]
