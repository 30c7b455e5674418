"""DP-CD and DP-SkGD: noisy proximal steps on random blocks of coordinates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.mechanism import Plan
from tacit.problem import Problem
from tacit.release import Session
from tacit.release.queries import Blocks, CoordinateSweep, SquareSum
from tacit.solvers.base import Budget, Solution, Solver

__all__ = ["SAMPLINGS", "CoordinateDescent", "draw_blocks", "overapproximation"]

Array = NDArray[np.float64]
SAMPLINGS = ("uniform", "shuffled", "importance", "nice", "independent", "partition", "full")
SINGLE = frozenset({"uniform", "shuffled", "importance"})
PRIVATE_SHARE = 0.1
"""The share of μ² for private smoothness."""


@described("CoordinateDescent")
@dataclass(frozen=True, eq=False)
class CoordinateDescent(Solver):
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
        sampling: "shuffled" (the default: every pass updates each coordinate once, in a new public order), "uniform"
            (independent draws) or "importance" (p_j ∝ M_j) for single coordinates; "nice", "independent", "partition",
            "full" for blocks. The certificate is the same for all: which coordinates are updated is public.
        block_size: τ (expected, if independent).
        passes: how often the data is read, in units of p coordinates; by default a rule in n, μ and p.
        rounds: T: the iterate is replaced by the mean of its round's iterates at the end of each of T rounds; None for
            the last iterate.
        clip: C: coordinate j is clipped at C·√(M_j/ΣM); by default, and never above, what the loss and bounds allow.
        step: multiplies 1/v_j.
        smoothness: "public" (from the bounds), "private" (10 % of μ²), or an array of M_j, which the certificate lists
            as declared.
    """

    name: ClassVar[str] = "coordinate"
    in_memory: ClassVar[bool] = True
    sums_only: ClassVar[bool] = False
    sampling: str = "shuffled"
    block_size: int = 1
    passes: float | None = None
    rounds: int | None = None
    clip: float | None = None
    step: float = 1.0
    smoothness: str | ArrayLike = "private"

    @classmethod
    def of(cls, passes: float | None, clip: float | None) -> CoordinateDescent:
        """Passes and clip as they are."""
        return cls(passes=passes, clip=clip)

    def check(self, problem: Problem, budget: Budget) -> None:
        """Known names, positive numbers, a separable penalty."""
        super().check(problem, budget)
        _validate.one_of(SAMPLINGS, sampling=self.sampling)
        _validate.positive(step=self.step)
        problem.penalty.on(np.arange(1))
        if isinstance(self.smoothness, str):
            _validate.one_of(("public", "private"), smoothness=self.smoothness)
        else:
            self._given(problem)

    def declared(self, problem: Problem) -> tuple[str, ...]:
        """Smoothness constants of the user's own."""
        if isinstance(self.smoothness, str):
            return ()
        return ("declared: the given smoothness constants were not computed from the records",)

    @property
    def _private(self) -> bool:
        return isinstance(self.smoothness, str) and self.smoothness == "private"

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """Draw nothing yet, but fix every number."""
        updates = self.updates(problem, budget)
        if not self._private:
            return budget.shares({"coordinate descent": (1.0, updates)})
        return budget.shares(
            {"private smoothness": (PRIVATE_SHARE, 1), "coordinate descent": (1 - PRIVATE_SHARE, updates)}
        )

    def solve(self, problem: Problem, budget: Budget, session: Session) -> Solution:
        """Release the smoothness if it is private, draw blocks, sweep."""
        facts = problem.facts
        M = self._smoothness(problem, budget, session)
        tau, updates = self.block(facts.size), self.updates(problem, budget)
        omega = facts.size if facts.row_nonzeros is None else min(facts.row_nonzeros, facts.size)
        v = overapproximation(self.sampling, tau, omega, facts.size) * M
        sweep = CoordinateSweep(
            problem.loss,
            problem.penalty,
            draw_blocks(self.sampling, tau, updates, M, session.public_rng("blocks")),
            clips=self._clips(problem, M),
            steps=self.step / v,
            divisor=facts.n,
            inner=None if self.rounds is None else updates // self.rounds,
        )
        start = problem.penalty.prox(np.zeros(facts.size), 0.0)
        return Solution(session.sweep(sweep, start, part=1 if self._private else 0))

    def updates(self, problem: Problem, budget: Budget) -> int:
        """The number of releases: ``passes``·p/τ, a multiple of the rounds."""
        size = problem.facts.size
        x = problem.facts.n * budget.mu / size
        passes = float(np.clip(2 * x ** (1 / 3), 1, 50)) if self.passes is None else self.passes
        count = max(round(_validate.positive(passes=passes) * size / self.block(size)), 1)
        rounds = 1 if self.rounds is None else _validate.positive_int(rounds=self.rounds)
        return -(-count // rounds) * rounds

    def block(self, p: int) -> int:
        """τ."""
        if self.sampling in SINGLE:
            return 1
        return p if self.sampling == "full" else min(_validate.positive_int(block_size=self.block_size), p)

    def _given(self, problem: Problem) -> Array:
        """Smoothness constants of the user's own, checked."""
        M, size = _validate.nonnegative_array("smoothness", self.smoothness), problem.facts.size
        if M.shape != (size,) or not M.any():
            raise InvalidInput(f"smoothness must hold one number per coordinate ({size}), not all zero")
        return np.asarray(np.maximum(M, 1e-12 * M.max()))

    def _smoothness(self, problem: Problem, budget: Budget, session: Session) -> Array:
        """M_j: given, from public bounds, or from a release."""
        facts = problem.facts
        reach = np.where(facts.reach > 0, facts.reach, 1.0)
        if not isinstance(self.smoothness, str):
            return self._given(problem)
        if not self._private:
            return np.asarray(problem.loss.curvature * reach**2)
        mean = session.release(SquareSum(reach)) / facts.n
        # Three deviations of the released mean of squares: below that, noise alone could halve it, and steps diverge.
        floor = 3 * np.sqrt(facts.size) / (budget.mu * np.sqrt(PRIVATE_SHARE)) / facts.n
        return np.asarray(problem.loss.curvature * reach**2 * np.clip(mean, min(floor, 1.0), 1.0))

    def _clips(self, problem: Problem, M: Array) -> Array:
        facts, loss, C = problem.facts, problem.loss, self.clip
        reach = np.where(facts.reach > 0, facts.reach, 1.0)
        if C is None:  # a slope of one on a feature of typical size √(M/curvature)
            C = np.sqrt(M.sum() / loss.curvature) * min(loss.slope, facts.target or 1.0)
        shape = np.sqrt(M / M.sum())
        return np.asarray(np.minimum(_validate.positive(clip=float(C)) * shape, loss.slope * reach))


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
    elif sampling == "shuffled":  # one pass at a time: no matrix of passes by coordinates
        members = np.concatenate([rng.permutation(p) for _ in range(-(-steps // p))])[:steps]
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
