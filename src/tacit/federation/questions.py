"""What a node of a linear model may be asked: registered queries, statistics and maps by name, with described numbers.

A server writes an object as a word and its fields (``write``), and a node builds one of ITS OWN classes from them
(``read_query``, ``read_features``, ``read_target``): no code travels, and a word that is not listed here is refused.
Every number is looked at before an object is made from it: finite, of a size that arithmetic can bear, as many as the
columns that are asked about. A query clips each contribution to its bound whatever the other numbers say, so none of
them can weaken a promise; what is checked here is that nothing fails, overflows or takes more memory than the node
would give.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.estimators.linear import Sign
from tacit.maps import AffineTarget, FeatureBounds, Linear, RowMap, Standardise, TargetBounds
from tacit.problem import Loss
from tacit.release import Query
from tacit.release.queries import (
    AtMost,
    BoundedSum,
    ColumnsWithin,
    Curvature,
    GramSum,
    LossGradient,
    MomentSum,
    Projection,
    SlopeNorm,
    SquaredSlope,
    TargetDistance,
    TargetShare,
)

__all__ = ["Ask", "Words", "read_features", "read_query", "read_target", "width_after", "write"]

Array = NDArray[np.float64]
QUERIES: dict[str, type[Any]] = {
    query.name: query for query in (LossGradient, MomentSum, GramSum, BoundedSum, ColumnsWithin)
}
STATISTICS: dict[str, type[Any]] = {
    statistic.__name__: statistic
    for statistic in (AtMost, Curvature, Projection, SlopeNorm, SquaredSlope, TargetDistance, TargetShare)
}
FEATURES: dict[str, type[Any]] = {one.__name__: one for one in (FeatureBounds, Linear, Standardise)}
TARGETS: dict[str, type[Any]] = {one.__name__: one for one in (AffineTarget, Sign, TargetBounds)}
_NAMES = {cls: word for known in (QUERIES, STATISTICS, FEATURES, TARGETS) for word, cls in known.items()}
LARGEST, SMALLEST = 1e60, 1e-60
"""Sizes of numbers: products of three of them are numbers, too."""
MAX_COLUMNS = 5000
"""Features of a model over several owners: sums of their products must fit into a message."""


@described("FederatedWords")
@dataclass(frozen=True, eq=False)
class Words:
    """An object by name: what a server writes, and a node looks up among its own classes.

    Attributes:
        name: of the class, or of the query in its registry.
        fields: its fields: numbers, arrays, truth values, losses, and words again.
    """

    name: str
    fields: dict[str, Any]

    @classmethod
    def examples(cls) -> tuple[Words, ...]:
        """Objects for the contract tests."""
        return (cls("gram", {"norm": 2.0, "with_target": True}), write(Linear(np.eye(2))))


@described("FederatedAsk")
@dataclass(frozen=True, eq=False)
class Ask:
    """One question of a server to a node of a linear model.

    Attributes:
        part: of the plan, which pays.
        view: the number of the view through which records are seen; 0 is the records themselves.
        query: what is asked.
        views: views that the node has not seen yet, as (number, parent, map of features, map of targets).
    """

    part: int
    view: int
    query: Words
    views: tuple[tuple[int, int, Words | None, Words | None], ...] = ()

    @classmethod
    def examples(cls) -> tuple[Ask, ...]:
        """Objects for the contract tests."""
        query = write(GramSum(2.0))
        return (cls(1, 1, query, ((1, 0, write(Linear(np.eye(2))), write(AffineTarget(0.0, 2.0))),)), cls(0, 0, query))


def write(value: Any) -> Words:
    """An object as words.

    Args:
        value: a query, a statistic or a map.

    Returns:
        Its name and its fields.

    Raises:
        InvalidInput: if no node would know it.
    """
    name = _NAMES.get(type(value))
    if name is None:
        raise InvalidInput(
            f"nodes do not know {type(value).__name__}: over several owners use a loss, solver and bounds of Tacit's"
        )
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
    return Words(name, {key: _plain(item) for key, item in fields.items()})


def _plain(item: Any) -> Any:
    if isinstance(item, np.ndarray | np.generic | Loss | bool | int | float):
        return item
    return write(item)


# -- reading, at the node -------------------------------------------------------------------------------------------


def read_features(words: Any, width: int) -> RowMap:
    """A map of features.

    Args:
        words: from anybody.
        width: the number of columns before it.

    Returns:
        The map.

    Raises:
        InvalidInput: if it is none that a node knows, or is not for so many columns.
    """
    cls, fields = _known(words, FEATURES)
    if cls is Linear:
        matrix = _array(fields["matrix"], (width, width))
        return Linear(matrix)
    if cls is Standardise:
        return Standardise(_array(fields["mean"], (width,)), _array(fields["scale"], (width,), least=SMALLEST))
    low, high, centre = (_array(fields[name], (width,)) for name in ("low", "high", "centre"))
    scale, reach = _array(fields["scale"], (width,), least=0.0), _number(fields["reach"], least=SMALLEST)
    if (low > high).any() or ((scale > 0) & (scale < SMALLEST)).any():
        raise InvalidInput("bounds of features must be ordered, and their scales numbers that can be divided by")
    return FeatureBounds(low, high, centre, scale, _truth(fields["constant"]), reach)


def width_after(features: RowMap | None, width: int) -> int:
    """The number of columns behind a map."""
    return width + int(isinstance(features, FeatureBounds) and features.constant)


def read_target(words: Any, outputs: int) -> Any:
    """A map of targets.

    Args:
        words: from anybody.
        outputs: the number of classes; 1 for a regression.

    Returns:
        The map.

    Raises:
        InvalidInput: if it is none that a node knows.
    """
    cls, fields = _known(words, TARGETS)
    if cls is Sign:
        positive = fields["positive"]
        if type(positive) is not int or not 0 <= positive < outputs:
            raise InvalidInput("the target of a head must be one of the classes")
        return Sign(positive)
    centre, scale = _number(fields["centre"]), _number(fields["scale"], least=SMALLEST)
    if cls is AffineTarget:
        return AffineTarget(centre, scale)
    low, high = _number(fields["low"]), _number(fields["high"])
    if low > high:
        raise InvalidInput("bounds of targets must be ordered")
    return TargetBounds(low, high, centre, scale, _truth(fields["logarithmic"]))


def read_query(words: Any, width: int) -> Query:
    """A registered query.

    Args:
        words: from anybody.
        width: the number of columns that it is asked about.

    Returns:
        The query.

    Raises:
        InvalidInput: if it is none that a node knows, or is not for so many columns.
    """
    cls, fields = _known(words, QUERIES)
    if cls is LossGradient:
        row_norm = fields["row_norm"]
        norm = row_norm if row_norm == math.inf else _number(row_norm, least=SMALLEST)
        return LossGradient(_loss(fields["loss"]), _number(fields["bound"], least=SMALLEST), norm)
    if cls is GramSum:
        return GramSum(_number(fields["norm"], least=SMALLEST), _truth(fields["with_target"]))
    if cls is BoundedSum:
        return BoundedSum(_statistic(fields["of"], width, 1), _number(fields["top"], least=SMALLEST))
    with_target = _truth(fields["with_target"])
    if cls is ColumnsWithin:
        centre, radius = (_array(fields[name], (width + int(with_target),)) for name in ("centre", "radius"))
        return ColumnsWithin(centre, radius, with_target)
    low, high = (_array(fields[name], (width + int(with_target),)) for name in ("low", "high"))
    spread = high - low
    if (spread < 0).any() or ((spread > 0) & (spread < SMALLEST)).any():
        raise InvalidInput("bounds of moments must be ordered, and apart")
    return MomentSum(low, high, with_target)


def _statistic(words: Any, width: int, depth: int) -> Any:
    cls, fields = _known(words, STATISTICS)
    if cls is AtMost:
        if depth == 0:
            raise InvalidInput("a statistic of a statistic of a statistic is none that a node knows")
        return AtMost(_statistic(fields["of"], width, depth - 1), _number(fields["threshold"]))
    if cls is TargetShare:
        low, high = _number(fields["low"]), _number(fields["high"])
        if not high - low >= SMALLEST:
            raise InvalidInput("the ends of a share must be apart")
        return TargetShare(low, high)
    if cls is TargetDistance:
        return TargetDistance(_number(fields["centre"]), _truth(fields["logarithmic"]))
    v = _array(fields["v"], (width,))
    return Projection(v) if cls is Projection else cls(_loss(fields["loss"]), v)


def _known(words: Any, known: dict[str, type[Any]]) -> tuple[type[Any], dict[str, Any]]:
    """The class of that name among those that may stand here, and as many fields as it has."""
    if not isinstance(words, Words) or not isinstance(words.name, str) or not isinstance(words.fields, dict):
        raise InvalidInput("a question must name a query, and maps, in words")
    cls = known.get(words.name)
    if cls is None:
        listed = ", ".join(known)
        raise InvalidInput(f"this node does not know what was asked for; it answers {listed} in this place")
    wanted = {field.name for field in dataclasses.fields(cls) if field.init}
    if set(words.fields) != wanted:
        raise InvalidInput(f"{words.name} has other fields than this version knows: use one version of tacit")
    return cls, words.fields


def _number(value: Any, *, least: float = -LARGEST) -> float:
    if type(value) not in (int, float) or not least <= value <= LARGEST:
        raise InvalidInput(f"a number of the question is not one from {least:g} to {LARGEST:g}")
    return float(value)


def _truth(value: Any) -> bool:
    if type(value) is not bool:
        raise InvalidInput("a truth value of the question is none")
    return value


def _array(value: Any, shape: tuple[int, ...], *, least: float = -LARGEST) -> Array:
    right = isinstance(value, np.ndarray) and value.dtype == np.float64 and value.shape == shape
    if not right or not ((value >= least) & (value <= LARGEST)).all():  # nor NaN
        raise InvalidInput(f"numbers of the question are not those of shape {shape} from {least:g} to {LARGEST:g}")
    return np.ascontiguousarray(value)


def _loss(value: Any) -> Loss:
    if not isinstance(value, Loss) or not type(value).__module__.startswith("tacit."):
        raise InvalidInput("the loss is none of Tacit's, and a node runs no other")
    sizes = [getattr(value, field.name) for field in dataclasses.fields(value)]  # type: ignore[arg-type]
    if not all(isinstance(size, int | float) and (size == math.inf or abs(size) <= LARGEST) for size in sizes):
        raise InvalidInput("a number of the loss is out of range")
    return value
