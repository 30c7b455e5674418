"""``audit_epsilon``: the (ε, δ) bound is below the truth with confidence, and not far below."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tacit.audit import audit_epsilon


def _laplace(shift: float, rng: np.random.Generator):
    return lambda k: rng.laplace(size=k) + shift


def _response(bit: bool, epsilon: float, rng: np.random.Generator):
    truth = 1 / (1 + math.exp(-epsilon))
    return lambda k: (rng.random(k) < (truth if bit else 1 - truth)).astype(float)


def test_randomised_response_is_found_almost_exactly() -> None:
    rng = np.random.default_rng(31)
    for epsilon in (0.5, 1.0, 3.0):
        pair = _response(False, epsilon, rng), _response(True, epsilon, rng)
        found = np.mean([audit_epsilon(*pair, 10_000, 0.0).epsilon_lower for _ in range(10)])
        print(f"randomised response, ε = {epsilon}: {found:.3f}")
        assert 0.85 * epsilon < found < epsilon


def test_laplace_and_gaussian_are_found(gaussian_pair, gaussian_claim) -> None:
    rng = np.random.default_rng(32)
    for pair, truth, least in (
        ((_laplace(0, rng), _laplace(1, rng)), 1.0, 0.85),
        ((_laplace(0, rng), _laplace(3, rng)), 3.0, 0.88),
        (gaussian_pair(1.43, rng), gaussian_claim(1.43).epsilon(1e-5), 0.44),
        (gaussian_pair(4.0, rng), gaussian_claim(4.0).epsilon(1e-5), 0.27),
    ):
        found = np.mean([audit_epsilon(*pair, 10_000, 1e-5).epsilon_lower for _ in range(15)])
        print(f"ε = {truth:.3f}: {found:.3f}")
        assert least * truth < found < truth


def test_coverage(too_many) -> None:
    rng = np.random.default_rng(33)
    pair = _response(False, 1.0, rng), _response(True, 1.0, rng)
    repetitions = 800
    audits = [audit_epsilon(*pair, 400, 0.0) for _ in range(repetitions)]
    assert not too_many(sum(a.epsilon_lower > 1 for a in audits), repetitions, 0.05)
    # The same check must catch an audit of half the confidence that it is said to have.
    careless = [audit_epsilon(*pair, 400, 0.0, confidence=0.2) for _ in range(repetitions)]
    assert too_many(sum(a.epsilon_lower > 1 for a in careless), repetitions, 0.05)


def test_direction_does_not_matter() -> None:
    rng = np.random.default_rng(34)
    X, Y = rng.laplace(size=5000), rng.laplace(size=5000) + 2
    one = audit_epsilon(lambda k: X[:k], lambda k: Y[:k], 5000, 1e-5)
    for A, B in ((Y, X), (-X, -Y)):
        other = audit_epsilon(lambda k, A=A: A[:k], lambda k, B=B: B[:k], 5000, 1e-5)
        assert other.epsilon_lower == pytest.approx(one.epsilon_lower, abs=1e-2)


def test_bound_is_the_formula_and_is_readable() -> None:
    rng = np.random.default_rng(35)
    audit = audit_epsilon(_laplace(0, rng), _laplace(2, rng), 4000, 0.01)
    a, b = audit.false_positive_upper, audit.false_negative_upper
    assert audit.epsilon_lower == pytest.approx(max(math.log((0.99 - b) / a), math.log((0.99 - a) / b)))
    assert str(audit).startswith(f"(ε, δ) audit: ε ≥ {audit.epsilon_lower:.4g} at δ = 0.01 with 95 % confidence")


def test_nothing_to_see_gives_zero() -> None:
    rng = np.random.default_rng(36)
    assert audit_epsilon(_laplace(0, rng), _laplace(0, rng), 2000, 1e-5).epsilon_lower == 0.0
    assert audit_epsilon(lambda k: np.zeros(k), lambda k: np.zeros(k), 400, 1e-5).epsilon_lower == 0.0
