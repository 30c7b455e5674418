"""A node of a linear model: rows and targets of one owner, and noisy sums about coefficients."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator

from tacit._codec import described
from tacit.accounting import Certificate, calibrate, certify, gdp_mu
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.federation.node import Node, NodePlan, NodeSession, horizontal_mark, persons_of
from tacit.federation.questions import MAX_COLUMNS, Ask, read_features, read_query, read_target, width_after
from tacit.inputs.parameters import bounds_of, check_parameters
from tacit.inputs.tables import class_list, class_numbers, labels_of, numbers_of, validate_table
from tacit.ledger import Ledger
from tacit.maps import FeatureBounds, RowMap
from tacit.mechanism import Adjacency, AllIterates, Arithmetic, FullBatch, Independent, Mechanism, Plan, Poisson
from tacit.records import InMemory
from tacit.release import Session
from tacit.release.queries import LossGradient

__all__ = ["LinearNode", "LinearProposal", "LinearSession", "check_parts", "scaled_plan"]

Array = NDArray[np.float64]
MAX_PARTS, MAX_STEPS = 4096, 100_000
"""Of a plan that a server may propose."""
MAX_LABEL = 100
MAX_VIEW_NUMBERS = 1 << 26
"""Numbers of all maps that a session keeps, 512 MB."""


@described("FederatedLinear")
@dataclass(frozen=True)
class LinearProposal:
    """What a server proposes to every node of a linear model: releases, and nothing about how much noise they have.

    Attributes:
        plan: the parts with their steps, batches and *relative* budgets; a node scales all ratios to its own (ε, δ).
        columns: that all nodes share.
        classes: the labels, or None for a regression.
        feature_names: of the columns, compared with a node's own if it has any; None for "whatever they are".
    """

    plan: Plan
    columns: int
    classes: tuple[Any, ...] | None = None
    feature_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.plan, Plan) or type(self.columns) is not int or not 0 < self.columns <= MAX_COLUMNS:
            raise InvalidInput(f"a proposal of a linear model holds a plan for at most {MAX_COLUMNS} columns")
        for name in ("classes", "feature_names"):
            if not isinstance(getattr(self, name), tuple | None):
                raise InvalidInput(f"{name} of a proposal must be a tuple, or None")

    @classmethod
    def examples(cls) -> tuple[LinearProposal, ...]:
        """Objects for the contract tests."""
        plan = Plan((Mechanism.examples()[0],))
        return (cls(plan, 3), cls(plan, 1, ("a", "b"), ("age",)))


class _Schema(BaseEstimator):  # type: ignore[misc]
    """What validates an owner's table and parameters, with the sentences of estimators."""

    def __init__(self, *, epsilon: Any, delta: Any, adjacency: Any, ledger: Any, random_state: Any) -> None:
        self.epsilon, self.delta, self.adjacency = epsilon, delta, adjacency
        self.ledger, self.random_state = ledger, random_state


