"""Gradients of K outputs that are linear in public features of a record: g(Wx)·xᵀ, two matrix products a batch."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.problem.outputs import OneVsRest, OutputLoss, Softmax, SquaredOutputs
from tacit.run.clipped_sum import ClippedSum, Mask, register

__all__ = ["FeatureRows", "GatedOutputs", "LinearOutputs", "TableRows"]

Array = NDArray[np.float64]
Rows = NDArray[Any]  # float32 or float64
SHRINK = 1 - 2.0**-16
"""Rows are made this much shorter than R, so that rounding to float32 cannot make them longer."""


class FeatureRows(Protocol):
    """Public features of private records, made when they are asked for."""

    width: int

    def __len__(self) -> int:
        """How many records."""

    def take(self, index: NDArray[np.intp]) -> Rows:
        """Features of these records, (len(index), width), not to be changed: a function of each record by itself."""


class TableRows:
    """Features that are there.

    Args:
        X: (records, width), float32 or float64; not copied.
    """

    def __init__(self, X: Rows) -> None:
        self._X, self.width = X, int(X.shape[1])

    def __len__(self) -> int:
        return len(self._X)

    def take(self, index: NDArray[np.intp]) -> Rows:
        """These rows; a view if they follow each other, as in batches by order."""
        if len(index) and index[-1] - index[0] + 1 == len(index):
            return self._X[index[0] : index[-1] + 1]
        return self._X[index]


def _factors(rows: Rows, R: float, weight: Rows | float = 1.0) -> Rows:
    """What scales each row down to norm R; 0 for rows that are not finite."""
    with np.errstate(invalid="ignore", over="ignore", under="ignore"):
        norm = np.sqrt(np.einsum("ij,ij->i", rows, rows)).astype(np.float64)
    odd = ~(np.isfinite(norm) & (norm > 1e-15))
    if odd.any():  # squares may have over- or underflowed: once more, with care
        norm[odd] = _careful(rows[odd])
    norm = norm * weight
    limit = R * SHRINK
    factor = np.where(norm > limit, limit / np.maximum(norm, 1e-300), 1.0)
    return np.where(np.isfinite(norm), factor, 0.0).astype(rows.dtype)


def _careful(rows: Rows) -> Array:
    wide = rows.astype(np.float64)
    top = np.abs(wide).max(axis=1, initial=0.0)
    safe = np.where((top > 0) & np.isfinite(top), top, 1.0)
    with np.errstate(invalid="ignore", over="ignore"):
        return np.asarray(np.sqrt(np.square(wide / safe[:, None]).sum(axis=1)) * safe)


class _Outputs(ClippedSum):
    """What both kinds share.

    Args:
        rows: the features.
        target: (records,) class numbers or (records, K) values.
        loss: of the outputs.
        row_norm: R; longer feature vectors are scaled down to it.
    """

    def __init__(self, rows: FeatureRows, target: Rows, loss: OutputLoss, *, row_norm: float) -> None:
        if len(rows) != len(target):
            raise InvalidInput(f"{len(rows)} records but {len(target)} targets: they must match")
        self._rows, self._target, self._loss = rows, target, loss
        self._R = _validate.positive(row_norm=row_norm)
        self.records = len(rows)
        self.bound = loss.slope * self._R
        self.smoothness = loss.curvature * self._R**2

    def total(self, state: Array, batch: Mask) -> Array:
        """Two matrix products for each replica."""
        return np.stack([self._one(theta, np.flatnonzero(mask)) for theta, mask in zip(state, batch, strict=True)])

    def _one(self, theta: Array, index: NDArray[np.intp]) -> Array:
        raise NotImplementedError

    def _slopes(self, Z: Rows, index: NDArray[np.intp]) -> Rows:
        """Gradients in the outputs; those that are not finite count as nothing."""
        with np.errstate(all="ignore"):
            G = self._loss.gradient(Z, self._target[index])
        good = np.asarray(np.isfinite(G).all(axis=1))
        return G if good.all() else np.where(good[:, None], G, 0).astype(G.dtype)

    def contributions(self, state: Array, index: NDArray[np.intp]) -> Array:
        """One record at a time."""
        return np.stack([[self._one(theta, np.array([i])) for i in index] for theta in state])


@register("linear-outputs")
class LinearOutputs(_Outputs):
    """Σ g(Wx_i; y_i)·x_iᵀ over a batch, W of shape (K, p): multinomial logistic regression and its relatives.

    Clipping happens in the outputs (``problem.outputs``) and on the features (norm at most R), so that every
    contribution is the gradient of a convex function of W with smoothness curvature·R², and at most slope·R long.
    """

    def __init__(self, rows: FeatureRows, target: Rows, loss: OutputLoss, *, row_norm: float) -> None:
        super().__init__(rows, target, loss, row_norm=row_norm)
        self.size = loss.outputs * rows.width

    def _one(self, theta: Array, index: NDArray[np.intp]) -> Array:
        X = self._rows.take(index)
        shrink = _factors(X, self._R)[:, None]
        W = theta.reshape(self._loss.outputs, -1).astype(X.dtype)
        finite = np.nan_to_num(X, nan=0.0, posinf=0.0, neginf=0.0) if (shrink == 0).any() else X
        G = self._slopes((finite @ W.T) * shrink, index)
        return np.asarray((G * shrink).T @ finite, np.float64).ravel()

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[LinearOutputs, LinearOutputs, Array]:
        """Any loss, mirrored or replaced records, long and short ones."""
        return _example(cls, rng, records, 3)


@register("gated-outputs")
class GatedOutputs(_Outputs):
    """The convex ReLU network: outputs Σ_j 1(u_jᵀx ≥ 0)·V_j x, with public gates u_j; V of shape (K, P, d).

    The features are x̃ = √(2/P)·(1(u_jᵀx ≥ 0)·x)_j, of length √(2·active/P)·‖x‖, scaled down to R (errata, E1: not of
    length ‖x‖). They are never formed: two products with (batch × d) and (d × PK), and a mask.

    Args:
        rows: x.
        target: as ``LinearOutputs``.
        loss: of the outputs.
        row_norm: R, of x̃.
        gates: (P, d), public.
    """

    def __init__(self, rows: FeatureRows, target: Rows, loss: OutputLoss, *, row_norm: float, gates: Rows) -> None:
        super().__init__(rows, target, loss, row_norm=row_norm)
        if gates.ndim != 2 or gates.shape[1] != rows.width:
            raise InvalidInput(f"gates must have shape (P, {rows.width}), got {gates.shape}")
        self._gates = gates
        self.size = loss.outputs * gates.size

    def _one(self, theta: Array, index: NDArray[np.intp]) -> Array:
        X = self._rows.take(index)
        K, (P, d) = self._loss.outputs, self._gates.shape
        bad = np.asarray(~np.isfinite(X).all(axis=1))
        X = np.where(bad[:, None], 0, X).astype(X.dtype) if bad.any() else X
        mask = (X @ self._gates.T.astype(X.dtype) >= 0).astype(X.dtype)
        length = np.sqrt(2 / P) * np.sqrt(mask.sum(axis=1))
        shrink = (_factors(X, self._R, length) * np.sqrt(2 / P)).astype(X.dtype)
        shrink[bad] = 0
        mask *= shrink[:, None]
        V = theta.reshape(K, P, d).transpose(2, 1, 0).reshape(d, P * K).astype(X.dtype)
        Z = np.matmul(mask[:, None, :], (X @ V).reshape(-1, P, K))[:, 0]
        G = self._slopes(Z, index)
        spread = (mask[:, :, None] * G[:, None, :]).reshape(-1, P * K)
        return np.asarray((spread.T @ X).reshape(P, K, d).transpose(1, 0, 2), np.float64).ravel()

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[GatedOutputs, GatedOutputs, Array]:
        """As ``LinearOutputs``, with gates that are all open for some records."""
        return _example(cls, rng, records, 3 * 4, gates=rng.normal(size=(4, 3)) + rng.choice([0.0, 3.0]))


def _example(cls: type[Any], rng: np.random.Generator, records: int, width: int, **more: Any) -> tuple[Any, Any, Array]:
    K = 3
    loss = [Softmax(K), Softmax(K, 0.3), OneVsRest(K), OneVsRest(K, 0.4), SquaredOutputs(K, 0.7)][rng.integers(5)]
    X = rng.normal(size=(records, 3)) * rng.choice([0.2, 30.0], size=(records, 1))
    X[0] = np.abs(X[0]) + 3  # long, and inside of every gate that points up
    X2 = X.copy()
    X2[0] = X[0] if rng.random() < 0.5 else rng.normal(size=3) * 9
    y: Any
    if isinstance(loss, SquaredOutputs):
        y = rng.normal(size=(records, K)) * 30
        y2 = y.copy()
        y2[0] = -y[0]
    else:
        y = rng.integers(K, size=records)
        y2 = y.copy()
        X2[0] = -X[0] if rng.random() < 0.7 and not more else X2[0]
    theta = rng.normal(size=(1, K * width)) * rng.choice([0.0, 1.0, 8.0])
    sides = [cls(TableRows(a), b, loss, row_norm=1.5, **more) for a, b in ((X, y), (X2, y2))]
    return sides[0], sides[1], theta
