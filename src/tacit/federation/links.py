"""How bytes travel between a node and the server. Anything with ``send``, ``receive`` and ``close`` is a link.

The links here stay on one machine: queues between threads, and pipes between processes that one of them started.
Nothing here crosses a network: that takes authentication and encryption, which belong to a transport (TLS) and not to
this library; a link of your own over one will do.
"""

from __future__ import annotations

import contextlib
import os
import queue
import socket
import struct
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any, Protocol, cast

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.federation.errors import LinkLost
from tacit.federation.wire import MAX_MESSAGE

__all__ = ["LINK", "NODE_PATIENCE", "Link", "PipeLink", "link_pair", "members", "waiting_time"]

NODE_PATIENCE = 3600.0
"""Seconds that a node's message may take to leave: the server reads it after those of slower nodes."""
MAX_WAIT = 1e6
"""Seconds that systems still understand."""
LINK = ("send", "receive", "close")
"""What makes a link."""


class Link(Protocol):
    """One end of a connection between a node and the server: whole messages, in order."""

    def send(self, message: bytes) -> None:
        """Hand over a message; ``LinkLost`` if the other side is gone."""

    def receive(self, timeout: float | None = None) -> bytes:
        """The next message; ``LinkLost`` if there is none within ``timeout`` seconds, or will be none."""

    def close(self) -> None:
        """Tell the other side that no message will follow."""


class PipeLink:
    """A link over a pipe of ``multiprocessing``; bytes only, nothing is ever unpickled.

    Args:
        connection: connected, and not used otherwise.
        send_timeout: seconds that a message may take to leave; nodes have more patience.
    """

    def __init__(self, connection: Connection, *, send_timeout: float = 60.0) -> None:
        self._connection = connection
        _limit(connection, "SO_SNDTIMEO", _validate.positive(send_timeout=send_timeout))

    def send(self, message: bytes) -> None:
        """Hand over a message.

        Args:
            message: whole.

        Raises:
            LinkLost: if the other side is gone, or takes nothing.
        """
        try:
            self._connection.send_bytes(message)
        except BlockingIOError:
            self.close()  # half a message is out
            raise LinkLost("the other side takes no messages") from None
        except (OSError, ValueError):
            raise LinkLost("the link is closed") from None

    def receive(self, timeout: float | None = None) -> bytes:
        """The next message.

        Args:
            timeout: seconds, None for ever.

        Returns:
            Its bytes.

        Raises:
            LinkLost: if there is none in time, or it is longer than any message.
        """
        try:
            if not self._connection.poll(timeout):
                raise LinkLost(f"no message for {timeout:g} seconds")
            _limit(self._connection, "SO_RCVTIMEO", timeout)  # also for the rest of a message that has begun
            return self._connection.recv_bytes(MAX_MESSAGE)
        except BlockingIOError:
            self.close()
            raise LinkLost(f"a message was begun and not finished within {timeout:g} seconds") from None
        except LinkLost:
            raise
        except (EOFError, OSError, ValueError):
            raise LinkLost("the other side closed the link") from None

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _limit(connection: Connection, option: str, seconds: float | None) -> None:
    """No read or write of this socket blocks for longer; pipes of other systems have no such limit."""
    if os.name != "posix":
        return
    whole = 0 if seconds is None else int(seconds)
    micro = 0 if seconds is None else max(1, int((seconds - whole) * 1e6))  # (0, 0) would mean no limit
    with contextlib.suppress(OSError), socket.socket(fileno=os.dup(connection.fileno())) as handle:
        handle.setsockopt(socket.SOL_SOCKET, getattr(socket, option), struct.pack("@ll", whole, micro))


class _QueueLink:
    """One end of a pair inside of one process."""

    def __init__(self, inbox: queue.Queue[bytes | None], outbox: queue.Queue[bytes | None]) -> None:
        self._inbox, self._outbox, self._closed = inbox, outbox, False

    def send(self, message: bytes) -> None:
        if self._closed:
            raise LinkLost("the link is closed")
        self._outbox.put(bytes(message))

    def receive(self, timeout: float | None = None) -> bytes:
        try:
            message = None if self._closed else self._inbox.get(timeout=timeout)
        except queue.Empty:
            raise LinkLost(f"no message for {timeout:g} seconds") from None
        if message is None:
            self._closed = True
            raise LinkLost("the other side closed the link")
        return message

    def close(self) -> None:
        self._closed = True
        self._outbox.put(None)


def link_pair() -> tuple[Link, Link]:
    """Two ends inside of one process, for threads and trials."""
    there: queue.Queue[bytes | None] = queue.Queue()
    back: queue.Queue[bytes | None] = queue.Queue()
    return _QueueLink(back, there), _QueueLink(there, back)


def waiting_time(timeout: float | None) -> float | None:
    """A timeout as links take it: a positive number, or None for ever."""
    if timeout is None:
        return None
    return min(_validate.positive(timeout=timeout), MAX_WAIT)


def members(name: str, given: object, methods: tuple[str, ...], kind: str) -> list[Any]:
    """The parties of a federation, checked before any of them is sent a message.

    Args:
        name: of the argument, for the message.
        given: what the caller passed.
        methods: that each of them must have.
        kind: what each of them must be, for the message.

    Returns:
        All of them, at least one.

    Raises:
        InvalidInput: if there is none, one is something else, or one is there twice: two certificates would cover the
            same people together, and none of them alone.
    """
    how = (
        "give rows to FactorNode(rows, epsilon=..., delta=..., row_norm=...), nodes to threaded_nodes (or functions "
        "that make them to local_nodes), and the links that it yields to fit"
    )
    try:
        found = list(cast(Iterable[Any], given))
    except TypeError:
        raise InvalidInput(f"{name} must be a list, got {type(given).__name__}: {how}") from None
    if not found:
        raise InvalidInput(f"{name} is empty: a federation needs at least one node")
    first: dict[int, int] = {}
    for i, one in enumerate(found):
        if not all(callable(getattr(one, method, None)) for method in methods):
            raise InvalidInput(f"{name}[{i}] must be {kind}, got {type(one).__name__}: {how}")
        if (j := first.setdefault(id(one), i)) != i:
            raise InvalidInput(
                f"{name}[{j}] and {name}[{i}] are the same node: its certificate covers one part in a federation, so "
                "name it once"
            )
    return found
