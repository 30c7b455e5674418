"""Random ReLU features: a two-layer network whose first layer is public noise."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.maps.draws import gaussians, projected, public_seed
from tacit.maps.feature_map import FeatureMap
from tacit.maps.lengths import FAR, public_norm, scaled_down
from tacit.maps.steps import public_step

__all__ = ["RandomRelu"]


@public_step
class RandomRelu(FeatureMap):
    """x ↦ norm·√(2/D)·relu(Wx + βb)/√(1 + β²), W and b standard Gaussian; rows then scaled down to ``norm``.

    Before the last step inner products approximate norm²/(1+β²) times the arc-cosine kernel of order 1 of (x, β) and
    (y, β), k(u, v) = ‖u‖‖v‖(sin θ + (π − θ)cos θ)/π (Cho & Saul, *Kernel methods for deep learning*, NIPS 2009), and a
    record with ‖x‖ = 1 has a norm of about ``norm``: scale records to norm 1 first, e.g. with ``NormScaler``.

    *Formal guarantee.* Every row of the output has norm at most ``norm``. Records beyond a norm of 1e12 are scaled_down
    to it first. See ``FeatureMap``.

    *Assumptions.* See ``FeatureMap``.

    Args:
        n_features: D.
        seed: a non-negative integer, public.
        bias: β, zero or above.
        norm: the bound.

    Attributes:
        weights_: (D, p), float64, multiples of 2⁻²⁰.
        biases_: (D,), the same.
        certificate_: None.
        n_features_in_: p.

    >>> import numpy as np
    >>> Z = RandomRelu(500, norm=2.0).fit_transform(np.array([[0.6, 0.8], [60.0, 80.0]]))
    >>> np.linalg.norm(Z, axis=1).round(1).tolist(), bool((Z >= 0).all())
    ([2.0, 2.0], True)
    """

    def __init__(self, n_features: int = 1000, seed: int = 0, *, bias: float = 1.0, norm: float = 1.0) -> None:
        self.n_features = n_features
        self.seed = seed
        self.bias = bias
        self.norm = norm

    def _prepare(self, p: int) -> int:
        D = _validate.positive_int(n_features=self.n_features)
        self._beta = min(_validate.nonnegative(bias=self.bias), FAR)
        drawn = gaussians(public_seed(seed=self.seed), 5, (D, p + 1))
        self.weights_, self.biases_ = drawn[:, :p].copy(), drawn[:, p].copy()
        return D

    def _rows(self, x: NDArray[Any]) -> NDArray[Any]:
        kind, norm, beta, D = x.dtype, public_norm(norm=self.norm), self._beta, len(self.biases_)
        z = projected(scaled_down(x, FAR), self.weights_)
        z += (beta * self.biases_).astype(kind)
        np.maximum(z, 0.0, out=z)
        z *= kind.type(norm * np.sqrt(2 / D / (1 + beta**2)))
        return scaled_down(z, norm)

    def _norm(self, input_norm: float | None) -> float:
        return public_norm(norm=self.norm)
