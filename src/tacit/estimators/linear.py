"""What all linear estimators share: the problem in mapped units, its solver, and coefficients in the user's units."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from tacit.errors import InvalidInput
from tacit.estimators.anywhere import header_of, labelled
from tacit.estimators.base import PrivateEstimator, Table
from tacit.estimators.exploration import clipping_report
from tacit.estimators.fitted import CHANGED, check_numbers, is_selected
from tacit.inputs.parameters import bounds_of, check_magnitude
from tacit.inputs.tables import class_list, encode_labels, numbers_of, validate_table
from tacit.maps import FeatureBounds, TargetBounds, feature_bounds, target_bounds
from tacit.mechanism import Adjacency, Plan
from tacit.problem import Facts, Loss, Penalty, Problem, elastic_net
from tacit.records import Opened, Records
from tacit.release import Session
from tacit.solvers import Budget, Solution, Solver, solver_factory

__all__ = ["LinearClassifier", "LinearModel", "LinearRegressor", "Sign"]

Array = NDArray[np.float64]
SPARSE = ("csr", "csc")
CHUNK_ENTRIES = 1 << 19
"""Entries of a table for which a prediction is made at a time: no copy of the table is."""
FINAL_ONLY = "the certificate is about the final model only: what the solver computed on its way is not covered"
"""A note of solvers that need view='final_model'."""


@dataclass(frozen=True)
class Sign:
    """+1 for one class, −1 for all others: the target of one head of a one-vs-rest classifier."""

    positive: int

    def __call__(self, y: Any) -> NDArray[np.int8]:
        """+1 where y is this class."""
        return np.where(y == self.positive, np.int8(1), np.int8(-1))


@dataclass(frozen=True, eq=False)
class Units:
    """What the default of a penalty is measured by, public or released.

    Attributes:
        n: the number of records; noisy where that is secret.
        features: half of the range of each feature by its bounds (1 for bounds that leave no choice).
        target: half of the range of the target, or what it is divided by; 1 for labels.
    """

    n: int
    features: Array
    target: float


@dataclass(frozen=True, eq=False)
class Coefficients:
    """One linear function in the user's units.

    Attributes:
        coef: one number per feature.
        intercept: the constant.
        standard_errors: of coef, from the privacy noise alone, or None.
        notes: what a user should know.
        within: (2, features), the interval of each feature to which rows are clipped.
    """

    coef: Array
    intercept: float
    standard_errors: Array | None
    notes: tuple[str, ...]
    within: Array


@dataclass(frozen=True, eq=False)
class LinearFit:
    """One or several linear functions of the same features, planned under one certificate.

    Attributes:
        problem: in mapped units.
        solver: of each function.
        budget: of the whole fit.
        plan: of all functions together.
        declared: what the user vouches for.
        features: the map of features.
        targets: the map of the target, one per function.
    """

    problem: Problem
    solver: Solver
    budget: Budget
    plan: Plan
    declared: tuple[str, ...]
    features: FeatureBounds
    targets: tuple[Any, ...]

    def solve(self, session: Session) -> list[Coefficients]:
        """Each function in turn, each with its own parts of the plan."""
        length = len(self.plan.parts) // len(self.targets)
        out = []
        for k, target in enumerate(self.targets):
            view = session.through(self.features, target, parts_from=k * length)
            out.append(self._in_user_units(self.solver.solve(self.problem, self.budget, view)))
        return out

    def _in_user_units(self, solution: Solution) -> Coefficients:
        """With u = (x − c)/s and t = (y − c_t)/s_t, a coefficient of the user is s_t·v/s; logarithms only shift."""
        target = self.targets[0]
        scale, shift = 1.0, 0.0
        if isinstance(target, TargetBounds):
            scale, shift = (1.0, np.log(target.scale)) if target.logarithmic else (target.scale, target.centre)
        first = int(self.problem.intercept)
        ratio = np.where(self.features.fixed, 0.0, scale / self.features.safe_scale)
        coef = solution.v[first:] * ratio
        constant = shift + scale * solution.v[0] - coef @ self.features.centre if first else 0.0
        errors = solution.standard_errors
        errors = None if errors is None else errors[first:] * ratio
        return Coefficients(coef, float(constant), errors, solution.notes, self._within(solution))

    def _within(self, solution: Solution) -> Array:
        """The public bounds, or what the solver found within them, in the user's units."""
        low, high = self.features.low, self.features.high
        if solution.within is None:
            return np.stack([low, high])
        centre, scale, first = self.features.centre, self.features.safe_scale, int(self.problem.intercept)
        ends = [np.clip(centre + scale * end[first:], low, high) for end in solution.within]
        return np.where(self.features.fixed, np.stack([low, high]), np.stack(ends))


