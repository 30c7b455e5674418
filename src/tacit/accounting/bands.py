"""How many bands correlated noise should have: less error per unit of noise against more noise per ε.

A strategy with b bands needs b groups that take turns, so each record may be read ⌈T/b⌉ times with the rate B·b/n
instead of T times with B/n. More bands cancel more noise, and lose amplification by sampling.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from scipy import optimize

from tacit import _validate
from tacit.accounting import pld
from tacit.accounting.banded import banded_rate
from tacit.accounting.calibration import banded_noise_multiplier
from tacit.accounting.poisson import sampled_curve
from tacit.errors import InvalidInput, NotCovered
from tacit.mechanism import Adjacency, Schedule

if TYPE_CHECKING:  # imported when it is needed
    from tacit.noise import Optimum, Workload

__all__ = ["BandCandidate", "BandChoice", "choose_bands"]

_RISEN = 1.02
_ROUGH, _ROUGH_DEFICIENT = 25, 200  # evaluations while comparing: errors within 0.3 % (2 %) of the optimum
_LOW, _HIGH = math.log(1e-3), math.log(1e9)


@dataclass(frozen=True)
class BandCandidate:
    """One number of bands.

    Attributes:
        bands: b.
        noise_multiplier: σ/C that suffices; certified for the chosen one, up to 0.2 % too much for others.
        error: F(C) of the strategy found, per unit of noise variance; optimal for the chosen one, nearly for others.
        noise: noise_multiplier·√error, what is minimised: the root mean squared error of the workload in clips.
    """

    bands: int
    noise_multiplier: float
    error: float

    @property
    def noise(self) -> float:
        """σ/C·√error."""
        return self.noise_multiplier * math.sqrt(self.error)


@dataclass(frozen=True, eq=False)
class BandChoice:
    """The number of bands with the least noise, and what else was tried.

    Attributes:
        bands: b.
        noise_multiplier: σ/C, certified.
        optimum: the strategy with its certified gap.
        table: every candidate that was tried, fewest bands first.
    """

    bands: int
    noise_multiplier: float
    optimum: Optimum
    table: tuple[BandCandidate, ...]


def choose_bands(
    epsilon: float,
    delta: float,
    *,
    n: int,
    batch_size: int,
    steps: int,
    adjacency: Adjacency | str = "zero-out",
    workload: Workload | None = None,
    candidates: Sequence[int] | None = None,
    tolerance: float | None = None,
) -> BandChoice:
    """The number of bands b that minimises σ(b)·√error(b): privacy and utility together.

    σ(b) is the noise multiplier of a banded strategy with cyclic Poisson sampling (⌈T/b⌉ sampled Gaussians of rate
    B·b/n), error(b) the least error of the workload with b bands and unit columns. Candidates are compared on a
    coarse grid of privacy losses (still an upper bound) and with strategies that are nearly optimal.

    Reference: Choquette-Choo et al. (2023), (Amplified) Banded Matrix Factorization, Theorem 4.

    Formal guarantee: the chosen strategy with the noise multiplier returned satisfies (ε, δ)-DP under the relation, as
    ``banded_noise_multiplier`` certifies; its optimum has a certified gap. That no other b is better is a comparison
    of numbers that are right within a percent, not a theorem.

    Assumptions: those of ``BandedCyclicPoisson``; every argument is public, so that the choice costs nothing.

    Args:
        epsilon: the target ε.
        delta: the target δ.
        n: the number of records (nominal under add/remove).
        batch_size: the expected batch B.
        steps: T.
        adjacency: the relation.
        workload: what the noise is held against, of T steps; ``prefix_sum(steps)`` if missing.
        candidates: numbers of bands to try, all of them; if missing 1, 2, 3, 5, 7, 10, 14, 20, … as long as B·b ≤ n and
            b ≤ T, until the noise has risen by 2 %.
        tolerance: certified gap of the chosen strategy; that of ``optimise`` if missing.

    Returns:
        The choice, with a table of all candidates.

    Raises:
        InvalidInput: if the workload has another number of steps, a candidate does not fit, or no noise suffices.
    """
    from tacit.noise import Workload, optimise, prefix_sum

    T, relation = _validate.positive_int(steps=steps), Adjacency.parse(adjacency)
    budget = _validate.positive(epsilon=epsilon), _validate.delta(delta)
    goal = None if tolerance is None else _validate.positive(tolerance=tolerance)
    A = prefix_sum(T) if workload is None else workload
    if not isinstance(A, Workload):
        raise InvalidInput("workload must be a Workload of tacit.noise: use prefix_sum or sgd_workload")
    if A.steps != T:
        raise InvalidInput(f"the workload has {A.steps} steps, the run {T}: make it for as many steps")
    rates = {b: banded_rate(n, batch_size, b) for b in _candidates(n, batch_size, T, candidates)}
    table: list[BandCandidate] = []
    rough: list[Optimum] = []
    for b, rate in rates.items():
        sigma = _rough_multiplier(_epsilon(relation, rate, -(-T // b), budget), budget[0], _guess(table, b))
        rough.append(optimise(A, b, max_evaluations=_ROUGH if A.full_rank else _ROUGH_DEFICIENT))
        table.append(BandCandidate(b, sigma, rough[-1].error))
        if candidates is None and table[-1].noise > _RISEN * min(row.noise for row in table):
            break
    best = min(range(len(table)), key=lambda i: table[i].noise)
    b = table[best].bands
    sigma = banded_noise_multiplier(*budget, n=n, batch_size=batch_size, steps=T, bands=b, adjacency=relation)
    start = rough[best].strategy if A.full_rank else None
    optimum = optimise(A, b, tolerance=goal, start=start)
    table[best] = BandCandidate(b, sigma, optimum.error)
    return BandChoice(b, sigma, optimum, tuple(table))


def _candidates(n: int, batch_size: int, steps: int, given: Sequence[int] | None) -> list[int]:
    """Increasing numbers of bands; those by default fit the records and the steps."""
    banded_rate(n, batch_size, 1)  # else none fits
    if given is None:
        most = min(n // batch_size, steps)
        return [b for b in (1, 2, 3, *(round(10 * 2 ** (k / 2)) for k in range(-2, 60))) if b <= most]
    if not isinstance(given, Sequence) or len(given) == 0:
        raise InvalidInput("candidates must be a list of at least one number of bands: leave it out for the usual ones")
    found = sorted({_validate.positive_int(candidates=b) for b in given})
    if found[-1] > steps:
        raise InvalidInput(f"candidates has {found[-1]} bands for {steps} steps: use at most {steps}")
    return found


def _guess(table: Sequence[BandCandidate], bands: int) -> float | None:
    """The logarithm of σ, along the line through the last two candidates (it is nearly linear in log b)."""
    if len(table) < 2:
        return None
    one, two = table[-2:]
    slope = math.log(two.noise_multiplier / one.noise_multiplier) / math.log(two.bands / one.bands)
    return math.log(two.noise_multiplier) + slope * math.log(bands / two.bands)


def _epsilon(relation: Adjacency, rate: float, count: int, budget: tuple[float, float]) -> Callable[[float], float]:
    """ε of ``count`` sampled Gaussians as a function of log σ, on a coarse grid: an upper bound."""
    target, delta = budget
    coarseness = 10.0 if target >= 2 else 5.0

    def value(log_sigma: float) -> float:
        ratio = Schedule.constant(relation.sum_factor / math.exp(log_sigma), count)
        try:
            with pld.upper_only(coarseness):
                return sampled_curve(relation, ratio, rate).epsilon(delta)
        except NotCovered:  # almost no noise
            return math.inf

    return value


def _rough_multiplier(epsilon: Callable[[float], float], target: float, guess: float | None) -> float:
    """σ with ε(σ) = target, to 1e-4: a bracket around the guess (from much noise down, without one), then its root."""

    @functools.cache
    def excess(x: float) -> float:
        return min(math.log(max(epsilon(x), 1e-300) / target), 700.0)

    x, step = (math.log(4.0), math.log(2.0)) if guess is None else (min(max(guess, _LOW), _HIGH), 0.02)
    up = excess(x) > 0
    last = x
    while (excess(x) > 0) == up:
        last, x, step = x, min(max(x + (step if up else -step), _LOW), _HIGH), 1.5 * step
        if x == last and up:
            raise InvalidInput(f"no noise up to 1e9 reaches ε = {target:g}: raise epsilon, or take fewer steps")
        if x == last:
            return math.exp(x)  # next to none suffices
    return math.exp(float(optimize.brentq(excess, min(last, x), max(last, x), xtol=1e-4)))
