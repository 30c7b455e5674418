"""The last iterate of noisy cyclic descent: μ for a record in each batch, the worst of them, and their average.

``tacit.accounting.last_iterate`` states the theorem.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.accounting.gdp import gdp_delta
from tacit.errors import InvalidInput
from tacit.kernels import minorant
from tacit.mechanism import LastIterate
from tacit.mechanism.frozen import MAX_STEPS

__all__ = ["noisy_cyclic_delta", "noisy_cyclic_mu", "position_mus", "rounded_mus"]

Array = NDArray[np.float64]
MAX_INCREMENTS = 2**21
"""Steps × batches of a chain on a lattice that are looked at one by one: a tenth of a second."""


def _per_step(name: str, value: ArrayLike, k: int, epochs: int) -> Array:
    """One value per step, from a number, one per batch, or one per step."""
    out = _validate.nonnegative_array(name, value).ravel()
    if out.size not in (1, k, k * epochs):
        raise InvalidInput(f"{name} has {out.size} values: give one, one per batch ({k}), or one per step")
    return np.tile(out, k * epochs // out.size)


def position_mus(c: Array, ratio: Array, s: Array, k: int) -> Array:
    """μ for a record in each batch; a step without noise has no shift either (it is stated relative to the noise)."""
    log_c = minorant.log_products(c)
    noisy = (s > 0) & np.isfinite(log_c)
    scale = np.where(noisy, log_c + np.log(np.where(s > 0, s, 1.0)), 0.0)
    energies = minorant.cyclic_energies(noisy.astype(float), np.where(noisy, ratio, 0.0), scale, k)
    if np.isnan(energies).any():
        raise InvalidInput("the chain's numbers leave the range of floats: rescale ratio and noise_std")
    return np.asarray(np.sqrt(energies))


def rounded_mus(view: LastIterate, ratio: Array, k: int) -> Array:
    """μ for a record in each batch of a chain on a lattice.

    Of very many steps and batches an upper bound, in time that does not grow with their product: rounding may be paid
    for at once, so that shifts a_k of the chain of reals become a_k + e_k, and norms of sums are at most sums of norms.

    Returns:
        One μ per batch.

    Raises:
        InvalidInput: if the numbers leave the range of floats.
    """
    c, s, extra = view.lipschitz.to_array(), view.noise_std.to_array(), view.rounding_shift()
    if len(s) * k > MAX_INCREMENTS and s.min() > 0:
        return position_mus(c, ratio, s, k) + float(np.linalg.norm(extra / s))
    energies = minorant.rounded_energies(ratio * s, extra, s, minorant.log_products(c), k)
    if np.isnan(energies).any():
        raise InvalidInput("the chain's numbers leave the range of floats: rescale ratio and noise_std")
    return np.asarray(np.sqrt(energies))


def _positions(n_batches: int, epochs: int, contraction: ArrayLike, ratio: ArrayLike, noise_std: ArrayLike) -> Array:
    """μ for a record in each batch."""
    k = _validate.positive_int(n_batches=n_batches)
    E = _validate.positive_int(epochs=epochs)
    if k * E > MAX_STEPS:
        raise InvalidInput(f"{k} batches × {E} epochs are too many steps: stay below {MAX_STEPS:.0e}")
    c = _per_step("contraction", contraction, k, E)
    s, d = _per_step("noise_std", noise_std, k, E), _per_step("ratio", ratio, k, E)
    if ((s == 0) & (d > 0)).any():
        raise InvalidInput("noise_std is 0 at a step whose ratio is positive: without noise there is no such ratio")
    return position_mus(c, d, s, k)


def noisy_cyclic_mu(
    n_batches: int,
    epochs: int,
    contraction: ArrayLike,
    ratio: ArrayLike,
    *,
    position: int | str = "worst",
    noise_std: ArrayLike = 1.0,
) -> float:
    """μ of the last iterate of noisy cyclic gradient descent.

    Args:
        n_batches: k, the number of disjoint batches.
        epochs: E, how often all of them are visited.
        contraction: c of a step: one value, one per batch, or one per step.
        ratio: shift/noise_std of a step that reads the record, likewise.
        position: the record's batch (0 … k−1), or "worst".
        noise_std: the proportions of s over the steps (an uneven last batch has its own), likewise; a step with 0 is
            taken to read nothing, its shift being ratio × noise_std.

    Returns:
        The GDP parameter.

    Raises:
        InvalidInput: if an argument is out of range.

    >>> round(noisy_cyclic_mu(60, 400, 0.999946, 2 / 15), 6)
    0.34865
    """
    mus = _positions(n_batches, epochs, contraction, ratio, noise_std)
    if isinstance(position, str):
        _validate.one_of(("worst",), position=position)
        return float(mus.max())
    return float(mus[_validate.index(len(mus), position=position)])


def noisy_cyclic_delta(
    n_batches: int,
    epochs: int,
    contraction: ArrayLike,
    ratio: ArrayLike,
    epsilon: ArrayLike,
    *,
    position: int | str = "average",
    noise_std: ArrayLike = 1.0,
    weights: ArrayLike | None = None,
) -> float | Array:
    """δ(ε) of the last iterate of noisy cyclic gradient descent.

    Args:
        n_batches: k, the number of disjoint batches.
        epochs: E.
        contraction: c of a step: one value, one per batch, or one per step.
        ratio: shift/noise_std of a visit, likewise.
        epsilon: ε, a number or an array.
        position: "average" (the partition is random, secret and fresh), "worst", or a batch number.
        noise_std: the proportions of s over the steps, likewise.
        weights: the share of the records in each batch (equal if omitted), for the average.

    Returns:
        δ, of the shape of ``epsilon``.

    Raises:
        InvalidInput: if an argument is out of range.
    """
    if not (isinstance(position, str) and position == "average"):
        mu = noisy_cyclic_mu(n_batches, epochs, contraction, ratio, position=position, noise_std=noise_std)
        return gdp_delta(mu, epsilon)
    mus = _positions(n_batches, epochs, contraction, ratio, noise_std)
    equal = np.full(len(mus), 1 / len(mus))
    w = equal if weights is None else _validate.nonnegative_array("weights", weights).ravel()
    if w.shape != mus.shape or abs(w.sum() - 1) > 1e-9:
        raise InvalidInput("weights must hold one non-negative share per batch and sum to 1")
    e = _validate.real_array("epsilon", epsilon)
    values = w @ np.asarray(gdp_delta(mus[:, None], e.ravel()[None, :]))
    return float(values[0]) if e.shape == () else np.asarray(values.reshape(e.shape))
