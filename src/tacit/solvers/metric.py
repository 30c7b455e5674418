"""Metric descent: private standardisation, a noisy metric, then noisy proximal steps in it. The untuned default.

Everything below is a function of x = nμ/p (records × budget per coordinate), of public bounds, and of what was released
before. The constants were found on California, Electricity, a9a, breast cancer and synthetic designs, then frozen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit._codec import described
from tacit.maps import AffineTarget
from tacit.mechanism import Plan
from tacit.problem import ElasticNet, Loss, Penalty, Problem, Squared
from tacit.release import Session
from tacit.release.queries import (
    BoundedSum,
    Curvature,
    GramSum,
    LossGradient,
    SlopeNorm,
    SquaredSlope,
    TargetDistance,
    symmetric,
)
from tacit.solvers.base import Budget, Solution, Solver
from tacit.solvers.class_means import ClassMeans
from tacit.solvers.constant import ConstantModel
from tacit.solvers.stages import (
    ROUNDS,
    Standard,
    located,
    location_steps,
    minimise,
    noisy_quantile,
    positive_part,
    standardise,
    target_share,
)
from tacit.solvers.whitened import LARGEST_ERRORS, Steps, WhitenedDescent, averaged_errors

__all__ = ["MetricDescent"]

Array = NDArray[np.float64]

MIN_SIGNAL, RELIABLE_SIGNAL = 3.0, 20.0
"""x below the first: only a constant model is released; below the second the fit is called unreliable."""
LOG_SIGNAL = 8.0
"""The first of these for losses whose predictions are exponentials: errors of slopes do harm there."""
MEANS_SIGNAL, MEANS_RECORDS = (0.3, 8.0), 5.0
"""Two classes at x in this range, and with nμ above this: only the direction between their means is learned."""
SMALL_SIGNAL = 30.0
"""x below: the mean target is released by itself, and models of classes, counts and amounts are shrunk at the end."""
SHARES = {
    "target mean": 0.03,
    "location": 0.03,
    "moments": 0.08,
    "target scale": 0.01,
    "metric": 0.15,
    "curvature": 0.01,
    "residual": 0.01,
    "clip": 0.01,
}
"""Shares of μ²; what a loss does not need, and the rest, goes to the descent."""
LEAST = -12.0
"""The binary logarithm of the least scale of a target, in units of half of its bounds."""
PSEUDO = 0.5
"""Pseudo-records at the bounds: they keep slopes sane where a few clipped outliers would have held them down."""
MAX_STEPS = 64
"""Of the descent, by default: from here on more steps leave the error of any data set as it is, and only cost time."""
BURN, BURN_WEIGHT = 0.3, 0.6
"""The share of steps that is not averaged, and the share of budget that such a step gets."""


@described("MetricDescent")
@dataclass(frozen=True)
class MetricDescent(Solver):
    """Standardise, learn a metric, descend in it; no number to tune.

    1. Moments of all features and the target, jointly: standardise.
    2. Losses of any unit: a scale of the target, by noisy bisection.
    3. Σ zzᵀ of the standardised records z = (x, t), clipped to R: a metric A, and a start from its quadratic model.
    4. Where the loss knows its second derivative, its mean at the start. Regression: the mean squared slope. All: a
       ceiling for the clip.
    5. T steps u ← argmin g·u + ½‖u − u_t‖²_A + ψ(u), g the sum of slopes times x, each clipped to C in the norm of A⁻¹,
       plus A^{1/2} times noise. The iterates after the first 30 % are averaged.

    Formal guarantee: exact Gaussian composition over all releases; every iterate may be shown.

    Assumptions: every contribution is clipped or confined to a known set (enforced); all constants are public or
    functions of earlier releases.

    Attributes:
        steps: T; by default 2.2·x^0.45, from 4 to ``MAX_STEPS``.
        clip: C in units of √p; by default a rule in x and what was released.
    """

    name: ClassVar[str] = "metric"
    steps: int | None = None
    clip: float | None = None

    @classmethod
    def of(cls, passes: float | None, clip: float | None) -> MetricDescent:
        """T from the number of passes."""
        return cls(None if passes is None else max(round(passes), 1), clip)

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """Fix every number, or fall back to a simpler model if x is small."""
        if (simpler := self._simpler(problem, budget)) is not None:
            return simpler.plan(problem, budget)
        s = _Settings.of(self, problem, budget)
        shares: dict[str, tuple[float, int | Array]] = {name: (s.share(name), k) for name, k in s.stages.items()}
        if "location" in shares:
            shares["location"] = s.share("location"), location_steps()
        rest = 1 - sum(share for share, _ in shares.values())
        shares["metric descent"] = rest, np.where(np.arange(s.T) < s.burn, BURN_WEIGHT, 1.0)
        return budget.shares(shares)

    def _simpler(self, problem: Problem, budget: Budget) -> Solver | None:
        """What small budgets allow, by public numbers; settings of the user's own are for the descent."""
        x, n_mu = _signal(problem, budget), problem.facts.n * budget.mu
        own = self.steps is not None or self.clip is not None
        if problem.loss.labels and not own and n_mu >= MEANS_RECORDS and MEANS_SIGNAL[0] <= x < MEANS_SIGNAL[1]:
            return ClassMeans()
        return ConstantModel() if x < (LOG_SIGNAL if problem.loss.positive else MIN_SIGNAL) else None

    def solve(self, problem: Problem, budget: Budget, session: Session) -> Solution:
        """The stages, in order; each is one release and post-processing of what came before."""
        if (simpler := self._simpler(problem, budget)) is not None:
            return simpler.solve(problem, budget, session)
        s, loss = _Settings.of(self, problem, budget), problem.loss
        standard = _standard(session, s, problem)
        centre, scale = _target_units(session, s, problem, standard)
        if standard.clip is not None:
            session = session.through(standard.clip)
        features = session.through(standard.map, AffineTarget(centre, scale) if loss.equivariant else None)
        seen = problem.in_units(scale, standard.map.scale)
        loss, penalty = seen.loss, seen.penalty
        target = _Target.of(loss, standard, problem)
        G, b, floor = _metric(features, s, target, problem.facts.size)
        ridge = _ridge(G, s, target, standard, problem)
        u = _start(G, b, ridge, loss, target, penalty, problem)
        h, h_ridge = _curvature(features, s, loss, target, u)
        A, D, floor = h * G, h_ridge * ridge, h * floor
        descent = WhitenedDescent.of(A, D, features, penalty, Steps(s.part("metric descent"), s.T, s.burn, s.n))
        C = _clip(features, descent, s, loss, target, u, h) * np.sqrt(problem.facts.size)
        query = LossGradient(loss, C)
        u = descent.run(query, u)
        errors = descent.noise(query) if len(u) <= LARGEST_ERRORS else None
        if s.x < SMALL_SIGNAL and (loss.labels or loss.positive):
            u = descent.shrunk(u, _constant(loss, target, problem), floor, descent.noise(query))
        if errors is not None:
            H = (A - floor * np.eye(len(A))) / (1.25 if "curvature" in s.stages else 1.0)
            errors = averaged_errors(A, H, D + _ridge_of(penalty), descent.root, errors, s.burn)
            errors = errors / standard.map.scale * scale
        v = standard.back(u, intercept=problem.intercept) * scale
        if problem.intercept:
            v[0] += centre
        within = None if standard.clip is None else (standard.clip.low, standard.clip.high)
        return Solution(v, errors, () if s.x >= RELIABLE_SIGNAL else (_unreliable(s.x),), within)


