"""Coordinate and block gradients, released one block after another: DP-CD (004) and DP-SkGD (002) in one sweep."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput
from tacit.kernels import coordinate as kernel
from tacit.problem import Design, Huber, Logistic, Loss, Penalty, SmoothedHinge, Squared
from tacit.run.sweep import Sweep, register_sweep

__all__ = ["Blocks", "CoordinateState", "CoordinateSweep"]

Array = NDArray[np.float64]
Index = NDArray[np.int64]


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
    """Coefficients, predictions, and the sum of the inner iterates since the last average.

    Attributes:
        w: coefficients.
        z: Xw − offset, kept up to date.
        total: Σ of iterates.
    """

    w: Array
    z: Array
    total: Array

    def rows(self, index: list[int]) -> CoordinateState:
        """The state of some records only."""
        return CoordinateState(self.w, self.z[index], self.total)

    def copy(self) -> CoordinateState:
        """An independent copy."""
        return CoordinateState(self.w.copy(), self.z.copy(), self.total.copy())


@register_sweep("coordinates")
class CoordinateSweep(Sweep):
    """Noisy proximal steps on one block of coordinates after another.

    Step k releases, for its block U, the whitened sum

        Σ_i v_i · min(1, √|U|/‖v_i‖) / √|U|,     v_i = (φ′(z_i) x_ij / clip_j)_{j∈U},

    a sum of contributions of norm at most 1, whatever |U| is; so a random block size does not change the ratio. For |U|
    = 1 this is 004's rule: each coordinate's gradient is clipped to its own threshold. The step un-whitens it, divides
    by n and takes a prox step: w_j ← prox(w_j − step_j·g_j/n). After every ``inner`` steps the iterate is replaced by
    the mean of the last ``inner`` ones, if averaging is on.

    Args:
        design: X.
        offset: (records,).
        loss: φ.
        penalty: ψ.
        blocks: the coordinates of each step.
        clips: clip_j > 0, public.
        steps: step_j > 0, for the mean loss.
        inner: K; None for no averaging.
        divisor: what sums are divided by, public: the number of records, unless that is secret.
    """

    bound = 1.0

    def __init__(
        self,
        design: Design,
        offset: Array,
        loss: Loss,
        penalty: Penalty,
        blocks: Blocks,
        *,
        clips: Array,
        steps: Array,
        inner: int | None = None,
        divisor: int | None = None,
    ) -> None:
        self.records, self._p = design.shape
        self._divisor = self.records if divisor is None else divisor
        self._design, self._offset, self._loss, self._penalty = design, offset, loss, penalty
        self._blocks, self.sizes, self._starts = blocks, blocks.sizes, blocks.starts
        self._clips, self._steps = np.ascontiguousarray(clips, np.float64), np.ascontiguousarray(steps, np.float64)
        if not ((self._clips > 0).all() and (self._steps > 0).all() and np.isfinite(self._clips + self._steps).all()):
            raise InvalidInput("clips and steps of coordinates must be positive and finite")
        if inner is not None and len(blocks.sizes) % inner:
            raise InvalidInput(f"{len(blocks.sizes)} steps are no whole number of rounds of {inner}")
        self._inner = inner
        self._columns = design.columns() if design.sparse else None

    def start(self, w: Array) -> CoordinateState:
        """The state at public (or released) coefficients."""
        return CoordinateState(w.astype(np.float64), self._predict(w), np.zeros(self._p))

    def alone(self, i: int) -> CoordinateSweep:
        """The same sweep over record i only: its contributions, one by one."""
        settings: dict[str, Any] = {
            "clips": self._clips,
            "steps": self._steps,
            "inner": self._inner,
            "divisor": self._divisor,
        }
        part = Design(self._design.matrix[[i]])
        return type(self)(part, self._offset[[i]], self._loss, self._penalty, self._blocks, **settings)

    def _predict(self, w: Array) -> Array:
        return self._design.dot(w) - self._offset

    def _block(self, k: int) -> Index:
        first = int(self._starts[k])
        return self._blocks.members[first : first + int(self.sizes[k])]

    # -- the two functions a sweep is made of ---------------------------------------------------------------------

    def clipped_sum(self, state: CoordinateState, k: int) -> Array:
        """The whitened sum over block k."""
        U = self._block(k)
        loss, root = self._loss, float(np.sqrt(len(U)))
        if loss.code is None:
            return self._plain_sum(state.z, U) / root
        if self._columns is None:
            X = self._design.matrix
            found = kernel.block_sum_dense(X, state.z, U, 1 / self._clips[U], root, loss.code, loss.parameter)
        else:
            found = kernel.block_sum_sparse(
                *self._columns, self.records, state.z, U, 1 / self._clips[U], root, loss.code, loss.parameter
            )
        return np.asarray(found / root)

    def _plain_sum(self, z: Array, U: Index) -> Array:
        """As the kernel, in numpy: losses of the user's own."""
        X = self._design.matrix[:, U]
        columns = np.asarray(X.toarray() if self._design.sparse else X, np.float64) / self._clips[U]
        with np.errstate(all="ignore"):
            v = self._loss.derivative(z)[:, None] * columns
            norms = np.sqrt((v * v).sum(axis=1, keepdims=True))
            v *= np.minimum(1.0, np.sqrt(len(U)) / np.maximum(norms, 1e-300))
        return np.asarray(np.where(np.isfinite(v).all(axis=1, keepdims=True), v, 0.0).sum(axis=0))

    def apply(self, state: CoordinateState, noisy: Array, k: int) -> CoordinateState:
        """One proximal step, and the average at the end of a round."""
        U = self._block(k)
        w = state.w.copy()
        old = w[U]
        gradient = noisy * np.sqrt(len(U)) * self._clips[U] / self._divisor
        part = Penalty(self._penalty.l1[U], self._penalty.l2[U], self._penalty.low[U], self._penalty.high[U])
        w[U] = np.clip(part.prox(w[U] - self._steps[U] * gradient, self._steps[U]), -kernel.LIMIT, kernel.LIMIT)
        z = state.z + self._design.columns_dot(U, w[U] - old)
        new = CoordinateState(w, z, state.total + w)
        return self._averaged(new) if self._inner and (k + 1) % self._inner == 0 else new

    def _averaged(self, state: CoordinateState) -> CoordinateState:
        assert self._inner is not None
        return self.start(state.total / self._inner)

    # -- fused -------------------------------------------------------------------------------------------------------

    def run(self, state: CoordinateState, noise: Array) -> CoordinateState:
        """All steps; compiled where every step has one coordinate and the loss is one of ours."""
        steps = len(self.sizes)
        if self._loss.code is None or not self._blocks.single:
            for k in range(steps):
                first = int(self._starts[k])
                state = self.apply(state, self.clipped_sum(state, k) + noise[first : first + int(self.sizes[k])], k)
            return state
        order = self._blocks.members
        scaled = noise * self._clips[order]
        state = state.copy()
        inner = self._inner or steps
        for first in range(0, steps, inner):
            part = slice(first, min(first + inner, steps))
            self._compiled(state, order[part], scaled[part])
            if self._inner:
                state = self._averaged(state)
        return state

    def _compiled(self, state: CoordinateState, order: Index, noise: Array) -> None:
        p, loss = self._penalty, self._loss
        assert loss.code is not None
        rules = (self._clips, self._steps / self._divisor, self._steps * p.l1, self._steps * p.l2, p.low, p.high)
        rest: tuple[Any, ...] = (state.z, state.w, order, noise, *rules, loss.code, loss.parameter, state.total)
        if self._columns is None:
            kernel.sweep_dense(self._design.matrix, *rest)
        else:
            kernel.sweep_sparse(*self._columns, self.records, *rest)

    def fingerprint(self, state: CoordinateState) -> bytes:
        """sha256 of records, settings and start."""
        h = hashlib.sha256(repr((type(self._loss).__name__, self._loss.parameter, self._inner, self._divisor)).encode())
        p = self._penalty
        for part in (
            self._offset,
            self._clips,
            self._steps,
            p.l1,
            p.l2,
            p.low,
            p.high,
            self._blocks.members,
            self.sizes,
            state.w,
            state.total,
        ):
            h.update(np.ascontiguousarray(part).data)
        h.update(self._design.digest())
        return h.digest()

    @classmethod
    def example(
        cls, rng: np.random.Generator, records: int
    ) -> tuple[CoordinateSweep, CoordinateSweep, CoordinateState, CoordinateState]:
        """Single coordinates and blocks, dense or sparse; the neighbour is often the mirror image."""
        from scipy import sparse

        loss = [Squared(), Huber(0.7), Logistic(), SmoothedHinge(0.5)][rng.integers(4)]
        X = rng.normal(size=(records, 3)) * rng.choice([0.2, 8.0], size=(records, 1))
        y = rng.normal(size=records) * 20
        X2, y2 = X.copy(), y.copy()
        mirrored = rng.random() < 0.5
        X2[0] = X[0] * (-1 if loss.margin else 1) if mirrored else rng.normal(size=3) * 8
        y2[0] = -y[0] if mirrored else 20 * rng.normal()
        members, sizes = (
            (rng.permutation(3), [1, 1, 1]) if rng.random() < 0.5 else (np.array([0, 2, 0, 1, 2, 1]), [2, 3, 1])
        )
        blocks = Blocks(members.astype(np.int64), np.array(sizes, np.int64))
        settings: dict[str, Any] = {"clips": np.array([0.3, 1.0, 0.05]), "steps": np.full(3, 0.5)}
        form = sparse.csc_array if rng.random() < 0.5 else np.asarray
        pair = [
            cls(Design(form(a)), b * (not loss.margin), loss, Penalty.of(3, l1=0.1), blocks, **settings)
            for a, b in ((X, y), (X2, y2))
        ]
        w = rng.normal(size=3) * rng.choice([0.0, 1.0])
        return pair[0], pair[1], pair[0].start(w), pair[1].start(w)
