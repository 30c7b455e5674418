"""Composed privacy losses far in the tail: exponential tilting, for δ below what a plain FFT resolves.

A plain FFT leaves about 1e-16 of noise in every cell, so a δ of 1e-12 drowns. Tilting the loss distribution p to
p(l)·e^{θl}/M(θ) before the FFT and undoing it afterwards leaves *relative* noise instead:

    δ(ε) = p(∞) + M(θ)^T e^{−θε} · Σ_{l>ε} p̃_T(l) e^{−θ(l−ε)} (1 − e^{ε−l}),

with p̃_T the T-fold convolution of the tilted distribution. θ is chosen as in Chernoff's bound, which centres p̃_T on
the ε in question; what wraps around the FFT's window of ±14 standard deviations lands inside it and is counted there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft, optimize

__all__ = ["Losses", "tilted_delta", "tilted_epsilon"]

Array = NDArray[np.float64]

_WIDTH = 14.0
"""Half of the FFT's window in standard deviations of the tilted sum: the rest has less than 1e-40."""


@dataclass(frozen=True)
class Losses:
    """A distribution on the losses (low + i)·grid, taken ``count`` times; what is missing to 1 is not counted.

    Attributes:
        low: the first loss in units of the grid (need not be an integer).
        probs: the masses.
        infinite: the mass at infinity.
        count: how many independent copies.
    """

    low: float
    probs: Array
    infinite: float
    count: int


Parts = Sequence[Losses]


def _log_moments(losses: Array, log_probs: Array, theta: float) -> tuple[float, float, float]:
    """Log M(θ), and mean and variance of the tilted loss."""
    weights = theta * losses + log_probs
    top = float(weights.max())
    w = np.exp(weights - top)
    total = float(w.sum())
    mean = float(w @ losses) / total
    return top + math.log(total), mean, float(w @ (losses - mean) ** 2) / total


