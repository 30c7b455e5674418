"""One way for every private model: validate, plan, certify, open a session, solve, publish."""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, is_classifier

from tacit import _validate
from tacit._registry import enlist
from tacit.accounting import Certificate, certify
from tacit.errors import InvalidInput, NotCovered, PrivacyUtilityWarning
from tacit.estimators.anywhere import check_place, checked_records, name_features, rows_to_predict, watched
from tacit.estimators.fitted import check_classes, check_marks, check_promise, check_width, check_words
from tacit.estimators.progress import progress_bar
from tacit.estimators.table import Planned, Table
from tacit.inputs.parameters import check_parameters, parse_memory
from tacit.inputs.tables import validate_table
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency, Arithmetic, Plan
from tacit.records import InMemory, Opened, Persons, Records
from tacit.records.persons import check_weighting
from tacit.release import Session, open_session
from tacit.release.queries import BoundedSum, One
from tacit.solvers.base import Budget

__all__ = [
    "ESTIMATORS",
    "Planned",
    "PrivateEstimator",
    "Table",
    "publish",
    "with_certificate",
]

Array = NDArray[np.float64]
ESTIMATORS: dict[str, type[PrivateEstimator]] = {}
"""Every private estimator that was defined, by name: contract tests, files and the shell read it."""
COUNT_SHARE = 0.02
"""The share of μ² for a noisy count, where the number of records is secret."""
NOMINAL_RECORDS = 100_000
"""What a plan is told where the number of records is secret."""
SEEN = ("n_features_in_", "feature_names_in_")
"""What validation keeps of a table."""


