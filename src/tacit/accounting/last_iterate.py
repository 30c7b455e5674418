"""The last iterate of a noisy contraction (hidden state): the optimal bound, by a convex minorant.

For x_k = φ_k(x_{k−1}) + N(0, s_k² I) against x′_k = φ′_k(x′_{k−1}) + N(0, s_k² I), started at the same point, with
φ_k (or φ′_k) c_k-Lipschitz and sup‖φ_k − φ′_k‖ ≤ d_k, put C_k = Π_{i>k} c_i, W_k = Σ_{i≤k} C_i² s_i², S_k = Σ_{i≤k}
C_i d_i. Then x_t is μ-GDP with

    μ² = Σ (ΔS)²/ΔW over the edges of the greatest convex minorant of (0,0), (W_1,S_1), …, (W_t,S_t).

*Why*: shifted interpolation (Bok, Su, Altschuler 2024, Theorem 3.1) allows any shifts a_k with z_0 = 0,
z_k = c_k z_{k−1} + d_k − a_k ≥ 0 and z_t = 0, at cost Σ a_k²/s_k². With b_k = C_k a_k this asks for the path of least
energy from (0, 0) to (W_t, S_t) that never rises above the points: a taut string, which is the minorant. It is
optimal: linear maps attain it. It contains composition (never smaller) and Theorem 2.8 of convex ReLU (equal for
two or more batches, smaller for one).

*Bounded domain* of diameter D (projection at every step): the chain may instead start at any τ with z_τ = D,
i.e. at the point (W_τ, S_τ − C_τ D); the smallest energy counts.

*Cyclic batches*: a record in batch j shifts only the steps j, j+k, …; the worst position is the maximum. If the
partition is random, secret and fresh for each fit, δ(ε) may be averaged over positions (joint convexity of the
hockey-stick divergence); the average is not Gaussian.

*Exact arithmetic*: the chain X_k = g⌊φ̂_k(X_{k−1})/g⌉ + g⌊s_k Z_k/g⌉ moves on a lattice (docs/theorems.md). With y_k =
g⌊φ̂_k(X_{k−1})/g⌉ + s_k Z_k, X_k = g⌊y_k/g⌉, and of the map from y_{k−1} to the mean of y_k the proof uses only that it
takes points at a distance z to points at a distance of at most c_k z + d_k. With ‖φ̂_k − φ_k‖ ≤ ρ_k that holds for
d_k + (1 + c_k)g√d + 2ρ_k, at *every* step, also one that does not read the record: distances below g may be rounded up.
(Before the record's first visit both chains are one if sums are the same to the bit; that is not relied on.)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.accounting.curve import Gaussian, Profile
from tacit.accounting.cyclic import position_mus, rounded_mus
from tacit.accounting.gdp import gdp_delta
from tacit.accounting.theorem import Assumption, ChainTheorem, Gap, fixed_membership
from tacit.errors import InvalidInput
from tacit.kernels import minorant
from tacit.mechanism import (
    Arithmetic,
    Cyclic,
    Evidence,
    FullBatch,
    LastIterate,
    Mechanism,
    Partition,
    Rounding,
    Schedule,
)

__all__ = [
    "LastIterateAveraged",
    "LastIterateMinorant",
    "OptimalShifts",
    "last_iterate_mu",
    "last_iterate_shifts",
]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class OptimalShifts:
    """The optimal interpolation, for plots.

    Attributes:
        mu: the GDP parameter.
        shifts: a_k, in the space of x.
        distances: z_k, the distance that remains after step k.
        start: steps before it are forgotten thanks to the bounded domain (0: none).
    """

    mu: float
    shifts: Array
    distances: Array
    start: int


# -- numbers --------------------------------------------------------------------------------------------


def _chain(lipschitz: ArrayLike, shift: ArrayLike, noise_std: ArrayLike) -> tuple[Array, Array, Array]:
    """c, d, s as float arrays of one length, validated."""
    named = {"lipschitz": lipschitz, "shift": shift, "noise_std": noise_std}
    arrays = {name: np.atleast_1d(_validate.nonnegative_array(name, value)) for name, value in named.items()}
    for name, values in arrays.items():
        if values.ndim > 1:
            raise InvalidInput(f"{name} must be a number or a one-dimensional array, got shape {values.shape}")
    try:
        c, d, s = np.broadcast_arrays(*arrays.values())
    except ValueError:
        sizes = ", ".join(f"{name} {a.size}" for name, a in arrays.items())
        raise InvalidInput(f"the lengths differ ({sizes}): give one value, or one per step") from None
    return np.ascontiguousarray(c), np.ascontiguousarray(d), np.ascontiguousarray(s)


def _energy(d: Array, s: Array, log_c: Array) -> float:
    """μ² of a chain.

    Args:
        d: shifts.
        s: noise.
        log_c: logarithms of the products of later Lipschitz constants.

    Returns:
        The energy of the minorant.

    Raises:
        InvalidInput: if the numbers leave the range of floats (nothing is promised then).
    """
    energy = float(minorant.pool(*minorant.increments(d, s, log_c))[0])
    if math.isnan(energy):
        raise InvalidInput("the chain's numbers leave the range of floats: rescale shift and noise_std")
    return energy


def _restart(c: Array, d: Array, s: Array, log_c: Array, diameter: float) -> tuple[float, int]:
    """(energy, τ) of the best start at distance ``diameter``: searched fast, evaluated exactly."""
    scale = max(float(d.max()), float(s.max()), diameter)
    approximate = minorant.bounded_starts(d / scale, s / scale, log_c, diameter / scale)
    best = (math.inf, 0)
    for tau in np.argsort(approximate)[:3]:
        if tau == 0 or not math.isfinite(approximate[tau]):
            continue
        energy = _energy(*_from(c, d, s, log_c, diameter, int(tau)))
        best = min(best, (energy, int(tau)))
    return best


def _from(c: Array, d: Array, s: Array, log_c: Array, diameter: float, tau: int) -> tuple[Array, Array, Array]:
    """The chain after step τ, whose first map also carries the distance D."""
    rest = d[tau:].copy()
    rest[0] += c[tau] * diameter
    return rest, s[tau:].copy(), log_c[tau:].copy()


def last_iterate_shifts(
    lipschitz: ArrayLike, shift: ArrayLike, noise_std: ArrayLike, *, diameter: float | None = None
) -> OptimalShifts:
    """The optimal bound together with the shifts that attain it.

    Args:
        lipschitz: c_k per step (or one value).
        shift: d_k per step.
        noise_std: s_k per step.
        diameter: of a bounded domain, or None.

    Returns:
        μ, the shifts and the remaining distances.

    Raises:
        InvalidInput: if an argument is negative, NaN, infinite, empty or of the wrong shape.
    """
    c, d, s = _chain(lipschitz, shift, noise_std)
    log_c = minorant.log_products(c)
    energy, start = _energy(d, s, log_c), 0
    D = None if diameter is None else _validate.positive(diameter=diameter)
    if D is not None:
        bounded, tau = _restart(c, d, s, log_c, D)
        if bounded < energy:
            energy, start = bounded, tau
    first, noise, logs = _from(c, d, s, log_c, D, start) if D is not None and start else (d, s, log_c)
    _, ends, slopes, scales = minorant.pool(*minorant.increments(first, noise, logs))
    a = np.zeros_like(d)
    begin = start
    for end, slope, level in zip(ends, slopes, scales, strict=True):
        span = slice(begin, start + int(end) + 1)
        with np.errstate(divide="ignore"):
            a[span] = slope * np.exp(log_c[span] + 2 * np.log(s[span]) - level)
        begin = start + int(end) + 1
    z = np.zeros(len(d) + 1)
    z[start] = D if start and D is not None else 0.0
    for k in range(start, len(d)):
        z[k + 1] = max(c[k] * z[k] + d[k] - a[k], 0.0)
    return OptimalShifts(math.sqrt(energy), a, z[1:], start)


def last_iterate_mu(
    lipschitz: ArrayLike, shift: ArrayLike, noise_std: ArrayLike, *, diameter: float | None = None
) -> float:
    """The smallest μ such that the last iterate is μ-GDP, given (c, d, s) alone.

    Args:
        lipschitz: c_k ≥ 0 per step (or one value); may exceed 1.
        shift: d_k ≥ 0 per step: how far the map itself moves between neighbours.
        noise_std: s_k ≥ 0 per step.
        diameter: of a bounded domain that every step projects onto, or None.

    Returns:
        μ; ∞ if some shift is never covered by noise.

    Raises:
        InvalidInput: if an argument is negative, NaN, infinite, empty or of the wrong shape.

    >>> round(last_iterate_mu([0.9] * 50, 1.0, 1.0), 6)
    4.336492
    """
    c, d, s = _chain(lipschitz, shift, noise_std)
    log_c = minorant.log_products(c)
    energy = _energy(d, s, log_c)
    if diameter is not None:
        energy = min(energy, _restart(c, d, s, log_c, _validate.positive(diameter=diameter))[0])
    return math.sqrt(energy)


# -- theorems -------------------------------------------------------------------------------------------


def _mechanism_positions(mechanism: Mechanism) -> Array:
    """μ of each position of the record (one for full batches)."""
    view = mechanism.view
    assert isinstance(view, LastIterate)
    c, s = view.lipschitz.to_array(), view.noise_std.to_array()
    ratio = mechanism.ratio.to_array()
    k = ChainTheorem.period(mechanism)
    if view.diameter is None:
        return position_mus(c, ratio, s, k) if view.rounding is None else rounded_mus(view, ratio, k)
    mus = np.empty(k)
    for j in range(k):
        visited = view.rounding_shift()
        visited[j::k] += ratio[j::k] * s[j::k]
        mus[j] = last_iterate_mu(c, visited, s, diameter=view.diameter)
    return mus


class LastIterateMinorant(ChainTheorem):
    """The last iterate of a chain whose whole state receives isotropic noise (module docstring).

    Formal guarantee: the last iterate, and nothing else of the run, is μ-GDP.

    Assumptions: Lipschitz constants that hold for every data set (λ only from a term that is really in the
    objective, in every coordinate); the start is public; no averaging, momentum, per-record state, checkpoints.
    """

    id: ClassVar[str] = "last-iterate"
    name: ClassVar[str] = "last iterate by the greatest convex minorant"
    reference: ClassVar[str] = "shifted interpolation, Bok, Su, Altschuler (2024), Theorem 3.1, with optimal shifts"

    def relations(self, mechanism: Mechanism) -> list[Gap]:
        """Batches of fixed membership need a public n, and a chain needs noise."""
        view = mechanism.view
        assert isinstance(view, LastIterate)
        if view.noise_std.max == 0:
            return [Gap("view.noise_std", "a chain without noise hides nothing", "add noise")]
        return fixed_membership(mechanism)

    def curve(self, mechanism: Mechanism) -> Gaussian:
        """Gaussian with the worst position's μ."""
        return Gaussian(float(_mechanism_positions(mechanism).max()))

    def examples(self, plain: Mechanism) -> tuple[Mechanism, ...]:
        """Parts for the contract tests."""
        rounding = Rounding(unit=2.0**-30, sizes=(4,), radius=100.0, error=Schedule.constant(1e-9, plain.steps))
        exact = replace(_example(plain.steps), rounding=rounding)
        return (
            *(replace(plain, sampling=way, view=_example(plain.steps)) for way in (FullBatch(), Cyclic(3))),
            replace(plain, sampling=Cyclic(3), view=exact, arithmetic=Arithmetic.EXACT),
        )


