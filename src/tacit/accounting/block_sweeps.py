"""The last iterate of Gauss–Seidel block sweeps: a small least-squares problem in the shifts.

One sweep updates blocks 1 … p in turn; block i moves by a map that is L_ij-Lipschitz in block j and shifts by at
most d_i between neighbours, then receives N(0, s_i² I). With z_i a bound on the distance of block i between the
interpolated and the real chain, any shifts a_i are allowed that keep

    z_i⁺ = Σ_{j<i} L_ij z_j⁺ + Σ_{j≥i} L_ij z_j + d_i − a_i ≥ 0,      z = 0 at the start and after the last sweep,

and the last iterate is μ-GDP with μ² = Σ a_i²/s_i². Solving for the distances z ≥ 0 instead of the shifts makes this
a non-negative least-squares problem; every feasible z is a valid bound, so the solver's tolerance cannot break it.

In exact arithmetic the blocks move on a lattice of unit g, computed within ρ_i of the ideal map: as for a single block
(``tacit.accounting.last_iterate``), d_i grows by g(√d_i + Σ_j L_ij √d_j) + 2ρ_i in every sweep.

Summing hidden-state bounds of the blocks, or using a joint Lipschitz constant of a sweep, is *not* valid (errata E6):
the other blocks' trajectories carry the record, too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize

from tacit import _validate
from tacit.accounting.curve import Gaussian
from tacit.accounting.theorem import ChainTheorem, Gap, fixed_membership
from tacit.errors import InvalidInput
from tacit.mechanism import BlockSweeps, Cyclic, FrozenArray, FullBatch, Mechanism

__all__ = ["BlockShift", "block_sweep_mu"]

Array = NDArray[np.float64]

MAX_UNKNOWNS = 1500
"""Distances in the least-squares problem: dense, so cubic in this number."""


def _shift_operator(L: Array, sweeps: int) -> Array:
    """A with a = A·z + d: row (t, i) holds how block i's shift depends on the distances before and in sweep t."""
    p = len(L)
    lower, upper = np.tril(L, -1), np.triu(L)
    A = np.zeros((sweeps * p, sweeps * p))
    for t in range(sweeps):
        now = slice(t * p, (t + 1) * p)
        A[now, now] = lower - np.eye(p)
        if t:
            A[now, slice((t - 1) * p, t * p)] = upper
    return A


def block_sweep_mu(coupling: ArrayLike, shift: ArrayLike, noise_std: ArrayLike) -> float:
    """μ of the last iterate of Gauss–Seidel sweeps.

    Args:
        coupling: L, shape (p, p): the Lipschitz constant of block i's map in block j.
        shift: d, shape (sweeps, p): how far block i's map moves between neighbours in each sweep.
        noise_std: s, shape (p,) or (sweeps, p), positive.

    Returns:
        μ (an upper bound, optimal up to the solver's tolerance).

    Raises:
        InvalidInput: if shapes do not fit, a value is negative, or the problem is too large.
    """
    L, d = _validate.nonnegative_array("coupling", coupling), _validate.nonnegative_array("shift", shift)
    d = np.atleast_2d(d)
    sweeps, p = d.shape[:2]
    if d.ndim != 2 or L.shape != (p, p):
        raise InvalidInput(f"coupling must be ({p}, {p}) to match shift (sweeps, {p}), got {L.shape} and {d.shape}")
    s = _noise_per_update(noise_std, sweeps, p)
    if max(L.max(), d.max(), s.max()) > 1e100 or s.min() < 1e-100:
        raise InvalidInput("an argument lies outside 1e-100 … 1e100: rescale the problem")
    free = (sweeps - 1) * p  # the distances after the last sweep are zero
    if free > MAX_UNKNOWNS:
        raise InvalidInput(f"{free} distances exceed the block problem's size of {MAX_UNKNOWNS}: use composition")
    target = -d.ravel() / s
    if free == 0:
        return float(np.linalg.norm(target))
    A = _shift_operator(L, sweeps)[:, :free] / s[:, None]
    z, _ = optimize.nnls(A, target, maxiter=30 * free)
    return float(np.linalg.norm(A @ z - target))


def _noise_per_update(noise_std: ArrayLike, sweeps: int, p: int) -> Array:
    values = _validate.nonnegative_array("noise_std", noise_std)
    try:
        s = np.broadcast_to(values, (sweeps, p)).ravel()
    except ValueError:
        raise InvalidInput(f"noise_std must have shape ({p},) or ({sweeps}, {p}), got {values.shape}") from None
    if (s == 0).any():
        raise InvalidInput("noise_std must be positive: a block without noise hides nothing")
    return s


class BlockShift(ChainTheorem):
    """The last iterate of Gauss–Seidel sweeps over blocks (module docstring).

    Formal guarantee: the last iterate of all blocks together is μ-GDP, for the worst batch of the record.

    Assumptions: the coupling bounds hold for every data set; hidden per-record variables are recomputed from the
    noised blocks; nothing else is released.
    """

    id: ClassVar[str] = "block-shift"
    name: ClassVar[str] = "last iterate of block sweeps by optimal block shifts"
    reference: ClassVar[str] = "shifted interpolation, Bok, Su, Altschuler (2024), block by block"
    covers: ClassVar[Mapping[str, tuple[Any, ...]]] = {**ChainTheorem.covers, "view": (BlockSweeps,)}

    def relations(self, mechanism: Mechanism) -> list[Gap]:
        """Every block needs noise, the problem must be small, and batches of fixed membership a public n."""
        view = mechanism.view
        assert isinstance(view, BlockSweeps)
        if (view.noise_std.values <= 0).any():
            return [Gap("view.noise_std", "a block without noise hides nothing", "noise every block")]
        if (mechanism.steps - 1) * mechanism.releases > MAX_UNKNOWNS:
            reason = f"{mechanism.steps} sweeps over {mechanism.releases} blocks are too large a problem"
            return [Gap("steps", reason, "certify all iterates by composition")]
        return fixed_membership(mechanism)

    def curve(self, mechanism: Mechanism) -> Gaussian:
        """Gaussian with the worst position's μ."""
        view = mechanism.view
        assert isinstance(view, BlockSweeps)
        s = view.noise_std.values
        per_step = len(mechanism.ratio) == mechanism.steps
        ratio = mechanism.ratio.to_array()
        d = (ratio[:, None] if per_step else ratio.reshape(mechanism.steps, -1)) * s
        k = self.period(mechanism)
        worst = 0.0
        for j in range(k):
            visited = np.tile(view.rounding_shift(), (len(d), 1))
            visited[j::k] += d[j::k]
            worst = max(worst, block_sweep_mu(view.coupling.values, visited, s))
        return Gaussian(worst if math.isfinite(worst) else math.inf)

    def examples(self, plain: Mechanism) -> tuple[Mechanism, ...]:
        """Parts for the contract tests."""
        view = BlockSweeps(coupling=FrozenArray([[0.8, 0.1], [0.2, 0.7]]), noise_std=FrozenArray([1.0, 1.0]))
        return tuple(replace(plain, releases=2, sampling=way, view=view) for way in (FullBatch(), Cyclic(3)))