class LinearNode(Node):
    """Rows and targets of one owner, ready to take part in a linear model.

    Formal guarantee: everything that leaves in a session satisfies the session's certificate, (ε, δ)-DP for each row,
    or each person's rows at this node (``groups``), against everybody else together.

    Assumptions: the number of rows (of persons, with ``groups``), the columns, and the classes are public; what an
    observer learns from *when* messages are sent is not covered.

    Args:
        X: (rows, features), dense.
        y: (rows,) targets, or labels if ``classes`` are given.
        epsilon: ε of a session.
        delta: δ.
        classes: the labels that may occur, which are public; None for a regression.
        feature_bounds: the bounds that this node agrees to, or None for "whatever the server proposes": they decide
            what is learned, not what is promised.
        adjacency: "replace-one" or "zero-out".
        groups: whose each row is, one id per row: the certificate is then about persons, each of whom counts once.
        ledger: a ``tacit.Ledger``. Without one the node serves one session and no second one.
        random_state: None for private noise.

    Raises:
        InvalidInput: if the table or a parameter is not as it should be.
    """

    task: ClassVar[str] = "linear"

    def __init__(
        self,
        X: Any,
        y: Any,
        *,
        epsilon: float,
        delta: float,
        classes: Any = None,
        feature_bounds: Any = None,
        adjacency: str = "replace-one",
        groups: Any = None,
        ledger: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        terms = {"epsilon": epsilon, "delta": delta, "adjacency": adjacency, "ledger": ledger}
        super().__init__(**terms, random_state=random_state)  # type: ignore[arg-type]
        schema = _Schema(**terms, random_state=random_state)
        self._X, y = validate_table(schema, X, y, accept_sparse=False)
        self._relation = check_parameters(schema, len(self._X))
        if self._relation is Adjacency.ADD_REMOVE:
            raise InvalidInput("adjacency: the number of rows of a node is public; use 'replace-one' or 'zero-out'")
        self._mu = gdp_mu(epsilon, delta)
        self.classes: tuple[Any, ...] | None = None
        if classes is None:
            self._y: NDArray[Any] = numbers_of(y)
        else:
            listed, _ = class_list(classes, ())
            self.classes, self._y = tuple(listed.tolist()), class_numbers(listed, labels_of(y))
        self._names: list[str] | None = list(getattr(schema, "feature_names_in_", ())) or None
        self._persons = persons_of(groups, len(self._X))
        self.unit = "record" if self._persons is None else "person"
        self.shape = (len(self._X) if self._persons is None else self._persons.n, int(self._X.shape[1]))
        self._bounds: tuple[Array, Array] | None = None
        if feature_bounds is not None:
            self._bounds = bounds_of("feature_bounds", feature_bounds, self.shape[1])

    def statement(self) -> dict[str, Any]:
        """As every node's, with classes and bounds."""
        bounds = None if self._bounds is None else [end.tolist() for end in self._bounds]
        classes = None if self.classes is None else list(self.classes)
        return {**super().statement(), "classes": classes, "feature_bounds": bounds}

    def plan(self, proposal: Any) -> NodePlan:
        """Plan a session: the noise, and its certificate, from public numbers. Nothing is spent yet.

        Args:
            proposal: what the server wants, a ``LinearProposal``.

        Returns:
            The plan.

        Raises:
            InvalidInput: if the proposal does not fit this node.
        """
        if not isinstance(proposal, LinearProposal):
            raise InvalidInput("this node takes part in linear models (FederatedLinear), and another task was proposed")
        columns, names = self.shape[1], proposal.feature_names
        if proposal.columns != columns:
            raise InvalidInput(f"{proposal.columns} columns were proposed, this node has {columns}: agree on them")
        if names is not None and (len(names) != columns or self._names not in (None, list(names))):
            raise InvalidInput("feature_names are not the columns of this node, in their order: agree on them first")
        if proposal.classes != self.classes:
            raise InvalidInput("the classes that were proposed are not those that this node states: agree on a list")
        check_parts(proposal.plan, self._relation, self.unit)
        certificate = self._certified(proposal.plan)
        outputs = 1 if self.classes is None else len(self.classes)

        def serve(session: Session) -> LinearSession:
            return LinearSession(session, columns, outputs, self._bounds)

        out = NodePlan(self, certificate, (horizontal_mark(self.unit),), serve, "LinearNode")
        self._check_room(out.certificate)
        return out

    def _certified(self, plan: Plan) -> Certificate:
        """All ratios times one number, so that the whole costs this node's (ε, δ)."""
        if all(isinstance(part.sampling, FullBatch) for part in _mechanisms(plan)):
            squares = math.fsum(part.ratio.sum_of_squares() for part in _mechanisms(plan))
            certificate = certify(scaled_plan(plan, self._mu * (1 - 1e-12) / math.sqrt(squares)), delta=self.delta)
        else:
            makes = lambda noise: scaled_plan(plan, 1 / noise)  # noqa: E731
            certificate = calibrate(makes, epsilon=self.epsilon, delta=self.delta).certificate
        if not certificate.epsilon(self.delta) <= self.epsilon * (1 + 1e-9):
            raise InvalidInput("the proposed plan cannot be scaled to this node's budget: propose fewer steps")
        return certificate

    def _records(self) -> InMemory:
        return InMemory(self._X, self._y, self._persons)


def _mechanisms(plan: Plan) -> list[Mechanism]:
    return [part for part in plan.parts if isinstance(part, Mechanism)]


def scaled_plan(plan: Plan, factor: float) -> Plan:
    """The same releases with every Δ/σ multiplied by a number."""
    return Plan(tuple(dataclasses.replace(part, ratio=part.ratio.scaled(factor)) for part in _mechanisms(plan)))


def check_parts(plan: Plan, relation: Adjacency, unit: str) -> None:
    """Refuse a plan that is no list of noisy sums which may all be shown, exact, under this relation and for this unit.

    Args:
        plan: from anybody.
        relation: the node's own.
        unit: the node's own.

    Raises:
        InvalidInput: naming what does not fit.
    """
    if len(plan.parts) > MAX_PARTS or len(_mechanisms(plan)) != len(plan.parts):
        raise InvalidInput(f"a plan of at most {MAX_PARTS} mechanisms can be proposed")
    if sum(part.steps for part in _mechanisms(plan)) > MAX_STEPS:
        raise InvalidInput(f"a plan of at most {MAX_STEPS} steps can be proposed")
    for part in _mechanisms(plan):
        if part.adjacency is not relation or part.unit != unit:
            raise InvalidInput(
                f"a promise to a {part.unit} under {part.adjacency.value} was proposed, this node makes one to a "
                f"{unit} under {relation.value}: agree on one"
            )
        if part.arithmetic is not Arithmetic.EXACT:
            raise InvalidInput("arithmetic='float' was proposed: whoever sees sums sees their last bits; use 'exact'")
        shown = type(part.view) is AllIterates and type(part.noise) is Independent and part.releases == 1
        if not shown or type(part.sampling) not in (FullBatch, Poisson):
            raise InvalidInput("the server sees every sum: propose all iterates, fresh noise, full or Poisson batches")
        if part.ratio.min <= 0 or not 1e-12 <= part.ratio.max <= 1e12 or part.ratio.max > 1e6 * part.ratio.min:
            raise InvalidInput("relative budgets of steps must be positive, and not too far apart")
        if type(part.sampling) is Poisson and not part.ratio.is_constant:
            raise InvalidInput("Poisson batches of one part must have one noise")
        if len(part.label) > MAX_LABEL or not part.label.isprintable():
            raise InvalidInput("a label of the plan must be a short line")


class LinearSession(NodeSession):
    """One plan of a ``LinearNode``, on its way: it knows the views that the server has described so far."""

    def __init__(self, session: Session, columns: int, outputs: int, bounds: tuple[Array, Array] | None) -> None:
        super().__init__(session)
        self._outputs, self._bounds, self._room = outputs, bounds, MAX_VIEW_NUMBERS
        self._views: dict[int, tuple[Session, int]] = {0: (session, columns)}

    def close(self) -> None:
        """Answer nothing more, and forget the views."""
        super().close()
        self._views = {}

    def _checked(self, session: Session, state: Array | None, ask: Any) -> Callable[[], Array]:
        if not isinstance(ask, Ask):
            raise InvalidInput("a question must name a part, a view and a query")
        found = {**self._views, **self._new_views(ask.views)}
        view, width = _looked_up(found, ask.view)
        query = read_query(ask.query, width)
        expected = (width,) if isinstance(query, LossGradient) else None
        if (None if state is None else state.shape) != expected or (state is not None and not np.isfinite(state).all()):
            raise InvalidInput(f"the state of this query must be finite and of shape {expected}")
        parts = len(session.certificate.plan.parts)
        if type(ask.part) is not int or not 0 <= ask.part < parts or session.steps_left(ask.part) < 1:
            raise InvalidInput("this part of the plan has no step left: ask for those that were proposed")
        try:
            session.grids((query,), ask.part)  # public numbers only, but not every noise has a lattice
        except MechanismMismatch as error:
            raise InvalidInput(str(error)) from None
        self._views = found
        return lambda: view.release(query, state, ask.part)

    def _new_views(self, given: Any) -> dict[int, tuple[Session, int]]:
        """Views that are described for the first time."""
        new: dict[int, tuple[Session, int]] = {}
        if not isinstance(given, tuple):
            raise InvalidInput("views must be listed")
        for entry in given:
            if not isinstance(entry, tuple) or len(entry) != 4:
                raise InvalidInput("a view has a number, a parent, and maps of features and targets")
            number, parent, features, target = entry
            if type(number) is not int or number in self._views or number in new:
                raise InvalidInput("a view is described once, under a number of its own")
            view, width = _looked_up({**self._views, **new}, parent)
            made = None if features is None else read_features(features, width)
            self._check_bounds(made)
            self._room -= 0 if made is None else width * width if hasattr(made, "matrix") else 5 * width
            if self._room < 0:
                raise InvalidInput("the views of this session take more memory than this node gives")
            aim = None if target is None else read_target(target, self._outputs)
            new[number] = (view.through(made, aim), width_after(made, width))
        return new

    def _check_bounds(self, made: RowMap | None) -> None:
        if self._bounds is None or not isinstance(made, FeatureBounds):
            return
        low, high = self._bounds
        if not (np.array_equal(made.low, low) and np.array_equal(made.high, high)):
            raise InvalidInput("the bounds of features are not those that this node states: agree on them")


def _looked_up(views: dict[int, tuple[Session, int]], number: Any) -> tuple[Session, int]:
    if type(number) is not int or number not in views:
        raise InvalidInput("this view was not described")
    return views[number]
