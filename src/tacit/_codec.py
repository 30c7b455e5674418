"""The only serialiser of descriptions: registered classes as JSON values and back, and their digests.

    {"type": tag, field: …}     a frozen dataclass that is ``@described(tag)``; a tag is the class's name in files
    {"enum": tag, "name": …}    a member of an Enum that is ``@described(tag)``
    {key: …}                    a ``@leaf(key)``: a class with a compact form of its own, e.g. run lengths
    {"ndarray": dtype, "shape": […], "data": …}    a numpy array, base64 of its little-endian bytes
    {"ndarray": "text" or "object", "shape": […], "data": […]}    one of words, or of words and numbers
    {"list": […]}, {"dict": {…}}, {"float": "inf"}, {"range": [start, stop, step]}
    […]                         a tuple; numbers, text, true, false and null stand for themselves

Reading makes objects of registered classes only, and nothing at all before the whole value has been measured: nodes,
array lengths and whatever a short form stands for (a constant over 10⁹ steps counts 10⁹).
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
from collections.abc import Callable, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np

from tacit.errors import InvalidInput

__all__ = ["LIMIT", "decode", "described", "digest", "encode", "is_described", "leaf", "parse", "registered"]

T = TypeVar("T")

LIMIT = 50_000_000
"""Values that a description may stand for, unless the reader says otherwise."""
MAX_DEPTH = 64
_DTYPES = ("|b1", "|i1", "|u1", *(f"<{kind}{size}" for kind in "iuf" for size in (2, 4, 8)), "<c8", "<c16")
_WORDS = {"text": np.str_, "object": np.object_}
_OWN_KEYS = ("type", "enum", "ndarray", "list", "dict", "float", "range")
_KEPT = object()

_classes: dict[str, type[Any]] = {}
_leaves: dict[str, type[Any]] = {}
_tags: dict[type[Any], str] = {}
_expanding: dict[str, tuple[str, ...]] = {}


# -- registration -----------------------------------------------------------------------------------------------


def described(tag: str, *, expands: tuple[str, ...] = ()) -> Callable[[type[T]], type[T]]:
    """Register a frozen dataclass or an Enum, so that it can be written, read back and named by a digest.

    A field with ``metadata={"absent": value}`` leaves no trace in files where it holds that value, so that a field
    that is added later changes no digest.

    Args:
        tag: the class's name in files, for ever; the class itself may be renamed.
        expands: fields whose value is a number of elements that the object may be laid out as.

    Returns:
        A decorator that returns the class.
    """

    def register(cls: type[T]) -> type[T]:
        if not issubclass(cls, Enum):
            _check_dataclass(cls)
        _take(_classes, tag, cls)
        _expanding[tag] = expands
        return cls

    return register


def leaf(key: str) -> Callable[[type[T]], type[T]]:
    """Register a class that writes itself: ``to_json()``, ``from_json(data)`` and, if short, ``json_size(data)``.

    Args:
        key: the only key of its JSON object.

    Returns:
        A decorator that returns the class.
    """

    def register(cls: type[T]) -> type[T]:
        if key in _OWN_KEYS:
            raise TypeError(f"the codec itself uses the key {key!r}: choose another one for {cls.__name__}")
        _take(_leaves, key, cls)
        return cls

    return register


def _check_dataclass(cls: type[Any]) -> None:
    own = "__dataclass_params__" in vars(cls)  # not its parent's
    if not own or not cls.__dataclass_params__.frozen:
        raise TypeError(f"{cls.__name__} must be a frozen dataclass: put @dataclass(frozen=True) below @described")
    if any(field.name == "type" for field in dataclasses.fields(cls)):
        raise TypeError(f"{cls.__name__} has a field 'type', which files use for the class: rename it")


def _take(names: dict[str, type[Any]], name: str, cls: type[Any]) -> None:
    """Give a name to a class; a class that is defined again (in a notebook) keeps its name, another one may not."""
    old = names.get(name)
    if old is not None and (old.__module__, old.__qualname__) != (cls.__module__, cls.__qualname__):
        raise TypeError(f"{name!r} already names {old.__module__}.{old.__qualname__}: choose another name")
    names[name] = cls
    _tags[cls] = name


def registered() -> Mapping[str, type[Any]]:
    """Every described class by its tag."""
    return MappingProxyType(_classes)


def is_described(value: object) -> bool:
    """Whether the value's own class (a parent does not count) can be written and read back."""
    return type(value) in _tags


