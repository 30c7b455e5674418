"""Multi-convex problems: what a record contributes to each released block, and the chain of a hidden run.

A *problem* is public: it describes blocks, and says what a record contributes to each of them at their current values.
Hidden variables of a record are computed on the way from those values and that record alone, and forgotten (errata E6:
a hidden variable that is carried along is a second way for the record into every later release).
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit._registry import claim, drop_inherited
from tacit.errors import MechanismMismatch
from tacit.kernels.clipping import clipped_total
from tacit.kernels.lattice import lattice_total
from tacit.mechanism import Adjacency, BlockSweeps, Cyclic, FullBatch, Mechanism
from tacit.problem.blocks import Block, GradientStep, Values, joined, separated
from tacit.records import Rows
from tacit.release.channel import noise_std
from tacit.release.query import Example, Grid, Members, Query, Sums, reads_everybody, register

__all__ = ["PROBLEMS", "BlockChain", "BlockProblem", "BlockSum", "JacobiCache", "replay"]

Array = NDArray[np.float64]
Mask = NDArray[Any]
"""Which records a batch holds, or what each counts."""
Sum = NDArray[Any]
"""(size,): float64, or int64 in units of a grid."""
Grids = tuple[Grid, ...]
"""One for each block."""
MAX_COEFFICIENT = 1e25
"""Entries of blocks that no run comes near; larger ones are taken as this."""

PROBLEMS: dict[str, type[BlockProblem]] = {}
"""Every problem that was defined, by the name of its class; the contract suite comes to each."""


class BlockProblem(ABC):
    """What each record contributes to every released block: public, without a record inside.

    A class that derives from this one is registered by being defined (unless its name begins with an underscore), and
    so becomes subject to record-and-replay (``tests/release/test_blocks.py``): contributions of one record may depend
    on that record and on the released blocks only, and a call must leave no trace for the next one.

    Attributes:
        blocks: the public descriptions.
    """

    blocks: tuple[Block, ...]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        drop_inherited(cls, BlockProblem, "contributions", ("total", "totals", "grid", "scales"))
        if cls.__name__.startswith("_"):
            return
        claim(PROBLEMS, cls.__name__, cls, "a problem")

    @abstractmethod
    def contributions(self, block: int, values: Values, rows: Rows) -> Array:
        """What these records contribute to a block at these values, unclipped: (records, size).

        Hidden variables are computed here: in closed form, or by a fixed number of deterministic iterations, from
        ``values`` and each record alone.
        """

    @classmethod
    @abstractmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """A problem, random neighbours that differ in record 0, and values to evaluate it at."""

    def total(self, block: int, values: Values, rows: Rows, grid: Grid | None = None) -> Sum:
        """Σ of clipped contributions; override it where norms are cheaper than contributions (rank one: a product).

        Args:
            block: which one.
            values: of all blocks.
            rows: the batch; ``rows.weights`` says what each row counts: it is multiplied by it once it is clipped, and
                before it is rounded.
            grid: of an exact release; None in floating point.

        Returns:
            (size,): int64 in units of the grid, or float64.
        """
        G = np.ascontiguousarray(self.contributions(block, values, rows), np.float64)[None]
        counts = (np.ones(len(rows), bool) if rows.weights is None else rows.weights)[None]
        if grid is None:
            return np.asarray(clipped_total(G, counts, self.blocks[block].bound)[0])
        return np.asarray(lattice_total(G, counts, self.blocks[block].bound, grid.unit)[0])

    def totals(self, values: Values, rows: Rows, grids: Grids | None = None) -> tuple[Sum, ...]:
        """``total`` of every block at the same values; override it where one pass over the records gives them all."""
        if grids is None:
            return tuple(self.total(i, values, rows) for i in range(len(self.blocks)))
        return tuple(self.total(i, values, rows, grid) for i, grid in enumerate(grids))

    def grid(self, block: int, sigma: float) -> Grid:
        """The lattice of a block's sums with noise of deviation σ (``Query.grid``)."""
        return Grid.fine(sigma, self.blocks[block].bound)

    def scales(self, block: int) -> Array | None:
        """Public factors of the entries of a block's sum, which stay out of its integers (``Query.scales``)."""
        return None


def _confined(value: Array) -> Array:
    """Read-only and finite: a run that diverges must not overflow for some records and not for others."""
    if not np.abs(value).max() <= MAX_COEFFICIENT:  # also NaN
        value = np.clip(np.nan_to_num(value), -MAX_COEFFICIENT, MAX_COEFFICIENT)
    value.setflags(write=False)
    return value


def _values(state: Array, problem: BlockProblem) -> Values:
    """All blocks of a state, as a problem may see them."""
    return tuple(map(_confined, separated(state, problem.blocks)))


def _batch(rows: Rows, mask: Mask) -> Rows:
    if reads_everybody(mask):
        return rows
    index = np.flatnonzero(mask)
    taken = rows if len(index) == len(rows) else rows.take(index)
    return taken if mask.dtype == np.bool_ else taken.weighted(mask[index])


