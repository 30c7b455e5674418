"""Multi-convex problems: released blocks, hidden per-record variables, and the sums that their updates need.

    minimise  f(θ₁ … θ_p, φ₁ … φ_s) + Σ r_i(θ_i)      convex in each block while the others are fixed

θ is released; φ belongs to single records and stays hidden. A *problem* holds the records and says what each of them
contributes to a released block at the current θ; its own φ is computed on the way from θ and that record alone, and
forgotten (errata E6: a φ that is carried along is a second way for the record into every later release). What happens
to a noisy sum afterwards is an *update*, which belongs to the block's public description and never meets a record: the
variant of paper 000 that multiplies by a matrix of records after the noise (errata E11) cannot be written as one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.kernels.clipping import clipped_total
from tacit.mechanism import Adjacency
from tacit.problem import Penalty
from tacit.run.clipped_sum import ClippedSum, Mask, register

__all__ = [
    "PROBLEMS",
    "Block",
    "BlockProblem",
    "BlockSum",
    "GradientStep",
    "Position",
    "Together",
    "Update",
    "Values",
    "joined",
    "register_problem",
    "replay",
    "separated",
]

Array = NDArray[np.float64]
Values = tuple[Array, ...]
"""The current value of every released block, in order."""
FARTHEST = 1e25
"""Entries of blocks that no run comes near; larger ones are taken as this."""


@dataclass(frozen=True)
class Position:
    """Where a run stands when it updates a block; all of it is public.

    Attributes:
        epoch: k, from 0.
        batch: j within the epoch, from 0.
        n_batches: steps in an epoch.
        step: from 0 over the whole run.
        steps: how many there are.
        expected: the public number of records in a batch (expected, or nominal); never the drawn one.
        noise_std: σ of the noise on the sum that was just released.
        values: of all released blocks, after the updates so far (Gauss–Seidel).
    """

    epoch: int
    batch: int
    n_batches: int
    step: int
    steps: int
    expected: float
    noise_std: float
    values: Mapping[str, Array]


class Update(Protocol):
    """Post-processing of one noisy sum: a function of public things and earlier releases, so it costs nothing."""

    def __call__(self, value: Array, noisy: Array, at: Position) -> Array:
        """The block's next value, of the same shape."""


@dataclass(frozen=True)
class GradientStep:
    """θ ← prox_{η·r}(θ − η·noisy/b), b the public size of a batch.

    Attributes:
        step_size: η, on the batch mean: a number, or a function of the position.
        penalty: r, separable; its prox is taken with the step's own η. Of size 1 for the same in every entry, None for
            r = 0.
        constraint: a public map applied last (e.g. a projection onto a ball), or None.
    """

    step_size: float | Callable[[Position], float]
    penalty: Penalty | None = None
    constraint: Callable[[Array], Array] | None = None

    def __post_init__(self) -> None:
        if not callable(self.step_size):
            _validate.positive(step_size=self.step_size)

    def __call__(self, value: Array, noisy: Array, at: Position) -> Array:
        """One proximal step."""
        eta = self.step_size(at) if callable(self.step_size) else self.step_size
        new = value - eta * noisy.reshape(value.shape) / at.expected
        if self.penalty is not None:
            new = self.penalty.prox(new.ravel(), eta).reshape(value.shape)
        return new if self.constraint is None else self.constraint(new)


