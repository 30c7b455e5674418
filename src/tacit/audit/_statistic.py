"""From outputs to one score a run: the value itself, a linear discriminant, or the caller's statistic."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tacit.audit._inputs import Array, Sampler, Statistic, as_floats, outputs
from tacit.errors import InvalidInput

__all__ = ["Scores", "discriminant", "draw_scores"]

# Of a pilot of vectors, this share finds the direction; the rest, unseen by it, places the threshold.
# Scores of the runs that a direction was fitted to look further apart than fresh ones.
_DIRECTION_SHARE = 2 / 3


@dataclass(frozen=True, eq=False)
class Scores:
    """One score a run, on either side: those that place the threshold, and the fresh ones."""

    pilot_d: Array
    pilot_d2: Array
    fresh_d: Array
    fresh_d2: Array


def draw_scores(
    sample_on_D: Sampler, sample_on_D2: Sampler, n_pilot: int, n_fresh: int, statistic: Statistic | None
) -> Scores:
    """Draw all runs of both sides and score them with a statistic that has seen pilot runs only.

    Args:
        sample_on_D: outputs of k runs on D.
        sample_on_D2: outputs of k runs on the neighbour D2.
        n_pilot: pilot runs a side.
        n_fresh: fresh runs a side.
        statistic: maps outputs of shape (k,) or (k, p) to k scores, row by row; None chooses one.

    Returns:
        The scores.

    Raises:
        InvalidInput: if outputs or scores have a wrong shape or are not finite.
    """
    n = n_pilot + n_fresh
    X, Y = outputs("sample_on_D", sample_on_D, n), outputs("sample_on_D2", sample_on_D2, n)
    if X.shape != Y.shape:
        raise InvalidInput(f"sample_on_D and sample_on_D2 must agree in shape, got {X.shape} and {Y.shape}")
    start = 0
    if statistic is not None:
        if not callable(statistic):
            raise InvalidInput("statistic must be callable: it maps k outputs to k scores")
        X, Y = (as_floats("statistic(outputs)", statistic(Z), f"({n},)", (1,), n) for Z in (X, Y))
    elif X.ndim == 2:
        start = int(_DIRECTION_SHARE * n_pilot)
        w, centre = discriminant(X[:start], Y[:start])
        X, Y = (X - centre) @ w, (Y - centre) @ w
    return Scores(X[start:n_pilot], Y[start:n_pilot], X[n_pilot:], Y[n_pilot:])


def discriminant(X: Array, Y: Array) -> tuple[Array, Array]:
    """The regularised linear discriminant w ∝ ((1−λ) R + λ I)⁻¹ Δ, in standardised coordinates.

    Δ is the difference of the two means and R the pooled correlation within the two samples, both after
    dividing each coordinate by its pooled standard deviation s; λ is the shrinkage of Ledoit and Wolf
    (2004), which needs no tuning and keeps the system solvable for p > k. For Gaussian outputs of equal
    covariance the limit k → ∞ is the most powerful test.

    Args:
        X: outputs on D, shape (k, p).
        Y: outputs on D2, shape (k, p).

    Returns:
        (w, centre) so that ``(Z − centre) @ w`` has about unit variance, with D2 on the positive side.
    """
    # Into [−1, 1] first, so that a diverged run does not overflow a variance.
    peak = np.maximum(np.abs(X).max(axis=0), np.abs(Y).max(axis=0))
    peak = np.where(peak > 1e-150, peak, 1.0)
    X, Y = X / peak, Y / peak
    mean_X, mean_Y = X.mean(axis=0), Y.mean(axis=0)
    centred = np.concatenate([X - mean_X, Y - mean_Y])
    # A coordinate that never varies but differs between D and D2 gives the secret away: the floor keeps
    # its (enormous) weight finite.
    scale = np.maximum(centred.std(axis=0), 1e-12)
    w = _shrunk_solve(centred / scale, (mean_Y - mean_X) / scale) / scale
    spread = float((centred @ w).std())
    return w / (spread if spread > 0 else 1.0) / peak, (mean_X + mean_Y) / 2 * peak


def _shrunk_solve(Z: Array, delta: Array) -> Array:
    # Solve ((1−λ) S + λ τ I) w = delta for S = ZᵀZ/n and τ = tr S/p, through the thin SVD of Z.
    n, p = Z.shape
    _, singular, Vt = np.linalg.svd(Z, full_matrices=False)
    eigen = singular**2 / n
    tau = float(eigen.sum()) / p
    if tau == 0:
        return delta
    distance = float((eigen**2).sum()) - p * tau**2  # ‖S − τI‖²
    noise = (float((np.einsum("ij,ij->i", Z, Z) ** 2).mean()) - float((eigen**2).sum())) / n
    shrinkage = 1.0 if distance <= 0 else float(np.clip(noise / distance, 1e-6, 1.0))
    ridge = shrinkage * tau
    kept = (1 - shrinkage) * eigen
    coordinates = Vt @ delta
    return np.asarray((delta - Vt.T @ (coordinates * kept / (kept + ridge))) / ridge)
