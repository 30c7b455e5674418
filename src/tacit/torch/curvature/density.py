"""Number of eigenvalues above a threshold: stochastic Lanczos quadrature with bounds.

For a random unit vector v, F(x) = Σ_i (v·u_i)²·1[μ_i > x] has mean N(x)/p. m steps of Lanczos know the moments of the
measure that F cumulates up to order 2m, and the quadrature with a node placed on x (Gauss–Radau) gives the tightest
bounds that these moments allow (Chebyshev–Markov–Stieltjes; Golub and Meurant 2010, chapter 6; for spectra: Chen,
Trogdon and Ubaru 2021):

    Σ_{θ_j > x} ω_j ≤ F(x) ≤ Σ_{θ_j ≥ x} ω_j.

Near zero, where most eigenvalues of a network lie, the two are far apart, and a sum over Gauss nodes (the usual
estimate) jumps between them. Their middle is steadier, and for x above the bulk it errs upwards: the node on x draws
weight from below. For large p one long sweep says more than many short ones: its sampling error is about √(2N) in N.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tacit.errors import InvalidInput
from tacit.torch.curvature.lanczos import Matvec, Sweep, random_unit, sweep

__all__ = ["Count", "count_above", "probe", "quadrature"]

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Count:
    """An estimated number of eigenvalues.

    Attributes:
        threshold: the eigenvalues counted lie above it.
        estimate: the middle of the probes' bounds.
        low: mean of the probes' lower bounds.
        high: mean of the probes' upper bounds.
        standard_error: standard error of the mean over probes; 0 if exact.
        known: number of them that were computed one by one.
        probes: number of random starts that were averaged.
    """

    threshold: float
    estimate: float
    low: float
    high: float
    standard_error: float
    known: float = 0.0
    probes: int = 1

    def __float__(self) -> float:
        return self.estimate

    def __str__(self) -> str:
        if self.low == self.high:
            return f"{self.estimate:.0f}"
        return f"about {self.estimate:.0f} (bounds {self.low:.0f}–{self.high:.0f})"

    def raised(self, count: float, z: float) -> float:
        """The largest true count of which ``count`` is at most z standard errors short.

        As the variance 2N/probes grows with the true N, it is solved for: N − z·√(2N/probes) = count. With the error
        at the observed count instead, a few eigenvalues that a start happens to miss would be declared absent.

        Args:
            count: ``estimate`` or ``high``.
            z: standard errors.

        Returns:
            At least ``count``.
        """
        c = z / math.sqrt(2 * self.probes)
        return self.known + (c + math.sqrt(c * c + max(count - self.known, 0.0))) ** 2


def probe(
    matvec: Matvec, size: int, probes: int, steps: int, generator: torch.Generator, *, deflate: Tensor, deflated: Array
) -> list[Sweep]:
    """Run sweeps from fresh random vectors that are orthogonal to the known eigenvectors.

    Args:
        matvec: v ↦ Hv.
        size: p.
        probes: number of sweeps.
        steps: number of products in each.
        generator: draws the starting vectors.
        deflate: known eigenvectors, rows.
        deflated: their eigenvalues.

    Returns:
        The sweeps.
    """
    starts = (random_unit(size, generator, deflate) for _ in range(probes))
    return [sweep(matvec, v, steps, deflate=deflate, deflated=deflated)[0] for v in starts]


def count_above(sweeps: Sequence[Sweep], threshold: float) -> Count:
    """Count the eigenvalues above the threshold; sweeps of less than half the longest are too short and left out.

    Formal guarantee: each probe's bracket contains its own F (exact arithmetic, exact deflated eigenvectors), so the
    expected ``low`` and ``high`` bracket the true count. A start uniform on the sphere of R^d has variance
    2N(d − N)/(d + 2); the standard error is the largest that N between the bounds allows, or what the probes show if
    that is more.

    Args:
        sweeps: of one matrix.
        threshold: x.

    Returns:
        The count.

    Raises:
        InvalidInput: if there is no sweep.
    """
    if not sweeps:
        raise InvalidInput("no probe of the density was made: use at least one")
    used = _long(sweeps)
    rows = np.array([_bracket(s, threshold) for s in used])
    low, estimate, high = rows.mean(axis=0)
    d = used[-1].dimension
    known = min(float((s.deflated > threshold).sum()) for s in used)
    worst = min(max(d / 2, low - known), high - known)  # N(d − N) is largest at d/2
    error = math.sqrt(max(2 * worst * (d - worst) / (d + 2), 0.0) / len(rows))
    if len(rows) > 2:
        error = max(error, float(rows[:, 1].std(ddof=1)) / math.sqrt(len(rows)))
    return Count(threshold, float(estimate), float(low), float(high), error, known, len(rows))


def _long(sweeps: Sequence[Sweep]) -> list[Sweep]:
    longest = max(len(s.diagonal) for s in sweeps)
    return [s for s in sweeps if 2 * len(s.diagonal) >= longest]


def quadrature(sweeps: Sequence[Sweep], top: Array, size: int) -> Array:
    """Nodes that integrate like the eigenvalues: Σ_i f(μ_i) ≈ p·Σ_j ω_j f(θ_j) (Ubaru, Chen and Saad 2017).

    The Gauss rule is exact for polynomials f of degree 2m − 1, so smooth sums such as Σ μ_i(1 − ημ_i)^t come out far
    better than single eigenvalues. The computed eigenvalues stand for themselves; the nodes below them share the other
    ranks in proportion to their weights.

    Formal guarantee: unbiased in expectation over starts for such f, up to the rounding of weights to whole ranks. It
    bounds nothing.

    Args:
        sweeps: of one matrix.
        top: the computed eigenvalues, descending.
        size: p.

    Returns:
        (p,), descending; negative nodes as 0.
    """
    nodes, weights = [], []
    for run in _long(sweeps):
        theta, _, s = run.ritz()
        rest = theta < (top[-1] * (1 - 1e-3) if len(top) else np.inf)
        nodes.append(theta[rest])
        weights.append(s[0, rest] ** 2 / max(float((s[0, rest] ** 2).sum()), 1e-300))
    theta, weight = np.concatenate(nodes), np.concatenate(weights)
    if len(theta) == 0:
        return np.concatenate([top, np.zeros(size - len(top))])
    order = np.argsort(theta)[::-1]
    reach = np.cumsum(weight[order]) / weight.sum() * (size - len(top))
    rank = np.searchsorted(reach, np.arange(size - len(top)) + 0.5)
    return np.concatenate([top, np.maximum(theta[order][np.minimum(rank, len(theta) - 1)], 0.0)])


def _bracket(run: Sweep, x: float) -> tuple[float, float, float]:
    """Lower bound, middle and upper bound of the count, from one probe."""
    known, d = float((run.deflated > x).sum()), run.dimension
    if run.off[-1] == 0.0:  # an invariant space: the Gauss rule is exact for this start
        theta, _, s = run.ritz()
        above, at = float((s[0] ** 2)[theta > x].sum()), 0.0
    else:
        above, at = _radau(run, x)
    return known + d * above, known + d * (above + at / 2), known + d * (above + at)


def _radau(run: Sweep, x: float) -> tuple[float, float]:
    """Weight above x and on x of the (m+1)-point rule with a node on x (Golub 1973)."""
    m = len(run.diagonal)
    T = np.diag(run.diagonal) + np.diag(run.off[:-1], 1) + np.diag(run.off[:-1], -1)
    shifted = T - x * np.eye(m)
    last = np.zeros(m)
    last[-1] = run.off[-1] ** 2
    corner = x + float(np.linalg.lstsq(shifted, last, rcond=None)[0][-1])
    J = np.zeros((m + 1, m + 1))
    J[:m, :m] = T
    J[m, m - 1] = J[m - 1, m] = run.off[-1]
    J[m, m] = corner
    value, vector = np.linalg.eigh(J)
    node = int(np.argmin(np.abs(value - x)))
    weight = vector[0] ** 2
    return float(weight[node + 1 :].sum()), float(weight[node])
