"""Poisson-sampled Gaussians as privacy loss distributions: an upper and a lower value of ε.

The upper (pessimistic) value is dp_accounting's: its "connect the dots" discretisation of the dominating pair, composed
by FFT. The lower (optimistic) value is ours, because dp_accounting's rounds every loss down, which over T rounds loses
about T·h/2: we bin the outputs of the pair into cells of the same loss grid (``loss_cells``). Binning is
post-processing, so it can only lower every divergence, and by the second order in h only.

Our values are composed with exponential tilting (``tilted``), which has no rounding floor in δ; below δ = 1e-9, and
on finer grids than the first, the upper value is composed that way, too.

Noise multipliers are relative to one record's clip C: under replace-one the sum moves by 2C = 2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from tacit.accounting.loss_cells import Side, loss_range, optimistic_cells, pessimistic_cells
from tacit.accounting.tilted import Losses, tilted_delta, tilted_epsilon
from tacit.errors import InvalidInput, NotCovered
from tacit.mechanism import Adjacency

__all__ = ["FFT_FLOOR", "delta", "epsilon", "epsilon_interval", "upper_only"]

Array = NDArray[np.float64]
Rounds = tuple[tuple[float, float, int], ...]

DEFAULT_GRID = 1e-4
"""dp_accounting's own discretisation interval: used unless the losses are too small or too large for it."""
FFT_FLOOR = 1e-12
"""Rounding of a plain FFT, in δ: added against us."""
GOOD_GAP, WORST_GAP = 2e-3, 5e-2
"""Relative width of the ε interval at which we stop refining, and above which we refuse (unless ε has settled)."""
SMALL_DELTA = 1e-9
"""Below it, compose with tilting."""
_MAX_POINTS = 30_000_000
_upper_only: ContextVar[float | None] = ContextVar("upper_only", default=None)


@contextmanager
def upper_only(coarseness: float) -> Iterator[None]:
    """Within: no lower value, and a grid coarser by this factor. Still an upper bound, good enough for a search.

    Above 1 it is our own upper value, which is within 1e-4 of the fine grid's and takes a fiftieth of its time.
    """
    token = _upper_only.set(coarseness)
    try:
        yield
    finally:
        _upper_only.reset(token)


def _relation(adjacency: Adjacency) -> Any:
    from dp_accounting import NeighboringRelation

    return {
        Adjacency.ADD_REMOVE: NeighboringRelation.ADD_OR_REMOVE_ONE,
        Adjacency.ZERO_OUT: NeighboringRelation.REPLACE_SPECIAL,
        Adjacency.REPLACE_ONE: NeighboringRelation.REPLACE_ONE,
    }[adjacency]


def _multiplier(adjacency: Adjacency, ratio: float) -> float:
    """σ/C of a release with ratio Δ/σ (Δ = 2C under replace-one): dp_accounting's convention."""
    return adjacency.sum_factor / ratio


@functools.lru_cache(maxsize=64)
def _pessimistic(adjacency: Adjacency, rounds: Rounds, mu: float, grid: float) -> Any:
    from dp_accounting.pld import privacy_loss_distribution as plds

    relation = _relation(adjacency)
    total = plds.identity(value_discretization_interval=grid)
    if mu > 0:
        sigma = _multiplier(adjacency, mu)
        total = total.compose(
            plds.from_gaussian_mechanism(sigma, value_discretization_interval=grid, neighboring_relation=relation)
        )
    for ratio, rate, count in rounds:
        one = plds.from_gaussian_mechanism(
            _multiplier(adjacency, ratio),
            value_discretization_interval=grid,
            sampling_prob=rate,
            neighboring_relation=relation,
        )
        total = total.compose(one.self_compose(count))
    return total


# -- our own composition --------------------------------------------------------------------------------------------


def _sides(adjacency: Adjacency) -> tuple[Side, ...]:
    return ("replace",) if adjacency is Adjacency.REPLACE_ONE else ("remove", "add")


