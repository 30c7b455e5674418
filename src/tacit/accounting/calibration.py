"""Solve a guarantee for one of its parameters, rounding towards privacy.

``calibrate`` finds the least noise, ``max_feasible`` the largest count (steps, epochs, batch size) within a budget.
Both take a function from the parameter to a plan, so they work for every theorem, and both certify what they return.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy import optimize

from tacit import _validate
from tacit.accounting import pld
from tacit.accounting.banded import banded_rate
from tacit.accounting.certificate import Certificate, certify
from tacit.errors import InvalidInput
from tacit.mechanism import (
    Adjacency,
    CyclicPoisson,
    Groups,
    Independent,
    Mechanism,
    Part,
    Plan,
    Schedule,
)

__all__ = ["Calibration", "banded_noise_multiplier", "calibrate", "feasible_secant", "max_feasible"]

Maker = Callable[[float], Plan | Part]
TOLERANCE = 1e-6
"""Relative excess of noise that calibration may leave."""
_STAGES = ((10.0, 1e-4), (2.0, TOLERANCE))
"""Coarseness and tolerance of searches on the way: the last one ends where the finest grid hardly differs."""
SLOPE = -1.3
"""A first guess of d log ε / d log σ: between −1 for much noise and −2 for little."""
_SECANTS = 6


@dataclass(frozen=True)
class Calibration:
    """A parameter and the certificate of the plan it gives."""

    value: float
    certificate: Certificate


def calibrate(
    make_plan: Maker,
    *,
    epsilon: float,
    delta: float,
    lower: float = 1e-3,
    upper: float = 1e9,
    start: float | None = None,
) -> Calibration:
    """The smallest noise x in [lower, upper] whose plan satisfies (ε, δ)-DP.

    A coarse discretisation narrows the search where sampling makes each evaluation costly; secants in log x and log ε
    then find the point, and bisection does where they do not settle. The result is certified at full precision.

    Args:
        make_plan: from a noise level (more is more private) to a plan.
        epsilon: the target ε.
        delta: the target δ.
        lower: the least noise considered.
        upper: the most noise considered.
        start: a guess of the result; a good one saves most of the evaluations.

    Returns:
        The noise level, rounded up, and its certificate.

    Raises:
        InvalidInput: if even ``upper`` does not reach the target, or arguments are out of range.
    """
    _check_maker(make_plan, "lambda noise: Mechanism(..., ratio=sensitivity / noise)")
    target, d = _validate.positive(epsilon=epsilon), _validate.delta(delta)
    low, high = _validate.positive(lower=lower), _validate.positive(upper=upper)

    @functools.cache
    def excess(log_noise: float) -> float:
        value = certify(make_plan(math.exp(log_noise)), delta=d).epsilon(d)
        return math.log(max(value, 1e-300) / target) if math.isfinite(value) else 700.0

    a, b = math.log(low), math.log(high)
    rough = None if start is None else math.log(_validate.positive(start=start))
    with pld.upper_only(10.0):
        rough = _root(excess, *_bracket(excess, a, b), 1e-3) if rough is None else min(max(rough, a), b)
    slope = SLOPE
    for coarseness, tolerance in _STAGES:
        excess.cache_clear()
        with pld.upper_only(coarseness):
            rough, slope = feasible_secant(excess, rough, a, b, tolerance, slope) or (rough, slope)
    excess.cache_clear()
    with pld.upper_only(1.0):
        noise = math.exp(_refine(excess, rough, a, b, slope))
    certificate = certify(make_plan(noise), delta=d)
    if certificate.epsilon(d) > target:
        raise InvalidInput(
            f"no noise up to {high:g} reaches ε = {target:g} at δ = {d:g}: raise epsilon, or take fewer steps"
        )
    return Calibration(noise, certificate)


def _check_maker(make_plan: object, example: str) -> None:
    if not callable(make_plan):
        raise InvalidInput(
            f"make_plan must be a function, got {type(make_plan).__name__}: what is looked for is its argument, so "
            f"pass e.g. {example}"
        )


def _root(excess: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Where the excess changes its sign; the end that is nearer to it if it does not."""
    if excess(low) <= 0:
        return low
    return high if excess(high) > 0 else float(optimize.brentq(excess, low, high, xtol=tolerance))


