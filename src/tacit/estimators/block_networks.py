"""Networks trained by private block coordinate descent: every layer is a block with sums and noise of its own."""

from __future__ import annotations

import math
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.accounting import Certificate
from tacit.errors import InvalidInput
from tacit.estimators._blocks import block_budget, public_seed, run_certified
from tacit.estimators._labels import class_list, class_numbers
from tacit.estimators._schema import checked, columns_of, labels_of
from tacit.kernels.rows import row_squares
from tacit.ledger import Ledger
from tacit.problem import FeatureUnits, TargetUnits
from tacit.problem.network import LOSSES, Architecture, architecture
from tacit.run.sums import BlockNetwork, TableRows
from tacit.solvers.blocks import BlockPlan, plan_blocks
from tacit.solvers.network import LayerBlocks, layer_blocks
from tacit.solvers.schedules import NoiseSchedule

__all__ = ["DPBlockMLPClassifier", "DPBlockMLPRegressor"]

Array = NDArray[np.float64]
Rows = NDArray[Any]
CONSTANT = 0.3
"""A constant beside the features, in units of the norm of a record that is spread over its bounds: records are scaled
to one norm, and it keeps what that would lose."""
SHORTEST = 0.01
"""Shorter records, in the same units, keep being short."""
BATCHES, SMALLEST = 40, 50
"""By default forty batches an epoch, of at least fifty records."""
LAST_STEP = 0.1
"""In units of the first, if nothing is said."""
PART = 4096
"""Records that are mapped at once, in float64."""
_WHY = "hidden variables of a record follow all layers, so that no Lipschitz constant of a sweep is known (errata E6)"


