"""Poisson-sampled Gaussians as privacy loss distributions: an upper and a lower value of ε.

The upper (pessimistic) value is dp_accounting's: its "connect the dots" discretisation of the dominating
pair, composed by FFT. The lower (optimistic) value is ours, because dp_accounting's rounds every loss down,
which over T rounds loses T·h/2: we bin the outputs of the pair into cells of the same loss grid. Binning is
post-processing, so it can only lower every divergence, and by the second order in h only.

Noise multipliers are relative to one record's clip C: under replace-one the sum moves by 2C = 2.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tacit.errors import InvalidInput, NotCovered
from tacit.mechanism import Adjacency

__all__ = ["FFT_FLOOR", "delta", "epsilon", "epsilon_interval", "upper_only"]

Array = NDArray[np.float64]
Rounds = tuple[tuple[float, float, int], ...]
Side = Literal["add", "remove", "replace"]

DEFAULT_GRID = 1e-4
"""dp_accounting's own discretisation interval: used unless the losses are too small or too large for it."""
FFT_FLOOR = 1e-12
"""Rounding of the FFT, in δ: added against us. A δ near it cannot be certified by this method."""
GOOD_GAP, WORST_GAP = 2e-3, 5e-2
"""Relative width of the ε interval at which we stop refining, and above which we refuse."""
_MAX_POINTS = 30_000_000
_upper_only: ContextVar[float | None] = ContextVar("upper_only", default=None)


@contextmanager
def upper_only(coarseness: float) -> Iterator[None]:
    """Within: no lower value, and a grid coarser by this factor. Still an upper bound, good enough for a search."""
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


# -- the lower value ------------------------------------------------------------------------------------


def _loss_edges(side: Side, rate: float, sigma: float, losses: Array) -> Array:
    """Outputs x at which the privacy loss log dP/dQ equals ``losses`` (±∞ where it never does).

    "remove": P = (1−q)N(0) + qN(1), Q = N(0); "add": the same pair swapped, in −x, so that the loss grows;
    "replace": P as in "remove", Q = (1−q)N(0) + qN(−1).

    Returns:
        One x per loss.
    """
    if side == "add":
        return -_loss_edges("remove", rate, sigma, -losses)
    A = rate * math.exp(-0.5 / sigma**2)
    with np.errstate(divide="ignore", over="ignore"):
        if side == "remove":
            odds = (np.expm1(losses) + rate) / A
            return np.where(odds > 0, sigma**2 * np.log(np.maximum(odds, 1e-320)), -np.inf)
        # A·y² + (1−q)(1−e^l)·y − e^l·A = 0 for y = e^{x/σ²}, solved without cancellation
        b = (1 - rate) * -np.expm1(losses)
        root = np.sqrt(b * b + 4 * A * A * np.exp(losses))
        y = np.where(b > 0, 2 * A * np.exp(losses) / (b + root), (root - b) / (2 * A))
        return np.asarray(sigma**2 * np.log(y))


def _mass(x: Array, means: tuple[float, ...], weights: tuple[float, ...], sigma: float) -> Array:
    """Mixture mass of the cells between consecutive edges, each from the tail that is smaller."""
    total = np.zeros(len(x) - 1)
    for mean, weight in zip(means, weights, strict=True):
        z = (x - mean) / sigma
        upper = z[:-1] > 0
        cell = np.where(upper, ndtr(-z[:-1]) - ndtr(-z[1:]), ndtr(z[1:]) - ndtr(z[:-1]))
        total += weight * cell
    return total


def _cells(side: Side, rate: float, sigma: float, edges: Array) -> tuple[Array, Array]:
    """(P, Q) masses of the cells."""
    mixture = ((0.0, 1.0), (1 - rate, rate))
    if side == "remove":
        return _mass(edges, *mixture, sigma), _mass(edges, (0.0,), (1.0,), sigma)
    if side == "add":
        return _mass(edges, (0.0,), (1.0,), sigma), _mass(edges, (0.0, -1.0), (1 - rate, rate), sigma)
    return _mass(edges, *mixture, sigma), _mass(edges, (0.0, -1.0), (1 - rate, rate), sigma)


def _optimistic_cells(side: Side, rate: float, sigma: float, grid: float) -> tuple[int, Array]:
    """A sub-probability on grid losses whose divergences lie below those of the pair.

    Cell k lies around the loss kh, its edges placed such that its own loss log(p/q) is kh up to rounding.
    P-mass above e^{kh} q is dropped, which only lowers divergences; a cell that falls short (of the small
    masses in the tails only the leading digits are known) counts as (k−1)h.

    Returns:
        The index of the first loss, and the masses.

    Raises:
        NotCovered: if the losses span too many cells.
    """
    span = sigma * 12.0 + 1.0
    p, q = _log_densities(side, rate, sigma, np.array([-span, span]))
    low, high = math.floor((p[0] - q[0]) / grid) - 1, math.ceil((p[1] - q[1]) / grid) + 1
    if high - low > _MAX_POINTS:
        raise NotCovered("the privacy loss spans too many grid cells to bound ε from below; add noise", axis="ratio")
    k = np.arange(low, high + 1)
    losses = (np.arange(low, high + 2) - 0.5) * grid
    for sweep in range(6):
        edges = np.clip(_loss_edges(side, rate, sigma, losses), -span, span)
        P, Q = _cells(side, rate, sigma, edges)
        full = (P > 1e-200) & (Q > 1e-200)
        excess = np.where(full, np.log(np.where(full, P, 1.0) / np.where(full, Q, 1.0)) - k * grid, 0.0)
        if sweep == 5:
            break
        excess = np.clip(excess, -grid / 4, grid / 4)
        if sweep == 4:  # land a hair above: rounding must not push a cell of real mass below its loss
            excess = excess - 1e-12
        losses[1:-1] -= (excess[1:] + excess[:-1]) / 2
    reached = k - (excess < 0)  # the largest grid loss that the cell's own loss reaches
    log_q = np.log(np.where(full, Q, 1.0))
    mass = np.where(full, np.minimum(P, np.exp(np.minimum(reached * grid + log_q, 0.0))), 0.0)
    probs = np.where(excess >= 0, mass, 0.0)
    probs[:-1] += np.where(excess < 0, mass, 0.0)[1:]
    return low, probs


