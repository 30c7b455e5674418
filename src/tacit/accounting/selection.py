"""Private selection: the best of a secret random number K of candidates.

One candidate (training and score together) is a run of the base mechanism Q; K ~ Poisson(m) runs are made and the one
with the best score is released. With u the chance under Q that a fresh candidate scores better, the output density is
m·q(y)·e^{−m·u(y)}; K = 0 returns nothing (⊥), which has probability e^{−m} on every data set. Hence, ℓ = q/q′,

    H_{e^ε}(A‖A′) = E_{Q′}[ m·(ℓ e^{−mu} − e^{ε − mu′})₊ ].

- **Theorem 5.1** (Koskela et al. 2024, as corrected in errata E5): u′ − u ≤ (e^{ε₁}−1) + δ(ε₁) gives
  (ε, m·δ(ε̂))-DP with ε̂ = ε − m(e^{ε₁}−1) − m·δ(ε₁), for every ε₁ ≥ 0 and any base with privacy profile δ(·).
- **Refined**, for a μ-GDP base: u′ − u ≤ Δ(u) = Φ(Φ⁻¹(u)+μ) − u, so
  δ ≤ E_{Q′}[G(ℓ)], G(ℓ) = m·max_u e^{−mu}(ℓ − e^{ε−mΔ(u)})₊. G is convex and increasing, so its chords bound it and the
  expectation is exact: E_{Q′}(ℓ − e^t)₊ = δ_μ(t). For each ℓ the logarithm of the bracketed term is concave in u.
- **Rényi** (Papernot & Steinke 2022), for the other distributions of K, by dp_accounting's repeat-and-select.

K, the candidates tried, their scores and the duration stay secret; "at least one" would be another mechanism.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy import optimize
from scipy.special import ndtr

from tacit import _validate
from tacit.accounting.certificate import Combination, assumptions_of, combine
from tacit.accounting.curve import Curve, Gaussian, Profile, delta_of
from tacit.accounting.gdp import gdp_delta
from tacit.accounting.theorem import Assumption, Gap, Theorem
from tacit.mechanism import Evidence, Mechanism, Plan, Selection, Trials

__all__ = ["SelectionTheorem", "refined_delta", "selection_epsilon", "theorem_51_delta"]

Array = NDArray[np.float64]

_KNOTS = 2500
_GOLDEN = (math.sqrt(5) - 1) / 2


def theorem_51_delta(profile: Callable[[float], float], mean_trials: float, epsilon: float) -> float:
    """m·δ(ε̂) minimised over ε₁ ≥ 0, i.e. with the largest ε̂ (any ε₁ is valid)."""
    m = mean_trials

    def cost(epsilon_1: float) -> float:
        return m * math.expm1(epsilon_1) + m * profile(epsilon_1)

    top = math.log1p(max(epsilon, 1e-9) / m) + 1e-12  # beyond it the first term alone exceeds ε
    found = optimize.minimize_scalar(cost, bounds=(0.0, top), method="bounded", options={"xatol": 1e-12})
    best = min(cost(0.0), cost(float(found.x)))
    return min(1.0, m * profile(epsilon - best))


def _log_term(u: Array, gain: Array, ell: Array, epsilon: float, m: float) -> Array:
    """−m·u + log(ℓ − e^{ε − m·gain}), −∞ where the bracket is not positive."""
    inside = ell - np.exp(np.minimum(epsilon - m * gain, 700.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(inside > 0, -m * u + np.log(np.where(inside > 0, inside, 1.0)), -np.inf)


def _gain(z: Array, mu: float) -> Array:
    """Δ(u) at u = Φ(z), without cancellation."""
    return np.asarray(np.where(z + mu > 0, ndtr(-z) - ndtr(-z - mu), ndtr(z + mu) - ndtr(z)))


def _largest(ell: Array, epsilon: float, m: float, mu: float) -> Array:
    """An upper bound on G(ℓ)/m, by golden section on z = Φ⁻¹(u) ∈ [−40, −μ/2], where Δ grows.

    The logarithm of the term is concave in u where it is finite, so the search keeps the maximiser (points where it
    is −∞ lie left of it: Δ is largest at the right end). With the final bracket [a, b] the bound e^{−m·u(a)}(ℓ −
    e^{ε−mΔ(b)}) holds whatever was found in between.

    Returns:
        One bound per ℓ.
    """
    a, b = np.full_like(ell, -40.0), np.full_like(ell, -mu / 2)

    def value(z: Array) -> Array:
        return _log_term(ndtr(z), _gain(z, mu), ell, epsilon, m)

    x1, x2 = b - _GOLDEN * (b - a), a + _GOLDEN * (b - a)
    f1, f2 = value(x1), value(x2)
    for _ in range(75):
        right = f2 >= f1  # ties lie left of the maximum: there the term is −∞, or flat because u and Δ vanish
        a, b = np.where(right, x1, a), np.where(right, b, x2)
        new = np.where(right, a + _GOLDEN * (b - a), b - _GOLDEN * (b - a))
        fresh = value(new)
        x1, x2 = np.where(right, x2, new), np.where(right, new, x1)
        f1, f2 = np.where(right, f2, fresh), np.where(right, fresh, f1)
    return np.asarray(np.exp(_log_term(ndtr(a), _gain(b, mu), ell, epsilon, m)))


def refined_delta(mu: float, mean_trials: float, epsilon: float) -> float:
    """The refined bound on δ(ε) for a μ-GDP base and K ~ Poisson(m); an upper bound up to rounding.

    Args:
        mu: of one candidate, score included.
        mean_trials: m.
        epsilon: ε ≥ 0.

    Returns:
        δ.
    """
    m = mean_trials
    if mu == 0:
        return 0.0
    peak = float(_gain(np.array([-mu / 2]), mu)[0])
    # G vanishes below log ℓ = ε − mΔ_max; above ε + a few its slope is m up to rounding. Beyond |z| = 12 … 45 the law
    # of ℓ (log ℓ ~ N(−μ²/2, μ²)) has no mass that a double could see.
    threshold = epsilon - m * peak - 1e-12 * (1 + abs(epsilon) + m)
    low = max(threshold, -0.5 * mu * mu - 12 * mu)
    high = max(min(epsilon + 25.0, 45 * mu + 0.5 * mu * mu), low + 1.0)
    if high > 700:
        return 1.0  # e^ε itself overflows: nothing worth promising
    t = low + (high - low) * np.linspace(0.0, 1.0, _KNOTS) ** 4  # dense where the tails still have mass
    G = m * _largest(np.exp(t), epsilon, m, mu)
    if low == threshold:
        G[0] = 0.0  # exactly, where rounding of ℓ − e^{ε−mΔ} would leave a crumb
    G = np.maximum.accumulate(G)  # increasing by theory: removes rounding
    slopes = np.append(np.diff(G) / np.diff(np.exp(t)), m)
    kinks = np.diff(slopes, prepend=0.0)
    tails = np.asarray(gdp_delta(mu, t))
    # E[G] ≤ G(first knot) + Σ kink·E(ℓ − knot)₊: chords above, and the largest possible slope m beyond the last knot.
    return min(1.0, max(float(G[0] + kinks @ tails), 0.0))


def selection_epsilon(mu: float, mean_trials: float, delta: float, *, method: str = "refined") -> float:
    """ε of the best of Poisson(m) candidates, each μ-GDP with its score.

    Args:
        mu: of one candidate, score included.
        mean_trials: m, the expected number of candidates.
        delta: δ.
        method: "refined", "theorem-5.1", or "renyi" (Papernot & Steinke 2022).

    Returns:
        The smallest ε that the method certifies.

    >>> round(selection_epsilon(0.3473015581898099, 20, 1e-5), 4)
    3.697
    """
    m, d = Trials(_validate.positive(mean_trials=mean_trials)).mean, _validate.delta(delta)
    value = _validate.nonnegative(mu=mu)
    _validate.one_of(("refined", "theorem-5.1", "renyi"), method=method)
    if method == "renyi":
        return _renyi_profile(value, Trials(m)).epsilon(d)
    if method == "theorem-5.1":
        return Profile(lambda e: theorem_51_delta(lambda x: gdp_delta(value, x), m, e)).epsilon(d)
    return Profile(lambda e: refined_delta(value, m, e)).epsilon(d)


_ORDERS = np.unique(np.concatenate([1 + np.geomspace(1e-3, 1e4, 1500), np.linspace(1.5, 64, 4000)]))


def renyi_poisson_epsilon(
    mu: float, mean_trials: float, delta: float, *, base_delta: Callable[[Array], Array] | None = None
) -> float:
    """Papernot & Steinke (2022), Theorem 6, for a μ-GDP base.

    For each order α the selection has Rényi divergence at most αμ²/2 + m·δ̂ + log(m)/(α−1), where the base is (ε̂,
    δ̂)-DP at ε̂ = log(1 + 1/(α−1)).

    Args:
        mu: of one candidate.
        mean_trials: m.
        delta: δ.
        base_delta: ε̂ ↦ δ̂; the exact Gaussian profile by default (dp_accounting goes through Rényi divergences
            here, too, and loses a third).

    Returns:
        ε.
    """
    from dp_accounting.rdp.rdp_privacy_accountant import compute_epsilon

    a = _ORDERS
    hat = np.log1p(1 / (a - 1))
    delta_hat = np.asarray(gdp_delta(mu, hat)) if base_delta is None else base_delta(hat)
    divergence = a * mu**2 / 2 + mean_trials * delta_hat + np.log(mean_trials) / (a - 1)
    return float(compute_epsilon(a, np.maximum(divergence, 0.0), delta)[0])


def _renyi_profile(mu: float, trials: Trials) -> Profile:
    """The Rényi bound as a curve: ours for Poisson, dp_accounting's for the truncated distributions."""
    from dp_accounting import dp_event, rdp

    if trials.shape == math.inf:
        epsilon: Callable[[float], float] = lambda d: renyi_poisson_epsilon(mu, trials.mean, d)  # noqa: E731
    else:
        # A noise multiplier of 1/μ means μ-GDP under add/remove, the accountant's default relation.
        accountant = rdp.RdpAccountant(1 + np.geomspace(1e-2, 1e4, 300))
        base = dp_event.GaussianDpEvent(1 / mu)
        accountant.compose(dp_event.RepeatAndSelectDpEvent(base, trials.mean, trials.shape))
        epsilon = lambda d: float(accountant.get_epsilon(d))  # noqa: E731
    return Profile(functools.partial(delta_of, epsilon), epsilon)


