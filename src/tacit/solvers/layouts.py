"""Plans of block coordinate descent: every public choice of a run, its noise, and its certificate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit._codec import described
from tacit._digits import format_up
from tacit.accounting import Certificate, calibrate
from tacit.errors import InvalidInput, NotCovered
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
from tacit.problem.blocks import Block
from tacit.release import BlockChain
from tacit.solvers.base import VIEWS
from tacit.solvers.schedules import NoiseSchedule, noise_variances

__all__ = ["ORDERS", "SAMPLINGS", "BlockLayout", "BlockPlan"]

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
