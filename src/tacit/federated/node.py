"""A node: rows that stay where they are, and noisy sums that leave, under a certificate of the node's own.

The node trusts nobody. It states its own ε and bounds, plans the noise by itself, reserves its own budget before a row
is used, and adds all of its noise before anything is sent. Which H it is asked about may be chosen by an adversary who
knows everything sent before: the composition of Gaussian releases is adaptive and covers that.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit import _validate
from tacit.accounting import Certificate, certify
from tacit.errors import BudgetExhausted, InvalidInput, NotCovered, TacitError
from tacit.estimators import DPNMF
from tacit.estimators.factorise import MISSING
from tacit.federated.links import Link, LinkLost, waiting_time
from tacit.federated.proposal import SPLITS, Proposal
from tacit.federated.wire import FederationError, Message, decode, encode, one_line
from tacit.ledger import Ledger
from tacit.run import SEEDED, Channel, Streams
from tacit.run.blocks import BlockSum
from tacit.run.sums.factors import FactorRows, ItemFactors
from tacit.solvers.blocks import BlockPlan
from tacit.solvers.factorise import UPDATES

__all__ = ["FactorNode", "NodeSession", "Refused", "horizontal_mark", "vertical_mark"]

Array = NDArray[np.float64]
UNIT_ROWS = 1e-6
"""How far norms of rows of H may be from 1: clipping is tested for such rows."""
VERTICAL_UNIT = "item"


def horizontal_mark(unit: str) -> str:
    """Whom a node's certificate covers, where nodes hold rows."""
    return (
        f"federated, horizontal: one node's own noise, against the server, all other nodes and the public; declared: "
        f"the data of a {unit} are at this node only (what is at several nodes is covered by all of their certificates "
        f"together, not by one)"
    )


def vertical_mark() -> str:
    """Whom a node's certificate covers, where nodes hold columns."""
    return (
        "federated, vertical: a promise to items (columns of the table), not to people; the data of a person are "
        "spread over all nodes and no person is covered, and the factors of people are known to the server and to "
        "every node; an item's own factors stay at its node; declared: an item is at this node only"
    )


def _unit(unit: str | None, split: str) -> str:
    if split == "horizontal":
        return "person" if unit is None else unit
    if unit not in (None, VERTICAL_UNIT):
        raise InvalidInput(
            f"unit={unit!r} cannot be promised with split='vertical': the data of a person are spread over all nodes, "
            "so that a node can cover its items (columns) only; leave unit out, or bring all data of each person to "
            "one node and use split='horizontal'"
        )
    return VERTICAL_UNIT


class Refused(FederationError):
    """What the node says to the server, too: its words hold public things only."""


class Uncounted(BudgetExhausted):
    """A second session of a node that counts none; its words hold public things only, too."""


