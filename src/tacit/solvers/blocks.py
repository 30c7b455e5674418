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
from tacit._codec import described
from tacit._digits import format_up
from tacit.accounting import Certificate, calibrate, certify
from tacit.errors import InvalidInput, MechanismMismatch, NotCovered
from tacit.mechanism import (
    Adjacency,
    AllIterates,
    Arithmetic,
    BlockSweeps,
    Cyclic,
    FrozenArray,
    FullBatch,
    Mechanism,
    Plan,
    Poisson,
    Sampling,
    Schedule,
    View,
    batch_count,
)
from tacit.problem.blocks import Block, Position, Values, joined, separated
from tacit.release import BlockChain, BlockProblem, BlockSum, Session
from tacit.solvers.base import VIEWS
from tacit.solvers.schedules import NoiseSchedule, noise_variances

__all__ = ["ORDERS", "SAMPLINGS", "BlockDescent", "BlockLayout", "BlockPlan", "plan_blocks"]

Array = NDArray[np.float64]
SAMPLINGS = ("cyclic", "poisson", "full")
ORDERS = ("gauss-seidel", "jacobi")
"""Whether a block's sum is taken at what the blocks before it have just become, or all at the beginning of the step."""


@described("BlockPlan")
@dataclass(frozen=True, eq=False)
class BlockPlan:
    """Consistent numbers for a run, with their certificate. All of it is public.

    Attributes:
        blocks: in the order of a sweep.
        n: records (nominal under add/remove).
        n_batches: batches in an epoch.
        epochs: K.
        sampling: how batches are drawn.
        ratio: Δ/σ, (steps, blocks).
        certificate: of the run.
        view: what may be shown.
        order: of the blocks within a step.
    """

    blocks: tuple[Block, ...]
    n: int
    n_batches: int
    epochs: int
    sampling: str
    ratio: Array
    certificate: Certificate
    view: str
    order: str = "gauss-seidel"

    @property
    def steps(self) -> int:
        """Batches drawn in the whole run."""
        return self.n_batches * self.epochs

    @property
    def expected(self) -> float:
        """The public number of records in a batch."""
        return self.n / self.n_batches

    @property
    def chain(self) -> BlockChain:
        """The chain of a run that shows its final model only."""
        return BlockChain(self.blocks, self.n, self.n_batches)

    @property
    def mechanism(self) -> Mechanism:
        """The releases of the blocks: the first part of the certified plan."""
        part = self.certificate.plan.parts[0]
        assert isinstance(part, Mechanism)
        return part

    def describe(self, delta: float) -> str:
        """Describe the plan in one line."""
        names = ", ".join(block.name for block in self.blocks)
        return (
            f"ε = {format_up(self.certificate.epsilon(delta))} at δ = {delta:g} ({self.certificate.view}): "
            f"blocks {names}; {self.epochs} epochs of {self.n_batches} batches, {self.sampling}"
        )


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
class BlockLayout:
    """A run with every public choice made but the amount of noise.

    Attributes:
        blocks: in the order of a sweep.
        n: records.
        n_batches: batches in an epoch.
        epochs: K.
        sampling: how batches are drawn.
        relative: Δ/σ at a noise multiplier of 1, (steps, blocks).
        adjacency: the relation.
        view: what may be shown.
        order: of the blocks within a step.
        coupling: L for a final-model guarantee, or None.
        extra_mechanism: makes one more mechanism, or None.
        unit: whose data a record is.
        label: for people.
        arithmetic: in which numbers.
    """

    blocks: tuple[Block, ...]
    n: int
    n_batches: int
    epochs: int
    sampling: str
    relative: Array
    adjacency: Adjacency
    view: str
    order: str
    coupling: Array | None
    extra_mechanism: Callable[[float], Mechanism] | None
    unit: str
    label: str
    arithmetic: Arithmetic

    @classmethod
    def of(
        cls,
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
        extra_mechanism: Callable[[float], Mechanism] | None = None,
        unit: str = "record",
        label: str = "block coordinate descent",
        arithmetic: Arithmetic | str = Arithmetic.FLOAT,
    ) -> BlockLayout:
        """From the arguments of ``plan_blocks``, checked."""
        described, records, passes = _blocks(blocks), _validate.positive_int(n=n), _validate.positive_int(epochs=epochs)
        relation, shown = Adjacency.parse(adjacency), _validate.one_of(VIEWS, view=view)
        turns = _validate.one_of(ORDERS, order=order)
        if turns == "jacobi" and shown == "final_model":
            raise NotCovered("view: the block-shift theorem is about Gauss–Seidel sweeps: leave order out", axis="view")
        k = _batches(records, batch_size, sampling)
        variances = noise_variances(noise_schedule, passes, k).ravel()
        relative = np.sqrt(_shares(shares, described)[None, :] / (variances[:, None] / variances.min()))
        lipschitz = _coupling(coupling, described, variances, shown)
        numbers = Arithmetic.parse(arithmetic)
        said = (sampling, relative, relation, shown, turns, lipschitz, extra_mechanism, unit, label, numbers)
        return cls(described, records, k, passes, *said)

    def make(self, noise: float) -> Plan:
        """What a run with this noise multiplier releases."""
        ratio, how = self.relative / noise, _sampling(self.sampling, self.n_batches)
        seen: View = AllIterates()
        if self.coupling is not None:
            chain = BlockChain(self.blocks, self.n, self.n_batches)
            seen = _sweeps(self.coupling, chain, ratio[0], self.adjacency, how)
        first = Mechanism(
            adjacency=self.adjacency,
            ratio=Schedule(ratio.ravel()),
            steps=len(ratio),
            releases=len(self.blocks),
            sampling=how,
            view=seen,
            unit=self.unit,
            label=self.label,
            arithmetic=self.arithmetic,
        )
        extra = self.extra_mechanism
        return Plan.of(first) if extra is None else Plan.of(first, extra(_strength(ratio, self.n_batches)))

    def calibrated(self, epsilon: float, delta: float) -> BlockPlan:
        """The plan of the least noise at which a run is (ε, δ)-DP."""
        found = calibrate(self.make, epsilon=epsilon, delta=delta, lower=1e-9)
        return self.plan(found.value, found.certificate)

    def plan(self, noise: float, certificate: Certificate) -> BlockPlan:
        """The plan of this noise multiplier, with its certificate."""
        ratio, turns = self.relative / noise, (self.n_batches, self.epochs)
        return BlockPlan(self.blocks, self.n, *turns, self.sampling, ratio, certificate, self.view, self.order)

    def noise_of(self, ratio: Array) -> float:
        """The noise multiplier at which the first release has its part of ``ratio``."""
        return float(self.relative.ravel()[0] / ratio.ravel()[0])


