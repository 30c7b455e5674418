"""A node of a factorisation: rows (or columns) of one owner, and noisy sums about item factors."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit import _validate
from tacit.accounting import certify
from tacit.errors import InvalidInput
from tacit.estimators.nmf import DPNMF, MISSING
from tacit.federation.errors import Refused
from tacit.federation.node import Node, NodePlan, NodeSession, horizontal_mark, persons_of
from tacit.federation.proposal import SPLITS, Proposal
from tacit.ledger import Ledger
from tacit.records import InMemory, Persons
from tacit.release import BlockSum, Session

__all__ = ["FactorNode", "FactorSession", "vertical_mark"]

Array = NDArray[np.float64]
UNIT_ROWS = 1e-6
"""How far norms of rows of H may be from 1: clipping is tested for such rows."""
VERTICAL_UNIT = "item"


def vertical_mark() -> str:
    """Whom a node's certificate covers, where nodes hold columns."""
    return (
        "federated, vertical: a promise to items (columns of the table), not to people; the data of a person are "
        "spread over all nodes and no person is covered, and the factors of people are known to the server and to "
        "every node; an item's own factors stay at its node; declared: an item is at this node only"
    )


def _persons(groups: Any, rows: int, split: str) -> Persons | None:
    if groups is not None and split == "vertical":
        raise InvalidInput(
            "groups cannot be covered with split='vertical': the data of a person are spread over all nodes, so that a "
            "node can cover its items (columns) only; leave groups out, or bring all data of each person to one node "
            "and use split='horizontal'"
        )
    return persons_of(groups, rows)


class FactorNode(Node):
    """Rows of one owner, ready to take part in a private factorisation.

    Formal guarantee: everything that leaves in a session satisfies the session's certificate, (ε, δ)-DP for each row,
    each person's rows at this node (``groups``), or each column (split="vertical"), against everybody else together.

    Assumptions: ``row_norm`` and the shape of the table are public, and so is the number of persons (of their rows it
    is not); what an observer learns from *when* messages are sent is not covered.

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

    task: ClassVar[str] = "factors"

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
        super().__init__(epsilon=epsilon, delta=delta, adjacency=adjacency, ledger=ledger, random_state=random_state)
        self.split = _validate.one_of(SPLITS, split=split)
        self.missing = _validate.one_of(MISSING, missing=missing)
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
        self.shape = (units, int(table.shape[1]))

    def statement(self) -> dict[str, Any]:
        """As every node's, with what decides the units of its sums."""
        return {**super().statement(), "row_norm": self.row_norm, "split": self.split, "missing": self.missing}

    def plan(self, proposal: Any) -> NodePlan:
        """Plan a session: the noise, and its certificate, from public numbers. Nothing is spent yet.

        Args:
            proposal: what the server wants, a ``Proposal``.

        Returns:
            The plan.

        Raises:
            InvalidInput: if the proposal does not fit this node.
        """
        if not isinstance(proposal, Proposal):
            raise InvalidInput("this node takes part in factorisations (FederatedNMF), and another task was proposed")
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
        query = BlockSum(planned.problem, 0)
        note = f"FactorNode, {self.split}"
        out = NodePlan(self, certificate, words, lambda session: FactorSession(session, query), note, query)
        self._check_room(out.certificate)
        return out

    def _records(self) -> InMemory:
        return InMemory(self._table, None, self._persons)


class FactorSession(NodeSession):
    """One plan of a ``FactorNode``, on its way.

    Attributes:
        query: the sum that is asked for at every step.
    """

    def __init__(self, session: Session, query: BlockSum) -> None:
        super().__init__(session)
        self.query = query
        k, columns = query.problem.blocks[0].shape
        self._shape = (int(k), int(columns))

    def _checked(self, session: Session, state: Array | None, ask: Any) -> Callable[[], Array]:
        H = _unit_rows(state, self._shape)
        return lambda: session.release(self.query, H.ravel())


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
