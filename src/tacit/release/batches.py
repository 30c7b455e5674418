"""Batches, drawn exactly as the mechanism says: as masks over records, one row per replica."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.errors import MechanismMismatch
from tacit.mechanism import (
    Cyclic,
    CyclicPoisson,
    FullBatch,
    Groups,
    Partition,
    Poisson,
    Sampling,
    Shuffled,
    WithoutReplacement,
)
from tacit.release.streams import Streams

__all__ = ["Batches", "batch_count", "batch_runs", "batch_sizes"]

Mask = NDArray[np.bool_]
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


def _labels(n: int, k: int, replicas: int, rng: np.random.Generator | None) -> Labels:
    """The batch of each record: by order, or by a fresh uniformly random permutation per replica."""
    ordered = np.repeat(np.arange(k), batch_sizes(n, k))
    if rng is None:
        return np.tile(ordered, (replicas, 1))
    return rng.permuted(np.tile(ordered, (replicas, 1)), axis=1)


class Batches:
    """The batch of every step.

    Args:
        sampling: how batches are drawn.
        n: the number of records.
        replicas: independent runs at once (one for users, many for audits).
        streams: where the randomness comes from.
    """

    def __init__(self, sampling: Sampling, n: int, replicas: int, streams: Streams) -> None:
        self._sampling, self._n, self._replicas, self._streams = sampling, n, replicas, streams
        self._groups = self._assign()
        self._epoch = (-1, self._groups)

    def _assign(self) -> Labels:
        s = self._sampling
        if isinstance(s, Cyclic):
            secret = s.partition is Partition.SECRET
            return _labels(self._n, s.n_batches, self._replicas, self._streams.at("partition") if secret else None)
        if isinstance(s, CyclicPoisson):
            rng = self._streams.at("partition")
            if s.groups is Groups.INDEPENDENT:
                return rng.integers(s.n_groups, size=(self._replicas, self._n))
            return _labels(self._n, s.n_groups, self._replicas, rng)
        return np.zeros((self._replicas, self._n), np.int64)

    def mask(self, step: int) -> Mask:
        """Who is read at ``step``: a boolean row per replica.

        Args:
            step: from 0.

        Returns:
            Shape (replicas, n).

        Raises:
            MechanismMismatch: if this way of sampling is a description only and cannot be drawn.
        """
        s, shape = self._sampling, (self._replicas, self._n)
        if isinstance(s, FullBatch):
            return np.ones(shape, bool)
        if isinstance(s, Cyclic):
            return np.asarray(self._groups == step % s.n_batches)
        rng = self._streams.at("batch", step)
        if isinstance(s, Poisson):
            return np.asarray(rng.random(shape) < s.rate)
        if isinstance(s, CyclicPoisson):
            return np.asarray((self._groups == step % s.n_groups) & (rng.random(shape) < s.rate))
        if isinstance(s, Shuffled):
            return np.asarray(self._shuffled(step // s.n_batches, s.n_batches) == step % s.n_batches)
        if isinstance(s, WithoutReplacement):
            first = np.arange(self._n) < round(s.rate * self._n)
            return rng.permuted(np.tile(first, (self._replicas, 1)), axis=1)
        raise MechanismMismatch(f"{type(s).__name__} describes somebody else's batches and cannot be drawn here")

    def _shuffled(self, epoch: int, k: int) -> Labels:
        if self._epoch[0] != epoch:
            rng = self._streams.at("shuffle", epoch)
            self._epoch = (epoch, _labels(self._n, k, self._replicas, rng))
        return self._epoch[1]
