"""Weights of a network from noisy sums: public starts, steps, and the solution of noisy normal equations."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.problem import ElasticNet
from tacit.problem.blocks import Block, GradientStep, Position
from tacit.problem.moments import moments_bound, moments_diameter
from tacit.problem.network import Architecture
from tacit.release.queries import BlockNetwork, LayerStatistic, symmetric
from tacit.release.queries.network import layer_size
from tacit.solvers.schedules import balanced_shares
from tacit.solvers.stages import positive_part

__all__ = ["LAYER_UPDATES", "Falling", "LayerSolve", "block_network", "layer_shares", "public_weights"]

Array = NDArray[np.float64]
LAYER_UPDATES = {"gradient": LayerStatistic.GRADIENT, "statistics": LayerStatistic.MOMENTS}
CONTRIBUTION = {"gradient": 0.01, "statistics": 0.5}
"""C if nothing is said: of gradients so short that most records are clipped, and so weigh the same."""
SMALLEST_RIDGE = 1e-4
"""Of noisy normal equations, in units of their mean diagonal: sums are made in float32."""
MIN_CONTRIBUTION, MAX_CONTRIBUTION = 1e-9, 1e9
"""Of C: its square must be an ordinary number in float32."""
NOISE_RIDGE, DAMPING = 1.0, 0.9
"""How far noisy normal equations are trusted: the ridge in units of their noise, and the share of the way to go."""


@described("Falling")
@dataclass(frozen=True)
class Falling:
    """A step that falls linearly over the run, to a share of the first one: late noise then moves little.

    Attributes:
        first: η of the first step.
        last: η of the last step, in units of the first.
    """

    first: float
    last: float

    def __call__(self, at: Position) -> float:
        """η at a position."""
        return self.at(at.step, at.steps)

    def at(self, step: int, steps: int) -> float:
        """η of a step."""
        return self.first * (1 - (1 - self.last) * step / max(steps - 1, 1))


@described("LayerSolve")
@dataclass(frozen=True)
class LayerSolve:
    """W ← W + γ·(T − λW)(κS + (λ + ν)I)⁻¹ with S = Σ xxᵀ/b and T = Σ r xᵀ/b, both noisy.

    Without noise and with γ = 1 it is the argmin of the block: of its squared loss (κ = 1), or of the majorant of
    cross-entropy (κ = ½). S is made positive semi-definite, and ν is a ridge of the size of its noise. All of it is a
    function of the release: post-processing.

    Attributes:
        weight: α, by which squares were multiplied.
        curvature: κ.
        l2: λ.
        noise_ridge: ν, in units of the noise of S.
        damping: γ of a whole epoch; smaller batches go smaller ways.
    """

    weight: float
    curvature: float
    l2: float
    noise_ridge: float
    damping: float

    def __call__(self, value: Array, noisy: Array, at: Position) -> Array:
        """The next W."""
        outputs, inputs = value.shape
        square = inputs * (inputs + 1) // 2
        S = positive_part(symmetric(noisy[:square], inputs)) / (self.weight * at.expected)
        T = noisy[square:].reshape(outputs, inputs) / at.expected - self.l2 * value
        ridge = self.l2 + self.noise_ridge * at.noise_std * math.sqrt(inputs) / (self.weight * at.expected)
        ridge = max(ridge, SMALLEST_RIDGE * float(np.trace(S)) / inputs, 1e-12)
        A = self.curvature * S + ridge * np.eye(inputs)
        way = 1 - (1 - self.damping) ** (1 / at.n_batches)
        return np.asarray(value + way * cho_solve(cho_factor(A), T.T).T)


def public_weights(network: Architecture, seed: int) -> list[Array]:
    """Gaussian weights that keep the length of states, from a public seed; shortcuts and biases begin at 0.

    E‖Wx‖² = outputs·uses·var·‖x‖², where ``uses`` counts the patches that an entry of x is in; ReLU keeps half of it.

    Args:
        network: the architecture.
        seed: public.

    Returns:
        W of each connection.
    """
    rng = np.random.default_rng(seed)
    out = []
    for c in network.connections:
        outputs, inputs = c.map.weights
        gain = 2.0 if c.target < network.depth else 1.0
        W = rng.normal(size=(outputs, inputs)) * math.sqrt(gain / (outputs * c.map.uses))
        W[:, -1] = 0.0
        out.append(W if c.name.startswith("layer") else np.zeros_like(W))
    return out


def block_network(
    network: Architecture,
    update: str,
    *,
    seed: int,
    step_size: float,
    last_step: float,
    contribution_norm: float | Sequence[float] | None,
    l2: float,
) -> BlockNetwork:
    """The network as a problem: public descriptions of all weights, and what their sums need to know.

    Args:
        network: the architecture.
        update: "gradient" or "statistics".
        seed: public.
        step_size: the longest way of a layer's weights in the first step, if all records agree (gradients); of a
            convolution divided by √(patches that an entry is in).
        last_step: of the last step, in units of the first.
        contribution_norm: C, for all connections or one each.
        l2: λ.

    Returns:
        The problem.

    Raises:
        InvalidInput: if arguments are out of range.
    """
    statistic = LAYER_UPDATES[_validate.one_of(tuple(LAYER_UPDATES), update=update)]
    if statistic is LayerStatistic.MOMENTS and any(c.map.patches > 1 for c in network.connections):
        raise InvalidInput("update='statistics' is for dense layers: use update='gradient' with convolutions")
    s, share = _validate.positive(step_size=step_size), _validate.probability(last_step=last_step)
    ridge = _validate.nonnegative(l2=l2)
    clips = _clips(CONTRIBUTION[update] if contribution_norm is None else contribution_norm, network)
    blocks, weights, norms = [], [], []
    for c, W, C in zip(network.connections, public_weights(network, seed), clips, strict=True):
        curvature = 0.5 if c.target == network.depth and network.loss == "cross_entropy" else 1.0
        R = network.design_norm(c)
        U = C / R
        a = U / (math.sqrt(2) * R)  # free under replace-one
        weights.append(a)
        norms.append(U)
        if statistic is LayerStatistic.GRADIENT:
            falling = Falling(s / (C * math.sqrt(c.map.uses)), share)  # a patch's weights act in many places
            penalty = ElasticNet.of(1, l2=ridge) if ridge else None
            blocks.append(Block(c.name, W, C, GradientStep(falling, penalty)))
        else:
            solve = LayerSolve(a, curvature, ridge, NOISE_RIDGE, DAMPING)
            bound, size = moments_bound(R, U, a), layer_size(c.map.weights, statistic)
            blocks.append(Block(c.name, W, bound, solve, size, moments_diameter(R, U, a)))
    return BlockNetwork(network, tuple(blocks), statistic, tuple(weights), tuple(norms))


def layer_shares(blocks: Sequence[Block]) -> dict[str, float]:
    """Shares of μ² with which noise moves all weights together the least: share ∝ √(numbers released)."""
    return balanced_shares({block.name: math.sqrt(block.release_size) for block in blocks})


def _clips(stated: float | Sequence[float], network: Architecture) -> list[float]:
    count = len(network.connections)
    listed = stated if isinstance(stated, tuple | list | np.ndarray) else [stated] * count
    if len(listed) != count:
        raise InvalidInput(f"contribution_norm must be one number, or one for each of {count} weight matrices")
    values = [_validate.positive(contribution_norm=value) for value in listed]
    if not all(MIN_CONTRIBUTION <= value <= MAX_CONTRIBUTION for value in values):
        raise InvalidInput(f"contribution_norm must lie between {MIN_CONTRIBUTION:g} and {MAX_CONTRIBUTION:g}: rescale")
    return values
