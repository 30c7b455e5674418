"""Multinomial logistic regression whose guarantee is about the final model."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from tacit.estimators.base import Table
from tacit.estimators.fitted import check_numbers
from tacit.estimators.multi_output import OutputClassifier, OutputFit
from tacit.ledger import Ledger
from tacit.maps import FeatureBounds, Shorten
from tacit.problem import OutputLoss
from tacit.release import Query
from tacit.release.queries import LinearOutputs

__all__ = ["DPSoftmaxRegression"]

Array = NDArray[np.float64]
INTERCEPT_SCALE = 0.3
"""The constant feature of an intercept, in units of the norm of the others: part of the record, ridge and all."""


class DPSoftmaxRegression(OutputClassifier):
    """Multinomial logistic regression on public features, with a guarantee about the final model.

        minimise  1/n·Σ f_a(Wφ(x_i); y_i) + λ/2·‖W‖²     by noisy cyclic gradient descent over disjoint batches

    f_a is cross-entropy with the sound softmax clip (``tacit.problem.Softmax``).

    Exactly one thing must bound the norm of a row φ(x): ``feature_bounds`` (φ maps each feature to [−1, 1], and keeps
    [0, 1] as it is), ``feature_norm`` (φ(x) = x, scaled down where it is longer), or ``features`` that certify a norm.

    Formal guarantee: ``certificate_``: the last iterate only ("final_model"), or every iterate ("all_iterates": Poisson
    batches).

    Assumptions: ``features``, ``feature_norm`` and ``feature_bounds`` are public; classes, too.

    Args:
        epsilon: ε.
        delta: δ; required.
        adjacency: "replace-one" or "zero-out".
        feature_norm: R, a public bound on the norm of a (mapped) record; longer ones are scaled down. With ``features``
            only where they certify none, or a larger one.
        feature_bounds: (low, high), public, numbers or one per feature; values outside are clipped silently.
        features: a public feature map (``tacit.maps``), made batch by batch; None for X itself.
        batch_size: b; n/120 (at least 50) if missing.
        epochs: how often each record is read.
        step_size: η of the first step, at most 2/(β + λ); 2/(β + 2λ) if missing.
        step_fraction: instead of ``step_size``, the share of 2/(β + 2λ): β follows from ``clip`` and the norm.
        l2: λ, in every coordinate of W.
        loss: "softmax" or "one-vs-rest".
        clip: a in (0, 1]; chosen from the budget if missing.
        view: "final_model" or "all_iterates".
        classes: the labels, public; read off the data if missing, which the certificate then says.
        fit_intercept: whether to add a constant feature (0.3·R; it is part of the record, ridge included).
        partition: "fixed", or "secret": batches drawn afresh, uniformly, and never shown.
        arithmetic: "float", or "exact": sums of integers and noise with exact probabilities (docs/exact.md).
        ledger: a ``tacit.Ledger``; every fit reserves there before it reads a record.
        progress: a bar on stderr: True, False, or None for "on a terminal only".
        random_state: None for private noise.

    Attributes:
        coef_: (K, p), in the units of X; with ``features``, in theirs.
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
        fit_intercept: bool = True,
        partition: str = "fixed",
        arithmetic: str = "float",
        weighting: str = "person",
        max_rows: int | None = None,
        max_sample_weight: float | None = None,
        ledger: Ledger | None = None,
        progress: bool | None = None,
        random_state: int | None = None,
    ) -> None:
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
        self.fit_intercept = fit_intercept
        self.partition = partition
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.ledger = ledger
        self.progress = progress
        self.random_state = random_state

    def _intercept(self) -> bool:
        return bool(self.fit_intercept)

    def _lifted(self, width: int, norm: float) -> tuple[int, float]:
        if not self.fit_intercept:
            return width, norm
        return width + 1, norm * float(np.sqrt(1 + INTERCEPT_SCALE**2))

    def _last_map(self, width: int, norm: float) -> Shorten:
        return Shorten(norm, width, _constant(norm) if self.fit_intercept else None)

    def _query(self, loss: OutputLoss, norm: float, width: int) -> Query:
        return LinearOutputs(loss, norm)

    def _fitted(self, planned: OutputFit, solution: Array, table: Table) -> dict[str, Any]:
        W, bounds = solution.reshape(table.outputs, -1), planned.features.bounds
        coef = W[:, :-1] if self.fit_intercept else W
        intercept = W[:, -1] * _constant(planned.norm) if self.fit_intercept else np.zeros(len(W))
        if bounds is not None:  # u = (x − centre)/scale: a coefficient of the user's is that of u over the scale
            coef = np.where(bounds.fixed, 0.0, coef / bounds.safe_scale)
            intercept = intercept - coef @ bounds.centre
        return {**super()._fitted(planned, solution, table), "coef_": coef, "intercept_": intercept}

    def _check_weights(self, K: int, width: int) -> None:
        check_numbers("coef_", self.coef_, (K, width))
        check_numbers("intercept_", getattr(self, "intercept_", None), (K,))

    def _outputs(self, X: Any) -> Array:
        check_is_fitted(self)
        return self._applied(X, self._outputs_of_rows)

    def _outputs_of_rows(self, X: Any) -> Array:
        if self.feature_bounds_ is not None:
            rows = FeatureBounds.between(*self.feature_bounds_).clip(X)
            return np.asarray(rows @ self.coef_.T + self.intercept_, np.float64)
        W = self.coef_
        if self.fit_intercept:  # long records are scaled down together with their constant, as in the fit
            W = np.column_stack([W, self.intercept_ / _constant(self.feature_norm_)])
        return np.asarray(
            self._feature_rows(X, self._last_map(self.coef_.shape[1], self.feature_norm_)) @ W.T, np.float64
        )


def _constant(norm: float) -> float:
    """The constant feature of records whose norm, with it, is ``norm``."""
    return INTERCEPT_SCALE * norm / float(np.sqrt(1 + INTERCEPT_SCALE**2))
