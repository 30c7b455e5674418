"""Classifiers and regressors whose guarantee is about the final model: softmax regression and convex ReLU networks."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.accounting import Certificate, gdp_mu
from tacit.estimators._labels import class_list, class_numbers
from tacit.estimators._outputs import CONSTANT, OutputModel, WithConstant, kept
from tacit.estimators._schema import checked, columns_of, labels_of
from tacit.features import ReluGates
from tacit.ledger import Ledger
from tacit.problem import OUTPUT_LOSSES, OutputLoss, SquaredOutputs, TargetUnits
from tacit.run import ClippedSum
from tacit.run.sums import FeatureRows, GatedOutputs, LinearOutputs, TableRows, open_gates, shortened
from tacit.solvers.base import Budget

__all__ = ["DPConvexReLUClassifier", "DPConvexReLURegressor", "DPSoftmaxRegression"]

Array = NDArray[np.float64]
Rows = NDArray[Any]
CLASSIFICATION = ("softmax", "one-vs-rest")


def default_clip(epsilon: float, delta: float, n: int, size: int) -> float:
    """How much of the loss's slope is kept: little where noise dominates, all of it where it does not."""
    signal = n * gdp_mu(epsilon, delta) / np.sqrt(size)  # records' worth of signal over noise, per coordinate
    return float(np.clip(signal / 500, 0.1, 1.0))


class _OutputClassifier(ClassifierMixin, OutputModel):  # type: ignore[misc]
    """Classification with one output per class."""

    classes: Any
    loss: str
    clip: float | None
    clip_: float

    def _outputs(self, X: Any) -> Array:
        raise NotImplementedError

    def _shaped(self, theta: Array, K: int) -> None:
        raise NotImplementedError

    def planned_certificate(self, X: Any, classes: Any) -> Certificate:
        """What ``fit`` is going to certify, from the shape and type of X: no record is read.

        Args:
            X: an array of the training data's shape and type, e.g. zeros.
            classes: the labels.

        Returns:
            The certificate, without marks of the seed and of the classes.
        """
        known, _ = class_list(self.classes if classes is None else classes, ())
        return self._planned(X, len(known)).certificate

    def fit(self, X: Any, y: Any) -> Self:
        """Fit under the certificate that the parameters ask for.

        Args:
            X: (records, features); finite. Records longer than ``feature_norm`` are scaled down silently.
            y: (records,) labels.

        Returns:
            The estimator itself.
        """
        X, y = checked(self, X, y)
        y = labels_of(y)
        classes, marks = class_list(self.classes, y)
        target = class_numbers(classes, y)
        planned = self._planned(X, len(classes))
        theta = self._run(planned, X, target, marks)
        self.classes_, self.clip_ = classes, planned.loss.clip
        self._shaped(theta, len(classes))
        return self

    def _loss(self, K: int, budget: Budget, n: int, size: int) -> OutputLoss:
        clip = default_clip(budget.epsilon, budget.delta, n, size) if self.clip is None else self.clip
        return self._clipped(K, clip)

    def _loss_of(self, K: int) -> OutputLoss:
        return self._clipped(K, self.clip_)

    def _clipped(self, K: int, clip: float) -> OutputLoss:
        return OUTPUT_LOSSES[_validate.one_of(CLASSIFICATION, loss=self.loss)](K, clip)

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


