"""The nodes of one run as the server sees them: it asks all at once, and loses them by a stated rule.

A node is lost if it cannot be reached within ``timeout``, refuses, or answers something that does not belong to the
question (another session, step or question, other shapes, numbers that cannot be noise sums, the bits of an earlier
answer). Then, by ``on_loss``:

- "stop": the run ends with an error that says what is spent. With a journal it can be gone on with where nodes still
  have their sessions.
- "drop": the run goes on without this node as long as ``min_nodes`` are left; before anything is spent, it is planned
  anew for those that are left. What the node has released stays covered by its certificate.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tacit import _codec, _validate
from tacit.errors import InvalidInput, TacitError
from tacit.federation.errors import FederationError, LinkLost
from tacit.federation.journal import Journal
from tacit.federation.links import LINK, Link, members, waiting_time
from tacit.federation.wire import Message, decode, digest_of, encode, one_line

__all__ = ["ON_LOSS", "Rule", "Task", "Team"]

Array = NDArray[np.float64]
ON_LOSS = ("stop", "drop")
MAX_ENTRY = 1e60
"""Entries of sums, noise included, that can be added and squared."""
MIN_SIZE = 8
"""Numbers of a sum from which on equal bits cannot be chance."""
GOODBYE = 5.0
"""Seconds to tell nodes that nothing will follow."""


@dataclass(frozen=True)
class Rule:
    """What becomes of a run when a node is lost.

    Attributes:
        on_loss: "stop" or "drop".
        min_nodes: with how many nodes a run goes on, for "drop".
        timeout: seconds for each answer.
    """

    on_loss: str = "stop"
    min_nodes: int | None = None
    timeout: float = 600.0

    def __post_init__(self) -> None:
        _validate.one_of(ON_LOSS, on_loss=self.on_loss)
        object.__setattr__(self, "timeout", waiting_time(self.timeout))
        if self.on_loss == "stop":
            if self.min_nodes is not None:
                raise InvalidInput("min_nodes has no effect with on_loss='stop': leave it out, or set on_loss='drop'")
            return
        if self.min_nodes is None:
            raise InvalidInput("min_nodes is missing: on_loss='drop' needs a number of nodes to go on with, e.g. 2")
        _validate.positive_int(min_nodes=self.min_nodes)


class Task(Protocol):
    """What is done together: which statements, proposals and offers belong to it."""

    def statement(self, fields: dict[str, Any]) -> dict[str, Any]:
        """What a node says about itself, checked; plain data."""

    def proposal(self, statements: dict[int, dict[str, Any]]) -> Any:
        """A described proposal for these nodes; ``FederationError`` if they do not belong together."""

    def offer(self, statement: dict[str, Any], text: object, proposal: Any) -> Any:
        """A node's certificate, certified again."""


