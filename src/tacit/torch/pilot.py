"""A pilot release: how long gradients are at the start, in powers of two. Rate and clip follow from it.

The best step of clipped training scales with 1/‖∇ℓ‖, which depends on the scale of the inputs and of the model. A
histogram of norms over all records, with noise that takes a thousandth of the budget's μ², tells it to a factor of two.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from tacit.accounting import gdp_mu
from tacit.mechanism import Adjacency, Arithmetic, FullBatch, Independent, Mechanism, Schedule
from tacit.release import Example, Query, register
from tacit.release.query import Grid
from tacit.torch.gradients import PerRecordGradients
from tacit.torch.objective import Objective
from tacit.torch.records import Records

__all__ = ["BINS", "TYPICAL", "GradientNorms", "median_norm", "pilot_mechanism"]

Array = NDArray[Any]
BINS, LOWEST = 18, -7
"""Bin k holds norms from 2^(k−7) to 2^(k−6); the first and the last also what lies beyond."""
TYPICAL = 4.0
"""The norm that is assumed without a pilot release, or where its noise hides every bin."""
SHARE = 0.03
"""μ of the pilot release over that of the whole budget: a thousandth of μ²."""


def pilot_mechanism(
    epsilon: float, delta: float, adjacency: Adjacency, *, unit: str, arithmetic: Arithmetic
) -> Mechanism:
    """One Gaussian release of a histogram over all records, for a small share of the budget.

    Args:
        epsilon: of the whole training.
        delta: of the whole training.
        adjacency: the relation.
        unit: whose data one record is.
        arithmetic: of sums and noise.

    Returns:
        The mechanism.
    """
    return Mechanism(
        adjacency=adjacency,
        ratio=Schedule.constant(SHARE * gdp_mu(epsilon, delta), 1),
        steps=1,
        sampling=FullBatch(),
        noise=Independent(),
        unit=unit,
        label="pilot",
        arithmetic=arithmetic,
    )


def median_norm(counts: Array, sigma: float) -> float:
    """The norm at the middle of a noisy histogram.

    Args:
        counts: of the bins.
        sigma: deviation of their noise; what does not exceed it twice counts as nothing.

    Returns:
        The geometric middle of the median's bin, refined by interpolation; ``TYPICAL`` if no bin stands out.
    """
    kept = np.where(counts > 2 * sigma, counts, 0.0)
    if kept.sum() <= 0:
        return TYPICAL
    below = np.cumsum(kept) / kept.sum()
    k = int(np.searchsorted(below, 0.5))
    before = below[k - 1] if k else 0.0
    return float(2.0 ** (LOWEST + k + (0.5 - before) / (below[k] - before)))


@register("gradient-norms")
class GradientNorms(Query):
    """Counts of records by the norm of their gradient: each record is one in one bin.

    A record that cannot be read or differentiated, or whose norm is not finite, is in no bin.

    Args:
        gradients: the per-record gradients whose norms are looked at; their bound plays no role.
    """

    bound = 1.0

    def __init__(self, gradients: PerRecordGradients) -> None:
        self._gradients = gradients

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        return self._gradients.objective.device()

    @property
    def diameter(self) -> float:
        """√2: from one bin to another."""
        return math.sqrt(2)

    def contributions(self, rows: Records, state: Array) -> NDArray[np.float64]:  # type: ignore[override]
        """One-hot rows, (replicas, records, bins)."""
        out = np.zeros((len(state), len(rows), BINS))
        for replica, theta in enumerate(state):
            for places, norms in self._gradients.norms(rows, theta, np.arange(len(rows))):
                good = np.isfinite(norms)
                out[replica, places[good], _bins(norms[good])] = 1.0
        return out

    def total(  # type: ignore[override]
        self, rows: Records, state: Array, members: NDArray[Any], grid: Grid | None = None
    ) -> Array:
        """Counts of each replica's members, (replicas, bins): float64, or integers on a grid."""
        found = [self._counts(rows, theta, np.flatnonzero(mask)) for theta, mask in zip(state, members, strict=True)]
        counts = np.stack(found)
        return counts.astype(np.float64) if grid is None else counts * round(1 / grid.unit)

    def contribute(self, rows: Records, theta: Array) -> None:
        """Add this process's share to the counts that the leader of its team computes."""
        self._counts(rows, theta, np.empty(0, np.intp))

    def _counts(self, rows: Records, theta: Array, index: NDArray[np.intp]) -> NDArray[np.int64]:
        out = np.zeros(BINS, np.int64)
        for _, norms in self._gradients.norms(rows, theta, rows.team.share(index)):
            out += np.bincount(_bins(norms[np.isfinite(norms)]), minlength=BINS)
        return np.asarray(rows.team.summed(torch.from_numpy(out)).numpy())

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Neighbours whose first record has a gradient of another length."""
        X = rng.normal(size=(records, 3)) * 2.0 ** rng.integers(-6, 6, size=(records, 1))
        X2, y = X.copy(), rng.normal(size=(records, 1))
        X2[0] *= 2.0 ** rng.integers(1, 6)
        objective = Objective(nn.Sequential(nn.Linear(3, 1)).double(), nn.MSELoss())
        here, there = (Records((torch.from_numpy(a), torch.from_numpy(y))) for a in (X, X2))
        state = rng.normal(size=(1, objective.size))
        return Example(cls(PerRecordGradients(objective, 1.0, chunk_size=2)), here, there, state)  # type: ignore[arg-type]


def _bins(norms: Array) -> NDArray[np.int64]:
    with np.errstate(divide="ignore"):
        level = np.floor(np.log2(norms)) - LOWEST
    return np.asarray(np.clip(level, 0, BINS - 1), np.int64)
