"""Feed-forward networks as multi-convex problems: weights, and hidden variables of each record (DP-MBCD, eq. 4).

    F = R(u_D, y) + γ/2·Σ_t ‖x_{t+1} − σ(u_t)‖² + γ/2·Σ_t ‖u_t − Σ_s W_{s→t} x_s‖²,     u_D = Σ_s W_{s→D} x_s

σ is ReLU; the sums over s hold the layer below and shortcuts (eq. 20). F is convex in each W, in each x and in each u.
The x and u of a record follow from the weights and that record: a forward pass, then one sweep from the output down,
each x by its normal equations (eq. 11), each u in closed form (eq. 10); every x is kept within ρ (eq. 12). x₀ is the
input and stays (errata E12). Nothing of them outlives the sum that needs them (errata E6). Eq. (10) jumps, so that all
products are exact (``tacit.kernels.exact``): to the bit, a record's variables do not depend on who is beside it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.kernels.exact import coarse, exact_product
from tacit.kernels.relu import relu_step
from tacit.kernels.rows import row_squares
from tacit.kernels.softmax import softmax
from tacit.problem.layers import BIAS, Convolution, Dense, LayerMap, Shape, layer_map

__all__ = ["LOSSES", "Architecture", "Connection", "Hidden", "Prepared", "architecture"]

Rows = NDArray[np.float64]
LOSSES = ("cross_entropy", "squared")
NEWTON = 2
"""Majorised Newton steps for the last x under cross-entropy: a fixed number, so that no record decides."""
CONJUGATE = 8
"""Conjugate-gradient steps for an x below a convolution: fixed for the same reason."""
SHRINK = 1 - 2.0**-40
"""Long states are made this much shorter than ρ, so that rounding cannot make them longer."""


@described("Connection")
@dataclass(frozen=True)
class Connection:
    """A weight matrix from a state to a pre-activation.

    Attributes:
        source: s of x_s; 0 is the input.
        target: t of u_t; D is the output.
        map: what it does to the state.
        name: of its block.
    """

    source: int
    target: int
    map: LayerMap
    name: str


@dataclass(frozen=True)
class Hidden:
    """What single records make of the weights, one row per record.

    Attributes:
        designs: (records, patches, inputs + 1) of each connection, at the hidden x.
        residuals: what each u leaves of its target, flat: u_t − ΣWx, and −∂R/∂u_D for the output.
    """

    designs: tuple[Rows, ...]
    residuals: tuple[Rows, ...]


@described("Architecture")
@dataclass(frozen=True)
class Architecture:
    """A network without its weights: public.

    Attributes:
        connections: in the order of their blocks.
        shapes: of the states x₀ … x_D.
        norms: ρ of each state.
        loss: "cross_entropy" or "squared".
        outputs: K.
        gamma: γ.
    """

    connections: tuple[Connection, ...]
    shapes: tuple[Shape, ...]
    norms: tuple[float, ...]
    loss: str
    outputs: int
    gamma: float

    @property
    def depth(self) -> int:
        """D, the hidden layers."""
        return len(self.shapes) - 1

    def design_norm(self, connection: Connection) -> float:
        """The longest design of a record, constant and all (dense layers)."""
        return self.norms[connection.source] * float(np.sqrt(1 + BIAS**2))

    def into(self, target: int) -> list[int]:
        """Connections that end in u_target."""
        return [j for j, c in enumerate(self.connections) if c.target == target]

    def out_of(self, source: int) -> list[int]:
        """Connections that begin at x_source."""
        return [j for j, c in enumerate(self.connections) if c.source == source]

    # -- forward ----------------------------------------------------------------------------------------------

    def prepared(self, weights: Sequence[Rows]) -> Prepared:
        """What follows from the weights alone, once for all records.

        Args:
            weights: of each connection.

        Returns:
            Them, ready for exact products, and the solutions of the normal equations of dense layers.
        """
        forward = tuple(coarse(W) for W in weights)
        backward = tuple(coarse(W[:, :-1].T) for W in weights)
        solved: dict[int, Rows] = {}
        for s in range(1, self.depth + 1):
            readers = [(self.connections[j].map, weights[j][:, :-1], math.sqrt(w)) for j, w in self._uses(s)]
            if all(m.patches == 1 for m, _, _ in readers):  # spread: rows of W as functions of x before pooling
                solved[s] = _solution(np.concatenate([m.spread(W[:, None].copy()) * w for m, W, w in readers]))
        return Prepared(forward, backward, solved)

    def outputs_of(self, weights: Sequence[Rows], x: Rows) -> Rows:
        """The network itself: (records, K).

        Args:
            weights: of each connection.
            x: (records, features), made short here.

        Returns:
            u_D.
        """
        return _Pass(self, self.prepared(weights), x).pre[-1]

    # -- hidden variables ---------------------------------------------------------------------------------------

    def hidden(self, weights: Sequence[Rows] | Prepared, x: Rows, target: Rows) -> Hidden:
        """The x and u of records, from the weights and each record alone.

        Args:
            weights: of each connection, or what ``prepared`` made of them.
            x: (records, features).
            target: (records, K): one-hot classes, or values.

        Returns:
            What the updates of the weights need of them.
        """
        at = _Pass(self, weights if isinstance(weights, Prepared) else self.prepared(weights), x)
        D = self.depth
        for s in range(D, 0, -1):
            rounds = NEWTON if s == D and self.loss == "cross_entropy" else 1
            for _ in range(rounds):
                at.move(s, target)
            at.aims[s - 1] = relu_step(at.pre[s - 1], at.states[s], at.shrunk[s])
        residuals = [*(at.aims[t] - at.pre[t] for t in range(D)), -self._slope(at.pre[D], target)]
        return Hidden(tuple(at.designs), tuple(residuals))

    def _slope(self, outputs: Rows, target: Rows) -> Rows:
        """∂R/∂u_D."""
        if self.loss == "squared":
            return outputs - target
        return np.asarray(softmax(outputs) - target)

    def _uses(self, s: int) -> list[tuple[int, float]]:
        """Connections that read x_s, and how much each counts."""
        return [(j, self._weight(self.connections[j].target)) for j in self.out_of(s)]

    def _weight(self, target: int) -> float:
        """How much a use of x counts, in units of γ."""
        if target < self.depth:
            return 1.0
        return (1.0 if self.loss == "squared" else 0.5) / self.gamma

    def _output_aim(self, outputs: Rows, target: Rows) -> Rows:
        """Where the majorant of R wants the outputs, less where they are."""
        return -self._slope(outputs, target) * (1.0 if self.loss == "squared" else 2.0)


@dataclass(frozen=True)
class Prepared:
    """What follows from the weights alone.

    Attributes:
        forward: W of each connection, for exact products.
        backward: Wᵀ without the constant.
        solved: Aᵀ(I + AAᵀ)⁻¹ of the states that dense layers read, A being those layers one above the other.
    """

    forward: tuple[Rows, ...]
    backward: tuple[Rows, ...]
    solved: dict[int, Rows]


class _Pass:
    """A forward pass, and states that move: designs and pre-activations are always those of the current states.

    x₀ never moves and is kept as it came: only its designs are made short.
    """

    def __init__(self, network: Architecture, weights: Prepared, x: Rows) -> None:
        self.network, self.weights = network, weights
        self.states: list[Rows] = []
        self.shrunk: list[Rows] = []
        self.pre: list[Rows] = []
        self.designs: list[Rows] = [np.empty(0)] * len(network.connections)
        self.images: list[Rows] = [np.empty(0)] * len(network.connections)
        self.aims: list[Rows] = [np.empty(0)] * network.depth
        for s in range(network.depth + 1):
            raw = x if s == 0 else np.maximum(self.pre[s - 1], 0)
            factors = _shortening(raw, network.norms[s])
            self.states.append(raw if s == 0 else raw * factors[:, None])
            self.shrunk.append(factors)
            self._read(s, factors if s == 0 else None)
            self.pre.append(self._sum(s))

    def _read(self, s: int, factors: Rows | None = None) -> None:
        """Designs and images of what reads x_s (times these factors)."""
        for j in self.network.out_of(s):
            c = self.network.connections[j]
            self.designs[j] = c.map.design(self.states[s], BIAS * self.network.norms[s], factors)
            self.images[j] = c.map.forward(self.weights.forward[j], self.designs[j])

    def _sum(self, t: int) -> Rows:
        parts = [self.images[j] for j in self.network.into(t)]
        return parts[0] if len(parts) == 1 else np.sum(parts, axis=0)

    def move(self, s: int, target: Rows) -> None:
        """x_s ← argmin of γ/2‖x_s − σ(u)‖² and all that reads it; cross-entropy by its majorant ¼‖·‖² + linear."""
        network, uses = self.network, self.network._uses(s)
        wanted = []
        for j, _ in uses:
            t = network.connections[j].target
            last = t == network.depth
            wanted.append(network._output_aim(self.pre[t], target) if last else self.aims[t] - self.pre[t])
        if s in self.weights.solved:
            scaled = [v * math.sqrt(w) for (_, w), v in zip(uses, wanted, strict=True)]
            step = exact_product(
                scaled[0] if len(scaled) == 1 else np.concatenate(scaled, axis=1), self.weights.solved[s]
            )
        else:
            step = self._conjugate_step(uses, wanted)
        step += self.states[s]
        step *= _shortening(step, network.norms[s])[:, None]
        self.states[s] = step
        self._read(s)
        for t in {network.connections[j].target for j, _ in uses}:
            self.pre[t] = self._sum(t)

    def _conjugate_step(self, uses: list[tuple[int, float]], wanted: list[Rows]) -> Rows:
        """(I + Σ w AᵀA)⁻¹ Σ w Aᵀv, matrix-free, every record with steps of its own."""
        maps = {j: self.network.connections[j].map for j, _ in uses}

        def adjoint(parts: list[Rows]) -> Rows:
            sums = [w * maps[j].backward(self.weights.backward[j], v) for (j, w), v in zip(uses, parts, strict=True)]
            return sums[0] if len(sums) == 1 else np.sum(sums, axis=0)

        def normal(d: Rows) -> Rows:
            return d + adjoint([maps[j].forward(self.weights.forward[j], maps[j].design(d, 0.0)) for j, _ in uses])

        residual = adjoint(wanted)
        step, direction = np.zeros_like(residual), residual
        left = row_squares(residual)
        for _ in range(CONJUGATE):
            image = normal(direction)
            along = (direction * image).sum(axis=1)
            rate = (left / np.where(along > 0, along, np.inf))[:, None]
            step, residual = step + rate * direction, residual - rate * image
            now = row_squares(residual)
            direction = residual + (now / np.where(left > 0, left, np.inf))[:, None] * direction
            left = now
        return step


def _solution(A: Rows) -> Rows:
    """Aᵀ(I + AAᵀ)⁻¹ = (I + AᵀA)⁻¹Aᵀ, by a Cholesky factorisation of the smaller side, for exact products."""
    outputs, inputs = A.shape
    try:
        if outputs <= inputs:
            B = cho_solve(cho_factor(A @ A.T + np.eye(outputs), check_finite=False), A, check_finite=False).T
        else:
            B = cho_solve(cho_factor(A.T @ A + np.eye(inputs), check_finite=False), A.T, check_finite=False)
    except np.linalg.LinAlgError:  # weights beyond all measure: public, and the same for every record
        B = np.zeros_like(A.T)
    return coarse(B)


def _shortening(rows: Rows, norm: float) -> Rows:
    """min(1, ρ/‖row‖) and a hair less; 0 for rows that are not finite."""
    inside = norm * SHRINK
    factor = inside / np.maximum(np.sqrt(row_squares(rows)), inside)
    return np.where(np.isfinite(factor), factor, 0.0)


def architecture(
    input_shape: Shape,
    layers: Sequence[int | Dense | Convolution],
    outputs: int,
    *,
    norms: float | Sequence[float] = 1.0,
    loss: str = "cross_entropy",
    gamma: float = 1.0,
    shortcuts: Sequence[tuple[int, int]] = (),
) -> Architecture:
    """A network from the sizes of its hidden layers.

    Args:
        input_shape: (features,) or (channels, height, width).
        layers: hidden layers, from the input on; a number is a dense one.
        outputs: K.
        norms: ρ, one for all states, or one each for the input and every hidden layer.
        loss: "cross_entropy" or "squared".
        gamma: γ.
        shortcuts: pairs (a, b): the output of layer a (0: the input) also feeds layer b > a + 1 (the last is the
            output layer), through weights of its own.

    Returns:
        The architecture.

    Raises:
        InvalidInput: if sizes do not fit each other.
    """
    described = [layer if isinstance(layer, Dense | Convolution) else Dense(layer) for layer in _listed(layers)]
    D = len(described)
    shapes: list[Shape] = [tuple(_validate.positive_int(input_shape=side) for side in input_shape)]
    found = []
    for d, layer in enumerate([*described, Dense(_validate.positive_int(outputs=outputs))]):
        made = layer_map(layer, shapes[-1])
        found.append(Connection(d, d, made, f"layer {d + 1}"))
        if d < D:
            shapes.append(made.target)
    for a, b in _pairs(shortcuts, D):
        target = found[b - 1].map.target
        if len(target) != 1:
            raise InvalidInput(f"the shortcut {(a, b)} ends in a convolution: only dense layers take shortcuts")
        found.append(Connection(a, b - 1, layer_map(target[0], shapes[a]), f"shortcut {a}–{b}"))
    return Architecture(
        connections=tuple(found),
        shapes=tuple(shapes),
        norms=_norms(norms, D + 1),
        loss=_validate.one_of(LOSSES, loss=loss),
        outputs=outputs,
        gamma=_validate.positive(gamma=gamma),
    )


def _listed(layers: Any) -> Sequence[Any]:
    if isinstance(layers, int | Dense | Convolution) and not isinstance(layers, bool):
        return (layers,)
    if not isinstance(layers, tuple | list):
        raise InvalidInput(f"hidden_layer_sizes must be a sequence of sizes or layers, e.g. (64, 64), got {layers!r}")
    return layers


def _pairs(shortcuts: Any, depth: int) -> list[tuple[int, int]]:
    if not isinstance(shortcuts, tuple | list):
        raise InvalidInput(f"shortcuts must be a sequence of pairs, e.g. [(1, 3)], got {shortcuts!r}")
    pairs = [tuple(pair) if isinstance(pair, tuple | list) else (pair,) for pair in shortcuts]
    for pair in pairs:
        whole = len(pair) == 2 and all(isinstance(end, int) and not isinstance(end, bool) for end in pair)
        if not whole or not 0 <= pair[0] < pair[1] - 1 <= depth:
            raise InvalidInput(
                f"shortcuts must be pairs (a, b) of layers with 0 ≤ a, a + 1 < b ≤ {depth + 1}, got {pair!r}"
            )
    if len(set(pairs)) < len(pairs):
        raise InvalidInput("shortcuts holds a pair twice: leave one out")
    return pairs


def _norms(norms: float | Sequence[float], count: int) -> tuple[float, ...]:
    listed = list(norms) if isinstance(norms, tuple | list | np.ndarray) else [norms] * count
    if len(listed) != count:
        raise InvalidInput(
            f"layer_norms must be one number, or {count}: for the input and each hidden layer, got {len(listed)}"
        )
    values = tuple(_validate.positive(layer_norms=value) for value in listed)
    if not all(1e-6 <= value <= 1e6 for value in values):
        raise InvalidInput("layer_norms must lie between 1e-6 and 1e6: rescale")
    return values
