"""Objective perturbation of generalised linear models (Kifer, Smith, Thakurta 2012; Redberg, Koskela, Wang 2023).

Write μ = R·slope/σ for how far one record moves the gradient over the noise, J = log(1 + βR²/Λ) for what it adds to
the log-determinant of the Hessian, and δ_m for the profile of an m-GDP mechanism. With and without a record, the
minimisers W₁ and W₀ satisfy, for every ε,

    removal    H_ε(W₁ ‖ W₀) ≤ δ₁(ε − J),      addition    H_ε(W₀ ‖ W₁) ≤ δ₁(ε), or δ₂(ε) if slopes change their sign,

    δ₁(x) = δ_μ(x)   for x ≥ 0,       else 1 − 2 e^x Φ(−μ/2)       (one tail of the tilt),
    δ₂(x) = 2 δ_μ(x) for x ≥ μ²/2,    else 1 − 2 e^x Φ(−μ)         (both tails).

Proof idea. The gradient G of the objective *with* the record, taken at the released w, is −b under W₁, and G − φ′·x
under W₀: only its coordinate z along x differs, so the problem is one-dimensional given the others. There the slope is
a non-decreasing function of z (φ is convex), which leaves one tail for a removal, and the Hessians differ by a factor
of at most e^J, to the disadvantage of a removal only. The whole proof is in docs/theorems.md.

A replacement is an addition followed by a removal, with the data set that holds *both* records between them:
H_ε(W ‖ W′) ≤ min over ε₁ of add(ε₁) + e^{ε₁} removal(ε − ε₁). In this order the factor e^J meets the outermost tail,
so that for signed slopes the minimum is δ_{2μ}(ε − J): as if the gradient had been released by a Gaussian of ratio 2μ,
and J on top.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar

from scipy.special import log_ndtr

from tacit import _validate
from tacit.accounting.curve import Profile
from tacit.accounting.gdp import gdp_delta
from tacit.accounting.theorem import PUBLIC_NUMBERS, SECRET_DURATION, Assumption, Theorem
from tacit.mechanism import Adjacency, Mechanism, ObjectivePerturbation

__all__ = ["objective_perturbation_delta", "perturbation_curve"]

ROUNDING = 1e-9
"""Relative excess that covers the floating-point error of δ (1e-10, see ``gdp_delta``)."""
_TAILS = (1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0, 36.0)
"""Where the solver's loss is cut off, in standard deviations; any cut is valid."""
_LOG2 = math.log(2)


def objective_perturbation_delta(
    epsilon: float, *, ratio: float, curvature: float, adjacency: Adjacency | str, signed_slopes: bool = False
) -> float:
    """δ(ε) of releasing the exact minimiser.

    Formal guarantee: for all neighbours D, D′ under ``adjacency`` and all events A,
    P(w(D) ∈ A) ≤ e^ε P(w(D′) ∈ A) + δ.

    Assumptions: convex losses φ_i(x_i·w) with |φ_i′| ≤ slope and φ_i′ β-Lipschitz, ‖x_i‖ ≤ R, an ℓ2 penalty Λ > 0 on
    every coordinate, any further convex penalty free of data, b ~ N(0, σ² I).

    Args:
        epsilon: any real number.
        ratio: μ = R·slope/σ, of one record under every relation.
        curvature: βR²/Λ.
        adjacency: the neighbouring relation.
        signed_slopes: whether each loss is monotone (logistic, hinge).

    Returns:
        An upper bound on δ, rounded up.

    >>> exact = objective_perturbation_delta(2.0, ratio=0.1, curvature=0.1, adjacency="replace-one", signed_slopes=True)
    >>> bool(exact > gdp_delta(0.2, 2.0 - math.log(1.1)))  # the Gaussian of ratio 2μ, J later
    True
    """
    mu, e = _validate.nonnegative(ratio=ratio), _validate.real(epsilon=epsilon)
    J = math.log1p(_validate.nonnegative(curvature=curvature)) * (1 + 1e-15)
    if Adjacency.parse(adjacency) is Adjacency.REPLACE_ONE:
        value = _replacement(mu, e - J, signed=signed_slopes)
    else:
        value = max(_one_tail(mu, e - J), _addition(mu, e, signed=signed_slopes))
    return min(1.0, value * (1 + ROUNDING))


def _rest(log_mass: float) -> float:
    """1 − e^x, rounded up by more than the logarithm's last digits."""
    return -math.expm1(log_mass) + 1e-15


def _one_tail(mu: float, x: float) -> float:
    """E(1 − e^{x − ℓ})₊ for ℓ = (μZ + μ²/2)₊, Z standard normal."""
    return gdp_delta(mu, x) if x >= 0 else _rest(x + _LOG2 + log_ndtr(-mu / 2))


def _two_tails(mu: float, x: float) -> float:
    """E(1 − e^{x − ℓ})₊ for ℓ = μ|Z| + μ²/2, Z standard normal."""
    return 2 * gdp_delta(mu, x) if x >= mu * mu / 2 else _rest(x + _LOG2 + log_ndtr(-mu))


def _addition(mu: float, x: float, *, signed: bool) -> float:
    return _one_tail(mu, x) if signed else _two_tails(mu, x)


