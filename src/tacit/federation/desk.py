"""The desk of a node: bytes in, bytes out, one question at a time, and nothing that a row could have changed but sums.

A question may arrive twice (a line was cut, a deadline was missed): the answer to the last one is kept and repeated to
the bit, so that nothing new is released and nothing is lost. Sessions outlive the lines on which they are asked.
"""

from __future__ import annotations

import contextlib
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from tacit.errors import BudgetExhausted, InvalidInput, NotCovered, TacitError
from tacit.federation.errors import FederationError, Refused, Uncounted
from tacit.federation.node import Node, NodePlan, NodeSession
from tacit.federation.wire import Message, decode, digest_of, encode, one_line

__all__ = ["Desk"]

LOG = logging.getLogger("tacit.federation")
PATIENCE = 3600.0
"""Seconds without a question after which a session ends."""
MAX_OFFERS = 32
"""Plans that are kept for servers that have not begun; the oldest makes room."""


@dataclass(eq=False)
class _Served:
    """One plan that was offered, and its session once it has begun."""

    plan: NodePlan
    caller: str
    used: float
    lock: threading.Lock = field(default_factory=threading.Lock)
    stack: ExitStack = field(default_factory=ExitStack)
    session: NodeSession | None = None
    last: tuple[str, bytes] = ("", b"")

    def close(self) -> None:
        self.session = None
        self.stack.close()


class Desk:
    """Answers messages for one node, whoever carries them.

    Args:
        node: whose rows are asked about.
        patience: seconds without a question after which a session ends; its budget stays spent.
        clock: for tests.
    """

    def __init__(self, node: Node, *, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic) -> None:
        self._node, self._patience, self._clock = node, patience, clock
        self._served: dict[str, _Served] = {}
        self._lock = threading.Lock()
        self.name = secrets.token_hex(8)
        """Of this desk, so that a server notices two links to one node."""

    def answer(self, raw: bytes, caller: str = "") -> bytes:
        """The answer to one message; a refusal where there is none.

        Args:
            raw: from anybody.
            caller: who sent it, as the transport knows; a session belongs to its caller.

        Returns:
            A message. It never raises for what was sent.
        """
        try:
            return self._answer(raw, caller)
        except (Refused, Uncounted) as refusal:
            return _refused(str(refusal))
        except BudgetExhausted:
            LOG.warning("refused: the budget of this node has no room")
            return _refused("the budget of this node has no room for the proposed run")
        except Exception:  # whatever it was, it may be about a row
            LOG.exception("the node stopped a session")
            return _refused("the node stopped: its owner knows why")

    def close(self) -> None:
        """End all sessions; what was reserved stays spent."""
        with self._lock:
            served, self._served = list(self._served.values()), {}
        for one in served:
            with one.lock:
                one.close()

    def _answer(self, raw: bytes, caller: str) -> bytes:
        try:
            message = decode(raw)
        except FederationError as error:
            raise Refused(str(error)) from None
        self._forget_idle()
        if message.kind == "describe":
            return encode("node", **self._node.statement(), desk=self.name)
        if message.kind == "propose":
            return self._offer(message, caller)
        if message.kind not in ("begin", "step", "end"):
            raise Refused("the question is none of those that a node answers: use one version of tacit")
        token, one = self._found(message, caller)
        with one.lock:
            one.used = self._clock()
            if message.kind == "begin":
                return self._begin(token, one)
            if message.kind == "end":
                self._drop(token, one)
                return encode("ended", session=token)
            return self._step(token, one, message, digest_of(raw))

    def _offer(self, message: Message, caller: str) -> bytes:
        """Only public numbers are met here, so that faults may be told."""
        try:
            plan = self._node.plan(message.described("proposal"))
        except (Refused, BudgetExhausted):
            raise
        except (InvalidInput, NotCovered, TypeError, ValueError) as error:
            raise Refused(one_line(error)) from None
        token = secrets.token_hex(16)
        with self._lock:
            waiting = [key for key, one in self._served.items() if one.session is None]
            for key in waiting[: max(len(waiting) - MAX_OFFERS + 1, 0)]:
                del self._served[key]
            self._served[token] = _Served(plan, caller, self._clock())
        return encode("offer", session=token, certificate=plan.certificate.to_json())

    def _begin(self, token: str, one: _Served) -> bytes:
        if one.session is None:
            try:
                one.session = one.stack.enter_context(one.plan.open())
            except BaseException:
                self._drop(token, one)
                raise
            LOG.info("a session has begun: %s", one.plan.certificate.digest)
        return encode("ready", session=token, steps=one.plan.steps, taken=one.session.taken)

    def _step(self, token: str, one: _Served, message: Message, digest: str) -> bytes:
        if digest == one.last[0]:
            return one.last[1]
        if one.session is None:
            raise Refused("the session has not begun: begin it")
        step = message.fields.get("step")
        try:
            noisy = one.session.answer(step, message.array, self._asked(message))
        except Refused:
            raise
        except BaseException:
            self._drop(token, one)
            raise
        answer = encode("sum", noisy, session=token, step=step, question=digest)
        one.last = (digest, answer)
        return answer

    def _asked(self, message: Message) -> Any:
        if "ask" not in message.fields:
            return None
        try:
            return message.described("ask")
        except InvalidInput as error:
            raise Refused(one_line(error)) from None

    def _found(self, message: Message, caller: str) -> tuple[str, _Served]:
        token = message.fields.get("session")
        with self._lock:
            one = self._served.get(token) if isinstance(token, str) else None
        if one is None or one.caller != caller:
            raise Refused(
                "this node has no such session (it ended, or the node was started again): propose a new one, which is "
                "charged by itself"
            )
        assert isinstance(token, str)
        return token, one

    def _drop(self, token: str, one: _Served) -> None:
        with self._lock:
            self._served.pop(token, None)
        one.close()

    def _forget_idle(self) -> None:
        now = self._clock()
        with self._lock:
            idle = [key for key, one in self._served.items() if now - one.used > self._patience]
            gone = [self._served.pop(key) for key in idle]
        for one in gone:
            if one.lock.acquire(blocking=False):
                with contextlib.suppress(TacitError):
                    one.close()
                one.lock.release()


def _refused(reason: str) -> bytes:
    return encode("refused", reason=one_line(reason))


def check_patience(patience: object) -> float:
    """Seconds, or for ever if None."""
    if patience is None:
        return math.inf
    if not isinstance(patience, int | float) or isinstance(patience, bool) or not patience > 0:
        raise InvalidInput(f"patience must be a positive number of seconds, or None, got {patience!r}")
    return float(patience)