class DPSoftmaxRegression(_OutputClassifier):
    """Multinomial logistic regression on public features, with a guarantee about the final model.

        minimise  1/n·Σ f_a(Wφ(x_i); y_i) + λ/2·‖W‖²     by noisy cyclic gradient descent over disjoint batches

    f_a is cross-entropy with the sound softmax clip (``tacit.problem.Softmax``).

    Formal guarantee: ``certificate_``: the last iterate only ("final_model"), or every iterate ("all_iterates": Poisson
    batches).

    Assumptions: ``features`` and ``feature_norm`` are public; classes, too.

    Args:
        epsilon: ε.
        delta: δ; required.
        adjacency: "replace-one" or "zero-out".
        feature_norm: R, a public bound on the norm of a (mapped) record; longer ones are scaled down. May be left out
            if ``features`` certify one.
        features: a public feature map (``tacit.features``), made batch by batch; None for X itself.
        batch_size: b; n/120 (at least 50) if missing.
        epochs: how often each record is read.
        step_size: η of the first step, at most 2/(β + λ); 2/(β + 2λ) if missing.
        step_fraction: instead of ``step_size``, the share of 2/(β + 2λ): β follows from ``clip`` and the norm.
        l2: λ, in every coordinate.
        loss: "softmax" or "one-vs-rest".
        clip: a in (0, 1]; chosen from the budget if missing.
        view: "final_model" or "all_iterates".
        classes: the labels, public; read off the data if missing, which the certificate then says.
        fit_intercept: whether to add a constant feature (0.3·R; it is part of the record, ridge included).
        partition: "fixed", or "secret": batches drawn afresh, uniformly, and never shown.
        budget: a ``tacit.Ledger``.
        progress: a bar on stderr: True, False, or None for "if somebody is watching".
        random_state: None for private noise.

    Attributes:
        coef_: (K, p).
        intercept_: (K,).
        plan_: η, λ, β, C, σ and the contraction they give.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(6000, 3))
    >>> y = (X @ rng.normal(size=(3, 3))).argmax(axis=1)
    >>> model = DPSoftmaxRegression(epsilon=2.0, delta=1e-6, feature_norm=2.0, classes=[0, 1, 2], random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.8), model.certificate_.view
    (True, 'the final model')
    """

    def __init__(
        self,
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        adjacency: str = "replace-one",
        feature_norm: float | None = None,
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
        fit_intercept: bool = True,
        partition: str = "fixed",
        budget: Ledger | None = None,
        progress: bool | None = None,
        random_state: int | None = None,
    ) -> None:
        self._store(locals())

    fit_intercept: bool

    def _lifted(self, width: int, norm: float) -> tuple[int, float]:
        if not self.fit_intercept:
            return width, norm
        return width + 1, norm * float(np.sqrt(1 + CONSTANT**2))

    def _sum(self, rows: FeatureRows, y: Rows, loss: OutputLoss, norm: float) -> ClippedSum:
        rows = WithConstant(rows, _constant(norm)) if self.fit_intercept else rows
        return LinearOutputs(kept(rows, norm), y, loss, row_norm=norm)

    def _shaped(self, theta: Array, K: int) -> None:
        W = theta.reshape(K, -1)
        self.coef_ = W[:, :-1] if self.fit_intercept else W
        self.intercept_ = W[:, -1] * _constant(self.feature_norm_) if self.fit_intercept else np.zeros(K)

    def _outputs(self, X: Any) -> Array:
        rows, W = self._feature_rows(X), self.coef_
        if self.fit_intercept:  # long records are scaled down together with their constant, as in the fit
            constant = _constant(self.feature_norm_)
            rows = WithConstant(TableRows(rows), constant).take(np.arange(len(rows)))
            W = np.column_stack([W, self.intercept_ / constant])
        return np.asarray(shortened(rows, self.feature_norm_) @ W.T, np.float64)


def _constant(norm: float) -> float:
    """The constant feature of records whose norm, with it, is ``norm``."""
    return CONSTANT * norm / float(np.sqrt(1 + CONSTANT**2))


