"""Metric descent: private standardisation, a noisy metric, then noisy proximal steps in it. The untuned default.

Everything below is a function of x = nμ/p (records × budget per coordinate), of public bounds, and of what was released
before. The constants were found on California, Electricity, a9a, breast cancer and synthetic designs, then frozen.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.mechanism import Mechanism, Plan, Schedule
from tacit.problem import Design, Logistic, Loss, Penalty, Records, Task
from tacit.run.channel import noise_std
from tacit.run.sums import BoundedValues, GramSum, LinearGradient
from tacit.run.sums.gram import symmetric
from tacit.solvers.base import Budget, LinearSolver, Prepared, Session, Solution, release_once
from tacit.solvers.constant import ConstantModel
from tacit.solvers.quadratic import minimise, positive_part
from tacit.solvers.quantile import ROUNDS, noisy_quantile
from tacit.solvers.standardise import standardised

__all__ = ["MetricDescent"]

Array = NDArray[np.float64]

LEAST_X, RELIABLE_X = 3.0, 20.0
"""Below the first only a constant model is released; below the second the fit is called unreliable."""
SHARES = {"moments": 0.08, "target scale": 0.01, "metric": 0.15, "curvature": 0.01, "residual": 0.01, "clip": 0.01}
"""Shares of μ²; what a loss does not need, and the rest, goes to the descent."""
PSEUDO = 0.5
"""Pseudo-records at the bounds: what keeps slopes sane where a few clipped outliers would have held them down."""
LARGEST_ERRORS = 256
"""Coordinates up to which standard errors are worked out."""
BURN, BURN_WEIGHT = 0.3, 0.6
"""The share of steps that is not averaged, and the share of budget that such a step gets."""


@dataclass(frozen=True)
class MetricDescent(LinearSolver):
    """Standardise, learn a metric, descend in it; no number to tune.

    1. Moments of all features and the target, jointly: standardise.
    2. Regression: a scale of the target, by noisy bisection.
    3. Σ zzᵀ of the standardised records z = (x, t), clipped to R: a metric A, and a start from its quadratic model.
    4. Logistic: the mean curvature at the start. Regression: the mean squared residual. Both: a ceiling for the clip.
    5. T steps u ← argmin g·u + ½‖u − u_t‖²_A + ψ(u), g the sum of slopes times x, each clipped to C in the norm of A⁻¹,
       plus A^{1/2} times noise. The iterates after the first 30 % are averaged.

    Formal guarantee: exact Gaussian composition over all releases; every iterate may be shown.

    Assumptions: every contribution is clipped or confined to a known set (enforced); all constants are public or
    functions of earlier releases.

    Attributes:
        steps: T; by default 2.2·x^0.45, from 4 to 100.
        clip: C in units of √p; by default a rule in x and what was released.
    """

    name: ClassVar[str] = "metric"
    steps: int | None = None
    clip: float | None = None

    def prepare(self, task: Task, budget: Budget) -> Prepared:
        """Fix every number, or fall back to a constant model if x is small."""
        if task.records * budget.mu / task.size < LEAST_X:
            return ConstantModel().prepare(task, budget)
        return _Prepared(self, task, budget)


class _Prepared(Prepared):
    def __init__(self, solver: MetricDescent, task: Task, budget: Budget) -> None:
        self._task, self._mu = task, budget.mu
        self._x = x = task.records * budget.mu / task.size
        self._clip = None if solver.clip is None else _validate.positive(clip=solver.clip)
        default = int(np.clip(round(2.2 * x**0.45), 4, 100))
        self._T = default if solver.steps is None else _validate.positive_int(steps=solver.steps)
        regression = not task.loss.margin
        tail = np.sqrt(ROUNDS) / (task.records * budget.mu * np.sqrt(SHARES["clip"]))
        needed = {
            "moments": 1,
            "target scale": ROUNDS if regression else 0,
            "metric": 1,
            "curvature": int(isinstance(task.loss, Logistic)),
            "residual": int(regression),
            "clip": ROUNDS if tail < 0.5 and solver.clip is None else 0,
        }
        self._tail = float(tail)
        self._parts = {name: k for k, name in enumerate(name for name, steps in needed.items() if steps)}
        self._parts["descent"] = len(self._parts)
        shares = {name: (SHARES[name], steps) for name, steps in needed.items() if steps}
        rest = 1 - sum(share for share, _ in shares.values())
        self.plan = Plan.of(budget.shares(shares), self._descent(budget, rest))
        self._burn = int(np.ceil(BURN * self._T))

    def _descent(self, budget: Budget, share: float) -> Mechanism:
        weight = np.where(np.arange(self._T) < np.ceil(BURN * self._T), BURN_WEIGHT, 1.0)
        ratio = budget.mu * np.sqrt(share * weight / weight.sum())
        return dataclasses.replace(budget.mechanism(1.0, self._T, "metric descent"), ratio=Schedule(ratio))

    def solve(self, records: Records, session: Session) -> Solution:
        run = _Run(self, self._task, records, session)
        u, errors = run.descend()
        notes = () if self._x >= RELIABLE_X else (_unreliable(self._x),)
        v = run.standard.back(u, intercept=self._task.intercept) * run.target_scale
        if self._task.intercept and records.labels is None:
            v[0] += run.standard.target_mean
        if errors is not None:
            errors = errors / run.standard.scale * run.target_scale
        return Solution(v, errors, notes)


def _unreliable(x: float) -> str:
    return (
        f"x = records × μ / coordinates = {x:.1f} is below {RELIABLE_X:.0f}: expect a rough fit; more records, fewer "
        "features or a larger ε help"
    )


class _Run:
    """The stages of one fit, in order; each is post-processing of what came before and one release."""

    def __init__(self, plan: _Prepared, task: Task, records: Records, session: Session) -> None:
        self._plan, self._task, self._session = plan, task, session
        self._n, self._p = task.records, task.size
        self._parts, self._margin = plan._parts, task.loss.margin
        self._labels = records.labels
        self.standard = standardised(session, self._parts["moments"], task, records)
        self.target_scale = self._target_scale(records.offset) if not self._margin else 1.0
        self._share = self._positive_share()
        self._loss: Loss = task.loss.rescaled(self.target_scale) if not self._margin else task.loss
        self._offset = records.offset
        if not self._margin:
            self._offset = (records.offset - self._target_mean) / self.target_scale
        self._penalty = task.penalty.rescaled(self.target_scale / self.standard.scale, 1 / self.target_scale**2)
        self._X = self.standard.apply(records.features)

    @property
    def _target_mean(self) -> float:
        return self.standard.target_mean if self._task.intercept and not self._margin else 0.0

    def _target_scale(self, t: Array) -> float:
        """From the 90 % quantile of |t − mean|, or the standard deviation where it is visible above the noise."""
        s, noise = self.standard, self.standard.noise
        distance = np.log2(np.maximum(np.abs(t - self._target_mean), 2.0**-20))
        channel = self._session.channel(self._parts["target scale"])
        q = 2.0 ** noisy_quantile(channel, distance, 0.9, -8.0, 0.5, self._n)
        spread = np.sqrt(max((q / 1.645) ** 2, s.target_variance - 2.5 * noise))
        return float(np.clip(spread, max(2.0**-8, min(noise, 1.0)), 1.0))

    def _positive_share(self) -> float:
        """π, away from 0 and 1 by what the noise can hide; ½ without an intercept to carry it."""
        if not self._margin or not self._task.intercept:
            return 0.5
        edge = min(max(self.standard.noise, 0.5 / self._n), 0.5)
        return float(np.clip(self.standard.target_mean, edge, 1 - edge))

    def _metric(self) -> tuple[Array, Array]:
        """Second moments of the standardised features, and with the (standardised) target."""
        m = self._p + 1
        target = self._offset
        if self._margin:
            pi = self._share
            target = (self._labels / 2 + 0.5 - pi) / np.sqrt(pi * (1 - pi))  # type: ignore[operator]
        R = min(0.28 * self._plan._x**0.25, 3.0) * np.sqrt(m)
        total = GramSum(np.column_stack([self._X, target]), R)
        channel = self._session.channel(self._parts["metric"])
        sigma = noise_std(channel.mechanism, total, 0) / self._n
        G = symmetric(channel.release(total, np.zeros((1, 1)))[0] / self._n, m)
        floor = 0.5 * sigma * np.sqrt(2 * m)
        self._floor = floor
        return positive_part(G[:-1, :-1]) + floor * np.eye(self._p), G[:-1, -1]

    def _ridge(self, G: Array) -> Array:
        """What keeps directions that the noise hides near zero: a few pseudo-records at the bounds, and x^(−4/3)."""
        plan, pi = self._plan, self._share
        information = plan._x * (np.sqrt(4 * pi * (1 - pi)) if self._margin else 1.0)
        pseudo = min(PSEUDO, 1 / plan._mu**2) / self._n * np.square(self.standard.half)
        shrink = min((1.0 if self._margin else 0.5) * information ** (-4 / 3), 1e3) * np.diag(G)
        ridge = pseudo + shrink
        if self._task.intercept:
            ridge[0] = 0.0
        return np.asarray(ridge)

    def _with(self, ridge: Array) -> Penalty:
        p = self._penalty
        return Penalty(p.l1, p.l2 + ridge, p.low, p.high)

    def _start(self, G: Array, b: Array, ridge: Array) -> Array:
        """The minimiser of the quadratic model at the constant model."""
        u, loss = np.zeros(self._p), self._loss
        if not self._margin:
            h, gain = loss.curvature, loss.curvature
        else:
            pi = self._share
            h, gain = (pi * (1 - pi), 1.0) if isinstance(loss, Logistic) else (0.25, 0.5)
            gain *= np.sqrt(pi * (1 - pi))
            if self._task.intercept:
                u[0] = np.log(pi / (1 - pi)) if isinstance(loss, Logistic) else 2 * pi - 1
        return minimise(h * G, h * G @ u + gain * b, self._with(h * ridge), u)

    def _curvature(self, f: Array) -> tuple[float, float]:
        """H of the metric h·G, and of the ridge: released for the logistic loss, the loss's bound for others."""
        if not isinstance(self._loss, Logistic):
            h = self._loss.curvature
            return h, (0.25 if self._margin else h)
        slope = self._loss.derivative(f)
        values = BoundedValues((-slope * (1 + slope))[:, None], 0.25)
        mean = release_once(self._session, self._parts["curvature"], values)[0] / self._n
        return float(np.clip(1.25 * mean, 0.005, 0.25)), float(np.clip(mean, 0.005, 0.25))

    def _clip(self, z: Array, leverage: Array, h: float) -> float:
        """C/√p: grows with x; not far beyond the largest contributions, as far as noise lets them be seen."""
        plan, pi = self._plan, self._share
        if plan._clip is not None:
            return plan._clip
        if self._margin:
            information = plan._x * np.sqrt(4 * pi * (1 - pi))
            c = min(0.27 * information ** (1 / 3), 3.0) * np.sqrt(0.25 / h)
        else:
            values = BoundedValues(np.minimum(z * z, 1.0)[:, None])
            mean = release_once(self._session, self._parts["residual"], values)[0] / self._n
            c = 0.3 * plan._x**0.45 * np.sqrt(np.clip(mean, 0.05, 1.0))
        if "clip" in self._parts:
            norms = np.abs(self._loss.derivative(z)) * leverage / np.sqrt(self._p)
            logs = np.log2(np.maximum(norms, 2.0**-20))
            channel = self._session.channel(self._parts["clip"])
            c = min(c, 1.5 * 2.0 ** noisy_quantile(channel, logs, 1 - plan._tail, -3.0, 5.0, self._n))
        return float(c)

    def descend(self) -> tuple[Array, Array | None]:
        """The averaged iterate, and its standard errors from the noise of the descent."""
        G, b = self._metric()
        self._G = G
        ridge = self._ridge(G)
        u = self._start(G, b, ridge)
        f = self._X @ u
        h, h_ridge = self._curvature(f if self._labels is None else f * self._labels)
        A, penalty = h * G, self._with(h_ridge * ridge)
        values, Q = np.linalg.eigh(A)
        root, inverse = (Q * np.sqrt(values)) @ Q.T, (Q / np.sqrt(values)) @ Q.T
        white = (inverse @ self._X.T).T  # Fortran order
        if self._labels is not None:
            white *= self._labels[:, None]
            f = f * self._labels
        self._X = white
        z = f - self._offset
        C = self._clip(z, np.sqrt(np.einsum("ij,ij->i", white, white)), h) * np.sqrt(self._p)
        total = LinearGradient(Design(white), self._offset, self._loss, C)
        return self._steps(total, A, root, penalty, u)

    def _steps(
        self, total: LinearGradient, A: Array, root: Array, penalty: Penalty, u: Array
    ) -> tuple[Array, Array | None]:
        channel = self._session.channel(self._parts["descent"])
        T, burn, progress = self._plan._T, self._plan._burn, self._session.progress
        kept = np.zeros(self._p)
        for t in range(T):
            g = root @ channel.release(total, (root @ u)[None])[0] / self._n
            u = minimise(A, A @ u - g, penalty, u)
            kept += u * (t >= burn)
            if progress is not None:
                progress(t + 1, T)
        if self._p > LARGEST_ERRORS:
            return kept / (T - burn), None
        sigma = np.array([noise_std(channel.mechanism, total, t) for t in range(T)]) / self._n
        logistic = isinstance(self._loss, Logistic)
        H = (A - self._floor * np.trace(A) / np.trace(self._G) * np.eye(self._p)) / (1.25 if logistic else 1.0)
        return kept / (T - burn), averaged_errors(A, H, penalty.l2, root, sigma, burn)


def averaged_errors(A: Array, H: Array, ridge: Array, root: Array, sigma: Array, burn: int) -> Array:
    """Standard errors of the averaged iterate from the noise of the descent, to first order.

    Near the optimum, e ← B e − (A + D)⁻¹A^{1/2}ξ_t with B = (A + D)⁻¹(A − H), D the ridge and H the curvature; the
    average of the iterates from ``burn`` on is linear in the ξ_t, and its covariance is summed exactly.

    Args:
        A: the metric.
        H: the curvature of the mean loss.
        ridge: the diagonal D.
        root: A^{1/2}.
        sigma: the noise of each step.
        burn: the first step that is averaged.

    Returns:
        One number per coordinate. Clipping, ℓ1 penalties, sampling error and the noise of earlier stages are left out.
    """
    p, T = len(A), len(sigma)
    inverse = np.linalg.inv(A + np.diag(ridge))
    B, gain = inverse @ (A - H), inverse @ root / (T - burn)
    S, variance = np.zeros((p, p)), np.zeros(p)
    for t in reversed(range(T)):
        S = B @ S + (np.eye(p) if t >= burn else 0.0)
        variance += sigma[t] ** 2 * np.square(S @ gain).sum(axis=1)
    return np.asarray(np.sqrt(variance))
