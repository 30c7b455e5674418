"""A spectrum of p eigenvalues as a few modes, with a bound on what is lost.

The p eigenvalues enter NoiseCurve only through a(m) = Σ_i w_i q_i^m, q_i = 1 − ημ_i, for m ≤ 2T − 2: A[j, k] =
a(2(T−1) − j − k). Two steps:

1. *Gauss quadrature.* With q = ±e^{−s}, the points with s in one interval [l, h] are replaced by n nodes with positive
   weights that integrate every polynomial in s of degree 2n − 1 in the same way. With N = 2n, c = (h − l)/2 and W the
   interval's weight, |Δa(m)| ≤ 2W·(cm)^N e^{−lm}/(2^{N−1}N!) (twice the error of Chebyshev interpolation).
2. *Truncation.* The Gram matrix of the modes √w q^{T−1−j} is known in closed form (geometric sums); eigenvectors of
   small eigenvalue are dropped, which loses their sum in trace norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.errors import InvalidInput

__all__ = ["Decays", "Modes", "compress_modes", "compress_spectrum"]

Array = NDArray[np.float64]
_NODES = 8
_GROWTH = 1.5
_FLAT = 60.0  # q^m with s = −log|q| above this is zero for m ≥ 1 to any digit that matters


@dataclass(frozen=True)
class Decays:
    """a(m) ≈ Σ_k weight_k·rate_k^m with positive weights.

    Attributes:
        rate: q_k, between −1 and 1.
        weight: at least 0.
        error: bound on ‖A − Ã‖_F over the T × T Hankel matrix a(2(T−1) − j − k), rounding aside.
    """

    rate: Array
    weight: Array
    error: float


@dataclass(frozen=True)
class Modes:
    """A ≈ V·Vᵀ.

    Attributes:
        V: (T, r).
        error: bound on ‖A − VVᵀ‖_F; hence |Tr(AX⁻¹) − Tr(VVᵀX⁻¹)| ≤ error·‖X⁻¹‖_F.
    """

    V: Array
    error: float

    @property
    def trace(self) -> float:
        """Tr(VVᵀ), the objective of independent noise."""
        return float((self.V * self.V).sum())


def compress_spectrum(eigenvalues: ArrayLike, step_size: float, steps: int, power: int = 1) -> Decays:
    """Few decay rates for Σ_i μ_i^power (1 − ημ_i)^m, m ≤ 2T − 2.

    Args:
        eigenvalues: μ_i ≥ 0, with multiplicity; zeros do not count.
        step_size: η, with ημ_i ≤ 2 (beyond, gradient descent diverges).
        steps: T.
        power: 1 for eq. (1) of NoiseCurve, 2 for eq. (2).

    Returns:
        At most ``8`` rates per factor 1.5 of the spectrum (and sign of 1 − ημ), fewer where eigenvalues are few.

    Raises:
        InvalidInput: if ημ > 2 or every eigenvalue is zero.
    """
    mu = _validate.nonnegative_array("eigenvalues", eigenvalues).ravel()
    eta, T = _validate.positive(step_size=step_size), _validate.positive_int(steps=steps)
    mu = np.sort(mu[mu > 0])
    if mu.size == 0:
        raise InvalidInput("every eigenvalue is zero: there is no curvature to use")
    if eta * mu[-1] > 2:
        raise InvalidInput(f"step_size × the largest eigenvalue is {eta * mu[-1]:.3g}: above 2 descent diverges")
    weight = mu**power
    # s = −log|1 − ημ|; log1p keeps the digits of small μ, the floor stands for q = 0
    with np.errstate(divide="ignore"):
        s = np.where(eta * mu < 1, -np.log1p(-np.minimum(eta * mu, 1)), -np.log(np.abs(eta * mu - 1)))
    s = np.minimum(s, _FLAT)
    rates, weights, bound = [], [], np.zeros(2 * T - 1)
    for sign in (1.0, -1.0):
        chosen = (mu * eta <= 1) if sign > 0 else (mu * eta > 1)
        for inside in _intervals(s[chosen], T):
            part, part_weight = s[chosen][inside], weight[chosen][inside]
            node, node_weight = _gauss(part, part_weight)
            if len(part) > _NODES:
                bound += _quadrature_error(float(part.min()), float(part.max()), float(part_weight.sum()), T)
            rates.append(np.where(node >= _FLAT, 0.0, sign * np.exp(-node)))
            weights.append(node_weight)
    multiplicity = T - np.abs(np.arange(2 * T - 1) - (T - 1))
    error = math.sqrt(float((multiplicity * bound * bound).sum()))
    return Decays(np.concatenate(rates), np.concatenate(weights), error)


def _intervals(s: Array, T: int) -> list[NDArray[np.intp]]:
    """Index sets of the points below 1/(4T), and of each factor 1.5 above it."""
    if s.size == 0:
        return []
    cell = np.ceil(np.log(np.maximum(s * 4 * T, 1.0)) / math.log(_GROWTH)).astype(np.intp)
    return [np.flatnonzero(cell == c) for c in np.unique(cell)]


def _gauss(s: Array, weight: Array) -> tuple[Array, Array]:
    """Nodes and weights of Gauss quadrature for a discrete measure: Lanczos with full reorthogonalisation."""
    low, high = float(s.min()), float(s.max())
    if len(s) <= _NODES:
        return s, weight
    total = float(weight.sum())
    if high - low <= 1e-12 * high:
        return np.array([float(weight @ s) / total]), np.array([total])
    middle, half = (low + high) / 2, (high - low) / 2
    x = (s - middle) / half
    basis = [np.sqrt(weight / total)]
    diagonal, off = [], []
    for k in range(_NODES):
        new = x * basis[-1]
        diagonal.append(float(basis[-1] @ new))
        for _ in range(2):
            for old in basis:
                new = new - (old @ new) * old
        norm = float(np.linalg.norm(new))
        if k + 1 == _NODES or norm < 1e-10:  # fewer distinct points than nodes: already exact
            break
        off.append(norm)
        basis.append(new / norm)
    J = np.diag(diagonal) + np.diag(off, 1) + np.diag(off, -1)
    value, vector = np.linalg.eigh(J)
    return np.maximum(middle + half * value, 0.0), total * vector[0] ** 2


def _quadrature_error(low: float, high: float, weight: float, T: int) -> Array:
    """2W·(cm)^N e^{−lm}/(2^{N−1}N!) for m = 0 … 2T − 2."""
    N = 2 * _NODES
    m = np.arange(2 * T - 1)
    with np.errstate(divide="ignore"):
        log = N * np.log((high - low) / 2 * m) - low * m - (N - 1) * math.log(2) - math.lgamma(N + 1)
    return np.asarray(2 * weight * np.exp(log))


def compress_modes(decays: Decays, steps: int, tolerance: float = 1e-13) -> Modes:
    """The fewest modes with Σ v·vᵀ within ``tolerance``·Tr(A) of the Hankel matrix in trace norm.

    Args:
        decays: from ``compress_spectrum``.
        steps: T.
        tolerance: relative, of the trace.

    Returns:
        The modes; their error bound contains that of the decays.
    """
    T = _validate.positive_int(steps=steps)
    q, w = decays.rate, decays.weight
    root = np.sqrt(w)
    gram = root[:, None] * _geometric(np.multiply.outer(q, q), T) * root
    value, vector = np.linalg.eigh(gram)
    lost = np.cumsum(np.maximum(value, 0.0))
    keep = lost > tolerance * lost[-1]
    dropped = float(lost[~keep][-1]) if (~keep).any() else 0.0
    exponent = np.arange(T - 1, -1, -1)
    V = np.zeros((T, int(keep.sum())))
    for start in range(0, T, 4096):  # q^m for a slice of steps at a time: the full table may be large
        part = slice(start, start + 4096)
        V[part] = (_powers(q, exponent[part]) * root) @ vector[:, keep]
    return Modes(np.ascontiguousarray(V[:, ::-1]), decays.error + dropped)


def _powers(q: Array, exponent: NDArray[np.intp]) -> Array:
    """q^m by logarithms: (len(exponent), len(q))."""
    with np.errstate(divide="ignore", invalid="ignore"):
        log = np.where(exponent[:, None] == 0, 0.0, exponent[:, None] * np.log(np.abs(q)))
    odd = np.where((exponent[:, None] % 2 == 1) & (q < 0), -1.0, 1.0)
    return np.asarray(odd * np.exp(log))


def _geometric(x: Array, T: int) -> Array:
    """Σ_{m<T} x^m, accurate for x near 1."""
    with np.errstate(divide="ignore", invalid="ignore"):
        top = np.where(x > 0, -np.expm1(T * np.log(np.where(x > 0, x, 1.0))), 1.0 - np.sign(x) ** T * np.abs(x) ** T)
        return np.where(np.abs(1 - x) < 1e-300, float(T), top / np.where(x == 1, 1.0, 1 - x))