def _releases(rounds: Rounds, mu: float, factor: float) -> list[tuple[float, float, int]]:
    """(σ in units of one clip, rate, count) of everything composed, plain Gaussians included."""
    parts = [(factor / ratio, rate, count) for ratio, rate, count in rounds]
    return [*parts, (factor / mu, 1.0, 1)] if mu > 0 else parts


@functools.lru_cache(maxsize=64)
def _losses(
    side: Side, rounds: Rounds, mu: float, grid: float, factor: float, *, upper: bool, smallest: float
) -> tuple[Losses, ...]:
    """Every release's losses, cut where all of them together have less than 1e-4 of the smallest δ of interest."""
    cells = pessimistic_cells if upper else optimistic_cells
    releases = _releases(rounds, mu, factor)
    reach = float(-ndtri(max(1e-4 * smallest / sum(count for _, _, count in releases), 1e-300))) + 0.5
    return tuple(Losses(*cells(side, rate, sigma, grid, reach), count) for sigma, rate, count in releases)


def _tilted(adjacency: Adjacency, rounds: Rounds, mu: float, target: float, grid: float, *, upper: bool) -> float:
    factor = adjacency.sum_factor
    return max(
        tilted_epsilon(_losses(side, rounds, mu, grid, factor, upper=upper, smallest=target), grid, target, upper=upper)
        for side in _sides(adjacency)
    )


# -- the interval -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=512)
def _grids(adjacency: Adjacency, rounds: Rounds, mu: float) -> tuple[float, ...]:
    """Discretisation intervals to try, coarse to fine, fitting the range of one release's loss."""
    side = _sides(adjacency)[0]
    spans = [loss_range(side, rate, sigma) for sigma, rate, _ in _releases(rounds, mu, adjacency.sum_factor)]
    if not max(spans) < 1e5:
        raise NotCovered("there is almost no noise, so one release loses everything: add noise", axis="ratio")
    coarse = min(DEFAULT_GRID, 10 ** math.floor(math.log10(min(spans) / 100)))
    # The first grid has at most 5·10⁵ cells and is fast; a finer one, up to 3·10⁶, is tried if the bracket is wide.
    first = max(coarse, 10 ** math.ceil(math.log10(max(spans) / 5e5)))
    return tuple(g for g in (first, first / 10, first / 100) if g == first or g >= max(spans) / 3e6)


def _upper(adjacency: Adjacency, rounds: Rounds, mu: float, target: float, grid: float) -> float:
    """Dp_accounting's value where it is at its best: not too small a δ, not too fine a grid."""
    if target < SMALL_DELTA or grid < _grids(adjacency, rounds, mu)[0]:
        return _tilted(adjacency, rounds, mu, target, grid, upper=True)
    try:
        total = _pessimistic(adjacency, rounds, mu, grid)
    except ValueError:  # it trips over its own rounding at rates near its grid
        return _tilted(adjacency, rounds, mu, target, grid, upper=True)
    return float(total.get_epsilon_for_delta(target - FFT_FLOOR))


@functools.lru_cache(maxsize=512)
def _refined(adjacency: Adjacency, rounds: Rounds, mu: float, target: float) -> tuple[float, float, bool]:
    """(optimistic, pessimistic, settled): the best pair found, refining the grid until it is narrow.

    Settled means that the upper value moved by less than 1 % when the grid became ten times finer: then a wide
    bracket is the lower value's fault.

    Returns:
        Two values that bracket ε, and whether the upper one has settled.
    """
    low, high, settled = 0.0, math.inf, False
    for grid in _grids(adjacency, rounds, mu):
        if high < math.inf and 4 * (high + 1) / grid > _MAX_POINTS:
            break  # the composed distribution would not fit in memory
        upper = _upper(adjacency, rounds, mu, target, grid)
        settled = abs(upper - high) <= 1e-2 * upper
        high = min(high, upper)
        low = max(low, _tilted(adjacency, rounds, mu, target, grid, upper=False))
        if high - low <= GOOD_GAP * high:
            break
    return low, high, settled


