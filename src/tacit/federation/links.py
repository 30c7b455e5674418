"""What a server needs of the way to a node: a question goes out, an answer comes back, or none does in time.

Any object with ``submit`` and ``close`` is a link. ``tacit.federation.transport`` has those of gRPC with mutual TLS;
the links here stay inside of one process, for tests and pages.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.federation.errors import LinkLost

__all__ = ["LINK", "Link", "LocalLink", "Pending", "members", "waiting_time"]

MAX_WAIT = 1e6
"""Seconds that systems still understand."""
LINK = ("submit", "close")
"""What makes a link."""


class Pending(Protocol):
    """An answer that is on its way."""

    def result(self) -> bytes:
        """The answer; ``LinkLost`` if there is none before the deadline."""


class Link(Protocol):
    """The way to one node."""

    def submit(self, message: bytes, timeout: float) -> Pending:
        """Send a question, again if the line was cut; the answer, or ``LinkLost``, comes within so many seconds."""

    def close(self) -> None:
        """Ask nothing more."""


class _Answer:
    def __init__(self, answer: Callable[[bytes], bytes], message: bytes, timeout: float) -> None:
        self._timeout, self._found = timeout, cast("bytes | None", None)
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(answer, message), daemon=True)
        self._thread.start()

    def _run(self, answer: Callable[[bytes], bytes], message: bytes) -> None:
        try:
            self._found = answer(message)
        except BaseException as error:  # told by the thread that asks
            self._error = error

    def result(self) -> bytes:
        self._thread.join(self._timeout)
        if self._thread.is_alive():
            raise LinkLost(f"no answer for {self._timeout:g} seconds")
        if self._error is not None:
            raise self._error
        assert self._found is not None
        return self._found


class LocalLink:
    """A link inside of one process: each question is answered in a thread of its own.

    Args:
        answer: of the node's desk.
    """

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer: Callable[[bytes], bytes] | None = answer

    def submit(self, message: bytes, timeout: float) -> Pending:
        """Send a question.

        Args:
            message: whole.
            timeout: seconds to wait for the answer.

        Returns:
            The answer that is on its way.

        Raises:
            LinkLost: if the link is closed.
        """
        if self._answer is None:
            raise LinkLost("the link is closed")
        return _Answer(self._answer, bytes(message), timeout)

    def close(self) -> None:
        """Ask nothing more."""
        self._answer = None


def waiting_time(timeout: object) -> float:
    """A timeout as links take it: a positive number of seconds."""
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
        "give rows to a FactorNode or a LinearNode, nodes to serve_node (or threaded_nodes), and to fit what connect "
        "(or threaded_nodes) returns"
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