class _Gated:
    """What the convex ReLU models share."""

    n_gates: int
    gate_seed: int
    gates_: Array
    coef_: Array

    def _open_gates(self, width: int) -> Array:
        count = _validate.positive_int(n_gates=self.n_gates)
        if count == 1:
            return np.zeros((1, width))  # 0ᵀx ≥ 0: always open, the linear model
        return np.asarray(ReluGates(count, self.gate_seed).fit(np.zeros((1, width))).gates_)

    def _lifted(self, width: int, norm: float) -> tuple[int, float]:
        self._open_gates(1)  # a bad seed is refused here, before anything is spent
        return width * _validate.positive_int(n_gates=self.n_gates), norm

    def _sum(self, rows: FeatureRows, target: Rows, loss: OutputLoss, norm: float) -> ClippedSum:
        gates = self._open_gates(rows.width)
        rows = kept(rows, norm * float(np.sqrt(len(gates) / 2)))  # short enough for any gates
        return GatedOutputs(rows, target, loss, row_norm=norm, gates=gates)

    def _shaped(self, theta: Array, K: int) -> None:
        count = _validate.positive_int(n_gates=self.n_gates)
        self.gates_ = self._open_gates(theta.size // (K * count))
        self.coef_ = theta.reshape(K, *self.gates_.shape)

    def _gated(self, rows: Rows, norm: float) -> Array:
        """√(2/P)·Σ_j 1(u_jᵀx ≥ 0)·V_j x, long records scaled down as in the fit."""
        K, P, d = self.coef_.shape
        rows, mask = open_gates(rows, self.gates_, norm)
        V = self.coef_.transpose(2, 1, 0).reshape(d, P * K).astype(rows.dtype)
        return np.asarray(np.matmul(mask[:, None, :], (rows @ V).reshape(-1, P, K))[:, 0], np.float64)


class DPConvexReLUClassifier(_Gated, _OutputClassifier):
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
        budget: a ``tacit.Ledger``.
        progress: a bar on stderr: True, False, or None for "if somebody is watching".
        random_state: None for private noise.

    Attributes:
        coef_: (K, P, d).
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
        budget: Ledger | None = None,
        progress: bool | None = None,
        random_state: int | None = None,
    ) -> None:
        self._store(locals())

    def _outputs(self, X: Any) -> Array:
        return self._gated(self._feature_rows(X), self.feature_norm_)


class DPConvexReLURegressor(_Gated, RegressorMixin, OutputModel):  # type: ignore[misc]
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
        budget: Ledger | None = None,
        progress: bool | None = None,
        random_state: int | None = None,
    ) -> None:
        self._store(locals())

    def planned_certificate(self, X: Any, classes: Any = None, outputs: int = 1) -> Certificate:
        """What ``fit`` is going to certify, from the shape and type of X: no record is read.

        Args:
            X: an array of the training data's shape and type, e.g. zeros.
            classes: ignored: there are none.
            outputs: columns of the target.

        Returns:
            The certificate, without the mark of a seed.
        """
        TargetUnits.of(self.target_bounds)
        return self._planned(X, outputs).certificate

    def fit(self, X: Any, y: Any) -> Self:
        """Fit under the certificate that the parameters ask for.

        Args:
            X: (records, features); finite.
            y: (records,) or (records, K) numbers.

        Returns:
            The estimator itself.
        """
        X, y = checked(self, X, y, multi_output=True, y_numeric=True)
        units = TargetUnits.of(self.target_bounds)
        with np.errstate(all="ignore"):  # an error or a warning would tell about a record
            target = units.map(columns_of(y)).astype(np.float32)
        K = target.shape[1]
        theta = self._run(self._planned(X, K), X, target)
        self.single_target_ = np.ndim(y) == 1
        self._shaped(theta, K)
        return self

    def _loss(self, K: int, budget: Budget, n: int, size: int) -> OutputLoss:
        return self._loss_of(K)

    def _loss_of(self, K: int) -> OutputLoss:
        return SquaredOutputs(K, self.clip)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def predict(self, X: Any) -> Array:
        """Outputs in the units of y, within ``target_bounds``."""
        check_is_fitted(self)
        units = TargetUnits.of(self.target_bounds)
        Z = np.clip(
            units.centre + units.scale * self._gated(self._feature_rows(X), self.feature_norm_), units.low, units.high
        )
        return Z[:, 0] if self.single_target_ else Z
