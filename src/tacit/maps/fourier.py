"""Random Fourier features: a Gaussian kernel as an inner product."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.maps.draws import GRID, gaussians, projected, public_seed
from tacit.maps.feature_map import FeatureMap
from tacit.maps.lengths import FAR, scaled_down
from tacit.maps.steps import public_step

__all__ = ["RandomFourier"]


@public_step
class RandomFourier(FeatureMap):
    """x ↦ √(2/D)·[cos Wx, sin Wx], the rows of W from N(0, 2γI): ⟨φ(x), φ(y)⟩ ≈ exp(−γ‖x − y‖²).

    Rahimi & Recht, *Random features for large-scale kernel machines*, NIPS 2007. Pairs of a cosine and a sine have no
    phase to draw, a smaller variance than √(2/D)·cos(Wx + b) for this kernel (Sutherland & Schneider, UAI 2015), and a
    norm of exactly 1. With ``orthogonal``, rows of W are orthogonal within groups of p (Yu et al., *Orthogonal random
    features*, NIPS 2016), which lowers the error once more.

    *Formal guarantee.* Every row of the output has norm 1, less a margin for rounding that keeps it from exceeding 1.
    Records beyond a norm of 1e12 are scaled_down to it, where phases mean nothing anyway. See ``FeatureMap``.

    *Assumptions.* γ was not chosen on private records. See ``FeatureMap``.

    Args:
        n_features: D, even.
        gamma: γ, in units of the records: 1/γ is about the squared distance at which two records are strangers.
        seed: a non-negative integer, public.
        orthogonal: whether to make the frequencies orthogonal, which costs p³ operations per p of them.

    Attributes:
        frequencies_: (D/2, p), W/√(2γ), float64, multiples of 2⁻²⁰.
        certificate_: None.
        n_features_in_: p.

    >>> import numpy as np
    >>> map_ = RandomFourier(4000, gamma=0.5).fit(np.zeros((1, 3)))
    >>> a, b = map_.transform(np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
    >>> float(round(a @ a, 6)), float(round(a @ b, 1)), float(round(np.exp(-0.5), 1))
    (1.0, 0.6, 0.6)
    """

    def __init__(self, n_features: int = 1000, gamma: float = 1.0, seed: int = 0, *, orthogonal: bool = False) -> None:
        self.n_features = n_features
        self.gamma = gamma
        self.seed = seed
        self.orthogonal = orthogonal

    @property
    def norm(self) -> float:
        """The bound: 1."""
        return 1.0

    def _prepare(self, p: int) -> int:
        D = _validate.positive_int(n_features=self.n_features)
        if D % 2:
            raise InvalidInput(f"n_features must be even, got {D}: cosines and sines come in pairs")
        gamma = _validate.positive(gamma=self.gamma)
        if not 1e-30 <= gamma <= 1e20:
            raise InvalidInput(f"gamma must lie between 1e-30 and 1e20, got {self.gamma!r}: scale your units")
        self._scale = float(np.sqrt(2 * gamma))
        draw = orthogonal_rows if self.orthogonal else _independent_rows
        self.frequencies_ = draw(public_seed(seed=self.seed), D // 2, p)
        return D

    def _rows(self, x: NDArray[Any]) -> NDArray[Any]:
        kind, half = x.dtype, len(self.frequencies_)
        phase = projected(scaled_down(x, FAR), self.frequencies_)
        phase *= kind.type(self._scale)
        out = np.empty((len(x), 2 * half), kind)
        np.cos(phase, out=out[:, :half])
        np.sin(phase, out=out[:, half:])
        out *= kind.type((1 - 8 * np.finfo(kind).eps) / np.sqrt(half))
        return out

    def _norm(self, input_norm: float | None) -> float:
        return self.norm


def _independent_rows(seed: int, count: int, p: int) -> NDArray[np.float64]:
    return gaussians(seed, 2, (count, p))


def orthogonal_rows(seed: int, count: int, p: int) -> NDArray[np.float64]:
    """Rows that are orthogonal in groups of p, each with the length of an independent Gaussian vector.

    Args:
        seed: public.
        count: rows.
        p: columns.

    Returns:
        (count, p), multiples of 2⁻²⁰.
    """
    groups = -(-count // p)
    q, r = np.linalg.qr(gaussians(seed, 3, (groups, p, p)))
    q *= np.where(np.einsum("gii->gi", r) < 0, -1.0, 1.0)[:, None, :]  # unique, and uniform over rotations
    lengths = np.linalg.norm(gaussians(seed, 4, (groups, p, p)), axis=2)
    rows = (q.transpose(0, 2, 1) * lengths[:, :, None]).reshape(-1, p)[:count]
    return np.asarray(np.rint(rows / GRID) * GRID)
