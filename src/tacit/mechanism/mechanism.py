"""Mechanism and Plan: all that a proof may use; public, frozen, hashable, free of data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import ClassVar, Protocol, Self

from tacit import _validate
from tacit._codec import described, is_described
from tacit.errors import InvalidInput
from tacit.mechanism.frozen import Schedule
from tacit.mechanism.noise import CorrelatedNoise, Independent, Noise
from tacit.mechanism.sampling import Cyclic, FullBatch, Sampling
from tacit.mechanism.view import AllIterates, LastIterate, Start, View

__all__ = [
    "Adjacency",
    "Arithmetic",
    "Mechanism",
    "Part",
    "Plan",
    "Selection",
    "Trials",
]


@described("Adjacency")
class Adjacency(Enum):
    """The relation between neighbouring data sets; guarantees under different ones never mix.

    For a sum of per-record contributions of ℓ2 norm at most C, the sum moves by at most
    ``sum_factor``·C: 2C when a record is replaced, C otherwise. The number of records n is public under
    REPLACE_ONE and ZERO_OUT, and secret under ADD_REMOVE.
    """

    ADD_REMOVE = "add-remove"
    ZERO_OUT = "zero-out"
    REPLACE_ONE = "replace-one"

    def __init__(self, word: str) -> None:
        self.sum_factor = 2.0 if word == "replace-one" else 1.0
        """How far a sum of unit-norm contributions can move between neighbours."""

    @property
    def sentence(self) -> str:
        """The relation in words."""
        return {
            Adjacency.ADD_REMOVE: "one record is added or removed",
            Adjacency.ZERO_OUT: "one record's contribution is replaced by nothing (the number of records is public)",
            Adjacency.REPLACE_ONE: "one record is replaced by an arbitrary other one (the number of records is public)",
        }[self]

    @classmethod
    def parse(cls, value: object) -> Adjacency:
        """An Adjacency from itself, its value ("replace-one") or its name ("REPLACE_ONE").

        Args:
            value: a member, or a string in any case with dashes or underscores.

        Returns:
            The member.

        Raises:
            InvalidInput: if nothing matches.
        """
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            word = value.strip().lower().replace("_", "-")
            for member in cls:
                if member.value == word:
                    return member
        options = ", ".join(repr(member.value) for member in cls)
        raise InvalidInput(f"adjacency must be one of {options}, got {value!r}")


class Part(Protocol):
    """What a plan may hold: a described record under one relation; a theorem names the type of part it is about.

    ``axes`` are the attributes that a theorem must list to cover the part (``Theorem.covers``).
    """

    axes: ClassVar[tuple[str, ...]]

    def __hash__(self) -> int: ...

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation."""

    @property
    def unit(self) -> str:
        """Whose data one record is."""

    @property
    def label(self) -> str:
        """What the part does, for people."""

    @property
    def start(self) -> Start:
        """Where it starts: at a public point, or at one that must have been released before."""


@described("Arithmetic")
class Arithmetic(Enum):
    """In which numbers a mechanism runs."""

    FLOAT = "float"  # sums and noise in floating point: low-order bits may tell records apart
    EXACT = "exact"  # integer sums, and noise with exact probabilities: the released bits have the certified law

    @classmethod
    def parse(cls, value: object) -> Arithmetic:
        """From a word.

        Args:
            value: "exact", "float", or an Arithmetic.

        Returns:
            The arithmetic.

        Raises:
            InvalidInput: if it is none of them.
        """
        try:
            return cls(value)
        except (ValueError, TypeError):
            raise InvalidInput(f"arithmetic must be 'exact' or 'float', got {value!r}") from None