def _signal(problem: Problem, budget: Budget) -> float:
    """X = nμ/p."""
    return problem.facts.n * budget.mu / problem.facts.size


def _unreliable(x: float) -> str:
    return (
        f"x = records × μ / coordinates = {x:.1f} is below {RELIABLE_SIGNAL:.0f}: expect a rough fit; more records, "
        "fewer features or a larger ε help"
    )


@dataclass(frozen=True)
class _Settings:
    """Every public choice.

    Attributes:
        x: nμ/p.
        mu: of the fit.
        n: records.
        T: steps of the descent.
        burn: steps that are not averaged.
        tail: the share of records beyond the ceiling of the clip.
        clip: given by the user, or None.
        stages: the stages before the descent, with their steps, in the order of the plan.
    """

    x: float
    mu: float
    n: int
    T: int
    burn: int
    tail: float
    clip: float | None
    stages: dict[str, int]

    @classmethod
    def of(cls, solver: MetricDescent, problem: Problem, budget: Budget) -> _Settings:
        x, n, loss = _signal(problem, budget), problem.facts.n, problem.loss
        default = int(np.clip(round(2.2 * x**0.45), 4, MAX_STEPS))
        T = default if solver.steps is None else _validate.positive_int(steps=solver.steps)
        clip = None if solver.clip is None else _validate.positive(clip=solver.clip)
        tail = float(np.sqrt(ROUNDS) / (n * budget.mu * np.sqrt(SHARES["clip"])))
        needed = {
            "target mean": int(x < SMALL_SIGNAL),
            "location": 0 if x < SMALL_SIGNAL else len(location_steps()),
            "moments": 1,
            "target scale": ROUNDS if not loss.labels and loss.equivariant else 0,
            "metric": 1,
            "curvature": int(_knows_second(loss)),
            "residual": int(not loss.labels),
            "clip": ROUNDS if tail < 0.5 and clip is None else 0,
        }
        stages = {name: steps for name, steps in needed.items() if steps}
        return cls(x, budget.mu, n, T, int(np.ceil(BURN * T)), tail, clip, stages)

    def share(self, stage: str) -> float:
        """Of μ²; a small budget gets its target right first."""
        if stage == "target mean":
            return float(np.clip((12 / (self.n * self.mu)) ** 2, SHARES[stage], 0.15))
        small = self.x < SMALL_SIGNAL
        return {"moments": 0.12, "target scale": 0.03}.get(stage, SHARES[stage]) if small else SHARES[stage]

    def part(self, stage: str) -> int:
        """The part of the plan that pays for a stage."""
        return list(self.stages).index(stage) if stage in self.stages else len(self.stages)


