"""What models with several outputs share: features, plan, certificate, run, prediction.

The way is that of every fit: schema, public plan, certificate, reservation, and only then records.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.accounting import Certificate
from tacit.errors import InvalidInput, NotCovered
from tacit.estimators._fit import budget_of
from tacit.estimators._schema import checked
from tacit.features import feature_norm
from tacit.ledger import Ledger
from tacit.preprocessing.certificates import parts
from tacit.problem import OutputLoss
from tacit.run import SEEDED, Channel, ClippedSum, Streams
from tacit.run.sums import FeatureRows, TableRows
from tacit.solvers.base import Budget
from tacit.solvers.hidden import CyclicPlan, plan_cyclic, run_plan

__all__ = ["CONSTANT", "OutputModel", "WithConstant", "mapped"]

Array = NDArray[np.float64]
Rows = NDArray[Any]
CONSTANT = 0.3
"""The constant feature of an intercept, in units of the norm of the others: part of the record, ridge and all."""
BATCHES, SMALLEST = 120, 50
"""By default a hundred and twenty batches, of at least fifty records."""
SMALLEST_NORM, LARGEST_NORM = 1e-5, 1e5
"""Of features: float32 must hold weights and outputs, with an intercept beside them."""
_SCHEMA = ("n_features_in_", "feature_names_in_")


class _MappedRows:
    """Features made from records when they are asked for: memory for one batch.

    A record on which the map fails (a function that has no value there) becomes zeros: an error would tell.
    """

    def __init__(self, features: Any, X: Rows, width: int) -> None:
        self._features, self._X, self.width = features, X, width

    def __len__(self) -> int:
        return len(self._X)

    def take(self, index: NDArray[np.intp]) -> Rows:
        if not len(index):
            return np.zeros((0, self.width), np.float32)
        try:
            return mapped(self._features, self._X[index])
        except Exception:
            return np.concatenate([self._single(self._X[i : i + 1]) for i in index])

    def _single(self, record: Rows) -> Rows:
        try:
            return mapped(self._features, record)
        except Exception:
            return np.zeros((1, self.width), np.float32)


def mapped(features: Any, X: Rows) -> Rows:
    """The features of X in float32, without a word about its values.

    Args:
        features: a fitted map, or None.
        X: records.

    Returns:
        (n, width).

    Raises:
        InvalidInput: if the map returns something else than a dense table.
    """
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = X if features is None else features.transform(X)
        if not isinstance(out, np.ndarray) or out.ndim != 2:
            raise InvalidInput("features must return dense tables: set sparse_output=False, or convert them")
        return np.asarray(out, np.float32)


class WithConstant:
    """One more column, the same for everybody."""

    def __init__(self, rows: FeatureRows, value: float) -> None:
        self._rows, self._value, self.width = rows, value, rows.width + 1

    def __len__(self) -> int:
        return len(self._rows)

    def take(self, index: NDArray[np.intp]) -> Rows:
        """These rows with the constant."""
        rows = self._rows.take(index)
        out = np.empty((len(rows), self.width), rows.dtype)
        out[:, :-1], out[:, -1] = rows, self._value
        return out


@dataclass(frozen=True)
class _Features:
    """What is known of the features before a record is read.

    Attributes:
        maps: the fitted maps, or None.
        rows: makes the rows.
        width: of a row.
        norm: that no row exceeds.
        marks: what the user vouches for.
    """

    maps: Any
    rows: Callable[[], FeatureRows]
    width: int
    norm: float
    marks: tuple[str, ...]


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

    def _prepared(self, X: Rows) -> _Features:
        """Feature rows, their norm, and what the user vouches for; no record is read."""
        if self.features is None:
            if self.feature_norm is None:
                raise InvalidInput(
                    "feature_norm is missing: state a public bound on the norm of a record (longer ones are scaled "
                    "down), or pass features= that certify one"
                )
            norm = self._stated_norm()
            return _Features(None, lambda: TableRows(mapped(None, X)), int(X.shape[1]), norm, ())
        if isinstance(self.features, type) or not hasattr(self.features, "transform"):
            raise InvalidInput("features must be a public feature map, e.g. tacit.features.RandomFourier(2000)")
        maps = clone(self.features)
        marks = self._vouched(maps)
        probe = np.full((1, X.shape[1]), 0.5, X.dtype)  # public maps read the number of columns: not a record's values
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            maps.fit(probe)
        norm = feature_norm(maps) if self.feature_norm is None else self._stated_norm()
        width = int(mapped(maps, probe).shape[1])
        return _Features(maps, lambda: _MappedRows(maps, X, width), width, norm, marks)

    def _stated_norm(self) -> float:
        norm = _validate.positive(feature_norm=self.feature_norm)
        if not SMALLEST_NORM <= norm <= LARGEST_NORM:
            raise InvalidInput(
                f"feature_norm must lie between {SMALLEST_NORM:g} and {LARGEST_NORM:g}, got {norm!r}: rescale"
            )
        return norm

    @staticmethod
    def _vouched(maps: Any) -> tuple[str, ...]:
        """Marks of the steps; private ones are refused: nobody would pay for them."""
        name = type(maps).__name__
        try:
            found = list(parts(maps, name))
        except InvalidInput as error:
            raise NotCovered(f"features must be public maps, and {error}", axis="features") from None
        if any(isinstance(part, Certificate) for part in found):
            raise NotCovered(
                "features hold a private step, which nobody would pay for here: fit it before, in a pipeline in front",
                axis="features",
            )
        return tuple(part for part in found if isinstance(part, str))

    def _feature_rows(self, X: Any) -> Rows:
        check_is_fitted(self)
        return mapped(self.features_, checked(self, X, reset=False))

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
        for name in [key for key in vars(self) if key.endswith("_") and key not in _SCHEMA]:
            delattr(self, name)  # an interrupted fit must leave neither the old model nor a new name for it
        total = make_sum()
        channel = Channel(certificate, total.records, streams=streams)
        theta = run_plan(plan, total, channel, np.zeros(total.size), progress)
        self.certificate_, self.plan_ = certificate, plan
        return theta

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        return tags