@described("Mechanism", expands=("steps",))
@dataclass(frozen=True, kw_only=True)
class Mechanism:
    """Noisy sums over records, released step by step.

    Each release is a sum of per-record contributions plus Gaussian noise of standard deviation σ; between
    neighbours the sum moves by at most Δ (2C under replace-one for contributions of norm ≤ C, else C).
    Only the *ratio* Δ/σ enters a proof, so a clip learned privately in an earlier stage changes nothing.

    Attributes:
        adjacency: the neighbouring relation.
        ratio: Δ/σ of a release that reads the record: a number, one per step, or one per release.
        steps: how often a batch is drawn.
        releases: how many sums are released per step, on the same batch.
        sampling: which records a step reads.
        noise: how the noise of different steps is related.
        view: what the adversary sees.
        unit: whose data one record is ("record", "person", ...); a guarantee is per unit.
        label: what the mechanism does, for people ("descent", "private standardisation").
        arithmetic: in which numbers it runs; a session runs it so.
    """

    adjacency: Adjacency
    ratio: Schedule
    steps: int
    releases: int = 1
    sampling: Sampling = FullBatch()
    noise: Noise = Independent()
    view: View = AllIterates()
    unit: str = "record"
    label: str = "training"
    arithmetic: Arithmetic = field(default=Arithmetic.FLOAT, metadata={"absent": Arithmetic.FLOAT})

    axes: ClassVar[tuple[str, ...]] = ("adjacency", "sampling", "noise", "view")

    def __post_init__(self) -> None:
        store = object.__setattr__
        store(self, "adjacency", Adjacency.parse(self.adjacency))
        store(self, "steps", _validate.positive_int(steps=self.steps))
        store(self, "releases", _validate.positive_int(releases=self.releases))
        store(self, "ratio", self._ratio_schedule())
        store(self, "arithmetic", Arithmetic.parse(self.arithmetic))
        if not (isinstance(self.unit, str) and self.unit):
            raise InvalidInput("unit must be a word such as 'record' or 'person'")
        for name, kind, example in (
            ("sampling", Sampling, "FullBatch()"),
            ("noise", Noise, "Independent()"),
            ("view", View, "AllIterates()"),
        ):
            _check_axis(name, getattr(self, name), kind, example)
        self.view.check(self.ratio, self.steps, self.releases)
        if hasattr(self.view, "rounding"):
            _check_lattice(self.arithmetic, self.view.rounding is not None)
        self.sampling.check(self.steps)
        if self.arithmetic is Arithmetic.EXACT:
            self.noise.check_exact()

    def _ratio_schedule(self) -> Schedule:
        if isinstance(self.ratio, Schedule) and len(self.ratio) == self.steps * self.releases:
            return self.ratio
        return Schedule.of(self.ratio, self.steps, name="ratio")

    @property
    def step_ratio(self) -> Schedule:
        """Δ/σ of all releases of a step together: √(Σ ratio²) over the step's releases."""
        if len(self.ratio) == self.steps:
            return self.ratio.scaled(math.sqrt(self.releases)) if self.releases > 1 else self.ratio
        per_release = self.ratio.to_array().reshape(self.steps, self.releases)
        return Schedule((per_release**2).sum(axis=1) ** 0.5)

    @property
    def start(self) -> Start:
        """Where the state starts."""
        return self.view.start

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        plain = cls(adjacency=Adjacency.REPLACE_ONE, ratio=Schedule.constant(0.5, 6), steps=6)
        hidden, noise = LastIterate.examples()[0], CorrelatedNoise.toeplitz([1.0, 0.5])
        return (
            plain,
            replace(plain, sampling=Cyclic(3), noise=noise, view=hidden),
            replace(plain, ratio=Schedule([0.0, 0.5, 1.0], [4, 4, 4]), releases=2, label="two sums per step"),
            replace(plain, arithmetic=Arithmetic.EXACT),
            replace(plain, noise=noise, arithmetic=Arithmetic.EXACT),
        )


def _check_lattice(arithmetic: Arithmetic, rounded: bool) -> None:
    """An exact hidden chain moves on a lattice, and pays for it; one in floating point does neither."""
    if arithmetic is Arithmetic.EXACT and not rounded:
        raise InvalidInput(
            "an exact hidden chain moves on a lattice, which costs privacy: state view.rounding, as "
            "GradientChain.mechanism(..., arithmetic='exact') does"
        )
    if arithmetic is Arithmetic.FLOAT and rounded:
        raise InvalidInput("view.rounding describes an exact chain: set arithmetic='exact', or leave it out")


def _check_axis(name: str, value: object, kind: type, example: str) -> None:
    if not isinstance(value, kind):
        raise InvalidInput(f"{name} must be a {kind.__name__} such as {example}, got {value!r}")
    if not is_described(value):
        cls = type(value).__name__
        raise InvalidInput(
            f"{name} is a {cls}, which could be written to a ledger but not read back: decorate the class with "
            f'@described("{cls}")'
        )


