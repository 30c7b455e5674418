"""What models with several outputs share: features, plan, certificate, run, prediction.

The way is that of every fit: schema, public plan, certificate, reservation, and only then records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.accounting import Certificate
from tacit.errors import InvalidInput
from tacit.estimators._fit import budget_of
from tacit.estimators._schema import checked
from tacit.features import feature_norm, row_local
from tacit.ledger import Ledger
from tacit.problem import OutputLoss
from tacit.run import SEEDED, Channel, ClippedSum, Streams
from tacit.run.sums import FeatureRows, TableRows
from tacit.solvers.base import Budget
from tacit.solvers.hidden import CyclicPlan, plan_cyclic, run_plan

__all__ = ["CONSTANT", "OutputModel"]

Array = NDArray[np.float64]
Rows = NDArray[Any]
CONSTANT = 0.3
"""The constant feature of an intercept, in units of the norm of the others: part of the record, ridge and all."""
BATCHES, SMALLEST = 120, 50
"""By default a hundred and twenty batches, of at least fifty records."""
_READ = 4096


class _MappedRows:
    """Features made from records when they are asked for: memory for one batch."""

    def __init__(self, features: Any, X: Rows, width: int) -> None:
        self._features, self._X, self.width = features, X, width

    def __len__(self) -> int:
        return len(self._X)

    def take(self, index: NDArray[np.intp]) -> Rows:
        return np.asarray(self._features.transform(self._X[index]), np.float32)


class _WithConstant:
    """One more column, the same for everybody."""

    def __init__(self, rows: FeatureRows, value: float) -> None:
        self._rows, self._value, self.width = rows, value, rows.width + 1

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, index: NDArray[np.intp]) -> Rows:
        rows = self._rows.take(index)
        out = np.empty((len(rows), self.width), rows.dtype)
        out[:, :-1], out[:, -1] = rows, self._value
        return out


class OutputModel(BaseEstimator):  # type: ignore[misc]
    """Outputs that are linear in public features; subclasses say which sum and which loss.

    Attributes:
        certificate_: the promise.
        plan_: batches, steps, noise and ridge, and the constants they were derived from.
        coef_: the weights.
    """

    certificate_: Certificate
    plan_: CyclicPlan
    epsilon: float
    delta: float | None
    adjacency: str
    feature_norm: float | None
    features: Any
    batch_size: int | None
    epochs: int
    step_size: float | None
    l2: float
    view: str
    partition: str
    budget: Ledger | None
    random_state: int | None

    def _store(self, parameters: dict[str, Any]) -> None:
        for name in parameters.keys() - {"self", "__class__"}:
            setattr(self, name, parameters[name])

    # -- features -------------------------------------------------------------------------------------------

    def _prepared(self, X: Rows) -> tuple[FeatureRows, float, tuple[str, ...]]:
        """Feature rows, their norm, and what the user vouches for."""
        if self.features is None:
            if self.feature_norm is None:
                raise InvalidInput(
                    "feature_norm is missing: state a public bound on the norm of a record (longer ones are scaled "
                    "down), or pass features= that certify one"
                )
            self.features_ = None
            return TableRows(np.asarray(X, np.float32)), _validate.positive(feature_norm=self.feature_norm), ()
        if isinstance(self.features, type) or not hasattr(self.features, "transform"):
            raise InvalidInput("features must be a public feature map, e.g. tacit.features.RandomFourier(2000)")
        self.features_ = clone(self.features).fit(X[:1])  # public maps read the number of columns, nothing else
        marks = row_local(self.features_)
        if self.feature_norm is None:
            norm = feature_norm(self.features_)
        else:
            norm = _validate.positive(feature_norm=self.feature_norm)
        width = int(np.asarray(self.features_.transform(np.zeros((1, X.shape[1]), X.dtype))).shape[1])
        return _MappedRows(self.features_, X, width), norm, marks

    def _feature_rows(self, X: Any) -> Rows:
        check_is_fitted(self)
        X = checked(self, X, reset=False)
        rows = np.asarray(X if self.features_ is None else self.features_.transform(X), np.float32)
        return rows

    # -- plan and run ---------------------------------------------------------------------------------------

    def _check_parameters(self, n: int) -> Budget:
        if self.budget is not None and not isinstance(self.budget, Ledger):
            raise InvalidInput(f"budget must be a tacit.Ledger or None, got {type(self.budget).__name__}")
        seed = self.random_state
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0):
            raise InvalidInput(f"random_state must be None, for private noise, or a non-negative integer, got {seed!r}")
        return budget_of(self.epsilon, self.delta, self.adjacency, self.view, n)

    def _plan(self, n: int, loss: OutputLoss, norm: float, budget: Budget) -> CyclicPlan:
        batch = min(max(n // BATCHES, SMALLEST), n) if self.batch_size is None else self.batch_size
        return plan_cyclic(
            budget.epsilon,
            budget.delta,
            n=n,
            batch_size=batch,
            epochs=self.epochs,
            bound=loss.slope * norm,
            smoothness=loss.curvature * norm**2,
            l2=self.l2,
            step_size=self.step_size,
            view=budget.view,
            adjacency=budget.adjacency,
            partition=self.partition,
        )

    def _run(
        self,
        plan: CyclicPlan,
        make_sum: Callable[[], ClippedSum],
        marks: tuple[str, ...],
        progress: Callable[[int, int], None] | None = None,
    ) -> Array:
        """Reserve, then read records."""
        streams, certificate = Streams(self.random_state), plan.certificate
        for mark in (*marks, *((SEEDED,) if streams.seeded else ())):
            certificate = certificate.marked(mark)
        if self.budget is not None:
            self.budget.reserve(certificate, type(self).__name__)
        self.certificate_, self.plan_ = certificate, plan
        total = make_sum()
        channel = Channel(certificate, total.records, streams=streams)
        return run_plan(plan, total, channel, np.zeros(total.size), progress)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        return tags
