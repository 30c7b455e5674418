"""Released blocks of a multi-convex problem, and what a noisy sum does to them. Nothing here ever meets a record.

    minimise  f(θ₁ … θ_p, φ₁ … φ_s) + Σ r_i(θ_i)      convex in each block while the others are fixed

θ is released; φ belongs to single records and stays hidden (``tacit.release.blocks``). A block is described before any
record is read. Its *update* is post-processing of a noisy sum, so the variant of DP-MBCD that multiplies by a matrix of
records after the noise (errata E11) cannot be written as one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.problem.problem import ElasticNet, Penalty

__all__ = ["Block", "GradientStep", "Position", "Update", "Values", "joined", "separated"]

Array = NDArray[np.float64]
Values = tuple[Array, ...]
"""The current value of every released block, in order."""


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


@described("GradientStep")
@dataclass(frozen=True)
class GradientStep:
    """θ ← prox_{η·r}(θ − η·noisy/b), b the public size of a batch.

    Attributes:
        step_size: η, on the batch mean: a number, or a function of the position.
        penalty: r; its prox is taken with the step's own η. Of size 1 for the same in every entry, None for r = 0.
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
        new = self.moved(value.ravel(), noisy.ravel(), eta, at.expected).reshape(value.shape)
        return new if self.constraint is None else self.constraint(new)

    def moved(self, value: Array, noisy: Array, eta: float, expected: float) -> Array:
        """The step without its constraint, on flat values (or one row of them per replica)."""
        new = value - eta * noisy / expected
        return new if self.penalty is None else self.penalty.prox(new, eta)

    @property
    def constant_size(self) -> float | None:
        """η where every step is the same contraction: of one size, with a prox of ours or none; else None."""
        ours = self.penalty is None or type(self.penalty) is ElasticNet
        # A subclass might remember, and a callable might look at the step: neither is one map.
        if type(self) is not GradientStep or callable(self.step_size) or self.constraint is not None or not ours:
            return None
        return float(self.step_size)


@described("Block")
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

    @property
    def hidden_step(self) -> float | None:
        """η if the block moves by gradient steps of constant size, as the block-shift theorem needs; else None."""
        whole = self.release_size == self.start.size
        return self.update.constant_size if whole and isinstance(self.update, GradientStep) else None


def joined(values: Values) -> Array:
    """All blocks as one vector."""
    return np.concatenate([np.ravel(value) for value in values])


def separated(flat: Array, blocks: tuple[Block, ...]) -> Values:
    """The inverse of ``joined``: views into the vector."""
    ends = np.cumsum([0, *(block.start.size for block in blocks)])
    return tuple(flat[a:b].reshape(block.shape) for a, b, block in zip(ends, ends[1:], blocks, strict=False))