# -- theorems -----------------------------------------------------------------------------------------------------


def _candidate(selection: Selection) -> Curve:
    """What one candidate costs; a record is in the training part or in the hold-out, so the larger cost counts."""
    base = _single_curve(combine(Plan(selection.base)))
    if not selection.holdout:
        return base
    held = _single_curve(combine(Plan(selection.holdout)))
    if isinstance(base, Gaussian) and isinstance(held, Gaussian):
        return Gaussian(max(base.mu, held.mu))
    return Profile(lambda e: max(base.delta(e), held.delta(e)))


def _single_curve(combinations: Sequence[Combination]) -> Curve:
    """Gaussian if possible (the refined bound needs it), else whatever the first combination gives."""
    curves = [curve for _, curve in combinations]
    gaussian = [curve for curve in curves if isinstance(curve, Gaussian)]
    return min(gaussian, key=lambda c: c.mu) if gaussian else curves[0]


_POISSON_ONLY = Gap("trials", "this bound holds for a Poisson number of trials", "use Trials(mean)")


class SelectionTheorem(Theorem, abstract=True):
    """A theorem about the best of a random number of candidates, each a run of the same mechanisms."""

    view: ClassVar[str] = "the selected model"
    about: ClassVar[type[Any]] = Selection

    def assumptions(self, selection: Selection) -> tuple[Assumption, ...]:
        """Those of one candidate and of its hold-out, and what must stay secret."""
        held: tuple[Assumption, ...] = ()
        if selection.holdout:
            apart = Assumption("the hold-out shares no record with the training data", Evidence.DECLARED)
            held = (*assumptions_of(combine(Plan(selection.holdout))), apart)
        # DPSelection keeps the number, the candidates and their scores to itself, but no code can vouch for the
        # duration, and a selection described by hand is the user's word altogether.
        return (
            *assumptions_of(combine(Plan(selection.base))),
            *held,
            Assumption("the number of candidates, their scores and the duration stay secret", Evidence.DECLARED),
            Assumption("the score is part of what one candidate costs", Evidence.DECLARED),
        )

    def examples(self, plain: Mechanism) -> tuple[Selection, ...]:
        """Parts for the contract tests."""
        return (Selection(base=(plain,), trials=Trials(5.0)),)


