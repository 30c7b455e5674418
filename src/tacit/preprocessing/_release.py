"""One noisy sum: planned and certified, reserved, and only then drawn."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.accounting import Certificate, certify, gdp_mu
from tacit.errors import InvalidInput
from tacit.ledger import Ledger
from tacit.mechanism import Adjacency, Mechanism, Schedule
from tacit.run import SEEDED, Channel, ClippedSum, Streams
from tacit.run.channel import noise_std

__all__ = ["MAX_EPSILON", "Ticket", "buy"]

Array = NDArray[np.float64]
MAX_EPSILON = 1e12
"""Up to here accounting is precise; it is for tests of code, not for people."""


@dataclass(frozen=True, eq=False)
class Ticket:
    """Paid for: one release, not yet made.

    Attributes:
        planned: its certificate.
        streams: its noise.
    """

    planned: Certificate
    streams: Streams

    @property
    def adjacency(self) -> Adjacency:
        """The neighbouring relation."""
        return self.planned.adjacency

    @property
    def certificate(self) -> Certificate:
        """The certificate of what was released, marked if seeded."""
        return self.planned.marked(SEEDED) if self.streams.seeded else self.planned

    def release(self, total: ClippedSum) -> tuple[Array, float]:
        """The noisy sum, and the standard deviation of its noise (public)."""
        channel = Channel(self.planned, total.records, streams=self.streams)
        noisy = channel.release(total, np.zeros((1, 1)))[0]
        return noisy, noise_std(channel.mechanism, total, 0)


@functools.lru_cache(maxsize=256)
def _ratio(epsilon: float, delta: float) -> Schedule:
    """Δ/σ of one release: the largest μ that implies (ε, δ)-DP."""
    return Schedule.constant(gdp_mu(epsilon, delta), 1)


def buy(
    label: str,
    *,
    epsilon: object,
    delta: object,
    adjacency: object,
    budget: object = None,
    random_state: object = None,
) -> Ticket:
    """Certify one full-batch Gaussian release at (ε, δ) and reserve it; nothing here sees a record.

    Formal guarantee: a sum of sensitivity Δ with noise σ = Δ/μ is μ-GDP, and μ is the largest that implies (ε, δ)-DP.

    Args:
        label: what it is for, also in the ledger.
        epsilon: ε.
        delta: δ.
        adjacency: the relation.
        budget: a ledger, or None.
        random_state: None, or a seed that makes the release repeatable and *not private*.

    Returns:
        The ticket for one release.

    Raises:
        InvalidInput: if an argument is out of range; nothing is then reserved.
    """
    if epsilon is None:
        raise InvalidInput("epsilon is missing: choose the privacy budget before the data is read")
    e, d = _validate.positive(epsilon=epsilon), _validate.delta(delta)
    if e > MAX_EPSILON:
        raise InvalidInput(f"epsilon must be at most {MAX_EPSILON:g}, got {epsilon!r}: it promises nothing by then")
    relation = Adjacency.parse(adjacency)
    if budget is not None and not isinstance(budget, Ledger):
        raise InvalidInput(f"budget must be a Ledger or None, got {type(budget).__name__}")
    streams = Streams(random_state)  # type: ignore[arg-type]
    mechanism = Mechanism(adjacency=relation, ratio=_ratio(e, d), steps=1, label=label)
    certificate = certify(mechanism, delta=d)
    ticket = Ticket(certificate, streams)
    if budget is not None:
        budget.reserve(ticket.certificate, label)  # with its mark, if it is seeded
    return ticket
