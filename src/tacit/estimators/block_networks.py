"""Networks trained by private block coordinate descent: every layer is a block with sums and noise of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.estimators.base import Table
from tacit.estimators.block_model import BlockNetworkModel, BoundedColumns, NetworkFit, OneHot
from tacit.estimators.fitted import CHANGED, check_single_target
from tacit.inputs.tables import class_list, columns_of, encode_labels, validate_table
from tacit.ledger import Ledger
from tacit.maps import target_bounds
from tacit.problem.network import LOSSES
from tacit.solvers.schedules import NoiseSchedule

__all__ = ["DPBlockMLPClassifier", "DPBlockMLPRegressor"]

Array = NDArray[np.float64]


class DPBlockMLPClassifier(ClassifierMixin, BlockNetworkModel):  # type: ignore[misc]
    """A ReLU network trained by differentially private block coordinate descent (DP-MBCD, made sound).

    Each step draws a batch; every record of it computes its hidden variables from the current weights and itself (a
    forward pass, then closed forms from the output down), and contributes a clipped gradient, or clipped statistics, to
    each layer. Their sums are noised and released; the layers take a step, or solve the normal equations.

    Formal guarantee: ``certificate_``: the composition of all releases of all layers, with amplification for Poisson
    batches.

    Assumptions: all parameters, ``feature_bounds`` and the classes are public, and so is the number of records.

    Args:
        hidden_layer_sizes: of the hidden layers: numbers, ``tacit.Dense`` or ``tacit.Convolution``.
        epsilon: ε.
        delta: δ; required.
        adjacency: "replace-one" or "zero-out".
        feature_bounds: (low, high), public; numbers or one per feature. Values outside are clipped. Required.
        classes: the labels, public; read off the data if missing, which the certificate then says.
        loss: "cross_entropy" or "squared" (of one-hot classes).
        layer_norms: ρ, one number, or one for the input and each hidden layer: longer states are scaled down.
        contribution_norm: C, the longest contribution of a record to a layer: one number, or one per layer.
        update: "gradient", or "statistics": noisy second moments, from which a layer is solved for (dense layers).
        batch_size: expected size of a batch; n/40 (at least 50) if missing.
        epochs: how often each record is read.
        sampling: "poisson" or "cyclic".
        noise_schedule: relative variance over the run: "constant", "linear", "step", "optimised", or a function.
        step_size: of update="gradient", the longest way of a layer in the first step; 4 if missing.
        last_step: of the last step, in units of the first; between them it falls linearly. A tenth if missing.
        l2: λ.
        gamma: γ, the weight of the hidden variables' constraints.
        shortcuts: pairs (a, b): layer a also feeds layer b (0 is the input, the last number the output).
        input_shape: (channels, height, width) of a record, for convolutions.
        view: "all_iterates"; nothing proves more for the last iterate alone.
        init_seed: public, for the start.
        arithmetic: "exact": sums of integers and noise with exact probabilities, or "float" (docs/exact.md).
        ledger: a ``tacit.Ledger``; every fit reserves there before it reads a record.
        progress: a bar on stderr: True, False, or None for "on a terminal only".
        random_state: None for private noise; an integer makes fits repeatable and marks the certificate "not private:
            seeded".

    Attributes:
        coefs_: weights of each layer, (outputs, inputs + 1): the last column is the bias, in units of 0.3·ρ.
        classes_: the labels.
        certificate_: the promise.
        plan_: releases and noise.

    >>> rng = np.random.default_rng(0)
    >>> X = rng.uniform(-1, 1, size=(20000, 2))
    >>> y = (X[:, 0] * X[:, 1] > 0).astype(int)
    >>> public = {"feature_bounds": (-1, 1), "classes": [0, 1]}
    >>> model = DPBlockMLPClassifier((16,), epsilon=2.0, delta=1e-6, **public, random_state=0)
    >>> bool(model.fit(X, y).score(X, y) > 0.8), round(model.certificate_.epsilon(1e-6), 3)
    (True, 2.0)
    """

    classes: Any
    classes_: Any

    def __init__(
        self,
        hidden_layer_sizes: Any = (64,),
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        adjacency: str = "replace-one",
        feature_bounds: Any = None,
        classes: Any = None,
        loss: str = "cross_entropy",
        layer_norms: Any = 1.0,
        contribution_norm: Any = None,
        update: str = "gradient",
        batch_size: int | None = None,
        epochs: int = 10,
        sampling: str = "poisson",
        noise_schedule: NoiseSchedule = "constant",
        step_size: float | None = None,
        last_step: float | None = None,
        l2: float = 0.0,
        gamma: float = 1.0,
        shortcuts: Any = (),
        input_shape: Any = None,
        view: str = "all_iterates",
        init_seed: int = 0,
        arithmetic: str = "exact",
        weighting: str = "person",
        max_rows: int | None = None,
        max_sample_weight: float | None = None,
        ledger: Ledger | None = None,
        progress: bool | None = None,
        random_state: int | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.feature_bounds = feature_bounds
        self.classes = classes
        self.loss = loss
        self.layer_norms = layer_norms
        self.contribution_norm = contribution_norm
        self.update = update
        self.batch_size = batch_size
        self.epochs = epochs
        self.sampling = sampling
        self.noise_schedule = noise_schedule
        self.step_size = step_size
        self.last_step = last_step
        self.l2 = l2
        self.gamma = gamma
        self.shortcuts = shortcuts
        self.input_shape = input_shape
        self.view = view
        self.init_seed = init_seed
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.ledger = ledger
        self.progress = progress
        self.random_state = random_state

    def _loss(self) -> str:
        return _validate.one_of(LOSSES, loss=self.loss)

    def _read(self, X: Any, y: Any) -> tuple[Table, Any, Any]:
        X, y = validate_table(self, X, y)
        classes, marks, index = encode_labels(self.classes, y)
        n, p = X.shape
        return Table(n, p, False, X.dtype, len(classes), classes, marks), X, index

    def _shape(self, n_records: int, n_features: int) -> Table:
        classes, marks = class_list(self.classes, ())
        return Table(n_records, n_features, outputs=len(classes), classes=classes, marks=marks)

    def _target_map(self, table: Table) -> OneHot:
        return OneHot(table.outputs)

    def _fitted(self, planned: NetworkFit, solution: list[Array], table: Table) -> dict[str, Any]:
        return {**super()._fitted(planned, solution, table), "classes_": table.classes}

    def _outputs_of(self, weights: list[Any]) -> int:
        return len(self.classes_)

    def decision_function(self, X: Any) -> Array:
        """Outputs: (records, classes), or their difference for two classes."""
        Z = self._outputs(X)
        return Z[:, 1] - Z[:, 0] if len(self.classes_) == 2 else Z

    def predict(self, X: Any) -> Any:
        """The class of the largest output."""
        Z = self._outputs(X)
        return self.classes_[Z.argmax(axis=1)]

    def predict_proba(self, X: Any) -> Array:
        """Softmax of the outputs; for squared loss the outputs themselves, made a distribution."""
        Z = self._outputs(X)
        if self.loss == "squared":
            Z = np.maximum(Z, 0.0) + 1e-12
            return np.asarray(Z / Z.sum(axis=1, keepdims=True))
        P = np.exp(Z - Z.max(axis=1, keepdims=True))
        return np.asarray(P / P.sum(axis=1, keepdims=True))


class DPBlockMLPRegressor(RegressorMixin, BlockNetworkModel):  # type: ignore[misc]
    """The same network for numbers, with squared loss.

    Args:
        hidden_layer_sizes: of the hidden layers.
        target_bounds: (low, high), public; targets outside are clipped, and so are predictions. Required.
        step_size: 1 if missing: shorter than for classes, because squared loss has one place to go to.

    Everything else is as in ``DPBlockMLPClassifier``.
    """

    target_bounds: Any
    _step = 1.0

    def __init__(
        self,
        hidden_layer_sizes: Any = (64,),
        *,
        epsilon: float = 1.0,
        delta: float | None = None,
        adjacency: str = "replace-one",
        feature_bounds: Any = None,
        target_bounds: Any = None,
        layer_norms: Any = 1.0,
        contribution_norm: Any = None,
        update: str = "gradient",
        batch_size: int | None = None,
        epochs: int = 10,
        sampling: str = "poisson",
        noise_schedule: NoiseSchedule = "constant",
        step_size: float | None = None,
        last_step: float | None = None,
        l2: float = 0.0,
        gamma: float = 1.0,
        shortcuts: Any = (),
        input_shape: Any = None,
        view: str = "all_iterates",
        init_seed: int = 0,
        arithmetic: str = "exact",
        weighting: str = "person",
        max_rows: int | None = None,
        max_sample_weight: float | None = None,
        ledger: Ledger | None = None,
        progress: bool | None = None,
        random_state: int | None = None,
    ) -> None:
        self.hidden_layer_sizes = hidden_layer_sizes
        self.epsilon = epsilon
        self.delta = delta
        self.adjacency = adjacency
        self.feature_bounds = feature_bounds
        self.target_bounds = target_bounds
        self.layer_norms = layer_norms
        self.contribution_norm = contribution_norm
        self.update = update
        self.batch_size = batch_size
        self.epochs = epochs
        self.sampling = sampling
        self.noise_schedule = noise_schedule
        self.step_size = step_size
        self.last_step = last_step
        self.l2 = l2
        self.gamma = gamma
        self.shortcuts = shortcuts
        self.input_shape = input_shape
        self.view = view
        self.init_seed = init_seed
        self.arithmetic = arithmetic
        self.weighting = weighting
        self.max_rows = max_rows
        self.max_sample_weight = max_sample_weight
        self.ledger = ledger
        self.progress = progress
        self.random_state = random_state

    def _loss(self) -> str:
        return "squared"

    def _read(self, X: Any, y: Any) -> tuple[Table, Any, Any]:
        X, y = validate_table(self, X, y, multi_output=True, y_numeric=True)
        (n, p), columns = X.shape, columns_of(y)
        table = Table(n, p, dtype=X.dtype, outputs=columns.shape[1], single_target=np.ndim(y) == 1)
        return table, X, columns

    def _shape(self, n_records: int, n_features: int) -> Table:
        return Table(n_records, n_features)

    def _target_map(self, table: Table) -> BoundedColumns:
        return BoundedColumns(target_bounds(self.target_bounds))

    def _fitted(self, planned: NetworkFit, solution: list[Array], table: Table) -> dict[str, Any]:
        return {**super()._fitted(planned, solution, table), "single_target_": table.single_target}

    def _outputs_of(self, weights: list[Any]) -> int:
        target_bounds(self.target_bounds)
        network = self._network(self.n_features_in_, 1)
        last = next(j for j, c in enumerate(network.connections) if c.target == network.depth)
        K = len(weights[last]) if last < len(weights) and np.ndim(weights[last]) == 2 else 0
        if K < 1:
            raise InvalidInput(f"coefs_ must hold weights for every output: {CHANGED}")
        check_single_target(self, K)
        return K

    def predict(self, X: Any) -> Array:
        """Outputs in the units of y, within ``target_bounds``."""
        Z, bounds = self._outputs(X), target_bounds(self.target_bounds)
        out = np.asarray(bounds.clip(bounds.centre + bounds.scale * Z))
        return out[:, 0] if self.single_target_ else out

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
