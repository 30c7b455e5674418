"""Any loss with any penalty and any solver: regression or classification, as the loss says."""

from __future__ import annotations

from typing import Any, Self

from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if

from tacit.errors import InvalidInput
from tacit.estimators._fit import Fit
from tacit.estimators._linear import LinearClassifier, LinearRegressor
from tacit.estimators._parameters import idle_penalty_options, loss_named, penalty_named
from tacit.ledger import Ledger
from tacit.problem import Loss, Penalty, TargetUnits
from tacit.solvers import LinearSolver

__all__ = ["DPGeneralizedLinear"]


class DPGeneralizedLinear(LinearClassifier, LinearRegressor):
    """minimise 1/n·Σ φ(z_i) + ψ(w): bring your own φ, ψ and solver.

    A loss of residuals (squared, Huber) makes it a regressor, one of margins (logistic, smoothed hinge) a classifier.

    Formal guarantee: as ``DPElasticNet`` (regression) or ``DPLogisticRegression`` (classification). What a record adds
    is clipped whatever the loss returns. Final-model guarantees take the built-in losses only, whose convexity is
    known; a loss of your own is refused there.

    Assumptions: as theirs. The derivative of a loss of your own treats each record by itself (declared: the certificate
    carries a mark); the penalty is public.

    Args:
        loss: a name of ``tacit.problem.LOSSES`` or a ``Loss`` of your own.
        penalty: "none", "l1", "l2", "elasticnet", "box", "nonnegative", or a ``tacit.problem.Penalty``.
        alpha: α, multiplies the penalty (with "box" and "nonnegative": a ridge beside it); 1e-3 if missing.
        l1_ratio: the ℓ1 share of "elasticnet"; a half if missing.
        box: (low, high), the limits of the coefficients for "box".
        epsilon: ε.
        delta: δ; required.
        feature_bounds: (low, high), public.
        target_bounds: (low, high), public; for regression.
        classes: the labels, public; for classification.
        adjacency: "replace-one", "zero-out", or "add-remove" (a noisy count then comes first).
        fit_intercept: whether to fit a constant.
        solver: "auto", a name of ``tacit.solvers.SOLVERS``, or a solver object.
        view: "all_iterates" or "final_model".
        max_passes: how often the data may be read.
        clip: the solver's clip.
        budget: a ``tacit.Ledger``.
        random_state: None for private noise.

    Options that would have no effect on the penalty or the loss are refused.
    """

    def __init__(
        self,
        loss: str | Loss = "squared",
        penalty: str | Penalty = "l2",
        solver: str | LinearSolver = "auto",
        *,
        alpha: float | None = None,
        l1_ratio: float | None = None,
        box: Any = None,
        epsilon: float = 1.0,
        delta: float | None = None,
        feature_bounds: Any = None,
        target_bounds: Any = None,
        classes: Any = None,
        adjacency: str = "replace-one",
        fit_intercept: bool = True,
        view: str = "all_iterates",
        max_passes: float | None = None,
        clip: float | None = None,
        budget: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        self._store(locals())

    def _idle(self) -> tuple[str, ...]:
        return idle_penalty_options(self.penalty)

    def _loss(self) -> Loss:
        return loss_named(self.loss)

    def _penalty(self, size: int) -> Penalty:
        return penalty_named(self.penalty, size, self.alpha, self.l1_ratio, self.box)

    def _planned(self, X: Any, target: TargetUnits | None, copies: int = 1, marks: tuple[str, ...] = ()) -> Fit:
        loss = self._loss()
        idle = "target_bounds" if loss.margin else "classes"
        if getattr(self, idle) is not None:
            raise InvalidInput(f"{idle} has no effect with the {loss.name} loss: leave it out, or choose another loss")
        return super()._planned(X, target, copies, marks)

    @property
    def _kind(self) -> type[LinearClassifier] | type[LinearRegressor]:
        return LinearClassifier if self._loss().margin else LinearRegressor

    def fit(self, X: Any, y: Any) -> Self:
        """Fit as a regressor or as a classifier."""
        self._kind.fit(self, X, y)
        return self

    @available_if(lambda self: self._loss().margin)  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """Scores, for losses of margins only."""
        return super().decision_function(X)

    def predict(self, X: Any) -> Any:
        """Values, or classes."""
        return self._kind.predict(self, X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² or accuracy; on training data it is outside the certificate."""
        mixin = ClassifierMixin if self._loss().margin else RegressorMixin
        return float(mixin.score(self, X, y, sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        try:
            margin = self._loss().margin
        except InvalidInput:  # shown, not yet fitted
            margin = False
        if margin:
            tags.estimator_type, tags.regressor_tags = "classifier", None
        else:
            tags.estimator_type, tags.classifier_tags = "regressor", None
        return tags
