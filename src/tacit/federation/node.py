"""A node: records that stay where they are, and noisy sums that leave, under a certificate of the node's own.

The node trusts nobody. It states its own ε and bounds, plans the noise by itself, and opens a session of its own, which
reserves its budget before a row is used and adds all of its noise before anything is handed out. Which H it is asked
about may be chosen by an adversary who knows everything sent before: the composition of Gaussian releases is adaptive
and covers that. How questions and answers travel is not a node's business (``tacit.federation.serving``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit import _validate
from tacit.accounting import Certificate, certify
from tacit.errors import BudgetExhausted, InvalidInput
from tacit.estimators.nmf import DPNMF, MISSING
from tacit.federation.errors import Refused, Uncounted
from tacit.federation.proposal import SPLITS, Proposal
from tacit.ledger import Ledger
from tacit.records import InMemory, Persons
from tacit.release import BlockSum, Session, marked_certificate, open_session

__all__ = ["FactorNode", "NodePlan", "NodeSession", "horizontal_mark", "vertical_mark"]

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


def _persons(groups: Any, rows: int, split: str) -> Persons | None:
    if groups is None:
        return None
    if split == "vertical":
        raise InvalidInput(
            "groups cannot be covered with split='vertical': the data of a person are spread over all nodes, so that a "
            "node can cover its items (columns) only; leave groups out, or bring all data of each person to one node "
            "and use split='horizontal'"
        )
    return Persons.of(groups, rows)


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
        groups: whose each row is, one id per row, for split="horizontal": the certificate is then about persons, who
            may have several rows. Without it it is about rows ("record"), for "vertical" about columns ("item").
        missing: "zero", or "unobserved": entries that are not stored (NaN in an array) are unknown. The server must
            propose the same.
        ledger: a ``tacit.Ledger``. Without one the node serves one session and no second one.
        random_state: None for private noise.

    Raises:
        InvalidInput: if the table or a parameter is not as it should be.

    >>> node = FactorNode(np.ones((50, 4)), epsilon=1.0, delta=1e-6, row_norm=2.0)
    >>> plan = node.plan(Proposal(2, epochs=3))
    >>> round(plan.certificate.epsilon(1e-6), 3), plan.certificate.unit, plan.steps
    (1.0, 'record', 3)
    >>> with plan.open() as session:
    ...     session.answer(0, np.full((2, 4), 0.5)).shape
    (11,)
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
        groups: Any = None,
        missing: str = "zero",
        ledger: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        self.split = _validate.one_of(SPLITS, split=split)
        self.missing = _validate.one_of(MISSING, missing=missing)
        self.ledger = ledger
        self._terms: dict[str, Any] = {
            "epsilon": epsilon,
            "delta": delta,
            "row_norm": row_norm,
            "adjacency": adjacency,
            "ledger": ledger,
            "random_state": random_state,
        }
        schema = DPNMF(1, epochs=1, missing=self.missing, **self._terms)
        table = schema._validated(rows() if callable(rows) else rows, reset=True)
        schema.planned_certificate(*table.shape)  # the owner's own parameters are refused here, and not to a server
        self._names: list[str] | None = list(getattr(schema, "feature_names_in_", ())) or None
        self._persons = _persons(groups, table.shape[0], self.split)
        if self.split == "vertical":
            table = table.T.tocsr() if sparse.issparse(table) else np.ascontiguousarray(table.T)
        self._table, self.row_norm = table, float(row_norm)
        self.unit = VERTICAL_UNIT if self.split == "vertical" else "record" if self._persons is None else "person"
        units = int(table.shape[0]) if self._persons is None else self._persons.n
        self.shape: tuple[int, int] = (units, int(table.shape[1]))
        """How many units are covered here, and how many columns all nodes share. Both are public."""
        self._lock, self._sessions = threading.Lock(), 0

    def plan(self, proposal: Proposal) -> NodePlan:
        """Plan a session: the noise, and its certificate, from public numbers. Nothing is spent yet.

        Args:
            proposal: what the server wants.

        Returns:
            The plan.

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
        table = replace(model._shape(n, columns), unit=self.unit)
        planned = model._planned(table, model._budget(table))
        certificate = planned.numbers.certificate
        if self.split == "vertical":
            label = "factors of people, from items"
            certificate = certify(replace(planned.numbers.mechanism, label=label), delta=self._terms["delta"])
        words = (vertical_mark(),) if self.split == "vertical" else (*planned.declared, horizontal_mark(self.unit))
        out = NodePlan(self, certificate, words, BlockSum(planned.problem, 0))
        self._check_room(out.certificate)
        return out

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
    def _opened(self, certificate: Certificate, marks: tuple[str, ...]) -> Iterator[Session]:
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
                    InMemory(self._table, None, self._persons),  # each session has its own: sessions may overlap
                    ledger=self.ledger,
                    random_state=self._terms["random_state"],
                    marks=marks,
                    note=f"FactorNode, {self.split}",
                )
                session = stack.enter_context(opened)
                self._sessions += 1
            yield session


class NodePlan:
    """A session that a node is ready to serve: made by ``FactorNode.plan``. Nothing is spent yet.

    Attributes:
        certificate: of all answers together.
        steps: how many answers there will be.
    """

    def __init__(self, node: FactorNode, certificate: Certificate, marks: tuple[str, ...], query: BlockSum) -> None:
        self._node, self._plain, self._marks, self.query = node, certificate, marks, query
        seeded = node._terms["random_state"] is not None
        self.certificate = marked_certificate(certificate, marks, seeded=seeded)
        (mechanism,) = certificate.plan.parts
        self.steps, self._begun = int(getattr(mechanism, "steps", 0)), False

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
        with self._node._opened(self._plain, self._marks) as opened:
            self._begun = True
            session = NodeSession(opened, self.query, self.steps)
            try:
                yield session
            finally:
                session.close()


class NodeSession:
    """One plan of a node, on its way: made by ``NodePlan.open``.

    Attributes:
        steps: how many answers there will be.
        taken: how many there have been.
    """

    def __init__(self, session: Session, query: BlockSum, steps: int) -> None:
        self._session: Session | None = session
        self._query, self.steps, self.taken = query, steps, 0
        k, columns = query.problem.blocks[0].shape
        self._shape = (int(k), int(columns))

    def close(self) -> None:
        """Answer nothing more."""
        self._session = None

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
        if self._session is None:
            raise Refused("the session has ended: propose another one")
        if self.taken >= self.steps:
            raise Refused(f"all {self.steps} certified steps are answered: propose another session")
        if type(step) is not int or step != self.taken:
            raise Refused(f"step {self.taken} is next, each is answered once and in order: end this session")
        H = _unit_rows(factors, self._shape)
        self.taken += 1
        return self._session.release(self._query, H.ravel())


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
