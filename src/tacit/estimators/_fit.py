"""The way of every linear fit: schema, units, plan, certificate, reservation, records, solution, user's units.

No record is read between the schema check (shape, type, finiteness) and the reservation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.accounting import Certificate, certify
from tacit.errors import InvalidInput, NotCovered
from tacit.estimators._count import Count
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency, Plan
from tacit.preprocessing._release import MAX_EPSILON
from tacit.problem import Design, FeatureUnits, Loss, Penalty, Records, TargetUnits, Task
from tacit.run import SEEDED, Streams
from tacit.solvers.base import VIEWS, Budget, LinearSolver, Prepared, Session, Solution

__all__ = ["Coefficients", "Fit", "budget_of", "task_of"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Coefficients:
    """One linear function in the user's units.

    Attributes:
        coef: one number per feature.
        intercept: the constant.
        standard_errors: of coef, from the privacy noise alone, or None.
        notes: what a user should know.
    """

    coef: Array
    intercept: float
    standard_errors: Array | None
    notes: tuple[str, ...]


def budget_of(epsilon: object, delta: object, adjacency: object, view: object, n: int, copies: int = 1) -> Budget:
    """A budget from the parameters of an estimator.

    Args:
        epsilon: ε.
        delta: δ; refused if missing.
        adjacency: the relation.
        view: what may be shown.
        n: for the suggestion.
        copies: how many fits share it.

    Returns:
        The budget.

    Raises:
        InvalidInput: if δ is missing or an argument is out of range.
    """
    relation = Adjacency.parse(adjacency)
    if delta is None:
        usual = "1/n²" if relation is Adjacency.ADD_REMOVE else f"1/n² = {1 / max(n, 2) ** 2:.2g}"
        raise InvalidInput(f"delta is missing: choose it before the data is read; {usual} is a common choice")
    shown = _validate.one_of(VIEWS, view=view)
    spend = _validate.positive(epsilon=epsilon)
    if spend > MAX_EPSILON:
        raise InvalidInput(f"epsilon must be at most {MAX_EPSILON:g}, got {epsilon!r}: it promises nothing by then")
    return Budget(spend, _validate.delta(delta), relation, shown, copies=copies)


def task_of(
    loss: Loss, penalty: Penalty, units: FeatureUnits, target: TargetUnits | None, n: int, *, intercept: bool
) -> Task:
    """The task in mapped units: the penalty stays on the user's coefficients.

    With u = (x − c)/s and t = (y − c_t)/s_t, a coefficient of the user is w = s_t·v/s. Dividing the objective by s_t²
    gives weights λ₁·s_t/s/s_t² on |v| and λ₂/s² on v².

    Args:
        loss: of residuals in the user's units.
        penalty: on the user's coefficients.
        units: of the features.
        target: of the target, None for classification.
        n: the number of records.
        intercept: whether there is one (never penalised).

    Returns:
        The task.
    """
    scale = 1.0 if target is None else target.scale
    loss = loss.rescaled(scale)
    mapped = penalty.rescaled(scale / units.safe_scale, 1 / scale**2)
    low, high = units.reach_low, units.reach_high
    if intercept:
        mapped = mapped.with_free_intercept()
        low, high = np.concatenate([[1.0], low]), np.concatenate([[1.0], high])
    return Task(loss, mapped, n, low, high, intercept, 0.0 if target is None else 1.0)


@dataclass
class Fit:
    """One or several linear functions of the same features, fitted under one certificate.

    Attributes:
        units: of the features.
        target: of the target, or None.
        intercept: whether there is one.
        tasks: one per function.
        prepared: the solver of each.
        certificate: of the whole plan.
        solvers: what was chosen.
        count: the noisy number of records, where the true one is secret.
    """

    units: FeatureUnits
    target: TargetUnits | None
    intercept: bool
    tasks: Sequence[Task]
    prepared: Sequence[Prepared]
    certificate: Certificate
    solvers: Sequence[LinearSolver]
    count: Count | None = None

    @classmethod
    def plan(
        cls,
        tasks: Sequence[Task],
        budget: Budget,
        choose: Callable[[Task, Budget], LinearSolver],
        units: FeatureUnits,
        target: TargetUnits | None,
        count: Count | None = None,
    ) -> Fit:
        """Everything public: solvers, plan, certificate.

        Args:
            tasks: one per function.
            budget: shared by them.
            choose: from a task to a solver.
            units: of the features.
            target: of the target.
            count: the noisy number of records, if the true one is secret; the tasks were made with it.

        Returns:
            A fit that has read nothing but the count.

        Raises:
            NotCovered: if the plan costs more than the budget (a bug in a solver's calibration, so nothing runs), or
                does not compose with a count.
        """
        rest = budget if count is None else count.rest
        solvers = [choose(task, rest) for task in tasks]
        prepared = [solver.prepare(task, rest) for solver, task in zip(solvers, tasks, strict=True)]
        head = () if count is None else (count.mechanism,)
        certificate = certify(Plan.of(*head, *(one.plan for one in prepared)), delta=budget.delta)
        if budget.adjacency is Adjacency.ADD_REMOVE and certificate.mu is None:
            raise NotCovered(
                f"adjacency: under add-remove the fit follows a noisy count and must be μ-GDP, which "
                f"solver='{solvers[0].name}' is not; use solver='auto', or adjacency='replace-one'",
                axis="adjacency",
            )
        gaussian = certificate.mu is not None and certificate.mu <= budget.whole_mu
        if not gaussian and certificate.epsilon(budget.delta) > budget.epsilon * (1 + 1e-9):
            raise NotCovered(
                f"the plan costs ε = {certificate.epsilon(budget.delta):.6g}, more than the {budget.epsilon:g} it was "
                "made for: choose another solver, and please report this",
                axis="epsilon",
            )
        return cls(units, target, tasks[0].intercept, tasks, prepared, certificate, solvers, count)

    def run(
        self,
        X: Any,
        targets: Sequence[Array],
        *,
        seed: int | None,
        ledger: Ledger | None,
        note: str,
        marks: Sequence[str] = (),
        progress: Callable[[int, int], None] | None = None,
    ) -> list[Coefficients]:
        """Reserve, then read records.

        Args:
            X: features in the user's units.
            targets: for each function, the target (regression) or labels ±1.
            seed: None for private noise.
            ledger: where to reserve.
            note: for the ledger.
            marks: what the certificate must say besides.
            progress: called with (done, all).

        Returns:
            One linear function per task.
        """
        certificate = self.certificate
        for mark in dict.fromkeys((*marks, *(text for one in self.prepared for text in one.declared))):
            certificate = certificate.marked(mark)
        streams = Streams(seed) if self.count is None else self.count.streams
        if streams.seeded:
            certificate = certificate.marked(SEEDED)
        if ledger is not None and self.count is None:  # else the whole was reserved before the count
            ledger.reserve(certificate, note)
        self.certificate = certificate
        out, first = [], 0 if self.count is None else 1
        with np.errstate(all="ignore"):  # a warning, or somebody's "raise", would tell about a record
            features = Design(self.units.map(X, intercept=self.intercept))
            for one, y in zip(self.prepared, targets, strict=True):
                session = Session(certificate, len(y), streams, first, progress)
                out.append(self._translated(one.solve(self._records(features, y), session)))
                first += len(one.plan)
        return out

    def _records(self, features: Design, y: Array) -> Records:
        if self.target is not None:
            return Records(features, self.target.map(y))
        return Records(features, np.zeros(len(y)), y)

    def _translated(self, solution: Solution) -> Coefficients:
        scale, centre = (1.0, 0.0) if self.target is None else (self.target.scale, self.target.centre)
        v = solution.v[1:] if self.intercept else solution.v
        ratio = np.where(self.units.constant, 0.0, scale / self.units.safe_scale)
        coef = v * ratio
        constant = centre + scale * solution.v[0] - coef @ self.units.centre if self.intercept else 0.0
        errors = solution.standard_errors
        if errors is not None:
            errors = (errors[1:] if self.intercept else errors) * ratio
        return Coefficients(coef, float(constant), errors, solution.notes)
