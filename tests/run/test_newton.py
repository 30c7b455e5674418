"""Minimisers that must not fail for some data sets only."""

import numpy as np
import pytest

from tacit.errors import BoundViolated, InvalidInput
from tacit.run.newton import (
    accelerated_minimise,
    accelerated_steps,
    minimise_surely,
    newton_minimise,
    rounding_floor,
)


def logistic(n=300, p=6, *, l2=0.5, sigma=5.0, scale=1.0, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, p))
    X *= scale / np.linalg.norm(X, axis=1, keepdims=True)
    b = sigma * rng.normal(size=p)
    expit = lambda t: 0.5 * (1 + np.tanh(t / 2))  # noqa: E731
    gradient = lambda w: X.T @ expit(X @ w) + l2 * w + b  # noqa: E731

    def hessian(w):
        s = expit(X @ w)
        return (X.T * (s * (1 - s))) @ X + l2 * np.eye(p)

    return gradient, hessian, np.zeros(p), n * scale**2 / 4 + l2


@pytest.mark.parametrize("l2", [1e-3, 0.5, 20.0])
@pytest.mark.parametrize("scale", [0.1, 1.0, 50.0])
def test_newton_reaches_machine_precision(l2, scale):
    gradient, hessian, start, _ = logistic(l2=l2, scale=scale, sigma=5 * scale)
    tolerance = rounding_floor(300, 6, gradient_bound=scale, curvature=scale**2 / 4 / l2, noise_std=5 * scale) / 2
    w, norm = newton_minimise(gradient, hessian, start, tolerance=tolerance)
    assert norm <= tolerance
    assert norm == pytest.approx(np.linalg.norm(gradient(w)))


def test_the_distance_to_the_minimiser_is_what_the_proof_uses():
    gradient, hessian, start, _ = logistic(l2=0.5)
    best, _ = newton_minimise(gradient, hessian, start, tolerance=1e-11)
    for tolerance in (3.0, 0.1, 1e-3):
        w, norm = newton_minimise(gradient, hessian, start, tolerance=tolerance)
        assert np.linalg.norm(w - best) <= norm / 0.5 + 1e-10


def test_a_damped_step_is_taken_where_the_full_one_diverges():
    # log cosh: the full Newton step from 3 overshoots ever further.
    gradient = lambda w: np.tanh(w) + 1e-3 * w  # noqa: E731
    hessian = lambda w: np.diag(1 - np.tanh(w) ** 2 + 1e-3)  # noqa: E731
    w, norm = newton_minimise(gradient, hessian, np.array([3.0]), tolerance=1e-12)
    assert norm <= 1e-12
    assert abs(w[0]) < 1e-10


def test_accelerated_descent_keeps_its_promise_without_curvature():
    gradient, _, start, M = logistic(l2=0.5)
    w, norm = accelerated_minimise(gradient, start, tolerance=1e-9, smoothness=M, convexity=0.5)
    assert norm <= 1e-9
    assert np.linalg.norm(gradient(w)) <= 1e-9
    flat = accelerated_minimise(lambda w: 2.0 * (w - 1), np.zeros(2), tolerance=1e-12, smoothness=2.0, convexity=2.0)
    assert flat[1] <= 1e-12


def test_the_number_of_steps_is_a_bound_for_the_worst_quadratic():
    spectrum = np.geomspace(1.0, 1e4, 50)
    gradient = lambda w: spectrum * (w - 1)  # noqa: E731
    start = np.zeros(50)
    norm = float(np.linalg.norm(gradient(start)))
    steps = accelerated_steps(norm, 1e-6, smoothness=1e4, convexity=1.0)
    assert 0 < steps < 10_000
    assert accelerated_steps(1e-7, 1e-6, smoothness=1e4, convexity=1.0) == 0
    assert accelerated_minimise(gradient, start, tolerance=1e-6, smoothness=1e4, convexity=1.0)[1] <= 1e-6


def test_the_fallback_takes_over_and_a_miss_releases_nothing():
    gradient, hessian, start, M = logistic(l2=0.5)
    wrong = lambda w: 1e6 * np.eye(6)  # noqa: E731 - Newton crawls
    w, norm = minimise_surely(gradient, wrong, start, tolerance=1e-8, smoothness=M, convexity=0.5, limit=3)
    assert norm <= 1e-8
    assert np.linalg.norm(gradient(w)) <= 1e-8
    with pytest.raises(BoundViolated, match="nothing is released"):
        minimise_surely(gradient, hessian, start, tolerance=1e-30, smoothness=M, convexity=0.5)
    with pytest.raises(InvalidInput):
        accelerated_minimise(gradient, start, tolerance=1e-8, smoothness=0.1, convexity=0.5)
