"""Mechanisms as JSON and back: a closed list of types, so that loading runs no foreign code."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from enum import Enum
from typing import Any

from tacit.errors import InvalidInput
from tacit.mechanism import adjacency, mechanism, noise, sampling, view
from tacit.mechanism.frozen import FrozenArray, Schedule

__all__ = ["digest", "from_json", "to_json"]

_RECORDS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        mechanism.Mechanism,
        mechanism.Plan,
        mechanism.Selection,
        mechanism.Trials,
        noise.Factorised,
        noise.Independent,
        sampling.Cyclic,
        sampling.CyclicPoisson,
        sampling.FullBatch,
        sampling.Poisson,
        sampling.Separated,
        sampling.Shuffled,
        sampling.WithoutReplacement,
        view.AllIterates,
        view.BlockSweeps,
        view.LastIterate,
    )
}
_ENUMS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (
        adjacency.Adjacency,
        sampling.Groups,
        sampling.Partition,
        view.Evidence,
        view.Memory,
        view.NoiseShape,
        view.Output,
        view.Start,
    )
}


def _encode(value: object) -> Any:
    if isinstance(value, Enum):
        return {"enum": type(value).__name__, "name": value.name}
    if isinstance(value, Schedule):
        return {"schedule": value.to_json()}
    if isinstance(value, FrozenArray):
        return {"array": value.values.tolist()}
    if isinstance(value, float) and math.isinf(value):
        return {"float": repr(value)}  # JSON has no infinity
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    if dataclasses.is_dataclass(value):
        fields = {f.name: _encode(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    return value


def _decode(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_decode(item) for item in data)
    if not isinstance(data, dict):
        return data
    if "enum" in data:
        return _ENUMS[data["enum"]][data["name"]]
    if "schedule" in data:
        return Schedule.from_json(data["schedule"])
    if "float" in data:
        return float(data["float"])
    if "array" in data:
        return FrozenArray(data["array"])
    fields = {name: _decode(item) for name, item in data.items() if name != "type"}
    return _RECORDS[data["type"]](**fields)


def to_json(value: object) -> Any:
    """A mechanism, selection or plan as plain JSON data."""
    return _encode(value)


def from_json(data: Any) -> Any:
    """The inverse of ``to_json``; every constructor validates again.

    Args:
        data: what ``to_json`` returned, possibly edited.

    Returns:
        The mechanism, selection or plan.

    Raises:
        InvalidInput: if the data does not describe one.
    """
    try:
        return _decode(data)
    except InvalidInput:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"not a mechanism's description: {error}") from None


def digest(value: object) -> str:
    """A sha256 over the canonical JSON: names a plan across machines."""
    return hashlib.sha256(json.dumps(_encode(value), sort_keys=True).encode()).hexdigest()
