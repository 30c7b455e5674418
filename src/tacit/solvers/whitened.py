"""Noisy proximal steps in a released metric, and what is known of the noise of their average."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tacit.maps import Linear
from tacit.problem import Penalty
from tacit.release import Session
from tacit.release.queries import LossGradient
from tacit.solvers.stages import minimise

__all__ = ["LARGEST_ERRORS", "Steps", "WhitenedDescent", "averaged_errors"]

Array = NDArray[np.float64]
LARGEST_ERRORS = 256
"""Coordinates up to which standard errors are worked out."""


@dataclass(frozen=True)
class Steps:
    """Which releases the descent may use.

    Attributes:
        part: of the plan.
        T: how many steps.
        burn: the first step that is averaged.
        n: the number of records.
    """

    part: int
    T: int
    burn: int
    n: int


@dataclass(frozen=True, eq=False)
class WhitenedDescent:
    """Steps in the metric A: the records seen through A^{−1/2}, and what takes coefficients there and back."""

    A: Array
    ridge: Array
    root: Array
    session: Session
    penalty: Penalty
    steps: Steps

    @classmethod
    def of(cls, A: Array, ridge: Array, features: Session, penalty: Penalty, steps: Steps) -> WhitenedDescent:
        """The matrices of a metric, and the session seen through its inverse root."""
        values, Q = np.linalg.eigh(A)
        white = Linear((Q / np.sqrt(values)) @ Q.T)
        # The inverse of the matrix that is applied, which is rounded: then (A^{−1/2}x)ᵀ(root·u) is xᵀu.
        root = np.asarray(np.linalg.inv(white.applied).T, np.float64)
        return cls(A, ridge, root, features.through(white), penalty, steps)

    def run(self, query: LossGradient, u: Array) -> Array:
        """The averaged iterate."""
        s, kept, H = self.steps, np.zeros(len(u)), self.A + np.diag(self.ridge)
        for t in range(s.T):
            g = self.root.T @ self.session.release(query, self.root @ u, s.part) / s.n
            u = minimise(H, self.A @ u - g, self.penalty, u)
            kept += u * (t >= s.burn)
            self.session.tick(t + 1, s.T)
        return kept / (s.T - s.burn)

    def noise(self, query: LossGradient) -> Array:
        """The deviation of the noise of each step, per record."""
        s = self.steps
        return np.array([self.session.noise_std(query, s.part, t) for t in range(s.T)]) / s.n

    def shrunk(self, u: Array, constant: Array, floor: float, sigma: Array) -> Array:
        """Empirical Bayes: toward the constant model, by the share of the noise in what was learned beyond it.

        In the eigenbasis of A, with the ridge at its mean, steps multiply errors by b = (a − (a − floor)/1.25)/(a + d)
        and add noise of variance aσ²/(a + d)²; their average from ``burn`` on is summed as in ``averaged_errors``.

        Args:
            u: the averaged iterate.
            constant: the constant model.
            floor: what of each eigenvalue of A stands for noise.
            sigma: the noise of each step.

        Returns:
            A point between the two.
        """
        a, d = np.linalg.eigvalsh(self.A), float(np.mean(self.ridge))
        b = np.clip((a - (a - floor) / 1.25) / (a + d), 0.0, 1.0)
        weight, variance = np.zeros(len(a)), np.zeros(len(a))
        for t in reversed(range(self.steps.T)):
            weight = b * weight + float(t >= self.steps.burn)
            variance += (sigma[t] * weight / (self.steps.T - self.steps.burn)) ** 2 * a / (a + d) ** 2
        gained = u - constant
        left = 1 - float(a @ variance) / max(float(gained @ self.A @ gained), 1e-300)
        return self.penalty.prox(constant + max(left, 0.0) * gained, 0.0)


def averaged_errors(A: Array, H: Array, ridge: Array, root: Array, sigma: Array, burn: int) -> Array:
    """Standard errors of the averaged iterate from the noise of the descent, to first order.

    Near the optimum, e ← B e − (A + D)⁻¹A^{1/2}ξ_t with B = (A + D)⁻¹(A − H), D the ridge and H the curvature; the
    average of the iterates from ``burn`` on is linear in the ξ_t, and its covariance is summed exactly.

    Args:
        A: the metric.
        H: the curvature of the mean loss.
        ridge: the diagonal D.
        root: A^{1/2}.
        sigma: the noise of each step.
        burn: the first step that is averaged.

    Returns:
        One number per coordinate. Clipping, ℓ1 penalties, sampling error and the noise of earlier stages are left out.
    """
    p, T = len(A), len(sigma)
    inverse = np.linalg.inv(A + np.diag(ridge))
    B, gain = inverse @ (A - H), inverse @ root / (T - burn)
    S, variance = np.zeros((p, p)), np.zeros(p)
    for t in reversed(range(T)):
        S = B @ S + (np.eye(p) if t >= burn else 0.0)
        variance += sigma[t] ** 2 * np.square(S @ gain).sum(axis=1)
    return np.asarray(np.sqrt(variance))