class PrivateEstimator(BaseEstimator):  # type: ignore[misc]
    """A model with a certificate. Families say what is planned (``_planned``), and what a solution means (``_fitted``).

    Fitted attributes are set together, after the last release: a fit that fails or is interrupted leaves the model as
    it was.

    Attributes:
        certificate_: the promise: ``.epsilon(delta)``, ``.delta(epsilon)``, ``.adjacency``, ``.view``, ``.theorem``,
            ``.assumptions``.
        notes_: what you should know about this fit, if anything.
    """

    certificate_: Certificate
    notes_: tuple[str, ...]
    epsilon: float
    delta: float | None
    adjacency: str
    arithmetic: str = "float"
    ledger: Ledger | None
    random_state: int | None
    weighting: str = "person"
    max_rows: int | None = None
    max_sample_weight: float | None = None
    memory: str | float | None = None
    __metadata_request__fit: ClassVar[dict[str, bool]] = {"groups": True, "sample_weight": True}
    """Where scikit-learn routes metadata, whose rows are reaches every fit: none falls back to rows by itself."""
    secret_count: ClassVar[bool] = False
    """Whether the family can be fitted under add/remove, where the number of records is secret."""
    uses_count: ClassVar[bool] = True
    """Whether a plan depends on the number of records, so that a noisy count must come first where it is secret."""
    shell_name: ClassVar[str | None] = None
    """What ``tacit fit --model`` calls it; None where the schema of a table does not say all that it needs."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            enlist(ESTIMATORS, cls, "an estimator")

    @classmethod
    def example(cls) -> Self:
        """An estimator for the contract tests; features lie within ±50, targets within ±20.

        Returns:
            One with bounds and a budget by which a small table is fitted almost exactly. Families that need other
            public numbers override it.
        """
        stated = {"epsilon": 1e5, "delta": 1e-3, "feature_bounds": (-50, 50), "target_bounds": (-20, 20)}
        known = cls._get_param_names()
        return cls(**{name: value for name, value in (stated | {"random_state": 0}).items() if name in known})

    # -- what a family says ---------------------------------------------------------------------------------------

    @abstractmethod
    def _read(self, X: Any, y: Any) -> tuple[Table, Any, Any]:
        """Check the schema (shape, type, finiteness), a documented precondition; return the table, X and y."""

    @abstractmethod
    def _shape(self, n_records: int, n_features: int) -> Table:
        """The table that a fit of these sizes would see."""

    @abstractmethod
    def _planned(self, table: Table, budget: Budget) -> Planned:
        """Make every public choice; no record is read."""

    @abstractmethod
    def _fitted(self, planned: Any, solution: Any, table: Table) -> dict[str, Any]:
        """Fitted attributes (without certificate and notes) from a solution."""

    def _see(self, records: Opened) -> tuple[Table, Records]:
        """The table that a fit on such records would see, and the records as it sees them; from types alone.

        Raises:
            InvalidInput: if the family needs all rows at once.
        """
        raise InvalidInput(
            f"{type(self).__name__} needs all rows in memory: fit it on an array, fit(X, y); linear models, softmax "
            "regression, scalers and statistics take open records"
        )

    def _records(self, table: Table, X: Any, y: Any, persons: Persons | None) -> Records:
        """Where the session finds the table that ``_read`` returned."""
        return InMemory(X, y, persons, parse_memory(self.memory))

    def _check_fitted(self) -> None:
        """Refuse fitted attributes that contradict each other, the parameters or the certificate.

        Files are checked with it after they were read, and models before they are written; families add to it.
        Nothing is made here that is larger than what the model holds.

        Raises:
            InvalidInput: naming the attribute.
        """
        check_promise(self)
        check_words(self, check_width(self))
        if is_classifier(self):
            check_classes(self)
        check_marks(self, self._declared_marks())

    def _note(self) -> str:
        """What the ledger calls a fit."""
        return type(self).__name__

    def _utility_notes(self) -> tuple[str, ...]:
        """Notes of the last fit that say what its result is worth: warnings, too. They follow from public numbers."""
        return self.notes_

    def _declared_marks(self) -> tuple[str, ...]:
        """What the user declares, by the parameters alone."""
        return ()

    def _unused_parameters(self) -> dict[str, str]:
        """Options that have no effect, each with the parameter whose value makes it so; None means "not stated"."""
        return {}

    # -- the one way ------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, groups: Any = None, sample_weight: Any = None) -> Self:
        """Fit under the certificate that the parameters ask for.

        Values outside public bounds are clipped silently: a message would tell about a record.

        Args:
            X: (rows, features); or records, with their targets in them (``tacit.open_records``).
            y: (rows,) targets or labels.
            groups: whose each row is, one id per row. The certificate is then about persons, who may have several
                rows (docs/persons.md); without it, about single rows.
            sample_weight: what each row counts, (rows,), in units of the public ``max_sample_weight``; more is clipped.

        Returns:
            The estimator itself.
        """
        draft = copy.copy(self)  # validation writes the names of features there; this model stays as it is
        table, records = draft._opened(X, y, groups, sample_weight)
        budget = draft._budget(table)
        table = _without_secret_count(table, budget)
        certificate, planned = draft._reserved(table, budget)
        check_place(records, planned)
        with (
            np.errstate(all="ignore"),  # a solver's own warnings come and go with the noise
            progress_bar(type(self).__name__, self._progress(records)) as progress,
            open_session(
                certificate,
                watched(records, planned.plan, progress),
                ledger=self.ledger,
                random_state=self.random_state,
                note=self._note(),
                progress=None if isinstance(records, Opened) else progress,  # which told the records
            ) as session,
        ):
            if draft._counts_first(table, budget):
                session, planned, table = draft._counted(session, table, budget)
            solution = planned.solve(session)
        publish(self, draft, {"notes_": (), **draft._fitted(planned, solution, table)}, session.certificate)
        for note in self._utility_notes():
            warnings.warn(note, PrivacyUtilityWarning, stacklevel=2)
        return self

    def planned_certificate(
        self,
        n_records: int,
        n_features: int,
        *,
        sparse: bool = False,
        n_outputs: int | None = None,
        by_person: bool = False,
        weighted: bool = False,
    ) -> Certificate:
        """What ``fit`` is going to certify for a table of this shape; no record is read.

        Args:
            n_records: rows; persons, where ``fit`` is told whose they are.
            n_features: columns.
            sparse: whether the table is a sparse matrix, whose zeros must stay zero.
            n_outputs: columns of the target, for regressors of several; one if missing.
            by_person: whether ``fit`` is told whose rows are (``groups``).
            weighted: whether it is told what rows count (``sample_weight``).

        Returns:
            The certificate, without the mark of a seed.

        Raises:
            InvalidInput: for a sparse table, if the estimator takes none.
        """
        if sparse and not self.__sklearn_tags__().input_tags.sparse:
            raise InvalidInput(f"{type(self).__name__} takes no sparse table: convert it by toarray()")
        table = dataclasses.replace(self._shape(n_records, n_features), sparse=sparse)
        if n_outputs is not None and table.classes is None:
            table = dataclasses.replace(table, outputs=_validate.positive_int(n_outputs=n_outputs))
        check_weighting(self.weighting, self.max_rows)
        table = self._of_persons(table, table.n, by_person, weighted or (by_person and self.weighting == "rows"))
        budget = self._budget(table)
        return self._reserved(_without_secret_count(table, budget), budget)[0]

    def _reserved(self, table: Table, budget: Budget) -> tuple[Certificate, Planned]:
        """What is reserved before a record is read, with all its marks but the seed's; and the plan.

        Where the plan follows from a noisy count, what is reserved is the count and *any* μ-GDP fit with the rest of
        the budget; the plan that is returned is one for a nominal number.

        Returns:
            The certificate and the plan.

        Raises:
            NotCovered: if the plan must follow a noisy count, and is not μ-GDP.
        """
        planned = self._planned(table, budget)
        certificate = self._certified(planned, budget)
        if self._counts_first(table, budget):
            if certificate.mu is None:
                raise NotCovered(
                    "adjacency: under add-remove the fit follows a noisy count and must be μ-GDP, which this solver is "
                    "not; use solver='auto', or adjacency='replace-one'"
                    if budget.adjacency is Adjacency.ADD_REMOVE
                    else "weighting: with weighting='rows' or sample_weight the fit follows a noisy sum of weights and "
                    "must be μ-GDP, which this solver is not; use solver='auto', or weighting='person' without weights",
                    axis="adjacency" if budget.adjacency is Adjacency.ADD_REMOVE else "weighting",
                )
            certificate = certify(_counted_plan(budget), delta=budget.delta)
        for mark in dict.fromkeys((*table.marks, *self._declared_marks(), *planned.declared)):
            certificate = certificate.marked(mark)
        return certificate, planned

    def _opened(self, X: Any, y: Any, groups: Any, sample_weight: Any) -> tuple[Table, Records]:
        """The table as a plan may know it, and where its records are; of open records nothing is read."""
        if isinstance(X, Records):
            opened = checked_records(X, y=y, groups=groups, sample_weight=sample_weight)
            self._check_weights_of_rows(opened.has_persons, False)
            table, records = self._see(opened.of_persons(self.max_rows or 1) if opened.has_persons else opened)
            name_features(self, X)
            return self._of_persons(table, table.n, True, bool(self.max_rows)) if records.by_person else table, records
        table, X, y = self._read(X, y)
        table, persons = self._grouped(table, groups, sample_weight)
        return table, self._records(table, X, y, persons)

    def _applied(self, X: Any, function: Callable[[Any], Any], **options: Any) -> Array:
        """A function of validated rows: of a table at once, of records part by part."""
        if not isinstance(X, Records):
            return np.asarray(function(validate_table(self, X, reset=False, **options)))
        return np.concatenate([function(rows) for rows in rows_to_predict(self, X)])

    def _grouped(self, table: Table, groups: Any, sample_weight: Any) -> tuple[Table, Persons | None]:
        """The table as one of persons, where ids say whose each row is, and what rows count."""
        self._check_weights_of_rows(groups is not None, sample_weight is not None)
        if groups is None and sample_weight is None:
            return table, None
        persons = Persons.of(groups, table.n, self.weighting, self.max_rows, sample_weight, self.max_sample_weight)
        return self._of_persons(table, persons.n, persons.by_person, persons.secret_weight), persons

    def _check_weights_of_rows(self, by_person: bool, weighted: bool) -> None:
        """Refuse parameters about what rows count where they have no effect, or contradict each other."""
        check_weighting(self.weighting, self.max_rows)
        if not by_person:
            for name, default in (("weighting", "person"), ("max_rows", None)):
                if getattr(self, name) != default:
                    raise InvalidInput(f"{name} has no effect without groups: tell fit whose each row is")
        if not weighted and self.max_sample_weight is not None:
            raise InvalidInput("max_sample_weight has no effect without sample_weight: pass that to fit, too")

    def _of_persons(self, table: Table, n: int, by_person: bool, secret: bool) -> Table:
        """The table of n persons, or of n records that count differently."""
        if secret and not self.secret_count:
            raise NotCovered(
                f"weighting: with weighting='rows' or sample_weight it is secret how much all rows count together, but "
                f"the plan of a {type(self).__name__} is made for it; use weighting='person', without weights",
                axis="weighting",
            )
        unit = "person" if by_person else table.unit
        return dataclasses.replace(table, n=n, unit=unit, secret_weight=secret)

    def _counts_first(self, table: Table, budget: Budget) -> bool:
        """Whether how much all records count together is secret, and needed for a plan."""
        return self.uses_count and (budget.adjacency is Adjacency.ADD_REMOVE or table.secret_weight)

    def _budget(self, table: Table) -> Budget:
        """ε, δ, relation and view, checked."""
        for name, why in self._unused_parameters().items():
            if getattr(self, name) is not None:
                raise InvalidInput(f"{name} has no effect with {why}={getattr(self, why)!r}: leave it out")
        relation = check_parameters(self, table.n)
        if relation is Adjacency.ADD_REMOVE and not self.secret_count:
            raise NotCovered(
                f"adjacency: under add-remove the number of records is secret, but the plan of a "
                f"{type(self).__name__} is made for it; use replace-one or zero-out",
                axis="adjacency",
            )
        assert self.delta is not None
        return Budget(
            float(self.epsilon),
            float(self.delta),
            relation,
            getattr(self, "view", "all_iterates"),
            table.unit,
            arithmetic=Arithmetic.parse(self.arithmetic),
        )

    def _progress(self, records: Records | None = None) -> Any:
        """Whether to show a bar; passes over streamed records are long, so that a terminal shows one."""
        return getattr(self, "progress", None if isinstance(records, Opened) else False)

    def _certified(self, planned: Planned, budget: Budget) -> Certificate:
        """Certify the plan, and refuse one that costs more than the budget."""
        certificate = certify(planned.plan, delta=budget.delta)
        gaussian = certificate.mu is not None and certificate.mu <= budget.whole_mu
        if not gaussian and certificate.epsilon(budget.delta) > budget.epsilon * (1 + 1e-9):
            raise NotCovered(
                f"the plan costs ε = {certificate.epsilon(budget.delta):.6g}, more than the {budget.epsilon:g} it was "
                "made for: choose another solver, and please report this",
                axis="epsilon",
            )
        return certificate

    def _counted(self, session: Session, table: Table, budget: Budget) -> tuple[Session, Planned, Table]:
        """Release how much all records count, plan the rest from it, and go on under the certificate of both."""
        n = max(round(float(session.release(BoundedSum(One()))[0])), 1)
        table, rest = dataclasses.replace(table, n=n), budget.part(1 - COUNT_SHARE)
        planned = self._planned(table, rest)
        plan = Plan.of(session.certificate.plan.parts[0], planned.plan)
        return session.narrowed(certify(plan, delta=budget.delta)), planned, table

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        return tags


def publish(model: Any, draft: Any, fitted: dict[str, Any], certificate: Certificate) -> None:
    """Set all fitted attributes at once: an interrupt leaves the old model or the new one.

    Args:
        model: what is fitted.
        draft: the copy of it that validated the table.
        fitted: attributes by name.
        certificate: of the fit.
    """
    kept = {name: value for name, value in vars(model).items() if name not in SEEN}
    seen = {name: vars(draft)[name] for name in SEEN if name in vars(draft)}
    model.__dict__ = {**kept, **seen, **with_certificate(fitted, certificate), "certificate_": certificate}


def with_certificate(fitted: dict[str, Any], certificate: Certificate) -> dict[str, Any]:
    """The attributes, where a plan that states a promise (``plan_``) states this one."""
    plan = fitted.get("plan_")
    if not hasattr(plan, "certificate"):
        return fitted
    assert dataclasses.is_dataclass(plan)
    assert not isinstance(plan, type)
    return {**fitted, "plan_": dataclasses.replace(plan, certificate=certificate)}


def _without_secret_count(table: Table, budget: Budget) -> Table:
    """The table as a plan may know it: under add/remove a nominal number of records stands for the true one."""
    return dataclasses.replace(table, n=NOMINAL_RECORDS) if budget.adjacency is Adjacency.ADD_REMOVE else table


def _counted_plan(budget: Budget) -> Plan:
    """A noisy count, and *any* μ-GDP fit with the rest: what is reserved before the number of records is known."""
    count = budget.mechanism(budget.whole_mu * math.sqrt(COUNT_SHARE), 1, "noisy count")
    rest = budget.mechanism(budget.whole_mu * math.sqrt(1 - COUNT_SHARE) * (1 - 1e-12), 1, "the fit, at most")
    return Plan.of(count, rest)