def _replacement(mu: float, x: float, *, signed: bool) -> float:
    """The minimum over a ≥ 0 of add(a) + e^a removal(x − a), x = ε − J; every a gives a valid bound."""
    if signed and x >= mu * mu:
        return gdp_delta(2 * mu, x)  # at a = (x − μ²)/2
    a = 0.0 if signed or mu == 0 else min(_best_split(mu, x), 700.0)  # beyond it e^a overflows
    return _addition(mu, a, signed=signed) + math.exp(a) * _one_tail(mu, x - a)


def _best_split(mu: float, x: float) -> float:
    """The a in [0, x] where two tails at a and e^a times one tail at x − a sum to the least.

    The derivative in a is e^a (Φ(−(x − a)/μ + μ/2) − 2Φ(−max(a/μ + μ/2, μ))), and the bracket grows with a.

    Args:
        mu: μ > 0.
        x: ε − J.

    Returns:
        a; any value is valid.
    """
    low, high = 0.0, min(max(x, 0.0), 1e9)
    for _ in range(200):
        a = low + (high - low) / 2
        if a <= low or a >= high:
            break
        falling = log_ndtr(-(x - a) / mu + mu / 2) < _LOG2 + log_ndtr(-max(a / mu + mu / 2, mu))
        low, high = (a, high) if falling else (low, a)
    return high


def perturbation_curve(mechanism: ObjectivePerturbation) -> Profile:
    """The curve of the release, the solver's error included.

    The exact minimiser w* lies within τ/Λ of the solver's w, because the objective is Λ-strongly convex. So the release
    is a function of w* and of (w − w*) + N(0, s² I), a Gaussian release of sensitivity 2τ/Λ given w*: ν-GDP with
    ν = 2τ/(Λs). Both compose: δ(ε) ≤ δ_exact(ε − η) + δ_ν(η) for every η ≥ 0, and the smallest of a fixed list of
    η counts, so that the curve stays monotone.

    Args:
        mechanism: what is released.

    Returns:
        δ(ε), an upper bound.
    """
    nu = mechanism.solver_ratio
    exact = _exact(mechanism)
    cuts = [(eta, gdp_delta(nu, eta) * (1 + ROUNDING)) for eta in (t * nu + nu * nu / 2 for t in _TAILS)]

    def delta(epsilon: float) -> float:
        return min(exact(epsilon - eta) + rest for eta, rest in cuts)

    return Profile(delta)


def _exact(mechanism: ObjectivePerturbation) -> Callable[[float], float]:
    def delta(epsilon: float) -> float:
        return objective_perturbation_delta(
            epsilon,
            ratio=mechanism.ratio,
            curvature=mechanism.curvature,
            adjacency=mechanism.adjacency,
            signed_slopes=mechanism.signed_slopes,
        )

    return delta


def _assumptions(mechanism: ObjectivePerturbation) -> tuple[Assumption, ...]:
    """What the bound rests on, with who vouches for it."""
    monotone = " and monotone" if mechanism.signed_slopes else ""
    words = (
        f"each {mechanism.unit} holds one record, whose features (the intercept's 1 included) have norm at most "
        f"{mechanism.feature_norm:g}",
        f"each record's loss is a convex{monotone} function of its linear predictor alone, with slopes of at most "
        f"{mechanism.slope_bound:g} and a derivative that is {mechanism.smoothness:g}-Lipschitz",
        f"every coordinate, also the intercept, has an ℓ2 penalty of {mechanism.l2:g}; every other penalty is convex; "
        "none depends on the data",
        f"the linear term is Gaussian with standard deviation {mechanism.noise_std:g}, drawn once and kept secret",
        f"for every data set the solver reaches a gradient of norm at most {mechanism.tolerance:g}, rounding "
        f"included; its result is released with Gaussian noise of standard deviation {mechanism.output_std:g}, and "
        "nothing else is shown",
    )
    return (*(Assumption(text, mechanism.evidence) for text in words), PUBLIC_NUMBERS, SECRET_DURATION)


class PerturbedObjective(Theorem):
    """Objective perturbation of a generalised linear model (module docstring)."""

    id: ClassVar[str] = "objective-perturbation"
    name: ClassVar[str] = "objective perturbation of a generalised linear model"
    reference: ClassVar[str] = (
        "Kifer, Smith, Thakurta (2012); Redberg, Koskela, Wang (2023); re-proved for each relation in docs/theorems.md"
    )
    view: ClassVar[str] = "the final model"
    about: ClassVar[type[Any]] = ObjectivePerturbation

    def curve(self, mechanism: ObjectivePerturbation) -> Profile:
        """``perturbation_curve``."""
        return perturbation_curve(mechanism)

    def assumptions(self, mechanism: ObjectivePerturbation) -> tuple[Assumption, ...]:
        """What the bound rests on."""
        return _assumptions(mechanism)

    def examples(self, plain: Mechanism) -> tuple[ObjectivePerturbation, ...]:
        """Parts for the contract tests."""
        (one,) = ObjectivePerturbation.examples()
        return (replace(one, adjacency=plain.adjacency, noise_std=1 / plain.ratio.max, output_std=1.0),)