class LinearModel(PrivateEstimator):
    """Common ground of regressors and classifiers; subclasses state loss and penalty.

    Attributes:
        coef_: coefficients in the units of X.
        feature_bounds_: (2, features), the public bounds.
        intercept_: constant term(s).
        clipped_to_: (functions, 2, features), the public bounds, or released intervals within them that hold the data:
            rows are clipped to these, in fits and predictions alike.
        coef_standard_errors_: of the coefficients, from the privacy noise alone; None where the solver knows none.
        solver_: the name of the solver that ran.
    """

    feature_bounds: Any
    fit_intercept: bool
    solver: str | Solver
    view: str
    max_passes: float | None
    clip: float | None
    coef_: Array
    coef_standard_errors_: Array | None
    intercept_: Any
    feature_bounds_: Array
    clipped_to_: Array
    secret_count = True
    alpha: float | None
    l1_ratio: float | None = 0.0
    """The ℓ1 share of the penalty, for families that have no such parameter."""
    default_loss: ClassVar[Loss]
    """The loss of a family that has no parameter for it."""

    def __init_subclass__(cls, **options: Any) -> None:
        """Give every linear estimator a name in the shell: DPPoissonRegressor is ``--model poisson``."""
        super().__init_subclass__(**options)
        if "shell_name" not in vars(cls):
            cls.shell_name = re.sub(r"^DP|(Regression|Regressor|Classifier)$", "", cls.__name__).lower()

    @classmethod
    def example(cls) -> Self:
        """As any estimator's, with targets that its loss takes."""
        model = super().example()
        loss = model._loss()
        if loss.positive:
            model.set_params(target_bounds=(1 if loss.strictly_positive else 0, 20))
        return model

    def _loss(self) -> Loss:
        """The loss, in mapped units of its targets."""
        return self.default_loss

    def _default_alpha(self, units: Units) -> float:
        """α of scikit-learn's default, beside the mean loss of mapped targets: 1/n is C = 1, or a ridge of 1."""
        return 1 / units.n

    def _penalty(self, size: int, units: Units) -> Penalty:
        """The penalty on the user's coefficients."""
        alpha = self._default_alpha(units) if self.alpha is None else self.alpha
        return elastic_net(size, alpha, self.l1_ratio)

    def _targets(self, table: Table, loss: Loss) -> tuple[Any, ...]:
        """The map of the target of each linear function."""
        raise NotImplementedError

    def _check_given(self, *required: str) -> None:
        """Name all missing parameters at once; a single one has a message of its own."""
        missing = [name for name in ("delta", "feature_bounds", *required) if getattr(self, name) is None]
        if len(missing) > 1:
            raise InvalidInput(
                f"{', '.join(missing[:-1])} and {missing[-1]} are missing: state them from public knowledge, not "
                "from the data, e.g. delta=1/n² and feature_bounds=(low, high)"
            )

    def _features(self, table: Table) -> FeatureBounds:
        keep_zero = not self.fit_intercept
        constant = bool(self.fit_intercept)
        return feature_bounds(self.feature_bounds, table.p, sparse=table.sparse, keep_zero=keep_zero, constant=constant)

    def _planned(self, table: Table, budget: Budget) -> LinearFit:
        """The problem in mapped units (the penalty stays on the user's coefficients), and a plan for each function."""
        if self.clip is not None:
            check_magnitude(clip=self.clip)
        features, loss = self._features(table), self._loss()
        choose = solver_factory(self.solver, self.max_passes, self.clip)
        targets = self._targets(table, loss)
        scale = targets[0].scale if isinstance(targets[0], TargetBounds) and loss.equivariant else 1.0
        known = Units(max(table.n, 1), features.safe_scale, targets[0].scale if hasattr(targets[0], "scale") else 1.0)
        penalty, units = self._penalty(table.p, known), features.safe_scale
        if self.fit_intercept:
            penalty, units = penalty.with_free_intercept(), np.concatenate([[1.0], units])
        found = features.range()
        facts = Facts(table.n, found.low, found.high)
        problem = Problem(loss, penalty, facts, bool(self.fit_intercept)).in_units(scale, units)
        share = replace(budget, copies=len(targets))
        solver = choose(problem, share)
        plan = Plan.of(*[solver.plan(problem, share)] * len(targets))
        return LinearFit(problem, solver, share, plan, solver.declared(problem), features, targets)

    def _utility_notes(self) -> tuple[str, ...]:
        return tuple(note for note in self.notes_ if note != FINAL_ONLY)

    def _declared_marks(self) -> tuple[str, ...]:
        loss = self._loss()
        if type(loss).__module__.startswith("tacit."):
            return ()
        marks: tuple[str, ...] = (f"declared: the derivative of the {loss.name} loss treats each record by itself",)
        if self.view == "final_model":
            marks += (f"declared: the {loss.name} loss is convex, and no more curved than {loss.curvature:g}",)
        return marks

    def _fitted(self, planned: LinearFit, solution: list[Coefficients], table: Table) -> dict[str, Any]:
        shown = (FINAL_ONLY,) if planned.solver.final_model_only else ()
        notes = (*shown, *(note for one in solution for note in one.notes))
        bounds = np.stack([planned.features.low, planned.features.high])
        return {
            "solver_": planned.solver.name,
            "notes_": tuple(dict.fromkeys(notes)),
            "feature_bounds_": bounds,
            "clipped_to_": np.stack([one.within for one in solution]),
        }

    def _check_fitted(self) -> None:
        super()._check_fitted()
        p, heads = self.n_features_in_, self._heads()
        check_numbers("coef_", getattr(self, "coef_", None), (*heads, p))
        check_numbers("intercept_", getattr(self, "intercept_", None), heads)
        if getattr(self, "coef_standard_errors_", None) is not None:
            check_numbers("coef_standard_errors_", self.coef_standard_errors_, (*heads, p))
        check_numbers("feature_bounds_", getattr(self, "feature_bounds_", None), (2, p))
        check_numbers("clipped_to_", getattr(self, "clipped_to_", None), (heads[0] if heads else 1, 2, p))
        low, high = self.clipped_to_[:, 0], self.clipped_to_[:, 1]
        if (low > high).any() or (low < self.feature_bounds_[0]).any() or (high > self.feature_bounds_[1]).any():
            raise InvalidInput(f"clipped_to_ does not lie within feature_bounds_: {CHANGED}")
        if not np.array_equal(np.stack(bounds_of("feature_bounds", self.feature_bounds, p)), self.feature_bounds_):
            raise InvalidInput(f"feature_bounds_ is not what feature_bounds says: {CHANGED}")
        fitted = len(self.certificate_.plan) - int(Adjacency.parse(self.adjacency) is Adjacency.ADD_REMOVE)
        if not is_selected(self.certificate_) and (fitted < 1 or fitted % (heads[0] if heads else 1)):
            raise InvalidInput(f"its plan does not have a part for each of its linear functions: {CHANGED}")

    def _heads(self) -> tuple[int, ...]:
        """The shape of the constant: () for one number."""
        return ()

    def clipping_report(self, X: Any, *, epsilon: float, delta: float | None = None, groups: Any = None) -> Any:
        """How many values of each column ``feature_bounds`` cut off: a charged release of its own.

        Args:
            X: (rows, features).
            epsilon: ε of this report.
            delta: δ of this report; by default the model's.
            groups: whose each row is, or None.

        Returns:
            A ``ClippingReport``; print it.
        """
        return clipping_report(
            X,
            self.feature_bounds,
            epsilon=epsilon,
            delta=self.delta if delta is None else delta,
            adjacency=self.adjacency,
            arithmetic=self.arithmetic,
            groups=groups,
            ledger=self.ledger,
            random_state=self.random_state,
        )

    def _scores(self, X: Any) -> Array:
        """Xw + b of rows within the intervals of ``clipped_to_``: what each function was fitted to."""
        check_is_fitted(self)
        coef, ends = np.atleast_2d(self.coef_), self.clipped_to_
        maps = [FeatureBounds.between(*end) for end in (ends[:1] if (ends == ends[0]).all() else ends)]

        def scores(rows: Any) -> Array:
            out, size = np.empty((rows.shape[0], len(coef))), max(CHUNK_ENTRIES // rows.shape[1], 1)
            for first in range(0, len(out), size):
                part = rows[first : first + size]
                if len(maps) == 1:
                    out[first : first + size] = maps[0].clip(part) @ coef.T
                else:
                    own = [one.clip(part) @ w for one, w in zip(maps, coef, strict=True)]
                    out[first : first + size] = np.stack(own, axis=1)
            return np.asarray(out + np.atleast_1d(self.intercept_))

        return self._applied(X, scores, accept_sparse="csr")

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class LinearRegressor(RegressorMixin, LinearModel):  # type: ignore[misc]
    """Regression: the target is clipped to public bounds."""

    target_bounds: Any

    def _read(self, X: Any, y: Any) -> tuple[Table, Any, Any]:
        self._check_given("target_bounds")
        X, y = validate_table(self, X, y, accept_sparse=SPARSE)
        n, p = X.shape
        return Table(n, p, sparse.issparse(X), X.dtype), X, numbers_of(y)

    def _see(self, records: Opened) -> tuple[Table, Records]:
        self._check_given("target_bounds")
        header = header_of(records, target=True)
        return Table(records.n, header.width, dtype=header.dtype), records

    def _shape(self, n_records: int, n_features: int) -> Table:
        return Table(n_records, n_features)

    def _targets(self, table: Table, loss: Loss) -> tuple[TargetBounds]:
        return (target_bounds(self.target_bounds, loss=loss, keep_zero=not self.fit_intercept),)

    def _fitted(self, planned: LinearFit, solution: list[Coefficients], table: Table) -> dict[str, Any]:
        (one,) = solution
        return {
            **LinearModel._fitted(self, planned, solution, table),
            "coef_": one.coef,
            "intercept_": one.intercept,
            "coef_standard_errors_": one.standard_errors,
        }

    def predict(self, X: Any) -> Array:
        """The prediction for rows within ``feature_bounds``, clipped to ``target_bounds``: no target lies outside."""
        loss = self._loss()
        with np.errstate(over="ignore"):
            return target_bounds(self.target_bounds, loss=loss).clip(loss.predict(self._scores(X)[:, 0]))


class LinearClassifier(ClassifierMixin, LinearModel):  # type: ignore[misc]
    """Classification: one linear function for two classes, one per class for more (one-vs-rest)."""

    classes: Any

    def _read(self, X: Any, y: Any) -> tuple[Table, Any, Any]:
        self._check_given()
        X, y = validate_table(self, X, y, accept_sparse=SPARSE)
        classes, marks, index = encode_labels(self.classes, y)
        index = index.astype(np.min_scalar_type(len(classes)))  # of one byte, as a rule
        n, p = X.shape
        return Table(n, p, sparse.issparse(X), X.dtype, len(classes), classes, marks), X, index

    def _see(self, records: Opened) -> tuple[Table, Records]:
        self._check_given()
        header, classes, seen = labelled(records, self.classes)
        return Table(seen.n, header.width, dtype=header.dtype, outputs=len(classes), classes=classes), seen

    def _shape(self, n_records: int, n_features: int) -> Table:
        classes, marks = class_list(self.classes, ())
        return Table(n_records, n_features, outputs=len(classes), classes=classes, marks=marks)

    def _targets(self, table: Table, loss: Loss) -> tuple[Sign, ...]:
        return tuple(Sign(k) for k in ((1,) if table.outputs == 2 else range(table.outputs)))

    def _fitted(self, planned: LinearFit, solution: list[Coefficients], table: Table) -> dict[str, Any]:
        errors = [one.standard_errors for one in solution if one.standard_errors is not None]
        return {
            **LinearModel._fitted(self, planned, solution, table),
            "classes_": table.classes,
            "coef_": np.stack([one.coef for one in solution]),
            "intercept_": np.array([one.intercept for one in solution]),
            "coef_standard_errors_": np.stack(errors) if len(errors) == len(solution) else None,
        }

    def _heads(self) -> tuple[int, ...]:
        return (1,) if len(self.classes_) == 2 else (len(self.classes_),)

    def decision_function(self, X: Any) -> Array:
        """Scores: (records,) for two classes, else (records, classes)."""
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> Any:
        """The class of the largest score."""
        scores = self.decision_function(X)
        index = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[index]
