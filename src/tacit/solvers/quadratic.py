"""Quadratic models from released matrices: repair, and minimise with any penalty."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from tacit.kernels.quadratic import minimise_quadratic
from tacit.problem import ElasticNet, Penalty

__all__ = ["minimise", "positive_part"]

Array = NDArray[np.float64]
TOLERANCE, MAX_STEPS = 1e-12, 10_000


def positive_part(G: Array) -> Array:
    """The nearest positive semi-definite matrix."""
    values, vectors = np.linalg.eigh((G + G.T) / 2)
    return np.asarray((vectors * np.maximum(values, 0.0)) @ vectors.T)


def minimise(A: Array, b: Array, penalty: Penalty, start: Array | None = None) -> Array:
    """Argmin ½vᵀAv − bᵀv + ψ(v), to near machine precision."""
    v = np.zeros(len(b)) if start is None else start
    if type(penalty) is not ElasticNet:  # a subclass may have a prox of its own
        return _accelerated(A, b, penalty, v)
    if penalty.smooth:
        H = A + np.diag(penalty.l2)
        try:
            return np.asarray(cho_solve(cho_factor(H), b))
        except np.linalg.LinAlgError:  # singular: the shortest minimiser
            return np.asarray(np.linalg.lstsq(H, b, rcond=None)[0])
    l1, l2, low, high = penalty.l1, penalty.l2, penalty.low, penalty.high
    return minimise_quadratic(np.ascontiguousarray(A), b, l1, l2, low, high, v, TOLERANCE, MAX_STEPS)


def _accelerated(A: Array, b: Array, penalty: Penalty, start: Array) -> Array:
    """Accelerated proximal gradient descent with restarts, for a penalty that is known by its prox only."""
    step = 1 / max(float(np.linalg.eigvalsh(A)[-1]), 1e-300)
    x = y = penalty.prox(start, 0.0)
    t = 1.0
    for _ in range(MAX_STEPS):
        new = penalty.prox(y - step * (A @ y - b), step)
        change = new - x
        if (y - new) @ change > 0:  # moving uphill: forget the momentum
            t, y = 1.0, new
        else:
            t_next = (1 + np.sqrt(1 + 4 * t * t)) / 2
            y, t = new + (t - 1) / t_next * change, t_next
        x = new
        if np.abs(change).max(initial=0.0) <= TOLERANCE * max(np.abs(x).max(initial=0.0), 1.0):
            break
    return np.asarray(x)
