"""Objective perturbation, run as certified: the one door to the records that is not a channel."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from tacit.accounting import Certificate
from tacit.errors import MechanismMismatch
from tacit.mechanism import ObjectivePerturbation
from tacit.problem import Design, Huber, Logistic, Loss, SmoothedHinge
from tacit.run.newton import minimise_surely, rounding_floor
from tacit.run.randomness import Streams

__all__ = ["SIGNED", "perturbed_minimiser", "solver_tolerance"]

Array = NDArray[np.float64]
SIGNED: dict[type[Loss], bool] = {Logistic: True, SmoothedHinge: True, Huber: False}
"""Losses of bounded slope whose constants we vouch for, and whether their slope keeps its sign."""


def solver_tolerance(n: int, p: int, loss: Loss, feature_norm: float, l2: float, noise_std: float) -> float:
    """A tolerance τ that floating point can reach and check, from public numbers."""
    return rounding_floor(
        n,
        p,
        gradient_bound=loss.slope * feature_norm,
        curvature=loss.curvature * feature_norm**2 / l2,
        noise_std=noise_std,
    )


def perturbed_minimiser(
    certificate: Certificate,
    part: int,
    design: Design,
    offset: Array,
    loss: Loss,
    ridge: Array,
    streams: Streams,
) -> Array:
    """Minimise Σ φ(z_i) + Λ/2‖w‖² + Σ ridge_j/2·w_j² + b·w to the certified tolerance, and release it with noise.

    Formal guarantee: as ``tacit.accounting.perturbation``; records are scaled to norm R, slopes and curvature are those
    of the loss, the gradient is brought below τ/2 (half is left for rounding), and N(0, s²I) covers the rest.

    Args:
        certificate: whose plan holds the mechanism.
        part: which part it is.
        design: features with labels folded in.
        offset: (records,).
        loss: one of SIGNED.
        ridge: further penalty per coordinate, public.
        streams: randomness; named after the records, so that one tilt never meets two data sets.

    Returns:
        The released coefficients.

    Raises:
        MechanismMismatch: if the certificate describes something else.
    """
    m = certificate.plan.parts[part]
    if not isinstance(m, ObjectivePerturbation):
        raise MechanismMismatch("this part of the plan is not an objective perturbation")
    if type(loss) not in SIGNED or (m.signed_slopes and not SIGNED[type(loss)]):
        raise MechanismMismatch(f"the certificate does not cover the {loss.name} loss")
    if loss.slope > m.slope_bound * (1 + 1e-12) or loss.curvature > m.smoothness * (1 + 1e-12):
        raise MechanismMismatch(f"the {loss.name} loss is steeper or more curved than certified")
    n, p = design.shape
    if m.tolerance < solver_tolerance(n, p, loss, m.feature_norm, m.l2, m.noise_std) * (1 - 1e-12):
        raise MechanismMismatch("the certified tolerance is below what floating point can reach: raise it")
    X = _shortened(design.dense(), m.feature_norm)
    family = streams.child(f"{certificate.digest}/{part}")
    content = hashlib.sha256(np.ascontiguousarray(X).data)
    for extra in (offset, ridge):
        content.update(np.ascontiguousarray(extra).data)
    b = m.noise_std * family.at("tilt", 0, content.digest()).standard_normal(p)
    penalty = m.l2 + ridge

    def gradient(w: Array) -> Array:
        return np.asarray(X.T @ loss.derivative(X @ w - offset) + penalty * w + b)

    def hessian(w: Array) -> Array:
        return np.asarray((X.T * _curvature(loss, X @ w - offset)) @ X + np.diag(penalty))

    w, _ = minimise_surely(
        gradient,
        hessian,
        np.zeros(p),
        tolerance=m.tolerance / 2,
        smoothness=float(n * loss.curvature * m.feature_norm**2 + penalty.max()),
        convexity=m.l2,
    )
    return np.asarray(w + m.output_std * family.at("output", 0, content.digest()).standard_normal(p))


def _shortened(X: Array, R: float) -> Array:
    norms = np.sqrt(np.einsum("ij,ij->i", X, X))
    return np.asarray(X * (R / np.maximum(norms, R))[:, None])


def _curvature(loss: Loss, z: Array) -> Array:
    """φ″ for Newton steps; where it jumps, either value serves."""
    slope = loss.derivative(z)
    if isinstance(loss, Logistic):
        return np.asarray(-slope * (1 + slope))
    inside = np.abs(slope) < loss.slope
    if isinstance(loss, SmoothedHinge):
        inside &= slope < 0
    return np.asarray(loss.curvature * inside)
