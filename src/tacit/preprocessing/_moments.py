"""First and second moments of features in a public box, from one noisy sum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.mechanism import Adjacency
from tacit.preprocessing._affine import Box
from tacit.preprocessing._release import Ticket
from tacit.run import ClippedSum
from tacit.run.sums.counted import CountedSum
from tacit.run.sums.moments import MomentSum

__all__ = ["Moments", "release_moments"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Moments:
    """Noisy moments of features mapped to [−1, 1].

    Attributes:
        mean: of u, clamped to [−1, 1].
        square: of u².
        noise: the standard deviation of the noise in each of them (0 for features whose bounds coincide).
    """

    mean: Array
    square: Array
    noise: Array

    @property
    def variance(self) -> Array:
        """Of u; noise may make it negative or too large, so it is clamped to [0, 1]."""
        return np.clip(self.square - self.mean**2, 0.0, 1.0)


def release_moments(ticket: Ticket, X: Array, box: Box) -> Moments:
    """One joint release of Σu and Σu² of all features.

    Replacing a record moves (u, u²) of one feature by at most 2, all of them by 2√p. Under add/remove n is secret: the
    same release then counts the records, and a contribution has norm √(2p + 1).

    Args:
        ticket: paid for.
        X: (n, p), finite.
        box: public bounds.

    Returns:
        The moments, divided by n, or by the noisy count (at least 1) if n is secret.
    """
    live = box.live
    p = int(live.sum())
    mean, square, noise = np.zeros(len(live)), np.zeros(len(live)), np.zeros(len(live))
    if p == 0:  # the bounds say it all
        return Moments(mean, square, noise)
    total: ClippedSum = MomentSum(box.unit(X)[:, live], np.full(p, -1.0), np.ones(p))
    n = float(len(X))
    if ticket.adjacency is Adjacency.ADD_REMOVE:
        noisy, sigma = ticket.release(CountedSum(total))
        n = max(float(noisy[-1]), 1.0)
    else:
        noisy, sigma = ticket.release(total)
    first, second = noisy[:p], noisy[p : 2 * p]
    mean[live], square[live] = np.clip(first / n, -1.0, 1.0), second / n
    noise[live] = sigma / n
    return Moments(mean, square, noise)
