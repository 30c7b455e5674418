"""A sum and the number of its records, in one release: for relations under which n is secret."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit.errors import MechanismMismatch
from tacit.run.clipped_sum import REGISTRY, ClippedSum, Mask, VectorSum, register

__all__ = ["CountedSum"]

Array = NDArray[np.float64]


@register("counted")
class CountedSum(ClippedSum):
    """Another registered sum with a 1 appended to every contribution, so that its last entry counts the records.

    A contribution has norm at most √(C² + 1). Replacing a record leaves the count alone, so two contributions are as
    far apart as those of the inner sum.

    Args:
        inner: a registered sum.

    Raises:
        MechanismMismatch: if it is not registered: nobody tested its bound.
    """

    def __init__(self, inner: ClippedSum) -> None:
        if type(inner) not in REGISTRY.values():
            raise MechanismMismatch(f"{type(inner).__name__} is not a registered sum: decorate it with @register(name)")
        self._inner = inner
        self.records, self.size = inner.records, inner.size + 1
        self.bound = float(np.hypot(inner.bound, 1.0))

    @property
    def diameter(self) -> float:
        """That of the inner sum."""
        return self._inner.diameter

    def contributions(self, state: Array, index: NDArray[np.intp]) -> Array:
        """Those of the inner sum, each followed by 1."""
        return np.concatenate([self._inner.contributions(state, index), np.ones((len(state), len(index), 1))], axis=2)

    def total(self, state: Array, batch: Mask) -> Array:
        """The inner total (clipped there), and how many records the batch holds."""
        return np.hstack([self._inner.total(state, batch), batch.sum(axis=1, keepdims=True).astype(np.float64)])

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[CountedSum, CountedSum, Array]:
        """Around vectors."""
        here, there, state = VectorSum.example(rng, records)
        return cls(here), cls(there), state
