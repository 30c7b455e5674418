"""Any loss with any penalty and any solver: regression or classification, as the loss says."""

from __future__ import annotations

from typing import Any

from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if

from tacit.errors import InvalidInput
from tacit.estimators.base import Table
from tacit.estimators.linear import Coefficients, LinearClassifier, LinearFit, LinearRegressor, Units
from tacit.ledger import Ledger
from tacit.maps import target_bounds
from tacit.problem import Loss, Penalty, loss_named, penalty_named
from tacit.records import Opened, Records
from tacit.solvers import Solver

__all__ = ["DPGeneralizedLinear"]


class DPGeneralizedLinear(LinearClassifier, LinearRegressor):
    """minimise 1/n·Σ φ(xᵀw + b, y) + ψ(w): bring your own φ, ψ and solver.

    A loss of residuals (squared, Huber) makes it a regressor, one of margins (logistic, smoothed hinge) a classifier.

    Formal guarantee: as ``DPElasticNet`` (regression) or ``DPLogisticRegression`` (classification). What a record adds
    is clipped whatever the loss returns. Final-model guarantees take the built-in losses only, whose convexity is
    known; a loss of your own is refused there.

    Assumptions: as theirs. The derivative of a loss of your own treats each record by itself (declared: the certificate
    carries a mark); the penalty is public.

    Args:
        loss: a name of ``tacit.problem.LOSSES`` or a ``Loss`` of your own.
        penalty: "none", "l1", "l2", "elasticnet", "box", "nonnegative", or a ``tacit.problem.Penalty``.
        alpha: α, multiplies the penalty (with "box" and "nonnegative": a ridge beside it); 1/n if missing.
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
        arithmetic: "exact": sums of integers and noise with exact probabilities, or "float" (docs/exact.md).
        memory: how much a fit may hold beside the table for what it derives from it, in bytes or as "500 MB"; None for
            about half of the table (docs/memory.md).
        ledger: a ``tacit.Ledger``.
        random_state: None for private noise.

    Options that would have no effect on the penalty or the loss are refused.
    """

    shell_name = None  # a loss and a penalty are objects

    def __init__(
        self,
        loss: str | Loss = "squared",
        penalty: str | Penalty = "l2",
        solver: str | Solver = "auto",
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
        arithmetic: str = "exact",
        weighting: str = "person",
        max_rows: int | None = None,
        max_sample_weight: float | None = None,
        memory: str | float | None = None,
        ledger: Ledger | None = None,
        random_state: int | None = None,
    ) -> None:
        self.loss = loss
        self.penalty = penalty
        self.solver = solver
        self.alpha = alpha
        self.l1_ratio = l1_ratio
        self.box = box
        self.epsilon = epsilon
        self.delta = delta
        self.feature_bounds = feature_bounds
        self.target_bounds = target_bounds
        self.classes = classes
        self.adjacency = adjacency
        self.fit_intercept = fit_intercept
        self.view = view
        self.max_passes = max_passes
        self.clip = clip
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.memory = memory
        self.ledger = ledger
        self.random_state = random_state

    def _loss(self) -> Loss:
        found = loss_named(self.loss)
        if isinstance(found, Loss):
            return found
        if not found.positive:
            return found()
        bounds = target_bounds(self.target_bounds)
        return found.for_targets(bounds.low, bounds.high)

    def _penalty(self, size: int, units: Units) -> Penalty:
        return penalty_named(self.penalty, size, self.alpha, self.l1_ratio, self.box, default=1 / units.n)

    @property
    def _kind(self) -> type[LinearClassifier] | type[LinearRegressor]:
        return LinearClassifier if loss_named(self.loss).labels else LinearRegressor

    def _read(self, X: Any, y: Any) -> tuple[Table, Any, Any]:
        self._check_unused()
        return self._kind._read(self, X, y)

    def _see(self, records: Opened) -> tuple[Table, Records]:
        self._check_unused()
        return self._kind._see(self, records)

    def _check_unused(self) -> None:
        unused = "target_bounds" if loss_named(self.loss).labels else "classes"
        if getattr(self, unused) is not None:
            name = loss_named(self.loss).name
            raise InvalidInput(f"{unused} has no effect with the {name} loss: leave it out, or choose another loss")

    def _shape(self, n_records: int, n_features: int) -> Table:
        return self._kind._shape(self, n_records, n_features)

    def _targets(self, table: Table, loss: Loss) -> tuple[Any, ...]:
        return self._kind._targets(self, table, loss)

    def _fitted(self, planned: LinearFit, solution: list[Coefficients], table: Table) -> dict[str, Any]:
        return self._kind._fitted(self, planned, solution, table)

    def _heads(self) -> tuple[int, ...]:
        return self._kind._heads(self)

    @available_if(lambda self: loss_named(self.loss).labels)  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Any:
        """Scores, for losses of labels only."""
        return super().decision_function(X)

    def predict(self, X: Any) -> Any:
        """Values, or classes."""
        return self._kind.predict(self, X)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """R² or accuracy; on training data it is outside the certificate."""
        mixin = ClassifierMixin if loss_named(self.loss).labels else RegressorMixin
        return float(mixin.score(self, X, y, sample_weight))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        try:
            labels = loss_named(self.loss).labels
        except InvalidInput:  # shown, not yet fitted
            labels = False
        if labels:
            tags.estimator_type, tags.regressor_tags = "classifier", None
        else:
            tags.estimator_type, tags.classifier_tags = "regressor", None
        return tags
