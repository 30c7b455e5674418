"""Networks trained by private block coordinate descent: every layer is a block with sums and noise of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.errors import InvalidInput, NotCovered
from tacit.estimators.base import PrivateEstimator, Table
from tacit.estimators.fitted import CHANGED, agree, check_block_plan, check_numbers, check_single_target
from tacit.estimators.rooms import check_network_room
from tacit.inputs.labels import class_list, class_numbers
from tacit.inputs.parameters import public_seed
from tacit.inputs.tables import columns_of, labels_of, validate_table
from tacit.ledger import Ledger
from tacit.maps import EqualNorm, TargetBounds, feature_bounds, target_bounds
from tacit.mechanism import Adjacency, Plan
from tacit.problem.network import LOSSES, Architecture, architecture
from tacit.release import Session
from tacit.release.queries import BlockNetwork
from tacit.solvers.base import Budget
from tacit.solvers.blocks import BlockDescent, BlockLayout, BlockPlan
from tacit.solvers.network import block_network, layer_shares
from tacit.solvers.schedules import NoiseSchedule

__all__ = ["DPBlockMLPClassifier", "DPBlockMLPRegressor"]

Array = NDArray[np.float64]
BATCHES, SMALLEST = 40, 50
"""By default forty batches an epoch, of at least fifty records."""
LAST_STEP = 0.1
"""In units of the first, if nothing is said."""


@dataclass(frozen=True)
class _OneHot:
    """Class numbers as rows of zeros and a one."""

    classes: int

    def __call__(self, y: Any) -> NDArray[np.float32]:
        return np.asarray(np.eye(self.classes, dtype=np.float32)[y])


@dataclass(frozen=True)
class _Columns:
    """Values within their bounds, mapped to [−1, 1], float32."""

    bounds: TargetBounds

    def __call__(self, y: Any) -> NDArray[np.float32]:
        return self.bounds(y).astype(np.float32)


@dataclass(frozen=True, eq=False)
class NetworkFit:
    """A network with every public choice made.

    Attributes:
        numbers: the releases of all layers and their noise.
        problem: what records contribute to the layers.
        inputs: the map of features.
        targets: the map of targets.
        declared: nothing beyond what the parameters say.
    """

    numbers: BlockPlan
    problem: BlockNetwork
    inputs: EqualNorm
    targets: _OneHot | _Columns
    declared: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """All that will be released."""
        return self.numbers.certificate.plan

    def solve(self, session: Session) -> list[Array]:
        """The weights of each layer."""
        return list(BlockDescent(self.numbers, self.problem).solve(session.through(self.inputs, self.targets)))


class _BlockNetworkModel(PrivateEstimator):
    """Plan, run and prediction; subclasses say what the targets are."""

    plan_: BlockPlan
    coefs_: list[Array]
    network_: Architecture
    hidden_layer_sizes: Any
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

    _gdp_remedy = "choose sampling='cyclic', which has one"
    """For searches, whose candidates must be μ-GDP."""
    _step = 4.0
    """The first step if nothing is said."""

    def _loss(self) -> str:
        raise NotImplementedError

    def _target_map(self, table: Table) -> _OneHot | _Columns:
        raise NotImplementedError

    def _unused_parameters(self) -> dict[str, str]:
        return {"step_size": "update", "last_step": "update"} if self.update == "statistics" else {}

    # -- fit -------------------------------------------------------------------------------------------------

    def _network(self, p: int, outputs: int) -> Architecture:
        p = p + self._constant
        shape = (p,) if self.input_shape is None else self.input_shape
        whole = isinstance(shape, tuple | list) and all(
            isinstance(side, int | np.integer) and not isinstance(side, bool) and side > 0 for side in shape
        )
        if not whole:
            raise InvalidInput(f"input_shape must be (channels, height, width), e.g. (1, 28, 28), got {shape!r}")
        if math.prod(shape) != p:
            raise InvalidInput(f"input_shape {shape} does not hold the {p} features of X: e.g. (1, 28, 28) for 784")
        return architecture(
            tuple(int(side) for side in shape),
            self.hidden_layer_sizes,
            outputs,
            norms=self.layer_norms,
            loss=self._loss(),
            gamma=self.gamma,
            shortcuts=self.shortcuts,
        )

    @property
    def _constant(self) -> bool:
        """Whether a constant stands beside the features: not beside a picture."""
        return self.input_shape is None

    def _inputs(self, p: int, network: Architecture) -> EqualNorm:
        return EqualNorm(feature_bounds(self.feature_bounds, p), network.norms[0], self._constant)

    def _planned(self, table: Table, budget: Budget) -> NetworkFit:
        if budget.view == "final_model":
            raise NotCovered(
                "view: hidden variables of a record follow all layers, so that no Lipschitz constant of a sweep is "
                "known (errata E6), and no theorem about the last iterate applies; use view='all_iterates'",
                axis="view",
            )
        network = self._network(table.p, table.outputs)
        inputs, targets, problem = self._inputs(table.p, network), self._target_map(table), self._problem(network)
        numbers = self._layout(problem, table.n, budget.adjacency).calibrated(budget.epsilon, budget.delta)
        return NetworkFit(numbers, problem, inputs, targets)

    def _problem(self, network: Architecture) -> BlockNetwork:
        return block_network(
            network,
            self.update,
            seed=public_seed("init_seed", self.init_seed),
            step_size=self._step if self.step_size is None else self.step_size,
            last_step=LAST_STEP if self.last_step is None else self.last_step,
            contribution_norm=self.contribution_norm,
            l2=self.l2,
        )

    def _batch(self, n: int) -> int:
        default = min(n, max(SMALLEST, n // BATCHES))
        return default if self.batch_size is None else _validate.positive_int(batch_size=self.batch_size)

    def _layout(self, problem: BlockNetwork, n: int, adjacency: Adjacency) -> BlockLayout:
        return BlockLayout.of(
            blocks=problem.blocks,
            n=n,
            batch_size=self._batch(n),
            epochs=self.epochs,
            sampling=_validate.one_of(("poisson", "cyclic"), sampling=self.sampling),
            noise_schedule=self.noise_schedule,
            shares=layer_shares(problem.blocks),
            order="jacobi",
            adjacency=adjacency,
            label="layers of a network",
        )

    def _fitted(self, planned: NetworkFit, solution: list[Array], table: Table) -> dict[str, Any]:
        return {"coefs_": solution, "plan_": planned.numbers, "network_": planned.problem.network}

    # -- files ------------------------------------------------------------------------------------------------

    def _check_fitted(self) -> None:
        super()._check_fitted()
        if self.view != "all_iterates":
            raise InvalidInput(f"view={self.view!r} is none that a network is fitted with: {CHANGED}")
        plan, weights = getattr(self, "plan_", None), getattr(self, "coefs_", None)
        if not isinstance(plan, BlockPlan) or not isinstance(weights, list) or not weights:
            raise InvalidInput("plan_ must be a plan of blocks, and coefs_ a list of weights: fit again")
        network = self._network(self.n_features_in_, self._outputs_of(weights))
        check_network_room(network)
        shapes = [c.map.weights for c in network.connections]
        if len(weights) != len(shapes):
            raise InvalidInput(f"coefs_ must hold {len(shapes)} weight matrices, not {len(weights)}: {CHANGED}")
        for j, (value, shape) in enumerate(zip(weights, shapes, strict=True)):
            check_numbers(f"coefs_[{j}]", value, shape)
        feature_bounds(self.feature_bounds, self.n_features_in_)
        if not agree(network, getattr(self, "network_", None)):
            raise InvalidInput(f"its layers are not those that it was fitted with (network_): {CHANGED}")
        check_block_plan(self, plan, self._batch, lambda: self._layout(self._problem(network), plan.n, self._relation))

    @property
    def _relation(self) -> Adjacency:
        return Adjacency.parse(self.adjacency)

    def _outputs_of(self, weights: list[Any]) -> int:
        """K, by the classes or by the weights."""
        raise NotImplementedError

    # -- prediction -------------------------------------------------------------------------------------------

    def _outputs(self, X: Any) -> Array:
        check_is_fitted(self)
        X = validate_table(self, X, reset=False)
        with np.errstate(all="ignore"):
            x = self._inputs(X.shape[1], self.network_)(X)
            parts = np.array_split(x, max(1, len(x) // 1000))
            return np.concatenate([self.network_.outputs_of(self.coefs_, part.astype(np.float64)) for part in parts])


class DPBlockMLPClassifier(ClassifierMixin, _BlockNetworkModel):  # type: ignore[misc]
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
        self.ledger = ledger
        self.progress = progress
        self.random_state = random_state

    def _loss(self) -> str:
        return _validate.one_of(LOSSES, loss=self.loss)

    def _read(self, X: Any, y: Any) -> tuple[Table, Any, Any]:
        X, y = validate_table(self, X, y)
        y = labels_of(y)
        classes, marks = class_list(self.classes, y)
        (n, p), index = X.shape, class_numbers(classes, y)
        return Table(n, p, False, X.dtype, len(classes), classes, marks), X, index

    def _shape(self, n_records: int, n_features: int) -> Table:
        classes, marks = class_list(self.classes, ())
        return Table(n_records, n_features, outputs=len(classes), classes=classes, marks=marks)

    def _target_map(self, table: Table) -> _OneHot:
        return _OneHot(table.outputs)

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

    def _target_map(self, table: Table) -> _Columns:
        return _Columns(target_bounds(self.target_bounds))

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
