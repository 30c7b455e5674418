"""The privacy loss of one Poisson-sampled Gaussian release on a grid of losses: from above and from below.

In units of one record's clip, rate q, noise σ, the pair (P, Q) of a side is

- "remove": (1−q)N(0, σ²) + qN(1, σ²) against N(0, σ²);
- "add": the same pair swapped (mirrored, so that the loss grows with the output);
- "replace": (1−q)N(0, σ²) + qN(1, σ²) against (1−q)N(0, σ²) + qN(−1, σ²).

The loss log dP/dQ grows with the output x, so a cell of outputs is an interval of losses. Its masses come from normal
tails, each from the side where it is small.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from tacit.errors import NotCovered

__all__ = ["Side", "loss_range", "optimistic_cells", "pessimistic_cells"]

Array = NDArray[np.float64]
Side = Literal["add", "remove", "replace"]

MAX_CELLS = 30_000_000
REACH = 12.0
"""Standard deviations of output that are kept by default: the rest has 1e-33."""


def _log_densities(side: Side, rate: float, sigma: float, x: Array) -> tuple[Array, Array]:
    """Log P and log Q up to a common constant."""
    base = np.zeros_like(x)
    with np.errstate(divide="ignore"):
        up = np.logaddexp(np.log1p(-rate), np.log(rate) + (x - 0.5) / sigma**2)
        down = np.logaddexp(np.log1p(-rate), np.log(rate) + (-x - 0.5) / sigma**2)
    return {"remove": (up, base), "add": (base, down), "replace": (up, down)}[side]


def _extent(side: Side, rate: float, sigma: float, grid: float, reach: float) -> tuple[float, int, int]:
    """The largest output kept, and the indices of the losses there (with a cell to spare)."""
    span = sigma * reach + 1.0
    p, q = _log_densities(side, rate, sigma, np.array([-span, span]))
    low, high = math.floor((p[0] - q[0]) / grid) - 1, math.ceil((p[1] - q[1]) / grid) + 1
    if high - low > MAX_CELLS:
        raise NotCovered("the privacy loss spans too many grid cells to be bracketed; add noise", axis="ratio")
    return span, low, high


def loss_range(side: Side, rate: float, sigma: float) -> float:
    """The range of losses over outputs within 12 standard deviations: tells which grid fits."""
    ends = np.array([-1.0, 1.0]) * (REACH * sigma + 1)
    p, q = _log_densities(side, rate, sigma, ends)
    return float(np.ptp(p - q))


def pessimistic_cells(
    side: Side, rate: float, sigma: float, grid: float, reach: float = REACH
) -> tuple[float, Array, float]:
    """A probability on grid losses whose divergences lie above those of the pair ("connect the dots").

    The masses (p, q) of the outputs with losses in [kh, (k+1)h] are split into atoms at both ends that keep p and q: a
    mean-preserving spread, of which the original is a post-processing.

    Returns:
        The index of the first loss, the masses, and the mass above the reach, which counts as an infinite loss.
    """
    span, low, high = _extent(side, rate, sigma, grid, reach)
    k = np.arange(low, high)
    edges = np.clip(_loss_edges(side, rate, sigma, np.arange(low, high + 1, dtype=np.float64) * grid), -span, span)
    P, Q = _cells(side, rate, sigma, edges)
    with np.errstate(over="ignore", invalid="ignore"):
        drop = np.where(Q > 0, np.exp(k * grid + np.log(np.where(Q > 0, Q, 1.0))), 0.0)
    above = np.clip((P - drop) / -math.expm1(-grid), 0.0, P)
    probs = np.zeros(len(k) + 1)
    probs[:-1] = P - above
    probs[1:] += above
    left, _ = _cells(side, rate, sigma, np.array([-np.inf, -span]))
    right, _ = _cells(side, rate, sigma, np.array([span, np.inf]))
    probs[0] += left[0]  # outputs below the reach: rounded up to the smallest loss kept
    return low, probs, float(right[0])


def _loss_edges(side: Side, rate: float, sigma: float, losses: Array) -> Array:
    """Outputs x at which the privacy loss log dP/dQ equals ``losses`` (±∞ where it never does).

    Returns:
        One x per loss.
    """
    if side == "add":
        return -_loss_edges("remove", rate, sigma, -losses)
    log_q = math.log(rate)
    if side == "remove":  # 1 − q + q·e^{(x−½)/σ²} = e^l
        with np.errstate(divide="ignore", invalid="ignore"):
            small = np.log(np.maximum(np.expm1(np.minimum(losses, 1.0)) + rate, 0.0))
            large = losses + np.log1p(-(1 - rate) * np.exp(-np.maximum(losses, 1.0)))
        return np.asarray(0.5 + sigma**2 * (np.where(losses < 1, small, large) - log_q))
    # A²y² + b·(Ay) − e^l·A² = 0 for y = e^{x/σ²}, A = q·e^{−1/2σ²}, b = (1−q)(1−e^l); odd in l, so l ≥ 0 suffices.
    # In logarithms, because A underflows and e^{2l} overflows.
    size = np.abs(losses)
    with np.errstate(divide="ignore"):
        log_b = math.log1p(-rate) + size + np.log(-np.expm1(-size)) if rate < 1 else np.full_like(size, -np.inf)
        root = np.logaddexp(2 * log_b, math.log(4) + size + 2 * log_q - 1 / sigma**2) / 2
    log_ay = np.logaddexp(log_b, root) - math.log(2)
    return np.asarray(np.sign(losses) * (0.5 + sigma**2 * (log_ay - log_q)))


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


def _offset(side: Side, rate: float, sigma: float, grid: float, span: float) -> float:
    """Where to put the grid so that the bulk's cell has a grid loss, in units of the grid.

    For small q most outputs have losses within a hair of the limit ±log(1−q). The cell at the limit is cut where the
    loss at its edge is h/2 away from the cell's own, and the grid is laid through the latter.

    Returns:
        A number in [0, 1).
    """
    if side == "replace" or rate == 1:
        return 0.0
    outer = -np.inf if side == "remove" else np.inf

    def cell(x: float) -> tuple[float, float]:
        """The cell's own loss, and how far its edge is from that."""
        P, Q = _cells(side, rate, sigma, np.sort(np.array([x, outer])))
        if not (P[0] > 0 and Q[0] > 0):
            return 0.0, 0.0
        p, q = _log_densities(side, rate, sigma, np.array([x]))
        own = math.log(P[0] / Q[0])
        return own, abs(float(p[0] - q[0]) - own)

    near, far = (-span, span) if side == "remove" else (span, -span)
    for _ in range(100):
        middle = (near + far) / 2
        near, far = (middle, far) if cell(middle)[1] < grid / 2 else (near, middle)
    return (cell(near)[0] / grid) % 1.0


