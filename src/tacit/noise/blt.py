"""Buffered linear Toeplitz strategies: long memory in d buffers (Dvijotham et al. 2024; McMahan et al. 2024).

C has a unit diagonal and C[i, j] = Σ_l ω_l θ_l^{i−j−1} below it. Row t of C⁻¹Z is x_t = z_t − Σ_l ω_l s_l, where each
buffer s_l ← θ_l s_l + x_t: d rows are kept, whatever T is (``streaming.StreamingNoise`` draws them).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.banded import buffered_impulse
from tacit.noise.sensitivity import toeplitz_sensitivity

__all__ = ["BufferedToeplitz", "optimise_buffered"]

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class BufferedToeplitz:
    """C[i, j] = Σ_l scale_l·decay_l^{i−j−1} for i > j, 1 on the diagonal.

    Attributes:
        scale: ω_l ≥ 0 with Σω ≤ 1, so that the coefficients fall from 1.
        decay: θ_l in [0, 1).
    """

    scale: Array
    decay: Array

    def __post_init__(self) -> None:
        for name in ("scale", "decay"):
            object.__setattr__(self, name, _validate.nonnegative_array(name, getattr(self, name)))
        if self.scale.shape != self.decay.shape or self.scale.ndim != 1 or (self.decay >= 1).any():
            raise InvalidInput("scale and decay must be vectors of one length, decay below 1")
        if self.scale.sum() > 1:
            raise InvalidInput("the scales must add up to at most 1: else the coefficients of C do not fall")

    def coefficients(self, steps: int) -> Array:
        """c_0 = 1, c_1, …, c_{T−1}: the first column of C.

        Args:
            steps: T.

        Returns:
            (T,).
        """
        k = np.arange(_validate.positive_int(steps=steps) - 1)
        return np.concatenate([[1.0], (self.decay[None, :] ** k[:, None]) @ self.scale])

    def sensitivity(self, steps: int, separation: int | None = None, participations: int | None = None) -> float:
        """Exact, from the coefficients: see ``toeplitz_sensitivity``."""
        return toeplitz_sensitivity(self.coefficients(steps), steps, separation, participations)

    def prefix_error(self, steps: int) -> float:
        """‖S·C⁻¹‖_F²/T: the mean squared error of a running sum; not yet times the squared sensitivity.

        Args:
            steps: T.

        Returns:
            Σ_k (T − k)h_k²/T, h the running sums of the first column of C⁻¹.
        """
        T = _validate.positive_int(steps=steps)
        h = np.cumsum(buffered_impulse(self.scale, self.decay, T))
        return float(np.arange(T, 0, -1) @ (h * h)) / T


def optimise_buffered(
    steps: int, buffers: int = 4, *, separation: int | None = None, participations: int | None = None
) -> BufferedToeplitz:
    """A buffered strategy for prefix sums: prefix error × squared sensitivity, minimised numerically.

    Starts from the square root of prefix sums, whose coefficients are moments of the arcsine law; not certified.

    Args:
        steps: T.
        buffers: d.
        separation: the smallest gap between participations; missing for a single one.
        participations: k.

    Returns:
        The strategy.
    """
    T, d = _validate.positive_int(steps=steps), _validate.positive_int(buffers=buffers)
    edge = np.concatenate([[0.0], 1 - np.geomspace(0.5, 1.0 / T, d), [1.0]]) if d > 1 else np.array([0.0, 0.9, 1.0])
    decay = (edge[1:] + edge[:-1])[:d] / 2
    mass = np.diff(2 / np.pi * np.arcsin(np.sqrt(edge)))[:d]

    def strategy(x: Array) -> BufferedToeplitz:
        rate = 1 / (1 + np.exp(np.clip(x[:d], -30, 30)))  # 1 − θ
        part = np.exp(x[d:] - max(0.0, float(x[d:].max())))
        rest = np.exp(-max(0.0, float(x[d:].max())))
        return BufferedToeplitz(part / (part.sum() + rest) * (1 - 1e-12), 1 - rate)

    def loss(x: Array) -> float:
        C = strategy(x)
        return float(np.log(C.prefix_error(T)) + 2 * np.log(C.sensitivity(T, separation, participations)))

    scale = np.maximum(mass * decay, 1e-6)
    scale *= 0.5 / scale.sum()
    start = np.concatenate([np.log(decay / (1 - decay)), np.log(scale / (1 - scale.sum()))])
    found = minimize(loss, start, method="L-BFGS-B", options={"maxiter": 300})
    return strategy(found.x if found.fun <= loss(start) else start)
