"""What correlated noise is held against: the error F(C) = Tr(A·X⁻¹) = E‖(what the noise C⁻¹Z does)‖², X = CᵀC.

Every workload brings its own normaliser: errors of all iterates (prefix sums, SGD) are means over the T iterates,
those of the last iterate (NoiseCurve) are the last iterate's.

A workload is a sum of two kinds of terms, both evaluated without a T × T matrix:

- ``Filter``: A = HᵀΩH with H = D⁻¹, D lower-triangular with few bands (prefix sums, momentum, decay). As H·C⁻¹ =
  (C·D)⁻¹, the errors y = H·C⁻¹z solve a banded system B·y = z, and F = Σ_t ω_t Var(y_t): O(T·b²).
- ``LowRank``: A = V·Vᵀ with r columns (the last iterate on a quadratic): O(T·b·r).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.banded import filtered, filtered_gradient, inverse_rows, multipliers, product
from tacit.kernels.modes import mode_gradient, mode_solve
from tacit.noise.spectrum import compress_modes, compress_spectrum

__all__ = [
    "Filter",
    "LowRank",
    "Workload",
    "gradient_norms",
    "last_iterate",
    "mean_path_loss",
    "noise_curve_paper_2",
    "noisecurve_workload",
    "prefix_sum",
    "sgd_workload",
]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Filter:
    """A = HᵀΩH, H = D⁻¹.

    Attributes:
        taps: D by rows, (T, k+1): ``taps[t, i] = D[t, t−i]``; entries before the first column do not count.
        weights: the diagonal of Ω, (T,), not negative.
    """

    taps: Array
    weights: Array

    def evaluate(self, bands: Array, scale: float, gradient: Array | None, dual: Array | None) -> float:
        """Scale·F; adds scale·∂F/∂C to ``gradient`` and scale·X⁻¹AX⁻¹ to ``dual``, both by columns and on the band."""
        rows = product(bands, self.taps)
        p = np.empty_like(rows)
        filtered(rows, p)
        if gradient is not None or dual is not None:
            own = np.zeros_like(bands)
            inverse_rows(filtered_gradient(rows, p, scale * self.weights), self.taps, own)
            if gradient is not None:
                gradient += own
            if dual is not None:
                dual += multipliers(bands, own)
        return scale * float(self.weights @ p[:, 0])

    def matrix(self) -> Array:
        """A as a full matrix (small T)."""
        T = len(self.weights)
        D = np.zeros((T, T))
        for i in range(min(self.taps.shape[1], T)):
            D[np.arange(i, T), np.arange(T - i)] = self.taps[i:, i]
        H = np.linalg.inv(D)
        return np.asarray(H.T @ (self.weights[:, None] * H))


@dataclass(frozen=True, eq=False)
class LowRank:
    """A = V·Vᵀ.

    Attributes:
        V: (T, r).
    """

    V: Array

    def evaluate(self, bands: Array, scale: float, gradient: Array | None, dual: Array | None) -> float:
        """As ``Filter.evaluate``."""
        y, s = np.empty_like(self.V), np.empty_like(self.V)
        value = mode_solve(bands, self.V, y, s)
        if gradient is not None:
            mode_gradient(y, s, -2.0 * scale, gradient)
        if dual is not None:
            mode_gradient(s, s, scale, dual)
        return scale * value

    def matrix(self) -> Array:
        """A as a full matrix (small T)."""
        return np.asarray(self.V @ self.V.T)


@dataclass(frozen=True, eq=False)
class Workload:
    """A = Σ scale·term. Workloads add, and scale by numbers: ``0.5 * a + b``.

    Attributes:
        steps: T.
        terms: (scale, term) pairs, scales not negative.
        compression_error: bound on ‖A − (what the user described)‖_F from compressing a spectrum; 0 where nothing was.
        full_rank: whether A is known to be positive definite (else a minimiser may drive C towards a singular matrix).
    """

    steps: int
    terms: tuple[tuple[float, Filter | LowRank], ...]
    compression_error: float = 0.0
    full_rank: bool = True

    def __add__(self, other: Workload) -> Workload:
        if self.steps != other.steps:
            raise InvalidInput(f"workloads of {self.steps} and {other.steps} steps do not add")
        full = self.full_rank or other.full_rank
        lost = self.compression_error + other.compression_error
        return Workload(self.steps, self.terms + other.terms, lost, full)

    def __rmul__(self, factor: float) -> Workload:
        scale = _validate.positive(factor=factor)
        terms = tuple((scale * old, term) for old, term in self.terms)
        return Workload(self.steps, terms, scale * self.compression_error, self.full_rank)

    def value(self, bands: Array) -> float:
        """The error F(C) = Tr(A·X⁻¹), per unit of noise variance.

        Args:
            bands: C by columns, (T, b).

        Returns:
            F, or infinity where it overflows.
        """
        return self._evaluate(bands, None, None)

    def value_and_gradient(self, bands: Array) -> tuple[float, Array]:
        """F and ∂F/∂C = −2·C·X⁻¹AX⁻¹ on the band, by columns; columns are not constrained here.

        Args:
            bands: C by columns, (T, b).

        Returns:
            F and the gradient.
        """
        gradient = np.zeros_like(bands)
        return self._evaluate(bands, gradient, None), gradient

    def dual(self, bands: Array) -> tuple[float, Array]:
        """F and Y = X⁻¹AX⁻¹ on the band: entry (j, i) is Y[j+i, j]."""
        dual = np.zeros_like(bands)
        return self._evaluate(bands, None, dual), dual

    def _evaluate(self, bands: Array, gradient: Array | None, dual: Array | None) -> float:
        if bands.shape[0] != self.steps:
            raise InvalidInput(f"C has {bands.shape[0]} columns for {self.steps} steps")
        bands = bands if bands.flags.writeable else bands.copy()  # kernels are compiled for arrays that can be written
        with np.errstate(all="ignore"):  # an unstable C overflows to infinity: a value like any other
            total = sum(term.evaluate(bands, scale, gradient, dual) for scale, term in self.terms)
        return float(total) if np.isfinite(total) else float("inf")

    def matrix(self) -> Array:
        """A as a full matrix (small T)."""
        return np.asarray(sum(scale * term.matrix() for scale, term in self.terms))


def _first_order(keep: Array | float, steps: int) -> Array:
    """D = I − keep·(shift) by rows."""
    taps = np.ones((steps, 2))
    taps[:, 1] = -np.asarray(keep)
    taps[0, 1] = 0.0
    return taps


def prefix_sum(steps: int) -> Workload:
    """All running sums, their mean squared error: Tr(A·X⁻¹) = ‖S·C⁻¹‖_F²/T, S the lower triangle of ones.

    Args:
        steps: T.

    Returns:
        The workload of BandMF.
    """
    T = _validate.positive_int(steps=steps)
    return Workload(T, ((1.0 / T, Filter(_first_order(1.0, T), np.ones(T))),))


def sgd_workload(
    steps: int, *, momentum: float = 0.0, weight_decay: float = 0.0, learning_rates: ArrayLike | None = None
) -> Workload:
    """All iterates of SGD: m_t = βm_{t−1} + g_t, θ_t = (1 − η_tλ)θ_{t−1} − η_t m_t; the mean of their errors.

    Tr(A·X⁻¹) = ‖H·C⁻¹‖_F²/T, H = D⁻¹ the map from sums to iterates (up to its sign), D = (I − β·shift)·diag(1/η)·
    (I − diag(1 − ηλ)·shift).

    Args:
        steps: T.
        momentum: β in [0, 1).
        weight_decay: λ ≥ 0.
        learning_rates: η_t > 0, one per step; all 1 if missing.

    Returns:
        The workload; ``sgd_workload(T)`` is ``prefix_sum(T)``.

    Raises:
        InvalidInput: if a rate is not positive, λη > 1, or momentum is outside [0, 1).
    """
    T = _validate.positive_int(steps=steps)
    beta, decay = _validate.nonnegative(momentum=momentum), _validate.nonnegative(weight_decay=weight_decay)
    eta = np.ones(T) if learning_rates is None else _validate.nonnegative_array("learning_rates", learning_rates)
    if eta.shape != (T,) or (eta == 0).any():
        raise InvalidInput(f"learning_rates must hold {T} positive numbers: leave out steps that do not move")
    if beta >= 1 or (decay * eta > 1).any():
        raise InvalidInput("momentum must be below 1 and weight_decay × learning_rate at most 1")
    inner = _first_order(1 - decay * eta, T) / eta[:, None]
    taps = np.zeros((T, 3))
    taps[:, :2] = inner
    taps[1:, 1:] -= beta * inner[:-1]
    return Workload(T, ((1.0 / T, Filter(taps if beta else inner, np.ones(T))),))


def noisecurve_workload(eigenvalues: ArrayLike, step_size: float, steps: int, *, tolerance: float = 1e-13) -> Workload:
    """The last iterate's expected loss on a quadratic, eq. (1) of NoiseCurve: A = VᵀMV, V[i, j] = (1 − ημ_i)^{T−1−j}.

    On ½wᵀHw with noise σ·(C⁻¹Z) on every gradient, the last iterate's expected excess loss over noise-free descent is
    ½η²σ²·Tr(A·X⁻¹) (Theorem 4.1). A is rank-deficient: ``optimise`` regularises it.

    Args:
        eigenvalues: μ_i ≥ 0 of a public Hessian, with multiplicity.
        step_size: η.
        steps: T.
        tolerance: of the truncation, relative to Tr(A).

    Returns:
        The workload, of rank 12–25 for typical spectra, with its error bound.
    """
    modes = compress_modes(compress_spectrum(eigenvalues, step_size, steps), steps, tolerance)
    return Workload(len(modes.V), ((1.0, LowRank(modes.V)),), modes.error, full_rank=False)


def mean_path_loss(eigenvalues: ArrayLike, step_size: float, steps: int) -> Workload:
    """The expected loss of every iterate on a quadratic, its mean: ``noisecurve_workload`` along the run.

    A[j, k] = (1/T)Σ_{t ≥ max(j,k)} Σ_i μ_i(1 − ημ_i)^{2t−j−k}. A strategy that is optimal for the last iterate may be
    worse here: the path noise to report beside its error.

    Args:
        eigenvalues: μ_i ≥ 0 of a public Hessian.
        step_size: η.
        steps: T.

    Returns:
        The workload: one filter per decay rate.
    """
    return _decaying(eigenvalues, step_size, steps, power=1, as_printed=False)


def last_iterate(workload: Workload) -> Workload:
    """The error of the last iterate alone, of a workload that is a mean over all iterates.

    Args:
        workload: from ``prefix_sum`` or ``sgd_workload``.

    Returns:
        The workload of the last row; rank-deficient.

    Raises:
        InvalidInput: if it is not a single filter.
    """
    T = workload.steps
    scale, term = workload.terms[0]
    if len(workload.terms) != 1 or not isinstance(term, Filter):
        raise InvalidInput("the last iterate's error is known for prefix_sum and sgd_workload only")
    last = np.zeros(T)
    last[-1] = term.weights[-1]
    return Workload(T, ((T * scale, Filter(term.taps, last)),), full_rank=False)


def gradient_norms(eigenvalues: ArrayLike, step_size: float, steps: int) -> Workload:
    """Mean squared gradient along the run on a quadratic: (1/T)Σ_t Σ_i μ_i² (noise of iterate t along i)².

    A[j, k] = (1/T)Σ_{t ≥ max(j,k)} Σ_i μ_i²(1 − ημ_i)^{2t−j−k}: what eq. (2) of NoiseCurve sets out to be. The printed
    formula (``noise_curve_paper_2``) decays from T, not from t.

    Args:
        eigenvalues: μ_i ≥ 0 of a public Hessian, with multiplicity.
        step_size: η.
        steps: T.

    Returns:
        The workload: one filter per decay rate.
    """
    return _decaying(eigenvalues, step_size, steps, power=2, as_printed=False)


def noise_curve_paper_2(eigenvalues: ArrayLike, step_size: float, steps: int) -> Workload:
    """Eq. (2) of NoiseCurve as printed: 𝕿 ⊙ VᵀM²V with 𝕿[j, k] = (T − max(j, k))/T.

    𝕿 = (1/T)Σ_t 1[j ≤ t]1[k ≤ t], so every decay rate is a filter s_t = q·s_{t−1} + x_t with weights q^{2(T−1−t)}/T.

    Args:
        eigenvalues: μ_i ≥ 0 of a public Hessian, with multiplicity.
        step_size: η.
        steps: T.

    Returns:
        The workload: one filter per decay rate. Weights fade towards early steps: not safely full rank.
    """
    return _decaying(eigenvalues, step_size, steps, power=2, as_printed=True)


def _decaying(eigenvalues: ArrayLike, step_size: float, steps: int, *, power: int, as_printed: bool) -> Workload:
    decays = compress_spectrum(eigenvalues, step_size, steps, power=power)
    T = _validate.positive_int(steps=steps)
    left = np.arange(T - 1, -1, -1.0)
    terms = []
    for q, w in zip(decays.rate, decays.weight, strict=True):
        weights = np.abs(q) ** (2 * left) / T if as_printed else np.full(T, 1.0 / T)
        terms.append((float(w), Filter(_first_order(q, T), weights)))
    # as printed, every entry is multiplied by 𝕿 ≤ 1; exactly, it is a mean of T Hankel matrices of at most T steps
    return Workload(T, tuple(terms), decays.error, full_rank=not as_printed)
