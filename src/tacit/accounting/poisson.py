"""Poisson-sampled Gaussian releases, by privacy loss distributions.

The dominating pair of one step that releases sums with joint ratio Δ/σ on one Poisson batch, rate q, in units
of one record's clip (C = 1):

- add/remove and zero-out: (1−q)N(0, σ²) + qN(1, σ²) against N(0, σ²), in both directions;
- replace-one: (1−q)N(0, σ²) + qN(1, σ²) against (1−q)N(0, σ²) + qN(−1, σ²)  (Lebeda et al. 2024).

Steps compose adaptively as products of dominating pairs (Zhu, Dong, Wang 2022, Theorem 10).

**Several adaptive releases on one batch** are one release with ratio √(Σ r²). For replace-one: let L₁, L₂ be the
likelihood ratios of "the record / its replacement is in the batch" against "neither". Release by release they are
driven by drifts u, v with |u|, |v| ≤ r_k, dL₁ = L₁ u·dW, dL₂ = L₂ v·dW under the null. The terminal loss
((1−q)(1−e^ε) + q(L₁ − e^ε L₂))₊ is convex with ∂₁∂₂ ≤ 0. Under constant u = −v of norm r its expectation keeps
both signs at all times, so that control maximises ½|u|²L₁²V₁₁ + u·v L₁L₂V₁₂ + ½|v|²L₂²V₂₂ pointwise and is
optimal: no adaptive choice does worse than one Gaussian with opposite shifts of norm √(Σ r²). (Add/remove is the
case v = 0.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from tacit import _validate
from tacit.accounting.curve import Curve, Gaussian, Sampled
from tacit.accounting.theorem import ANY_VIEW, EVERY_ITERATE, Theorem
from tacit.mechanism import Adjacency, Independent, Mechanism, Poisson, Schedule

__all__ = ["PoissonGaussian", "poisson_epsilon", "sampled_curve"]

_MAX_LEVELS, _MAX_DISTINCT = 40, 400
"""Ratios that are told apart in a composition, and before it is decided which."""


def sampled_curve(adjacency: Adjacency, ratio: Schedule, rate: float) -> Curve:
    """The composition of one Poisson-sampled Gaussian per entry of ``ratio``.

    Many different ratios are rounded *up* to a few levels first: a larger ratio is a weaker promise.

    Args:
        adjacency: the relation.
        ratio: Δ/σ of each release.
        rate: q.

    Returns:
        Gaussian for q = 1 and for absurd ratios, else a composition of privacy loss distributions.
    """
    whole = Gaussian(ratio.sum_of_squares() ** 0.5)
    if rate == 1 or whole.mu < 1e-9 or ratio.max > 1e4:
        return whole  # exact, or (sampling can only help) valid where a grid of losses makes no sense
    rate = max(rate, 1e-9)  # reading the record more often is a weaker promise
    counts: Counter[float] = Counter()
    for value, count in zip(*_levels(ratio), strict=True):
        counts[float(value)] += int(count)
    if not counts:
        return Gaussian(0.0)
    return Sampled(adjacency, tuple((value, rate, counts[value]) for value in sorted(counts)))


def _levels(ratio: Schedule) -> tuple[Any, Any]:
    """Positive values and how often each occurs; of many, groups that are rounded up to their largest."""
    values, counts = (run[ratio.runs[0] > 0] for run in ratio.runs)
    found, where = np.unique(values, return_inverse=True)
    if len(found) <= _MAX_LEVELS:
        return values, counts
    if len(found) > _MAX_DISTINCT:  # to even steps of the logarithm first
        edges = np.geomspace(found[0], found[-1], _MAX_DISTINCT)
        edges[-1] = found[-1]
        found, where = np.unique(edges[np.searchsorted(edges, values, side="left")], return_inverse=True)
    return _grouped(found, np.bincount(where, counts, minlength=len(found)))


def _grouped(values: Any, counts: Any) -> tuple[Any, Any]:
    """At most ``_MAX_LEVELS`` groups of neighbours, rounded up, at the least Σ count·(group's largest² − value²).

    The squares add up in the Gaussian limit, so this is the rounding that costs least there. By dynamic programming:
    cost[k][j] of the first j values in k groups.

    Args:
        values: ascending, distinct.
        counts: of each.

    Returns:
        The largest value of each group, and how many it stands for.
    """
    m = len(values)
    many = np.concatenate([[0.0], np.cumsum(counts)])
    squares = np.concatenate([[0.0], np.cumsum(counts * values**2)])
    first, last = np.arange(m)[:, None], np.arange(1, m + 1)[None, :]
    one = (many[last] - many[first]) * values[last - 1] ** 2 - (squares[last] - squares[first])
    one[last <= first] = np.inf
    cost, cuts = one[0], []
    for _ in range(_MAX_LEVELS - 1):
        both = np.concatenate([[np.inf], cost[:-1]])[:, None] + one
        cuts.append(both.argmin(axis=0))
        cost = both.min(axis=0)
    ends, j = [m], m
    for cut in reversed(cuts):
        j = int(cut[j - 1])
        ends.append(j)
    starts = np.array([0, *sorted(e for e in ends[1:] if e > 0)])
    return values[np.append(starts[1:], m) - 1], np.add.reduceat(counts, starts)


class PoissonGaussian(Theorem):
    """Each step reads every record independently with probability q and releases Gaussian sums.

    Formal guarantee: the whole sequence of releases satisfies (ε, δ)-DP with the pessimistic value of the privacy
    loss distribution (module docstring).

    Assumptions: true Poisson sampling with a public rate (not shuffled, not of fixed size); the divisor of the sum
    is public (the expected, not the realised batch size); empty batches are noised, too.
    """

    id: ClassVar[str] = "poisson-gaussian"
    name: ClassVar[str] = "Poisson-sampled Gaussian (privacy loss distribution)"
    reference: ClassVar[str] = (
        "Zhu, Dong, Wang (2022), Theorem 10; Lebeda et al. (2024) for replace-one; Doroshenko et al. (2022)"
    )
    view: ClassVar[str] = EVERY_ITERATE
    covers: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "adjacency": tuple(Adjacency),
        "sampling": (Poisson,),
        "noise": (Independent,),
        "view": ANY_VIEW,
    }

    def curve(self, mechanism: Mechanism) -> Curve:
        """Pessimistic ε(δ) of the composed dominating pairs."""
        assert isinstance(mechanism.sampling, Poisson)
        return sampled_curve(mechanism.adjacency, mechanism.step_ratio, mechanism.sampling.rate)

    def examples(self, plain: Mechanism) -> tuple[Mechanism, ...]:
        """Parts for the contract tests."""
        return (replace(plain, sampling=Poisson(0.2)), replace(plain, sampling=Poisson(0.2), releases=2))


def poisson_epsilon(
    noise_multiplier: float, rate: float, steps: int, delta: float, *, adjacency: Adjacency | str
) -> float:
    """ε of ``steps`` Poisson-sampled Gaussian releases: DP-SGD's accountant.

    Args:
        noise_multiplier: σ/C, relative to one record's clip C under every relation.
        rate: the sampling probability.
        steps: the number of releases.
        delta: δ.
        adjacency: the relation.

    Returns:
        The pessimistic ε.

    >>> round(poisson_epsilon(15.0, 1000 / 60000, 24000, 1e-5, adjacency="replace-one"), 4)
    1.3174
    """
    relation = Adjacency.parse(adjacency)
    sigma = _validate.positive(noise_multiplier=noise_multiplier)
    ratio = Schedule.constant(relation.sum_factor / sigma, _validate.positive_int(steps=steps))
    curve = sampled_curve(relation, ratio, _validate.probability(rate=rate))
    return curve.epsilon(_validate.delta(delta))
