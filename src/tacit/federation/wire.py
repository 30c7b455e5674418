"""Messages as bytes: a JSON header and raw float64 numbers. Reading one runs no foreign code and allocates no surprise.

"tct2" | header length, 4 bytes | header: JSON | numbers: little-endian float64, as many as the header's shape says

Descriptions (proposals, queries, maps) travel in the header as the codec writes them, and are built only when they are
asked for (``Message.described``), after they were measured.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from tacit import _codec
from tacit.errors import InvalidInput
from tacit.federation.errors import FederationError

__all__ = ["MAX_MESSAGE", "Message", "decode", "digest_of", "encode", "one_line"]

Array = NDArray[np.float64]
MAX_MESSAGE = 1 << 28
"""Bytes of a message: a longer one is not read. The longest sum that a proposal may ask for takes half of it."""
MAX_HEADER = 1 << 27
MAX_VALUES = 1 << 24
"""Values that a description in a message may stand for."""
_START = struct.Struct(">4sI")
_MAGIC = b"tct2"
_MAX_REASON = 400


@dataclass(frozen=True, eq=False)
class Message:
    """What was read.

    Attributes:
        kind: what it is about.
        fields: the rest of the header; unchecked.
        array: its numbers, or None; of any value.
    """

    kind: str
    fields: dict[str, Any]
    array: Array | None = None

    def described(self, name: str) -> Any:
        """A description in the header, built by the codec from registered classes only.

        Args:
            name: of the field.

        Returns:
            The object.

        Raises:
            InvalidInput: if there is none, or it is too large.
        """
        if name not in self.fields:
            raise InvalidInput(f"{name} is missing: use the same version of tacit on both sides")
        return _codec.decode(self.fields[name], limit=MAX_VALUES)


def encode(kind: str, array: Array | None = None, **fields: Any) -> bytes:
    """A message as bytes.

    Args:
        kind: what it is about.
        array: numbers to send along.
        fields: plain data for the header.

    Returns:
        The bytes.

    Raises:
        FederationError: if they are more than the other side would take.
    """
    shape = None if array is None else list(array.shape)
    header = json.dumps({**fields, "kind": kind, "shape": shape}, allow_nan=False).encode()
    body = b"" if array is None else np.ascontiguousarray(array, "<f8").tobytes()
    if len(header) > MAX_HEADER or _START.size + len(header) + len(body) > MAX_MESSAGE:
        raise FederationError(
            f"a message of {len(header) + len(body)} bytes is too long: use fewer components or features"
        )
    return _START.pack(_MAGIC, len(header)) + header + body


def decode(data: bytes) -> Message:
    """The inverse of ``encode``, for bytes from anywhere.

    Args:
        data: what arrived.

    Returns:
        The message.

    Raises:
        FederationError: if it is not one; the reason quotes nothing of it.
    """
    if len(data) < _START.size or len(data) > MAX_MESSAGE:
        raise FederationError("not a message: too short or too long")
    magic, length = _START.unpack_from(data)
    body = _START.size + length
    if magic != _MAGIC or length > MAX_HEADER or body > len(data):
        raise FederationError("not a message: it begins in another way; use the same version of tacit on both sides")
    try:
        header = json.loads(data[_START.size : body].decode(), parse_constant=_no_constant)
    except (ValueError, RecursionError):
        header = None
    if not isinstance(header, dict) or not isinstance(header.get("kind"), str) or "shape" not in header:
        raise FederationError("not a message: its header is not understood")
    kind, shape = header.pop("kind"), header.pop("shape")
    return Message(kind, header, _numbers(shape, memoryview(data)[body:]))


def digest_of(data: bytes) -> str:
    """A name of a message: an answer repeats that of its question."""
    return hashlib.sha256(data).hexdigest()


def _numbers(shape: object, body: memoryview) -> Array | None:
    if shape is None and not body:
        return None
    sizes: list[Any] = shape if isinstance(shape, list) else []
    whole = all(type(size) is int and 0 < size <= MAX_MESSAGE for size in sizes)
    if not whole or len(sizes) not in (1, 2) or 8 * math.prod(sizes) != len(body):
        raise FederationError("not a message: its numbers are not those that its header announces")
    return np.frombuffer(body, "<f8").astype(np.float64).reshape(sizes)


def one_line(text: object) -> str:
    """A foreign reason, fit for a message of ours: printable, one line, not long."""
    words = " ".join(str(text)[: 4 * _MAX_REASON].split())
    return "".join(c for c in words if c.isprintable())[:_MAX_REASON]


def _no_constant(name: str) -> NoReturn:
    raise ValueError(name)
