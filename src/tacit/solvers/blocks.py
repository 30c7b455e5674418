"""Block coordinate descent on multi-convex problems: plans with certificates, and the solver that runs them.

A step draws a batch and updates the released blocks one after another, each from its own noisy sum over the same batch
(Gauss–Seidel). Whatever happens to a noisy sum is post-processing, so the certificate is the composition over **all**
block releases: exact for Gaussian noise, amplified if (and only if) batches are Poisson. Hidden-state bounds of single
blocks, added up as DP-MBCD does, are not valid (errata E6).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.accounting import certify
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.mechanism import (
    Adjacency,
    Arithmetic,
    Mechanism,
)
from tacit.problem.blocks import Block, Position, Values, joined, separated
from tacit.release import BlockProblem, BlockSum, Session
from tacit.solvers.layouts import BlockLayout, BlockPlan
from tacit.solvers.schedules import NoiseSchedule

__all__ = ["BlockDescent", "BlockLayout", "BlockPlan", "plan_blocks"]

Array = NDArray[np.float64]


def plan_blocks(
    epsilon: float | None,
    delta: float,
    *,
    blocks: Sequence[Block],
    n: int,
    batch_size: int | None = None,
    epochs: int = 10,
    sampling: str = "cyclic",
    noise_schedule: NoiseSchedule = "constant",
    shares: Mapping[str, float] | None = None,
    order: str = "gauss-seidel",
    adjacency: Adjacency | str = Adjacency.REPLACE_ONE,
    view: str = "all_iterates",
    coupling: ArrayLike | None = None,
    noise_multiplier: float | None = None,
    extra_mechanism: Callable[[float], Mechanism] | None = None,
    unit: str = "record",
    label: str = "block coordinate descent",
    arithmetic: Arithmetic | str = Arithmetic.FLOAT,
) -> BlockPlan:
    """Noise for every release of every block, so that the whole run is (ε, δ)-DP.

    Release i of step t has Δ/σ = √(share_i/o(k, j))/x; x is calibrated on the composition of all of them.

    Formal guarantee: a run of the plan (``BlockDescent``) satisfies ``plan.certificate``.

    Assumptions: each record's contribution to a block is clipped to its bound (enforced by the default ``total``, and
    tested for those of problems that override it); hidden variables are recomputed from released blocks and one record.

    Args:
        epsilon: ε, or None if ``noise_multiplier`` is given.
        delta: δ.
        blocks: public descriptions, in the order of a sweep.
        n: records; under add/remove a nominal number that was chosen without looking.
        batch_size: b; all records if missing.
        epochs: K.
        sampling: "cyclic" (disjoint batches that take turns), "poisson" (amplified) or "full".
        noise_schedule: relative variances o(k, j): see ``tacit.solvers.schedules``.
        shares: of μ², per block name; equal if missing (``balanced_shares`` makes others).
        order: "gauss-seidel": each block is updated from a sum at what the others are by then; "jacobi": all sums of a
            step are taken at its beginning, which a problem may do in one pass. Composition does not ask.
        adjacency: the relation.
        view: "all_iterates", or "final_model" with a ``coupling``.
        coupling: L, (p, p): how much block i's map, step and all, stretches block j; you vouch for it.
        noise_multiplier: x itself.
        extra_mechanism: makes one more mechanism of the same plan, from √(Σ (Δ/σ)²) over the block releases that read
            one record (the expected number of them under Poisson sampling): it is calibrated along with them.
        unit: whose data a record is.
        label: for people.
        arithmetic: "float" or "exact".

    Returns:
        The plan.

    Raises:
        InvalidInput: if arguments are out of range or contradict each other.
        NotCovered: for a final model that no theorem is about.
    """
    if (epsilon is None) == (noise_multiplier is None):
        raise InvalidInput("give either epsilon or noise_multiplier: one follows from the other")
    layout = BlockLayout.of(
        blocks=blocks,
        n=n,
        batch_size=batch_size,
        epochs=epochs,
        sampling=sampling,
        noise_schedule=noise_schedule,
        shares=shares,
        order=order,
        adjacency=adjacency,
        view=view,
        coupling=coupling,
        extra_mechanism=extra_mechanism,
        unit=unit,
        label=label,
        arithmetic=arithmetic,
    )
    if noise_multiplier is not None:
        x = _validate.positive(noise_multiplier=noise_multiplier)
        return layout.plan(x, certify(layout.make(x), delta=_validate.delta(delta)))
    assert epsilon is not None
    return layout.calibrated(epsilon, delta)


@dataclass(frozen=True, eq=False)
class BlockDescent:
    """Sweeps over the blocks of a problem, as planned. It has a session and no record in its scope.

    Formal guarantee: everything that a run returns satisfies ``plan.certificate``. Where that is about the final model
    only, the session owns the blocks until the end (``Session.run_chain``).

    Attributes:
        plan: public numbers.
        problem: what records contribute; its blocks are those that were planned.
    """

    plan: BlockPlan
    problem: BlockProblem

    def __post_init__(self) -> None:
        if [block.constants for block in self.problem.blocks] != [block.constants for block in self.plan.blocks]:
            raise MechanismMismatch(
                "the problem's blocks are not those that were planned: names, shapes or bounds differ"
            )

    def solve(self, session: Session, part: int = 0) -> Values:
        """Run the plan.

        Args:
            session: opened for the plan's certificate, with all steps to take.
            part: of the session's plan that the blocks are.

        Returns:
            The last value of each block; one row per replica in audits.

        Raises:
            MechanismMismatch: if the session serves another plan; no record is read then.
        """
        plan = self.plan
        if session.mechanism(part) != plan.mechanism or session.steps_left(part) != plan.steps:
            raise MechanismMismatch(
                "the session serves another plan, or has taken steps: open one for plan.certificate"
            )
        if session.n_records not in (None, plan.n):
            raise MechanismMismatch(f"planned for {plan.n} records, the session has {session.n_records}")
        return self._final_model(session, part) if plan.view == "final_model" else self._every_iterate(session, part)

    def _final_model(self, session: Session, part: int) -> Values:
        chain, count = self.plan.chain, session.replicas
        start = joined(tuple(block.start for block in self.plan.blocks))
        queries = tuple(BlockSum(self.problem, i) for i in range(len(self.plan.blocks)))
        last = session.run_chain(chain, queries, start if count == 1 else np.tile(start, (count, 1)), part)
        return _stacked([separated(row, self.plan.blocks) for row in np.atleast_2d(last)])

    def _every_iterate(self, session: Session, part: int) -> Values:
        plan, count, jacobi = self.plan, session.replicas, self.plan.order == "jacobi"
        queries = [BlockSum(self.problem, i, jacobi and count == 1) for i in range(len(plan.blocks))]
        values: list[Values] = [tuple(block.start.copy() for block in plan.blocks) for _ in range(count)]
        for step in range(plan.steps):
            state = _state(values)
            if jacobi:  # one pass over the records gives all sums of a step
                queries = [query.with_grids(session.grids(queries, part)) for query in queries]
            for i, query in enumerate(queries):
                if i > 0 and not jacobi:
                    state = _state(values)
                sigma = session.noise_std(query, part)
                noisy = session.release(query, state, part)
                sums = noisy[None] if count == 1 else noisy
                values = [self._updated(i, now, out, step, sigma) for now, out in zip(values, sums, strict=True)]
            session.tick(step + 1, plan.steps)
        return _stacked(values)

    def _updated(self, i: int, values: Values, noisy: Array, step: int, sigma: float) -> Values:
        """All blocks after block i's update."""
        plan, block = self.plan, self.plan.blocks[i]
        epoch, batch = divmod(step, plan.n_batches)
        named = dict(zip((b.name for b in plan.blocks), values, strict=True))
        at = Position(epoch, batch, plan.n_batches, step, plan.steps, plan.expected, sigma, named)
        new = np.array(block.update(values[i], noisy, at), np.float64)  # a copy: an update may keep its own, changed
        if new.shape != block.shape:
            raise MechanismMismatch(f"the update of block {block.name!r} returned shape {new.shape}, not {block.shape}")
        return (*values[:i], new, *values[i + 1 :])


def _state(values: Sequence[Values]) -> Array:
    """What a session takes: one vector, or one row per replica."""
    return joined(values[0]) if len(values) == 1 else np.stack([joined(own) for own in values])


def _stacked(values: Sequence[Values]) -> Values:
    """The blocks of one run, or of all replicas."""
    return values[0] if len(values) == 1 else tuple(np.stack(parts) for parts in zip(*values, strict=True))
