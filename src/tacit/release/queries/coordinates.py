"""Coordinate and block gradients, released one block after another: DP-CD and DP-SkGD in one sweep."""

from __future__ import annotations

import hashlib
import pickle
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit.errors import InvalidInput
from tacit.kernels import coordinate as kernel
from tacit.kernels.lattice import lattice_total
from tacit.kernels.siphash import multiset_digest
from tacit.problem import ElasticNet, Huber, Logistic, Loss, Penalty, SmoothedHinge, Squared
from tacit.records import Design, Rows
from tacit.release.query import Example, Grid, Sums, register, zero_where_it_fails
from tacit.release.sweep import Sweep

__all__ = ["Blocks", "CoordinateState", "CoordinateSweep"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]
COMPILED: dict[type[Loss], int] = {
    Squared: kernel.SQUARED,
    Huber: kernel.HUBER,
    Logistic: kernel.LOGISTIC,
    SmoothedHinge: kernel.SMOOTHED_HINGE,
}
"""Losses with compiled code, by exact type: a subclass with another derivative runs in numpy."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Which coordinates each step updates, drawn without looking at records.

    Attributes:
        members: the coordinates of all steps, one after another.
        sizes: how many belong to each step.
    """

    members: Index
    sizes: Index

    def __post_init__(self) -> None:
        if self.sizes.min(initial=1) < 1 or self.sizes.sum() != len(self.members):
            raise InvalidInput("every block needs at least one coordinate")

    @property
    def starts(self) -> Index:
        """Where each step's coordinates begin."""
        return np.concatenate([[0], np.cumsum(self.sizes)[:-1]]).astype(np.int64)

    @property
    def single(self) -> bool:
        """Whether every step updates one coordinate."""
        return bool((self.sizes == 1).all())


@dataclass(eq=False)
class CoordinateState:
    """Coefficients, predictions, and the sum of the inner iterates since the last average. **Private** (predictions).

    Attributes:
        w: coefficients.
        z: the argument of the loss: of compiled ones Xw − y, or the margin; of others Xw.
        total: Σ of iterates.
    """

    w: Array
    z: Array
    total: Array

    def copy(self) -> CoordinateState:
        """An independent copy."""
        return CoordinateState(self.w.copy(), self.z.copy(), self.total.copy())