def _knows_second(loss: Loss) -> bool:
    return type(loss).second is not Loss.second


@dataclass(frozen=True)
class _Target:
    """Location and spread of the target in the loss's units, from released moments.

    Attributes:
        mean: 0 for losses whose target was centred.
        spread: 1 for losses whose target was scaled.
        information: by how much less than a balanced target it tells, from 0 to 1.
    """

    mean: float
    spread: float
    information: float

    @classmethod
    def of(cls, loss: Loss, standard: Standard, problem: Problem) -> _Target:
        n = problem.facts.n
        edge = min(max(standard.noise, 0.5 / n), 0.5)
        if loss.labels:  # the share π of y = 1, away from 0 and 1 by what the noise can hide; ½ without an intercept
            share = float(np.clip((1 + standard.target_mean) / 2, edge, 1 - edge)) if problem.intercept else 0.5
            root = float(np.sqrt(share * (1 - share)))
            return cls(2 * share - 1, 2 * root, 2 * root)
        if loss.positive:
            low, high = loss.target_range
            half = (high - low) / 2
            mean = float(np.clip(standard.target_mean, low + edge * half, high)) if problem.intercept else 1.0
            return cls(mean, float(np.sqrt(max(standard.target_variance, standard.noise * half**2, 1e-12))), 1.0)
        return cls(0.0, 1.0, 1.0)


def _standard(session: Session, s: _Settings, problem: Problem) -> Standard:
    """Moments; where the mean target was released by itself, that one."""
    if "location" in s.stages:
        found = located(session, s.part("location"), problem)
        standard = standardise(session, s.part("moments"), problem, found)
        return replace(standard, clip=found.clip()) if found.narrower(problem) else standard
    share, noise = target_share(session, s.part("target mean"), problem)
    standard = standardise(session, s.part("moments"), problem)
    low, high = problem.loss.target_range
    variance = standard.target_variance - (0.0 if problem.loss.positive else 2.5 * standard.noise)
    return replace(standard, target_mean=low + (high - low) * share, target_variance=variance, noise=2 * noise)


def _constant(loss: Loss, target: _Target, problem: Problem) -> Array:
    """The best model without slopes; 0 without an intercept."""
    u = np.zeros(problem.facts.size)
    u[0] = loss.constant(target.mean) if problem.intercept else 0.0
    return u