class JacobiCache:
    """The sums of all blocks at one state and batch, made once: a function of both, whenever it is asked for.

    It is kept beside the records that batches are drawn from (``Rows.kept``), and holds none of them.

    Args:
        problem: whose sums they are.
    """

    def __init__(self, problem: BlockProblem) -> None:
        self._problem = problem
        self._known: tuple[Array, Mask, Grids | None, tuple[Sum, ...]] | None = None

    def totals(self, rows: Rows, state: Array, mask: Mask, grids: Grids | None = None) -> tuple[Sum, ...]:
        """Those of the problem, at all blocks as one vector, over the records of a batch.

        Args:
            rows: the records that batches are drawn from: always the same.
            state: all blocks as one vector.
            mask: which records are in the batch.
            grids: of all blocks, for exact sums.

        Returns:
            The sum of each block.
        """
        known = self._known
        if known is None or not (
            np.array_equal(known[0], state) and np.array_equal(known[1], mask) and known[2] == grids
        ):
            own, more = state.copy(), () if grids is None else (grids,)
            made = self._problem.totals(_values(own, self._problem), _batch(rows, mask), *more)
            self._known = known = own, mask.copy(), grids, made
        return known[3]


@register("block")
@dataclass(frozen=True, eq=False)
class BlockSum(Query):
    """The sum of a problem's contributions to one of its blocks; the state is all blocks as one vector.

    Attributes:
        problem: registered.
        block: which of its blocks.
        jacobi: whether the sums of all blocks at one state and batch are made in one pass, and kept for the others.
        grids: those of all blocks in this step, for exact sums in one pass (``with_grids``).
    """

    problem: BlockProblem
    block: int
    jacobi: bool = False
    grids: Grids = ()

    def __post_init__(self) -> None:
        kind = type(self.problem)
        if PROBLEMS.get(kind.__name__) is not kind:
            raise MechanismMismatch(
                f"{kind.__name__} is not a registered problem: derive it from BlockProblem, under a public name"
            )
        _validate.index(len(self.problem.blocks), block=self.block)

    @property
    def _described(self) -> Block:
        return self.problem.blocks[self.block]

    @property
    def bound(self) -> float:  # type: ignore[override]
        """The block's."""
        return self._described.bound

    @property
    def diameter(self) -> float:
        """The block's."""
        return self._described.reach

    def grid(self, sigma: float) -> Grid:
        """The problem's."""
        if "grid" not in inspect.signature(self.problem.total).parameters:
            kind = type(self.problem).__name__
            raise MechanismMismatch(
                f"{kind}.total has no integer sums: use arithmetic='float', or let it take a grid and return integers"
            )
        return self.problem.grid(self.block, sigma)

    def scales(self, size: int) -> Array | None:
        """The problem's."""
        return self.problem.scales(self.block)

    def with_grids(self, grids: Grids) -> BlockSum:
        """The same query, which knows the grids of all blocks in this step: public numbers."""
        return replace(self, grids=grids)

    def contributions(self, rows: Rows, state: Array) -> Array:
        """Those of the problem, at each replica's blocks."""
        return np.stack([self.problem.contributions(self.block, _values(row, self.problem), rows) for row in state])

    def total(self, rows: Rows, state: Array, members: Members, grid: Grid | None = None) -> Sums:
        """The problem's own sum of clipped contributions, replica by replica."""
        pairs = zip(state, members, strict=True)
        out = np.stack([self._one(rows, row, mask, grid) for row, mask in pairs])
        wanted = self._described.release_size
        if out.shape != (len(state), wanted):
            name = self._described.name
            raise MechanismMismatch(f"block {name!r} announced sums of {wanted} numbers, not {out.shape}")
        return out

    def _one(self, rows: Rows, state: Array, mask: Mask, grid: Grid | None) -> Sum:
        if not mask.any():
            return np.zeros(self._described.release_size, np.float64 if grid is None else np.int64)
        at_once = self.jacobi and (grid is None or grid in self.grids[self.block : self.block + 1])
        with np.errstate(all="ignore"):  # a warning would tell about a record
            if at_once:
                cache = rows.kept(("jacobi", self.problem), lambda: JacobiCache(self.problem))
                sums = cache.totals(rows, state, mask, None if grid is None else self.grids)[self.block]
            else:
                values, batch = _values(state, self.problem), _batch(rows, mask)
                more = () if grid is None else (grid,)
                sums = self.problem.total(self.block, values, batch, *more)
        return np.asarray(sums, np.float64) if grid is None else np.asarray(sums)

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Any problem that was defined, any of its blocks."""
        name = sorted(PROBLEMS)[rng.integers(len(PROBLEMS))]
        problem, here, there, values = PROBLEMS[name].example(rng, records)
        block = int(rng.integers(len(problem.blocks)))
        return Example(cls(problem, block, bool(rng.integers(2))), here, there, joined(values)[None])


@dataclass(frozen=True, eq=False)
class BlockChain:
    """Gauss–Seidel sweeps of gradient steps as a hidden chain: release i of a step moves block i.

    The state is all blocks as one vector. Block i moves by η_i·(noisy sum)/b and a prox, so its noise is η_i·σ_i/b; how
    much its map stretches each block is the coupling that the certificate states, and the user vouches for.

    Attributes:
        blocks: in the order of a sweep; each moves by gradient steps of constant size.
        records: n, public (nominal under add/remove).
        n_batches: k; 1 means full batches.
    """

    blocks: tuple[Block, ...]
    records: int
    n_batches: int

    @property
    def _expected(self) -> float:
        return self.records / self.n_batches

    def state_noise(self, sigma: Array) -> Array:
        """η_i·σ_i/b: the noise of each block, from that of its sum.

        Args:
            sigma: (blocks,), or (steps, blocks).

        Returns:
            As many numbers.

        Raises:
            MechanismMismatch: if a block moves in another way.
        """
        eta = [block.hidden_step for block in self.blocks]
        if any(step is None for step in eta):
            raise MechanismMismatch("a hidden block must move by gradient steps of constant size: certify all iterates")
        return np.asarray(np.array(eta, np.float64) * sigma / self._expected)

    def check(self, mechanism: Mechanism, query: tuple[BlockSum, ...], n: int) -> None:
        """The certificate must describe these sweeps: same blocks, batches and noise.

        Args:
            mechanism: what was certified.
            query: what will be asked, one for each block.
            n: how many records there are.

        Raises:
            MechanismMismatch: naming what differs.
        """
        view, p = mechanism.view, len(self.blocks)
        if getattr(view, "rounding", None) is not None:
            raise MechanismMismatch(
                "the rounding of block problems is not known, which an exact hidden chain needs: use "
                "arithmetic='float', or certify all iterates"
            )
        if not isinstance(view, BlockSweeps) or mechanism.releases != p:
            raise MechanismMismatch("the certificate describes another chain: certify the plan of these blocks")
        batches = mechanism.sampling.n_batches if isinstance(mechanism.sampling, Cyclic) else 1
        other_n = n != self.records and mechanism.adjacency is not Adjacency.ADD_REMOVE  # there n is nominal
        if batches != self.n_batches or other_n or not isinstance(mechanism.sampling, FullBatch | Cyclic):
            raise MechanismMismatch(
                f"certified for {batches} batches, but the chain has {self.n_batches} of {n} records"
            )
        asked = [(one.block, one._described.constants) for one in query]
        if asked != [(i, block.constants) for i, block in enumerate(self.blocks)]:
            raise MechanismMismatch("the queries are not those of the chain's blocks: ask for each of them, in order")
        sigma = [[noise_std(mechanism, one, k * p + i) for i, one in enumerate(query)] for k in range(mechanism.steps)]
        if not np.allclose(view.noise_std.values, self.state_noise(np.array(sigma)), rtol=1e-9, atol=0):
            raise MechanismMismatch("the certified noise of a block is not step size × noise of its sum / batch size")

    def query_state(self, theta: Array, k: int, release: int) -> Array:
        """Sums are taken at what the blocks have become, inside a public box: 1-Lipschitz in each block by itself."""
        return np.clip(np.nan_to_num(theta, nan=0.0), -MAX_COEFFICIENT, MAX_COEFFICIENT)

    def advance(self, theta: Array, noisy: Array, k: int, release: int) -> Array:
        """One proximal step of one block."""
        block = self.blocks[release]
        assert isinstance(block.update, GradientStep)
        first = sum(one.start.size for one in self.blocks[:release])
        part = slice(first, first + block.start.size)
        new, eta = theta.copy(), block.hidden_step
        assert eta is not None
        new[..., part] = block.update.moved(theta[..., part], noisy, eta, self._expected)
        return new


def replay(
    problem: type[BlockProblem], adjacency: Adjacency | str = Adjacency.REPLACE_ONE, pairs: int = 200, seed: int = 0
) -> dict[str, float]:
    """How far the sums of a problem move between the neighbours of its ``example``, over what its blocks declare.

    Above 1 the problem breaks its promise; well below 1 its example is too tame to tell, or its bounds are too wide.

    Args:
        problem: registered.
        adjacency: the relation; if it is not replace-one, record 0 vanishes.
        pairs: how many.
        seed: of the examples.

    Returns:
        The largest ratio found, per block.
    """
    relation, rng = Adjacency.parse(adjacency), np.random.default_rng(seed)
    records = 5
    worst: dict[str, float] = {}
    everybody = np.ones((1, records), bool)
    others = everybody & (np.arange(records) > 0)
    for _ in range(pairs):
        made, here, there, values = problem.example(rng, records)
        state = joined(values)[None]
        for i, block in enumerate(made.blocks):
            query, replaced = BlockSum(made, i), relation is Adjacency.REPLACE_ONE
            other = query.total(there, state, everybody) if replaced else query.total(here, state, others)
            moved = float(np.linalg.norm(query.total(here, state, everybody) - other))
            worst[block.name] = max(worst.get(block.name, 0.0), moved / (block.reach if replaced else block.bound))
    return worst
