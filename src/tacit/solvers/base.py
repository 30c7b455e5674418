"""What every solver of linear models offers: everything public first, then records.

prepared = solver.prepare(task, budget)      # public: block sizes, steps, clips, noise; no record is read
certificate = certify(prepared.plan)         # reserved in the ledger by the caller
solution = prepared.solve(records, session)  # post-processing of what the channels release
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.accounting import Certificate, calibrate, gdp_epsilon, gdp_mu
from tacit.errors import InvalidInput
from tacit.mechanism import Adjacency, Mechanism, Plan, Schedule
from tacit.problem import Records, Task
from tacit.run import Channel, ClippedSum, Streams

__all__ = ["VIEWS", "Budget", "LinearSolver", "Prepared", "Session", "Solution", "release_once"]

Array = NDArray[np.float64]
VIEWS = ("all_iterates", "final_model")


@lru_cache
def _mu(epsilon: float, delta: float) -> float:
    return float(gdp_mu(epsilon, delta))  # a search: worth keeping over refits


@dataclass(frozen=True)
class Budget:
    """What a fit may spend, and on which promise.

    Attributes:
        epsilon: ε.
        delta: δ.
        adjacency: the relation.
        view: what may be shown.
        unit: whose data a record is.
        copies: how many such fits share (ε, δ), e.g. the heads of a one-vs-rest classifier.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency = Adjacency.REPLACE_ONE
    view: str = "all_iterates"
    unit: str = "record"
    copies: int = 1

    def __post_init__(self) -> None:
        _validate.positive(epsilon=self.epsilon)
        _validate.delta(self.delta)
        _validate.one_of(VIEWS, view=self.view)

    @property
    def whole_mu(self) -> float:
        """The largest μ such that μ-GDP implies (ε, δ)-DP."""
        return _mu(self.epsilon, self.delta)

    @property
    def mu(self) -> float:
        """What each copy may spend, a hair below so that sums of squares stay within the whole."""
        return self.whole_mu * (1 - 1e-12) / math.sqrt(self.copies)

    def part(self, share: float) -> Budget:
        """A share of μ², as a budget of its own."""
        mu = self.whole_mu * (1 - 1e-9) * math.sqrt(share)
        return replace(self, epsilon=float(gdp_epsilon(mu, self.delta)))

    def calibrated(self, make: Callable[[float], Mechanism]) -> Plan:
        """The plan of the least noise at which all copies together satisfy (ε, δ)-DP."""
        found = calibrate(lambda noise: Plan.of(*[make(noise)] * self.copies), epsilon=self.epsilon, delta=self.delta)
        return Plan.of(make(found.value))

    def mechanism(self, ratio: float, steps: int, label: str) -> Mechanism:
        """Full-batch releases of constant ratio Δ/σ, all of which may be shown."""
        return Mechanism(
            adjacency=self.adjacency,
            ratio=Schedule.constant(ratio, steps),
            steps=steps,
            unit=self.unit,
            label=label,
        )

    def shares(self, parts: dict[str, tuple[float, int]]) -> Plan:
        """A plan that splits μ²: each part gets its share, spread evenly over its steps.

        Args:
            parts: label → (share of μ², steps); shares add up to at most 1.

        Returns:
            The plan; its composition is exactly √(Σ shares)·μ-GDP.

        Raises:
            InvalidInput: if the shares exceed the whole.
        """
        if sum(share for share, _ in parts.values()) > 1 + 1e-9:
            raise InvalidInput("shares of a budget must not add up to more than 1")
        mu = self.mu
        return Plan.of(
            *(self.mechanism(mu * math.sqrt(share / steps), steps, name) for name, (share, steps) in parts.items())
        )


@dataclass
class Session:
    """The way from a certificate to its channels, in order.

    Attributes:
        certificate: of the whole plan.
        records: n.
        streams: randomness.
        first: which part of the plan is this session's first (several solvers may share one plan).
        progress: called with (done, all) by long work.
    """

    certificate: Certificate
    records: int
    streams: Streams
    first: int = 0
    progress: Callable[[int, int], None] | None = None

    def channel(self, part: int) -> Channel:
        """The channel of one part."""
        return Channel(self.certificate, self.records, streams=self.streams, part=self.first + part)

    def public(self, purpose: str) -> np.random.Generator:
        """Randomness that need not be secret (which coordinates to update)."""
        return self.streams.child(purpose).at("public")


@dataclass(frozen=True, eq=False)
class Solution:
    """What a solver returns, in mapped units.

    Attributes:
        v: coefficients, the intercept first if there is one.
        standard_errors: of the coefficients, from the privacy noise alone; None where the solver knows none.
        notes: what a user should know ("constant model: …").
    """

    v: Array
    standard_errors: Array | None = None
    notes: tuple[str, ...] = field(default=())


class Prepared(ABC):
    """A solver with every public choice made.

    Attributes:
        plan: what it will release.
        declared: what the user vouches for beyond it; the certificate carries it as marks.
    """

    plan: Plan
    declared: tuple[str, ...] = ()

    @abstractmethod
    def solve(self, records: Records, session: Session) -> Solution:
        """Run the plan."""


class LinearSolver(ABC):
    """A way to fit a linear model."""

    name: ClassVar[str]

    @abstractmethod
    def prepare(self, task: Task, budget: Budget) -> Prepared:
        """Make every public choice; refuse what no theorem covers."""


def release_once(session: Session, part: int, total: ClippedSum) -> Array:
    """A single noisy sum that depends on no state."""
    return np.asarray(session.channel(part).release(total, np.zeros((1, 1)))[0])
