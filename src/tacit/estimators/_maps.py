"""Public feature maps on disk: by name and parameters, never by what they drew, and checked when they are made again.

A map is a function of its parameters and of the number of columns (``tacit.maps.FeatureMap``), so a file needs no
more. A closed list of classes may be named: loading runs no foreign code. Whether a later version still makes the same
map is seen on three made-up records.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn import preprocessing as sk
from sklearn.pipeline import FeatureUnion, Pipeline

from tacit import maps
from tacit.errors import InvalidInput
from tacit.estimators.plain import from_plain, to_plain

__all__ = ["agrees", "leaves", "map_from_plain", "map_to_plain", "sample_of_maps", "sample_of_rows", "width_of"]

SINGLE: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        maps.Deskew,
        maps.Hog,
        maps.NormScaler,
        maps.RandomFourier,
        maps.RandomRelu,
        maps.ReluGates,
        maps.BoundsScaler,
        maps.PublicOneHotEncoder,
        sk.Binarizer,
        sk.Normalizer,
        sk.PolynomialFeatures,
    )
}
"""Maps whose parameters are numbers, words and arrays."""
COMPOSITE: dict[str, tuple[type, str, str | None, Callable[..., Any]]] = {
    "Pipeline": (Pipeline, "steps", None, lambda parts, weights: Pipeline(parts)),
    "FeatureUnion": (
        FeatureUnion,
        "transformer_list",
        "transformer_weights",
        lambda parts, weights: FeatureUnion(parts, transformer_weights=weights),
    ),
    "Join": (maps.Join, "maps", "weights", maps.Join),
}
"""Maps of maps: the class, where its parts and their weights are, and its maker."""
WORDS = ("passthrough", "drop")
SCALES = (1.0, 16.0, 256.0)
SUMS = 8
TOLERANCE = 1e-6
"""Relative: other processors and libraries round differently; another generator differs in the first digit."""


def map_to_plain(value: Any) -> Any:
    """Plain data that ``map_from_plain`` turns into a map with the same parameters, not fitted.

    Args:
        value: a map of ``tacit.maps``, a Pipeline, FeatureUnion or ``Join`` of them; or None.

    Returns:
        What ``json.dumps`` takes.

    Raises:
        InvalidInput: for any other class: a file cannot hold its code.
    """
    if value is None or (isinstance(value, str) and value in WORDS):
        return value
    kind = type(value).__name__
    if SINGLE.get(kind) is type(value):
        given = value.get_params(deep=False)
        return {"map": kind, "parameters": {name: to_plain(given[name], f"features: {name}") for name in sorted(given)}}
    if kind in COMPOSITE and COMPOSITE[kind][0] is type(value):
        _, where, weighted, _ = COMPOSITE[kind]
        out: dict[str, Any] = {
            "map": kind,
            "parts": [[str(name), map_to_plain(part)] for name, part in getattr(value, where)],
        }
        weights = None if weighted is None else getattr(value, weighted)
        if weights is not None:
            out["weights"] = {str(name): to_plain(weight, "features: weights") for name, weight in weights.items()}
        return out
    raise InvalidInput(
        f"features hold a {kind}, whose code a model file cannot hold: use maps of tacit.maps, also in a Pipeline, "
        "FeatureUnion or Join"
    )


def map_from_plain(data: Any) -> Any:
    """The inverse of ``map_to_plain``; what the parameters are worth is seen when the map is fitted.

    Args:
        data: parsed JSON, possibly edited.

    Returns:
        The map.

    Raises:
        InvalidInput: if it is not what ``map_to_plain`` writes.
    """
    if data is None or (isinstance(data, str) and data in WORDS):
        return data
    kind = data.get("map") if isinstance(data, dict) else None
    if isinstance(kind, str) and kind in SINGLE:
        cls = SINGLE[kind]
        values = {name: from_plain(value) for name, value in data["parameters"].items()}
        if strange := sorted(values.keys() - set(cls._get_param_names())):
            raise InvalidInput(f"the map {kind} has no parameter {strange[0][:40]!r}")
        return cls(**values)
    if isinstance(kind, str) and kind in COMPOSITE:
        parts = [(_word(name), map_from_plain(part)) for name, part in data["parts"]]
        weights = {name: from_plain(weight) for name, weight in data["weights"].items()} if "weights" in data else None
        return COMPOSITE[kind][3](parts, weights)
    raise InvalidInput("it names a feature map that this version does not know")


def leaves(maps: Any) -> Iterator[Any]:
    """The single maps of a map of maps.

    Args:
        maps: from ``map_from_plain``.

    Yields:
        Each of them.
    """
    kind = type(maps).__name__
    if kind in COMPOSITE:
        for _, part in getattr(maps, COMPOSITE[kind][1]):
            yield from leaves(part)
    elif kind in SINGLE:
        yield maps


def width_of(part: Any, columns: int) -> int:
    """About how many columns a single map makes, or draws, from its parameters; nothing is made.

    Args:
        part: a single map.
        columns: of the records; taken for the map's own.

    Returns:
        The width.
    """
    if isinstance(part, sk.PolynomialFeatures):
        degree = part.degree if isinstance(part.degree, int) else max(part.degree)
        return math.comb(columns + int(degree), min(int(degree), columns)) if degree <= 64 else 2**62
    return max(int(getattr(part, "n_features", 1) or 1), columns * int(getattr(part, "n_gates", 1) or 1))


def _word(name: Any) -> str:
    if not isinstance(name, str):
        raise InvalidInput("it holds a feature map without a name")
    return name


# -- is it still the same map? ----------------------------------------------------------------------------------


def _weights(rows: int, columns: int) -> NDArray[np.float64]:
    """Fixed numbers in [−½, ½), none of them zero: every entry counts."""
    products = np.arange(1, rows + 1)[:, None] * np.arange(1, columns + 1)
    return np.asarray((products * 0.6180339887498949) % 1.0 - 0.5, np.float64)


def sample_of_rows(table: NDArray[Any]) -> list[list[float]]:
    """3 × 8 sums into which every entry of a table enters.

    Args:
        table: (n, p).

    Returns:
        The sums.
    """
    n, p = table.shape
    sums = _weights(n, len(SCALES)).T @ np.asarray(table, np.float64) @ _weights(p, SUMS)
    return [[float(value) for value in row] for row in sums]


def sample_of_maps(maps: Any, p: int) -> list[list[float]]:
    """What fitted maps make of three made-up records of different size: 8 sums each, into which every column enters.

    Args:
        maps: fitted to p columns.
        p: columns.

    Returns:
        The sums.
    """
    probe = (_weights(len(SCALES), p) + 0.5) * np.array(SCALES)[:, None]
    with np.errstate(all="ignore"):
        made = np.asarray(maps.transform(probe), np.float64)
    return [[float(value) for value in row] for row in made @ _weights(made.shape[1], SUMS)]


def agrees(found: list[list[float]], stored: Any) -> bool:
    """Whether two samples are equal but for rounding.

    Args:
        found: a sample.
        stored: parsed JSON, possibly edited.

    Returns:
        True or False.
    """
    try:
        other = np.array(stored, np.float64)
    except (TypeError, ValueError):
        return False
    here = np.array(found)
    return here.shape == other.shape and bool((np.abs(here - other) <= TOLERANCE * np.abs(here).max()).all())
