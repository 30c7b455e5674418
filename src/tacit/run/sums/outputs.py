"""Gradients of K outputs that are linear in public features of a record: g(Wx)·xᵀ, two matrix products a batch."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.exact import half_spaces
from tacit.kernels.rows import row_squares
from tacit.problem.outputs import OneVsRest, OutputLoss, Softmax, SquaredOutputs
from tacit.run.clipped_sum import ClippedSum, Mask, register

__all__ = ["FeatureRows", "GatedOutputs", "LinearOutputs", "ShortRows", "TableRows", "open_gates", "shortened"]

Array = NDArray[np.float64]
Rows = NDArray[Any]  # float32 or float64
FARTHEST = 1e25
"""Outputs that no run comes near; weights that could give more are confined, only so that float32 holds them."""
SMALLEST, LARGEST = 1e-6, 1e6
"""Norms of features that leave room for that."""
PART = 4096
"""Rows that are summed in the type of the features."""
ROUNDING = 2.0**-32
"""More than the relative error of a norm in float64."""
SHRINK = 1 - 2.0**-16
"""Long rows are made this much shorter than R, so that rounding to float32 cannot make them longer."""


class FeatureRows(Protocol):
    """Public features of private records, made when they are asked for."""

    width: int

    def __len__(self) -> int:
        """How many records."""

    def take(self, index: NDArray[np.intp]) -> Rows:
        """Features of these records, (len(index), width), not to be changed: a function of each record by itself."""


class TableRows:
    """Features that are there, in somebody else's hands: what is taken is copied before anything is checked.

    Args:
        X: (records, width), float32 or float64; not copied.
    """

    def __init__(self, X: Rows) -> None:
        self._X, self.width = X, int(X.shape[1])

    def __len__(self) -> int:
        return len(self._X)

    def take(self, index: NDArray[np.intp]) -> Rows:
        """A copy of these rows."""
        return self._X[index]


def shortened(rows: Rows, R: float) -> Rows:
    """Rows within norm R: longer ones scaled down, those that are not finite replaced by zeros.

    Done before anything else, so that no product can overflow for some W and not for others: a contribution that
    vanished for some W only would not be a gradient.

    Args:
        rows: (m, p); left as they are.
        R: the norm.

    Returns:
        (m, p), in the same type; the very same array if nothing had to be changed.
    """
    odd = ~(np.sqrt(row_squares(rows)) <= R * (1 - ROUNDING))  # also those whose squares overflowed, and NaN
    if not odd.any():
        return rows
    out = np.array(rows)
    wide = np.array(rows[odd], np.float64)
    wide[~np.isfinite(wide).all(axis=1)] = 0
    top = np.maximum(np.abs(wide).max(axis=1, initial=0.0, keepdims=True), 1e-300)
    wide /= top
    length = np.sqrt((wide * wide).sum(axis=1, keepdims=True))
    out[odd] = wide * np.minimum(top, R * SHRINK / np.maximum(length, 1e-300))
    return out


def open_gates(rows: Rows, gates: Rows, R: float) -> tuple[Rows, Rows]:
    """Rows short enough for any gate pattern, and √(2/P)·1(u_jᵀx ≥ 0) scaled so that ‖x̃‖ ≤ R.

    Args:
        rows: (m, d).
        gates: (P, d), public.
        R: the norm of lifted records.

    Returns:
        Rows (m, d) and weights of the gates (m, P): x̃ = (weight_j·x)_j. Both of a record depend on it alone, to the
        bit: a gate that turned with the record's place in a batch would move the sum by another record's contribution.
    """
    P = len(gates)
    short = shortened(rows, R * float(np.sqrt(P / 2)))
    mask = half_spaces(short, gates).astype(short.dtype)
    length = np.sqrt(row_squares(short) * (2 / P) * mask.sum(axis=1))
    factor = np.sqrt(2 / P) * np.minimum(1.0, R * SHRINK / np.maximum(length, 1e-300))
    mask *= factor[:, None].astype(short.dtype)
    return short, mask


class ShortRows(TableRows):
    """A private copy of features, every row within R: made once, so that nothing is left to check when they are read.

    Args:
        rows: the features.
        R: the norm.
    """

    def __init__(self, rows: FeatureRows, R: float) -> None:
        kind = rows.take(np.arange(min(1, len(rows)))).dtype
        X = np.empty((len(rows), rows.width), kind)
        for first in range(0, len(rows), PART):
            part = np.arange(first, min(first + PART, len(rows)))
            X[part] = shortened(rows.take(part), R)
        X.flags.writeable = False
        super().__init__(X)
        self.within = R

    def take(self, index: NDArray[np.intp]) -> Rows:
        """These rows; a view if they follow each other, as in batches by order."""
        if len(index) and (np.diff(index) == 1).all():
            return self._X[index[0] : index[-1] + 1]
        return self._X[index]


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
        if not SMALLEST <= self._R <= LARGEST:
            raise InvalidInput(f"row_norm must lie between {SMALLEST:g} and {LARGEST:g}, got {row_norm!r}: rescale")
        self.records = len(rows)
        self.bound = loss.slope * self._R
        self.smoothness = loss.curvature * self._R**2

    def total(self, state: Array, batch: Mask) -> Array:
        """Two matrix products for each replica."""
        return np.stack([self._one(theta, np.flatnonzero(mask)) for theta, mask in zip(state, batch, strict=True)])

    def _one(self, theta: Array, index: NDArray[np.intp]) -> Array:
        """Parts of a batch, summed in float64: float32 sums over very many rows would drift."""
        far = FARTHEST / self._R
        if not (theta.max() <= far and theta.min() >= -far):  # also NaN
            theta = np.clip(np.nan_to_num(theta), -far, far)
        if not len(index):
            return np.zeros(self.size)
        with np.errstate(all="ignore"):  # a warning would tell about a record
            first, *others = _parts(index)
            out = self._part(theta, self._rows.take(first), first)
            for part in others:
                out += self._part(theta, self._rows.take(part), part)
        return out

    def _part(self, theta: Array, X: Rows, index: NDArray[np.intp]) -> Array:
        raise NotImplementedError

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

    def _part(self, theta: Array, X: Rows, index: NDArray[np.intp]) -> Array:
        if not (type(self._rows) is ShortRows and self._rows.within <= self._R):
            X = shortened(X, self._R)
        W = theta.reshape(self._loss.outputs, -1).astype(X.dtype)
        G = self._loss.gradient(X @ W.T, self._target[index])
        return np.asarray(G.T @ X, np.float64).ravel()

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
        self._open: NDArray[np.bool_] | None = None
        if type(rows) is ShortRows and rows.within <= self._R * float(np.sqrt(len(gates) / 2)):
            self._remember_gates()

    def _remember_gates(self) -> None:
        """Which gates a record opens, and their weight: once for all steps, as nobody can change the records."""
        parts = _parts(np.arange(self.records)) or [np.arange(0)]
        with np.errstate(all="ignore"):  # a warning would tell about a record
            made = [open_gates(self._rows.take(part), self._gates, self._R)[1] for part in parts]
        self._open = np.concatenate([weights > 0 for weights in made])
        self._weight = np.concatenate([weights.max(axis=1, keepdims=True) for weights in made])

    def _part(self, theta: Array, X: Rows, index: NDArray[np.intp]) -> Array:
        K, (P, d) = self._loss.outputs, self._gates.shape
        if self._open is None:
            X, mask = open_gates(X, self._gates, self._R)
        else:
            mask = self._open[index] * self._weight[index]
        V = theta.reshape(K * P, d).astype(X.dtype)
        Z = np.einsum("ikj,ij->ik", (X @ V.T).reshape(-1, K, P), mask)
        G = self._loss.gradient(Z, self._target[index])
        spread = (G[:, :, None] * mask[:, None, :]).reshape(-1, K * P)
        return np.asarray(spread.T @ X, np.float64).ravel()

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[GatedOutputs, GatedOutputs, Array]:
        """As ``LinearOutputs``, with gates that are all open for some records."""
        return _example(cls, rng, records, 3 * 4, gates=rng.normal(size=(4, 3)) + rng.choice([0.0, 3.0]))


def _parts(index: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    return [index[first : first + PART] for first in range(0, len(index), PART)]


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
