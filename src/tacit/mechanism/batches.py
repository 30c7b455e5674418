"""Disjoint batches: how many, of which sizes, and the batch of each record."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["assign_batches", "batch_count", "batch_runs", "batch_sizes"]

Labels = NDArray[np.int64]


def batch_count(n: int, batch_size: int) -> int:
    """How many disjoint batches of about b records n records make: n/b, rounded (half to even)."""
    return max(1, round(n / batch_size))


def batch_runs(n: int, n_batches: int) -> tuple[tuple[int, int], ...]:
    """Public sizes of n_batches disjoint batches as (size, how many): as equal as possible, the larger ones first."""
    size, more = divmod(n, n_batches)
    return ((size + 1, more), (size, n_batches - more)) if more else ((size, n_batches),)


def batch_sizes(n: int, n_batches: int) -> Labels:
    """Public sizes of n_batches disjoint batches, one by one (``batch_runs``)."""
    sizes, counts = zip(*batch_runs(n, n_batches), strict=True)
    return np.repeat(np.array(sizes), counts)


def assign_batches(n: int, n_batches: int, replicas: int, rng: np.random.Generator | None) -> Labels:
    """The batch of each record: by order, or by a fresh uniformly random permutation per replica."""
    ordered = np.tile(np.repeat(np.arange(n_batches), batch_sizes(n, n_batches)), (replicas, 1))
    return ordered if rng is None else rng.permuted(ordered, axis=1)
