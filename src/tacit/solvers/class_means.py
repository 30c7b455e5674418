"""Class means: for few records a noisy gradient at the constant model is all there is, so all of the budget goes there.

Found on 17 tables and sub-samples of them at x = nμ/p from 1 to 13 (docs/linear_models.md), then frozen.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit._codec import described
from tacit.maps import Standardise
from tacit.mechanism import Plan
from tacit.problem import Loss, Problem
from tacit.release import Session
from tacit.release.queries import LossGradient, MomentSum, Projection
from tacit.solvers.base import Budget, Solution, Solver
from tacit.solvers.stages import ROUNDS, noisy_quantile, target_share

__all__ = ["ClassMeans"]

Array = NDArray[np.float64]
MOMENTS, QUARTILES = 0.15, 0.05
"""Shares of μ²: for moments of the features, and for each quartile of the scores."""
CLIP = 0.8
"""C of the gradient, in units of what a contribution of typical size has."""
SPREAD = 0.01
"""The least variance, over columns, of the moments that released ones are shrunk with: half ranges, squared."""
FARTHEST = 8.0
"""Quartiles of scores of direction 1 are looked for within ± this."""
NORMAL_QUARTILE = 0.6745
FAINT = 0.02
"""What is left of coefficients that may be all noise: hardly a probability changes, but rows can be ranked."""
LOUDEST = 0.5
"""By how much scores may differ from the constant one where their spread is not known."""
ENOUGH_SIGNAL, ENOUGH_RECORDS = 1.0, 30.0
"""X and nμ below which not even moments of the columns are paid for."""


@described("ClassMeans")
@dataclass(frozen=True)
class ClassMeans(Solver):
    """Two classes, few records: the direction between the class means, as long as its noise lets one believe.

    1. The share of the class, π.
    2. Moments of the features, jointly, each shrunk toward their mean over the columns: standardise.
    3. g = Σ φ′(f₀, y)·z at the best constant f₀: the difference of the class means, up to a factor. With noise of
       variance s² in each coordinate, ‖g‖² − p·s² is what the signal leaves; at most √(2p)·s² of that is taken for
       noise, too. So τ², the variance of coefficients, is known, and −hτ²g/(h²τ² + s²) is their posterior mean if
       columns were uncorrelated (empirical Bayes).
    4. Two quartiles of the scores in that direction: their spread says how correlated columns are, and shortens the
       coefficients by its square; their middle moves the constant.

    Below x = 1 or nμ = 30 only the first and the third are paid for: bounds stand for moments, and coefficients are so
    short that no score moves by more than ½. Rows can be ranked then; probabilities are hardly better than a constant.

    Formal guarantee: exact Gaussian composition over all releases.

    Assumptions: contributions are clipped or confined to a known set (enforced); all constants are public or functions
    of earlier releases.
    """

    name: ClassVar[str] = "class-means"
    needs: ClassVar[tuple[str, ...]] = ("labels",)
    one_pass: ClassVar[bool] = True

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """Up to four kinds of releases, by fixed shares; that of the class by the number of records."""
        shares: dict[str, tuple[float, int]] = {"class share": (_class_share(problem, budget), 1)}
        if not _least(problem, budget):
            quartile = QUARTILES, ROUNDS
            shares |= {"moments": (MOMENTS, 1), "lower quartile": quartile, "upper quartile": quartile}
        rest = 1 - sum(share for share, _ in shares.values())
        return budget.shares({**shares, "class means": (rest, 1)})

    def solve(self, problem: Problem, budget: Budget, session: Session) -> Solution:
        """The stages, in order."""
        loss, p = problem.loss, problem.facts.size
        mean, start = _constant(session, problem)
        least = _least(problem, budget)
        standard, size = _by_bounds(problem) if least else _standardised(session, problem)
        features = session.through(standard)
        g, s = _gradient(features, loss, mean, start, size, problem, 1 if least else 4)
        u = start.copy()
        h = loss.expansion(mean)[0]
        u[_slopes(problem)] -= _posterior(g[_slopes(problem)], s, h)
        u = _within(u, start) if least else _shortened(features, u, start, problem)
        penalty = problem.in_units(1.0, standard.scale).penalty
        u = penalty.prox(u, 1 / h)
        v = u / standard.scale
        if problem.intercept:
            v[0] -= v[1:] @ standard.mean[1:]
        x = problem.facts.n * budget.mu / p
        note = (
            f"class means: x = records × μ / coordinates = {x:.2g} is small, so only a direction between the classes "
            "was learned; more records, fewer features or a larger ε help"
        )
        return Solution(v, None, (note,))


def _class_share(problem: Problem, budget: Budget) -> float:
    """The share of μ² at which π is known to 1/20, from 2 % to 20 % (40 % of the least budgets)."""
    most = 0.4 if _least(problem, budget) else 0.2
    return float(np.clip((20 / (problem.facts.n * budget.mu)) ** 2, 0.02, most))


def _least(problem: Problem, budget: Budget) -> bool:
    """Whether bounds must do for moments, and for the spread of scores."""
    n_mu = problem.facts.n * budget.mu
    return n_mu < ENOUGH_RECORDS or n_mu / problem.facts.size < ENOUGH_SIGNAL


def _by_bounds(problem: Problem) -> tuple[Standardise, float]:
    """Features within ±1 by their bounds, and the mean square length of a row if they were uniform."""
    low, high = problem.facts.low, problem.facts.high
    vary = high > low
    mean = np.where(vary, low / 2 + high / 2, 0.0) if problem.intercept else np.zeros(len(low))
    return Standardise(mean, np.where(vary, high / 2 - low / 2, 1.0)), float(vary.sum() / 3 + 1)


def _within(u: Array, start: Array) -> Array:
    """Slopes so short that no row within its bounds is moved by more than ``LOUDEST``."""
    slopes = u - start
    return np.asarray(start + slopes * min(1.0, LOUDEST / max(float(np.abs(slopes).sum()), 1e-300)))


def _slopes(problem: Problem) -> slice:
    return slice(int(problem.intercept), None)


def _constant(session: Session, problem: Problem) -> tuple[float, Array]:
    """The mean of y = ±1, and the best constant model; nothing is fitted without an intercept."""
    u = np.zeros(problem.facts.size)
    if not problem.intercept:
        return 0.0, u
    share, edge = target_share(session, 0, problem)
    mean = 2 * float(np.clip(share, min(edge, 0.5), 1 - min(edge, 0.5))) - 1
    u[0] = problem.loss.constant(mean)
    return mean, u


def _standardised(session: Session, problem: Problem) -> tuple[Standardise, float]:
    """Shrunk locations and scales, and the mean square length of a standardised row."""
    facts = problem.facts
    query = MomentSum(facts.low, facts.high)
    noise = session.noise_std(query, 1) / facts.n
    released = np.split(session.release(query, part=1) / facts.n, 2)
    c, h = query.centre, query.half
    vary = h > 0
    first = np.clip(_shrunk(released[0], vary, noise), -1.0, 1.0)
    second = np.clip(_shrunk(released[1], vary, noise), 0.0, 1.0)
    safe = np.where(vary, h, 1.0)
    if problem.intercept:
        mean, spread = c + h * first, np.clip(second - first**2, 0.0, 1.0)
    else:
        mean, spread = 0 * c, np.clip(second + 2 * first * c / safe + (c / safe) ** 2, 0.0, None)
    floor = float(np.clip(noise, 0.003, 0.5))
    scale = safe * np.sqrt(np.maximum(spread, floor))
    squares = np.where(vary, np.maximum(spread, floor / 4) / np.maximum(spread, floor), 0.0)
    fixed = np.where(vary, 0.0, np.square(c)).sum()  # the constant column
    return Standardise(np.where(vary, mean, 0.0), np.where(vary, scale, 1.0)), float(squares.sum() + fixed)


def _shrunk(values: Array, vary: NDArray[np.bool_], noise: float) -> Array:
    """Empirical Bayes: toward the mean over columns, by what the noise has of their variance."""
    if vary.sum() < 3:
        return values
    own = values[vary]
    variance = max(float(own.var()) - noise**2, SPREAD)
    return np.asarray(own.mean() + (values - own.mean()) * variance / (variance + noise**2))


def _gradient(
    features: Session, loss: Loss, mean: float, start: Array, size: float, problem: Problem, part: int
) -> tuple[Array, float]:
    """The mean gradient at the constant model, and the deviation of its noise."""
    typical = np.sqrt(max(loss.expansion(mean)[0], 1e-3))  # of a slope, for logistic regression: √(π(1 − π))
    query = LossGradient(loss, float(CLIP * np.sqrt(max(size, 1.0)) * typical))
    sigma = features.noise_std(query, part) / problem.facts.n
    return features.release(query, start, part) / problem.facts.n, sigma


def _posterior(g: Array, s: float, h: float) -> Array:
    """H·τ²·g/(h²τ² + s²), τ² from ‖g‖² beyond what noise would make of it."""
    p = len(g)
    signal = max(float(g @ g) - (p + np.sqrt(2 * p)) * s**2, 0.0) / max(p, 1)  # h²τ²
    return g / h * max(signal / (signal + s**2) if signal else 0.0, FAINT)


def _shortened(features: Session, u: Array, start: Array, problem: Problem) -> Array:
    """Coefficients for the spread that scores have, and a constant for where they are."""
    slopes = u.copy()
    slopes[~(np.arange(len(u)) >= int(problem.intercept))] = 0.0
    length = float(np.linalg.norm(slopes))
    direction = slopes / length if length else slopes
    score, n = Projection(direction), problem.facts.n
    ends = [noisy_quantile(features, part, score, q, -FARTHEST, FARTHEST, n) for part, q in ((2, 0.25), (3, 0.75))]
    if not length:
        return start
    spread = max(ends[1] - ends[0], 0.25) / (2 * NORMAL_QUARTILE)
    out = start + slopes * min(1.0, 1 / spread**2)
    if problem.intercept:
        out[0] -= sum(ends) / 2 * length * min(1.0, 1 / spread**2)
    return np.asarray(out)
