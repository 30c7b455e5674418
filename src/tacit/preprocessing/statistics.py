"""Private means and variances of bounded columns."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.accounting import Certificate
from tacit.mechanism import Adjacency
from tacit.preprocessing._affine import Box
from tacit.preprocessing._moments import release_moments
from tacit.preprocessing._release import buy
from tacit.preprocessing._table import columns, shape_of, table
from tacit.run import ClippedSum, VectorSum
from tacit.run.sums.counted import CountedSum

__all__ = ["private_mean", "private_variance"]

Array = NDArray[np.float64]


def private_mean(
    x: Any,
    bounds: Any,
    *,
    epsilon: float,
    delta: float,
    adjacency: str = "replace-one",
    budget: Any = None,
    random_state: int | None = None,
) -> tuple[Any, Certificate]:
    """The mean of one column, or of each column of a table, from one noisy sum.

    With u = x mapped to [−1, 1]^p by the bounds, S = Σu + N(0, σ²I), σ = Δ/μ: Δ = 2√p under replace-one, √p under
    zero-out. Under add/remove the records are counted in the same release (Δ = √(p+1)).

    Formal guarantee: the result is (ε, δ)-DP for the stated relation, as the certificate says.

    Assumptions: the bounds are public; x is finite and holds at least one record.

    Args:
        x: (n,) or (n, p).
        bounds: public (low, high); values outside are clipped silently.
        epsilon: ε.
        delta: δ.
        adjacency: the relation.
        budget: a Ledger, charged before any record is read.
        random_state: None, or a seed (not private).

    Returns:
        A number, or (p,), within the bounds; and the certificate.

    >>> mean, certificate = private_mean([2.0, 4.0] * 500, (0, 10), epsilon=1.0, delta=1e-6, random_state=0)
    >>> abs(mean - 3.0) < 0.3, round(certificate.epsilon(1e-6), 6)
    (True, 1.0)
    """
    p = columns(x)
    box = Box.of(bounds, p)
    ticket = buy(
        "private mean", epsilon=epsilon, delta=delta, adjacency=adjacency, budget=budget, random_state=random_state
    )
    total: ClippedSum = VectorSum(box.unit(table(x)), float(np.sqrt(p)))
    n = float(shape_of(x)[0])
    if ticket.adjacency is Adjacency.ADD_REMOVE:
        noisy, _ = ticket.release(CountedSum(total))
        n = max(float(noisy[-1]), 1.0)
    else:
        noisy, _ = ticket.release(total)
    mean = box.clip(box.centre + box.half * np.clip(noisy[:p] / n, -1.0, 1.0))
    return _as_given(mean, x), ticket.certificate


def private_variance(
    x: Any,
    bounds: Any,
    *,
    epsilon: float,
    delta: float,
    adjacency: str = "replace-one",
    budget: Any = None,
    random_state: int | None = None,
) -> tuple[Any, Certificate]:
    """The variance (divided by n) of one column, or of each column of a table, from one noisy sum of x and x².

    Formal guarantee: the result is (ε, δ)-DP for the stated relation, as the certificate says.

    Assumptions: the bounds are public; x is finite and holds at least one record.

    Args:
        x: (n,) or (n, p).
        bounds: public (low, high); values outside are clipped silently.
        epsilon: ε.
        delta: δ.
        adjacency: the relation.
        budget: a Ledger, charged before any record is read.
        random_state: None, or a seed (not private).

    Returns:
        A number, or (p,), between 0 and a quarter of the squared width; and the certificate. It is 0 where noise hides
        the variance: it is unbiased up to this clamping and the noise in the mean.
    """
    box = Box.of(bounds, columns(x))
    ticket = buy(
        "private variance", epsilon=epsilon, delta=delta, adjacency=adjacency, budget=budget, random_state=random_state
    )
    moments = release_moments(ticket, table(x), box)
    return _as_given(np.where(box.live, moments.variance * box.half**2, 0.0), x), ticket.certificate


def _as_given(values: Array, x: Any) -> Any:
    """A number for one column, an array for a table."""
    return float(values[0]) if len(shape_of(x)) == 1 else values
