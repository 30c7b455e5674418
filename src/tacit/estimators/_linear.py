"""What all linear estimators share: parameters, fit, and what they know afterwards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.accounting import Certificate
from tacit.errors import InvalidInput
from tacit.estimators._count import Count, noisy_count
from tacit.estimators._fit import Coefficients, Fit, budget_of, task_of
from tacit.estimators._labels import class_list, class_numbers
from tacit.estimators._parameters import sized
from tacit.estimators._schema import checked, labels_of, numbers_of
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency
from tacit.problem import LOSSES, FeatureUnits, Loss, Penalty, TargetUnits, Task
from tacit.solvers import Budget, LinearSolver, named

__all__ = ["LinearClassifier", "LinearModel", "LinearRegressor"]

Array = NDArray[np.float64]
NOMINAL_RECORDS = 100_000
"""For a rehearsal of the plan where the number of records is secret."""
MOST_PASSES = 1e5
"""A run that reads the data more often would end neither today nor with a useful model."""
FINAL_ONLY = "the certificate is about the final model only: what the solver computed on its way is not covered"
"""A note of solvers that need view='final_model'."""


class LinearModel(BaseEstimator):  # type: ignore[misc]
    """Common ground of regressors and classifiers; subclasses state loss and penalty.

    Attributes:
        certificate_: the promise: ``.epsilon(delta)``, ``.delta(epsilon)``, ``.adjacency``, ``.view``, ``.theorem``,
            ``.assumptions``.
        coef_: coefficients in the units of X.
        intercept_: constant term(s).
        coef_standard_errors_: of the coefficients, from the privacy noise alone; None where the solver knows none.
        solver_: the name of the solver that ran.
        notes_: what you should know about this fit, if anything.
    """

    certificate_: Certificate
    epsilon: float
    delta: float | None
    adjacency: str
    feature_bounds: Any
    fit_intercept: bool
    solver: str | LinearSolver
    view: str
    max_passes: float | None
    clip: float | None
    budget: Ledger | None
    random_state: int | None

    def _store(self, parameters: dict[str, Any]) -> None:
        """Parameters as given, as scikit-learn wants it: validated by ``fit``."""
        for name in parameters.keys() - {"self", "__class__"}:
            setattr(self, name, parameters[name])

    def _idle(self) -> tuple[str, ...]:
        """Options that have no effect with the others, whatever was written into a file by default."""
        return ()

    def _loss(self) -> Loss:
        """The loss, in the user's units."""
        raise NotImplementedError

    def _penalty(self, size: int) -> Penalty:
        """The penalty on the user's coefficients."""
        raise NotImplementedError

    def _validated(self, X: Any, y: Any, *required: str) -> tuple[Any, Any]:
        """Parameters that shape no plan; then the schema (shape, type, finiteness), a documented precondition."""
        missing = [name for name in ("delta", "feature_bounds", *required) if getattr(self, name) is None]
        if len(missing) > 1:  # a single one has a message of its own
            raise InvalidInput(
                f"{', '.join(missing[:-1])} and {missing[-1]} are missing: state them from public knowledge, not "
                "from the data, e.g. delta=1/n² and feature_bounds=(low, high)"
            )
        if self.budget is not None and not isinstance(self.budget, Ledger):
            raise InvalidInput(f"budget must be a tacit.Ledger or None, got {type(self.budget).__name__}")
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise InvalidInput(f"fit_intercept must be True or False, got {self.fit_intercept!r}")
        if self.max_passes is not None and _validate.positive(max_passes=self.max_passes) > MOST_PASSES:
            raise InvalidInput(
                f"max_passes must be at most {MOST_PASSES:g}, got {self.max_passes!r}: noise grows with it"
            )
        if self.clip is not None:
            sized(clip=self.clip)
        seed = self.random_state
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0):
            raise InvalidInput(
                f"random_state must be None, for private noise, or a non-negative integer, for tests, got {seed!r}"
            )
        return checked(self, X, y, accept_sparse="csc")  # type: ignore[no-any-return]

    def _planned(self, X: Any, target: TargetUnits | None, copies: int = 1, marks: tuple[str, ...] = ()) -> Fit:
        """Everything that can be known without the records; ``marks`` are those of a ledger's entry for a count."""
        n, p = X.shape
        budget = budget_of(self.epsilon, self.delta, self.adjacency, self.view, n, copies)
        keep_zero = not self.fit_intercept
        units = FeatureUnits.of(self.feature_bounds, p, sparse=sparse.issparse(X), keep_zero=keep_zero)
        loss, penalty, choose = self._loss(), self._penalty(p), self._choice()

        def fit(n: int, count: Count | None) -> Fit:
            task = task_of(loss, penalty, units, target, n, intercept=bool(self.fit_intercept))
            return Fit.plan([task] * copies, budget, choose, units, target, count)

        if budget.adjacency is not Adjacency.ADD_REMOVE:
            return fit(n, None)
        fit(NOMINAL_RECORDS, None)  # whatever must be refused is refused before anything is spent
        count = noisy_count(
            n,
            budget,
            seed=self.random_state,
            ledger=self.budget,
            note=type(self).__name__,
            marks=(*marks, *self._declared()),
        )
        return fit(count.n, count)

    def _choice(self) -> Callable[[Task, Budget], LinearSolver]:
        solver = self.solver
        if isinstance(solver, LinearSolver):
            for name in ("max_passes", "clip"):
                if getattr(self, name) is not None:
                    kind = type(solver).__name__
                    raise InvalidInput(
                        f"{name} has no effect with a solver object: leave it out, and set up the {kind}"
                    )
            return lambda _task, _budget: solver
        return named(solver, self.max_passes, self.clip)

    def _declared(self) -> tuple[str, ...]:
        """What the user vouches for, by the parameters alone."""
        loss = self._loss()
        if type(loss) in LOSSES.values():
            return ()
        return (f"declared: the derivative of the {loss.name} loss treats each record by itself",)

    def _ran(self, fit: Fit, X: Any, targets: list[Array], marks: tuple[str, ...] = ()) -> list[Coefficients]:
        out = fit.run(
            X,
            targets,
            seed=self.random_state,
            ledger=self.budget,
            note=type(self).__name__,
            marks=(*marks, *self._declared()),
            progress=getattr(self, "_progress", None),
        )
        self.certificate_ = fit.certificate
        self.solver_ = fit.solvers[0].name
        shown = () if fit.certificate.view == "every iterate" else (FINAL_ONLY,)
        self.notes_ = tuple(dict.fromkeys((*shown, *(note for one in out for note in one.notes))))
        return out

    def _scores(self, X: Any) -> Array:
        check_is_fitted(self)
        X = checked(self, X, accept_sparse="csr", reset=False)
        # Rows within the public bounds, as in the fit: of a row outside of them the model knows nothing.
        X = FeatureUnits.of(self.feature_bounds, X.shape[1]).clip(X)
        scores = X @ np.atleast_2d(self.coef_).T + np.atleast_1d(self.intercept_)
        return np.asarray(scores, np.float64)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        tags.non_deterministic = self.random_state is None
        return tags


