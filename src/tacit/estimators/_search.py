"""Private hyper-parameter search: the best of a secret number of candidates, under one certificate.

One candidate is a run of the *base mechanism* Q: draw hyper-parameters θ from a public law π, train M_θ, release a
noisy mean of bounded per-record scores; its output is (θ, model, score). K ~ Poisson(m) candidates run independently,
and the output of the best score leaves the search; K = 0 returns nothing. The theorems of
``tacit.accounting.selection`` need one fixed base that is μ-GDP. Q is one, although its candidates differ in solver,
steps and noise:

**A mixture with a revealed label.** Let each Q_θ be μ-GDP (Q_θ on D, Q_θ′ on a neighbour), and θ ~ π on both. The
density of (θ, z) is π(θ)·q_θ(z), so π cancels in the likelihood ratio and, for every ε,

    H_{e^ε}(Q‖Q′) = ∫ π(dθ) H_{e^ε}(Q_θ‖Q_θ′) ≤ ∫ π(dθ) δ_μ(ε) = δ_μ(ε),

in both directions, which is μ-GDP (Dong, Roth, Su 2022, Corollary 2.13). The same as a test: its errors are averages of
errors α_θ and β_θ ≥ G_μ(α_θ), and G_μ is convex, so ∫β_θ ≥ ∫G_μ(α_θ) ≥ G_μ(∫α_θ) (Jensen). It needs θ independent of
the records and every Q_θ within μ: draws come from streams that no record enters, and the certificate of each candidate
is compared with μ before a record is read.

**Training and score.** On the same records they compose: μ² = μ_train² + μ_score². On a hold-out (a split by position,
drawn without the records, of public sizes, once per fit) fix the split: a record that is trained on changes the model,
and the score is computed from it and other records; a record of the hold-out changes only the score. So Q is
max(μ_train, μ_score)-GDP for each split, and the whole search is a mixture over splits, as above. It needs a public n:
replace-one or zero-out.

**Ties** fall to the first. Candidates are exchangeable, so that is a draw by lot: one more coordinate of the score,
which no record enters.

**A candidate that fails** (by an exception that its own releases caused) is an output of Q with the worst score.

**A declaration** (a function of the user's own, in features or loss) marks the search's certificate if it is the
estimator's, the same for all candidates; a candidate that brings one of its own is refused.

**A refusal** (a candidate that was drawn, or a point of a small grid, is not μ-GDP, or its step is too long) comes
before any record is read or anything is spent, and tells nothing about them. If there is none, K ~ Poisson(m·r)
candidates run, r the share of acceptable ones (thinning), and every bound rises with m. For the refined one put
v = m·u: its term is m·e^{−v}(ℓ − e^{ε − v·Δ(u)/u})₊, and Δ(u)/u falls with u = v/m, because Δ is concave with Δ(0) = 0.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, TypeVar

import numpy as np
from scipy import optimize
from sklearn.utils.parallel import Parallel, delayed

from tacit.accounting import Certificate, certify, gdp_delta, gdp_epsilon, gdp_mu
from tacit.accounting.selection import refined_delta, theorem_51_delta
from tacit.accounting.theorem import ARITHMETIC, PUBLIC_NUMBERS, SECRET_DURATION
from tacit.errors import InvalidInput, MechanismMismatch, NotCovered
from tacit.mechanism import Adjacency, Arithmetic, Evidence, Mechanism, Schedule, Selection, Trials
from tacit.noise.poisson import exact_poisson
from tacit.release import Streams

__all__ = ["Costs", "Outcome", "best_of", "calibrated", "check_candidate", "drawn", "gdp_to_dp"]

T = TypeVar("T")
Outcome = tuple[float, Any]
"""A candidate's score, and what it releases beside it."""
_SLACK = 1e-6
"""Relative: what calibration leaves of μ, so that rounding never exceeds the promise."""


# -- the core: K, the candidates, the best ----------------------------------------------------------------------