# -- writing ----------------------------------------------------------------------------------------------------


def encode(value: Any) -> Any:
    """A JSON value that ``decode`` turns into an equal object.

    Args:
        value: a described object, a leaf, an array, or tuples, lists and dicts (of text keys) of such and of scalars.

    Returns:
        Dicts, lists and scalars that ``json`` writes exactly.

    Raises:
        InvalidInput: if something in it belongs to no registered class.
    """
    kind = type(value)
    if kind in _tags:
        return _encode_registered(value, _tags[kind])
    if isinstance(value, np.generic):
        return encode(value.item())
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"float": repr(value)}  # JSON has no infinity
    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, Enum)):
        return value
    if kind is tuple:
        return [encode(item) for item in value]
    if kind is list:
        return {"list": [encode(item) for item in value]}
    if kind is dict and all(type(key) is str for key in value):
        return {"dict": {key: encode(item) for key, item in value.items()}}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind is np.ndarray:
        return _encode_array(value)
    raise InvalidInput(
        f"a {kind.__name__} cannot be written to a file and read back: decorate its class with @described(name)"
    )


def _encode_registered(value: Any, tag: str) -> Any:
    if isinstance(value, Enum):
        return {"enum": tag, "name": value.name}
    if _leaves.get(tag) is type(value):
        return {tag: value.to_json()}
    fields = [f for f in dataclasses.fields(value) if f.init]
    stated = [f for f in fields if getattr(value, f.name) is not f.metadata.get("absent", _KEPT)]
    return {"type": tag, **{f.name: encode(getattr(value, f.name)) for f in stated}}


def _encode_array(value: np.ndarray[Any, Any]) -> dict[str, Any]:
    if value.dtype.kind in "UO":
        words = "text" if value.dtype.kind == "U" else "object"
        flat = value.ravel().tolist()
        if all(item is None or type(item) in (str, int, float, bool) for item in flat):
            return {"ndarray": words, "shape": list(value.shape), "data": [encode(item) for item in flat]}
    dtype = value.dtype.newbyteorder("<")
    if dtype.str not in _DTYPES:
        raise InvalidInput(f"an array of {value.dtype} cannot be written to a file: convert it to numbers or words")
    data = base64.b64encode(value.astype(dtype).tobytes()).decode("ascii")
    return {"ndarray": dtype.str, "shape": list(value.shape), "data": data}


def digest(value: Any) -> str:
    """A sha256 over the canonical JSON: names a description across machines and versions."""
    return hashlib.sha256(json.dumps(encode(value), sort_keys=True).encode()).hexdigest()


# -- reading ----------------------------------------------------------------------------------------------------