class Team:
    """The nodes of one run.

    Args:
        links: to the nodes.
        rule: for lost ones.
        journal: keeps what was answered, or None.

    Attributes:
        alive: numbers of the nodes that take part.
        begun: numbers of those that have reserved their budgets.
        dropped: why others do not.
        step: how many steps were answered.
    """

    def __init__(self, links: Sequence[Link], rule: Rule, journal: Journal | None = None) -> None:
        self._links: list[Link] = members("links", links, LINK, "a link to a node")
        self.rule, self._journal = rule, journal
        self.alive, self.begun, self.step = list(range(len(self._links))), list[int](), 0
        self.dropped: dict[int, str] = {}
        self.statements: dict[int, dict[str, Any]] = {}
        self._tokens: dict[int, str] = {}
        self._desks: dict[int, str] = {}
        self._seen: dict[int, set[str]] = {i: set() for i in self.alive}
        if rule.min_nodes is not None and rule.min_nodes > len(self._links):
            raise InvalidInput(f"min_nodes={rule.min_nodes} is more than the {len(self._links)} nodes that there are")

    # -- before anything is spent ---------------------------------------------------------------------------------

    def agree(self, task: Task) -> dict[int, Any]:
        """Ask what nodes are, propose, and read the certificates that they offer.

        Args:
            task: what is proposed; it is asked again if a node is dropped on the way.

        Returns:
            What each node promises, as the task read it.
        """
        head = None if self._journal is None else self._journal.head
        if head is not None:
            return self._go_on(head, task)
        for i, found in self._ask_all(encode("describe"), "node"):
            self._guarded(i, self.statements, task.statement, found.fields)
            self._desks[i] = str(found.fields.get("desk"))
        self._check_distinct()
        while True:
            self.statements = {i: self.statements[i] for i in self.alive}
            proposal, offers, texts = task.proposal(self.statements), dict[int, Any](), dict[int, Any]()
            question = encode("propose", proposal=_codec.encode(proposal))
            for i, offer in self._ask_all(question, "offer"):
                self._tokens[i], texts[i] = str(offer.fields.get("session")), offer.fields.get("certificate")
                self._guarded(i, offers, task.offer, self.statements[i], texts[i], proposal)
            if len(offers) == len(self.statements):
                break
        if self._journal is not None:
            listed = [[i, self.statements[i], self._tokens[i], texts[i]] for i in self.alive]
            self._journal.begin(proposal=digest_of(question), nodes=len(self._links), offers=listed)
        return offers

    def _guarded(self, i: int, into: dict[int, Any], read: Callable[..., Any], *said: Any) -> None:
        """Read what a node says about itself; lose it if that cannot be."""
        try:
            into[i] = read(*said)
        except TacitError as error:
            self._lose(i, FederationError(f"made an offer that is none ({one_line(error)})"))

    def _go_on(self, head: Message, task: Task) -> dict[int, Any]:
        """From the head of a journal: the same nodes, statements and offers."""
        listed = head.fields["offers"]
        self.statements = {i: task.statement(statement) for i, statement, _, _ in listed}
        self._tokens = {i: token for i, _, token, _ in listed}
        proposal = task.proposal(self.statements)
        question = encode("propose", proposal=_codec.encode(proposal))
        if head.fields["proposal"] != digest_of(question) or head.fields["nodes"] != len(self._links):
            raise InvalidInput(
                "the journal belongs to a run with other settings or another number of nodes: begin a new run"
            )
        self.alive = list(self.statements)
        return {i: task.offer(self.statements[i], text, proposal) for i, _, _, text in listed}

    def _check_distinct(self) -> None:
        first: dict[str, int] = {}
        for i, desk in self._desks.items():
            if (j := first.setdefault(desk, i)) != i:
                raise InvalidInput(f"links[{j}] and links[{i}] are the same node: name it once in a federation")

    # -- the run ---------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """One after another: if one cannot, those after it have spent nothing."""
        known = None if self._journal is None else self._journal.begun
        if known is not None:  # whether they still have their sessions shows when they are asked
            self.alive, self.begun = list(known), list(known)
            return
        for i in list(self.alive):
            try:
                self._expect(i, "ready", self._submit(i, encode("begin", session=self._tokens[i])))
                self.begun.append(i)
            except FederationError as error:
                self._lose(i, error)
        if self._journal is not None:
            self._journal.all_begun(self.begun)

    def ask(self, state: Array | None, size: int, stds: dict[int, float], **fields: Any) -> dict[int, Array]:
        """The noisy sums of the next step, from every node that is left.

        Args:
            state: where to evaluate them.
            size: how many numbers each must have.
            stds: of each node's noise.
            **fields: the rest of the question.

        Returns:
            One sum per node.
        """
        name = digest_of(encode("step", state, step=self.step, **fields))
        sums = None if self._journal is None else self._journal.recorded(self.step, name)
        if sums is None:
            sums = self._answers(state, size, stds, fields)
            if self._journal is not None:
                self._journal.add(name, sums)
        else:
            for i in [i for i in self.alive if i not in sums]:
                self._lose(i, LinkLost("was dropped before the server stopped"))
        for i, found in sums.items():
            self._seen[i].add(digest_of(found.tobytes()))
        self.step += 1
        return sums

    def _answers(
        self, state: Array | None, size: int, stds: dict[int, float], fields: dict[str, Any]
    ) -> dict[int, Array]:
        questions = {i: encode("step", state, session=self._tokens[i], step=self.step, **fields) for i in self.alive}
        sums: dict[int, Array] = {}
        for i, answer in self._ask_all(questions, "sum"):
            try:
                sums[i] = self._checked(i, answer, digest_of(questions[i]), size, stds[i])
            except FederationError as error:
                self._lose(i, error)
        return sums

    def _checked(self, i: int, answer: Message, question: str, size: int, std: float) -> Array:
        found, said = answer.array, answer.fields
        mine = (said.get("session"), said.get("step"), said.get("question"))
        if mine != (self._tokens[i], self.step, question):
            raise FederationError("sent the answer to another question")
        if found is None or found.shape != (size,) or not (np.abs(found) < MAX_ENTRY).all():  # nor NaN
            raise FederationError("sent something else than the sum of this step")
        noisy = size >= MIN_SIZE and std > 1e-9 * float(np.abs(found).max())
        if noisy and digest_of(found.tobytes()) in self._seen[i]:
            raise FederationError("sent an earlier answer again, which fresh noise rules out")
        return found

    def end(self) -> None:
        """Tell nodes that all is said, and forget the journal."""
        self._goodbye()
        if self._journal is not None:
            self._journal.end()

    def stop(self) -> None:
        """Nodes need not keep a session that nobody will go on with."""
        if self._journal is None or (self._journal.head is None and not self.begun):
            self._goodbye()
            if self._journal is not None:
                self._journal.end()

    def _goodbye(self) -> None:
        waiting = []
        for i in self.alive:
            if i in self._tokens:
                with contextlib.suppress(TacitError, OSError):
                    waiting.append(self._links[i].submit(encode("end", session=self._tokens[i]), GOODBYE))
        for one in waiting:
            with contextlib.suppress(TacitError, OSError):
                one.result()

    # -- asking ----------------------------------------------------------------------------------------------------

    def _ask_all(self, question: bytes | dict[int, bytes], kind: str) -> Iterator[tuple[int, Message]]:
        """Every node's answer; all are asked before the first is waited for."""
        waiting: dict[int, Any] = {}
        for i in list(self.alive):
            try:
                waiting[i] = self._submit(i, question if isinstance(question, bytes) else question[i])
            except FederationError as error:
                self._lose(i, error)
        for i, one in waiting.items():
            try:
                found = self._expect(i, kind, one)
            except FederationError as error:
                self._lose(i, error)
            else:
                yield i, found

    def _submit(self, i: int, message: bytes) -> Any:
        return self._links[i].submit(message, self.rule.timeout)

    def _expect(self, i: int, kind: str, pending: Any) -> Message:
        raw = pending.result()
        try:
            message = decode(raw)
        except FederationError as error:
            raise FederationError(f"sent what is {error}") from None
        if message.kind == "refused":
            raise FederationError(f"refused: {one_line(message.fields.get('reason', 'no reason given'))}")
        if message.kind != kind:
            raise FederationError(f"sent {one_line(message.kind)!r} where {kind!r} was expected")
        return message

    # -- losing ----------------------------------------------------------------------------------------------------

    def _lose(self, i: int, error: FederationError) -> None:
        """Raise, or go on without the node, by the rule."""
        if self.rule.on_loss == "stop":
            raise self._error(i, error) from None
        self.alive.remove(i)
        when = f"at step {self.step}" if i in self.begun else "before it had begun"
        self.dropped[i] = f"node {i} was dropped {when}: {one_line(error)}"
        least = self.rule.min_nodes or 1
        if len(self.alive) < least:
            raise FederationError(
                f"{len(self.alive)} of {len(self._links)} nodes are left, and min_nodes={least} ({self.dropped[i]}); "
                f"{self.standing}"
            ) from None

    @property
    def standing(self) -> str:
        """What is spent, and what can be done."""
        if not self.begun:
            return "nothing was spent: mend it and call fit again"
        spent = f"at step {self.step}, so that no model was made: what nodes have reserved stays spent"
        if self._journal is not None:
            return (
                f"{spent}; call fit again with the same journal and resume=True to go on where nodes still have their "
                "sessions"
            )
        return f"{spent}, and a new fit is a new reservation at every node"

    def _error(self, i: int, error: FederationError) -> FederationError:
        node = f"node {i} of {len(self._links)}"
        if isinstance(error, LinkLost):
            return LinkLost(f"{node} was lost ({one_line(error)}), see its own log; {self.standing}")
        return FederationError(f"{node} {error}; {self.standing}")
