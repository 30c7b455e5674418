"""The papers' formulas as they print them. No certificate rests on any of these figures.

**DP-MBCD** (Corollary 4.5 with Lemma C.3). Its closed form, eq. (9), has index errors (errata E7), so the recursion is
iterated. Per step with Lipschitz constant L and noise variance s² (= 2η·o in the paper), v the inverse log-Sobolev
constant of the state and R the Rényi divergence per unit of α:

    the batch holds the record:   R ← R + d²/(2s²)            (d = η S_g/b, i.e. ηS_g²/(4b²o))
    it does not:                  R ← R · L²v/(L²v + s²)
    always:                       v ← L²v + s²               (v = 0 at the start)

It bounds the last iterate of *one* block whose step is L-Lipschitz; the prox is 1-Lipschitz and changes nothing
(errata E8). For several blocks the paper adds such bounds up, which is false (errata E6). For one block it is valid,
and our last-iterate bound is never larger.

**NoisyCGD** (the convex ReLU paper, Theorem 2.8): ``theorem_2_8_mu``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels._jit import jit
from tacit.mechanism import AllIterates, BlockSweeps, Cyclic, FullBatch, LastIterate, Mechanism
from tacit.problem.blocks import GradientStep
from tacit.problem.network import Architecture
from tacit.solvers.blocks import BlockPlan
from tacit.solvers.network import Falling

__all__ = [
    "claims",
    "diffusion_epochs",
    "diffusion_mixture",
    "diffusion_rates",
    "diffusion_rdp",
    "published_epsilon",
    "theorem_2_8_mu",
]

Array = NDArray[np.float64]

# -- DP-MBCD: the recursion ---------------------------------------------------------------------------------


@jit
def diffusion_rates(c: Array, gain: Array, variance: Array, k: int, position: int) -> Array:
    """R/α after each step: grows by ``gain`` at the record's steps, shrinks by L²v/(L²v + s²) at the others."""
    out = np.empty(c.size)
    rate, v = 0.0, 0.0
    for t in range(c.size):
        spread = c[t] * c[t] * v
        if t % k == position:
            rate += gain[t]
        else:
            rate *= spread / (spread + variance[t]) if spread < np.inf else 1.0
        v = spread + variance[t]
        out[t] = rate
    return out


def _steps(
    lipschitz: float, step_size: float, noise: ArrayLike, sensitivity: float, batch_size: float
) -> tuple[Array, Array, Array, int]:
    """c, d²/(2s²) and s² per step, and the number of batches, in the paper's parameters."""
    L = _validate.nonnegative(lipschitz=lipschitz)
    eta, S = _validate.positive(step_size=step_size), _validate.nonnegative(sensitivity=sensitivity)
    b = _validate.positive(batch_size=batch_size)
    o = _validate.nonnegative_array("noise", noise)
    if o.ndim != 2 or (o == 0).any():
        raise InvalidInput(f"noise must hold positive variances o(k, j), shape (epochs, batches), got shape {o.shape}")
    if max(L, eta, S, b, float(o.max())) > 1e50 or min(eta, b, float(o.min())) < 1e-50:
        raise InvalidInput("an argument lies outside 1e-50 … 1e50: rescale the problem")
    flat = np.ascontiguousarray(o.ravel())
    return np.full(flat.size, L), eta * S**2 / (4 * b**2 * flat), 2 * eta * flat, o.shape[1]


def diffusion_rdp(
    lipschitz: float, step_size: float, noise: ArrayLike, sensitivity: float, batch_size: float, position: int
) -> float:
    """ε_K(α, j₀)/α: the Rényi bound of one block, per unit of α.

    Args:
        lipschitz: L_F of the gradient step (the prox counts as 1).
        step_size: η.
        noise: o(k, j), shape (epochs, batches): the noise of a step has variance 2η·o.
        sensitivity: S_g.
        batch_size: b.
        position: j₀, the batch that holds the record.

    Returns:
        R/α, the same for every α.

    Raises:
        InvalidInput: if an argument is out of range.
    """
    c, gain, variance, k = _steps(lipschitz, step_size, noise, sensitivity, batch_size)
    index = _validate.index(k, position=position)
    return float(diffusion_rates(c, gain, variance, k, index)[-1])


