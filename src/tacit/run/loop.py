"""The loop of hidden chains: it owns the state, and only the end of the chain leaves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.accounting import Certificate
from tacit.errors import MechanismMismatch
from tacit.ledger import Ledger
from tacit.mechanism import AllIterates, Mechanism
from tacit.run.channel import Channel
from tacit.run.clipped_sum import ClippedSum
from tacit.run.randomness import SEEDED, Streams

__all__ = ["ChainStep", "drive_chain", "run_chain"]

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]


class ChainStep(Protocol):
    """One map of a hidden chain: a pure function of the state and one noisy sum. Trusted code."""

    def check(self, mechanism: Mechanism, total: ClippedSum) -> None:
        """Raise MechanismMismatch unless the certified mechanism describes this very chain."""

    def query(self, theta: Array, k: int, release: int) -> Array:
        """Where to evaluate the sum."""

    def advance(self, theta: Array, noisy: Array, k: int, release: int) -> Array:
        """The next state; it may depend on nothing else."""


def _open(certificate: Certificate, budget: Ledger | None, note: str, seed: int | None) -> tuple[Certificate, Streams]:
    """Reserve before any record is read, then key the streams."""
    if budget is not None:
        budget.reserve(certificate, note)
    streams = Streams(seed)
    return (certificate.marked(SEEDED) if streams.seeded else certificate), streams


def run_chain(
    step: ChainStep,
    total: ClippedSum,
    certificate: Certificate,
    start: Array,
    *,
    seed: int | None = None,
    budget: Ledger | None = None,
    note: str = "",
    replicas: int = 1,
    progress: Progress | None = None,
) -> tuple[Array, Certificate]:
    """Run a hidden chain and return its last iterate, and nothing else.

    The loop owns the state, so that a step can neither average iterates nor carry momentum.

    Args:
        step: the chain's map.
        total: the registered sum.
        certificate: of a mechanism whose view is the last iterate (or block sweeps).
        start: a public point, shape (size of the state,).
        seed: makes the run repeatable and marks its certificate.
        budget: a ledger.
        note: for the ledger.
        replicas: independent runs at once, for audits: the certificate is then marked, because it is about one run.
        progress: called with (steps done, steps).

    Returns:
        The last iterate, (size,) for one replica or (replicas, size), and the certificate, marked if seeded.

    Raises:
        MechanismMismatch: if the certificate does not describe this chain.
    """
    mechanism = certificate.plan.parts[0]
    if len(certificate.plan) != 1 or not isinstance(mechanism, Mechanism):
        raise MechanismMismatch("a chain runs one mechanism: certify it by itself")
    if isinstance(mechanism.view, AllIterates):
        raise MechanismMismatch("the certificate is for all iterates: use a Channel, or certify the last iterate")
    step.check(mechanism, total)
    if replicas != 1 and budget is not None:
        raise MechanismMismatch("replicas are for audits of made-up records: a budget pays for one run")
    certificate, streams = _open(certificate, budget, note, seed)
    if replicas != 1:
        certificate = certificate.marked(f"not private: {replicas} replicas of one run, for an audit")
    channel = Channel(certificate, total.records, streams=streams, replicas=replicas)
    theta = drive_chain(step, total, channel, np.tile(np.asarray(start, float), (replicas, 1)), progress)
    return (theta[0] if replicas == 1 else theta), certificate


def drive_chain(
    step: ChainStep, total: ClippedSum, channel: Channel, theta: Array, progress: Progress | None = None
) -> Array:
    """The chain's end, from a channel of its own; ``step.check`` is asked before any record is read.

    Args:
        step: the chain's map.
        total: the registered sum.
        channel: with every certified step still to take.
        theta: the start, one row per replica.
        progress: called with (steps done, steps).

    Returns:
        The last iterate, one row per replica.

    Raises:
        MechanismMismatch: if the channel serves another chain, or has taken steps already.
    """
    mechanism = channel.mechanism
    step.check(mechanism, total)
    if channel.steps_left != mechanism.steps:
        raise MechanismMismatch("a hidden chain takes all its steps in one go: open a channel of its own")
    for k in range(mechanism.steps):
        for release in range(mechanism.releases):
            noisy = channel.release(total, step.query(theta, k, release))
            theta = step.advance(theta, noisy, k, release)
        if progress is not None:
            progress(k + 1, mechanism.steps)
    return theta
