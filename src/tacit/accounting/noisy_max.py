"""Noisy choices as Gaussian releases: the exact trade-off of a bounded range, and the least μ above it.

Let P and Q be the laws of one choice on neighbours, with log P/Q in [t − η, t] for some t in [0, η]. No pair of such
laws is easier to tell apart than the two-point one, whose trade-off function is the polygon through (0, 1),

    (α_t, β_t) = ((e^{η−t} − 1)/(e^η − 1), (e^t − 1)/(e^η − 1)),

and (1, 0). Whatever t is, the polygon lies above the convex curve of all its corners,

    F_η(α) = (1 − α)/(1 + (e^η − 1)α):      logit(1 − F_η(α)) = logit(α) + η,

a logistic shift by η. So a choice is μ-GDP if Φ⁻¹(Λ(x + η)) − Φ⁻¹(Λ(x)) ≤ μ for all x, Λ the logistic function.
h = Φ⁻¹∘Λ is odd and concave on ℝ₊ (docs/theorems.md), hence its slope is even and falls away from 0, the difference is
largest at x = −η/2, and μ = 2h(η/2) = 2Φ⁻¹(Λ(η/2)) is the least that holds for all t.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from scipy.special import erfinv, expit, log_ndtr, ndtri, ndtri_exp

from tacit import _validate
from tacit.accounting.choices import is_feasible
from tacit.accounting.curve import Chosen, Gaussian
from tacit.accounting.theorem import ARITHMETIC, EVERY_ITERATE, PUBLIC_NUMBERS, Assumption, Gap, Theorem
from tacit.mechanism import Adjacency, Evidence, Mechanism, NoisyMax, Schedule

__all__ = ["NoisyMaxComposition", "bounded_range_mu", "bounded_range_of_mu"]

_ROUNDING = 1e-13
"""Relative: more than what scipy's functions may be off by."""
_LARGE = 4.0
"""η beyond which 1 − Λ(η/2) keeps more digits than Λ(η/2) − ½."""


def bounded_range_mu(bounded_range: float) -> float:
    """μ = 2Φ⁻¹(Λ(η/2)), rounded up: a choice of bounded range η is μ-GDP, and not for a smaller μ.

    Reference: Dong, Durfee, Rogers (2020), *Optimal differential privacy composition for exponential mechanisms*, for
    the two-point laws; docs/theorems.md for the rest.

    Args:
        bounded_range: η ≥ 0.

    Returns:
        μ < η·√(2π)/4 = .6267η.

    >>> round(bounded_range_mu(1.0), 6)
    0.623893
    """
    eta = _validate.nonnegative(bounded_range=bounded_range)
    if eta < _LARGE:
        mu = 2 * math.sqrt(2) * float(erfinv(math.tanh(eta / 4)))
    elif eta < 600:
        mu = -2 * float(ndtri(expit(-eta / 2)))
    else:
        mu = -2 * float(ndtri_exp(-eta / 2 - math.exp(-eta / 2)))
    return mu * (1 + _ROUNDING)


def bounded_range_of_mu(mu: float) -> float:
    """The largest η whose choices are μ-GDP, rounded down.

    Args:
        mu: μ ≥ 0.

    Returns:
        η = 2·logit(Φ(μ/2)).

    >>> round(bounded_range_of_mu(bounded_range_mu(0.3)), 9)
    0.3
    """
    half = _validate.nonnegative(mu=mu) / 2
    # 4·artanh(2Φ − 1) where 2Φ − 1 keeps more digits than 1 − Φ
    near = half < 1
    eta = 4 * math.atanh(math.erf(half / math.sqrt(2))) if near else 2 * float(log_ndtr(half) - log_ndtr(-half))
    eta *= 1 - 4 * _ROUNDING
    while bounded_range_mu(eta) > mu > 0:
        eta *= 1 - 4 * _ROUNDING
    return eta