class RefinedSelection(SelectionTheorem):
    """Poisson trials of a μ-GDP candidate (module docstring, "Refined").

    Formal guarantee: the selected candidate with its score satisfies (ε, ``refined_delta``)-DP.

    Assumptions: one candidate, score included, is μ-GDP; the number of candidates is Poisson and secret.
    """

    id: ClassVar[str] = "selection-refined"
    name: ClassVar[str] = "private selection, refined for a GDP base"
    reference: ClassVar[str] = "Koskela et al. (2024), Theorem 5.1 of the convex ReLU paper, refined (docs/theorems.md)"

    def relations(self, selection: Selection) -> list[Gap]:
        """Poisson trials of a Gaussian candidate."""
        gaps = [_POISSON_ONLY] if selection.trials.shape != math.inf else []
        if not isinstance(_candidate(selection), Gaussian):
            gaps.append(Gap("base", "the refined bound needs a candidate that is μ-GDP", "use a Gaussian candidate"))
        return gaps

    def curve(self, selection: Selection) -> Profile:
        """``refined_delta`` of one candidate."""
        base = _candidate(selection)
        assert isinstance(base, Gaussian)
        return Profile(lambda e: refined_delta(base.mu, selection.trials.mean, e))


class CorrectedSelection(SelectionTheorem):
    """Poisson trials of any candidate (module docstring, "Theorem 5.1").

    Formal guarantee: the selected candidate with its score satisfies (ε, ``theorem_51_delta``)-DP.

    Assumptions: the number of candidates is Poisson and secret.
    """

    id: ClassVar[str] = "selection-5.1"
    name: ClassVar[str] = "private selection, Theorem 5.1 as corrected"
    reference: ClassVar[str] = "Koskela et al. (2024); errata E5"

    def relations(self, selection: Selection) -> list[Gap]:
        """Poisson trials."""
        _candidate(selection)  # refused here if no theorem covers it
        return [_POISSON_ONLY] if selection.trials.shape != math.inf else []

    def curve(self, selection: Selection) -> Profile:
        """``theorem_51_delta`` of one candidate's profile."""
        profile = functools.cache(_candidate(selection).delta)
        return Profile(lambda e: theorem_51_delta(profile, selection.trials.mean, e))


