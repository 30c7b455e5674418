"""The best banded strategy for a workload, with a certificate of how near to the best it is.

Minimise F(C) = Tr(A·X⁻¹), X = CᵀC, over lower-triangular C with b bands and unit columns. The problem is convex in X
(diag X = 1, X banded), and C ↦ X is one to one, so a stationary C is a global minimiser.

*Certificate* (no convexity needed): put Y = X⁻¹AX⁻¹ at any feasible X. For every feasible X′, Cauchy–Schwarz gives
Tr(AX′⁻¹)·Tr(YX′) ≥ Tr(AX⁻¹)² = F², and |X′_ij| ≤ 1 gives Tr(YX′) ≤ Σ_band |Y_ij|. So no feasible strategy is below
F²/Σ_band |Y_ij|; at the optimum Y vanishes on the band off its diagonal and the bound is F itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.banded import band_sum, toeplitz_solve
from tacit.noise.strategies import (
    Strategy,
    inside,
    resized,
    square_root,
    square_root_coefficients,
    unit_columns,
)
from tacit.noise.workloads import Workload, prefix_sum

__all__ = ["Optimum", "certified_bound", "optimise", "optimise_toeplitz", "positive_diagonal", "stationary_columns"]

Array = NDArray[np.float64]
_STAGES = (100, 200, 300)  # iterations before the scales are refreshed; later stages like the last
_MEMORY = (20, 20, 60)  # pairs of L-BFGS; rank-deficient workloads need more
_LOOSE, _LOOK, _FEW = 2e-3, 10, 10  # from this goal on, the certificate is looked at now and then, and few pairs do


@dataclass(frozen=True, eq=False)
class Optimum:
    """A strategy with what is known about it.

    Attributes:
        strategy: C, of unit columns and positive diagonal.
        error: F(C) of the workload, per unit of noise variance: for prefix sums and SGD the mean over the iterates,
            ‖A·C⁻¹‖_F²/T, for NoiseCurve Tr(A·X⁻¹).
        gap: certified: (J − a lower bound of J)/J for the objective J that was minimised. That is F, or F with its
            regularisation if the workload is rank-deficient (see ``optimise``).
        lower_bound: no lower-triangular C with b bands and unit columns has a smaller F; if the workload is
            rank-deficient, none whose prefix sums are not worse than those of ``strategy``.
        evaluations: of J and its gradient, those of a start that ``optimise`` found itself included.
    """

    strategy: Strategy
    error: float
    gap: float
    lower_bound: float
    evaluations: int

    @property
    def column_norms(self) -> Array:
        """‖C[:, j]‖: all 1 up to rounding."""
        return self.strategy.column_norms


def certified_bound(workload: Workload, bands: Array) -> tuple[float, float]:
    """F and the lower bound F²/Σ_band |Y_ij| (Y = X⁻¹AX⁻¹) on what any C with as many bands can reach.

    Formal guarantee: min F ≥ the bound over lower-triangular C with b bands and columns of norm at most 1, up to
    rounding (about 1e-12 relative) and to the workload's own compression error.

    Assumptions: C is invertible; its columns need unit norm only where F is to be compared with the bound.

    Args:
        workload: A.
        bands: C by columns.

    Returns:
        F(C) and the bound.
    """
    value, dual = workload.dual(bands)
    total = band_sum(dual)
    return value, value * value / total if np.isfinite(total) and total > 0 else 0.0


def optimise(
    workload: Workload,
    bands: int,
    *,
    tolerance: float | None = None,
    start: Strategy | None = None,
    regularisation: float = 0.1,
    max_evaluations: int = 5000,
) -> Optimum:
    """The lower-triangular C with ``bands`` bands and unit columns that minimises Tr(A·(CᵀC)⁻¹).

    L-BFGS over unnormalised columns scaled by the square root of their multiplier Y_jj, restarted with fresh scales
    until the certificate closes. It starts from ``stationary_columns``, or from another optimum.

    A *rank-deficient* workload has a singular minimiser (errata, E21). What is minimised then is J = F/F₀ + λ·P/P₀, P
    the prefix-sum error, from the prefix-sum optimum (BandMF), whose values are F₀ and P₀. J only falls from 1 + λ, so
    P ≤ P₀(1 + 1/λ) and the rows of C⁻¹ stay bounded.

    Formal guarantee: the result's columns have unit norm and its ``gap`` is certified, whether or not it reached
    ``tolerance``; look at it. With regularisation it is the gap of J: any C with b bands has J(C) ≥ (1 − gap)·J, and
    those with P(C) ≤ P have F(C) ≥ ``lower_bound``.

    Args:
        workload: what to minimise.
        bands: b, at most T.
        tolerance: stop when the certified gap is below it; 1e-5 if missing, 1e-3 with regularisation.
        start: another C, with at most as many bands. For a rank-deficient workload: the BandMF optimum, if at hand.
        regularisation: λ > 0; used only if the workload is rank-deficient.
        max_evaluations: stop here at the latest (a missing start with regularisation may take as many again).

    Returns:
        The strategy with its certificate.

    Raises:
        InvalidInput: if b > T, or the start does not fit or has noise that overflows.
    """
    T, b = workload.steps, _validate.positive_int(bands=bands)
    goal = (1e-5 if workload.full_rank else 1e-3) if tolerance is None else _validate.positive(tolerance=tolerance)
    weight = _validate.positive(regularisation=regularisation)
    most = _validate.positive_int(max_evaluations=max_evaluations)
    if b > T:
        raise InvalidInput(f"{b} bands for {T} steps: use at most {T}")
    if not workload.full_rank:
        return _regularised(workload, b, goal, start, weight, most)
    C = stationary_columns(T, b) if start is None else unit_columns(resized(start.bands, T, b))
    C, value, bound, counted = _minimise(workload, C, goal, most)
    return Optimum(Strategy(C), value, (value - bound) / value, bound, counted)


def _regularised(workload: Workload, b: int, goal: float, start: Strategy | None, weight: float, most: int) -> Optimum:
    """F/F₀ + λ·P/P₀ from the prefix-sum optimum."""
    prefix, before = prefix_sum(workload.steps), 0
    if start is None:
        plain = optimise(prefix, b, tolerance=min(goal, 1e-4), max_evaluations=most)
        start, before = plain.strategy, plain.evaluations
    first = unit_columns(resized(start.bands, workload.steps, b))
    F0, P0 = workload.value(first), prefix.value(first)
    if not np.isfinite(F0 + P0):
        raise InvalidInput("the start's noise overflows: start from another C")
    mixed = (1.0 / F0) * workload + (weight / P0) * prefix
    C, value, bound, counted = _minimise(mixed, first, goal, most)
    error, gap = workload.value(C), (value - bound) / value
    return Optimum(Strategy(C), error, gap, max(0.0, error - (value - bound) * F0), before + counted)


def _minimise(workload: Workload, C: Array, goal: float, most: int) -> tuple[Array, float, float, int]:
    """C, its value, the best lower bound and how many evaluations it took."""
    if not np.isfinite(workload.value(C)):
        raise InvalidInput("the start's noise overflows: start from another C")
    value, bound = certified_bound(workload, C)
    counted = stalled = stage = 0
    while value - bound > goal * value and counted < most and stalled < 3:
        memory = _FEW if goal >= _LOOSE and workload.full_rank else _MEMORY[stage]
        C, used = _stage(workload, C, min(_STAGES[stage], most - counted), memory, goal)
        counted, stage = counted + used, min(stage + 1, len(_STAGES) - 1)
        before, bound_before = value, bound
        value, bound = certified_bound(workload, C)
        bound = max(bound, bound_before)
        stalled = stalled + 1 if before - value <= 1e-15 * value and bound <= bound_before else 0
    return C, value, bound, counted


def stationary_columns(steps: int, bands: int) -> Array:
    """A start that is nearly optimal for prefix sums away from the first steps.

    Where C varies slowly, ‖S·C⁻¹‖_F² is a sum over columns of Σ_{m<R} h(m)², h the running sums of the first column of
    the inverse of the Toeplitz matrix with that column's coefficients, R = T − j the steps that are left. So each
    column solves a problem in b numbers that depends on R only: solved on a grid of R and interpolated.

    Args:
        steps: T.
        bands: b.

    Returns:
        C by columns, unit norm.
    """
    T, b = _validate.positive_int(steps=steps), _validate.positive_int(bands=bands)
    out = square_root(T, min(b, T))
    if b == 1 or b >= T // 2:
        return out
    grid = np.unique(np.geomspace(b, T, 2 + int(4 * np.log(T / b))).astype(np.intp))
    columns, c = [], out[0]
    for left in grid:
        c = _stationary(int(left), c)
        columns.append(c)
    left = np.arange(T, b - 1, -1)
    for i in range(b):
        out[: len(left), i] = np.interp(np.log(left), np.log(grid), np.array(columns)[:, i])
    return unit_columns(out)


def _stationary(left: int, start: Array) -> Array:
    """Argmin over unit c of Σ_{m<R} h(m)², C(c)·h = 1; beyond some hundred steps h is constant."""
    b = len(start)
    M = min(left, 400 * b)
    weight = np.ones(M)
    weight[-1] += left - M

    def objective(x: Array) -> tuple[float, Array]:
        size = np.linalg.norm(x)
        c = x / size
        if c[0] < 1e-3:
            return 1e3, np.zeros(b)
        with np.errstate(all="ignore"):  # an unstable c overflows
            h = toeplitz_solve(c, np.ones(M))
            y = toeplitz_solve(c, (weight * h)[::-1].copy())[::-1]
            value = float(weight @ (h * h)) / left
        if not np.isfinite(value) or value > 1e3:
            return 1e3, np.zeros(b)
        g = np.array([-2.0 * (y[i:] @ h[: M - i]) for i in range(b)])
        return value * b, (g - (g @ c) * c) * (b / size / left)

    best = _lbfgs(objective, start, 200, 20)
    return np.asarray(best / np.linalg.norm(best))


def _stage(workload: Workload, C: Array, iterations: int, memory: int, goal: float) -> tuple[Array, int]:
    """Some iterations of L-BFGS from C, u with C = (u·scale) normalised, or fewer if the certificate closes before."""
    T, b = C.shape
    value, dual = workload.dual(C)
    weight = dual[:, :1] * T / value
    scale = inside(T, b) / np.sqrt(np.maximum(weight, 1e-6))
    counted = 0

    def objective(x: Array) -> tuple[float, Array]:
        nonlocal counted
        counted += 1
        u = x.reshape(T, b) * scale
        norm = np.sqrt((u * u).sum(axis=1, keepdims=True))
        u /= norm
        F, G = workload.value_and_gradient(u)
        if F / value > 2 or not np.isfinite(G).all():  # unstable: a wall that the line search backs off from
            return 2.0 * T, np.zeros(x.size)
        G -= (G * u).sum(axis=1, keepdims=True) * u
        G *= scale / norm * (T / value)
        return F * T / value, G.ravel()

    looked = 0

    def closed(x: Array) -> bool:
        nonlocal looked
        looked += 1
        if goal < _LOOSE or looked % _LOOK:
            return False
        at, bound = certified_bound(workload, unit_columns(x.reshape(T, b) * scale))
        return at - bound <= goal * at

    best = _lbfgs(objective, (C * np.sqrt(np.maximum(weight, 1e-6))).ravel(), iterations, memory, closed)
    new = positive_diagonal(unit_columns(best.reshape(T, b) * scale))
    return (new if workload.value(new) <= value else C), counted


def positive_diagonal(bands: Array) -> Array:
    """The same X = CᵀC from a C of positive diagonal: rows that begin on the other side of zero change their sign.

    A line search may step over the wall where a diagonal entry is zero, if there is less noise on its other side.

    Args:
        bands: C by columns; no diagonal entry is zero.

    Returns:
        A new array, of the same error and column norms.
    """
    T, b = bands.shape
    rows = np.arange(T)[:, None] + np.arange(b)[None, :]
    sign = np.append(np.where(bands[:, 0] < 0, -1.0, 1.0), np.ones(b))
    return np.asarray(bands * sign[rows])


def _lbfgs(
    objective: Callable[[Array], tuple[float, Array]],
    start: Array,
    iterations: int,
    memory: int,
    enough: Callable[[Array], bool] = lambda x: False,
) -> Array:
    memory = max(5, min(memory, 40_000_000 // start.size))

    def callback(x: Array) -> None:
        if enough(x):
            raise StopIteration

    options = {"maxiter": iterations, "maxcor": memory, "ftol": 1e-15, "gtol": 1e-12, "maxfun": 2 * iterations + 20}
    found = minimize(objective, start, jac=True, method="L-BFGS-B", options=options, callback=callback)
    return np.asarray(found.x)


def optimise_toeplitz(workload: Workload, bands: int, *, max_iterations: int = 500) -> Array:
    """The Toeplitz C with b bands that minimises F(C)·(largest column norm)².

    Its optimum is not certified: compare ``workload.value`` with the bound of ``optimise``, which allows any banded C.

    Args:
        workload: what to minimise.
        bands: b, at most T.
        max_iterations: of L-BFGS.

    Returns:
        The coefficients c_0 > 0, …, c_{b−1}, of norm 1: columns that end at the last row are shorter, none is longer.

    Raises:
        InvalidInput: if the workload is rank-deficient or b > T.
    """
    T, b = workload.steps, _validate.positive_int(bands=bands)
    if b > T or not workload.full_rank:
        raise InvalidInput("use at most T bands, and a workload of full rank (add a multiple of prefix_sum)")
    mask = inside(T, b)
    start = square_root_coefficients(b)
    start /= np.linalg.norm(start)
    first = workload.value(np.where(mask, start, 0.0))

    def objective(x: Array) -> tuple[float, Array]:
        size = np.linalg.norm(x)
        c = x / size
        F, G = workload.value_and_gradient(np.where(mask, c, 0.0))
        g = G.sum(axis=0)
        if F / first > 2 or not np.isfinite(g).all():
            return 2.0, np.zeros(b)
        return F / first, (g - (g @ c) * c) / size / first

    best = _lbfgs(objective, start, max_iterations, 20)
    return np.asarray(best / np.linalg.norm(best) * np.sign(best[0]))