def _number(rng: np.random.Generator, mean_trials: float) -> int:
    """K ~ Poisson(m) to the last bit, zero included: "at least one" would be another mechanism."""
    return exact_poisson(rng, mean_trials)


def drawn(streams: Streams, mean_trials: float, draw: Callable[[Streams], T]) -> list[T]:
    """Poisson(m) independent candidates, with replacement. The length of the list is secret.

    Args:
        streams: randomness that no record enters.
        mean_trials: m.
        draw: from streams of its own to one candidate; reads no record.

    Returns:
        The candidates, none with probability e^−m.
    """
    return [draw(streams.child("candidate")) for _ in range(_number(streams.at("trials"), mean_trials))]


def _attempt(candidate: Callable[[], Outcome]) -> Outcome:
    """One run of the base mechanism, silent: warnings would count the candidates."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):  # a caller's "raise" would let one record fail them all
        warnings.simplefilter("ignore")
        try:
            score, value = candidate()
        except MechanismMismatch:  # something else ran than what was checked: a bug, not an outcome
            raise
        except Exception:  # what is public was checked before; whatever fails now may be due to what was released
            return -math.inf, None
    return (score, value) if math.isfinite(score) else (-math.inf, None)


def best_of(candidates: Iterable[Callable[[], Outcome]], n_jobs: int | None = None) -> Outcome | None:
    """Run every candidate, and keep the one of the best score.

    Args:
        candidates: each returns its score and whatever it wants to release.
        n_jobs: processes, as in joblib; None for this one.

    Returns:
        The best (score, value); None if there is no candidate, or all failed.
    """
    if n_jobs is None:
        outcomes: Iterable[Outcome] = map(_attempt, candidates)
    else:
        outcomes = Parallel(n_jobs=n_jobs, verbose=0)(delayed(_attempt)(one) for one in candidates)
    best = max(outcomes, key=itemgetter(0), default=(-math.inf, None))
    return None if best[0] == -math.inf else best


# -- what it costs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """What one candidate may cost, and the certificate of the whole search.

    Attributes:
        certificate: of the selection.
        train: μ of the training of one candidate, at most.
        score: what its noisy score is.
    """

    certificate: Certificate
    train: float
    score: Mechanism


def _selection(
    mu: float, mean_trials: float, adjacency: Adjacency, share: float | None, arithmetic: Arithmetic, unit: str
) -> tuple[Selection, Mechanism, Mechanism]:
    """A search whose candidates are μ-GDP, and their two parts; ``share`` of μ² for the score, None for a hold-out."""

    def part(ratio: float, label: str) -> Mechanism:
        schedule = Schedule.constant(ratio, 1)
        return Mechanism(adjacency=adjacency, ratio=schedule, steps=1, unit=unit, label=label, arithmetic=arithmetic)

    train = part(mu if share is None else mu * math.sqrt(1 - share), "training of one candidate, at most")
    score = part(mu if share is None else mu * math.sqrt(share), "noisy score of one candidate")
    base, holdout = ((train, score), ()) if share is not None else ((train,), (score,))
    return Selection(base=base, holdout=holdout, trials=Trials(mean_trials)), train, score


@functools.lru_cache(maxsize=128)
def calibrated(
    epsilon: float,
    delta: float,
    mean_trials: float,
    adjacency: Adjacency,
    share: float | None = None,
    arithmetic: Arithmetic = Arithmetic.FLOAT,
    unit: str = "record",
) -> Costs:
    """The largest μ of one candidate at which the search satisfies (ε, δ)-DP, and its certificate.

    δ(ε) rises with μ, so δ(ε) = δ is solved for μ: one evaluation of the bound a step (``tacit.accounting.calibrate``
    inverts the curve at each, which takes ten times as long). The result is certified as any other plan.

    Args:
        epsilon: ε of the whole search.
        delta: its δ.
        mean_trials: m.
        adjacency: the relation.
        share: of μ², for the score; None if it reads a hold-out.
        arithmetic: of candidates and scores.
        unit: whose data a record is.

    Returns:
        The costs.

    Raises:
        InvalidInput: if there is hardly ever a candidate.
        NotCovered: if no μ is certified.
    """

    def excess(log_mu: float) -> float:
        mu = math.exp(log_mu)
        found = refined_delta(mu, mean_trials, epsilon)
        if found == 1:  # also where it would overflow
            found = theorem_51_delta(lambda e: float(gdp_delta(mu, e)), mean_trials, epsilon)
        return math.log(max(found, 1e-300)) - math.log(delta)

    low = high = math.log(float(gdp_mu(epsilon, delta)))
    while excess(high) <= 0:
        high += 0.7
        if high > 20:
            raise InvalidInput(f"mean_trials must be well above delta, got {mean_trials!r}: 1 to 100 is common")
    while excess(low) > 0 and low > -40:
        low -= 0.7
    mu = math.exp(low if low <= -40 else float(optimize.brentq(excess, low, high, xtol=_SLACK / 4)))
    for slack in (_SLACK, 1e-4, 1e-2):
        selection, train, score = _selection(mu * (1 - slack), mean_trials, adjacency, share, arithmetic, unit)
        certificate = certify(selection, delta=delta)
        if certificate.epsilon(delta) <= epsilon:
            return Costs(certificate, train.ratio.max, score)
    raise NotCovered(
        f"no cost of a candidate is certified at ε = {epsilon:g}, δ = {delta:g}, mean_trials = {mean_trials:g}: raise "
        "epsilon or delta, or try fewer candidates",
        axis="epsilon",
    )


@functools.lru_cache(maxsize=128)
def gdp_to_dp(mu: float, delta: float) -> tuple[float, float]:
    """(ε, δ), as parameters of an estimator, whose Gaussian μ is this one reduced by 1e-7 against rounding."""
    mine = mu * (1 - 1e-7)
    d = min(delta, 0.1 * float(gdp_delta(mine, 0.0)))
    return float(gdp_epsilon(mine, d)), d


def check_candidate(
    certificate: Certificate,
    limit: float,
    relation: Adjacency,
    point: str,
    *,
    delta: float,
    marks: Iterable[str],
    remedy: str,
    arithmetic: Arithmetic = Arithmetic.FLOAT,
    unit: str = "record",
) -> None:
    """Refuse a candidate that is not part of a μ-GDP base; nothing has been read.

    Args:
        certificate: of the candidate's plan, with what the user declares as marks.
        limit: μ that it may cost.
        relation: of the search.
        point: the candidate, for the message.
        delta: at which the candidate was calibrated.
        marks: of the search's own certificate, which are the same whatever is drawn.
        remedy: what to do if there is no μ.
        arithmetic: of the search.
        unit: of the search.

    Raises:
        NotCovered: with the reason.
    """
    mu = certificate.mu
    shared = {PUBLIC_NUMBERS, SECRET_DURATION, ARITHMETIC[arithmetic]}  # what the search declares itself
    if mu is None or (mu > limit and certificate.epsilon(delta) < (1 - 1e-6) * float(gdp_epsilon(mu, delta))):
        # Of a secret partition some theorem has a μ, but the noise was calibrated by another: a profile, and smaller.
        why = f"{certificate.theorem} gives no μ; {remedy}"
    elif not mu <= limit:
        why = f"it costs μ = {mu:.6g}, more than the {limit:.6g} of a candidate; please report this"
    elif certificate.adjacency is not relation or certificate.unit != unit:
        why = "it is certified under another relation or unit; candidates and search must share both"
    elif certificate.arithmetic == "float" and arithmetic is Arithmetic.EXACT:
        why = "it runs in floating point, and the search promises exact arithmetic; search in floating point"
    elif set(certificate.marks) - set(marks) or any(
        assumption.evidence is Evidence.DECLARED for assumption in set(certificate.assumptions) - shared
    ):
        why = "it rests on a declaration, which the search could not pass on without telling what it tried"
    else:
        return
    raise NotCovered(f"the candidate {point} cannot be searched over: {why}", axis="base")