class LinearRegressor(RegressorMixin, LinearModel):  # type: ignore[misc]
    """Regression: the target is clipped to public bounds."""

    target_bounds: Any

    def fit(self, X: Any, y: Any) -> Self:
        """Fit under the certificate that the parameters ask for.

        Values outside the bounds are clipped silently.

        Args:
            X: (records, features), dense or sparse; finite.
            y: (records,); finite.

        Returns:
            The estimator itself.
        """
        X, y = self._validated(X, y, "target_bounds")
        y = numbers_of(y)
        target = TargetUnits.of(self.target_bounds, keep_zero=not self.fit_intercept)
        fit = self._planned(X, target)
        (one,) = self._ran(fit, X, [y])
        self.coef_: Array = one.coef
        self.intercept_: Any = one.intercept
        self.coef_standard_errors_ = one.standard_errors
        return self

    def predict(self, X: Any) -> Array:
        """X·coef_ + intercept_, clipped to ``target_bounds``: no target lies outside of them."""
        units = TargetUnits.of(self.target_bounds)
        return np.clip(self._scores(X)[:, 0], units.low, units.high)


class LinearClassifier(ClassifierMixin, LinearModel):  # type: ignore[misc]
    """Classification: one linear function for two classes, one per class for more (one-vs-rest)."""

    classes: Any

    def fit(self, X: Any, y: Any) -> Self:
        """Fit under the certificate that the parameters ask for.

        Values outside the bounds are clipped silently.

        Args:
            X: (records, features), dense or sparse; finite.
            y: (records,) labels.

        Returns:
            The estimator itself.

        Raises:
            InvalidInput: if y is not made of labels, or holds one that is not in ``classes``.
        """
        X, y = self._validated(X, y)
        y = labels_of(y)
        classes, marks = class_list(self.classes, y)
        index = class_numbers(classes, y)
        heads = 1 if len(classes) == 2 else len(classes)
        fit = self._planned(X, None, heads, marks)
        signs = [np.where(index == k, 1.0, -1.0) for k in ((1,) if heads == 1 else range(heads))]
        out = self._ran(fit, X, signs, marks)
        self.classes_ = classes
        self.coef_: Array = np.stack([one.coef for one in out])
        self.intercept_: Any = np.array([one.intercept for one in out])
        errors = [one.standard_errors for one in out if one.standard_errors is not None]
        self.coef_standard_errors_ = np.stack(errors) if len(errors) == heads else None
        return self

    def decision_function(self, X: Any) -> Array:
        """Scores: (records,) for two classes, else (records, classes)."""
        scores = self._scores(X)
        return scores[:, 0] if len(self.classes_) == 2 else scores

    def predict(self, X: Any) -> Any:
        """The class of the largest score."""
        scores = self.decision_function(X)
        index = (scores > 0).astype(int) if scores.ndim == 1 else scores.argmax(axis=1)
        return self.classes_[index]
