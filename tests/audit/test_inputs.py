"""Every audit refuses what it cannot use, in one line that says what to do."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.audit import audit_epsilon, audit_gdp, audit_one_run
from tacit.errors import InvalidInput


def _noise(shift: float = 0.0):
    return lambda k: np.random.default_rng(1).normal(size=k) + shift


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (lambda k: np.zeros(k - 1), r"must have shape \(400,\) or \(400, p\), got \(399,\)"),
        (lambda k: np.zeros((k, 2, 2)), r"got \(400, 2, 2\)"),
        (lambda k: np.zeros((k, 0)), r"got \(400, 0\)"),
        (lambda k: np.zeros((2, k)), r"got \(2, 400\)"),
        (lambda k: 1.0, r"got \(\)"),
        (lambda k: np.full(k, np.nan), "must be finite"),
        (lambda k: np.full(k, np.inf), "must be finite"),
        (lambda k: np.zeros(k, dtype=complex), "must be real numbers"),
        (lambda k: ["a"] * k, "must be real numbers"),
        (lambda k: [[0.0]] * (k - 1) + [[0.0, 1.0]], "rows of different lengths"),
        (lambda k: None, "must be real numbers"),
        (3, "sample_on_D2 must be callable"),
    ],
)
def test_bad_samplers(sampler: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        audit_gdp(_noise(), sampler, 400)
    assert "\n" not in str(caught.value)
    with pytest.raises(InvalidInput, match="sample_on_D"):
        audit_epsilon(sampler, _noise(), 400, 1e-5)


def test_samplers_must_agree() -> None:
    with pytest.raises(InvalidInput, match=r"agree in shape, got \(400,\) and \(400, 2\)"):
        audit_gdp(_noise(), lambda k: np.zeros((k, 2)), 400)


@pytest.mark.parametrize(
    ("statistic", "message"),
    [
        (lambda Z: Z[:-1], r"statistic\(outputs\) must have shape \(400,\)"),
        (lambda Z: Z * np.nan, "must be finite"),
        (lambda Z: float(Z.sum()), "must have shape"),
        ("norm", "statistic must be callable"),
    ],
)
def test_bad_statistics(statistic: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        audit_gdp(_noise(), _noise(1), 400, statistic=statistic)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_runs": 199}, "n_runs = 199 is too few.*at least 200 runs a side"),
        ({"n_runs": 1000, "pilot": 0.01}, "at least 2000 runs a side"),
        ({"n_runs": 39, "pilot": 0.5}, "at least 40 runs a side"),
        ({"n_runs": 0}, "positive integer"),
        ({"n_runs": 1000.5}, "positive integer"),
        ({"n_runs": "many"}, "positive integer"),
        ({"confidence": 0.0}, "confidence must lie strictly between 0 and 1"),
        ({"confidence": 1.0}, "confidence must lie strictly between 0 and 1"),
        ({"confidence": float("nan")}, "confidence is NaN"),
        ({"confidence": "high"}, "confidence must be a real number"),
        ({"pilot": 0.0}, r"pilot must lie in \(0, 0.5\]"),
        ({"pilot": 0.51}, r"pilot must lie in \(0, 0.5\]"),
        ({"pilot": -1}, r"pilot must lie in \(0, 0.5\]"),
    ],
)
def test_bad_numbers(arguments: dict, message: str) -> None:
    settings = {"n_runs": 400} | arguments
    with pytest.raises(InvalidInput, match=message):
        audit_gdp(_noise(), _noise(1), **settings)
    with pytest.raises(InvalidInput, match=message):
        audit_epsilon(_noise(), _noise(1), delta=1e-5, **settings)


@pytest.mark.parametrize(("pilot", "confidence"), [(0.1, 0.95), (0.07, 0.95), (0.5, 0.999999999999), (0.3, 0.5)])
def test_fewest_runs_named_are_enough(pilot: float, confidence: float) -> None:
    with pytest.raises(InvalidInput) as caught:
        audit_gdp(_noise(), _noise(1), 1, pilot=pilot, confidence=confidence)
    least = int(str(caught.value).split("at least ")[1].split()[0])
    audit = audit_gdp(lambda k: np.zeros(k), lambda k: np.ones(k), least, pilot=pilot, confidence=confidence)
    assert audit.mu_lower > 0
    with pytest.raises(InvalidInput, match="too few"):
        audit_gdp(_noise(), _noise(1), least - 1, pilot=pilot, confidence=confidence)


@pytest.mark.parametrize("delta", [-0.1, 1.0, 2, None, float("nan"), "small", True])
def test_bad_delta(delta: object) -> None:
    with pytest.raises(InvalidInput, match="delta"):
        audit_epsilon(_noise(), _noise(1), 400, delta)
    with pytest.raises(InvalidInput, match="delta"):
        audit_one_run(np.zeros(10), np.ones(10), delta=delta)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"scores": np.zeros(9)}, r"scores must have shape \(10,\), as included, got \(9,\)"),
        ({"scores": np.zeros((10, 1))}, "scores must have shape"),
        ({"scores": np.full(10, np.nan)}, "scores must be finite"),
        ({"included": np.arange(10)}, "included must be m booleans"),
        ({"included": np.ones((10, 1))}, "included must be m booleans"),
        ({"included": []}, "included must be m booleans"),
        ({"included": ["in"] * 10}, "included must be m booleans"),
        ({"n_guesses": 11}, "between 1 and the 10 canaries"),
        ({"n_guesses": 0}, "positive integer"),
        ({"n_guesses": (0, 0)}, "between 1 and the 10 canaries"),
        ({"n_guesses": (6, 5)}, "between 1 and the 10 canaries"),
        ({"n_guesses": (-1, 5)}, "must not be negative"),
        ({"n_guesses": (1.5, 5)}, "whole numbers"),
        ({"n_guesses": (1, 2, 3)}, "pair"),
        ({"confidence": 1.0}, "confidence"),
        ({"rng": 3}, "rng must be a numpy.random.Generator"),
    ],
)
def test_bad_canaries(arguments: dict, message: str) -> None:
    settings = {"scores": np.zeros(10), "included": np.arange(10) % 2, "delta": 1e-5} | arguments
    with pytest.raises(InvalidInput, match=message):
        audit_one_run(**settings)


def test_integers_and_lists_are_fine() -> None:
    rng = np.random.default_rng(2)
    audit = audit_gdp(lambda k: list(rng.integers(0, 5, k)), lambda k: list(rng.integers(3, 8, k)), 1e3)
    assert audit.mu_lower > 1
    assert audit_one_run([3, 1, 2, 0], [True, False, True, False], delta=0).n_canaries == 4


def test_sampler_is_called_once_with_all_runs() -> None:
    calls = []

    def sample(k: int) -> np.ndarray:
        calls.append(k)
        return np.random.default_rng(k).normal(size=k)

    audit_gdp(sample, sample, 400)
    assert calls == [400, 400]


def test_global_random_state_is_untouched() -> None:
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    audit_gdp(_noise(), _noise(1), 400)
    audit_one_run(np.zeros(50), np.arange(50) % 2, delta=1e-5)
    assert (np.random.get_state()[1] == before).all()  # noqa: NPY002
