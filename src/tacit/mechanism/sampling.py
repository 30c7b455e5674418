"""Which records a step reads. Each way is a type, so that a theorem lists the ones it covers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.mechanism.frozen import Schedule

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


class Partition(Enum):
    """How records came into their batch."""

    FIXED = "known to the adversary, or derived from the data's order"
    SECRET = "uniformly random, secret and drawn afresh for each fit"


class Groups(Enum):
    """How records came into their group (cyclic Poisson sampling)."""

    FIXED = "groups of fixed sizes"
    INDEPENDENT = "each record draws its group independently"


@dataclass(frozen=True)
class FullBatch:
    """Every step reads every record."""


@dataclass(frozen=True)
class Poisson:
    """Every step reads each record independently with probability ``rate``."""

    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _validate.probability(rate=self.rate))


@dataclass(frozen=True)
class Cyclic:
    """Disjoint batches, visited in the same order in every epoch: a record is read once per epoch.

    Attributes:
        n_batches: the number of batches k; step t (from 0) reads batch t mod k.
        partition: whether the adversary may know the batch of a record.
        weights: the share of the records in each batch (omitted: equal shares).
    """

    n_batches: int
    partition: Partition = Partition.FIXED
    weights: Schedule | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_batches", _validate.positive_int(n_batches=self.n_batches))
        if self.weights is not None:
            if not isinstance(self.weights, Schedule):
                raise InvalidInput("weights must be a Schedule of one share per batch")
            shares = self.weights.to_array()
            if shares.size != self.n_batches or abs(shares.sum() - 1) > 1e-9:
                raise InvalidInput("weights must hold one share per batch and sum to 1: pass batch_size/n")


@dataclass(frozen=True)
class Shuffled:
    """Disjoint batches, partitioned anew in every epoch: a record is read once per epoch."""

    n_batches: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_batches", _validate.positive_int(n_batches=self.n_batches))


@dataclass(frozen=True)
class WithoutReplacement:
    """Every step reads a fresh batch of a fixed size: a record may be read at every step."""

    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", _validate.probability(rate=self.rate))


@dataclass(frozen=True)
class CyclicPoisson:
    """Groups take turns; within the group on turn each record is read with probability ``rate``.

    Attributes:
        n_groups: the number of groups b; step t (from 0) reads from group t mod b.
        rate: the probability q within the group; an expected batch B of n records needs q = B·b/n.
        groups: fixed sizes (zero-out and replace-one only), or drawn independently by each record.
    """

    n_groups: int
    rate: float
    groups: Groups = Groups.FIXED

    def __post_init__(self) -> None:
        object.__setattr__(self, "n_groups", _validate.positive_int(n_groups=self.n_groups))
        object.__setattr__(self, "rate", _validate.probability(rate=self.rate))


@dataclass(frozen=True)
class Separated:
    """Any participation pattern with gaps of at least ``min_separation`` and a bounded number of visits.

    ``max_participations = 1`` is single participation.
    """

    min_separation: int
    max_participations: int

    def __post_init__(self) -> None:
        for name in ("min_separation", "max_participations"):
            object.__setattr__(self, name, _validate.positive_int(**{name: getattr(self, name)}))


Sampling = FullBatch | Poisson | Cyclic | Shuffled | WithoutReplacement | CyclicPoisson | Separated
