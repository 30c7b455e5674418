"""Quadratic models from released matrices: repair, and minimise with any separable penalty."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from tacit.kernels.quadratic import minimise_quadratic
from tacit.problem import Penalty

__all__ = ["minimise", "positive_part"]

Array = NDArray[np.float64]


def positive_part(G: Array) -> Array:
    """The nearest positive semi-definite matrix."""
    values, vectors = np.linalg.eigh((G + G.T) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def minimise(A: Array, b: Array, penalty: Penalty, start: Array | None = None) -> Array:
    """Argmin ½ vᵀAv − bᵀv + ψ(v), to near machine precision."""
    v = np.zeros(len(b)) if start is None else start
    if penalty.smooth:
        H = A + np.diag(penalty.l2)
        try:
            return np.asarray(cho_solve(cho_factor(H), b))
        except np.linalg.LinAlgError:  # singular: the shortest minimiser
            return np.asarray(np.linalg.lstsq(H, b, rcond=None)[0])
    return minimise_quadratic(
        np.ascontiguousarray(A), b, penalty.l1, penalty.l2, penalty.low, penalty.high, v, 1e-12, 10_000
    )
