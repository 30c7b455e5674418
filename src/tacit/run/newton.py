"""Minimise a smooth, strongly convex function, surely: Newton's method, and a fallback with a proven number of steps.

Objective perturbation releases the minimiser only if its gradient is small, and whether it is must not depend on the
data: an error raised for some data sets only is itself a release. ``newton_minimise`` is fast and has no useful bound
on its steps; ``accelerated_minimise`` has one for every function with the stated constants. ``minimise_surely`` runs
the second where the first gave up, so that in exact arithmetic it never fails, whatever the data; ``rounding_floor``
says below which tolerance floating point does not follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import BoundViolated, InvalidInput

__all__ = ["accelerated_minimise", "minimise_surely", "newton_minimise", "rounding_floor"]

Array = NDArray[np.float64]


def newton_minimise(
    gradient: Callable[[Array], Array],
    hessian: Callable[[Array], Array],
    start: Array,
    *,
    tolerance: float,
    limit: int = 100,
) -> tuple[Array, float]:
    """Damped Newton steps, each halved until the gradient's norm falls in proportion: ‖g⁺‖ ≤ (1 − t/4)‖g‖.

    Along a Newton direction d the squared norm of the gradient falls at the rate gᵀHd = −‖g‖², so a small enough step
    is always accepted; near the minimiser the full one is, and convergence is quadratic. No value of the function is
    needed, which would stop being precise long before its gradient does.

    Args:
        gradient: of the function, shape (p,).
        hessian: shape (p, p), positive definite (Λ-strongly convex functions: at least Λ I).
        start: where to begin, shape (p,).
        tolerance: on the norm of the gradient.
        limit: the most steps.

    Returns:
        The best point found and the norm of its gradient; the caller compares it with the tolerance.
    """
    goal, steps = _validate.positive(tolerance=tolerance), _validate.positive_int(limit=limit)
    w = np.array(start, dtype=np.float64)
    g = gradient(w)
    norm = float(np.linalg.norm(g))
    for _ in range(steps):
        if not math.isfinite(norm) or norm <= goal:
            break
        direction = np.linalg.solve(hessian(w), -g)
        t = 1.0
        while True:
            trial = w + t * direction
            g_trial = gradient(trial)
            new = float(np.linalg.norm(g_trial))
            if new <= (1 - t / 4) * norm:
                break
            t /= 2
            if t < 1e-12:
                return w, norm
        w, g, norm = trial, g_trial, new
    return w, norm


def accelerated_steps(gradient_norm: float, tolerance: float, *, smoothness: float, convexity: float) -> int:
    """How many accelerated steps bring a gradient of this norm below the tolerance, for certain.

    Nesterov (2018), Theorem 2.2.3 with constant momentum: f(x_k) − f* ≤ (1 − √(Λ/M))^k · (f(x₀) − f* + Λ/2 ‖x₀ − x*‖²).
    By strong convexity the bracket is at most ‖g₀‖²/Λ, and ‖g_k‖² ≤ 2M (f(x_k) − f*).

    Args:
        gradient_norm: ‖g₀‖.
        tolerance: τ.
        smoothness: M, of the whole objective.
        convexity: Λ.

    Returns:
        k.
    """
    if gradient_norm <= tolerance:
        return 0
    log_ratio = math.log(2 * smoothness / convexity) + 2 * math.log(gradient_norm / tolerance)
    return math.ceil(max(log_ratio, 0.0) / -math.log1p(-math.sqrt(convexity / (smoothness * (1 + 1e-9)))))


def accelerated_minimise(
    gradient: Callable[[Array], Array],
    start: Array,
    *,
    tolerance: float,
    smoothness: float,
    convexity: float,
) -> tuple[Array, float]:
    """Nesterov's accelerated gradient descent, with the number of steps that its theorem asks for.

    Args:
        gradient: of the function, shape (p,).
        start: where to begin, shape (p,).
        tolerance: on the norm of the gradient.
        smoothness: M ≥ Λ: the gradient is M-Lipschitz (for n records Λ + nβR² and the other penalties' constant).
        convexity: Λ.

    Returns:
        A point and the norm of its gradient: at most the tolerance, up to rounding, for every function with these
        constants.

    Raises:
        InvalidInput: if the constants are not positive, or M < Λ.
    """
    goal = _validate.positive(tolerance=tolerance)
    M, strong = _validate.positive(smoothness=smoothness), _validate.positive(convexity=convexity)
    if strong > M:
        raise InvalidInput(f"smoothness must be at least convexity, got {M!r} < {strong!r}")
    root = math.sqrt(strong / M)
    momentum = (1 - root) / (1 + root)
    x = np.array(start, dtype=np.float64)
    y, g = x, gradient(x)
    norm = float(np.linalg.norm(g))
    for _ in range(accelerated_steps(norm, goal, smoothness=M, convexity=strong)):
        moved = y - gradient(y) / M
        x, y = moved, moved + momentum * (moved - x)
        norm = float(np.linalg.norm(gradient(x)))
        if norm <= goal:
            break
    return x, norm


def minimise_surely(
    gradient: Callable[[Array], Array],
    hessian: Callable[[Array], Array],
    start: Array,
    *,
    tolerance: float,
    smoothness: float,
    convexity: float,
    limit: int = 100,
) -> tuple[Array, float]:
    """Newton's method, then accelerated descent if it gave up, to a gradient of norm at most ``tolerance``.

    Args:
        gradient: of the function, shape (p,).
        hessian: shape (p, p).
        start: where to begin, shape (p,).
        tolerance: on the norm of the computed gradient: half of the mechanism's, the rest is for rounding.
        smoothness: M, as for ``accelerated_minimise``.
        convexity: Λ.
        limit: the most Newton steps.

    Returns:
        A point and the norm of its gradient, at most the tolerance.

    Raises:
        BoundViolated: if the tolerance is missed, which takes wrong constants or a tolerance below the
            ``rounding_floor``; nothing may be released then.
    """
    w, norm = newton_minimise(gradient, hessian, start, tolerance=tolerance, limit=limit)
    if not norm <= tolerance:
        begin = w if math.isfinite(norm) else start
        w, norm = accelerated_minimise(gradient, begin, tolerance=tolerance, smoothness=smoothness, convexity=convexity)
    if not norm <= tolerance:
        raise BoundViolated(
            "the solver missed its tolerance, so nothing is released: its constants are wrong, or the tolerance is "
            "below rounding_floor(...); raise it and certify again"
        )
    return w, norm


def rounding_floor(n: int, dimension: int, *, gradient_bound: float, curvature: float, noise_std: float) -> float:
    """A tolerance that floating point can reach and check, from public numbers.

    The gradient of n records, the ridge and the tilt is a sum of n + 2 vectors. At the minimiser the ridge's is the
    negative of the others', so that all norms sum to at most A = 2(nL + ‖b‖), with ‖b‖ ≤ σ(√p + 9) but for a chance
    of 1e-17. In any order, sums over records and coordinates lose about (n + p) units of A·2⁻⁵³; the predictors lose
    p units of R‖w‖ ≤ RA/(2Λ), and their slopes β times as much, n times. The floor is four times all that.

    Args:
        n: the number of records.
        dimension: p.
        gradient_bound: L, of one record.
        curvature: βR²/Λ.
        noise_std: σ of the tilt.

    Returns:
        The smallest τ that a mechanism should state; half of it is for the solver.
    """
    total = 2 * (n * gradient_bound + noise_std * (math.sqrt(dimension) + 9))
    units = n + dimension + 10 + n * curvature * (dimension + 2) / 2
    return 4 * units * 2.0**-53 * total
