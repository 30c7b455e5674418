"""Greedy DP-CD: choose a coordinate by a noisy maximum, release its gradient alone, step. For sparse, wide models."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit._codec import described
from tacit.accounting import certify
from tacit.errors import InvalidInput
from tacit.kernels.coordinate import LIMIT
from tacit.mechanism import Plan
from tacit.problem import Problem
from tacit.release import Session
from tacit.release.queries import (
    BoundedSum,
    ColumnSquare,
    CoordinateGradient,
    CoordinateScores,
    LogSlope,
    TypicalEntry,
)
from tacit.solvers.base import Budget, Solution, Solver
from tacit.solvers.stages import ROUNDS, noisy_quantile

__all__ = ["GreedyDescent"]

Array = NDArray[np.float64]
COMPOSITIONS = ("gaussian", "optimal")
LARGEST_FACTOR, FACTOR_HALVINGS = 1.25, 8
"""Of μ: what the optimal composition allows beyond Gaussian composition is less, and is found to a thousandth."""
CHOICE_SHARE = 0.5
"""The share of μ² for choices, of what stages before leave."""
SHARES = {"typical entry": 0.02, "typical slope": 0.02, "moments": 0.06}
"""Shares of μ² for what is not given."""
LEAST_PAIRS, MOST_PAIRS = 3, 50
CLIP = 2.0
"""C√curvature, in units of a typical slope."""
QUANTILE, DEVIATIONS = 0.9, 1.645
"""The level at which slopes are measured, and where it lies for normal ones, in standard deviations."""
MOMENT_REACH = 2.0
"""Entries beyond this many typical ones count as that in second moments."""
SATURATED = 0.6
"""A mean of such squares above this says that most entries of the column are longer: then the bounds decide."""


@described("GreedyDescent")
@dataclass(frozen=True, eq=False)
class GreedyDescent(Solver):
    """Noisy greedy proximal coordinate descent; its error grows with log p where others' grows with p.

    T pairs of releases, at w from the start prox(0) on:

        j = argmax_j s_j + β·Gumbel,   s_j = √M_j·|prox_j(w_j − g_j/M_j) − w_j|,
        w_j ← prox_j(w_j − (g_j + N(0, σ_j²))/M_j),

    with g_j the mean of c_ij = clip(φ′_i·x_ij, ±C√M_j). Neighbours move every score by at most Δ = 2C/n (C/n where a
    record vanishes), since a prox is 1-Lipschitz, and β = 2Δ/η; σ_j = Δ√M_j/μ_g. Then the T coordinates are updated
    once more, in the same order, by T more releases (the polish).

    Formal guarantee: exact Gaussian composition of T choices of bounded range η (``NoisyMaxComposition``) and all
    releases; every iterate, and which coordinates were chosen, may be shown.

    Assumptions: contributions are clipped (enforced); C, M_j, T are public, or released as part of the plan.

    Attributes:
        pairs: T; by default nμ/(25·log p), from 3 to 50.
        clip: C; by default a rule in what the loss allows, or what was released.
        smoothness: "private", "public" (from the bounds), or an array of M_j, which the certificate lists as declared.
            Private: the size of a typical entry of a record, by noisy bisection (2 % of μ²), then the second moment
            of each chosen coordinate (6 %); no release of p numbers.
        polish: whether there are T more releases.
        composition: "gaussian" sets the noise so that μ is that of (ε, δ); "optimal" so that the optimal composition
            of choices and releases (``OptimalChoices``) reaches ε: less noise, and a larger μ.
    """

    name: ClassVar[str] = "greedy"
    sums_only: ClassVar[bool] = False
    pairs: int | None = None
    clip: float | None = None
    smoothness: str | ArrayLike = "private"
    polish: bool = True
    composition: str = field(default="gaussian", metadata={"absent": "gaussian"})

    @classmethod
    def of(cls, passes: float | None, clip: float | None) -> GreedyDescent:
        """A pass reads all columns once, to choose one of them: T of it are T passes."""
        return cls(None if passes is None else max(round(passes), 1), clip)

    def check(self, problem: Problem, budget: Budget) -> None:
        """Known names, positive numbers, a separable penalty."""
        super().check(problem, budget)
        problem.penalty.on(np.arange(1))
        _validate.one_of(COMPOSITIONS, composition=self.composition)
        if self.pairs is not None:
            _validate.positive_int(pairs=self.pairs)
        if self.clip is not None:
            _validate.positive(clip=self.clip)
        if isinstance(self.smoothness, str):
            _validate.one_of(("public", "private"), smoothness=self.smoothness)
        else:
            self._given(problem)

    def declared(self, problem: Problem) -> tuple[str, ...]:
        """Smoothness constants of the user's own."""
        if isinstance(self.smoothness, str):
            return ()
        return ("declared: the given smoothness constants were not computed from the records",)

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """Fix every number; stages first, then the releases, then the choices."""
        stages, T = self._stages(problem, budget), self._pairs(problem, budget)
        if self.composition == "gaussian":
            return self._shared(stages, T, budget)

        def fits(factor: float) -> bool:
            plan = Plan.of(*[self._shared(stages, T, budget.part(factor**2))] * budget.copies)
            return certify(plan, delta=budget.delta).epsilon(budget.delta) <= budget.epsilon

        low, high = 1.0, LARGEST_FACTOR  # the smaller one always fits
        for _ in range(FACTOR_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return self._shared(stages, T, budget.part(low**2))

    def _shared(self, stages: dict[str, int], T: int, budget: Budget) -> Plan:
        """μ² divided."""
        rest = 1 - sum(SHARES[name] for name in stages)
        shares: dict[str, tuple[float, int | Array]] = {name: (SHARES[name], steps) for name, steps in stages.items()}
        shares["greedy descent"] = rest * (1 - CHOICE_SHARE), T * (2 if self.polish else 1)
        return Plan.of(budget.shares(shares), budget.choices(rest * CHOICE_SHARE, T, "greedy choices"))

    def solve(self, problem: Problem, budget: Budget, session: Session) -> Solution:
        """Stages, pairs, polish."""
        run = _Run(self, problem, budget, session)
        w, order = problem.penalty.prox(np.zeros(problem.facts.size), 0.0), []
        T = self._pairs(problem, budget)
        for t in range(T):
            j = run.chosen(w)
            order.append(j)
            run.learn(j)
            w = run.stepped(w, j)
            session.tick(t + 1, T)
        for j in order if self.polish else ():
            w = run.stepped(w, j)
        return Solution(w)

    @property
    def _private(self) -> bool:
        return isinstance(self.smoothness, str) and self.smoothness == "private"

    def _pairs(self, problem: Problem, budget: Budget) -> int:
        """T."""
        if self.pairs is not None:
            return self.pairs
        rule = problem.facts.n * budget.mu / (25 * math.log(max(problem.facts.size, 2)))
        return int(np.clip(round(rule), LEAST_PAIRS, MOST_PAIRS))

    def _stages(self, problem: Problem, budget: Budget) -> dict[str, int]:
        """What comes before the descent and beside it, with its number of releases."""
        needed = {
            "typical entry": ROUNDS if self._private else 0,
            "typical slope": ROUNDS if self.clip is None and not problem.loss.labels else 0,
            "moments": self._pairs(problem, budget) if self._private else 0,
        }
        return {name: steps for name, steps in needed.items() if steps}

    def _given(self, problem: Problem) -> Array:
        """Smoothness constants of the user's own, checked."""
        M, size = _validate.nonnegative_array("smoothness", self.smoothness), problem.facts.size
        if M.shape != (size,) or not M.any():
            raise InvalidInput(f"smoothness must hold one number per coordinate ({size}), not all zero")
        return np.asarray(np.maximum(M, 1e-12 * M.max()))


class _Run:
    """What one fit knows: public or released units of the coordinates, and second moments as they are released."""

    def __init__(self, solver: GreedyDescent, problem: Problem, budget: Budget, session: Session) -> None:
        self._problem, self._session = problem, session
        stages = list(solver._stages(problem, budget))
        self._part = {name: i for i, name in enumerate((*stages, "descent", "choices"))}
        facts, loss = problem.facts, problem.loss
        self._reach = np.where(facts.reach > 0, facts.reach, 1.0)
        self._seen: dict[int, list[float]] = {}
        M = self._smoothness(solver)
        self._typical = np.sqrt(M / loss.curvature)
        C = solver.clip if solver.clip is not None else CLIP * self._slope() / np.sqrt(loss.curvature)
        natural = loss.slope * self._reach  # no contribution is longer
        self._clips, self._M = np.asarray(np.minimum(C * np.sqrt(M), natural)), M

    def _smoothness(self, solver: GreedyDescent) -> Array:
        """M_j: given, from the bounds, or from the bounds and a typical entry."""
        facts, curvature = self._problem.facts, self._problem.loss.curvature
        if not isinstance(solver.smoothness, str):
            return solver._given(self._problem)
        size: Array | float = 1.0
        if solver._private:
            varies = facts.high > facts.low
            of = TypicalEntry(np.where(varies, self._reach, 0.0))
            found = 2.0 ** noisy_quantile(self._session, self._part["typical entry"], of, 0.5, -8.0, 0.5, facts.n)
            size = np.where(varies, min(found, 1.0), 1.0)
        return np.asarray(curvature * np.square(self._reach * size))

    def _slope(self) -> float:
        """|φ′| of a typical record at the start: public for labels."""
        loss, facts = self._problem.loss, self._problem.facts
        if loss.labels:
            return float(np.abs(loss.derivative(np.zeros(1), np.ones(1)))[0])
        start = self._problem.penalty.prox(np.zeros(facts.size), 0.0)
        high = math.log2(loss.curvature * facts.target) + 0.5
        part = self._part["typical slope"]
        found = 2.0 ** noisy_quantile(self._session, part, LogSlope(loss, start), QUANTILE, high - 8.5, high, facts.n)
        return float(min(found / DEVIATIONS, loss.slope))

    def chosen(self, w: Array) -> int:
        """The coordinate of the next pair."""
        problem = self._problem
        scores = CoordinateScores(problem.loss, problem.penalty, self._clips, self._M, problem.facts.n)
        return self._session.select(scores, w, self._part["choices"])

    def learn(self, j: int) -> None:
        """M_j of a chosen coordinate, from the mean of all releases of its second moment."""
        if "moments" not in self._part:
            return
        n, part = self._problem.facts.n, self._part["moments"]
        reach = min(MOMENT_REACH * float(self._typical[j]), float(self._reach[j]))
        query = BoundedSum(ColumnSquare(j, reach))
        sigma = self._session.noise_std(query, part)
        seen = self._seen.setdefault(j, [])
        seen.append(float(self._session.release(query, part=part)[0]))
        floor = 3 * sigma / math.sqrt(len(seen))  # below it noise alone could halve the moment, and steps diverge
        mean = float(np.clip(sum(seen) / len(seen), min(floor, n), n)) / n
        self._M = self._M.copy()
        size = reach**2 * mean if mean <= SATURATED else float(self._reach[j]) ** 2
        self._M[j] = self._problem.loss.curvature * size

    def stepped(self, w: Array, j: int) -> Array:
        """A release of coordinate j's gradient, and the proximal step."""
        problem, clip, step = self._problem, float(self._clips[j]), 1 / float(self._M[j])
        query = CoordinateGradient(problem.loss, j, clip)
        g = clip * float(self._session.release(query, w, self._part["descent"])[0]) / problem.facts.n
        one, out = np.array([j]), w.copy()
        out[j] = np.clip(problem.penalty.on(one).prox(w[one] - step * g, np.array([step])), -LIMIT, LIMIT)[0]
        return out