def epsilon_interval(adjacency: Adjacency, rounds: Rounds, mu: float, target: float) -> tuple[float, float]:
    """(optimistic, pessimistic) ε at δ = ``target``.

    Args:
        adjacency: the relation.
        rounds: (ratio, rate, count) of each kind of sampled release.
        mu: of the plain Gaussian releases composed with them.
        target: δ.

    Returns:
        Two values that bracket the ε of the dominating pair.

    Raises:
        InvalidInput: if the two values contradict each other (a numerical failure).
    """
    low, high, _ = _refined(adjacency, rounds, mu, target)
    if low > high * (1 + 1e-9) + 1e-12:
        raise InvalidInput(
            f"the accountant's lower value {low:.6g} exceeds its upper value {high:.6g}: numerically "
            "unreliable here; change delta or the noise"
        )
    return low, high


def epsilon(adjacency: Adjacency, rounds: Rounds, mu: float, target: float) -> float:
    """The pessimistic ε, refused if the truth may lie far below it.

    Args:
        adjacency: the relation.
        rounds: (ratio, rate, count) of each kind of sampled release.
        mu: of the plain Gaussian releases composed with them.
        target: δ.

    Returns:
        An upper bound on ε.

    Raises:
        NotCovered: if the interval is too wide to be a fair statement.
    """
    coarseness = _upper_only.get()
    if coarseness is not None and coarseness > 1:
        grid = coarseness * _grids(adjacency, rounds, mu)[0]
        return _tilted(adjacency, rounds, mu, target, grid, upper=True)
    if coarseness is not None:
        return _upper(adjacency, rounds, mu, target, coarseness * _grids(adjacency, rounds, mu)[0])
    low, high = epsilon_interval(adjacency, rounds, mu, target)
    settled = _refined(adjacency, rounds, mu, target)[2]
    if high - low > max(WORST_GAP * high, 1e-3) and not settled:
        raise NotCovered(
            f"the privacy loss could only be bracketed to [{low:.4g}, {high:.4g}] at delta={target:g}: too wide "
            "to certify; refine by a larger delta, fewer steps, or a larger sampling rate with more noise",
            axis="delta",
        )
    return high


@functools.lru_cache(maxsize=16)
def _tails(adjacency: Adjacency, rounds: Rounds, mu: float) -> tuple[tuple[float, Array, Array, Array], ...]:
    """(mass at ∞, losses l ≥ 0, Σ_{≥l} p, Σ_{≥l} p e^{−l}) of each direction, on the first grid."""
    total = _pessimistic(adjacency, rounds, mu, _grids(adjacency, rounds, mu)[0])
    out = []
    for pmf in {id(p): p for p in (total._pmf_remove, total._pmf_add)}.values():
        dense = pmf.to_dense_pmf()
        losses = (np.arange(dense.size) + dense._lower_loss) * dense._discretization
        keep = losses >= 0
        losses, probs = losses[keep], np.asarray(dense._probs)[keep]
        above = np.append(np.cumsum(probs[::-1])[::-1], 0.0)
        damped = np.append(np.cumsum((probs * np.exp(-losses))[::-1])[::-1], 0.0)
        out.append((float(dense._infinity_mass), losses, above, damped))
    return tuple(out)


def delta(adjacency: Adjacency, rounds: Rounds, mu: float, at: float) -> float:
    """The pessimistic δ at ε = ``at``, on the first grid: Σ_{l>ε} p(l)(1 − e^{ε−l}), from running sums."""
    if not 0 <= at < 700:
        total = _pessimistic(adjacency, rounds, mu, _grids(adjacency, rounds, mu)[0])
        return min(1.0, float(total.get_delta_for_epsilon(at)) + FFT_FLOOR)
    values = []
    for infinite, losses, above, damped in _tails(adjacency, rounds, mu):
        i = int(np.searchsorted(losses, at, side="right"))
        values.append(infinite + max(0.0, above[i] - math.exp(at) * damped[i]))
    value = float(min(1.0, max(values) + FFT_FLOOR))
    if value >= SMALL_DELTA:
        return value
    grid, factor = _grids(adjacency, rounds, mu)[0], adjacency.sum_factor
    far = (
        tilted_delta(_losses(side, rounds, mu, grid, factor, upper=True, smallest=1e-30), grid, at)
        for side in _sides(adjacency)
    )
    return min(value, max(far))
