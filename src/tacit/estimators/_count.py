"""Under add/remove the number of records is secret: a noisy count comes first, and all else is planned from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tacit.accounting import certify
from tacit.ledger import Ledger
from tacit.mechanism import Mechanism, Plan
from tacit.run import SEEDED, Channel, Streams
from tacit.run.sums import BoundedValues
from tacit.solvers import Budget

__all__ = ["SHARE", "Count", "noisy_count"]

SHARE = 0.02
"""The share of μ² for the count."""


@dataclass(frozen=True, eq=False)
class Count:
    """A released number of records.

    Attributes:
        n: public from here on.
        mechanism: what it cost.
        streams: the randomness of the whole fit.
        rest: the budget that remains.
    """

    n: int
    mechanism: Mechanism
    streams: Streams
    rest: Budget


def noisy_count(
    records: int, budget: Budget, *, seed: int | None, ledger: Ledger | None, note: str, marks: Sequence[str] = ()
) -> Count:
    """Reserve the whole fit, then release how many records there are, plus noise, at least 1.

    The plan of the fit depends on the count, so it cannot be certified before; what is reserved is the count and *any*
    μ-GDP fit with the rest of the budget, which composes with it whatever the count says.

    Args:
        records: the true number.
        budget: of the whole fit.
        seed: None for private noise.
        ledger: where to reserve.
        note: for the ledger.
        marks: what the certificate of the fit will say besides; the ledger's entry says it, too.

    Returns:
        The count.
    """
    count = budget.mechanism(budget.whole_mu * math.sqrt(SHARE), 1, "noisy count")
    rest = budget.mechanism(budget.whole_mu * math.sqrt(1 - SHARE) * (1 - 1e-12), 1, "the fit, at most")
    streams = Streams(seed)
    if ledger is not None:
        certificate = certify(Plan.of(count, rest), delta=budget.delta)
        for mark in (*marks, *((SEEDED,) if streams.seeded else ())):
            certificate = certificate.marked(mark)
        ledger.reserve(certificate, note)
    total = BoundedValues(np.ones((records, 1)))
    noisy = Channel(certify(count), records, streams=streams).release(total, np.zeros((1, 1)))[0, 0]
    return Count(max(round(float(noisy)), 1), count, streams, budget.part(1 - SHARE))