def parse(text: str | bytes) -> Any:
    """The JSON value of a text, whoever wrote it.

    Args:
        text: of a file.

    Returns:
        The value.

    Raises:
        InvalidInput: if it is not JSON, or nested too deeply to be read.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise InvalidInput("the text is nested too deeply to be read: it is not a description") from None
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"the text is not JSON: {_line(error)}") from None


def decode(value: Any, *, limit: float = LIMIT) -> Any:
    """The object that ``encode`` described; every constructor validates again.

    Args:
        value: parsed JSON, from anywhere.
        limit: how many values it may stand for; counted before anything is built.

    Returns:
        The object; tuples where ``encode`` was given tuples.

    Raises:
        InvalidInput: if the value is too large, nested too deeply, or describes nothing.
    """
    try:
        _size(value, 0, limit)
        return _build(value)
    except InvalidInput:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError) as error:
        raise InvalidInput(f"not a description: {_line(error)}") from None


def _line(error: Exception) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 200 else text[:197] + "..."


def _size(value: Any, depth: int, limit: float) -> int:
    """How many values this one stands for, itself included; refused as soon as they are too many."""
    if depth > MAX_DEPTH:
        raise InvalidInput(f"the description is nested more than {MAX_DEPTH} levels deep: it is not one of ours")
    if not isinstance(value, list | dict):
        return 1
    items = value if isinstance(value, list) else value.values()
    total = _within(1 + len(items), limit)
    for item in items:
        if isinstance(item, list | dict):  # the others count one each
            total = _within(total - 1 + _size(item, depth + 1, limit), limit)
    return total if isinstance(value, list) else _within(max(total, _expanded(value)), limit)


def _within(size: int, limit: float) -> int:
    if size > limit:
        raise InvalidInput(
            f"the description stands for more than {limit:,} values: raise the limit only if you know where it comes "
            "from"
        )
    return size


def _expanded(value: dict[str, Any]) -> int:
    """What a short form is laid out as; 0 for the others."""
    if "type" in value:
        return max([_count(value.get(name, 0)) for name in _expanding.get(value["type"], ())], default=0)
    if "ndarray" in value:
        return int(math.prod(_count(side) for side in value["shape"]))
    if "range" in value:
        return _length(value["range"])
    for key, data in value.items():
        if hasattr(_leaves.get(key), "json_size"):
            return int(_leaves[key].json_size(data))
    return 0


def _length(data: Any) -> int:
    start, stop, step = data
    if not all(type(number) is int and abs(number) < 2**63 for number in data) or step == 0:
        raise InvalidInput(f"a range of {_line_of(data)} is none: was the file edited?")
    return len(range(start, stop, step))


def _count(value: Any) -> int:
    if type(value) not in (int, float) or not 0 <= value < math.inf:
        raise InvalidInput(f"the description states a length of {_line_of(value)}: lengths are whole numbers")
    whole: int = math.ceil(value)
    return whole


def _line_of(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else text[:57] + "..."


def _build(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_build(item) for item in value)
    if not isinstance(value, dict):
        return value
    if "type" in value:
        return _build_dataclass(value)
    if value.keys() == {"enum", "name"}:
        return _named(value["enum"], Enum)[value["name"]]
    if value.keys() == {"ndarray", "shape", "data"}:
        return _build_array(value["ndarray"], value["shape"], value["data"])
    if len(value) != 1:
        raise InvalidInput(f"the keys {_line_of(sorted(value))} describe nothing: was the file edited?")
    ((key, data),) = value.items()
    if key == "list":
        return [_build(item) for item in data]
    if key == "dict":
        return {name: _build(item) for name, item in data.items()}
    if key == "float":
        return float(data)
    if key == "range":
        return range(*data)
    if key not in _leaves:
        raise InvalidInput(f"the key {_line_of(key)} describes nothing: was the file edited?")
    return _leaves[key].from_json(data)


def _named(tag: Any, kind: type[Any]) -> Any:
    cls = _classes.get(tag)
    if cls is None or issubclass(cls, Enum) is not (kind is Enum):
        raise InvalidInput(
            f"no class is described as {_line_of(tag)}: import the module that defines it, or read the file with the "
            "version that wrote it"
        )
    return cls


def _build_dataclass(value: dict[str, Any]) -> Any:
    cls = _named(value["type"], object)
    fields = {name: _build(item) for name, item in value.items() if name != "type"}
    unknown = fields.keys() - {f.name for f in dataclasses.fields(cls) if f.init}
    if unknown:
        raise InvalidInput(f"{value['type']} has no {_line_of(sorted(unknown)[0])}: was the file edited?")
    return cls(**fields)


def _build_array(dtype: Any, shape: list[int], data: str) -> np.ndarray[Any, Any]:
    if dtype not in (*_DTYPES, *_WORDS) or not all(type(side) is int for side in shape):
        raise InvalidInput(f"an array of {_line_of(dtype)} and shape {_line_of(shape)} is none that is written here")
    if dtype in _WORDS:
        items = [_build(item) for item in data]
        if not all(type(item) is str or (dtype == "object" and not isinstance(item, tuple | list)) for item in items):
            raise InvalidInput("an array of words holds something else: was the file edited?")
        flat_words = np.empty(len(items), dtype=object)
        flat_words[:] = items
        return flat_words.astype(_WORDS[dtype]).reshape(shape)
    length = math.prod(shape) * np.dtype(dtype).itemsize
    if len(data) != 4 * ((length + 2) // 3):
        raise InvalidInput(f"an array of shape {_line_of(shape)} has other data than it needs: was the file edited?")
    flat = np.frombuffer(base64.b64decode(data, validate=True), dtype)
    return flat.reshape(shape).copy()