class _AboutChoices(Theorem, abstract=True):
    """What theorems about noisy choices share."""

    view: ClassVar[str] = EVERY_ITERATE
    about: ClassVar[type[Any]] = NoisyMax
    covers: ClassVar[Mapping[str, tuple[Any, ...]]] = {"adjacency": tuple(Adjacency)}

    def assumptions(self, part: NoisyMax) -> tuple[Assumption, ...]:
        """What every score is, and the law of the choice."""
        moved = "Δ" if part.adjacency is not Adjacency.REPLACE_ONE else "2Δ"
        return (
            Assumption(
                f"each {part.unit} moves a score by at most Δ, so that neighbours move it by at most {moved}; a choice "
                f"has Gumbel noise of scale 2·{moved}/η",
                Evidence.ENFORCED,
            ),
            ARITHMETIC[part.arithmetic],
            PUBLIC_NUMBERS,
        )


class NoisyMaxComposition(_AboutChoices):
    """Adaptively chosen noisy choices of bounded ranges η_k are √(Σ μ_k²)-GDP, μ_k = 2Φ⁻¹(Λ(η_k/2)).

    Each is μ_k-GDP whatever was released before (module docstring), and Gaussian trade-offs compose exactly, with each
    other and with Gaussian releases in any order.

    Formal guarantee: all choices together, hence anything computed from them, are μ-GDP.

    Assumptions: neighbours move every score by at most Δ, given what was released before, and noise has scale 2Δ/η.
    """

    id: ClassVar[str] = "noisy-max-gdp"
    name: ClassVar[str] = "Gaussian composition of noisy choices"
    reference: ClassVar[str] = "Dong, Roth, Su (2022), Corollary 3.3; Dong, Durfee, Rogers (2020); docs/theorems.md"

    def curve(self, part: NoisyMax) -> Gaussian:
        """√ of the sum over all choices."""
        eta = part.bounded_range
        if eta.is_constant:
            return Gaussian(math.sqrt(part.steps) * bounded_range_mu(eta.max))
        return Gaussian(math.sqrt(math.fsum(bounded_range_mu(float(e)) ** 2 for e in eta.to_array())))

    def examples(self, plain: Mechanism) -> tuple[NoisyMax, ...]:
        """Parts for the contract tests."""
        ratio = plain.ratio.to_array()
        constant = NoisyMax(adjacency=plain.adjacency, bounded_range=plain.ratio, steps=plain.steps)
        falling = ratio * np.linspace(1.0, 0.5, len(ratio))
        return constant, NoisyMax(adjacency=plain.adjacency, bounded_range=Schedule(falling), steps=plain.steps)


class OptimalChoices(_AboutChoices):
    """Choices of one bounded range, with all Gaussian releases of a plan: the worst adaptive strategy, computed.

    The largest δ(ε) of T two-point laws whose t is chosen with knowledge of all noise (``tacit.accounting.choices``).
    At equal ε it allows a larger η than ``NoisyMaxComposition``, up to a quarter.

    Formal guarantee: all choices, and Gaussian releases of the same plan in any order, are (ε, δ)-DP.

    Assumptions: as ``NoisyMaxComposition``.
    """

    id: ClassVar[str] = "noisy-max-optimal"
    name: ClassVar[str] = "optimal composition of noisy choices"
    reference: ClassVar[str] = "Dong, Durfee, Rogers (2020); adaptive, with Gaussian releases: docs/theorems.md"

    def relations(self, part: NoisyMax) -> list[Gap]:
        """One range, and few enough choices for a table."""
        eta = part.bounded_range
        if not eta.is_constant:
            return [Gap("bounded_range", "the programme is about choices of one range", "use one range for all")]
        if not is_feasible(eta.max, part.steps):
            return [Gap("steps", "the table of so many choices would be too large", "make fewer choices")]
        return []

    def curve(self, part: NoisyMax) -> Chosen:
        """The dynamic programme."""
        return Chosen(part.bounded_range.max, part.steps)

    def examples(self, plain: Mechanism) -> tuple[NoisyMax, ...]:
        """Parts for the contract tests."""
        eta = Schedule.constant(plain.ratio.max, plain.steps)
        return (NoisyMax(adjacency=plain.adjacency, bounded_range=eta, steps=plain.steps),)
