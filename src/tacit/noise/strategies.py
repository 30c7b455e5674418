"""A strategy C, those that need no optimiser, and the arithmetic of bands.

Arrays hold C by columns, ``bands[j, i] = C[j+i, j]``, shape (T, b), entries beyond the last row zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.banded import filtered, product
from tacit.kernels.dyadic import toward_zero

__all__ = [
    "Strategy",
    "checked_bands",
    "from_gram",
    "identity",
    "inside",
    "resized",
    "square_root",
    "square_root_coefficients",
    "toeplitz",
    "unit_columns",
]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Strategy:
    """A lower-triangular C with b bands and a positive diagonal: public, read-only.

    Attributes:
        bands: C by columns, (T, b): ``bands[j, i] = C[j+i, j]``; entries beyond the last row do not count and become
            zero, bands beyond the T-th are dropped.
    """

    bands: Array

    def __post_init__(self) -> None:
        C = checked_bands(self.bands)
        C = C[:, : len(C)]
        own = np.where(inside(*C.shape), C, 0.0)
        own.flags.writeable = False
        object.__setattr__(self, "bands", own)

    @property
    def steps(self) -> int:
        """T."""
        return int(self.bands.shape[0])

    @property
    def n_bands(self) -> int:
        """b: how many rows a column may touch."""
        return int(self.bands.shape[1])

    @property
    def column_norms(self) -> Array:
        """‖C[:, j]‖, (T,): the largest is how far one participation of unit norm moves C·G."""
        return np.asarray(np.sqrt((self.bands * self.bands).sum(axis=1)))

    def to_dense(self) -> Array:
        """C as a full matrix (small T)."""
        T, b = self.bands.shape
        out = np.zeros((T, T))
        for i in range(b):
            out[np.arange(i, T), np.arange(T - i)] = self.bands[: T - i, i]
        return out

    def inverse_row_norms(self) -> Array:
        """Norms of the rows of C⁻¹: how large the noise of each step is, per unit of Z; O(T·b²).

        Returns:
            (T,); large values warn of a C that is nearly singular.
        """
        rows = product(self.bands.copy(), np.ones((self.steps, 1)))
        variance = np.empty_like(rows)
        filtered(rows, variance)
        return np.sqrt(variance[:, 0])

    def rounded(self, bits: int = 14) -> Strategy:
        """C on a grid, toward zero, as exact arithmetic needs it (``mechanism.CorrelatedNoise.rounded``).

        Args:
            bits: of the largest entry.

        Returns:
            A strategy none of whose columns is longer.
        """
        return Strategy(toward_zero(self.bands, _validate.positive_int(bits=bits)))

    def __repr__(self) -> str:
        return f"Strategy(steps={self.steps}, n_bands={self.n_bands})"


def checked_bands(bands: ArrayLike) -> Array:
    """A new array of bands.

    Args:
        bands: C by columns.

    Returns:
        A copy.

    Raises:
        InvalidInput: if they are not finite, of two dimensions and with a positive diagonal.
    """
    C = _validate.real_array("bands", bands)
    if C.ndim != 2 or C.size == 0 or not np.isfinite(C).all() or (C[:, 0] <= 0).any():
        raise InvalidInput("bands must be a finite (T, b) array with a positive first column: C needs an inverse")
    return C


def inside(steps: int, bands: int) -> NDArray[np.bool_]:
    """Which entries of (T, b) bands are entries of a T × T matrix."""
    return np.arange(steps)[:, None] + np.arange(bands)[None, :] < steps


def unit_columns(bands: Array) -> Array:
    """Columns scaled to norm 1.

    Args:
        bands: C by columns.

    Returns:
        A new array.

    Raises:
        InvalidInput: if a column is zero or not finite.
    """
    norm = np.sqrt((bands * bands).sum(axis=1, keepdims=True))
    if not np.isfinite(norm).all() or (norm == 0).any():
        raise InvalidInput("a column of C is zero or not finite: it cannot be normalised")
    return np.asarray(bands / norm)


def resized(bands: Array, steps: int, n_bands: int) -> Array:
    """The same shape of strategy for another number of steps and at least as many bands: a start for the optimiser.

    Columns near either end keep their distance from it (there the optimum has boundary layers); those between are
    interpolated.

    Args:
        bands: C by columns, (T₀, b₀).
        steps: T.
        n_bands: b ≥ b₀.

    Returns:
        (T, b), columns not normalised.

    Raises:
        InvalidInput: if b < b₀.
    """
    T0, b0 = bands.shape
    if b0 > n_bands:
        raise InvalidInput(f"a strategy of {b0} bands does not fit into {n_bands}")
    out = np.zeros((steps, n_bands))
    edge = min(3 * b0, T0 // 3, steps // 3)
    if steps == T0:
        out[:, :b0] = bands
    else:
        middle = np.linspace(edge, T0 - 1 - edge, steps - 2 * edge)
        place = np.concatenate([np.arange(edge), middle, np.arange(T0 - edge, T0)])
        low = np.minimum(place.astype(np.intp), T0 - 2) if T0 > 1 else np.zeros(steps, np.intp)
        part = (place - low)[:, None]
        out[:, :b0] = (1 - part) * bands[low] + part * bands[np.minimum(low + 1, T0 - 1)]
    return np.where(inside(steps, n_bands), out, 0.0)


def from_gram(X: ArrayLike) -> Array:
    """The lower-triangular C with CᵀC = X: the *reversed* Cholesky factor.

    The ordinary one solves LLᵀ = X: then the rows, not the columns, of L have the norms that X promises, and the
    sensitivity is another (errata, E20).

    Args:
        X: symmetric positive definite (small T).

    Returns:
        C as a full matrix.

    Raises:
        InvalidInput: if X is not symmetric positive definite.
    """
    M = _validate.real_array("X", X)
    if M.ndim != 2 or M.shape[0] != M.shape[1] or not np.allclose(M, M.T, rtol=1e-10, atol=1e-12):
        raise InvalidInput("X must be a symmetric matrix")
    try:
        return np.asarray(np.linalg.cholesky(M[::-1, ::-1])[::-1, ::-1].T)
    except np.linalg.LinAlgError:
        raise InvalidInput("X is not positive definite: there is no C with CᵀC = X and an inverse") from None


def identity(steps: int) -> Array:
    """C = I: independent noise, b = 1."""
    return np.ones((_validate.positive_int(steps=steps), 1))


def toeplitz(coefficients: ArrayLike, steps: int, *, normalise: bool = True) -> Array:
    """C[i, j] = coefficients[i − j].

    Args:
        coefficients: c_0 > 0, c_1, …, at most T of them count.
        steps: T.
        normalise: scale every column to norm 1 (the last b − 1 columns are then no longer Toeplitz).

    Returns:
        C by columns.

    Raises:
        InvalidInput: if c_0 is not positive or a coefficient is not finite.
    """
    T = _validate.positive_int(steps=steps)
    c = _validate.real_array("coefficients", coefficients).ravel()[:T]
    if c.size == 0 or not np.isfinite(c).all() or c[0] <= 0:
        raise InvalidInput("coefficients must be finite, the first one positive")
    bands = np.where(inside(T, len(c)), c, 0.0)
    return unit_columns(bands) if normalise else bands


def square_root_coefficients(n: int) -> Array:
    """c_k = binom(2k, k)/4^k: the Toeplitz square root of prefix sums (Fichtenberger, Henzinger, Upadhyay 2023)."""
    k = np.arange(1, _validate.positive_int(n=n))
    return np.concatenate([[1.0], np.cumprod((2 * k - 1) / (2 * k))])


def square_root(steps: int, bands: int) -> Array:
    """The square root of prefix sums, truncated to b bands, columns normalised.

    Args:
        steps: T.
        bands: b; more than T count as T.

    Returns:
        C by columns.
    """
    T = _validate.positive_int(steps=steps)
    return toeplitz(square_root_coefficients(min(_validate.positive_int(bands=bands), T)), T)
