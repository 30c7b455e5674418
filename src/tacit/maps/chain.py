"""Public scikit-learn steps as one row map, whatever they are and whatever they do to single records."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput
from tacit.maps.rows import Range, RowMap

__all__ = ["PUBLIC_VALUE", "PublicSteps", "transformed"]

PUBLIC_VALUE = 0.5
"""Of every column of a record that stands in for others."""


def transformed(steps: Any, X: NDArray[Any]) -> NDArray[Any]:
    """The rows that fitted steps make of X in float32, without a word about its values.

    Args:
        steps: with ``transform``.
        X: records.

    Returns:
        (n, width).

    Raises:
        InvalidInput: if the steps return something else than a dense table.
    """
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        out = steps.transform(X)
        out = out.to_numpy() if hasattr(out, "to_numpy") else out  # frames, if scikit-learn was told to make them
        if not isinstance(out, np.ndarray) or out.ndim != 2:
            raise InvalidInput("features must return dense tables: set sparse_output=False, or convert them")
        return np.asarray(out, np.float32)


@dataclass(frozen=True, eq=False)
class PublicSteps(RowMap):
    """x ↦ ``steps.transform(x)`` in float32: a chain of public steps (``tacit.maps.row_local`` checks it).

    A record on which the steps fail (a function that has no value there) has no features: an error would tell. It is
    replaced by a public one before the others are mapped, so that they keep their places in a table of the same shape,
    and its row is zero. A function that treats each record by itself may still round it by its place (any matrix
    product does), and something behind it may jump.

    Attributes:
        steps: fitted, e.g. a Pipeline.
        width: of a mapped row.
        bound: a norm that the steps certify, or infinity.
        alone: whether each record is mapped by itself: where its place in a batch is random, and the steps hold
            functions of the user's own. Those of Tacit give the same bits in any place.
    """

    by_rows = True
    steps: Any
    width: int
    bound: float = float("inf")
    alone: bool = False

    def __call__(self, X: Any) -> NDArray[Any]:
        """(n, width), float32."""
        X = np.asarray(X)
        if not len(X):
            return np.zeros((0, self.width), np.float32)
        if self.alone:
            return self._one_by_one(X)
        try:
            return transformed(self.steps, X)
        except Exception:
            return self._without_failures(X)

    def _without_failures(self, X: NDArray[Any]) -> NDArray[Any]:
        failing = np.array([not self._maps(X[i : i + 1]) for i in range(len(X))])
        others = np.where(failing[:, None], X.dtype.type(PUBLIC_VALUE), X)
        if not self._maps(others):  # it fails on some together only: against what was declared, and no reason to tell
            return self._one_by_one(X)
        out = np.array(transformed(self.steps, others))
        out[failing] = 0.0
        return out

    def _maps(self, X: NDArray[Any]) -> bool:
        try:
            transformed(self.steps, X)
        except Exception:
            return False
        return True

    def _one_by_one(self, X: NDArray[Any]) -> NDArray[Any]:
        return np.concatenate([self._single(X[i : i + 1]) for i in range(len(X))])

    def _single(self, record: NDArray[Any]) -> NDArray[Any]:
        return transformed(self.steps, record) if self._maps(record) else np.zeros((1, self.width), np.float32)

    def range(self, before: Range | None) -> Range:
        """What the steps certify."""
        ends = np.full(self.width, self.bound)
        return Range(-ends, ends, self.bound)

    @classmethod
    def example(cls, rng: np.random.Generator) -> tuple[PublicSteps, Any]:
        """Rows that fail and others, for a step that cannot take negative sums."""
        X = rng.normal(size=(40, 3))
        return cls(_Root(), 3, alone=bool(rng.integers(2))), X


class _Root:
    """√(x + 4) of every entry; raises where some record's is not a number: for the contract suite."""

    def transform(self, X: NDArray[Any]) -> NDArray[Any]:
        if (X < -1).any():
            raise ValueError("a record")
        return np.asarray(np.sqrt(X + 4))