def _log_densities(side: Side, rate: float, sigma: float, x: Array) -> tuple[Array, Array]:
    """Log P and log Q up to a common constant."""
    base = np.zeros_like(x)
    with np.errstate(divide="ignore"):
        up = np.logaddexp(np.log1p(-rate), np.log(rate) + (x - 0.5) / sigma**2)
        down = np.logaddexp(np.log1p(-rate), np.log(rate) + (-x - 0.5) / sigma**2)
    return {"remove": (up, base), "add": (base, down), "replace": (up, down)}[side]


@functools.lru_cache(maxsize=64)
def _optimistic(side: Side, rounds: Rounds, mu: float, grid: float, factor: float) -> Any:
    from dp_accounting.pld import pld_pmf

    parts = [(factor / ratio, rate, count) for ratio, rate, count in rounds]
    if mu > 0:
        parts.append((factor / mu, 1.0, 1))
    total = None
    for sigma, rate, count in parts:
        low, probs = _optimistic_cells(side, rate, sigma, grid)
        one = pld_pmf.DensePLDPmf(grid, low, probs, 0.0, False)
        composed = one.self_compose(count)
        # self_compose adds its truncation to the mass at infinity, which a lower bound must not have
        clean = pld_pmf.DensePLDPmf(grid, composed._lower_loss, composed._probs, 0.0, False)
        total = clean if total is None else total.compose(clean)
    return total


def _lower_epsilon(adjacency: Adjacency, rounds: Rounds, mu: float, target: float, grid: float) -> float:
    sides: tuple[Side, ...] = ("replace",) if adjacency is Adjacency.REPLACE_ONE else ("remove", "add")
    found = (
        _optimistic(side, rounds, mu, grid, adjacency.sum_factor).get_epsilon_for_delta(target + FFT_FLOOR)
        for side in sides
    )
    return float(max(0.0, *found))


# -- the interval -----------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=512)
def _grids(adjacency: Adjacency, rounds: Rounds, mu: float) -> tuple[float, ...]:
    """Discretisation intervals to try, coarse to fine, fitting the range of one release's loss."""
    spans = [12 * mu + mu * mu / 2] if mu > 0 else []
    for ratio, rate, _ in rounds:
        sigma = _multiplier(adjacency, ratio)
        ends = np.array([-1.0, 1.0]) * (12 * sigma + 1)
        p, q = _log_densities("replace" if adjacency is Adjacency.REPLACE_ONE else "remove", rate, sigma, ends)
        spans.append(float(np.ptp(p - q)))
    coarse = min(DEFAULT_GRID, 10 ** math.floor(math.log10(min(spans) / 100)))
    floor = 10 ** math.ceil(math.log10(max(spans) / 5e5))
    first = max(coarse, floor)
    return tuple(g for g in (first, first / 10, first / 100) if g >= floor) or (floor,)


def _check_floor(target: float) -> None:
    if target <= 4 * FFT_FLOOR:
        raise NotCovered(
            f"delta={target:g} lies at the rounding of the FFT ({FFT_FLOOR:g}): Poisson-sampled releases "
            "are certified for larger delta only; raise delta, or use full batches",
            axis="delta",
        )


@functools.lru_cache(maxsize=512)
def _refined(adjacency: Adjacency, rounds: Rounds, mu: float, target: float) -> tuple[float, float]:
    """(optimistic, pessimistic): the best pair found, refining the grid until it is narrow."""
    _check_floor(target)
    low, high = 0.0, math.inf
    for grid in _grids(adjacency, rounds, mu):
        if high < math.inf and 4 * (high + 1) / grid > _MAX_POINTS:
            break  # the composed distribution would not fit in memory
        upper = _pessimistic(adjacency, rounds, mu, grid).get_epsilon_for_delta(target - FFT_FLOOR)
        high = min(high, float(upper))
        low = max(low, _lower_epsilon(adjacency, rounds, mu, target, grid))
        if high - low <= GOOD_GAP * high:
            break
    return low, high


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
    low, high = _refined(adjacency, rounds, mu, target)
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
    _check_floor(target)
    coarseness = _upper_only.get()
    if coarseness is not None:
        grid = coarseness * _grids(adjacency, rounds, mu)[0]
        return float(_pessimistic(adjacency, rounds, mu, grid).get_epsilon_for_delta(target - FFT_FLOOR))
    low, high = epsilon_interval(adjacency, rounds, mu, target)
    if high - low > max(WORST_GAP * high, 1e-3):
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
    if 0 <= at < 700:
        values = []
        for infinite, losses, above, damped in _tails(adjacency, rounds, mu):
            i = int(np.searchsorted(losses, at, side="right"))
            values.append(infinite + max(0.0, above[i] - math.exp(at) * damped[i]))
        return float(min(1.0, max(values) + FFT_FLOOR))
    value = float(_pessimistic(adjacency, rounds, mu, _grids(adjacency, rounds, mu)[0]).get_delta_for_epsilon(at))
    return min(1.0, value + FFT_FLOOR)
