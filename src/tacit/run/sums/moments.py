"""First and second moments of bounded features."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.run.clipped_sum import ClippedSum, Mask, register

__all__ = ["MomentSum"]

Array = NDArray[np.float64]


@register("moments")
class MomentSum(ClippedSum):
    """Σ (u₁, …, u_p, u₁², …, u_p²) for features in [low_j, high_j] ⊂ [−1, 1].

    A contribution has norm at most √Σ(b² + b⁴), b = max(|low|, |high|). Two of them differ, in one feature, by
    (u − v)² + (u² − v²)², whose derivative in v is −2(u − v)(1 + 2uv + 2v²). The last factor is positive for
    u² < 2, so the distance grows as v moves away from u: it is largest for u = high, v = low; the squared diameter is
    Σ_j (high − low)²(1 + (high + low)²): 4 for a feature in [−1, 1], 2 for one in [0, 1].

    Args:
        values: (records, p), dense or sparse; clipped to the bounds.
        low: smallest values.
        high: largest values.
    """

    def __init__(self, values: Any, low: ArrayLike, high: ArrayLike) -> None:
        self._low, self._high = _validate.real_array("low", low), _validate.real_array("high", high)
        if (self._low < -1).any() or (self._high > 1).any() or (self._low > self._high).any():
            raise InvalidInput("moments are of features within [-1, 1]: map them by their bounds first")
        if sparse.issparse(values):
            self._values = sparse.csc_array(values)
            column = np.repeat(np.arange(values.shape[1]), np.diff(self._values.indptr))
            self._values.data = np.clip(self._values.data, self._low[column], self._high[column])
        else:
            self._values = np.clip(values, self._low, self._high)
        self.records, self._features = self._values.shape
        self.size = 2 * self._features
        reach = np.maximum(np.abs(self._low), np.abs(self._high))
        self.bound = max(float(np.sqrt((reach**2 + reach**4).sum())), 1e-300)
        width, middle = self._high - self._low, self._high + self._low
        self._diameter = max(float(np.sqrt((width**2 * (1 + middle**2)).sum())), 1e-300)

    @property
    def diameter(self) -> float:
        """From one end to the other, in every feature."""
        return self._diameter

    def contributions(self, state: Array, index: NDArray[np.intp]) -> Array:
        """(u, u²) of each record."""
        u = self._values[index]
        u = u.toarray() if sparse.issparse(u) else u
        return np.broadcast_to(np.hstack([u, u * u]), (len(state), len(index), self.size))

    def total(self, state: Array, batch: Mask) -> Array:
        """Both moments by matrix products; nothing needs clipping beyond the bounds."""
        weights = batch.astype(np.float64)
        squares = self._values.power(2) if sparse.issparse(self._values) else np.square(self._values)
        return np.hstack([np.asarray(weights @ self._values), np.asarray(weights @ squares)]).astype(np.float64)

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[MomentSum, MomentSum, Array]:
        """One feature of each kind, at an end more often than not."""
        low, high = np.array([-1.0, 0.0, 0.0]), np.array([1.0, 1.0, 0.0])
        here = rng.choice([-2.0, 2.0, 0.3], size=(records, 3))
        there = here.copy()
        there[0] = rng.choice([-2.0, 2.0, 0.3], size=3)
        return cls(here, low, high), cls(there, low, high), np.zeros((1, 6))
