"""The published diffusion bound of paper 000 (Corollary 4.5 with Lemma C.3), iterated directly.

Its closed form, eq. (9), has index errors (errata E7), so the recursion is iterated. Per step with Lipschitz constant
L and noise variance s² (= 2η·o in the paper), v the inverse log-Sobolev constant of the state and R the Rényi
divergence per unit of α:

    the batch holds the record:   R ← R + d²/(2s²)            (d = η S_g/b, i.e. ηS_g²/(4b²o))
    it does not:                  R ← R · L²v/(L²v + s²)
    always:                       v ← L²v + s²               (v = 0 at the start)

It bounds the last iterate of *one* block whose step is L-Lipschitz; the prox is 1-Lipschitz and changes nothing
(errata E8). For several blocks the paper adds such bounds up, which is false (errata E6): there it is a figure for
comparison, never a certificate. Our last-iterate bound is never larger.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.accounting.curve import Profile, delta_of
from tacit.accounting.last_iterate import LastIterateMinorant
from tacit.accounting.theorem import ChainTheorem, Gap, fixed_membership
from tacit.errors import InvalidInput
from tacit.kernels.diffusion import diffusion_rates
from tacit.mechanism import (
    AllIterates,
    BlockSweeps,
    Cyclic,
    FullBatch,
    LastIterate,
    Mechanism,
    Plan,
)

__all__ = [
    "PublishedDiffusion",
    "published_diffusion_epochs",
    "published_diffusion_mixture",
    "published_diffusion_rdp",
    "published_line",
]

Array = NDArray[np.float64]


def _published(
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


def published_diffusion_rdp(
    lipschitz: float,
    step_size: float,
    noise: ArrayLike,
    sensitivity: float,
    batch_size: float,
    position: int,
) -> float:
    """ε_K(α, j₀)/α: the published Rényi bound of one block, per unit of α.

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
    c, gain, variance, k = _published(lipschitz, step_size, noise, sensitivity, batch_size)
    index = _validate.index(k, position=position)
    return float(diffusion_rates(c, gain, variance, k, index)[-1])


def published_diffusion_epochs(
    lipschitz: float,
    step_size: float,
    noise: ArrayLike,
    sensitivity: float,
    batch_size: float,
    position: int,
) -> Array:
    """ε_K(α, j₀, k)/α for k = 0 … K−1: what each epoch leaves in the final bound (Figure 1(b) of the paper)."""
    c, gain, variance, k = _published(lipschitz, step_size, noise, sensitivity, batch_size)
    index = _validate.index(k, position=position)
    epochs = len(gain) // k
    out = np.empty(epochs)
    for e in range(epochs):
        alone = np.zeros_like(gain)
        alone[e * k + index] = gain[e * k + index]
        out[e] = diffusion_rates(c, alone, variance, k, index)[-1]
    return out


def published_diffusion_mixture(
    lipschitz: float, step_size: float, noise: ArrayLike, sensitivity: float, batch_size: float, alpha: float
) -> float:
    """ε_K(α) of Theorem 4.6: (1/(α−1)) log Σ_{j₀} (b/n) e^{(α−1) ε_K(α, j₀)}, for a random, secret position."""
    order = _validate.positive(alpha=alpha)
    if not 1 < order <= 1e50:
        raise InvalidInput(f"alpha must lie between 1 and 1e50, got {alpha!r}")
    c, gain, variance, k = _published(lipschitz, step_size, noise, sensitivity, batch_size)
    rates = np.array([diffusion_rates(c, gain, variance, k, j)[-1] for j in range(k)])
    exponents = (order - 1) * order * rates
    top = exponents.max()
    return float((top + math.log(np.exp(exponents - top).mean())) / (order - 1))


class PublishedDiffusion(ChainTheorem):
    """Corollary 4.5 of paper 000, for one block (module docstring).

    Formal guarantee: the last iterate has Rényi divergence at most α·R for every α > 1, for the worst batch;
    converted to (ε, δ) by minimising over α.

    Assumptions: one block; the step's map is Lipschitz; the start is a point.
    """

    id: ClassVar[str] = "published-diffusion"
    name: ClassVar[str] = "published diffusion recursion (one block)"
    reference: ClassVar[str] = "paper 000, Corollary 4.5 with Lemma C.3, iterated; errata E6–E9"
    by_default: ClassVar[bool] = False  # never smaller than our own last-iterate bound: a figure for comparison

    def relations(self, mechanism: Mechanism) -> list[Gap]:
        """Every step needs noise, and batches of fixed membership a public n."""
        view = mechanism.view
        assert isinstance(view, LastIterate)
        if view.noise_std.min == 0:
            return [Gap("view.noise_std", "the recursion needs noise at every step", "add noise")]
        return fixed_membership(mechanism)

    def rate(self, mechanism: Mechanism) -> float:
        """R/α for the worst batch."""
        view = mechanism.view
        assert isinstance(view, LastIterate)
        k = mechanism.sampling.n_batches if isinstance(mechanism.sampling, Cyclic) else 1
        return _block_rate(view.lipschitz.to_array(), mechanism.ratio.to_array(), view.noise_std.to_array(), k)

    def curve(self, mechanism: Mechanism) -> Profile:
        """The Rényi line α·R as a profile."""
        rho = self.rate(mechanism)
        return Profile(lambda e: delta_of(lambda d: _line_epsilon(rho, d), e), lambda d: _line_epsilon(rho, d))

    def examples(self, plain: Mechanism) -> tuple[Mechanism, ...]:
        """Parts for the contract tests."""
        return LastIterateMinorant().examples(plain)


def published_line(plan: Plan, delta: float) -> float | None:
    """ε that the paper's accounting would print for the hidden chains of a plan: rates summed over blocks and parts.

    Args:
        plan: any plan.
        delta: δ.

    Returns:
        The figure (no guarantee), or None if no part has a hidden chain.
    """
    rates = [rate for part in plan if isinstance(part, Mechanism) for rate in _published_rates(part)]
    return _line_epsilon(math.fsum(rates), delta) if rates else None


def _published_rates(mechanism: Mechanism) -> list[float]:
    """One rate per block, each block's chain taken for itself: the step that errata E6 shows to be false."""
    view = mechanism.view
    if isinstance(view, LastIterate) and not PublishedDiffusion().gaps(mechanism):
        return [PublishedDiffusion().rate(mechanism)]
    if not isinstance(mechanism.sampling, FullBatch | Cyclic):
        return []
    shape = (mechanism.steps, mechanism.releases)
    if isinstance(view, BlockSweeps):
        lipschitz, noise = np.broadcast_to(np.diag(view.coupling.values), shape), np.ones(shape)
    elif isinstance(view, AllIterates) and view.claimed is not None:
        lipschitz = view.claimed.lipschitz.to_array().reshape(shape)
        noise = view.claimed.noise_std.to_array().reshape(shape)
    else:
        return []
    k = mechanism.sampling.n_batches if isinstance(mechanism.sampling, Cyclic) else 1
    per_step = len(mechanism.ratio) == mechanism.steps
    ratio = np.broadcast_to(mechanism.ratio.to_array().reshape(mechanism.steps, 1 if per_step else -1), shape)
    return [_block_rate(lipschitz[:, i], ratio[:, i], noise[:, i], k) for i in range(mechanism.releases)]


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
