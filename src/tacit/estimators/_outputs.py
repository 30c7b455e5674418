"""What models with several outputs share: features, plan, certificate, run, prediction.

The way is that of every fit: schema, public plan, certificate, reservation, and only then records.
"""

from __future__ import annotations

import dataclasses
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.accounting import Certificate
from tacit.errors import InvalidInput, NotCovered
from tacit.estimators._fit import budget_of
from tacit.estimators._progress import bar
from tacit.estimators._schema import checked
from tacit.features import feature_norm
from tacit.ledger import Ledger
from tacit.mechanism import Poisson
from tacit.maps.steps import parts
from tacit.problem import OutputLoss
from tacit.run import SEEDED, Channel, ClippedSum, Streams
from tacit.run.sums import FeatureRows, ShortRows, TableRows
from tacit.solvers.base import Budget
from tacit.solvers.hidden import LONGEST, CyclicPlan, plan_cyclic, run_plan

__all__ = ["CONSTANT", "OutputModel", "Planned", "WithConstant", "kept", "mapped"]

Array = NDArray[np.float64]
Rows = NDArray[Any]
CONSTANT = 0.3
"""The constant feature of an intercept, in units of the norm of the others: part of the record, ridge and all."""
BATCHES, SMALLEST = 120, 50
"""By default a hundred and twenty batches, of at least fifty records."""
SMALLEST_NORM, LARGEST_NORM = 1e-5, 1e5
"""Of features: float32 must hold weights and outputs, with an intercept beside them."""
KEPT = 2**30
"""Bytes of features that are made once and kept; more are made anew for every batch."""
PUBLIC_VALUE = 0.5
"""Of every column of a record that stands in for others."""
_SCHEMA = ("n_features_in_", "feature_names_in_")


class _MappedRows:
    """Features made from records when they are asked for: memory for one batch.

    A record on which the maps fail (a function that has no value there) has no features: an error would tell. It makes
    room for a public one, so that the others keep their places in a table of the same shape: a function that treats
    each record by itself may still round it by its place (any matrix product does), and something behind it may jump.

    Args:
        features: fitted maps.
        X: records.
        width: of a row of features.
        alone: whether each record is mapped by itself, because its place in a batch is random.
    """

    def __init__(self, features: Any, X: Rows, width: int, *, alone: bool = False) -> None:
        self._features, self._X, self.width, self._alone = features, X, width, alone

    def __len__(self) -> int:
        return len(self._X)

    def take(self, index: NDArray[np.intp]) -> Rows:
        if not len(index):
            return np.zeros((0, self.width), np.float32)
        if self._alone:
            return np.concatenate([self._single(self._X[i : i + 1]) for i in index])
        records = self._X[index]
        try:
            return mapped(self._features, records)
        except Exception:
            return self._without_failures(records)

    def _without_failures(self, records: Rows) -> Rows:
        failing = np.array([not self._maps(records[i : i + 1]) for i in range(len(records))])
        others = np.where(failing[:, None], records.dtype.type(PUBLIC_VALUE), records)
        if not self._maps(others):  # it fails on some together only: against what was declared, and no reason to tell
            return np.concatenate([self._single(records[i : i + 1]) for i in range(len(records))])
        out = np.array(mapped(self._features, others))
        out[failing] = 0.0
        return out

    def _maps(self, record: Rows) -> bool:
        try:
            mapped(self._features, record)
        except Exception:
            return False
        return True

    def _single(self, record: Rows) -> Rows:
        return mapped(self._features, record) if self._maps(record) else np.zeros((1, self.width), np.float32)


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
        out = out.to_numpy() if hasattr(out, "to_numpy") else out  # frames, if scikit-learn was told to make them
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


def kept(rows: FeatureRows, norm: float) -> FeatureRows:
    """Rows within ``norm``, made once if memory allows.

    Args:
        rows: features.
        norm: longer ones are scaled down.

    Returns:
        Rows; those that are kept are within the norm already.
    """
    return ShortRows(rows, norm) if 4 * len(rows) * rows.width <= KEPT else rows


