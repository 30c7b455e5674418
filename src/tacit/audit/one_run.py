"""A lower bound on ε from a single run, with many canaries included by independent fair coins.

The setting is that of Steinke, Nasr, Jagielski (2023), "Privacy Auditing with One (1) Training Run": of m
canaries each is included independently with probability 1/2; an attacker who sees only the released output
guesses "in" or "out" for exactly r of them and abstains on the others. Let V be the number of correct guesses and
W ~ Bin(r, e^ε/(1 + e^ε)), with β = P[W ≥ v] and w = P[W = v].

**Theorem.** If the run is (ε, δ)-DP with respect to one canary, then for every v ≥ 1

    P[V ≥ v] ≤ β + m δ · β (1 − β) / (v w).                                                        (1)

*Proof.* Let p_k = P[V = k], and let s be the inclusion bits, t the guesses, s^i the bits with the i-th one
flipped. Flipping the bit of a correct guess maps the triples {(s, t, i): k + 1 correct, i correct} one to
one onto {(s', t, i): k correct, i guessed and wrong}. Summing P(s, t) = 2^{−m} M(t | s) over both sets,

    (k+1) p_{k+1} − e^ε (r−k) p_k = Σ 2^{−m} (M(t | s) − e^ε M(t | s^i)) ≤ z_k,

where z_k is the sum of the positive parts, and Σ_k z_k ≤ m δ by (ε, δ)-DP, one canary i and one s at a time.
The binomial weights w_k satisfy (k+1) w_{k+1} = e^ε (r−k) w_k, so with ρ_k = p_k/w_k the left-hand side is
(k+1) w_{k+1} (ρ_{k+1} − ρ_k). Since E[ρ(W)] = 1, Hoeffding's covariance identity gives

    P[V ≥ v] − β = Cov(ρ(W), 1{W ≥ v}) = Σ_{j=1}^{r} (ρ_j − ρ_{j−1}) c_j,  c_j = Cov(1{W ≥ j}, 1{W ≥ v}) ≥ 0,

which is at most m δ · max_j c_j/(j w_j). Here j w_j = r q P[W' = j − 1] with W' ~ Bin(r − 1, q), and because
the binomial law is log-concave, the ratio grows up to j = v and falls after it. Finally c_v = β (1 − β). ∎

(1) is sharp: ρ with a single step at v attains it (if m δ β ≤ v w, so that ρ ≥ 0), and for δ = 0 it is the
paper's bound for pure DP. The paper's Theorem 5.2, as implemented in its appendix D, has the additive term
2 m δ · max_i P[v > W ≥ v − i]/i instead. For β ≤ 0.7 that was more than twice as large in every case
computed; for β near 1 the mechanism above exceeds it (m = r = 2, ε = 1, δ = 0.01, v = 1: 0.9311 > 0.9306).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, expit

from tacit import _validate
from tacit.audit import _inputs
from tacit.audit.verdict import Certificate, Verdict, judge_epsilon
from tacit.errors import InvalidInput

__all__ = ["OneRunAudit", "audit_one_run", "one_run_p_value"]

# The public grid of guess shares that is tried, and paid for, when n_guesses is not given.
_GUESS_SHARES = (1.0, 0.3, 0.1, 0.03, 0.01)
_MAX_EPSILON = 100.0
_BISECTIONS = 60


@dataclass(frozen=True)
class OneRunAudit:
    """The result of ``audit_one_run``.

    Attributes:
        epsilon_lower: with this confidence the run is not (ε, δ)-DP for any ε below; zero if nothing shown.
        delta: the δ it holds at.
        confidence: after the correction for the numbers of guesses tried.
        n_canaries: m.
        guessed_in: how many of the highest scores were guessed "in".
        guessed_out: how many of the lowest scores were guessed "out".
        n_correct: how many of these guesses were right.
        n_tried: how many numbers of guesses the confidence was shared among.
    """

    epsilon_lower: float
    delta: float
    confidence: float
    n_canaries: int
    guessed_in: int
    guessed_out: int
    n_correct: int
    n_tried: int

    def verdict(self, certificate: Certificate) -> Verdict:
        """Whether ``epsilon_lower`` exceeds the certified ε(δ).

        Args:
            certificate: has ``epsilon(delta)`` and ``delta(epsilon)``, for the relation audited here.

        Returns:
            The verdict.
        """
        return judge_epsilon(self.epsilon_lower, self.delta, certificate, confidence=self.confidence)

    def __str__(self) -> str:
        guesses = self.guessed_in + self.guessed_out
        return (
            f"one-run audit: ε ≥ {self.epsilon_lower:.4g} at δ = {self.delta:.3g} with "
            f"{100 * self.confidence:.4g} % confidence\n"
            f"  {self.n_correct} of {guesses} guesses right ({self.guessed_in} in, {self.guessed_out} out) "
            f"on {self.n_canaries} canaries; {self.n_tried} number(s) of guesses tried"
        )


def audit_one_run(
    scores: ArrayLike,
    included: ArrayLike,
    *,
    delta: float,
    confidence: float = 0.95,
    n_guesses: int | tuple[int, int] | None = None,
    rng: np.random.Generator | None = None,
) -> OneRunAudit:
    """Bound ε at one δ from below with the canaries of a single run.

    The k₊ highest scores are guessed "in", the k₋ lowest "out"; ``epsilon_lower`` is the largest ε at which
    the p-value (1) of the module's docstring stays at or below 1 − confidence.

    Relation audited: one canary present or absent, all else fixed, in both directions. If an excluded canary
    is left out of the data, that is add/remove; if its contribution is set to zero and the dataset's size
    kept, that is zero-out. Compare with a certificate for that relation; one for replace-one covers zero-out
    only if an empty record is a legal one, and does not cover add/remove.

    Formal guarantee: if the run is (ε, δ)-DP for that relation, P[epsilon_lower > ε] ≤ 1 − confidence. For
    each ε' ≥ ε the test {V ≥ v(ε')} has level 1 − confidence, since (ε, δ)-DP implies (ε', δ)-DP, and the
    union of these nested events is one of them.

    Assumptions: each canary was included by its own fair coin, independent of everything else (not: exactly
    half of them); the scores are computed from the released output, the canaries and public knowledge, never
    from ``included``; ``n_guesses`` was fixed beforehand. If None, the shares 1, 0.3, 0.1, 0.03, 0.01 of
    the canaries are all tried, and each gets an equal part of the error probability (Bonferroni).

    Ties: equal scores across a cut are settled against the attacker, because the order of the canaries may
    depend on ``included``. For scores with many ties pass ``rng``: then a fair order settles them.

    Args:
        scores: one a canary; high means "looks included". Shape (m,).
        included: the coins, booleans or zeros and ones. Shape (m,).
        delta: the δ to audit at, in [0, 1).
        confidence: in (0, 1).
        n_guesses: the number of guesses, half of them "in" (the odd one, too); or the pair (k₊, k₋).
        rng: breaks ties at random.

    Returns:
        The audit.

    >>> import numpy as np
    >>> coins = np.random.default_rng(0).random(1000) < 0.5
    >>> audit_one_run(coins, coins, delta=1e-5).epsilon_lower > 4
    True
    """
    checked_delta = _inputs.delta_or_zero(delta)
    confidence = _inputs.open_unit(confidence=confidence)
    coins = _coins(included)
    m = coins.size
    values = _inputs.as_floats("scores", scores, f"({m},), as included", (1,), m)
    cuts = _cuts(n_guesses, m)
    order = _ascending(values, coins, rng)
    level = (1 - confidence) / len(cuts)
    audits = []
    for k_in, k_out in cuts:
        correct = int(coins[order[m - k_in :]].sum()) + int((~coins[order[:k_out]]).sum())
        bound = _epsilon_lower(m, k_in + k_out, correct, checked_delta, level)
        audits.append(OneRunAudit(bound, checked_delta, confidence, m, k_in, k_out, correct, len(cuts)))
    return max(audits, key=lambda audit: audit.epsilon_lower)


def one_run_p_value(n_canaries: int, n_guesses: int, n_correct: int, epsilon: float, delta: float) -> float:
    """The largest P[V ≥ v] of any (ε, δ)-DP run: (1) of the module's docstring.

    Args:
        n_canaries: m.
        n_guesses: r, at most m, fixed beforehand.
        n_correct: v, at most r.
        epsilon: the hypothesis, ε ≥ 0.
        delta: the hypothesis, in [0, 1).

    Returns:
        The p-value, in (0, 1].
    """
    m, r, v = n_canaries, n_guesses, n_correct
    if v == 0:
        return 1.0
    q = float(expit(epsilon))
    tail = float(betainc(v, r - v + 1, q))  # P[W ≥ v]
    # β(1 − β)/w with w factored out of the smaller tail, whose terms fall off from W = v: no 0/0 far out.
    if tail < 0.5:
        up = (r - v - np.arange(r - v)) / (v + 1.0 + np.arange(r - v)) * math.exp(epsilon)
        gain = (1 + float(np.cumprod(up).sum())) * (1 - tail)
    else:
        down = (v - np.arange(v)) / (r - v + 1.0 + np.arange(v)) * math.exp(-epsilon)
        gain = float(np.cumprod(down).sum()) * tail
    return min(1.0, tail + m * delta * gain / v)


def _epsilon_lower(m: int, r: int, v: int, delta: float, level: float) -> float:
    # The ε at which the p-value crosses the level, rounded down; zero if it is above at ε = 0.
    if one_run_p_value(m, r, v, 0.0, delta) > level:
        return 0.0
    low, high = 0.0, _MAX_EPSILON
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        if one_run_p_value(m, r, v, middle, delta) <= level:
            low = middle
        else:
            high = middle
    return low


def _coins(included: ArrayLike) -> NDArray[np.bool_]:
    raw = np.asarray(included)
    if raw.ndim != 1 or raw.size == 0 or raw.dtype.kind not in "biuf" or not np.isin(raw, (0, 1)).all():
        raise InvalidInput("included must be m booleans (or zeros and ones), one for each canary")
    return raw.astype(np.bool_)


def _cuts(n_guesses: object, m: int) -> list[tuple[int, int]]:
    # The pairs (k₊, k₋) to try.
    if n_guesses is None:
        totals = sorted({max(1, round(share * m)) for share in _GUESS_SHARES}, reverse=True)
        return [(k - k // 2, k // 2) for k in totals]
    if isinstance(n_guesses, tuple):
        if len(n_guesses) != 2:
            raise InvalidInput(f"n_guesses must be a number or a pair (in, out), got {n_guesses!r}")
        k_in, k_out = (int(_validate.nonnegative(n_guesses=k)) for k in n_guesses)
        if (k_in, k_out) != n_guesses:
            raise InvalidInput(f"n_guesses must be whole numbers, got {n_guesses!r}")
    else:
        total = _validate.positive_int(n_guesses=n_guesses)
        k_in, k_out = total - total // 2, total // 2
    if not 1 <= k_in + k_out <= m:
        raise InvalidInput(f"n_guesses must be between 1 and the {m} canaries, got {n_guesses!r}")
    return [(k_in, k_out)]


def _ascending(scores: NDArray[np.float64], coins: NDArray[np.bool_], rng: object) -> NDArray[np.intp]:
    # Canaries by rising score; ties at random, or the included ones first, which favours neither guess.
    if rng is None:
        return np.lexsort((~coins, scores))
    if not isinstance(rng, np.random.Generator):
        raise InvalidInput("rng must be a numpy.random.Generator or None")
    shuffled = rng.permutation(scores.size)
    return np.asarray(shuffled[np.argsort(scores[shuffled], kind="stable")])