class FactorNode:
    """Rows of one owner, ready to take part in a private factorisation.

    Formal guarantee: everything that leaves in a session satisfies the session's certificate, (ε, δ)-DP for each row
    (split="horizontal") or column (split="vertical"), against everybody else together.

    Assumptions: ``row_norm`` and the shape of the table are public; the data of a unit are at one node only; what an
    observer learns from *when* messages are sent is not covered.

    Args:
        rows: (people, items), an array or a sparse matrix, or a function without arguments that returns one.
        epsilon: ε of a session.
        delta: δ.
        row_norm: U, a public bound on the norm of a row (of a column for "vertical"); longer ones are scaled down.
        adjacency: "replace-one" or "zero-out".
        split: "horizontal" if the rows are this node's own, "vertical" if the columns are.
        unit: whose data a row is; "person" if missing. For "vertical" it is "item" and nothing else.
        missing: "zero", or "unobserved": entries that are not stored (NaN in an array) are unknown. The server must
            propose the same.
        budget: a ``tacit.Ledger``. Without one the node serves one session and no second one.
        random_state: None for private noise.

    Raises:
        InvalidInput: if the table or a parameter is not as it should be.

    >>> node = FactorNode(np.ones((50, 4)), epsilon=1.0, delta=1e-6, row_norm=2.0)
    >>> session = node.session(Proposal(2, epochs=3))
    >>> round(session.certificate.epsilon(1e-6), 3), session.certificate.unit, session.steps
    (1.0, 'person', 3)
    """

    def __init__(
        self,
        rows: Any | Callable[[], Any],
        *,
        epsilon: float,
        delta: float,
        row_norm: float,
        adjacency: str = "replace-one",
        split: str = "horizontal",
        unit: str | None = None,
        missing: str = "zero",
        budget: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        self.split = _validate.one_of(SPLITS, split=split)
        self.missing = _validate.one_of(MISSING, missing=missing)
        self.unit = _unit(unit, self.split)
        self._terms: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "row_norm": row_norm,
            "adjacency": adjacency,
            "unit": self.unit,
            "budget": budget,
            "random_state": random_state,
        }
        schema = DPNMF(1, epochs=1, missing=self.missing, **self._terms)
        table = schema._checked(rows() if callable(rows) else rows, reset=True)
        schema.planned_certificate(*table.shape)  # the owner's own parameters are refused here, and not to a server
        self._names: list[str] | None = list(getattr(schema, "feature_names_in_", ())) or None
        if self.split == "vertical":
            table = table.T.tocsr() if sparse.issparse(table) else np.ascontiguousarray(table.T)
        self._table, self.row_norm = table, float(row_norm)
        self._lock, self._sessions = threading.Lock(), 0

    @property
    def shape(self) -> tuple[int, int]:
        """How many units are covered here, and how many columns all nodes share. Both are public."""
        n, columns = self._table.shape
        return int(n), int(columns)

    def session(self, proposal: Proposal) -> NodeSession:
        """Plan a session: the noise, and its certificate, from public numbers. Nothing is spent yet.

        Args:
            proposal: what the server wants.

        Returns:
            The session.

        Raises:
            InvalidInput: if the proposal does not fit this node.
        """
        for name in ("split", "missing"):
            mine, theirs = getattr(self, name), getattr(proposal, name)
            if mine != theirs:
                raise InvalidInput(f"{name}={theirs!r} was proposed, this node says {mine!r}: agree on one")
        n, columns = self.shape
        proposal.size(columns)
        names = proposal.item_names
        if names is not None and (len(names) != columns or self._names not in (None, list(names))):
            raise InvalidInput("item_names are not the columns of this node, in their order: agree on the items first")
        model = DPNMF(**proposal.parameters, **self._terms)
        plan, weight = model._planned(n, columns)
        streams = Streams(model.random_state)
        certificate = self._marked(plan, model, seeded=streams.seeded)
        self._check_room(certificate)
        rows = FactorRows(self._table, self.row_norm, observed_only=self.missing == "unobserved")
        problem = ItemFactors(rows, plan.blocks[0], UPDATES[model.update], weight=weight, ridge=model.person_l2)
        return NodeSession(self, certificate, problem, streams)

    def _marked(self, plan: BlockPlan, model: DPNMF, *, seeded: bool) -> Certificate:
        certificate = plan.certificate
        if self.split == "vertical":
            label = "factors of people, from items"
            certificate = certify(replace(plan.mechanism, label=label), delta=self._terms["delta"])
        words = vertical_mark() if self.split == "vertical" else horizontal_mark(self.unit)
        joint = () if self.split == "vertical" else (model._mark(),)
        for mark in (*joint, words, *((SEEDED,) if seeded else ())):
            certificate = certificate.marked(mark)
        return certificate

    def _check_room(self, certificate: Certificate) -> None:
        """Refuse early what ``reserve`` would refuse: other nodes would have paid by then."""
        budget = self._terms["budget"]
        if budget is None and self._sessions:
            raise Uncounted(
                "this node has served a session and keeps no ledger, so that a second one would not be counted: give "
                "it budget=Ledger(...)"
            )
        if budget is None:
            return
        left = budget.remaining()
        gaussian = certificate.mu is not None and certificate.mu <= left.mu * (1 + 1e-9)
        basic = 0 < left.basic_delta < 1 and certificate.epsilon(left.basic_delta) <= left.basic_epsilon
        if not gaussian and not basic:
            raise BudgetExhausted("the budget of this node has no room for the proposed run: propose it to others")

    def _reserve(self, certificate: Certificate) -> None:
        """Before a row is used."""
        budget = self._terms["budget"]
        with self._lock:
            if budget is None and self._sessions:
                raise Uncounted(
                    "another session of this node began after this one was proposed, and a node without a ledger "
                    "serves one: name it once in a federation, and give it budget=Ledger(...) if it serves several"
                )
            if budget is not None:
                budget.reserve(certificate, f"FactorNode, {self.split}")
            self._sessions += 1

    def serve(self, link: Link, *, timeout: float | None = 600.0) -> Certificate:
        """Answer one server, for one session: as many sums as were certified, in their order, and no more.

        Args:
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
        wait = waiting_time(timeout)
        talk = _Talk(self, link, wait)
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


class NodeSession:
    """One plan of a node, on its way: made by ``FactorNode.session``.

    Attributes:
        certificate: of all answers together.
        steps: how many answers there will be.
        taken: how many there have been.
        begun: whether the budget is spent.
    """

    def __init__(self, node: FactorNode, certificate: Certificate, problem: ItemFactors, streams: Streams) -> None:
        self.certificate, self._node, self._problem, self._streams = certificate, node, problem, streams
        (block,) = problem.blocks
        self._shape = block.shape
        (mechanism,) = certificate.plan.parts
        self.steps, self.taken = int(getattr(mechanism, "steps", 0)), 0
        self._total = BlockSum(problem, 0)
        self.begun = False
        self._channel: Channel | None = None

    def begin(self) -> None:
        """Spend the budget: all of it, before the first row is used, and for good.

        Raises:
            Refused: if it has begun already.
        """
        if self.begun:
            raise Refused("the session has begun already: go on with its steps")
        self._node._reserve(self.certificate)
        self.begun = True
        self._channel = Channel(self.certificate, self._problem.records, streams=self._streams)

    def answer(self, step: object, factors: Array | None) -> Array:
        """The noisy sum of the next step.

        Args:
            step: its number, from 0; each is answered once.
            factors: H (components, columns), from anybody: non-negative rows of norm 1.

        Returns:
            The sum with all of its noise.

        Raises:
            Refused: if the step or the factors are not as they should be; no row is used then.
        """
        if self._channel is None:
            raise Refused("the session has not begun: send 'begin' first")
        if self.taken >= self.steps:
            raise Refused(f"all {self.steps} certified steps are answered: propose another session")
        if type(step) is not int or step != self.taken:
            raise Refused(f"step {self.taken} is next, each is answered once and in order: end this session")
        H = _unit_rows(factors, (int(self._shape[0]), int(self._shape[1])))
        self.taken += 1
        return np.asarray(self._channel.release(self._total, H.ravel()[None])[0])


def _unit_rows(H: Array | None, shape: tuple[int, int]) -> Array:
    """H as a server may send it.

    Our own updates make non-negative rows of norm 1, and the clipping of contributions is tested for those: lengths are
    partly computed as differences, whose rounding is small there. So nothing else is taken.

    Returns:
        H itself.

    Raises:
        Refused: if it is anything else.
    """
    if H is None or H.shape != shape:
        raise Refused(f"the factors must have shape {shape}: send those of the session")
    if not np.isfinite(H).all() or (H < 0).any():
        raise Refused("the factors must be finite and non-negative: project them")
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(H, axis=1)
    if not (np.abs(norms - 1) <= UNIT_ROWS).all():
        raise Refused("every row of the factors must have norm 1: scale them")
    return np.ascontiguousarray(H, np.float64)


class _Talk:
    """One session on the wire."""

    def __init__(self, node: FactorNode, link: Link, wait: float | None) -> None:
        self._node, self._link, self._wait = node, link, wait
        self._session: NodeSession | None = None

    def run(self) -> Certificate:
        session = self._session = self._planned(self._next("propose").fields)
        n, columns = self._node.shape
        offer: dict[str, Any] = {"units": n, "columns": columns, "row_norm": self._node.row_norm}
        self._link.send(encode("offer", **offer, certificate=session.certificate.to_json()))
        self._next("begin")
        session.begin()
        self._link.send(encode("ready"))
        for step in range(session.steps):
            request = self._next("step")
            noisy = session.answer(request.fields.get("step"), request.array)
            self._link.send(encode("sum", noisy, step=step))
        with contextlib.suppress(LinkLost):  # everything has been said
            self._next("end")
        return session.certificate

    def _planned(self, settings: dict[str, Any]) -> NodeSession:
        """Only public numbers are met here, so that faults may be told."""
        try:
            return self._node.session(Proposal.read(settings))
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
        if session is None or not session.begun:
            return "before the session began; nothing was spent"
        return (
            f"after {session.taken} of {session.steps} steps; the session's budget stays spent, and serving again is a "
            "new session with a new reservation"
        )

    def tell(self, reason: str) -> None:
        with contextlib.suppress(TacitError, OSError):
            self._link.send(encode("refused", reason=one_line(reason)))