@dataclass(frozen=True)
class _Features:
    """What is known of the features before a record is read.

    Attributes:
        maps: the fitted maps, or None.
        width: of a row.
        norm: that no row exceeds.
        marks: what the user vouches for.
    """

    maps: Any
    width: int
    norm: float
    marks: tuple[str, ...]

    def rows(self, X: Rows, *, shuffled: bool = False) -> FeatureRows:
        """The features of records.

        Args:
            X: records.
            shuffled: whether a record's place in a batch depends on who else is in it, as in Poisson batches. Functions
                that somebody vouches for then see one record at a time; ours do not care (``tacit.features``).

        Returns:
            Rows, made when they are asked for.
        """
        if self.maps is None:
            return TableRows(mapped(None, X))
        return _MappedRows(self.maps, X, self.width, alone=shuffled and bool(self.marks))


@dataclass(frozen=True)
class Planned:
    """All that is known before a record is read.

    Attributes:
        features: of records.
        norm: of what the weights multiply.
        loss: clipped.
        plan: of the run.
    """

    features: _Features
    norm: float
    loss: OutputLoss
    plan: CyclicPlan

    @property
    def certificate(self) -> Certificate:
        """Of the run, with what the user vouches for."""
        found = self.plan.certificate
        for mark in self.features.marks:
            found = found.marked(mark)
        return found


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
    step_fraction: float
    l2: float
    view: str
    partition: str
    budget: Ledger | None
    progress: bool | None
    random_state: int | None
    coef_: Array
    feature_norm_: float
    features_: Any
    _gdp_remedy = "choose view='final_model' and partition='fixed', which have one"
    """For searches, whose candidates must be μ-GDP."""

    def _store(self, parameters: dict[str, Any]) -> None:
        for name in parameters.keys() - {"self", "__class__"}:
            setattr(self, name, parameters[name])

    def _idle(self) -> tuple[str, ...]:
        """Options that have no effect with the others; ``plan_cyclic`` refuses them."""
        return ("partition",) if self.view == "all_iterates" else ()

    # -- features -------------------------------------------------------------------------------------------

    def _prepared(self, p: int, dtype: Any = np.float64) -> _Features:
        """The maps for p columns, their norm, and what the user vouches for."""
        if self.features is None:
            if self.feature_norm is None:
                raise InvalidInput(
                    "feature_norm is missing: state a public bound on the norm of a record (longer ones are scaled "
                    "down), or pass features= that certify one"
                )
            return _Features(None, p, self._stated_norm(), ())
        if isinstance(self.features, type) or not hasattr(self.features, "transform"):
            raise InvalidInput("features must be a public feature map, e.g. tacit.features.RandomFourier(2000)")
        maps = clone(self.features)
        marks = self._vouched(maps)
        probe = np.full((1, p), PUBLIC_VALUE, dtype)  # public maps read the number of columns: not a record's values
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            maps.fit(probe)
        norm = feature_norm(maps) if self.feature_norm is None else self._stated_norm()
        width = int(mapped(maps, probe).shape[1])
        return _Features(maps, width, norm, marks)

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

    def _declared(self) -> tuple[str, ...]:
        """What the user vouches for, by the parameters alone."""
        return () if self.features is None else self._vouched(self.features)

    def _feature_rows(self, X: Any) -> Rows:
        """Features of records; one that the maps cannot take has none, as in the fit: no error tells about it."""
        check_is_fitted(self)
        values = checked(self, X, reset=False)
        if self.features_ is None:
            return mapped(None, values)
        return _MappedRows(self.features_, values, self.coef_.shape[-1]).take(np.arange(len(values)))

    # -- plan ------------------------------------------------------------------------------------------------

    def _lifted(self, width: int, norm: float) -> tuple[int, float]:
        """Trainable numbers per output, and the norm of what they multiply."""
        raise NotImplementedError

    def _loss(self, K: int, budget: Budget, n: int, size: int) -> OutputLoss:
        """The loss of K outputs that a fit of n records and ``size`` trainable numbers uses."""
        raise NotImplementedError

    def _loss_of(self, K: int) -> OutputLoss:
        """The loss that the fitted model was trained with."""
        raise NotImplementedError

    def _sum(self, rows: FeatureRows, target: Rows, loss: OutputLoss, norm: float) -> ClippedSum:
        raise NotImplementedError

    def _planned(self, X: Rows, K: int) -> Planned:
        """What ``fit`` is going to do, from the shape and the type of X: the one way to a plan; no value is read."""
        if sparse.issparse(X):
            raise InvalidInput("X is sparse, which this estimator does not take: pass X.toarray()")
        n, p = X.shape
        budget = self._check_parameters(n)
        found = self._prepared(p, X.dtype)
        size, norm = self._lifted(found.width, found.norm)
        loss = self._loss(K, budget, n, K * size)
        return Planned(found, norm, loss, self._plan(n, loss, norm))

    def _check_parameters(self, n: int) -> Budget:
        if self.budget is not None and not isinstance(self.budget, Ledger):
            raise InvalidInput(f"budget must be a tacit.Ledger or None, got {type(self.budget).__name__}")
        seed = self.random_state
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0):
            raise InvalidInput(f"random_state must be None, for private noise, or a non-negative integer, got {seed!r}")
        if self.progress is not None and not isinstance(self.progress, bool | np.bool_):
            raise InvalidInput(f"progress must be True, False or None (on a terminal only), got {self.progress!r}")
        return budget_of(self.epsilon, self.delta, self.adjacency, self.view, n)

    def _plan(self, n: int, loss: OutputLoss, norm: float, noise_multiplier: float | None = None) -> CyclicPlan:
        """The plan of a fit; or, from its noise, the plan of one that was made before."""
        budget = self._check_parameters(n)
        smoothness = loss.curvature * norm**2
        return plan_cyclic(
            budget.epsilon if noise_multiplier is None else None,
            budget.delta,
            n=n,
            batch_size=self._batch(n),
            epochs=self.epochs,
            bound=loss.slope * norm,
            smoothness=smoothness,
            l2=self.l2,
            step_size=self._first_step(smoothness),
            view=budget.view,
            adjacency=budget.adjacency,
            partition=self.partition,
            noise_multiplier=noise_multiplier,
        )

    def _batch(self, n: int) -> int:
        return min(max(n // BATCHES, SMALLEST), n) if self.batch_size is None else self.batch_size

    def _first_step(self, smoothness: float) -> float | None:
        """η, or None for the longest that does not expand."""
        share = _validate.positive(step_fraction=self.step_fraction)
        if share > 1 and self.view == "final_model":
            raise InvalidInput(f"step_fraction must be at most 1, got {self.step_fraction!r}: longer steps expand")
        if share == 1:
            return self.step_size
        if self.step_size is not None:
            raise InvalidInput("give either step_size or step_fraction: the one is η, the other a share of the longest")
        return share * LONGEST / (smoothness + 2 * _validate.nonnegative(l2=self.l2))

    # -- run -------------------------------------------------------------------------------------------------

    def _run(self, planned: Planned, X: Rows, target: Rows, marks: tuple[str, ...] = ()) -> Array:
        """Reserve, then read records."""
        streams, certificate = Streams(self.random_state), planned.plan.certificate
        for mark in (*marks, *planned.features.marks, *((SEEDED,) if streams.seeded else ())):
            certificate = certificate.marked(mark)
        if self.budget is not None:
            self.budget.reserve(certificate, type(self).__name__)
        for name in [key for key in vars(self) if key.endswith("_") and key not in _SCHEMA]:
            delattr(self, name)  # an interrupted fit must leave neither the old model nor a new name for it
        quiet = np.errstate(all="ignore")  # a warning, or somebody's "raise", would tell about a record
        with quiet, bar(type(self).__name__, self.progress) as tick:
            rows = planned.features.rows(
                X, shuffled=isinstance(getattr(certificate.plan.parts[0], "sampling", None), Poisson)
            )
            total = self._sum(rows, target, planned.loss, planned.norm)
            channel = Channel(certificate, total.records, streams=streams)
            theta = run_plan(planned.plan, total, channel, np.zeros(total.size), tick)
        self._certified(certificate, planned.plan)
        self.feature_norm_, self.features_ = planned.norm, planned.features.maps
        return theta

    def _certified(self, certificate: Certificate, plan: CyclicPlan) -> None:
        """Take on a promise; the plan states the same one (after a search: not the smaller ε of one candidate)."""
        self.certificate_, self.plan_ = certificate, dataclasses.replace(plan, certificate=certificate)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        return tags