class _BlockNetworkModel(BaseEstimator):  # type: ignore[misc]
    """Schema, plan, run and prediction; subclasses say what the targets are."""

    certificate_: Certificate
    plan_: BlockPlan
    coefs_: list[Array]
    network_: Architecture
    hidden_layer_sizes: Any
    epsilon: float
    delta: float | None
    adjacency: str
    feature_bounds: Any
    loss: str
    layer_norms: Any
    contribution_norm: Any
    update: str
    batch_size: int | None
    epochs: int
    sampling: str
    noise_schedule: NoiseSchedule
    step_size: float | None
    last_step: float | None
    l2: float
    gamma: float
    shortcuts: Any
    input_shape: Any
    view: str
    init_seed: int
    budget: Ledger | None
    progress: bool | None
    random_state: int | None

    _gdp_remedy = "choose sampling='cyclic', which has one"
    """For searches, whose candidates must be μ-GDP."""
    _step = 4.0
    """The first step if nothing is said."""

    def _store(self, parameters: dict[str, Any]) -> None:
        for name in parameters.keys() - {"self", "__class__"}:
            setattr(self, name, parameters[name])

    def _loss(self) -> str:
        raise NotImplementedError

    def _idle(self) -> dict[str, str]:
        """Options that have no effect, and with what."""
        return {"step_size": "update", "last_step": "update"} if self.update == "statistics" else {}

    # -- plan ------------------------------------------------------------------------------------------------

    def _network(self, p: int, K: int) -> Architecture:
        shape = (p + self._constant,) if self.input_shape is None else self.input_shape
        whole = isinstance(shape, tuple | list) and all(
            isinstance(side, int | np.integer) and not isinstance(side, bool) and side > 0 for side in shape
        )
        if not whole:
            raise InvalidInput(f"input_shape must be (channels, height, width), e.g. (1, 28, 28), got {shape!r}")
        if math.prod(shape) != p + self._constant:
            raise InvalidInput(f"input_shape {shape} does not hold the {p} features of X: e.g. (1, 28, 28) for 784")
        return architecture(
            tuple(int(side) for side in shape),
            self.hidden_layer_sizes,
            K,
            norms=self.layer_norms,
            loss=self._loss(),
            gamma=self.gamma,
            shortcuts=self.shortcuts,
        )

    def _batch(self, n: int) -> int:
        return min(n, max(SMALLEST, n // BATCHES)) if self.batch_size is None else self.batch_size

    def _planned(
        self, n: int, p: int, K: int, noise_multiplier: float | None = None
    ) -> tuple[BlockPlan, LayerBlocks, Architecture]:
        """Every public choice; no record is read. The noise is calibrated unless it is known (a saved model)."""
        budget, network, b = block_budget(self, n, _WHY), self._network(p, K), self._batch(n)
        described = layer_blocks(
            network,
            self.update,
            seed=public_seed("init_seed", self.init_seed),
            step_size=self._step if self.step_size is None else self.step_size,
            last_step=LAST_STEP if self.last_step is None else self.last_step,
            contribution_norm=self.contribution_norm,
            l2=self.l2,
        )
        plan = plan_blocks(
            budget.epsilon if noise_multiplier is None else None,
            budget.delta,
            noise_multiplier=noise_multiplier,
            blocks=described.blocks,
            n=n,
            batch_size=b,
            epochs=self.epochs,
            sampling=_validate.one_of(("poisson", "cyclic"), sampling=self.sampling),
            noise_schedule=self.noise_schedule,
            shares=described.shares,
            order="jacobi",
            adjacency=budget.adjacency,
            label="layers of a network",
        )
        return plan, described, network

    # -- run -------------------------------------------------------------------------------------------------

    def _units(self, p: int) -> FeatureUnits:
        return FeatureUnits.of(self.feature_bounds, p)

    def _inputs(self, X: Rows, norm: float) -> Rows:
        """Features within their bounds, a constant beside them unless they are a picture, all scaled to norm ρ₀."""
        p, extra = X.shape[1], self._constant
        out = np.empty((len(X), p + extra), np.float32)
        units, typical = self._units(p), math.sqrt(p / 3)
        with np.errstate(all="ignore"):  # an error or a warning would tell about a record
            for first in range(0, len(X), PART):
                part = np.empty((len(X[first : first + PART]), p + extra))
                part[:, :p], part[:, p:] = units.map(X[first : first + PART].astype(np.float64)), CONSTANT * typical
                part *= (norm / np.maximum(np.sqrt(row_squares(part)), SHORTEST * typical))[:, None]
                out[first : first + PART] = part
        return out

    @property
    def _constant(self) -> int:
        return 1 if self.input_shape is None else 0

    def _run(self, X: Rows, K: int, target: Rows, marks: tuple[str, ...] = ()) -> None:
        n, p = X.shape
        self._units(p)  # bad bounds are refused before anything is spent
        plan, described, network = self._planned(n, p, K)

        def problem() -> BlockNetwork:
            return BlockNetwork(
                TableRows(self._inputs(X, network.norms[0])),
                target,
                network,
                described.blocks,
                described.statistic,
                weights=described.weights,
                residual_norms=described.residual_norms,
            )

        values, self.plan_, _ = run_certified(self, plan, marks, problem)
        self.coefs_, self.certificate_ = [np.array(value) for value in values], self.plan_.certificate
        self.network_ = network

    def _outputs(self, X: Any) -> Array:
        check_is_fitted(self)
        x = self._inputs(checked(self, X, reset=False), self.network_.norms[0])
        parts = np.array_split(x, max(1, len(x) // 1000))
        with np.errstate(all="ignore"):
            return np.concatenate([self.network_.outputs_of(self.coefs_, part.astype(np.float64)) for part in parts])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.non_deterministic = self.random_state is None
        return tags


class DPBlockMLPClassifier(ClassifierMixin, _BlockNetworkModel):  # type: ignore[misc]
    """A ReLU network trained by differentially private block coordinate descent (paper 000, made sound).

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
        budget: a ``tacit.Ledger``.
        progress: a bar on stderr: True, False, or None for "if somebody is watching".
        random_state: None for private noise.

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
        budget: Ledger | None = None,
        progress: bool | None = None,
        random_state: int | None = None,
    ) -> None:
        self._store(locals())

    def _loss(self) -> str:
        return _validate.one_of(LOSSES, loss=self.loss)

    def planned_certificate(self, X: Any, classes: Any = None) -> Certificate:
        """What ``fit`` is going to certify, from the shape of X: no record is read.

        Args:
            X: an array of the training data's shape, e.g. zeros.
            classes: the labels, if they are not a parameter.

        Returns:
            The certificate, without marks of the seed and of the classes.
        """
        known, _ = class_list(self.classes if classes is None else classes, ())
        n, p = X.shape
        return self._planned(n, p, len(known))[0].certificate

    def fit(self, X: Any, y: Any) -> Self:
        """Fit under the certificate that the parameters ask for.

        Args:
            X: (records, features).
            y: (records,) labels.

        Returns:
            The estimator itself.
        """
        X, y = checked(self, X, y)
        y = labels_of(y)
        classes, marks = class_list(self.classes, y)
        self._run(X, len(classes), np.eye(len(classes), dtype=np.float32)[class_numbers(classes, y)], marks)
        self.classes_ = classes
        return self

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


class DPBlockMLPRegressor(RegressorMixin, _BlockNetworkModel):  # type: ignore[misc]
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
        budget: Ledger | None = None,
        progress: bool | None = None,
        random_state: int | None = None,
    ) -> None:
        self._store(locals())

    def _loss(self) -> str:
        return "squared"

    def planned_certificate(self, X: Any, classes: Any = None, outputs: int = 1) -> Certificate:
        """What ``fit`` is going to certify, from the shape of X: no record is read.

        Args:
            X: an array of the training data's shape, e.g. zeros.
            classes: ignored: there are none.
            outputs: columns of the target.

        Returns:
            The certificate, without the mark of a seed.
        """
        TargetUnits.of(self.target_bounds)
        n, p = X.shape
        return self._planned(n, p, outputs)[0].certificate

    def fit(self, X: Any, y: Any) -> Self:
        """Fit under the certificate that the parameters ask for.

        Args:
            X: (records, features).
            y: (records,) or (records, K) numbers.

        Returns:
            The estimator itself.
        """
        X, y = checked(self, X, y, multi_output=True, y_numeric=True)
        units = TargetUnits.of(self.target_bounds)
        with np.errstate(all="ignore"):  # an error or a warning would tell about a record
            target = units.map(columns_of(y)).astype(np.float32)
        self._run(X, target.shape[1], target)
        self.single_target_ = np.ndim(y) == 1
        return self

    def predict(self, X: Any) -> Array:
        """Outputs in the units of y, within ``target_bounds``."""
        Z, units = self._outputs(X), TargetUnits.of(self.target_bounds)
        Z = np.clip(units.centre + units.scale * Z, units.low, units.high)
        return Z[:, 0] if self.single_target_ else Z

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags
