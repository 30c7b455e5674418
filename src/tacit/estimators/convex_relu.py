"""Convex ReLU networks whose guarantee is about the final model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import RegressorMixin
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.estimators.anywhere import as_column, header_of
from tacit.estimators.base import Table
from tacit.estimators.fitted import CHANGED, check_numbers, check_single_target
from tacit.estimators.multi_output import OutputClassifier, OutputFit, OutputModel
from tacit.inputs.tables import columns_of, validate_table
from tacit.ledger import Ledger
from tacit.maps import ReluGates, Shorten, TargetBounds, target_bounds
from tacit.problem import OutputLoss, SquaredOutputs
from tacit.records import Opened, Records
from tacit.release import Query
from tacit.release.queries import GatedOutputs, open_gates
from tacit.release.queries.outputs import widest
from tacit.solvers import Budget

__all__ = ["DPConvexReLUClassifier", "DPConvexReLURegressor"]

Array = NDArray[np.float64]


class _Gated(OutputModel):
    """What the convex ReLU models share."""

    n_gates: int
    gate_seed: int
    gates_: Array

    def _gates(self, width: int) -> Array:
        count = _validate.positive_int(n_gates=self.n_gates)
        if count == 1:
            return np.zeros((1, width))  # 0ᵀx ≥ 0: always open, the linear model
        return np.asarray(ReluGates(count, self.gate_seed).fit(np.zeros((1, width))).gates_)

    def _lifted(self, width: int, norm: float) -> tuple[int, float]:
        return width * _validate.positive_int(n_gates=self.n_gates), norm

    def _last_map(self, width: int, norm: float) -> Shorten:
        return Shorten(widest(_validate.positive_int(n_gates=self.n_gates), norm), width)  # short enough for any gates

    def _query(self, loss: OutputLoss, norm: float, width: int) -> Query:
        return GatedOutputs(loss, norm, self._gates(width))

    def _fitted(self, planned: OutputFit, solution: Array, table: Table) -> dict[str, Any]:
        assert isinstance(planned.problem.query, GatedOutputs)
        gates = planned.problem.query.gates
        found = super()._fitted(planned, solution, table)
        return {**found, "gates_": gates, "coef_": solution.reshape(table.outputs, *gates.shape)}

    def _check_weights(self, K: int, width: int) -> None:
        count = _validate.positive_int(n_gates=self.n_gates)
        check_numbers("coef_", self.coef_, (K, count, width))
        check_numbers("gates_", getattr(self, "gates_", None), (count, width))
        if not np.array_equal(self._gates(width), self.gates_):
            raise InvalidInput(f"its gates are not those that it was fitted with, by gate_seed (gates_): {CHANGED}")

    def _gated(self, X: Any) -> Array:
        """√(2/P)·Σ_j 1(u_jᵀx ≥ 0)·V_j x, long records scaled down as in the fit."""
        check_is_fitted(self)
        return self._applied(X, self._gated_rows)

    def _gated_rows(self, X: Any) -> Array:
        K, P, d = self.coef_.shape
        last = Shorten(widest(P, self.feature_norm_), d)
        rows, mask = open_gates(self._feature_rows(X, last), self.gates_, self.feature_norm_)
        V = self.coef_.transpose(2, 1, 0).reshape(d, P * K).astype(rows.dtype)
        return np.asarray(np.matmul(mask[:, None, :], (rows @ V).reshape(-1, P, K))[:, 0], np.float64)


class DPConvexReLUClassifier(_Gated, OutputClassifier):
    """A one-hidden-layer ReLU network in its convex form, with a guarantee about the final model.

        outputs  √(2/P)·Σ_j 1(u_jᵀx ≥ 0)·V_j x,   u_j public Gaussian gates, V_j of shape (K, d)

    Convex in V for every loss below, so that noisy cyclic gradient descent has a final-model guarantee. P = 1 is the
    linear model (gate always open).

    Formal guarantee: as ``DPSoftmaxRegression``. The constants are those of the lifted record x̃ (errata, E1), whose
    norm is kept below ``feature_norm``.

    Assumptions: as ``DPSoftmaxRegression``; the gates are public.

    Args:
        n_gates: P.
        gate_seed: public.
        epsilon: ε.
        delta: δ; required.
        adjacency: "replace-one" or "zero-out".
        feature_norm: R, a public bound on the norm of a record; longer lifted records are scaled down.
        feature_bounds: instead, (low, high), public: features are clipped and mapped to [−1, 1] (bounds (0, 1) stay as
            they are), and R is the norm that this leaves.
        features: a public feature map in front of the gates.
        batch_size: b; n/120 (at least 50) if missing.
        epochs: how often each record is read.
        step_size: η of the first step, at most 2/(β + λ); 2/(β + 2λ) if missing.
        step_fraction: instead of ``step_size``, the share of 2/(β + 2λ).
        l2: λ.
        loss: "softmax" or "one-vs-rest".
        clip: a in (0, 1]; chosen from the budget if missing.
        view: "final_model" or "all_iterates".
        classes: the labels, public.
        partition: "fixed" or "secret".
        arithmetic: "float", or "exact": sums of integers and noise with exact probabilities (docs/exact.md).
        ledger: a ``tacit.Ledger``.
        progress: a bar on stderr: True, False, or None for "on a terminal only".
        random_state: None for private noise.

    Attributes:
        coef_: (K, P, d), of rows as the gates see them.
        gates_: (P, d).
    """

    def __init__(
        self,
        n_gates: int = 32,
        *,
        gate_seed: int = 0,
        epsilon: float = 1.0,
        delta: float | None = None,
        adjacency: str = "replace-one",
        feature_norm: float | None = None,
        feature_bounds: Any = None,
        features: Any = None,
        batch_size: int | None = None,
        epochs: int = 30,
        step_size: float | None = None,
        step_fraction: float = 1.0,
        l2: float = 0.0,
        loss: str = "softmax",
        clip: float | None = None,
        view: str = "final_model",
        classes: Any = None,
        partition: str = "fixed",
        arithmetic: str = "float",
        weighting: str = "person",
        max_rows: int | None = None,
        max_sample_weight: float | None = None,
        ledger: Ledger | None = None,
        progress: bool | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_gates = n_gates
        self.gate_seed = gate_seed
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.feature_norm = feature_norm
        self.feature_bounds = feature_bounds
        self.features = features
        self.batch_size = batch_size
        self.epochs = epochs
        self.step_size = step_size
        self.step_fraction = step_fraction
        self.l2 = l2
        self.loss = loss
        self.clip = clip
        self.view = view
        self.classes = classes
        self.partition = partition
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.ledger = ledger
        self.progress = progress
        self.random_state = random_state

    def _outputs(self, X: Any) -> Array:
        return self._gated(X)


@dataclass(frozen=True)
class _SingleTarget:
    """Targets within their bounds, in mapped units and float32."""

    bounds: TargetBounds

    def __call__(self, y: Any) -> NDArray[Any]:
        return self.bounds(y).astype(np.float32)


class DPConvexReLURegressor(RegressorMixin, _Gated):  # type: ignore[misc]
    """The same network for numbers: squared loss, clipped radially, which is sound for any number of outputs.

    Args:
        n_gates: P.
        gate_seed: public.
        target_bounds: (low, high), public; targets outside are clipped, and so are predictions.
        clip: the largest residual that counts, in units of half the width of ``target_bounds``.

    Everything else is as in ``DPConvexReLUClassifier``.
    """

    target_bounds: Any
    clip: float

    def __init__(
        self,
        n_gates: int = 32,
        *,
        gate_seed: int = 0,
        epsilon: float = 1.0,
        delta: float | None = None,
        adjacency: str = "replace-one",
        feature_norm: float | None = None,
        feature_bounds: Any = None,
        target_bounds: Any = None,
        features: Any = None,
        batch_size: int | None = None,
        epochs: int = 30,
        step_size: float | None = None,
        step_fraction: float = 1.0,
        l2: float = 0.0,
        clip: float = 0.5,
        view: str = "final_model",
        partition: str = "fixed",
        arithmetic: str = "float",
        weighting: str = "person",
        max_rows: int | None = None,
        max_sample_weight: float | None = None,
        ledger: Ledger | None = None,
        progress: bool | None = None,
        random_state: int | None = None,
    ) -> None:
        self.n_gates = n_gates
        self.gate_seed = gate_seed
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.feature_norm = feature_norm
        self.feature_bounds = feature_bounds
        self.target_bounds = target_bounds
        self.features = features
        self.batch_size = batch_size
        self.epochs = epochs
        self.step_size = step_size
        self.step_fraction = step_fraction
        self.l2 = l2
        self.clip = clip
        self.view = view
        self.partition = partition
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.ledger = ledger
        self.progress = progress
        self.random_state = random_state

    def _read(self, X: Any, y: Any) -> tuple[Table, Any, Any]:
        X, y = validate_table(self, X, y, multi_output=True, y_numeric=True)
        columns = columns_of(y)
        n, p = X.shape
        table = Table(n, p, dtype=X.dtype, outputs=columns.shape[1], single_target=np.ndim(y) == 1)
        return table, X, columns

    def _see(self, records: Opened) -> tuple[Table, Records]:
        header = header_of(records, target=True)
        return Table(records.n, header.width, dtype=header.dtype), records.through(target=as_column)

    def _shape(self, n_records: int, n_features: int) -> Table:
        return Table(n_records, n_features)

    def _target(self) -> _SingleTarget:
        return _SingleTarget(target_bounds(self.target_bounds))

    def _loss(self, K: int, budget: Budget, n: int, size: int) -> OutputLoss:
        return SquaredOutputs(K, self.clip)

    def _fitted(self, planned: OutputFit, solution: Array, table: Table) -> dict[str, Any]:
        found = super()._fitted(planned, solution, table)
        return {**found, "single_target_": table.single_target}

    def _outputs_of(self, coef: Array) -> int:
        target_bounds(self.target_bounds)
        check_single_target(self, len(coef))
        return len(coef)

    def _loss_of(self, K: int) -> OutputLoss:
        return SquaredOutputs(K, self.clip)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: Any) -> Array:
        """Outputs in the units of y, within ``target_bounds``."""
        units = target_bounds(self.target_bounds)
        Z = units.clip(units.centre + units.scale * self._gated(X))
        return Z[:, 0] if self.single_target_ else Z