def _thinned(part: Losses, grid: float) -> tuple[Array, Array]:
    """Losses and log masses with neighbours lumped at their mean: good enough to choose θ by."""
    block = max(1, len(part.probs) // 4000)
    padded = np.append(part.probs, np.zeros(-len(part.probs) % block)).reshape(-1, block)
    losses = ((part.low + np.arange(padded.size)) * grid).reshape(-1, block)
    mass = padded.sum(axis=1)
    keep = mass > 0
    return (padded * losses).sum(axis=1)[keep] / mass[keep], np.log(mass[keep])


def _best_theta(parts: Parts, grid: float, objective: Callable[[float, float], float]) -> float:
    """The θ that minimises objective(θ, log M^T(θ)): any θ is valid, a good one centres the window."""
    thin = [(*_thinned(p, grid), p.count) for p in parts]

    def value(log_theta: float) -> float:
        theta = math.exp(log_theta)
        return objective(theta, sum(count * _log_moments(x, log_p, theta)[0] for x, log_p, count in thin))

    found = optimize.minimize_scalar(value, bounds=(-7.0, 9.0), method="bounded", options={"xatol": 1e-2})
    return math.exp(float(found.x))


def _convolved(parts: Parts, grid: float, theta: float) -> tuple[Array, Array, float]:
    """Losses and tilted masses of the sum around its tilted mean, and log M^T."""
    log_mass, mean, variance, low, longest = 0.0, 0.0, 0.0, 0.0, 0
    tilted = []
    for p in parts:
        losses = (p.low + np.arange(len(p.probs), dtype=np.float64)) * grid
        with np.errstate(divide="ignore"):
            log_probs = np.log(p.probs)
        log_m, m, v = _log_moments(losses, log_probs, theta)
        log_mass, mean, variance = log_mass + p.count * log_m, mean + p.count * m, variance + p.count * v
        low, longest = low + p.count * p.low, max(longest, len(p.probs))
        tilted.append((np.exp(theta * losses + log_probs - log_m), p.count))
    length = fft.next_fast_len(int(2 * _WIDTH * math.sqrt(variance) / grid) + longest + 64, real=True)
    spectrum = np.ones(length // 2 + 1, complex)
    for masses, count in tilted:
        spectrum *= fft.rfft(masses, length) ** count
    masses = fft.irfft(spectrum, length)
    start = math.floor(low)
    first = round(mean / grid) - length // 2
    masses = np.roll(masses, start - first)
    return (first + (low - start) + np.arange(length)) * grid, masses, log_mass


@dataclass(frozen=True)
class _Tail:
    """Tilted masses of the sum, ready to be asked for log δ(ε)."""

    losses: Array
    masses: Array
    theta: float
    log_mass: float
    rest: float

    def log_delta(self, epsilon: float) -> float:
        """Log δ(ε), without the mass at infinity."""
        i, j = np.searchsorted(self.losses, [epsilon, epsilon + 80 / self.theta], side="right")
        x = self.losses[i:j] - epsilon
        inner = float(self.masses[i:j] @ (np.exp(-self.theta * x) * -np.expm1(-x))) + self.rest
        return self.log_mass - self.theta * epsilon + math.log(inner) if inner > 0 else -math.inf


def _tail(parts: Parts, grid: float, theta: float, *, upper: bool) -> _Tail:
    losses, masses, log_mass = _convolved(parts, grid, theta)
    noise = 2e-16 * math.log2(len(masses)) * float(masses.max())
    # The masses of one release carry rounding, too: a millionth covers it in the direction that counts.
    masses = (np.maximum(masses, 0.0) + noise) * (1 + 1e-6) if upper else np.maximum(masses - noise, 0.0) * (1 - 1e-6)
    rest = math.exp(-80.0) * float(masses.sum()) if upper else 0.0  # beyond 80/θ above ε nobody looks
    return _Tail(losses, masses, theta, log_mass, rest)


def _infinite(parts: Parts) -> float:
    return -math.expm1(sum(p.count * math.log1p(-p.infinite) for p in parts))


def tilted_delta(parts: Parts, grid: float, epsilon: float) -> float:
    """An upper bound on δ(ε) of losses on a grid, with small relative error however small it is.

    Args:
        parts: what is composed.
        grid: the spacing of the losses.
        epsilon: ε ≥ 0.

    Returns:
        δ.
    """
    theta = _best_theta(parts, grid, lambda t, log_m: log_m - t * epsilon)
    log_delta = _tail(parts, grid, theta, upper=True).log_delta(epsilon)
    return min(1.0, math.exp(min(log_delta, 0.0)) + _infinite(parts))


def tilted_epsilon(parts: Parts, grid: float, target: float, *, upper: bool) -> float:
    """The smallest ε ≥ 0 with δ(ε) ≤ ``target``, for losses on a grid.

    Args:
        parts: what is composed.
        grid: the spacing of the losses.
        target: δ.
        upper: add the FFT's noise against us (an upper bound on ε), or subtract it (a lower bound).

    Returns:
        ε; ∞ if the mass at infinity alone exceeds δ.
    """
    infinite = _infinite(parts)
    if infinite >= target:
        return math.inf
    theta = _best_theta(parts, grid, lambda t, log_m: (log_m - math.log(target)) / t)
    tail = _tail(parts, grid, theta, upper=upper)
    goal = math.log(target - infinite)
    low, high = max(0.0, float(tail.losses[0])), float(tail.losses[-1])
    if tail.log_delta(low) <= goal:
        return low
    if tail.log_delta(high - grid) > goal:
        return math.inf if upper else high
    low, high = _narrowed(lambda e: tail.log_delta(e) - goal, low, high)
    return high if upper else low


def _narrowed(excess: Callable[[float], float], low: float, high: float) -> tuple[float, float]:
    """A bracket of relative width 1e-9 around the sign change, inside one that has it: low stays positive."""
    near = float(optimize.brentq(lambda e: max(excess(e), -700.0), low, high, xtol=1e-11, rtol=1e-12))
    for end in (near - 4e-10 * (1 + near), near + 4e-10 * (1 + near)):
        if low < end < high:
            low, high = (low, end) if excess(end) <= 0 else (end, high)
    while high - low > 1e-9 * (1 + high):
        middle = (low + high) / 2
        low, high = (low, middle) if excess(middle) <= 0 else (middle, high)
    return low, high
