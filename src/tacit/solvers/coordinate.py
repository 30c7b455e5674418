"""DP-CD (004) and DP-SkGD (002): noisy proximal steps on random blocks of coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.problem import Records, Task
from tacit.run.sums import CoordinateSweep, SquareSum
from tacit.run.sums.coordinates import Blocks
from tacit.solvers.base import Budget, LinearSolver, Prepared, Session, Solution, release_once

__all__ = ["SAMPLINGS", "CoordinateDescent", "draw_blocks", "overapproximation"]

Array = NDArray[np.float64]
SAMPLINGS = ("uniform", "shuffled", "importance", "nice", "independent", "partition", "full")
SINGLE = frozenset({"uniform", "shuffled", "importance"})


@dataclass(frozen=True, eq=False)
class CoordinateDescent(LinearSolver):
    """Noisy proximal coordinate descent; DP-SGD's full gradient is the other end of the family.

    Step k draws a block U, releases its whitened gradient (``CoordinateSweep``) and takes prox steps 1/v_j with

        v_j = M_j                                      single coordinates,
        v_j = (1 + (τ−1)(ω−1)/max(p−1, 1))·M_j         τ-nice: τ coordinates, uniformly,
        v_j = (1 + (ω−1)τ/p)·M_j                       independent, each with probability τ/p,
        v_j = min(τ, ω)·M_j                            a fixed partition into blocks of τ, or all coordinates,

    M_j the coordinate-wise smoothness and ω the largest number of non-zeros of a record: expected separable
    over-approximations (Richtárik & Takáč 2016), without which blocks of correlated columns diverge (errata E15).

    Formal guarantee: exact Gaussian composition over all releases; every iterate may be shown.

    Assumptions: contributions are clipped (enforced); blocks, clips and steps do not depend on records (M_j is public,
    or released privately as part of the plan).

    Attributes:
        sampling: "uniform", "shuffled" (each coordinate once per pass, often better) or "importance" (p_j ∝ M_j) for
            single coordinates; "nice", "independent", "partition",
            "full" for blocks.
        block_size: τ (expected, if independent).
        passes: how often the data is read, in units of p coordinates; by default a rule in n, μ and p.
        rounds: T: the iterate is replaced by the mean of its round's iterates at the end of each of T rounds; None for
            the last iterate.
        clip: C: coordinate j is clipped at C·√(M_j/ΣM); by default, and never above, what the loss and bounds allow.
        step: multiplies 1/v_j.
        smoothness: "public" (from the bounds), "private" (10 % of μ²), or an array of M_j, which you vouch for.
    """

    name: ClassVar[str] = "coordinate"
    sampling: str = "uniform"
    block_size: int = 1
    passes: float | None = None
    rounds: int | None = None
    clip: float | None = None
    step: float = 1.0
    smoothness: str | ArrayLike = "private"

    def prepare(self, task: Task, budget: Budget) -> Prepared:
        """Draw nothing yet, but fix every number."""
        _validate.one_of(SAMPLINGS, sampling=self.sampling)
        _validate.positive(step=self.step)
        return _Prepared(self, task, budget)

    def updates(self, task: Task, budget: Budget) -> int:
        """The number of releases: ``passes``·p/τ, a multiple of the rounds."""
        tau = self.block(task.size)
        x = task.records * budget.mu / task.size
        passes = float(np.clip(2 * x ** (1 / 3), 1, 50)) if self.passes is None else self.passes
        count = max(round(_validate.positive(passes=passes) * task.size / tau), 1)
        rounds = 1 if self.rounds is None else _validate.positive_int(rounds=self.rounds)
        return -(-count // rounds) * rounds

    def block(self, p: int) -> int:
        """τ."""
        if self.sampling in SINGLE:
            return 1
        return p if self.sampling == "full" else min(_validate.positive_int(block_size=self.block_size), p)


def overapproximation(sampling: str, tau: int, omega: int, p: int) -> float:
    """v_j/M_j for a way of sampling blocks."""
    if sampling in SINGLE:
        return 1.0
    if sampling == "nice":
        return 1 + (tau - 1) * (omega - 1) / max(p - 1, 1)
    return 1 + (omega - 1) * tau / p if sampling == "independent" else float(min(tau, omega))


def draw_blocks(sampling: str, tau: int, steps: int, weights: Array, rng: np.random.Generator) -> Blocks:
    """The coordinates of every step; records play no part.

    Args:
        sampling: one of SAMPLINGS.
        tau: τ.
        steps: how many blocks.
        weights: M_j, for importance sampling.
        rng: any generator: blocks need not be secret.

    Returns:
        The blocks; independent ones are drawn again while empty.
    """
    p = len(weights)
    if sampling == "uniform":
        members = rng.integers(p, size=steps)
    elif sampling == "shuffled":
        members = np.argsort(rng.random((-(-steps // p), p)), axis=1).ravel()[:steps]
    elif sampling == "importance":
        members = rng.choice(p, size=steps, p=weights / weights.sum())
    elif sampling == "full":
        members = np.tile(np.arange(p), steps)
    elif sampling == "partition":
        parts = np.array_split(rng.permutation(p), -(-p // tau))
        chosen = [parts[i] for i in rng.integers(len(parts), size=steps)]
        return Blocks(np.concatenate(chosen).astype(np.int64), np.array([len(c) for c in chosen], np.int64))
    elif sampling == "nice":
        members = np.argsort(rng.random((steps, p)), axis=1)[:, :tau].ravel()
    else:
        inside = rng.random((steps, p)) < tau / p
        while (empty := ~inside.any(axis=1)).any():
            inside[empty] = rng.random((int(empty.sum()), p)) < tau / p
        return Blocks(np.nonzero(inside)[1].astype(np.int64), inside.sum(axis=1).astype(np.int64))
    size = len(members) // steps
    return Blocks(members.astype(np.int64), np.full(steps, size, np.int64))


class _Prepared(Prepared):
    def __init__(self, solver: CoordinateDescent, task: Task, budget: Budget) -> None:
        self._solver, self._task = solver, task
        self._updates = solver.updates(task, budget)
        self._private = isinstance(solver.smoothness, str) and solver.smoothness == "private"
        if self._private:
            parts = {"private smoothness": (0.1, 1), "coordinate descent": (0.9, self._updates)}
        else:
            parts = {"coordinate descent": (1.0, self._updates)}
        self.plan = budget.shares(parts)
        self._given = None if isinstance(solver.smoothness, str) else self._checked(solver.smoothness)
        if self._given is not None:
            self.declared = ("declared: the given smoothness constants were not computed from the records",)
        if self._given is None and not self._private:
            _validate.one_of(("public", "private"), smoothness=solver.smoothness)
        # Three deviations of the released mean of squares: below that, noise alone could halve it, and steps diverge.
        self._floor = 3 * np.sqrt(task.size) / (budget.mu * np.sqrt(0.1)) / task.records

    def _checked(self, given: ArrayLike) -> Array:
        M = _validate.nonnegative_array("smoothness", given)
        if M.shape != (self._task.size,) or not M.any():
            raise InvalidInput(f"smoothness must hold one number per coordinate ({self._task.size}), not all zero")
        return np.asarray(np.maximum(M, 1e-12 * M.max()))

    def _smoothness(self, records: Records, session: Session) -> Array:
        task = self._task
        reach = np.where(task.reach > 0, task.reach, 1.0)
        if self._given is not None:
            return self._given
        if not self._private:
            return np.asarray(task.loss.curvature * reach**2)
        mean = release_once(session, 0, SquareSum(records.design, reach)) / task.records
        return np.asarray(task.loss.curvature * reach**2 * np.clip(mean, min(self._floor, 1.0), 1.0))

    def _clips(self, M: Array) -> Array:
        task, C = self._task, self._solver.clip
        reach = np.where(task.reach > 0, task.reach, 1.0)
        shape = np.sqrt(M / M.sum())
        if C is None:
            # A slope of one on a feature of typical size √(M/curvature).
            C = np.sqrt(M.sum() / task.loss.curvature) * min(task.loss.slope, task.target_reach or 1.0)
        natural = task.loss.slope * reach
        return np.asarray(np.minimum(_validate.positive(clip=float(C)) * shape, natural))

    def solve(self, records: Records, session: Session) -> Solution:
        solver, task = self._solver, self._task
        M = self._smoothness(records, session)
        tau = solver.block(task.size)
        omega = task.size if task.row_nonzeros is None else min(task.row_nonzeros, task.size)
        v = overapproximation(solver.sampling, tau, omega, task.size) * M
        blocks = draw_blocks(solver.sampling, tau, self._updates, M, session.public("blocks"))
        sweep = CoordinateSweep(
            records.design,
            records.offset,
            task.loss,
            task.penalty,
            blocks,
            clips=self._clips(M),
            steps=solver.step / v,
            inner=None if solver.rounds is None else self._updates // solver.rounds,
            divisor=task.records,
        )
        start = sweep.start(task.penalty.prox(np.zeros(task.size), 0.0))
        end = session.channel(1 if self._private else 0).sweep(sweep, start)
        return Solution(end.w)
