"""The public numbers of a training run that ``tacit plan`` compares theorems about.

Units: σ is relative to the clip C on the *sum* over a batch (noise of standard deviation σC), the learning rate η
multiplies the batch *mean*. In the space of the parameters a step that reads the record moves by at most ηΔ/b (Δ = 2C
under replace-one, else C), its noise has standard deviation s = ησC/b, and the map contracts by
c = max(|1−ηλ|, |1−η(β+λ)|). Batches are those of the runner: n/b of them, rounded, as equal as possible; a batch's sum
is divided by its own public size.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.mechanism import Adjacency, batch_count, batch_runs

__all__ = ["MAX_DIAMETER_WORK", "CyclicSettings", "Settings"]

MAX_DIAMETER_WORK = 4_000_000
"""Batches × steps up to which the bounded domain is used: its bound is computed batch by batch."""


@dataclass(frozen=True, kw_only=True)
class _Public:
    """What is public about a training run whether or not its noise is known; checked once, here."""

    n: int
    batch: int
    epochs: int
    delta: float | None
    clip: float = 1.0
    lr: float | None = None
    l2: float = 0.0
    smoothness: float | None = None
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    secret_partition: bool = False

    def __post_init__(self) -> None:
        store = object.__setattr__
        for name in ("n", "batch", "epochs"):
            store(self, name, _validate.positive_int(**{name: getattr(self, name)}))
        if self.batch > self.n:
            raise InvalidInput(f"batch must not exceed n, got batch={self.batch} and n={self.n}: lower the batch")
        self._check_positive("clip")
        self._check_positive("lr", "smoothness", optional=True)
        store(self, "l2", _validate.nonnegative(l2=self.l2))
        store(self, "adjacency", Adjacency.parse(self.adjacency))
        if self.delta is None:
            raise InvalidInput(
                f"delta is missing: choose it before the data is read, e.g. 1/n² = {1 / self.n**2:.2g} for n = {self.n}"
            )
        store(self, "delta", _validate.delta(self.delta))

    def _check_positive(self, *names: str, optional: bool = False) -> None:
        for name in names:
            value = getattr(self, name)
            if not (optional and value is None):
                object.__setattr__(self, name, _validate.positive(**{name: value}))

    @property
    def checked_delta(self) -> float:
        """δ as a float: present, because the constructor refuses its absence."""
        return _validate.delta(self.delta)

    @property
    def inputs(self) -> dict[str, object]:
        """Every option, as plain data."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)} | {"adjacency": self.adjacency.value}

    def replace(self, **changes: object) -> Self:
        """The same settings with some values changed."""
        return dataclasses.replace(self, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, kw_only=True)
class CyclicSettings(_Public):
    """A promise and sizes, from which noise, steps and ridge shall follow: ``tacit plan`` without ``--sigma``.

    Attributes:
        n: the number of records.
        batch: the batch size b.
        epochs: how often the data is read.
        target_epsilon: ε.
        delta: δ.
        clip: C, the largest norm of one record's contribution; by default that of softmax with features of norm 1.
        smoothness: β of one record's loss, without the ridge; likewise.
        lr: η of the first step, on the batch mean; by default the longest that does not expand, 2/(β + 2λ).
        l2: λ of a ridge that is in the objective, in every coordinate.
        adjacency: replace-one or zero-out.
        secret_partition: whether the partition into batches is random, secret and fresh.
    """

    target_epsilon: float
    clip: float = 2.0**0.5
    smoothness: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("target_epsilon", "smoothness")


@dataclass(frozen=True, kw_only=True)
class Settings(_Public):
    """The public numbers of a training run; the names are those of the options of ``tacit plan``.

    Attributes:
        n: the number of records (nominal under add/remove).
        batch: the batch size b.
        epochs: how often the data is read.
        sigma: σ, the noise on a batch's sum relative to the clip.
        delta: δ.
        clip: C, the largest norm of one record's contribution.
        lr: η, on the batch mean.
        l2: λ of a ridge that is in the objective, in every coordinate.
        smoothness: β of one record's loss, without the ridge.
        adjacency: the neighbouring relation.
        diameter: of a bounded domain that every step projects onto.
        secret_partition: whether the partition into batches is random, secret and fresh.
        target_epsilon: ε for which the necessary σ is wanted.
    """

    sigma: float
    diameter: float | None = None
    target_epsilon: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_positive("sigma")
        self._check_positive("diameter", "target_epsilon", optional=True)

    @property
    def n_batches(self) -> int:
        """The number of batches of an epoch, k."""
        return batch_count(self.n, self.batch)

    @property
    def batches(self) -> tuple[tuple[int, int], ...]:
        """(size, how many) of the batches of an epoch, in their order."""
        return batch_runs(self.n, self.n_batches)

    @property
    def sizes(self) -> str:
        """The sizes of the batches, in words."""
        return " or ".join(str(size) for size, _ in reversed(self.batches))

    @property
    def steps(self) -> int:
        """Batches read over all epochs."""
        return self.n_batches * self.epochs

    @property
    def ratio(self) -> float:
        """Δ/(σC): how far a record moves a sum, in units of its noise."""
        return self.adjacency.sum_factor / self.sigma

    @property
    def contraction(self) -> float | None:
        """The Lipschitz constant of a step, c = max(|1−ηλ|, |1−η(β+λ)|), for any η; None if η or β is unknown."""
        if self.lr is None or self.smoothness is None:
            return None
        return max(abs(1 - self.lr * self.l2), abs(1 - self.lr * (self.smoothness + self.l2)))

    @property
    def missing(self) -> tuple[str, ...]:
        """Options without which no hidden chain can be described."""
        return tuple(f"--{name}" for name in ("lr", "smoothness") if getattr(self, name) is None)

    @property
    def uses_diameter(self) -> bool:
        """Whether the bounded domain enters (dropping it is always valid, only weaker)."""
        return self.diameter is not None and self.n_batches * self.steps <= MAX_DIAMETER_WORK
