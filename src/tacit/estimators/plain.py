"""Values of estimators as plain JSON data and back: a closed list of types, so that loading runs no foreign code."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import problem, solvers
from tacit.errors import InvalidInput
from tacit.mechanism import Adjacency

__all__ = ["LARGE", "from_plain", "to_plain"]

_RECORDS: dict[str, Any] = {
    cls.__name__: cls
    for cls in (*vars(problem).values(), *vars(solvers).values())
    if isinstance(cls, type)
    and issubclass(cls, problem.Loss | problem.Penalty | solvers.LinearSolver)
    and dataclasses.is_dataclass(cls)
}
_NUMBERS = {f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)} | {"float32", "float64"}
_DTYPES = {*_NUMBERS, "bool", "str", "object"}
LARGE = 4096
"""Arrays with more entries, or with three axes, are bytes in base64 (little-endian, rows first): a million numbers as
decimal digits take 20 MB and seconds, and nobody reads them. Smaller ones are lists of numbers."""


def to_plain(value: Any, name: str) -> Any:
    """Plain data that ``from_plain`` turns into an equal value of the same type.

    Args:
        value: numbers, words, None, arrays, lists and tuples of them, ranges; a loss, penalty or solver of ours.
        name: for the message.

    Returns:
        What ``json.dumps`` takes, without NaN and infinities.

    Raises:
        InvalidInput: for anything else.
    """
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return value.value if isinstance(value, Adjacency) else str(value)
    if isinstance(value, float):
        return _plain_float(value, name)
    if isinstance(value, list):
        return [to_plain(item, name) for item in value]
    if isinstance(value, tuple):
        return {"tuple": [to_plain(item, name) for item in value]}
    if isinstance(value, range):
        return {"range": [value.start, value.stop, value.step]}
    if isinstance(value, Adjacency):
        return value.value
    if _RECORDS.get(type(value).__name__) is type(value):
        fields = {f.name: to_plain(getattr(value, f.name), name) for f in dataclasses.fields(value) if f.init}
        return {"type": type(value).__name__, "fields": fields}
    if hasattr(value, "__array__"):
        return _plain_array(np.asarray(value), name)
    raise InvalidInput(
        f"{name} is a {type(value).__name__}, which a model file cannot hold: use numbers, words, arrays, or a loss, "
        "penalty or solver of tacit's own"
    )


def _plain_float(value: float, name: str) -> Any:
    if math.isnan(value):
        raise InvalidInput(f"{name} is NaN: a model file holds numbers only")
    return float(value) if math.isfinite(value) else {"float": repr(float(value))}


def _plain_array(value: NDArray[Any], name: str) -> dict[str, Any]:
    dtype = "str" if value.dtype.kind == "U" else value.dtype.name
    if dtype in {*_NUMBERS, "bool"} and (value.size > LARGE or value.ndim == 3):
        return _plain_bytes(value, dtype, name)
    flat = value.ravel().tolist()
    if dtype not in _DTYPES or (dtype == "object" and not all(isinstance(item, str) for item in flat)):
        raise InvalidInput(f"{name} is an array of {value.dtype}, which a model file cannot hold: use numbers or words")
    if value.dtype.kind == "f":
        if np.isnan(value).any():
            raise InvalidInput(f"{name} holds NaN: a model file holds numbers only")
        flat = [item if math.isfinite(item) else repr(item) for item in flat]
    return {"array": flat, "dtype": dtype, "shape": list(value.shape)}


def _plain_bytes(value: NDArray[Any], dtype: str, name: str) -> dict[str, Any]:
    if value.dtype.kind == "f" and np.isnan(value).any():
        raise InvalidInput(f"{name} holds NaN: a model file holds numbers only")
    data = value.astype(value.dtype.newbyteorder("<")).tobytes()
    return {"base64": base64.b64encode(data).decode(), "dtype": dtype, "shape": list(value.shape)}


def from_plain(data: Any) -> Any:
    """The inverse of ``to_plain``; constructors validate again.

    Args:
        data: parsed JSON, possibly edited.

    Returns:
        The value.

    Raises:
        InvalidInput: if it is not what ``to_plain`` writes.
    """
    if data is None or isinstance(data, bool | int | str):
        return data
    if isinstance(data, float):
        if not math.isfinite(data):
            raise InvalidInput("it holds a number that is not finite")
        return data
    if isinstance(data, list):
        return [from_plain(item) for item in data]
    for key, read in _READERS.items():
        if isinstance(data, dict) and key in data:
            return read(data)
    raise InvalidInput("it holds an entry of an unknown kind")


def _tuple(data: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(from_plain(item) for item in data["tuple"])


def _infinity(data: dict[str, Any]) -> float:
    if data["float"] not in ("inf", "-inf"):
        raise InvalidInput("it holds a number that is neither finite nor infinite")
    return float(data["float"])


def _record(data: dict[str, Any]) -> Any:
    if data["type"] not in _RECORDS:
        raise InvalidInput("it names a loss, penalty or solver that this version does not know")
    fields = {str(name): from_plain(item) for name, item in data["fields"].items()}
    return _RECORDS[data["type"]](**fields)


def _array(data: dict[str, Any]) -> NDArray[Any]:
    flat, dtype, shape = data["array"], data["dtype"], data["shape"]
    if dtype not in _DTYPES or not isinstance(flat, list):
        raise InvalidInput("it holds an array of an unknown kind")
    if _size(shape, 2) != len(flat):
        raise InvalidInput("it holds an array whose shape does not fit its entries")
    out = np.array([_entry(item, dtype) for item in flat], dtype=np.dtype(dtype))
    if out.dtype.kind == "f" and np.isinf(out).sum() != sum(isinstance(item, str) for item in flat):
        raise InvalidInput("it holds a number that is not finite")
    return out.reshape(shape)


def _size(shape: Any, most: int) -> int:
    if not isinstance(shape, list) or len(shape) > most or any(type(size) is not int or size < 0 for size in shape):
        raise InvalidInput("it holds an array of an unknown shape")
    return math.prod(shape)


def _bytes(data: dict[str, Any]) -> NDArray[Any]:
    text, dtype, shape = data["base64"], data["dtype"], data["shape"]
    if not isinstance(dtype, str) or dtype not in {*_NUMBERS, "bool"} or not isinstance(text, str):
        raise InvalidInput("it holds an array of an unknown kind")
    kind = np.dtype(dtype)
    try:
        raw = base64.b64decode(text.encode(), validate=True)
    except binascii.Error:
        raise InvalidInput("it holds an array that is not base64") from None
    if _size(shape, 3) * kind.itemsize != len(raw):
        raise InvalidInput("it holds an array whose shape does not fit its entries")
    if kind.kind == "b" and raw.strip(b"\0\1"):
        raise InvalidInput("it holds an array of bool with an entry of another kind")
    out = np.frombuffer(raw, kind.newbyteorder("<")).astype(kind)
    if kind.kind == "f" and np.isnan(out).any():
        raise InvalidInput("it holds an array with NaN")
    return out.reshape(shape)


def _range(data: dict[str, Any]) -> range:
    ends = data["range"]
    if not isinstance(ends, list) or len(ends) != 3 or any(type(end) is not int for end in ends) or ends[2] == 0:
        raise InvalidInput("it holds a range of an unknown kind")
    return range(*ends)


def _entry(item: Any, dtype: str) -> Any:
    if dtype in ("str", "object"):
        fits = type(item) is str
    elif dtype == "bool":
        fits = type(item) is bool
    elif dtype.startswith("float"):
        fits = type(item) in (int, float) or item in ("inf", "-inf")
        item = float(item) if fits else item
    else:
        limits = np.iinfo(dtype)
        fits = type(item) is int and limits.min <= item <= limits.max
    if not fits:
        raise InvalidInput(f"it holds an array of {dtype} with an entry of another kind")
    return item


_READERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "tuple": _tuple,
    "float": _infinity,
    "type": _record,
    "array": _array,
    "base64": _bytes,
    "range": _range,
}