def _example(steps: int) -> LastIterate:
    return LastIterate(lipschitz=Schedule.constant(0.9, steps), noise_std=Schedule.constant(1.0, steps))


class LastIterateAveraged(LastIterateMinorant):
    """As the worst-case bound, with δ(ε) averaged over the batch that the record fell into.

    Formal guarantee: (ε, Σ_j w_j δ_j(ε))-DP, w_j the share of batch j, δ_j the bound for a record in batch j.

    Assumptions: the partition is uniformly random, secret, and drawn afresh for each fit.
    """

    id: ClassVar[str] = "last-iterate-averaged"
    name: ClassVar[str] = "last iterate, averaged over a secret random partition"
    reference: ClassVar[str] = (
        "shifted interpolation with optimal shifts, and joint convexity of the hockey-stick divergence"
    )

    def relations(self, mechanism: Mechanism) -> list[Gap]:
        """Only a secret, fresh partition may be averaged over."""
        if getattr(mechanism.sampling, "partition", None) is Partition.SECRET:
            return super().relations(mechanism)
        reason = "the batch of a record is not secret, so the worst one counts"
        return [Gap("sampling.partition", reason, "draw the partition afresh and keep it secret")]

    def curve(self, mechanism: Mechanism) -> Profile:  # type: ignore[override]
        """The weighted average of the positions' curves."""
        assert isinstance(mechanism.sampling, Cyclic)  # of FullBatch there is nothing to average over
        mus = _mechanism_positions(mechanism)
        given = mechanism.sampling.weights
        w = np.full(len(mus), 1 / len(mus)) if given is None else given.to_array()
        return Profile(lambda e: float(w @ np.asarray(gdp_delta(mus, e))))

    def assumptions(self, mechanism: Mechanism) -> tuple[Assumption, ...]:
        """Those of the worst-case bound, and the secret partition."""
        secret = Assumption("the partition into batches is random, secret and fresh", Evidence.ENFORCED)
        return (*super().assumptions(mechanism), secret)

    def examples(self, plain: Mechanism) -> tuple[Mechanism, ...]:
        """Parts for the contract tests."""
        return (replace(plain, sampling=Cyclic(3, Partition.SECRET), view=_example(plain.steps)),)