class RenyiSelection(SelectionTheorem):
    """Poisson, geometric, logarithmic or other trials of a μ-GDP candidate, by Rényi divergences.

    Formal guarantee: the selected candidate with its score satisfies the Rényi bounds of the reference.

    Assumptions: one candidate, score included, is μ-GDP; the number of candidates is secret.
    """

    id: ClassVar[str] = "selection-renyi"
    name: ClassVar[str] = "private selection by Rényi divergences"
    reference: ClassVar[str] = "Papernot, Steinke (2022), Theorems 2 and 6"

    def relations(self, selection: Selection) -> list[Gap]:
        """A Gaussian candidate that costs something, and at least one trial."""
        base = _candidate(selection)
        gaps = []
        if not isinstance(base, Gaussian) or base.mu == 0:
            reason = "the Rényi bound is wired to candidates that are μ-GDP"
            gaps.append(Gap("base", reason, "use a Gaussian candidate"))
        if selection.trials.mean < 1:
            reason = "repeat-and-select needs a mean of at least one trial"
            gaps.append(Gap("trials", reason, "raise the mean"))
        return gaps

    def curve(self, selection: Selection) -> Profile:
        """The Rényi bound as a profile."""
        base = _candidate(selection)
        assert isinstance(base, Gaussian)
        return _renyi_profile(base.mu, selection.trials)

    def examples(self, plain: Mechanism) -> tuple[Selection, ...]:
        """Parts for the contract tests."""
        return (*super().examples(plain), Selection(base=(plain,), trials=Trials(3.0, 1.0)))
