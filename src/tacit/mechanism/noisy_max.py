"""Noisy choices: one of many candidates by scores that read all records, step by step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Self

from tacit import _validate
from tacit._codec import described
from tacit.errors import InvalidInput
from tacit.mechanism.frozen import Schedule
from tacit.mechanism.mechanism import Adjacency, Arithmetic
from tacit.mechanism.view import Start

__all__ = ["NoisyMax"]


@described("NoisyMax", expands=("steps",))
@dataclass(frozen=True, kw_only=True)
class NoisyMax:
    """Step by step, the candidate whose score plus Gumbel noise is largest: "report noisy max".

    With s_j the scores of all records and noise of scale β, candidate j is chosen with probability

        P(j) = exp(s_j/β) / Σ_i exp(s_i/β),

    the exponential mechanism. If neighbours move every score by at most Δ, the log-ratio of P(j) between them lies, for
    all j, in one interval of length η = 2Δ/β: a bounded range of η. Only η enters a proof, so candidates and scores may
    depend on what was released before.

    Attributes:
        adjacency: the neighbouring relation.
        bounded_range: η, a number or one for each step.
        steps: how many choices are made.
        unit: whose data one record is.
        label: what is chosen, for people.
        arithmetic: in which numbers it runs; a session runs it so.
    """

    adjacency: Adjacency
    bounded_range: Schedule
    steps: int
    unit: str = "record"
    label: str = "noisy choice"
    arithmetic: Arithmetic = field(default=Arithmetic.FLOAT, metadata={"absent": Arithmetic.FLOAT})

    axes: ClassVar[tuple[str, ...]] = ("adjacency",)

    def __post_init__(self) -> None:
        store = object.__setattr__
        store(self, "adjacency", Adjacency.parse(self.adjacency))
        store(self, "steps", _validate.positive_int(steps=self.steps))
        store(self, "bounded_range", Schedule.of(self.bounded_range, self.steps, name="bounded_range"))
        store(self, "arithmetic", Arithmetic.parse(self.arithmetic))
        if not (isinstance(self.unit, str) and self.unit):
            raise InvalidInput("unit must be a word such as 'record' or 'person'")

    @property
    def start(self) -> Start:
        """No state of its own."""
        return Start.PUBLIC

    @classmethod
    def examples(cls) -> tuple[Self, ...]:
        """Objects for the contract tests."""
        return (
            cls(adjacency=Adjacency.REPLACE_ONE, bounded_range=Schedule.constant(0.3, 5), steps=5),
            cls(
                adjacency=Adjacency.ZERO_OUT,
                bounded_range=Schedule([0.1, 0.5], [1, 2]),
                steps=3,
                unit="person",
                label="columns",
                arithmetic=Arithmetic.EXACT,
            ),
        )