def _bracket(excess: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """A short interval around the sign change, walking down from much noise (cheap) to little (costly)."""
    x = min(max(math.log(8.0), low), high)
    step = math.log(3.0)
    if excess(x) <= 0:
        while x > low and excess(x) <= 0:
            x = max(x - step, low)
        return x, min(x + step, high)
    while x < high and excess(x) > 0:
        x = min(x + step, high)
    return max(x - step, low), x


def _refine(excess: Callable[[float], float], x: float, low: float, high: float, slope: float) -> float:
    """The smallest feasible point near ``x``, to TOLERANCE, rounded up to a feasible one."""
    if x <= low and excess(low) <= 0:
        return low
    found = feasible_secant(excess, x, low, high, TOLERANCE, slope)
    if found is not None:
        return found[0]
    width = 2 * abs(excess(x)) + TOLERANCE
    bad, good = x, x
    while bad > low and excess(bad) <= 0:
        good, bad, width = bad, max(bad - width, low), width * 4
    while good < high and excess(good) > 0:
        bad, good, width = good, min(good + width, high), width * 4
    if excess(good) > 0 or excess(bad) <= 0:
        return good
    root = float(optimize.brentq(excess, bad, good, xtol=TOLERANCE / 4))
    while excess(root) > 0:
        root += TOLERANCE / 4
    return root


def feasible_secant(
    excess: Callable[[float], float], x: float, low: float, high: float, tolerance: float, slope: float = SLOPE
) -> tuple[float, float] | None:
    """A feasible point at most ``tolerance`` above the sign change of a decreasing function, by secants.

    Args:
        excess: nearly linear; a point is feasible where it is not positive.
        x: the first point.
        low: no point at or below it is tried.
        high: no point at or above it is tried.
        tolerance: largest distance from the sign change, judged by the slope found.
        slope: a guess of the slope.

    Returns:
        The point and the slope there, or None if the secants do not settle: then bisect.
    """
    value = move = math.nan
    for call in range(_SECANTS):
        if not low < x < high:
            return None
        last, value = value, excess(x)
        if call:
            slope = (value - last) / move
            if not -20.0 < slope < -0.05:
                return None
        if slope * tolerance <= value <= 0:
            return x, slope
        move = -(value / slope) + tolerance / 2  # aims at a feasible point
        if abs(move) > 1.0:
            return None
        x += move
    return None


def max_feasible(
    make_plan: Callable[[int], Plan | Part],
    *,
    epsilon: float,
    delta: float,
    limit: int = 10_000_000,
    smallest: bool = False,
) -> Calibration:
    """The largest integer (steps, epochs, batch size) whose plan satisfies (ε, δ)-DP, or the smallest that does.

    Args:
        make_plan: from a count to a plan.
        epsilon: the target ε.
        delta: the target δ.
        limit: the largest count considered.
        smallest: False if the cost grows with the count (how many steps can I afford?), True if it falls with it (how
            large must a cyclic batch be?).

    Returns:
        The count and its certificate.

    Raises:
        InvalidInput: if no count up to ``limit`` fits, or arguments are out of range.
    """
    _check_maker(make_plan, "lambda count: Mechanism(..., steps=count)")
    target, d = _validate.positive(epsilon=epsilon), _validate.delta(delta)
    top = _validate.positive_int(limit=limit)

    @functools.cache
    def fits(count: int) -> bool:
        return certify(make_plan(count), delta=d).epsilon(d) <= target

    good, bad = _first_pair(fits, top, smallest)
    while abs(good - bad) > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return Calibration(good, certify(make_plan(good), delta=d))


def _first_pair(fits: Callable[[int], bool], top: int, smallest: bool) -> tuple[int, int]:
    """A count that fits and one that does not, from 1 upwards by doubling."""
    count = 1
    if fits(1) == smallest:
        if smallest:
            return 1, 1
        raise InvalidInput("not even a count of 1 fits the budget: raise epsilon, or add noise")
    while count < top and fits(count) != smallest:
        count = min(2 * count, top)
    if fits(count) != smallest:
        if smallest:
            raise InvalidInput(f"no count up to {top} fits the budget: raise epsilon, or add noise")
        return top, top
    last = max(count // 2, 1)
    return (count, last) if smallest else (last, count)


def banded_noise_multiplier(
    epsilon: float,
    delta: float,
    *,
    n: int,
    batch_size: int,
    steps: int,
    bands: int,
    adjacency: Adjacency | str,
    start: float | None = None,
) -> float:
    """σ/C for a banded strategy of unit columns with cyclic Poisson sampling (b = 1: DP-SGD).

    Args:
        epsilon: the target ε.
        delta: the target δ.
        n: the number of records (nominal under add/remove).
        batch_size: the expected batch B; within a group the rate is B·b/n.
        steps: T.
        bands: b.
        adjacency: the relation.
        start: a guess of the result.

    Returns:
        The smallest sufficient noise multiplier, relative to one record's clip, rounded up.
    """
    relation = Adjacency.parse(adjacency)
    rate = banded_rate(n, batch_size, bands)
    T = _validate.positive_int(steps=steps)
    groups = Groups.INDEPENDENT if relation is Adjacency.ADD_REMOVE else Groups.FIXED

    def make(noise_multiplier: float) -> Mechanism:
        return Mechanism(
            adjacency=relation,
            ratio=Schedule.constant(relation.sum_factor / noise_multiplier, T),
            steps=T,
            sampling=CyclicPoisson(bands, rate, groups),
            noise=Independent(),
        )

    return calibrate(make, epsilon=epsilon, delta=delta, start=start).value