def optimistic_cells(
    side: Side, rate: float, sigma: float, grid: float, reach: float = REACH
) -> tuple[float, Array, float]:
    """A sub-probability on grid losses whose divergences lie below those of the pair.

    Cell k lies around the loss kh, its edges placed such that its own loss log(p/q) is kh up to rounding.
    P-mass above e^{kh} q is dropped, which only lowers divergences; a cell that falls short (of the small
    masses in the tails only the leading digits are known) counts as (k−1)h.

    Returns:
        The first loss in units of the grid, the masses, and zero for an infinite loss.
    """
    span, low, high = _extent(side, rate, sigma, grid, reach)
    first = low + _offset(side, rate, sigma, grid, span)
    k = first + np.arange(high - low + 1)
    losses = (first + np.arange(high - low + 2, dtype=np.float64) - 0.5) * grid
    for sweep in range(8):
        edges = np.clip(_loss_edges(side, rate, sigma, losses), -span, span)
        P, Q = _cells(side, rate, sigma, edges)
        full = (P > 1e-200) & (Q > 1e-200)
        excess = np.where(full, np.log(np.where(full, P, 1.0) / np.where(full, Q, 1.0)) - k * grid, 0.0)
        if sweep < 5:  # centre every cell on its loss
            move = np.clip(excess, -grid / 4, grid / 4)
            losses[1:-1] -= (move[1:] + move[:-1]) / 2
        elif sweep < 7:  # then lift both edges of those that fall short: a cell must not lose a whole step for a hair
            short = np.where(full, np.clip(-excess, 0.0, grid / 4) + 1e-13, 0.0)
            losses[1:-1] += np.maximum(short[1:], short[:-1])
    reached = k - (excess < 0)  # the largest grid loss that the cell's own loss reaches
    log_q = np.log(np.where(full, Q, 1.0))
    mass = np.where(full, np.minimum(P, np.exp(np.minimum(reached * grid + log_q, 0.0))), 0.0)
    probs = np.where(excess >= 0, mass, 0.0)
    probs[:-1] += np.where(excess < 0, mass, 0.0)[1:]
    return first, probs, 0.0
