"""Linear models over several owners: any solver that reads sums only, with noisy sums from every node."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import clone

from tacit import _codec
from tacit.accounting import gdp_epsilon, gdp_mu
from tacit.errors import InvalidInput, NotCovered
from tacit.estimators.base import Table, publish
from tacit.estimators.linear import LinearFit, LinearModel
from tacit.federation.errors import FederationError
from tacit.federation.journal import Journal
from tacit.federation.linear_node import MAX_VIEW_NUMBERS, LinearProposal, check_parts
from tacit.federation.links import Link
from tacit.federation.offers import Offer, agreed, read_certificate, read_terms, weakest
from tacit.federation.questions import MAX_COLUMNS
from tacit.federation.session import OwnersSession
from tacit.federation.team import Rule, Team
from tacit.mechanism import Adjacency, Arithmetic, Mechanism, Plan
from tacit.solvers import Budget

__all__ = ["FederatedLinear"]

UNUSED = ("ledger", "random_state")
MAX_METRIC = 3000
"""Coefficients up to which the metric of metric descent fits into a message."""
RELATIVE = 1e-9
"""How far the ratios of a plan may be from one multiple of those that were proposed."""


class FederatedLinear:
    """A linear model over nodes that keep their rows.

    The server plans the releases for all rows together, with the μ that the sum of all nodes' noise leaves,
    1/μ² = Σ 1/μ_i²; every node scales the plan to its own (ε, δ), pays for it, and answers each question with its own
    clipped sum plus all of its own noise; the solver goes on with the sum of the answers. p nodes with one ε have √p
    times the noise of one table with everybody.

    Formal guarantee: that of each node, ``certificates_``, for its own rows; ``certificate_`` is the weakest.

    Assumptions: as those of the nodes; all that the estimator states is public.

    Args:
        estimator: a linear model of Tacit's, e.g. ``DPLogisticRegression(feature_bounds=(0, 1))``. Nodes state
            ε, δ, relation and ledger; its own are not used. Classes and bounds may be left to the nodes, if all state
            the same.
        feature_names: of the columns: nodes that know theirs refuse others.
        on_loss: what to do when a node is lost, refuses or does not keep to the protocol: "stop", or "drop" it and go
            on with the others.
        min_nodes: with how many nodes to go on at least, for on_loss="drop".
        timeout: seconds to wait for an answer of a node, with all attempts to reach it again.

    Raises:
        InvalidInput: if a setting is out of range.

    >>> from tacit import DPLogisticRegression
    >>> from tacit.federation import LinearNode, threaded_nodes
    >>> rng = np.random.default_rng(0)
    >>> tables = [rng.uniform(-1, 1, (n, 2)) for n in (4000, 6000)]
    >>> nodes = [
    ...     LinearNode(X, X @ [2, -1] > 0, classes=[False, True], epsilon=1.0, delta=1e-6, random_state=i)
    ...     for i, X in enumerate(tables)
    ... ]
    >>> with threaded_nodes(nodes) as links:
    ...     model = FederatedLinear(DPLogisticRegression(feature_bounds=(-1, 1))).fit(links)
    >>> bool(model.score(tables[0], tables[0] @ [2, -1] > 0) > 0.95), round(model.certificate_.epsilon(1e-6), 3)
    (True, 1.0)
    """

    def __init__(
        self,
        estimator: LinearModel,
        *,
        feature_names: Sequence[str] | None = None,
        on_loss: str = "stop",
        min_nodes: int | None = None,
        timeout: float = 600.0,
    ) -> None:
        if not isinstance(estimator, LinearModel):
            raise InvalidInput(
                f"estimator must be a linear model of Tacit's, e.g. DPLogisticRegression(feature_bounds=(0, 1)), got "
                f"{type(estimator).__name__}"
            )
        for name in UNUSED:
            if getattr(estimator, name) is not None:
                raise InvalidInput(f"{name} has no effect over several owners: nodes state their own; leave it out")
        if estimator.weighting != "person" or estimator.max_rows is not None:
            raise InvalidInput("weighting='rows' is not for several owners: every person of a node counts once there")
        self.estimator, self._rule = estimator, Rule(on_loss, min_nodes, timeout)
        names = None if feature_names is None else tuple(feature_names)
        if isinstance(feature_names, str) or not all(isinstance(name, str) for name in names or ()):
            raise InvalidInput("feature_names must be a sequence of strings, or None")
        self._names = names

    def fit(self, links: Sequence[Link], *, journal: str | os.PathLike[str] | None = None, resume: bool = False) -> Any:
        """Propose, and if all nodes agree, run.

        Args:
            links: to the nodes, one each.
            journal: a file that keeps what nodes answered, so that a run that stopped can be gone on with; removed at
                the end of the run.
            resume: whether to go on with the run in the journal.

        Returns:
            A fitted copy of the estimator, with the weakest certificate and ``certificates_``, one for each node.

        Raises:
            FederationError: if a node refused, was lost or did not keep to the protocol. The message says which, and
                what is spent.
            InvalidInput: if there is no link, something else than links, or one of them twice.
            NotCovered: if the solver needs more than sums.
        """
        team = Team(links, self._rule, None if journal is None else Journal(journal, resume))
        task = _Linear(self.estimator, self._names)
        try:
            offered = team.agree(task)
            planned, table, model = task.planned(team.statements)
            team.begin()
            offers = {i: offered[i] for i in team.begun}
            found, certificate = weakest(list(offers.values()))
            with np.errstate(all="ignore"):  # a solver's own warnings come and go with the noise
                solution = planned.solve(OwnersSession.over(team, offers, certificate))
        except BaseException:
            team.stop()
            raise
        team.end()
        fitted = model._fitted(planned, solution, table)
        fitted["notes_"] = (*fitted.get("notes_", ()), *team.dropped.values())
        delta = found.statement["delta"]
        model.set_params(epsilon=certificate.epsilon(delta), delta=delta)
        publish(model, model, fitted, certificate)
        model.certificates_ = tuple(offer.certificate for offer in offers.values())
        return model


class _Linear:
    """A linear model as the task of a team.

    Args:
        estimator: what is fitted.
        names: of the features, or None.
    """

    def __init__(self, estimator: LinearModel, names: tuple[str, ...] | None) -> None:
        self._estimator, self._names = estimator, names
        self._made: tuple[Any, tuple[LinearFit, Table, Any]] | None = None

    def statement(self, fields: dict[str, Any]) -> dict[str, Any]:
        """What a node says, with its classes and bounds."""
        terms, classes, bounds = read_terms(fields, "linear"), fields.get("classes"), fields.get("feature_bounds")
        if terms["columns"] > MAX_COLUMNS:
            raise InvalidInput("out of range")
        if classes is not None:
            whole = isinstance(classes, list) and 2 <= len(classes) <= 10_000
            if not whole or not all(isinstance(label, str | int | float) for label in classes):
                raise InvalidInput("its classes are none")
        if bounds is not None:
            ends = np.asarray(bounds, np.float64)
            if ends.shape != (2, terms["columns"]) or not np.isfinite(ends).all():
                raise InvalidInput("its bounds are none")
        return {**terms, "classes": classes, "feature_bounds": bounds}

    def planned(self, statements: dict[int, dict[str, Any]]) -> tuple[LinearFit, Table, Any]:
        """Every public choice, for these nodes together.

        Args:
            statements: of all nodes.

        Returns:
            The fit, its table, and the copy of the estimator that will be fitted.

        Raises:
            NotCovered: if the solver needs more than sums.
        """
        if self._made is not None and self._made[0] == statements:
            return self._made[1]  # Poisson batches take seconds to calibrate
        agreed(statements, ("columns", "adjacency", "unit", "classes", "feature_bounds"))
        stated = next(iter(statements.values()))
        model = self._model(stated)
        n, p = sum(one["units"] for one in statements.values()), stated["columns"]
        mu = 1 / math.sqrt(sum(gdp_mu(one["epsilon"], one["delta"]) ** -2 for one in statements.values()))
        delta = max(one["delta"] for one in statements.values())
        model.set_params(epsilon=float(gdp_epsilon(mu, delta)), delta=delta)
        table = dataclasses.replace(model._shape(n, p), unit=stated["unit"])
        budget = model._budget(table)
        if budget.view != "all_iterates":
            raise NotCovered(
                "view: the server sees every sum of every node, so that no iterate is hidden; use view='all_iterates'",
                axis="view",
            )
        planned = model._planned(table, budget)
        self._check(planned, budget, stated)
        model.n_features_in_ = p
        if self._names is not None:
            model.feature_names_in_ = np.array(self._names, dtype=object)
        self._made = dict(statements), (planned, table, model)
        return planned, table, model

    def _model(self, stated: dict[str, Any]) -> Any:
        """A copy of the estimator, with what nodes state where it states nothing."""
        model = clone(self._estimator)
        known, changes = model.get_params(deep=False), {"adjacency": stated["adjacency"]}
        if (stated["classes"] is None) is ("classes" in known):
            kind = "a regression" if stated["classes"] is None else "a classification"
            raise FederationError(
                f"nodes hold targets of {kind}, which {type(model).__name__} is not for; nothing was spent"
            )
        for name in ("classes", "feature_bounds"):
            if name in known and known[name] is None:
                changes[name] = stated[name]
        if changes.get("feature_bounds") is not None:
            changes["feature_bounds"] = tuple(np.asarray(end, np.float64) for end in stated["feature_bounds"])
        return model.set_params(**changes)

    def _check(self, planned: LinearFit, budget: Budget, stated: dict[str, Any]) -> None:
        solver, loss, size = planned.solver, planned.problem.loss, planned.problem.facts.size
        if not solver.sums_only or solver.final_model_only or not type(solver).__module__.startswith("tacit."):
            raise NotCovered(
                f"solver: {solver.name!r} needs the records themselves, or asks what nodes may not know, and owners "
                "answer known sums only; use solver='metric', 'gradient' or 'sgd'",
                axis="solver",
            )
        if not type(loss).__module__.startswith("tacit.") or not _codec.is_described(loss):
            raise NotCovered(
                f"loss: nodes do not know {type(loss).__name__}, and run no code that is sent to them; use a loss of "
                "Tacit's",
                axis="loss",
            )
        if solver.name == "metric" and (size > MAX_METRIC or len(planned.targets) * size**2 > MAX_VIEW_NUMBERS):
            raise NotCovered(
                f"solver: metric descent sends {size}² numbers for each of {len(planned.targets)} functions, more than "
                "a node keeps; use solver='gradient'",
                axis="solver",
            )
        if budget.arithmetic is not Arithmetic.EXACT:
            raise InvalidInput("arithmetic='float' is not for several owners: whoever sees sums sees their last bits")
        check_parts(planned.plan, Adjacency.parse(stated["adjacency"]), stated["unit"])

    def proposal(self, statements: dict[int, dict[str, Any]]) -> LinearProposal:
        """The plan for these nodes together."""
        planned, table, _ = self.planned(statements)
        classes = None if table.classes is None else tuple(table.classes.tolist())
        return LinearProposal(planned.plan, table.p, classes, self._names)

    def offer(self, statement: dict[str, Any], text: object, proposal: Any) -> Offer:
        """A certificate of the proposed plan, with all ratios times one number."""
        certificate = read_certificate(text, lambda plan: _is_multiple(plan, proposal.plan))
        return Offer(statement, certificate)


def _is_multiple(plan: Plan, proposed: Plan) -> bool:
    """Whether a plan is the proposed one with all ratios times one number."""
    if len(plan) != len(proposed):
        return False
    factor = None
    for part, asked in zip(plan.parts, proposed.parts, strict=True):
        if not isinstance(part, Mechanism) or not isinstance(asked, Mechanism) or asked.steps != part.steps:
            return False
        values, counts = part.ratio.runs
        wanted, lengths = asked.ratio.runs
        if not np.array_equal(counts, lengths) or dataclasses.replace(part, ratio=asked.ratio) != asked:
            return False
        factor = values[0] / wanted[0] if factor is None else factor
        if not np.allclose(values, factor * wanted, rtol=RELATIVE, atol=0.0):
            return False
    return factor is not None and bool(factor > 0)
