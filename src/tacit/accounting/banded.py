"""Correlated noise: banded strategies with cyclic Poisson sampling, and any C without amplification.

The mechanism releases C·G + Z, where row t of G is the sum over the batch of step t, C is lower-triangular and public
and Z is Gaussian (equivalently, noise C⁻¹Z on the sums). A record that takes part in the steps π with contributions
g_k of norm at most 1 moves C·G by Σ_{k∈π} C[:,k] g_kᵀ, whose squared norm is Σ_{k,l∈π} (CᵀC)_kl ⟨g_k, g_l⟩ ≤
Σ_{k,l∈π} |CᵀC|_kl. Gaussian noise makes the adaptive stream as private as the one-shot release (Denisov et al. 2022,
Theorem 2.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.accounting.curve import Curve, Gaussian
from tacit.accounting.poisson import sampled_curve
from tacit.accounting.theorem import ANY_VIEW, EVERY_ITERATE, Gap, Theorem, fixed_membership
from tacit.errors import InvalidInput
from tacit.mechanism import (
    Adjacency,
    CorrelatedNoise,
    Cyclic,
    CyclicPoisson,
    FullBatch,
    Groups,
    Independent,
    Mechanism,
    Schedule,
    Separated,
)

__all__ = ["BandedCyclicPoisson", "CorrelatedComposition", "participation_sensitivity"]

Array = NDArray[np.float64]
_MAX_DENSE = 6000


# -- sensitivity ------------------------------------------------------------------------------------------


def _gram(noise: CorrelatedNoise, steps: int) -> Array:
    """|CᵀC| by bands: entry (j, i) is |⟨C[:,j], C[:,j+i]⟩|, i < b."""
    columns = noise.columns(steps)
    b = min(columns.shape[1], steps)
    out = np.zeros((steps, b))
    for i in range(b):
        overlap = columns[: steps - i, i:] * columns[i:, : columns.shape[1] - i]
        out[: steps - i, i] = np.abs(overlap.sum(axis=1))
    return out


def participation_sensitivity(noise: CorrelatedNoise, steps: int, sampling: object) -> float:
    """The norm by which one record of unit contributions moves C·G: an upper bound, exact if CᵀC ≥ 0.

    Args:
        noise: the strategy.
        steps: T.
        sampling: FullBatch (every step), Cyclic (every k-th step), or Separated (any pattern with gaps ≥ b).

    Returns:
        max over patterns π of √(Σ_{k,l∈π} |CᵀC|_kl); for Separated an upper bound on it.

    Raises:
        InvalidInput: if the sampling has no fixed participation pattern.
    """
    G = _gram(noise, steps)
    if type(sampling) not in _PATTERNS:
        raise InvalidInput(f"{type(sampling).__name__} has no participation pattern that C could be held against")
    return math.sqrt(_PATTERNS[type(sampling)](G, sampling))


def _periodic(G: Array, sampling: Any) -> float:
    """The largest Σ |G_kl| over the steps j, j + k, … of any j."""
    return max(_pattern(G, j, sampling.period) for j in range(sampling.period))


def _pattern(G: Array, first: int, period: int) -> float:
    total = G[first::period, 0].sum()
    for gap in range(period, G.shape[1], period):
        total += 2 * G[first : len(G) - gap : period, gap].sum()
    return float(total)


def _best_visits(value: Array, separation: int, visits: int) -> float:
    """The largest sum of ``value`` over at most ``visits`` positions that lie ``separation`` or more apart."""
    best = np.zeros(len(value) + 1)  # best over the first i positions
    for _ in range(visits):
        # position p may follow positions up to p − separation, i.e. the first p − separation + 1 of them
        previous = np.concatenate([np.zeros(min(separation - 1, len(value))), best])[: len(value)]
        new = np.maximum.accumulate(np.concatenate([[0.0], value + previous]))
        if np.array_equal(new, best):
            break
        best = new
    return float(best[-1])


def _separated(G: Array, separation: int, visits: int) -> float:
    """Σ_{k∈π} max_{π∋k} Σ_{l∈π} |G_kl|, maximised over π: each row may use its own worst partners."""
    steps, b = G.shape
    rows = G[:, 0].copy()
    if b > separation and visits > 1:
        if steps > _MAX_DENSE:
            raise InvalidInput(
                f"separated participation over {steps} steps with {b} bands is too large: use bands ≤ separation"
            )
        for k in range(steps):
            after = G[k, separation:]
            back = np.array([G[k - i, i] for i in range(separation, min(b, k + 1))])
            rows[k] += _best_visits(after, separation, visits - 1) + _best_visits(back, separation, visits - 1)
    return _best_visits(rows, separation, visits)


_PATTERNS: Mapping[type[Any], Callable[[Array, Any], float]] = {
    FullBatch: _periodic,
    Cyclic: _periodic,
    Separated: lambda G, sampling: _separated(G, sampling.min_separation, sampling.max_participations),
}
"""max over patterns π of Σ_{k,l∈π} |CᵀC|_kl, by sampling: exactly these are covered."""


# -- theorems ---------------------------------------------------------------------------------------------


class CorrelatedComposition(Theorem):
    """Any public lower-triangular C, without amplification by sampling.

    Formal guarantee: all releases together are μ-GDP with μ = ratio × the participation sensitivity of C.

    Assumptions: C is public; every record takes part only in the stated pattern of steps.
    """

    id: ClassVar[str] = "factorised"
    name: ClassVar[str] = "correlated noise, sensitivity from the Gram matrix"
    reference: ClassVar[str] = "Denisov et al. (2022), Theorem 2.1; Choquette-Choo et al. (2023), Theorem 2"
    view: ClassVar[str] = EVERY_ITERATE
    covers: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "adjacency": tuple(Adjacency),
        "sampling": tuple(_PATTERNS),
        "noise": (CorrelatedNoise,),
        "view": ANY_VIEW,
    }

    def relations(self, mechanism: Mechanism) -> list[Gap]:
        """One stream, one ratio, and a C of the right size."""
        return _one_stream(mechanism) or fixed_membership(mechanism)

    def curve(self, mechanism: Mechanism) -> Gaussian:
        """Gaussian with ratio × sensitivity."""
        assert isinstance(mechanism.noise, CorrelatedNoise)
        move = participation_sensitivity(mechanism.noise, mechanism.steps, mechanism.sampling)
        return Gaussian(mechanism.ratio.max * move)

    def examples(self, plain: Mechanism) -> tuple[Mechanism, ...]:
        """Parts for the contract tests."""
        ways = (FullBatch(), Cyclic(3), Separated(3, 4))
        return tuple(replace(plain, sampling=way, noise=_TOEPLITZ) for way in ways)


_TOEPLITZ = CorrelatedNoise.toeplitz([0.8, 0.6])


def _one_stream(mechanism: Mechanism) -> list[Gap]:
    noise = mechanism.noise
    assert isinstance(noise, CorrelatedNoise)
    if mechanism.releases != 1:
        return [Gap("releases", "one stream of releases per strategy is covered", "describe each stream by itself")]
    if not mechanism.ratio.is_constant:
        return [Gap("ratio", "the strategy already schedules the noise", "fold the schedule into C")]
    if noise.bands.values.shape[0] not in (1, mechanism.steps):
        return [
            Gap(
                "noise",
                f"C has {noise.bands.values.shape[0]} columns for {mechanism.steps} steps",
                "resize C",
            )
        ]
    return []


class BandedCyclicPoisson(Theorem):
    """b bands, b groups that take turns, Poisson sampling within the group on turn.

    A record of group j can be read at the steps j, j+b, … only, where the columns of a b-banded C do not overlap: its
    effect splits into ⌈T/b⌉ Poisson-sampled Gaussian releases, each with ratio (largest column norm) × ratio. (Within
    the b rows of one column the inclusion is drawn once: one batch with several releases, see ``poisson``.)

    Formal guarantee: all releases together satisfy (ε, δ)-DP with the value of those ⌈T/b⌉ releases under the relation.

    Assumptions: at most as many bands as groups; under add/remove every record draws its group independently and the
    rate comes from a nominal public n; independent noise is the case C = I, b = 1 band.
    """

    id: ClassVar[str] = "banded-cyclic-poisson"
    name: ClassVar[str] = "banded strategy with cyclic Poisson sampling"
    reference: ClassVar[str] = "Choquette-Choo et al. (2023), (Amplified) Banded Matrix Factorization, Theorem 4"
    view: ClassVar[str] = EVERY_ITERATE
    covers: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "adjacency": tuple(Adjacency),
        "sampling": (CyclicPoisson,),
        "noise": (CorrelatedNoise, Independent),
        "view": ANY_VIEW,
    }

    def relations(self, mechanism: Mechanism) -> list[Gap]:
        """Bands ≤ groups; fixed groups need a public n."""
        sampling = mechanism.sampling
        assert isinstance(sampling, CyclicPoisson)
        if mechanism.adjacency is Adjacency.ADD_REMOVE and sampling.groups is Groups.FIXED:
            reason = "under add/remove a record more moves other records between groups of fixed sizes"
            return [Gap("sampling.groups", reason, "let each record draw its group independently, or use zero-out")]
        if not isinstance(mechanism.noise, CorrelatedNoise):
            return []
        if mechanism.noise.n_bands > sampling.n_groups:
            reason = f"{mechanism.noise.n_bands} bands overlap with {sampling.n_groups} groups"
            return [Gap("noise", reason, "use at least as many groups as bands")]
        return _one_stream(mechanism)

    def curve(self, mechanism: Mechanism) -> Curve:
        """⌈T/b⌉ Poisson-sampled Gaussian releases."""
        sampling, noise = mechanism.sampling, mechanism.noise
        assert isinstance(sampling, CyclicPoisson)
        b = sampling.n_groups
        if isinstance(noise, CorrelatedNoise):
            norms = np.sqrt((noise.columns(mechanism.steps) ** 2).sum(axis=1))
            ratio = Schedule.constant(mechanism.ratio.max * float(norms.max()), math.ceil(mechanism.steps / b))
        elif mechanism.step_ratio.is_constant:
            ratio = Schedule.constant(mechanism.step_ratio.max, math.ceil(mechanism.steps / b))
        else:
            values = mechanism.step_ratio.to_array()
            ratio = Schedule(np.maximum.reduceat(values, np.arange(0, len(values), b)))
        return sampled_curve(mechanism.adjacency, ratio, sampling.rate)

    def examples(self, plain: Mechanism) -> tuple[Mechanism, ...]:
        """Parts for the contract tests."""
        pairs = ((Groups.FIXED, _TOEPLITZ), (Groups.INDEPENDENT, _TOEPLITZ), (Groups.FIXED, Independent()))
        return tuple(replace(plain, sampling=CyclicPoisson(3, 0.2, groups), noise=noise) for groups, noise in pairs)


def banded_rate(n: int, batch_size: int, bands: int) -> float:
    """Q = B·b/n, the sampling rate within a group.

    Args:
        n: the number of records.
        batch_size: the expected batch B.
        bands: the number of groups b.

    Returns:
        The rate.

    Raises:
        InvalidInput: if a group would be smaller than its expected batch.
    """
    n, B = _validate.positive_int(n=n), _validate.positive_int(batch_size=batch_size)
    b = _validate.positive_int(bands=bands)
    if B * b > n:
        raise InvalidInput(f"{b} groups of {n} records cannot give batches of {B}: lower bands or batch_size")
    return B * b / n
