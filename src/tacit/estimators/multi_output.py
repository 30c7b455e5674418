"""What models with several outputs share: features within a public norm, the numbers of a descent, predictions."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, clone
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.accounting import Certificate, gdp_mu
from tacit.errors import InvalidInput, NotCovered
from tacit.estimators.anywhere import labelled
from tacit.estimators.base import PrivateEstimator, Table
from tacit.estimators.fitted import CHANGED, agree, check_numbers, check_plan, check_steps
from tacit.estimators.rooms import check_room, same_steps
from tacit.inputs.tables import class_list, encode_labels, validate_table
from tacit.maps import FeatureBounds, PublicSteps, RowMap, Shorten, feature_bounds, feature_norm
from tacit.maps.chain import PUBLIC_VALUE, transformed
from tacit.maps.steps import parts
from tacit.mechanism import Plan, batch_count
from tacit.problem import OUTPUT_LOSSES, OutputLoss
from tacit.records import Opened, Records
from tacit.release import Query, Session
from tacit.solvers import Budget
from tacit.solvers.hidden import CyclicNumbers, HiddenDescent, OutputProblem

__all__ = ["OutputClassifier", "OutputFit", "OutputModel"]

Array = NDArray[np.float64]
CLASSIFICATION = ("softmax", "one-vs-rest")
"""Losses of classifiers."""
MIN_NORM, MAX_NORM = 1e-5, 1e5
"""Of features: float32 must hold weights and outputs, with an intercept beside them."""


@dataclass(frozen=True, eq=False)
class Features:
    """What is known of the features before a record is read.

    Attributes:
        width: of a row.
        norm: that no row exceeds, or is scaled down to.
        map: from records to rows; None for the records themselves.
        steps: the fitted public steps, or None.
        bounds: the map of public bounds, or None.
    """

    width: int
    norm: float
    map: RowMap | None = None
    steps: Any = None
    bounds: FeatureBounds | None = None


@dataclass(frozen=True, eq=False)
class OutputFit:
    """A fit with every public choice made.

    Attributes:
        features: of records.
        maps: from records to what the weights multiply.
        target: the map of the target, or None.
        norm: of what the weights multiply.
        loss: clipped.
        problem: the query, and the number of records and weights.
        budget: what may be spent.
        solver: with its settings.
        numbers: of the descent.
        plan: what it will release.
        declared: nothing beyond what the parameters say.
    """

    features: Features
    maps: tuple[RowMap, ...]
    target: Any
    norm: float
    loss: OutputLoss
    problem: OutputProblem
    budget: Budget
    solver: HiddenDescent
    numbers: CyclicNumbers
    plan: Plan
    declared: tuple[str, ...] = ()

    def solve(self, session: Session) -> Array:
        """The weights, flat."""
        for one in self.maps:
            session = session.through(one)
        return self.solver.solve(self.problem, self.budget, session.through(None, self.target))


class OutputModel(PrivateEstimator):
    """Outputs that are linear in public features; subclasses say which query and which loss.

    Attributes:
        plan_: batches, steps, noise and ridge, and the constants they were derived from.
        coef_: the weights.
        feature_norm_: of what the weights multiply.
        features_: the fitted feature maps, or None.
        feature_bounds_: (2, features), the public bounds to which rows are clipped, or None.
    """

    plan_: CyclicNumbers
    feature_norm: float | None
    feature_bounds: Any
    features: Any
    batch_size: int | None
    epochs: int
    step_size: float | None
    step_fraction: float
    l2: float
    view: str
    partition: str
    progress: bool | None
    coef_: Array
    feature_norm_: float
    features_: Any
    feature_bounds_: Array | None
    _gdp_remedy: ClassVar[str] = "choose view='final_model' and partition='fixed', which have one"
    """For searches, whose candidates must be μ-GDP."""

    # -- what a model says ------------------------------------------------------------------------------------

    def _intercept(self) -> bool:
        """Whether there is a constant beside the features; without one, zero must stay zero."""
        return False

    def _lifted(self, width: int, norm: float) -> tuple[int, float]:
        """Weights per output, and the norm of what they multiply."""
        raise NotImplementedError

    def _last_map(self, width: int, norm: float) -> Shorten:
        """From features to rows that are short enough, ``norm`` that of what the weights multiply."""
        raise NotImplementedError

    def _loss(self, K: int, budget: Budget, n: int, size: int) -> OutputLoss:
        """The loss of K outputs that a fit of n records and ``size`` weights uses."""
        raise NotImplementedError

    def _query(self, loss: OutputLoss, norm: float, width: int) -> Query:
        raise NotImplementedError

    def _target(self) -> Any:
        """The map of the target, or None."""
        return None

    # -- features ---------------------------------------------------------------------------------------------

    def _prepared(self, p: int, dtype: Any = np.float64) -> Features:
        """The map for p columns and its norm, from ``feature_norm``, ``feature_bounds`` or ``features``."""
        if self.feature_bounds is not None:
            return self._bounded(p)
        if self.features is not None:
            return self._mapped(p, dtype)
        if self.feature_norm is None:
            raise InvalidInput(
                "feature_norm is missing: state a public bound on the norm of a record (longer ones are scaled down), "
                "or feature_bounds=(low, high), or pass features= that certify one"
            )
        return Features(p, self._stated_norm())

    def _bounded(self, p: int) -> Features:
        for name in ("feature_norm", "features"):
            if getattr(self, name) is not None:
                raise InvalidInput(f"give either feature_bounds or {name}: each of them bounds the norm of a record")
        bounds = feature_bounds(self.feature_bounds, p, keep_zero=not self._intercept())
        return Features(p, bounds.range().norm or 1.0, bounds, None, bounds)

    def _mapped(self, p: int, dtype: Any) -> Features:
        if isinstance(self.features, type) or not hasattr(self.features, "transform"):
            raise InvalidInput("features must be a public feature map, e.g. tacit.maps.RandomFourier(2000)")
        steps = clone(self.features)
        marks = _declared_by(steps)
        probe = np.full((1, p), PUBLIC_VALUE, dtype)  # public steps read the number of columns: not a record's values
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            steps.fit(probe)
        norm = feature_norm(steps) if self.feature_norm is None else self._stated_norm()
        width = int(transformed(steps, probe).shape[1])
        # In Poisson batches a record's place depends on the others. Maps of ours do not care, others might.
        alone = bool(marks) and self.view == "all_iterates"
        return Features(width, norm, PublicSteps(steps, width, alone=alone), steps)

    def _stated_norm(self) -> float:
        norm = _validate.positive(feature_norm=self.feature_norm)
        if not MIN_NORM <= norm <= MAX_NORM:
            raise InvalidInput(f"feature_norm must lie between {MIN_NORM:g} and {MAX_NORM:g}, got {norm!r}: rescale")
        return norm

    def _declared_marks(self) -> tuple[str, ...]:
        return () if self.features is None else _declared_by(self.features)

    def _feature_rows(self, X: Any, last: Shorten) -> NDArray[Any]:
        """Validated rows as the fit saw them; one that the maps cannot take has none, and no error tells about it."""
        width = int(self.coef_.shape[-1])
        if self.features_ is not None:
            X = PublicSteps(self.features_, width)(X)
        elif self.feature_bounds_ is not None:
            X = FeatureBounds.between(*self.feature_bounds_, keep_zero=not self._intercept())(X)
        return last(X)

    # -- plan -------------------------------------------------------------------------------------------------

    def _solver(self) -> HiddenDescent:
        return HiddenDescent(
            batch_size=self.batch_size,
            epochs=self.epochs,
            step_size=self.step_size,
            step_fraction=self.step_fraction,
            l2=self.l2,
            partition=self.partition,
        )

    def _planned(self, table: Table, budget: Budget) -> OutputFit:
        """The features, the query that they allow, and the numbers of its descent."""
        found, target, K = self._prepared(table.p, table.dtype), self._target(), table.outputs
        size, norm = self._lifted(found.width, found.norm)
        loss = self._loss(K, budget, table.n, K * size)
        problem = OutputProblem(self._query(loss, norm, found.width), table.n, K * size)
        solver = self._solver()
        numbers = solver.numbers(problem, budget)
        last = self._last_map(found.width, norm)
        maps = (last,) if found.map is None else (found.map, last)
        return OutputFit(found, maps, target, norm, loss, problem, budget, solver, numbers, numbers.plan)

    def _fitted(self, planned: OutputFit, solution: Array, table: Table) -> dict[str, Any]:
        bounds = planned.features.bounds
        return {
            "plan_": planned.numbers,
            "feature_norm_": planned.norm,
            "features_": planned.features.steps,
            "feature_bounds_": None if bounds is None else np.stack([bounds.low, bounds.high]),
        }

    # -- files ------------------------------------------------------------------------------------------------

    def _check_fitted(self) -> None:
        super()._check_fitted()
        plan, coef = getattr(self, "plan_", None), getattr(self, "coef_", None)
        if not isinstance(plan, CyclicNumbers) or not isinstance(coef, np.ndarray) or coef.ndim not in (2, 3):
            raise InvalidInput("plan_ must be the numbers of a descent, and coef_ a table of numbers: fit again")
        K, width = self._outputs_of(coef), coef.shape[-1]
        self._check_weights(K, width)
        _, norm = self._lifted(width, self._norm_of(width))
        check_numbers("feature_norm_", getattr(self, "feature_norm_", None), ())
        if not agree(float(norm), self.feature_norm_):
            raise InvalidInput(f"feature_norm_ is not what features and feature_norm give: {CHANGED}")
        solver, n = self._solver(), _validate.positive_int(n=plan.n)
        steps = batch_count(n, solver._batch(n)) * _validate.positive_int(epochs=self.epochs)
        check_steps(self.certificate_, steps)
        if len(plan.step_sizes) != steps:
            raise InvalidInput(f"its plan does not have the {steps} steps of its parameters: {CHANGED}")
        noise = _validate.positive(noise_multiplier=plan.noise_multiplier)
        said = (self.view, self.adjacency, "record", self.arithmetic)
        found = solver.with_noise(self._query(self._loss_of(K), norm, width), n, noise, *said)
        check_plan(self.certificate_, found.plan)
        if not agree(found, plan):
            raise InvalidInput(f"plan_ is not the plan of its parameters: {CHANGED}")

    def _outputs_of(self, coef: Array) -> int:
        """K, by the classes or by the weights."""
        raise NotImplementedError

    def _check_weights(self, K: int, width: int) -> None:
        """Shapes and numbers of what a family fits."""
        raise NotImplementedError

    def _loss_of(self, K: int) -> OutputLoss:
        """The loss of K outputs that was fitted."""
        raise NotImplementedError

    def _norm_of(self, width: int) -> float:
        """The norm of ``width`` features, by the parameters; refused if the fitted maps are others."""
        p, bounds = self.n_features_in_, getattr(self, "feature_bounds_", None)
        if (bounds is None) is not (self.feature_bounds is None):
            raise InvalidInput(f"feature_bounds_ is not what feature_bounds says: {CHANGED}")
        if self.features is None:
            if width != p or getattr(self, "features_", None) is not None:
                raise InvalidInput(f"coef_ or features_ is not for the {p} features of its records: {CHANGED}")
            found = self._prepared(p)
            if found.bounds is not None and not agree(np.stack([found.bounds.low, found.bounds.high]), bounds):
                raise InvalidInput(f"feature_bounds_ is not what feature_bounds says: {CHANGED}")
            return found.norm
        steps = getattr(self, "features_", None)
        if not same_steps(self.features, steps) or getattr(steps, "n_features_in_", p) != p:
            raise InvalidInput(f"features_ is not what features says: {CHANGED}")
        check_room(steps, p, int(self.coef_.nbytes))
        if transformed(steps, np.full((1, p), PUBLIC_VALUE)).shape != (1, width):
            raise InvalidInput(f"coef_ does not have one number for each of its features: {CHANGED}")
        return feature_norm(steps) if self.feature_norm is None else self._stated_norm()


class OutputClassifier(ClassifierMixin, OutputModel):  # type: ignore[misc]
    """Classification with one output per class."""

    classes: Any
    loss: str
    clip: float | None
    clip_: float

    def _outputs(self, X: Any) -> Array:
        raise NotImplementedError

    def _read(self, X: Any, y: Any) -> tuple[Table, Any, Any]:
        X, y = validate_table(self, X, y)
        classes, marks, index = encode_labels(self.classes, y)
        n, p = X.shape
        table = Table(n, p, dtype=X.dtype, outputs=len(classes), classes=classes, marks=marks)
        return table, X, index

    def _see(self, records: Opened) -> tuple[Table, Records]:
        header, classes, seen = labelled(records, self.classes)
        return Table(seen.n, header.width, dtype=header.dtype, outputs=len(classes), classes=classes), seen

    def _shape(self, n_records: int, n_features: int) -> Table:
        classes, marks = class_list(self.classes, ())
        return Table(n_records, n_features, outputs=len(classes), classes=classes, marks=marks)

    def _loss(self, K: int, budget: Budget, n: int, size: int) -> OutputLoss:
        clip = default_clip(budget.epsilon, budget.delta, n, size) if self.clip is None else self.clip
        return OUTPUT_LOSSES[_validate.one_of(CLASSIFICATION, loss=self.loss)](K, clip)

    def _fitted(self, planned: OutputFit, solution: Array, table: Table) -> dict[str, Any]:
        found = super()._fitted(planned, solution, table)
        return {**found, "classes_": table.classes, "clip_": planned.loss.clip}

    def _outputs_of(self, coef: Array) -> int:
        return len(self.classes_)

    def _loss_of(self, K: int) -> OutputLoss:
        check_numbers("clip_", getattr(self, "clip_", None), (), least=0.0)
        if self.clip is not None and not agree(float(self.clip), float(self.clip_)):
            raise InvalidInput(f"clip_ is not what clip says: {CHANGED}")
        return OUTPUT_LOSSES[_validate.one_of(CLASSIFICATION, loss=self.loss)](K, self.clip_)

    def decision_function(self, X: Any) -> Array:
        """Outputs: (records, classes), or their difference for two classes."""
        Z = self._outputs(X)
        return Z[:, 1] - Z[:, 0] if len(self.classes_) == 2 else Z

    def predict(self, X: Any) -> Any:
        """The class of the largest output."""
        check_is_fitted(self)
        return self.classes_[self._outputs(X).argmax(axis=1)]

    def predict_proba(self, X: Any) -> Array:
        """Softmax of the outputs (one-vs-rest: normalised sigmoids)."""
        Z = self._outputs(X)
        if self.loss == "one-vs-rest":
            P = 1 / (1 + np.exp(-np.clip(Z, -500, 500)))
            return np.asarray(P / np.maximum(P.sum(axis=1, keepdims=True), 1e-300))
        P = np.exp(Z - Z.max(axis=1, keepdims=True))
        return np.asarray(P / P.sum(axis=1, keepdims=True))


def default_clip(epsilon: float, delta: float, n: int, size: int) -> float:
    """How much of the loss's slope is kept: little where noise dominates, all of it where it does not."""
    signal = n * gdp_mu(epsilon, delta) / np.sqrt(size)  # records' worth of signal over noise, per coordinate
    return float(np.clip(signal / 500, 0.1, 1.0))


def _declared_by(steps: Any) -> tuple[str, ...]:
    """What the user vouches for in public steps; private ones are refused: this estimator would not pay for them."""
    try:
        found = list(parts(steps, type(steps).__name__))
    except InvalidInput as error:
        raise NotCovered(f"features must be public maps, and {error}", axis="features") from None
    if any(isinstance(part, Certificate) for part in found):
        raise NotCovered(
            "features contains a private transformer whose cost this estimator would not account for; move it to a "
            "pipeline step before the estimator",
            axis="features",
        )
    return tuple(part for part in found if isinstance(part, str))