def diffusion_epochs(
    lipschitz: float, step_size: float, noise: ArrayLike, sensitivity: float, batch_size: float, position: int
) -> Array:
    """ε_K(α, j₀, k)/α for k = 0 … K−1: what each epoch leaves in the final bound (Figure 1(b))."""
    c, gain, variance, k = _steps(lipschitz, step_size, noise, sensitivity, batch_size)
    index = _validate.index(k, position=position)
    epochs = len(gain) // k
    out = np.empty(epochs)
    for e in range(epochs):
        alone = np.zeros_like(gain)
        alone[e * k + index] = gain[e * k + index]
        out[e] = diffusion_rates(c, alone, variance, k, index)[-1]
    return out


def diffusion_mixture(
    lipschitz: float, step_size: float, noise: ArrayLike, sensitivity: float, batch_size: float, alpha: float
) -> float:
    """ε_K(α) of Theorem 4.6: (1/(α−1)) log Σ_{j₀} (b/n) e^{(α−1) ε_K(α, j₀)}, for a random, secret position."""
    order = _validate.positive(alpha=alpha)
    if not 1 < order <= 1e50:
        raise InvalidInput(f"alpha must lie between 1 and 1e50, got {alpha!r}")
    c, gain, variance, k = _steps(lipschitz, step_size, noise, sensitivity, batch_size)
    rates = np.array([diffusion_rates(c, gain, variance, k, j)[-1] for j in range(k)])
    exponents = (order - 1) * order * rates
    top = exponents.max()
    return float((top + math.log(np.exp(exponents - top).mean())) / (order - 1))


# -- DP-MBCD: what it prints for a run of ours ---------------------------------------------------------------


def published_epsilon(
    mechanism: Mechanism, delta: float, contractions: Sequence[ArrayLike] | None = None
) -> float | None:
    """ε that DP-MBCD's accounting prints for a run: rates of its blocks, each taken for itself, and added up (E6).

    Args:
        mechanism: with a hidden chain, or of all iterates with ``contractions``; full or cyclic batches.
        delta: δ.
        contractions: L_F that the paper claims for each block, a number or one for each step; where every iterate is
            seen the description does not hold it (``claims`` derives it for models of ours).

    Returns:
        The figure, or None if the paper says nothing about such a run.

    Raises:
        InvalidInput: if the contractions do not fit the blocks.
    """
    d, view, blocks = _validate.delta(delta), mechanism.view, mechanism.releases
    shape = (mechanism.steps, blocks)
    if not isinstance(mechanism.sampling, FullBatch | Cyclic):
        return None
    per_step = len(mechanism.ratio) == mechanism.steps
    ratio = np.broadcast_to(mechanism.ratio.to_array().reshape(mechanism.steps, 1 if per_step else -1), shape)
    if isinstance(view, LastIterate):
        lipschitz, noise = view.lipschitz.to_array()[:, None], view.noise_std.to_array()[:, None]
    elif isinstance(view, BlockSweeps):
        lipschitz, noise = np.broadcast_to(np.diag(view.coupling.values), shape), np.ones(shape)
    elif isinstance(view, AllIterates) and contractions is not None:
        lipschitz, noise = _claimed(contractions, shape), 1 / ratio  # the state's noise is η·σ/b
    else:
        return None
    if not noise.min() > 0:
        return None
    k = mechanism.sampling.n_batches if isinstance(mechanism.sampling, Cyclic) else 1
    rates = [_block_rate(lipschitz[:, i], ratio[:, i], noise[:, i], k) for i in range(blocks)]
    return _line_epsilon(math.fsum(rates), d)


