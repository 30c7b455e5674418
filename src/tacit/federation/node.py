"""A node: records that stay where they are, and noisy sums that leave, under a certificate of the node's own.

The node trusts nobody. It states its own ε and bounds, plans the noise by itself, and opens a session of its own, which
reserves its budget before a row is used and adds all of its noise before anything is handed out. What it is asked may
be chosen by an adversary who knows everything sent before: the composition of Gaussian releases is adaptive and covers
that. How questions and answers travel is not a node's business (``tacit.federation.desk``).
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit.accounting import Certificate
from tacit.errors import BudgetExhausted, InvalidInput
from tacit.federation.errors import Refused, Uncounted
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency
from tacit.records import Persons, Records
from tacit.release import Session, marked_certificate, open_session

__all__ = ["Node", "NodePlan", "NodeSession", "horizontal_mark", "persons_of"]

Array = NDArray[np.float64]


def horizontal_mark(unit: str) -> str:
    """Whom a node's certificate covers, where nodes hold rows."""
    return (
        f"federated, horizontal: one node's own noise, against the server, all other nodes and the public; it covers a "
        f"{unit} by what is at this node only: whoever has rows at m nodes is covered by the m certificates together "
        f"(μ√m for m nodes of one μ), not by one"
    )


def persons_of(groups: Any, rows: int) -> Persons | None:
    """Whose each row is; every person counts once."""
    return None if groups is None else Persons.of(groups, rows)


class Node(ABC):
    """What every node has: terms, a ledger, and sessions that are counted.

    Attributes:
        task: what it takes part in, "factors" or "linear".
        unit: whose data its certificate covers: "record", "person" or "item".
        shape: how many units there are, and how many columns all nodes share. Both are public.
    """

    task: ClassVar[str]
    unit: str
    shape: tuple[int, int]

    def __init__(
        self,
        *,
        epsilon: float,
        delta: float,
        adjacency: str,
        ledger: Ledger | None,
        random_state: int | None,
    ) -> None:
        self.epsilon, self.delta, self.adjacency = epsilon, delta, adjacency
        self.ledger, self._random_state = ledger, random_state
        self._lock, self._sessions = threading.Lock(), 0

    def statement(self) -> dict[str, Any]:
        """What the node says about itself to anybody who may ask: plain data, all of it public."""
        units, columns = self.shape
        return {
            "task": self.task,
            "units": units,
            "columns": columns,
            "unit": self.unit,
            "adjacency": Adjacency.parse(self.adjacency).value,
            "epsilon": float(self.epsilon),
            "delta": float(self.delta),
        }

    @abstractmethod
    def plan(self, proposal: Any) -> NodePlan:
        """Plan a session: the noise, and its certificate, from public numbers. Nothing is spent yet."""

    @abstractmethod
    def _records(self) -> Records:
        """The rows; each session has its own view of them, because sessions may overlap."""

    def _check_room(self, certificate: Certificate) -> None:
        """Refuse early what a reservation would refuse: other nodes would have paid by then."""
        if self.ledger is None and self._sessions:
            raise Uncounted(
                "this node has served a session and keeps no ledger, so that a second one would not be counted: give "
                "it ledger=Ledger(...)"
            )
        if self.ledger is None:
            return
        left = self.ledger.remaining()
        gaussian = certificate.mu is not None and certificate.mu <= left.mu * (1 + 1e-9)
        basic = 0 < left.basic_delta < 1 and certificate.epsilon(left.basic_delta) <= left.basic_epsilon
        if not gaussian and not basic:
            raise BudgetExhausted("the budget of this node has no room for the proposed run: propose it to others")

    @contextmanager
    def _opened(self, certificate: Certificate, marks: tuple[str, ...], note: str) -> Iterator[Session]:
        """A session of this node: reserved before a row is used, and counted where there is no ledger."""
        with ExitStack() as stack:
            with self._lock:
                if self.ledger is None and self._sessions:
                    raise Uncounted(
                        "another session of this node began after this one was proposed, and a node without a ledger "
                        "serves one: name it once in a federation, and give it ledger=Ledger(...) if it serves several"
                    )
                opened = open_session(
                    certificate,
                    self._records(),
                    ledger=self.ledger,
                    random_state=self._random_state,
                    marks=marks,
                    note=note,
                )
                session = stack.enter_context(opened)
                self._sessions += 1
            yield session


class NodePlan:
    """A session that a node is ready to serve: made by ``Node.plan``. Nothing is spent yet.

    Attributes:
        certificate: of all answers together.
        steps: how many answers there will be.
        query: what every step asks, or None where each says so itself.
    """

    def __init__(
        self,
        node: Node,
        certificate: Certificate,
        marks: tuple[str, ...],
        serve: Callable[[Session], NodeSession],
        note: str,
        query: Any = None,
    ) -> None:
        self.query = query
        self._node, self._plain, self._marks, self._serve, self._note = node, certificate, marks, serve, note
        self.certificate = marked_certificate(certificate, marks, seeded=node._random_state is not None)
        self.steps = sum(int(getattr(part, "steps", 0)) for part in certificate.plan.parts)
        self._begun = False

    @contextmanager
    def open(self) -> Iterator[NodeSession]:
        """Spend the budget: all of it, before the first row is used, and for good.

        Yields:
            The session, which answers until the context ends.

        Raises:
            Refused: if it has begun already.
        """
        if self._begun:
            raise Refused("the session has begun already: go on with its steps")
        with self._node._opened(self._plain, self._marks, self._note) as opened:
            self._begun = True
            session = self._serve(opened)
            session.steps = self.steps
            try:
                yield session
            finally:
                session.close()


class NodeSession(ABC):
    """One plan of a node, on its way: made by ``NodePlan.open``.

    Attributes:
        steps: how many answers there will be.
        taken: how many there have been.
    """

    steps: int = 0

    def __init__(self, session: Session) -> None:
        self._session: Session | None = session
        self.taken = 0

    def close(self) -> None:
        """Answer nothing more."""
        self._session = None

    def answer(self, step: object, state: Array | None, ask: Any = None) -> Array:
        """The noisy sum of the next step.

        Args:
            step: its number, from 0; each is answered once.
            state: where to evaluate the sum, from anybody.
            ask: which sum, where a node answers several kinds.

        Returns:
            The sum with all of its noise.

        Raises:
            Refused: if the step, the state or the question are not as they should be; no row is used then.
        """
        if self._session is None:
            raise Refused("the session has ended: propose another one")
        if self.taken >= self.steps:
            raise Refused(f"all {self.steps} certified steps are answered: propose another session")
        if type(step) is not int or step != self.taken:
            raise Refused(f"step {self.taken} is next, each is answered once and in order: end this session")
        try:
            release = self._checked(self._session, state, ask)
        except InvalidInput as error:
            raise Refused(str(error)) from None
        self.taken += 1
        return release()

    @abstractmethod
    def _checked(self, session: Session, state: Array | None, ask: Any) -> Callable[[], Array]:
        """The release that is asked for, not made yet; refuse what is not as it should be."""
