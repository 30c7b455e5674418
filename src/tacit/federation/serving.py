"""A node on a link: it answers one server, for one session, and says nothing that a row could have changed."""

from __future__ import annotations

import contextlib
from typing import Any

from tacit.accounting import Certificate
from tacit.errors import BudgetExhausted, InvalidInput, NotCovered, TacitError
from tacit.federation.errors import FederationError, LinkLost, Refused, Uncounted
from tacit.federation.links import Link, waiting_time
from tacit.federation.node import FactorNode, NodePlan, NodeSession
from tacit.federation.proposal import Proposal
from tacit.federation.wire import Message, decode, encode, one_line

__all__ = ["serve"]


def serve(node: FactorNode, link: Link, *, timeout: float | None = 600.0) -> Certificate:
    """Answer one server, for one session: as many sums as were certified, in their order, and no more.

    Args:
        node: whose rows are asked about.
        link: to the server.
        timeout: seconds to wait for each message; None for ever.

    Returns:
        The certificate of what has left.

    Raises:
        FederationError: if the server stopped; says what is spent.
        LinkLost: if it was lost; says what is spent.
        Refused: if it asked for anything that it may not have.
        BudgetExhausted: if the budget has no room; nothing was spent then.
        Uncounted: likewise, if there is no ledger and one session has been served.
    """
    talk = _Talk(node, link, waiting_time(timeout))
    try:
        return talk.run()
    except (Refused, Uncounted) as refusal:
        talk.tell(str(refusal))
        raise
    except LinkLost as lost:
        raise LinkLost(f"the server was lost ({lost}) {talk.standing}") from None
    except FederationError:
        raise
    except BudgetExhausted:
        talk.tell("the budget of this node has no room for the proposed run")
        raise
    except BaseException:
        talk.tell("the node stopped: its owner knows why")  # whatever it was, it may be about a row
        raise


class _Talk:
    """One session on the wire."""

    def __init__(self, node: FactorNode, link: Link, wait: float | None) -> None:
        self._node, self._link, self._wait = node, link, wait
        self._session: NodeSession | None = None

    def run(self) -> Certificate:
        plan = self._planned(self._next("propose").fields)
        n, columns = self._node.shape
        offer: dict[str, Any] = {"units": n, "columns": columns, "row_norm": self._node.row_norm}
        self._link.send(encode("offer", **offer, certificate=plan.certificate.to_json()))
        self._next("begin")
        with plan.open() as session:
            self._session = session
            self._link.send(encode("ready"))
            for step in range(session.steps):
                request = self._next("step")
                noisy = session.answer(request.fields.get("step"), request.array)
                self._link.send(encode("sum", noisy, step=step))
        with contextlib.suppress(LinkLost):  # everything has been said
            self._next("end")
        return plan.certificate

    def _planned(self, settings: dict[str, Any]) -> NodePlan:
        """Only public numbers are met here, so that faults may be told."""
        try:
            return self._node.plan(Proposal.read(settings))
        except (InvalidInput, NotCovered, TypeError) as error:
            raise Refused(one_line(error)) from None

    def _next(self, kind: str) -> Message:
        raw = self._link.receive(self._wait)
        try:
            message = decode(raw)
        except FederationError as error:
            raise Refused(str(error)) from None
        if message.kind == "stop":
            reason = one_line(message.fields.get("reason", "no reason given"))
            raise FederationError(f"the server stopped {self.standing}: {reason}")
        if message.kind != kind:
            raise Refused(f"'{kind}' was expected at this point: end this session")
        return message

    @property
    def standing(self) -> str:
        session = self._session
        if session is None:
            return "before the session began; nothing was spent"
        return (
            f"after {session.taken} of {session.steps} steps; the session's budget stays spent, and serving again is a "
            "new session with a new reservation"
        )

    def tell(self, reason: str) -> None:
        with contextlib.suppress(TacitError, OSError):
            self._link.send(encode("refused", reason=one_line(reason)))