@described("Trials")
@dataclass(frozen=True)
class Trials:
    """How many candidates a private selection tries: a random number that stays secret.

    Attributes:
        mean: the expected number of trials.
        shape: ∞ for Poisson (which may try none and then returns nothing), 1 for geometric, 0 for
            logarithmic, anything between for the truncated negative binomial.
    """

    mean: float
    shape: float = math.inf

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", _validate.positive(mean=self.mean))
        if self.mean > 1e9:
            raise InvalidInput(f"mean must not exceed 1e9 trials, got {self.mean!r}")
        object.__setattr__(self, "shape", _validate.real(shape=self.shape))
        if self.shape < 0:
            raise InvalidInput(f"shape must not be negative, got {self.shape!r}: inf means Poisson")
        if self.shape != math.inf and self.mean <= 1:
            raise InvalidInput(f"a truncated distribution has a mean above 1, got {self.mean!r}")

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (cls(2.5), cls(3.0, 1.0))


@described("Selection")
@dataclass(frozen=True, kw_only=True)
class Selection:
    """The best of a secret random number of independent runs, by a score that is part of each run.

    Attributes:
        base: what one candidate costs: its training and, unless on a hold-out, its noisy score.
        trials: the distribution of the number of candidates.
        holdout: the score's mechanism if it reads a *disjoint* hold-out: then one record is in one of the
            two only, and the larger cost counts.
        label: for people.
    """

    base: tuple[Mechanism, ...]
    trials: Trials
    holdout: tuple[Mechanism, ...] = ()
    label: str = "private selection"

    axes: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        for name in ("base", "holdout"):
            parts = getattr(self, name)
            if not isinstance(parts, tuple) or not all(isinstance(part, Mechanism) for part in parts):
                raise InvalidInput(f"{name} must be a tuple of mechanisms")
        if not self.base:
            raise InvalidInput("base is empty: name the mechanism that one candidate runs")
        if not isinstance(self.trials, Trials):
            raise InvalidInput(f"trials must be Trials(mean), got {self.trials!r}")
        _one_relation((*self.base, *self.holdout))

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation of the candidates."""
        return self.base[0].adjacency

    @property
    def unit(self) -> str:
        """The privacy unit of the candidates."""
        return self.base[0].unit

    @property
    def arithmetic(self) -> Arithmetic:
        """Exact if all that a candidate and its score do is."""
        exact = all(part.arithmetic is Arithmetic.EXACT for part in (*self.base, *self.holdout))
        return Arithmetic.EXACT if exact else Arithmetic.FLOAT

    @property
    def start(self) -> Start:
        """Where candidates start."""
        return self.base[0].start

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        one = Mechanism(adjacency=Adjacency.ZERO_OUT, ratio=Schedule([0.1]), steps=1)
        return (cls(base=(one,), trials=Trials(3.0)), cls(base=(one, one), trials=Trials(3.0, 1.0), holdout=(one,)))


def _one_relation(parts: tuple[Part, ...]) -> None:
    if len({(part.adjacency, part.unit) for part in parts}) > 1:
        raise InvalidInput(
            "mechanisms of one plan differ in adjacency or unit, and such guarantees never compose: state all "
            "of them under one relation and one unit"
        )


@described("Plan")
@dataclass(frozen=True)
class Plan:
    """Everything one fit will do to the data, reserved as a whole before any record is read."""

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        if not self.parts:
            raise InvalidInput("an empty plan promises nothing: add a mechanism")
        for part in self.parts:
            if not (is_described(part) and hasattr(part, "axes")):
                raise InvalidInput(f"a plan holds mechanisms and selections, got {type(part).__name__}")
        _one_relation(self.parts)

    @classmethod
    def of(cls, *parts: Plan | Part) -> Plan:
        """A plan from mechanisms and other plans, in the order in which they run."""
        flat: list[Part] = []
        for part in parts:
            flat.extend(part.parts if isinstance(part, Plan) else (part,))
        return cls(tuple(flat))

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation of all parts."""
        return self.parts[0].adjacency

    @property
    def unit(self) -> str:
        """The privacy unit of all parts."""
        return self.parts[0].unit

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (cls(Mechanism.examples()[:2]), cls(Selection.examples()))

    def __iter__(self) -> Iterator[Part]:
        return iter(self.parts)

    def __len__(self) -> int:
        return len(self.parts)
