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
from tacit.accounting.calibration import banded_noise_multiplier, feasible_secant
from tacit.accounting.gdp import gdp_mu
from tacit.accounting.poisson import sampled_curve
from tacit.errors import InvalidInput, NotCovered
from tacit.mechanism import Adjacency, Schedule

if TYPE_CHECKING:  # imported when it is needed
    from tacit.noise import Optimum, Workload

__all__ = ["BandCandidate", "BandChoice", "choose_bands"]

_ROUGH, _ROUGH_DEFICIENT = 6, 100  # evaluations while comparing: errors within 0.8 % (2 %) of the optimum
_NEAR = 5e-4  # relative accuracy of σ while comparing
_LOW, _HIGH = math.log(1e-3), math.log(1e9)


@dataclass(frozen=True)
class BandCandidate:
    """One number of bands.

    Attributes:
        bands: b.
        noise_multiplier: σ/C that suffices; certified for the chosen one, up to 0.2 % off for others.
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
        candidates: numbers of bands to try, all of them; if missing 1 and those of 1, 2, 3, 5, 7, 10, 14, 20, … with
            B·b ≤ n and b ≤ T that bisection visits, because the noise falls and then rises: the best one's neighbours
            are among them.
        tolerance: certified gap of the chosen strategy; that of ``optimise`` if missing.

    Returns:
        The choice, with a table of all candidates.

    Raises:
        InvalidInput: if the workload has another number of steps, a candidate does not fit, or no noise suffices.
    """
    from tacit.noise import optimise

    goal = None if tolerance is None else _validate.positive(tolerance=tolerance)
    row, rough, table, A = compare_bands(
        epsilon,
        delta,
        n=n,
        batch_size=batch_size,
        steps=steps,
        adjacency=adjacency,
        workload=workload,
        candidates=candidates,
    )
    sigma = banded_noise_multiplier(
        epsilon,
        delta,
        n=n,
        batch_size=batch_size,
        steps=steps,
        bands=row.bands,
        adjacency=adjacency,
        start=row.noise_multiplier,
    )
    optimum = optimise(A, row.bands, tolerance=goal, start=rough.strategy if A.full_rank else None)
    final = BandCandidate(row.bands, sigma, optimum.error)
    return BandChoice(row.bands, sigma, optimum, tuple(final if old is row else old for old in table))


def compare_bands(
    epsilon: float,
    delta: float,
    *,
    n: int,
    batch_size: int,
    steps: int,
    adjacency: Adjacency | str,
    workload: Workload | None,
    candidates: Sequence[int] | None = None,
) -> tuple[BandCandidate, Optimum, tuple[BandCandidate, ...], Workload]:
    """The comparison of ``choose_bands`` alone, without a certified multiplier.

    Args:
        epsilon: as there, also the rest.
        delta: δ.
        n: the number of records.
        batch_size: B.
        steps: T.
        adjacency: the relation.
        workload: what the noise is held against.
        candidates: numbers of bands to try.

    Returns:
        The best candidate, its rough strategy, everything that was tried, and the workload.

    Raises:
        InvalidInput: as there.
    """
    from tacit.noise import Workload, prefix_sum

    T, relation = _validate.positive_int(steps=steps), Adjacency.parse(adjacency)
    A = prefix_sum(T) if workload is None else workload
    if not isinstance(A, Workload):
        raise InvalidInput("workload must be a Workload of tacit.noise: use prefix_sum or sgd_workload")
    if A.steps != T:
        raise InvalidInput(f"the workload has {A.steps} steps, the run {T}: make it for as many steps")
    numbers = _candidates(n, batch_size, T, candidates)
    rates = [banded_rate(n, batch_size, b) for b in numbers]
    search = _Search(numbers, rates, A, relation, (_validate.positive(epsilon=epsilon), _validate.delta(delta)))
    best = search.least(every=candidates is not None)
    rows = tuple(search.rows[i] for i in sorted(search.rows))
    return search.rows[best], search.optima[best], rows, A


class _Search:
    """Noise by number of bands, each found once, with guesses from its neighbours.

    Attributes:
        rows: what was found, by place among the candidates.
        optima: the rough strategies.
    """

    def __init__(
        self,
        numbers: Sequence[int],
        rates: Sequence[float],
        workload: Workload,
        relation: Adjacency,
        budget: tuple[float, float],
    ) -> None:
        self._numbers, self._rates, self._workload = numbers, rates, workload
        self._relation, self._budget = relation, budget
        self.rows: dict[int, BandCandidate] = {}
        self.optima: dict[int, Optimum] = {}

    def least(self, *, every: bool) -> int:
        """The place with the least noise: of all candidates, or by bisection between neighbours and the first."""
        low, high = 0, len(self._numbers) - 1
        self._noise(low)
        for place in range(high + 1) if every else ():
            self._noise(place)
        while not every and low < high:
            middle = (low + high) // 2
            rising = self._noise(middle) <= self._noise(middle + 1)
            low, high = (low, middle) if rising else (middle + 1, high)
        return min(self.rows, key=lambda place: self.rows[place].noise)

    def _noise(self, place: int) -> float:
        if place not in self.rows:
            b, rate, T = self._numbers[place], self._rates[place], self._workload.steps
            epsilon = _epsilon(self._relation, rate, -(-T // b), self._budget)
            sigma = _rough_multiplier(epsilon, self._budget[0], self._guess(place))
            self.optima[place] = _rough_optimum(self._workload, b)
            self.rows[place] = BandCandidate(b, sigma, self.optima[place].error)
        return self.rows[place].noise

    def _guess(self, place: int) -> float:
        """Log σ by the central limit, corrected by what that misses at the nearest candidate."""
        guess = self._central(place)
        near = min(self.rows, key=lambda other: abs(other - place), default=None)
        return guess if near is None else guess + math.log(self.rows[near].noise_multiplier) - self._central(near)

    def _central(self, place: int) -> float:
        """Log σ if the privacy loss were Gaussian: μ² = q²·⌈T/b⌉·(e^{1/σ²} − 1), in units of one record's move."""
        count = -(-self._workload.steps // self._numbers[place])
        mu = gdp_mu(*self._budget)
        return -0.5 * math.log(math.log1p((mu / self._rates[place]) ** 2 / count)) + math.log(self._relation.sum_factor)


def _rough_optimum(workload: Workload, bands: int) -> Optimum:
    """A strategy that is good enough to compare numbers of bands by."""
    from tacit.noise import Strategy, optimise, stationary_columns

    start = Strategy(stationary_columns(workload.steps, bands))
    return optimise(
        workload, bands, start=start, max_evaluations=_ROUGH if workload.full_rank else _ROUGH_DEFICIENT, tolerance=1e-3
    )


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
    """σ with ε(σ) = target: secants from the guess, else a bracket (from much noise down, without a guess)."""

    @functools.cache
    def excess(x: float) -> float:
        return min(math.log(max(epsilon(x), 1e-300) / target), 700.0)

    found = None if guess is None else feasible_secant(excess, guess, _LOW, _HIGH, _NEAR)
    if found is not None:
        return math.exp(found[0])
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