def _claimed(contractions: Sequence[ArrayLike], shape: tuple[int, int]) -> Array:
    """L_F, (steps, blocks)."""
    steps, blocks = shape
    columns = [_validate.nonnegative_array("contractions", one) for one in contractions]
    if len(columns) != blocks or any(column.shape not in ((), (steps,)) for column in columns):
        raise InvalidInput(f"contractions must hold, for each of {blocks} blocks, a number or {steps} of them")
    return np.stack([np.broadcast_to(column, steps) for column in columns], axis=1)


def claims(plan: BlockPlan, network: Architecture | None = None) -> list[Array] | None:
    """L_F that DP-MBCD claims for the blocks of a fitted ``DPNMF`` (|1 − η|) or network (Lemma B.1).

    Where a step of a network is longer than its lemma allows, clipping shortens it, and the paper claims no more
    than 1.

    Args:
        plan: ``model.plan_``.
        network: ``model.network_``, for networks.

    Returns:
        One array for each block, or None: for updates by statistics the paper claims nothing.
    """
    out = []
    for i, block in enumerate(plan.blocks):
        if not isinstance(block.update, GradientStep):
            return None
        step, curvature = block.update.step_size, 1.0
        if network is not None:
            connection = network.connections[i]
            last = connection.target == network.depth and network.loss == "cross_entropy"
            curvature = (0.5 if last else 1.0) * network.design_norm(connection) ** 2
        if isinstance(step, Falling):
            eta = np.array([step.at(t, plan.steps) for t in range(plan.steps)])
            out.append(np.minimum(1.0, np.abs(1 - eta * curvature)))
        elif not callable(step):
            out.append(np.abs(1 - np.asarray(step * curvature)))
        else:
            return None
    return out


def _block_rate(lipschitz: Array, ratio: Array, noise: Array, n_batches: int) -> float:
    """R/α of one block for the worst batch."""
    c, gain = np.ascontiguousarray(lipschitz), np.ascontiguousarray(ratio**2 / 2)
    variance = np.ascontiguousarray((noise / noise.max()) ** 2)
    return max(float(diffusion_rates(c, gain, variance, n_batches, j)[-1]) for j in range(n_batches))


def _line_epsilon(rho: float, delta: float) -> float:
    """ε(δ) of a Rényi line α·ρ: the conversion of Canonne, Kamath, Steinke (2020), minimised over α."""
    if rho == 0 or not rho < math.inf:
        return 0.0 if rho == 0 else math.inf
    a = 1 + np.geomspace(1e-4, 1e6, 4000)
    with np.errstate(divide="ignore"):
        values = a * rho + np.log1p(-1 / a) - (math.log(delta) + np.log(a)) / (a - 1)
    return max(0.0, float(values.min()))


# -- NoisyCGD -----------------------------------------------------------------------------------------------


def theorem_2_8_mu(ratio: float, contraction: float, n_batches: int, epochs: int) -> float:
    """Theorem 2.8 of the convex ReLU paper (Bok et al. 2024, Theorem 4.5), with ratio = L/(bσ) and 0 < c < 1.

    μ = (L/(bσ)) √(1 + c^{2k−2} (1−c²)/(1−c^k)² · (1−c^{k(E−1)})/(1+c^{k(E−1)})).

    Args:
        ratio: L/(bσ); in units of the clip on the sum, 2/σ under replace-one.
        contraction: c.
        n_batches: k.
        epochs: E.

    Returns:
        The GDP parameter.
    """
    c, k = contraction, n_batches
    log_c = math.log(c)
    one_minus = -math.expm1(k * log_c)
    late = -math.expm1(k * (epochs - 1) * log_c) / (1 + math.exp(k * (epochs - 1) * log_c))
    return ratio * math.sqrt(1 + math.exp((2 * k - 2) * log_c) * -math.expm1(2 * log_c) / one_minus**2 * late)