@register("coordinates")
class CoordinateSweep(Sweep):
    """Noisy proximal steps on one block of coordinates after another.

    Step k releases, for its block U, the whitened sum

        Σ_i v_i · min(1, √|U|/‖v_i‖) / √|U|,     v_i = (φ′(f_i, y_i)·x_ij / clip_j)_{j∈U},

    a sum of contributions of norm at most 1, whatever |U| is; so a random block size does not change the ratio. For |U|
    = 1 this is DP-CD's rule: each coordinate's gradient is clipped to its own threshold. The step un-whitens it,
    divides by n and takes a prox step: w_j ← prox(w_j − step_j·g_j/n). After every ``inner`` steps the iterate is
    replaced by the mean of the last ``inner`` ones, if averaging is on.

    On a grid each whitened contribution, of norm at most 1, is rounded toward zero to integers; clips and √|U| are
    public and stay out of them. Predictions are kept in float64, each a function of its own record and of released
    numbers to the bit (``tacit.kernels.sweeps``).

    Args:
        loss: φ.
        penalty: ψ; separable.
        blocks: the coordinates of each step.
        clips: clip_j > 0, public.
        steps: step_j > 0, for the mean loss.
        divisor: what sums are divided by: the number of records, public or released.
        inner: K; None for no averaging.
    """

    bound = 1.0

    def __init__(
        self,
        loss: Loss,
        penalty: Penalty,
        blocks: Blocks,
        *,
        clips: Array,
        steps: Array,
        divisor: int,
        inner: int | None = None,
    ) -> None:
        self._loss, self._penalty, self._divisor = loss, penalty, divisor
        self._blocks, self.sizes, self._starts = blocks, blocks.sizes, blocks.starts
        self._clips, self._steps = np.ascontiguousarray(clips, np.float64), np.ascontiguousarray(steps, np.float64)
        if not ((self._clips > 0).all() and (self._steps > 0).all() and np.isfinite(self._clips + self._steps).all()):
            raise InvalidInput("clips and steps of coordinates must be positive and finite")
        if inner is not None and len(blocks.sizes) % inner:
            raise InvalidInput(f"{len(blocks.sizes)} steps are no whole number of rounds of {inner}")
        self._inner = inner
        self._code = COMPILED.get(type(loss))
        self._parameter = float(getattr(loss, "parameter", 0.0)) if self._code is not None else 0.0
        self._fused = self._code is not None and type(penalty) is ElasticNet and blocks.single

    def grid(self, sigma: float) -> Grid:
        """As fine as the largest noise allows."""
        return Grid.fine(sigma, self.bound)

    # -- records ----------------------------------------------------------------------------------------------

    def _design(self, rows: Rows) -> Design:
        """Features; compiled losses of labels take them with the label folded in."""
        if self._code is None or not self._loss.labels:
            return rows.design
        return rows.kept("signed design", lambda: rows.design.rows_scaled(rows.y))

    def _arguments(self, rows: Rows, w: Array) -> Array:
        z = self._design(rows).dot(w)
        return z if self._code is None or self._loss.labels else z - rows.y

    def start(self, rows: Rows, w: Array) -> CoordinateState:
        """The state at public (or released) coefficients."""
        w = np.array(w, np.float64)
        return CoordinateState(w, self._arguments(rows, w), np.zeros(len(w)))

    def released(self, state: CoordinateState) -> Array:
        """The coefficients."""
        return state.w.copy()

    def _block(self, k: int) -> Index:
        first = int(self._starts[k])
        return self._blocks.members[first : first + int(self.sizes[k])]

    # -- the two functions a sweep is made of -----------------------------------------------------------------

    def clipped_sum(self, rows: Rows, state: CoordinateState, k: int, grid: Grid | None = None) -> Sums:
        """The whitened sum over block k."""
        U, design = self._block(k), self._design(rows)
        if self._code is None:
            return self._plain_sum(rows, state.z, U, grid)
        if grid is not None and len(U) == 1:  # a number is clipped as it is: no norm, no allowance for its rounding
            return self._single_sum(rows, state.z, int(U[0]), grid)
        root, unit = float(np.sqrt(len(U))), None if grid is None else grid.unit
        rest: tuple[Any, ...] = (state.z, U, 1 / self._clips[U], root, self._code, self._parameter, unit, rows.weights)
        if design.sparse:
            found = kernel.block_sum_sparse(*_columns(rows, design), len(rows), *rest)
        else:
            found = kernel.block_sum_dense(design.matrix, *rest)
        return np.asarray(found / root if grid is None else found)

    def _single_sum(self, rows: Rows, z: Array, j: int, grid: Grid) -> NDArray[np.int64]:
        design = self._design(rows)
        rest: tuple[Any, ...] = (z, j, self._clips[j], self._code, self._parameter, grid.unit, rows.weights)
        if design.sparse:
            return np.array([kernel.coordinate_sum_sparse(*_columns(rows, design), *rest)], np.int64)
        return np.array([kernel.coordinate_sum_dense(design.matrix, *rest)], np.int64)

    def _plain_sum(self, rows: Rows, f: Array, U: Index, grid: Grid | None) -> Sums:
        """As the kernel, in numpy: losses without compiled code."""
        X, root = rows.design.matrix[:, U], np.sqrt(len(U))
        columns = np.asarray(X.toarray() if rows.design.sparse else X, np.float64) / self._clips[U]
        with np.errstate(all="ignore"):
            v = zero_where_it_fails(self._loss.derivative, f, rows.y)[:, None] * columns
            if grid is not None:  # norms by our own code: the order in which numpy adds depends on the table
                v = np.ascontiguousarray(v / root)[None]
                counts = (np.ones(len(f), bool) if rows.weights is None else rows.weights)[None]
                return np.asarray(lattice_total(v, counts, self.bound, grid.unit)[0])
            norms = np.sqrt((v * v).sum(axis=1, keepdims=True))
            v *= np.minimum(1.0, root / np.maximum(norms, 1e-300))
        v = np.where(np.isfinite(v).all(axis=1, keepdims=True), v, 0.0)
        return np.asarray((v.sum(axis=0) if rows.weights is None else rows.weights @ v) / root)

    def apply(self, rows: Rows, state: CoordinateState, noisy: Array, k: int) -> CoordinateState:
        """One proximal step, and the average at the end of a round."""
        U = self._block(k)
        if self._fused:
            return self._applied(rows, state, float(noisy[0]), int(U[0]), k)
        w = state.w.copy()
        old = w[U]
        gradient = noisy * np.sqrt(len(U)) * self._clips[U] / self._divisor
        part = self._penalty.on(U)
        w[U] = np.clip(part.prox(w[U] - self._steps[U] * gradient, self._steps[U]), -kernel.LIMIT, kernel.LIMIT)
        z = state.z + self._design(rows).columns_dot(U, w[U] - old)
        new = CoordinateState(w, z, state.total + w)
        return self._averaged(rows, new) if self._inner and (k + 1) % self._inner == 0 else new

    def _applied(self, rows: Rows, state: CoordinateState, noisy: float, j: int, k: int) -> CoordinateState:
        """``apply`` by the operations of the compiled sweep, in their order."""
        new, design, K = state.copy(), self._design(rows), self._inner or len(self.sizes)
        if k % K == 0:
            new.total += K * new.w
        rest = (new.z, new.w, j, noisy * self._clips[j], *self._rules()[1:])
        if design.sparse:
            delta = kernel.apply_sparse(*_columns(rows, design), *rest)
        else:
            delta = kernel.apply_dense(design.matrix, *rest)
        new.total[j] += (K - k % K) * delta
        return self._averaged(rows, new) if self._inner and (k + 1) % self._inner == 0 else new

    def _averaged(self, rows: Rows, state: CoordinateState) -> CoordinateState:
        assert self._inner is not None
        return self.start(rows, state.total / self._inner)

    # -- fused ------------------------------------------------------------------------------------------------

    def run(self, rows: Rows, state: CoordinateState, noise: Sums, grid: Grid | None = None) -> CoordinateState:
        """All steps; compiled where every step has one coordinate and loss and penalty have compiled code."""
        if not self._fused:
            return super().run(rows, state, noise, grid)  # type: ignore[no-any-return]
        steps, order = len(self.sizes), self._blocks.members
        scaled = noise * self._clips[order] if grid is None else noise
        state = state.copy()
        inner = self._inner or steps
        for first in range(0, steps, inner):
            part = slice(first, min(first + inner, steps))
            self._compiled(rows, state, order[part], scaled[part], grid)
            if self._inner:
                state = self._averaged(rows, state)
        return state

    def _rules(self) -> tuple[Array, ...]:
        """Clips, steps and the numbers of the penalty, as the kernels want them."""
        p, steps = self._penalty, self._steps
        assert isinstance(p, ElasticNet)
        return self._clips, steps / self._divisor, steps * p.l1, steps * p.l2, p.low, p.high

    def _compiled(self, rows: Rows, state: CoordinateState, order: Index, noise: Sums, grid: Grid | None) -> None:
        design = self._design(rows)
        lattice = (None if grid is None else grid.unit, rows.weights)
        loss = (self._code, self._parameter)
        rest: tuple[Any, ...] = (state.z, state.w, order, noise, *self._rules(), *loss, state.total, *lattice)
        if design.sparse:
            kernel.sweep_sparse(*_columns(rows, design), len(rows), *rest)
        else:
            kernel.sweep_dense(design.matrix, *rest)

    def fingerprint(self, rows: Rows, state: CoordinateState, key: bytes) -> bytes:
        """sha256 of records (in any order), settings and start."""
        h = hashlib.sha256(repr((self._inner, self._divisor)).encode())
        h.update(pickle.dumps((self._loss, self._penalty)))
        for part in (self._clips, self._steps, self._blocks.members, self.sizes, state.w, state.total):
            h.update(np.ascontiguousarray(part).data)
        if rows.weights is None:
            h.update(multiset_digest(rows.design.matrix, rows.y, key))
        else:
            h.update(b"weighted" + multiset_digest(Design(rows.design.with_column(rows.y)).matrix, rows.weights, key))
        return h.digest()

    @classmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Single coordinates and blocks, dense or sparse; the neighbour is often the mirror image."""
        loss = [Squared(), Huber(0.7), Logistic(), SmoothedHinge(0.5)][rng.integers(4)]
        X = rng.normal(size=(records, 3)) * rng.choice([0.2, 8.0], size=(records, 1))
        y = rng.choice([-1.0, 1.0], size=records) if loss.labels else rng.normal(size=records) * 20
        X2, y2 = X.copy(), y.copy()
        if rng.random() < 0.5:
            y2[0] = -y[0]
        else:
            X2[0], y2[0] = rng.normal(size=3) * 8, y[0] * (-1 if loss.labels else rng.normal())
        members, sizes = (
            (rng.permutation(3), [1, 1, 1]) if rng.random() < 0.5 else (np.array([0, 2, 0, 1, 2, 1]), [2, 3, 1])
        )
        blocks = Blocks(members.astype(np.int64), np.array(sizes, np.int64))
        settings: dict[str, Any] = {"clips": np.array([0.3, 1.0, 0.05]), "steps": np.full(3, 0.5), "divisor": records}
        form = sparse.csc_array if rng.random() < 0.5 else np.asarray
        sweep = cls(loss, ElasticNet.of(3, l1=0.1), blocks, **settings)
        w = rng.normal(size=3) * rng.choice([0.0, 1.0])
        return Example(sweep, Rows(form(X), y), Rows(form(X2), y2), w)


def _columns(rows: Rows, design: Design) -> tuple[Array, NDArray[np.int32], NDArray[np.int64]]:
    """(data, row indices, column pointers) of a sparse design, made once."""
    return rows.kept(("columns", id(design)), design.columns)