@dataclass(frozen=True, eq=False)
class Block:
    """A released block: its public description, made before any record is read.

    Attributes:
        name: for people, and for updates that look at other blocks.
        start: its first value; free of data (zeros, or drawn from a public seed).
        bound: C, the longest contribution of one record to its released sum.
        update: what a noisy sum does to it.
        size: the length of the released sum, if it is not that of the block (statistics instead of gradients).
        diameter: the largest distance between two possible contributions, where it is smaller than 2C; used where every
            step reads every record.
    """

    name: str
    start: Array
    bound: float
    update: Update
    size: int | None = None
    diameter: float | None = None

    def __post_init__(self) -> None:
        if not (isinstance(self.name, str) and self.name):
            raise InvalidInput("a block needs a name, e.g. 'items'")
        start = _validate.real_array("start", self.start)
        if start.ndim == 0 or start.size == 0 or not np.isfinite(start).all():
            raise InvalidInput(f"the start of block {self.name!r} must be a finite array with at least one entry")
        start.setflags(write=False)
        object.__setattr__(self, "start", start)
        object.__setattr__(self, "bound", _validate.positive(bound=self.bound))
        if not callable(self.update):
            raise InvalidInput(f"the update of block {self.name!r} must be callable, e.g. GradientStep(0.1)")
        if self.size is not None:
            _validate.positive_int(size=self.size)
        if self.diameter is not None:
            _validate.positive(diameter=self.diameter)
        if not self.bound * (1 - 1e-12) <= self.reach <= 2 * self.bound * (1 + 1e-12):
            raise InvalidInput(
                f"diameter {self.reach:g} of block {self.name!r} must lie between its bound and twice that"
            )

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the block."""
        return self.start.shape

    @property
    def release_size(self) -> int:
        """The length of the released sum."""
        return self.start.size if self.size is None else self.size

    @property
    def reach(self) -> float:
        """The largest distance between two possible contributions."""
        return 2 * self.bound if self.diameter is None else self.diameter

    @property
    def constants(self) -> tuple[object, ...]:
        """All that the privacy of a run depends on."""
        return (self.name, self.shape, self.bound, self.release_size, self.reach)


def joined(values: Values) -> Array:
    """All blocks as one vector."""
    return np.concatenate([np.ravel(value) for value in values])


def separated(flat: Array, blocks: tuple[Block, ...]) -> Values:
    """The inverse of ``joined``: views into the vector."""
    ends = np.cumsum([0, *(block.start.size for block in blocks)])
    return tuple(flat[a:b].reshape(block.shape) for a, b, block in zip(ends, ends[1:], blocks, strict=False))


class BlockProblem(ABC):
    """Records, and what each of them contributes to every released block. With the channel, all that reads records.

    A problem derives from this class, is decorated with ``@register_problem(name)``, and so becomes subject to
    record-and-replay (``tests/run/test_blocks.py``): contributions of one record may depend on that record and on the
    released blocks only, and a call must leave no trace for the next one.

    Attributes:
        blocks: the public descriptions.
        records: how many there are.
    """

    name: ClassVar[str]
    blocks: tuple[Block, ...]
    records: int

    @abstractmethod
    def contributions(self, block: int, values: Values, index: NDArray[np.intp]) -> Array:
        """What the records ``index`` contribute to a block at these values, unclipped: (len(index), size).

        Hidden variables are computed here: in closed form, or by a fixed number of deterministic iterations, from
        ``values`` and each record alone.
        """

    @classmethod
    @abstractmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[Self, Self, Values]:
        """Random neighbours that differ in record 0, and values to evaluate them at (for record-and-replay)."""

    def total(self, block: int, values: Values, index: NDArray[np.intp]) -> Array:
        """Σ of clipped contributions; override it where norms are cheaper than contributions (rank one: a product).

        Args:
            block: which one.
            values: of all blocks.
            index: the batch.

        Returns:
            (size,).
        """
        G = np.ascontiguousarray(self.contributions(block, values, index), np.float64)[None]
        return np.asarray(clipped_total(G, np.ones((1, len(index)), bool), self.blocks[block].bound)[0])

    def totals(self, values: Values, index: NDArray[np.intp]) -> tuple[Array, ...]:
        """``total`` of every block at the same values; override it where one pass over the records gives them all."""
        return tuple(self.total(i, values, index) for i in range(len(self.blocks)))


PROBLEMS: dict[str, type[BlockProblem]] = {}
"""Every registered problem, by name."""

P = TypeVar("P", bound=type[BlockProblem])


def register_problem(name: str) -> Callable[[P], P]:
    """Class decorator: make a problem part of the trusted code, and subject to record-and-replay.

    Args:
        name: of the problem.

    Returns:
        The decorator.

    Raises:
        InvalidInput: if another class has the name.
    """

    def add(cls: P) -> P:
        known = PROBLEMS.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
            raise InvalidInput(f"a problem named {name!r} is registered already: choose another name")
        cls.name = name
        PROBLEMS[name] = cls
        return cls

    return add


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
        here, there, values = problem.example(rng, records)
        state = joined(values)[None]
        for i, block in enumerate(here.blocks):
            a, b = BlockSum(here, i), BlockSum(there, i)
            replaced = relation is Adjacency.REPLACE_ONE
            moved = a.total(state, everybody) - (b.total(state, everybody) if replaced else a.total(state, others))
            ratio = float(np.linalg.norm(moved)) / (block.reach if replaced else block.bound)
            worst[block.name] = max(worst.get(block.name, 0.0), ratio)
    return worst


def _confined(value: Array) -> Array:
    """Read-only and finite: a run that diverges must not overflow for some records and not for others."""
    if not np.abs(value).max() <= FARTHEST:  # also NaN
        value = np.clip(np.nan_to_num(value), -FARTHEST, FARTHEST)
    value.setflags(write=False)
    return value


def _at(row: Array, problem: BlockProblem) -> Values:
    """All blocks of a state, as a problem may see them."""
    return tuple(map(_confined, separated(row, problem.blocks)))


class Together:
    """The sums of all blocks at one state and batch, made once: a function of both, whenever it is asked for.

    Args:
        problem: whose sums they are.
    """

    def __init__(self, problem: BlockProblem) -> None:
        self._problem = problem
        self._known: tuple[Array, NDArray[np.intp], tuple[Array, ...]] | None = None

    def totals(self, state: Array, index: NDArray[np.intp]) -> tuple[Array, ...]:
        """Those of the problem, at all blocks as one vector."""
        if self._known is None or not (np.array_equal(self._known[0], state) and np.array_equal(self._known[1], index)):
            own = state.copy()
            self._known = own, index.copy(), self._problem.totals(_at(own, self._problem), index)
        return self._known[2]


@register("block")
class BlockSum(ClippedSum):
    """The sum of a problem's contributions to one of its blocks; the state is all blocks as one vector.

    Args:
        problem: registered.
        block: which of its blocks.
        together: where the sums of all blocks at one state are kept, for sweeps that need them together.
    """

    def __init__(self, problem: BlockProblem, block: int, together: Together | None = None) -> None:
        if PROBLEMS.get(getattr(type(problem), "name", "")) is not type(problem):
            raise MechanismMismatch(
                f"{type(problem).__name__} is not a registered problem: decorate it with @register_problem(name)"
            )
        self._problem, self._index = problem, _validate.index(len(problem.blocks), block=block)
        self._block = problem.blocks[self._index]
        self.records, self.bound = problem.records, self._block.bound
        self.size, self._together = self._block.release_size, together

    @property
    def diameter(self) -> float:
        """The block's."""
        return self._block.reach

    def contributions(self, state: Array, index: NDArray[np.intp]) -> Array:
        """Those of the problem, at each replica's blocks."""
        blocks, i = self._problem.blocks, self._index
        return np.stack([self._problem.contributions(i, separated(row, blocks), index) for row in state])

    def total(self, state: Array, batch: Mask) -> Array:
        """The problem's own sum of clipped contributions, replica by replica."""
        rows = zip(state, batch, strict=True)
        out = np.stack([self._one(row, np.flatnonzero(mask)) for row, mask in rows])
        if out.shape != (len(state), self.size):
            raise MechanismMismatch(
                f"block {self._block.name!r} announced sums of {self.size} numbers, not {out.shape}"
            )
        return out

    def _one(self, row: Array, index: NDArray[np.intp]) -> Array:
        if not len(index):
            return np.zeros(self.size)
        with np.errstate(all="ignore"):  # a warning would tell about a record
            if self._together is not None:
                return np.asarray(self._together.totals(row, index)[self._index], np.float64)
            return np.asarray(self._problem.total(self._index, _at(row, self._problem), index), np.float64)

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[BlockSum, BlockSum, Array]:
        """Any registered problem, any of its blocks."""
        name = sorted(PROBLEMS)[rng.integers(len(PROBLEMS))]
        here, there, values = PROBLEMS[name].example(rng, records)
        block = int(rng.integers(len(here.blocks)))
        return cls(here, block), cls(there, block), joined(values)[None]
