"""Registered sums: the only code besides the channel that reads records.

A sum owns its records and a public bound C, and returns Σ over a batch of contributions of norm at most C.
Registering one subjects it to the record-and-replay test (tests/run/test_replay.py): on random neighbours it must
never move by more than the relation allows, and must reach that somewhere. Trusted code = channel + registered sums;
everything else is post-processing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit._entries import check_entries
from tacit.errors import InvalidInput
from tacit.kernels.clipping import clipped_total

__all__ = ["REGISTRY", "Bounded", "ClippedSum", "LeastSquaresGradient", "VectorSum", "register"]

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


class Bounded:
    """What the channel needs to know about a sum over records.

    Attributes:
        bound: C, public: no contribution exceeds it in ℓ2 norm, whatever the records hold.
        records: how many there are.
    """

    bound: float
    records: int

    @property
    def diameter(self) -> float:
        """The largest distance between two possible contributions: 2C, unless a sum knows better."""
        return 2 * self.bound


class ClippedSum(Bounded, ABC):
    """A bounded sum of per-record contributions.

    Attributes:
        size: the length of the sum.
        smoothness: β of the convex function whose gradient a contribution is (after clipping), or None if it is no such
            gradient; hidden-state theorems need it.
    """

    name: ClassVar[str]
    size: int
    smoothness: float | None = None

    @abstractmethod
    def contributions(self, state: Array, index: NDArray[np.intp]) -> Array:
        """Unclipped contributions of the records ``index`` at each replica's state: (replicas, len(index), size)."""

    @classmethod
    @abstractmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[Self, Self, Array]:
        """Random neighbours that differ in record 0, and a state to evaluate them at (for record-and-replay)."""

    def total(self, state: Array, batch: Mask) -> Array:
        """Σ of the clipped contributions of each replica's batch: (replicas, size)."""
        index = np.flatnonzero(batch.any(axis=0))  # records that no replica reads are never touched
        if index.size == 0:
            return np.zeros((len(batch), self.size))
        G = np.ascontiguousarray(self.contributions(state, index))
        return clipped_total(G, np.ascontiguousarray(batch[:, index]), self.bound)


REGISTRY: dict[str, type[ClippedSum]] = {}
"""Every registered sum, by name."""

S = TypeVar("S", bound=type[ClippedSum])


def register(name: str) -> Callable[[S], S]:
    """Class decorator: add a sum to the trusted code, and with it to the record-and-replay test."""

    def add(cls: S) -> S:
        if name in REGISTRY:
            raise InvalidInput(f"a sum named {name!r} is registered already")
        cls.name = name
        REGISTRY[name] = cls
        return cls

    return add


def records_array(name: str, values: ArrayLike, ndim: int) -> Array:
    """A finite float64 array of records: shape and finiteness are the documented schema, values are not.

    Args:
        name: for the message.
        values: the records.
        ndim: the number of dimensions.

    Returns:
        A contiguous copy or view.

    Raises:
        InvalidInput: if shape, type or finiteness do not fit the schema.
    """
    check_entries(name, values, each=False)  # of single entries only numbers pass below
    try:
        raw = np.asarray(values)
    except (TypeError, ValueError, OverflowError):
        raw = np.empty(0, object)
    if raw.dtype.kind not in "biuf":  # outside of the handler: its exception may hold a value
        raise InvalidInput(f"{name} must be an array of numbers")
    out = np.ascontiguousarray(raw, dtype=np.float64)
    if out.ndim != ndim or (ndim == 2 and out.shape[1] == 0):
        raise InvalidInput(f"{name} must have {ndim} dimension(s) and at least one column, got shape {out.shape}")
    if not np.isfinite(out).all():
        raise InvalidInput(f"{name} holds NaN or infinite values: clean them before the private computation")
    return out


@register("vectors")
class VectorSum(ClippedSum):
    """The sum of the records themselves, each clipped to norm C: private means and moments.

    Args:
        vectors: (records, size).
        bound: C.
    """

    smoothness = 0.0  # the gradient of a linear function

    def __init__(self, vectors: ArrayLike, bound: float) -> None:
        self._vectors = records_array("vectors", vectors, 2)
        self.bound = _validate.positive(bound=bound)
        self.records, self.size = self._vectors.shape

    def contributions(self, state: Array, index: NDArray[np.intp]) -> Array:
        """The records, whatever the state."""
        return np.broadcast_to(self._vectors[index], (len(state), len(index), self.size))

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[VectorSum, VectorSum, Array]:
        """Neighbours with one long vector each, half of the time opposite."""
        here = rng.normal(size=(records, 3)) * rng.choice([0.1, 10.0], size=(records, 1))
        there = here.copy()
        there[0] = -here[0] if rng.random() < 0.5 else rng.normal(size=3) * 10
        return cls(here, 1.5), cls(there, 1.5), np.zeros((1, 3))


@register("least-squares-gradient")
class LeastSquaresGradient(ClippedSum):
    """The gradient of ½(xᵀθ − y)², clipped per record; rows of X are scaled down to norm R first.

    Clipping a scalar-output gradient x·r only clips the residual r, which is the gradient of a Huber function of xᵀθ
    − y: convex and R²-smooth, so that the hidden-state theorems apply after clipping, too.

    Args:
        X: (records, p).
        y: (records,).
        bound: C.
        row_norm: R, public; longer rows are scaled down to it.
    """

    def __init__(self, X: ArrayLike, y: ArrayLike, bound: float, *, row_norm: float) -> None:
        rows, self._y = records_array("X", X, 2), records_array("y", y, 1)
        if len(rows) != len(self._y):
            raise InvalidInput(f"X has {len(rows)} rows and y {len(self._y)}: they must match")
        R = _validate.positive(row_norm=row_norm)
        with np.errstate(over="ignore"):
            norms = np.linalg.norm(rows, axis=1, keepdims=True)
        self._X = np.where(norms > R, rows * (R / np.maximum(norms, 1e-300)), rows)
        self.bound = _validate.positive(bound=bound)
        self.smoothness = R * R
        self.records, self.size = self._X.shape

    def contributions(self, state: Array, index: NDArray[np.intp]) -> Array:
        """Gradients x (xᵀθ − y) of each record at each replica's θ."""
        X = self._X[index]
        with np.errstate(over="ignore", invalid="ignore"):
            residual = state @ X.T - self._y[index]
            return np.asarray(residual[:, :, None] * X[None, :, :])

    @classmethod
    def example(
        cls, rng: np.random.Generator, records: int
    ) -> tuple[LeastSquaresGradient, LeastSquaresGradient, Array]:
        """Neighbours with large residuals of both signs."""
        X, y = rng.normal(size=(records, 3)), 3 * rng.normal(size=records)
        X2, y2 = X.copy(), y.copy()
        X2[0], y2[0] = (X[0], -50 * y[0]) if rng.random() < 0.5 else (rng.normal(size=3), 50 * rng.normal())
        y[0] *= 50
        return cls(X, y, 0.7, row_norm=1.0), cls(X2, y2, 0.7, row_norm=1.0), rng.normal(size=(1, 3))
