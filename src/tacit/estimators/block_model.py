"""What networks of blocks share: the problem of all layers, its plan, predictions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from tacit import _validate
from tacit.errors import InvalidInput, NotCovered
from tacit.estimators.base import PrivateEstimator, Table
from tacit.estimators.fitted import CHANGED, agree, check_block_plan, check_numbers
from tacit.estimators.rooms import check_network_room
from tacit.inputs.parameters import public_seed
from tacit.inputs.tables import validate_table
from tacit.maps import EqualNorm, TargetBounds, feature_bounds
from tacit.mechanism import Adjacency, Plan
from tacit.problem.network import Architecture, architecture
from tacit.release import Session
from tacit.release.queries import BlockNetwork
from tacit.solvers.base import Budget
from tacit.solvers.blocks import BlockDescent, BlockLayout, BlockPlan
from tacit.solvers.network import block_network, layer_shares
from tacit.solvers.schedules import NoiseSchedule

__all__ = ["BlockNetworkModel", "BoundedColumns", "NetworkFit", "OneHot"]

Array = NDArray[np.float64]
BATCHES, SMALLEST = 40, 50
"""By default forty batches an epoch, of at least fifty records."""
LAST_STEP = 0.1
"""In units of the first, if nothing is said."""


@dataclass(frozen=True)
class OneHot:
    """Class numbers as rows of zeros and a one."""

    classes: int

    def __call__(self, y: Any) -> NDArray[np.float32]:
        """The rows."""
        return np.asarray(np.eye(self.classes, dtype=np.float32)[y])


@dataclass(frozen=True)
class BoundedColumns:
    """Values within their bounds, mapped to [−1, 1], float32."""

    bounds: TargetBounds

    def __call__(self, y: Any) -> NDArray[np.float32]:
        """The mapped values."""
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
    targets: OneHot | BoundedColumns
    declared: tuple[str, ...] = ()

    @property
    def plan(self) -> Plan:
        """All that will be released."""
        return self.numbers.certificate.plan

    def solve(self, session: Session) -> list[Array]:
        """The weights of each layer."""
        return list(BlockDescent(self.numbers, self.problem).solve(session.through(self.inputs, self.targets)))


class BlockNetworkModel(PrivateEstimator):
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

    def _target_map(self, table: Table) -> OneHot | BoundedColumns:
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
        numbers = self._layout(problem, table.n, budget.adjacency, budget.unit).calibrated(budget.epsilon, budget.delta)
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

    def _layout(self, problem: BlockNetwork, n: int, adjacency: Adjacency, unit: str) -> BlockLayout:
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
            unit=unit,
            label="layers of a network",
            arithmetic=self.arithmetic,
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
        check_block_plan(
            self,
            plan,
            self._batch,
            lambda: self._layout(self._problem(network), plan.n, self._relation, self.certificate_.unit),
        )

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
