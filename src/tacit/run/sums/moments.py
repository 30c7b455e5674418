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
    """Σ (v₁, …, v_p, v₁², …, v_p²) with v_j = (u_j − centre_j)/half_j ∈ [−1, 1], for features u_j in [low_j, high_j].

    A contribution has norm at most √2 per feature. Two of them differ, in one feature, by (v − w)² + (v² − w²)²,
    whose derivative in w is −2(v − w)(1 + 2vw + 2w²). The last factor is positive for v² < 2, so the distance grows as
    w moves away from v and is largest at opposite ends, where the squares agree: 4 per feature. Centred this way,
    second moments cost nothing beside first ones. A feature whose bounds coincide contributes zeros.

    Args:
        values: (records, p), dense or sparse; clipped to the bounds.
        low: smallest values.
        high: largest values.
    """

    def __init__(self, values: Any, low: ArrayLike, high: ArrayLike) -> None:
        self._low, self._high = _validate.real_array("low", low), _validate.real_array("high", high)
        if not (self._low <= self._high).all() or not np.isfinite(self._high - self._low).all():
            raise InvalidInput("moments need finite bounds with low ≤ high")
        if sparse.issparse(values):
            if ((self._low > 0) | (self._high < 0)).any():
                values = values.toarray()  # zeros that are not stored lie outside of the bounds
            else:
                values = sparse.csc_array(values, copy=True)
                values.sum_duplicates()  # an entry stored in parts would be clipped part by part
                column = np.repeat(np.arange(values.shape[1]), np.diff(values.indptr))
                values.data = np.clip(values.data, self._low[column], self._high[column])
        self._values = values if sparse.issparse(values) else np.clip(values, self._low, self._high)
        self.records, self._features = self._values.shape
        self.size = 2 * self._features
        self.centre, self.half = self._low / 2 + self._high / 2, self._high / 2 - self._low / 2
        varying = int((self.half > 0).sum())
        self.bound = float(np.sqrt(max(2 * varying, 1e-300)))
        self._diameter = float(np.sqrt(max(4 * varying, 1e-300)))

    @property
    def diameter(self) -> float:
        """From one end to the other, in every feature: √2 times the bound, not twice."""
        return self._diameter

    def _centred(self, u: Array) -> Array:
        return np.asarray(np.clip((u - self.centre) / np.where(self.half > 0, self.half, np.inf), -1.0, 1.0))

    def contributions(self, state: Array, index: NDArray[np.intp]) -> Array:
        """(v, v²) of each record."""
        rows = self._values[index]
        v = self._centred(rows.toarray() if sparse.issparse(rows) else rows)
        return np.broadcast_to(np.hstack([v, v * v]), (len(state), len(index), self.size))

    def total(self, state: Array, batch: Mask) -> Array:
        """Both moments by matrix products; a sparse design stays sparse."""
        weights = batch.astype(np.float64)
        if not sparse.issparse(self._values):
            v = self._centred(self._values)
            return np.hstack([weights @ v, weights @ np.square(v)])
        scale = np.where(self.half > 0, self.half, np.inf)
        scaled = self._values @ sparse.diags_array(1 / scale)
        first, second = np.asarray(weights @ scaled), np.asarray(weights @ scaled.power(2))
        count, c = weights.sum(axis=1, keepdims=True), self.centre / scale
        return np.hstack([first - count * c, second - 2 * c * first + count * c * c])

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[MomentSum, MomentSum, Array]:
        """One feature of each kind, at an end more often than not; dense or sparse."""
        low, high = np.array([-1.0, 0.0, 0.0]), np.array([1.0, 1.0, 0.0])
        here = rng.choice([-2.0, 2.0, 0.3], size=(records, 3))
        there = here.copy()
        there[0] = rng.choice([-2.0, 2.0, 0.3], size=3)
        form = _in_parts if rng.random() < 0.5 else np.asarray
        return cls(form(here), low, high), cls(form(there), low, high), np.zeros((1, 6))


def _in_parts(dense: Array) -> Any:
    """A sparse matrix that stores every entry as two halves, as some libraries hand them out."""
    n, p = dense.shape
    rows, columns = np.repeat(np.arange(n), 2 * p), np.tile(np.repeat(np.arange(p), 2), n)
    return sparse.coo_array((np.repeat(dense.ravel(), 2) / 2, (rows, columns)), shape=(n, p))
