"""Which records a step reads: each way describes itself to theorems and draws its own batches.

A record's batches are drawn from named streams of randomness, so that a run that is resumed draws the same ones. Given
uniform words the draws have exact probabilities (``tests/mechanism/test_coins.py`` feeds NumPy with chosen words):

- ``Generator.random`` is j/2⁵³, j the upper 53 bits of a word, so a coin shows heads with probability k/2⁵³, and k is
  ⌊q·2⁵³⌋ for a stated rate q. Theorems use q: what they bound rises with it.
- ``Generator.integers`` multiplies a word by the range and rejects the words that would be too many (Lemire 2019).
- ``Generator.permuted`` swaps each place with one of those up to it, drawn by rejection (Fisher, Yates).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import ClassVar, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.kernels.dyadic import coin_rate
from tacit.mechanism.batches import Labels, assign_batches
from tacit.mechanism.frozen import Schedule
from tacit.mechanism.view import Evidence

__all__ = [
    "Cyclic",
    "CyclicPoisson",
    "FullBatch",
    "Groups",
    "Partition",
    "Poisson",
    "Sampling",
    "Separated",
    "Shuffled",
    "WithoutReplacement",
]

Mask = NDArray[np.bool_]
Draw = Callable[[int], Mask]
"""From a step (from 0) to the members of its batch: one row of n booleans per replica."""


class Streams(Protocol):
    """Independent generators by purpose and step; asking again starts the same one again."""

    def at(self, purpose: str, step: int = 0) -> np.random.Generator:
        """The generator of this purpose and step."""


@described("Partition")
class Partition(Enum):
    """How records came into their batch."""

    FIXED = "known to the adversary, or derived from the data's order"
    SECRET = "uniformly random, secret and drawn afresh for each fit"


@described("Groups")
class Groups(Enum):
    """How records came into their group (cyclic Poisson sampling)."""

    FIXED = "groups of fixed sizes"
    INDEPENDENT = "each record draws its group independently"


class Sampling:
    """Which records a step reads.

    A subclass is a frozen dataclass with ``@described``. It draws its batches (``draw``), and states what a theorem may
    use; the defaults claim nothing. Theorems list the samplings they cover by their exact type, because a subclass may
    draw differently: a new sampling is certified by a theorem that names it, and by no other.

    Attributes:
        assumption: what a certificate says about the batches; empty if nothing is assumed.
        evidence: what the assumption rests on; ``Evidence.ENFORCED`` is for samplings that Tacit itself draws.
    """

    assumption: ClassVar[str] = ""
    evidence: ClassVar[Evidence] = Evidence.DECLARED

    @property
    def independent(self) -> bool:
        """Whether a record more or less leaves the batches of all other records as they are."""
        return False

    @property
    def period(self) -> int | None:
        """The k for which a record is read at the steps j, j + k, j + 2k, … for one j, and at no others; or None."""
        return None

    def check(self, steps: int) -> None:
        """Refuse a sampling that makes no sense for a run of ``steps`` steps."""

    def worst_energy(self, ratio: Schedule) -> float:
        """The largest Σ ratio² over the steps that one record can take part in: all of them, unless known better."""
        return ratio.sum_of_squares()

    def draw(self, n: int, replicas: int, streams: Streams) -> Draw:
        """Draw batches: a function from the step to its members, of shape (replicas, n).

        Args:
            n: the number of records.
            replicas: independent runs at once (one for users, many for audits).
            streams: where the randomness comes from: "partition" and "shuffle" for partitions, "batch" for a step.

        Raises:
            MechanismMismatch: if the batches are drawn elsewhere and only described here.
        """
        raise MechanismMismatch(
            f"{type(self).__name__} describes batches that are drawn elsewhere: to run this mechanism here, certify a "
            "sampling that draws its batches, such as Poisson(rate)"
        )


@described("FullBatch")
@dataclass(frozen=True)
class FullBatch(Sampling):
    """Every step reads every record."""

    @property
    def independent(self) -> bool:
        """All records are always read."""
        return True

    @property
    def period(self) -> int:
        """Every step reads every record."""
        return 1

    def draw(self, n: int, replicas: int, streams: Streams) -> Draw:
        """Everything, always."""
        everybody = np.broadcast_to(np.True_, (replicas, n))  # takes no memory
        return lambda step: everybody

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (cls(),)


@described("Poisson")
@dataclass(frozen=True)
class Poisson(Sampling):
    """Every step reads each record independently with probability ``rate``, rounded down to a multiple of 2⁻⁵³."""

    rate: float

    assumption: ClassVar[str] = (
        "every step reads each record independently with the stated probability, rounded down to a multiple of 2⁻⁵³"
    )
    evidence: ClassVar[Evidence] = Evidence.ENFORCED

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _validate.probability(rate=self.rate))

    @property
    def independent(self) -> bool:
        """Every record has its own coins."""
        return True

    def draw(self, n: int, replicas: int, streams: Streams) -> Draw:
        """One coin per record and step."""
        rate = coin_rate(self.rate)
        return lambda step: np.asarray(streams.at("batch", step).random((replicas, n)) < rate)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (cls(0.25), cls(1.0))


def _worst_position(ratio: Schedule, period: int) -> float:
    """The largest Σ ratio² over the steps j, j + period, … of any j."""
    if ratio.is_constant:
        return math.ceil(len(ratio) / period) * ratio.max**2
    squares = ratio.to_array() ** 2
    return float(max(squares[j::period].sum() for j in range(min(period, len(squares)))))


@described("Cyclic", expands=("n_batches",))
@dataclass(frozen=True)
class Cyclic(Sampling):
    """Disjoint batches, visited in the same order in every epoch: a record is read once per epoch.

    Attributes:
        n_batches: the number of batches k; step t (from 0) reads batch t mod k.
        partition: whether the adversary may know the batch of a record.
        weights: the share of the records in each batch (omitted: equal shares).
    """

    n_batches: int
    partition: Partition = Partition.FIXED
    weights: Schedule | None = None

    assumption: ClassVar[str] = "batches are disjoint and visited in a fixed cyclic order"
    evidence: ClassVar[Evidence] = Evidence.ENFORCED

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_batches", _validate.positive_int(n_batches=self.n_batches))
        if self.weights is not None:
            if not isinstance(self.weights, Schedule):
                raise InvalidInput("weights must be a Schedule of one share per batch")
            shares = self.weights.to_array()
            if shares.size != self.n_batches or abs(shares.sum() - 1) > 1e-9:
                raise InvalidInput("weights must hold one share per batch and sum to 1: pass batch_size/n")

    @property
    def period(self) -> int:
        """One visit per epoch."""
        return self.n_batches

    def check(self, steps: int) -> None:
        """At least one epoch."""
        if self.n_batches > steps:
            raise InvalidInput(
                f"{self.n_batches} batches in {steps} steps: no epoch is ever finished; lower n_batches or raise steps"
            )

    def worst_energy(self, ratio: Schedule) -> float:
        """Of the worst batch."""
        return _worst_position(ratio, self.n_batches)

    def draw(self, n: int, replicas: int, streams: Streams) -> Draw:
        """One partition for the whole run."""
        rng = streams.at("partition") if self.partition is Partition.SECRET else None
        batch = assign_batches(n, self.n_batches, replicas, rng)
        return lambda step: np.asarray(batch == step % self.n_batches)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (cls(3), cls(3, Partition.SECRET, Schedule([0.5, 0.25, 0.25])))


@described("Shuffled")
@dataclass(frozen=True)
class Shuffled(Sampling):
    """Disjoint batches, partitioned anew in every epoch: a record is read once per epoch."""

    n_batches: int

    assumption: ClassVar[str] = "batches are disjoint within an epoch, so that a record is read once per epoch"
    evidence: ClassVar[Evidence] = Evidence.ENFORCED

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_batches", _validate.positive_int(n_batches=self.n_batches))

    def worst_energy(self, ratio: Schedule) -> float:
        """Of a record that is always in the worst batch of its epoch."""
        if ratio.is_constant:
            return math.ceil(len(ratio) / self.n_batches) * ratio.max**2
        squares = ratio.to_array() ** 2
        return float(np.maximum.reduceat(squares, np.arange(0, len(squares), self.n_batches)).sum())

    def draw(self, n: int, replicas: int, streams: Streams) -> Draw:
        """One partition per epoch."""

        @functools.lru_cache(maxsize=1)
        def batch(epoch: int) -> Labels:
            return assign_batches(n, self.n_batches, replicas, streams.at("shuffle", epoch))

        return lambda step: np.asarray(batch(step // self.n_batches) == step % self.n_batches)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (cls(3),)


@described("WithoutReplacement")
@dataclass(frozen=True)
class WithoutReplacement(Sampling):
    """Every step reads a fresh batch of a fixed size: a record may be read at every step."""

    rate: float

    assumption: ClassVar[str] = "every step reads a batch of a fixed size"
    evidence: ClassVar[Evidence] = Evidence.ENFORCED

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _validate.probability(rate=self.rate))

    def draw(self, n: int, replicas: int, streams: Streams) -> Draw:
        """The first places of a fresh permutation."""
        first = np.tile(np.arange(n) < round(self.rate * n), (replicas, 1))
        return lambda step: streams.at("batch", step).permuted(first, axis=1)

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (cls(0.25),)


@described("CyclicPoisson")
@dataclass(frozen=True)
class CyclicPoisson(Sampling):
    """Groups take turns; within the group on turn each record is read with probability ``rate``.

    Attributes:
        n_groups: the number of groups b; step t (from 0) reads from group t mod b.
        rate: the probability q within the group, rounded down to a multiple of 2⁻⁵³; an expected batch B of n records
            needs q = B·b/n.
        groups: fixed sizes (zero-out and replace-one only), or drawn independently by each record.
    """

    n_groups: int
    rate: float
    groups: Groups = Groups.FIXED

    assumption: ClassVar[str] = (
        "groups take turns, and records of a group are read independently with the stated probability, rounded down to "
        "a multiple of 2⁻⁵³"
    )
    evidence: ClassVar[Evidence] = Evidence.ENFORCED

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_groups", _validate.positive_int(n_groups=self.n_groups))
        object.__setattr__(self, "rate", _validate.probability(rate=self.rate))

    @property
    def independent(self) -> bool:
        """Only if each record draws its own group."""
        return self.groups is Groups.INDEPENDENT

    def worst_energy(self, ratio: Schedule) -> float:
        """Of the worst group, if its coins always say yes."""
        return _worst_position(ratio, self.n_groups)

    def draw(self, n: int, replicas: int, streams: Streams) -> Draw:
        """Groups for the whole run, then one coin per record and step."""
        rng, rate = streams.at("partition"), coin_rate(self.rate)
        if self.groups is Groups.INDEPENDENT:
            group = rng.integers(self.n_groups, size=(replicas, n))
        else:
            group = assign_batches(n, self.n_groups, replicas, rng)

        def members(step: int) -> Mask:
            coins = streams.at("batch", step).random((replicas, n))
            return np.asarray((group == step % self.n_groups) & (coins < rate))

        return members

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (cls(2, 0.5), cls(2, 0.3, Groups.INDEPENDENT))


@described("Separated")
@dataclass(frozen=True)
class Separated(Sampling):
    """Any participation pattern with gaps of at least ``min_separation`` and a bounded number of visits.

    ``max_participations = 1`` is single participation. It describes batches that are drawn elsewhere.
    """

    min_separation: int
    max_participations: int

    assumption: ClassVar[str] = "each record takes part only as often, and as far apart, as stated"

    def __post_init__(self) -> None:
        for name in ("min_separation", "max_participations"):
            object.__setattr__(self, name, _validate.positive_int(**{name: getattr(self, name)}))

    def worst_energy(self, ratio: Schedule) -> float:
        """Of as many visits as fit, at the largest ratios."""
        visits = min(self.max_participations, math.ceil(len(ratio) / self.min_separation))
        if ratio.is_constant:
            return visits * ratio.max**2
        return float((np.sort(ratio.to_array())[::-1][:visits] ** 2).sum())

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (cls(2, 3),)