def _blocks(blocks: Sequence[Block]) -> tuple[Block, ...]:
    out = tuple(blocks)
    if not out or not all(isinstance(block, Block) for block in out):
        raise InvalidInput("blocks must be a sequence of at least one Block")
    if len({block.name for block in out}) < len(out):
        raise InvalidInput("two blocks have the same name: rename one")
    return out


def _batches(n: int, batch_size: int | None, sampling: str) -> int:
    how = _validate.one_of(SAMPLINGS, sampling=sampling)
    b = n if batch_size is None else _validate.positive_int(batch_size=batch_size)
    if b > n:
        raise InvalidInput(f"batch_size {b} exceeds the {n} records: lower it")
    if how == "full" and b != n:
        raise InvalidInput("sampling='full' reads all records at every step: leave out batch_size, or choose 'cyclic'")
    return batch_count(n, b)


def _sampling(sampling: str, n_batches: int) -> Sampling:
    if n_batches == 1:
        return FullBatch()  # also Poisson(1), and then diameters count
    return Poisson(1 / n_batches) if sampling == "poisson" else Cyclic(n_batches)


def _shares(shares: Mapping[str, float] | None, blocks: tuple[Block, ...]) -> Array:
    """Of μ², adding up to 1."""
    if shares is None:
        return np.full(len(blocks), 1 / len(blocks))
    if set(shares) != {block.name for block in blocks}:
        raise InvalidInput(f"shares must name every block once: {', '.join(block.name for block in blocks)}")
    values = np.array([_validate.positive(**{f"shares[{block.name!r}]": shares[block.name]}) for block in blocks])
    return np.asarray(values / values.sum())


def _strength(ratio: Array, n_batches: int) -> float:
    """√(Σ ratio²) over the steps of the worst batch."""
    per_step = (ratio**2).sum(axis=1)
    return float(np.sqrt(max(per_step[j::n_batches].sum() for j in range(n_batches))))


def _coupling(coupling: ArrayLike | None, blocks: tuple[Block, ...], variances: Array, view: str) -> Array | None:
    """L for a final-model guarantee, or the reason why there is none."""
    if view == "all_iterates":
        if coupling is not None:
            raise InvalidInput("coupling is for view='final_model': all iterates are certified without it")
        return None
    if coupling is None:
        one = "; for one block use tacit.plan_cyclic, which derives it" if len(blocks) == 1 else ""
        raise NotCovered(
            "view: hidden-state bounds of single blocks do not add up, because the other blocks carry the record, too "
            f"(errata E6); state coupling= with valid Lipschitz constants, or take view='all_iterates'{one}",
            axis="view",
        )
    L = _validate.nonnegative_array("coupling", coupling)
    if L.shape != (len(blocks), len(blocks)):
        raise InvalidInput(f"coupling must have shape {(len(blocks), len(blocks))}, got {L.shape}")
    if any(block.hidden_step is None for block in blocks) or np.ptp(variances) > 0:
        raise NotCovered(
            "view: the block-shift theorem covers gradient steps of constant size and noise, with a prox of a penalty; "
            "take view='all_iterates' for other updates and schedules",
            axis="view",
        )
    return L


def _sweeps(L: Array, chain: BlockChain, ratio: Array, relation: Adjacency, sampling: Sampling) -> BlockSweeps:
    full = relation is Adjacency.REPLACE_ONE and isinstance(sampling, FullBatch)
    moved = [block.reach if full else relation.sum_factor * block.bound for block in chain.blocks]
    return BlockSweeps(coupling=FrozenArray(L), noise_std=FrozenArray(chain.state_noise(np.array(moved) / ratio)))


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