def _target_units(session: Session, s: _Settings, problem: Problem, standard: Standard) -> tuple[float, float]:
    """Location and scale of the target: 0 and 1 for losses that have units of their own.

    The scale is the 90 % quantile of |t − mean|, or the standard deviation where it is visible above the noise.

    Returns:
        (location, scale).
    """
    if "target scale" not in s.stages:
        return 0.0, 1.0
    mean = standard.target_mean if problem.intercept else 0.0
    q = 2.0 ** noisy_quantile(session, s.part("target scale"), TargetDistance(mean), 0.9, LEAST, 0.5, s.n)
    spread = np.sqrt(max((q / 1.645) ** 2, standard.target_variance - 2.5 * standard.noise * standard.target_half**2))
    return mean, float(np.clip(spread, max(2.0**LEAST, min(standard.noise, 1.0) * standard.target_half), 1.0))


def _metric(features: Session, s: _Settings, target: _Target, p: int) -> tuple[Array, Array, float]:
    """Second moments of the standardised features, those with the (standardised) target, and what noise may hide."""
    m = p + 1
    query = GramSum(float(min(0.28 * s.x**0.25, 3.0) * np.sqrt(m)), with_target=True)
    seen = features.through(target=AffineTarget(target.mean, target.spread))
    sigma = seen.noise_std(query, s.part("metric")) / s.n
    G = symmetric(seen.release(query, part=s.part("metric")) / s.n, m)
    floor = 0.5 * sigma * np.sqrt(2 * m)
    return positive_part(G[:-1, :-1]) + floor * np.eye(p), G[:-1, -1], float(floor)


def _ridge(G: Array, s: _Settings, target: _Target, standard: Standard, problem: Problem) -> Array:
    """What keeps directions that the noise hides near zero: a few pseudo-records at the bounds, and x^(−4/3)."""
    pseudo = min(PSEUDO, 1 / s.mu**2) / s.n * np.square(standard.half)
    weight = 1.0 if problem.loss.labels else 0.5
    shrink = min(weight * (s.x * target.information) ** (-4 / 3), 1e3) * np.diag(G)
    ridge = pseudo + shrink
    if problem.intercept:
        ridge[0] = 0.0
    return np.asarray(ridge)


def _ridge_of(penalty: Penalty) -> Array | float:
    return penalty.l2 if isinstance(penalty, ElasticNet) else 0.0


def _start(G: Array, b: Array, ridge: Array, loss: Loss, target: _Target, penalty: Penalty, problem: Problem) -> Array:
    """The minimiser of the quadratic model at the constant model."""
    u, (h, gain) = _constant(loss, target, problem), loss.expansion(target.mean)
    return minimise(h * G + np.diag(h * ridge), h * G @ u + gain * target.spread * b, penalty, u)


def _curvature(features: Session, s: _Settings, loss: Loss, target: _Target, u: Array) -> tuple[float, float]:
    """H of the metric h·G, and of the ridge: released where the loss knows it, the loss's bound for others."""
    if "curvature" not in s.stages:
        h = loss.curvature
        return h, (0.25 if loss.labels else h)
    top = loss.curvature if loss.labels else min(loss.curvature, 4 * loss.expansion(target.mean)[0])
    mean = features.release(BoundedSum(Curvature(loss, u), top), part=s.part("curvature"))[0] / s.n
    return float(np.clip(1.25 * mean, 0.02 * top, top)), float(np.clip(mean, 0.02 * top, top))


def _clip(
    features: Session, descent: WhitenedDescent, s: _Settings, loss: Loss, target: _Target, u: Array, h: float
) -> float:
    """C/√p: grows with x; not far beyond the largest contributions, as far as noise lets them be seen."""
    if s.clip is not None:
        return s.clip
    if loss.labels:
        c = min(0.27 * (s.x * target.information) ** (1 / 3), 3.0) * np.sqrt(0.25 / h)
    else:
        typical = 1.0 if loss.equivariant else (loss.expansion(target.mean)[1] * target.spread) ** 2
        slope = SquaredSlope(Squared() if loss.equivariant else loss, u)
        mean = features.release(BoundedSum(slope, typical), part=s.part("residual"))[0] / s.n
        ratio = 1.0 if loss.equivariant else typical / h
        c = 0.3 * s.x**0.45 * np.sqrt(np.clip(mean / typical, 0.05, 1.0) * ratio)
    if "clip" in s.stages:
        norms = SlopeNorm(loss, descent.root @ u)
        c = min(c, 1.5 * 2.0 ** noisy_quantile(descent.session, s.part("clip"), norms, 1 - s.tail, -3.0, 5.0, s.n))
    return float(c)
