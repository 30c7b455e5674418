"""Theorem 4.1 by running it: the excess loss of the last iterate with noise as it is drawn."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.noise import Strategy, StreamingNoise, identity, noisecurve_workload, optimise, prefix_sum

T, B, RUNS, ETA, SIGMA = 120, 6, 1000, 0.5, 0.3
MU = np.logspace(0, -3, 12)


def excess(strategy: Strategy, seed: int, sign: float = 1.0) -> tuple[float, float]:
    """Mean and standard error over the runs; ``sign`` −1 plants a bug: every other row has the wrong sign."""
    noise, rng = StreamingNoise(strategy), np.random.default_rng(seed)
    state = noise.init(RUNS * len(MU))
    w, plain = np.ones((RUNS, len(MU))), np.ones(len(MU))
    for t in range(T):
        row = noise.next(state, rng).reshape(RUNS, -1)
        w -= ETA * (MU * w + SIGMA * (sign if t % 2 else 1.0) * row)
        plain -= ETA * MU * plain
    losses = 0.5 * (MU * (w * w - plain * plain)).sum(axis=1)
    return float(losses.mean()), float(losses.std(ddof=1) / RUNS**0.5)


@pytest.fixture(scope="module")
def strategies() -> dict[str, Strategy]:
    banded = optimise(prefix_sum(T), B).strategy
    curved = optimise(noisecurve_workload(MU, ETA, T), B, start=banded).strategy
    return {"independent": Strategy(identity(T)), "banded": banded, "curved": curved}


def theory(strategy: Strategy) -> float:
    return 0.5 * ETA**2 * SIGMA**2 * noisecurve_workload(MU, ETA, T).value(strategy.bands)


def test_the_excess_loss_is_the_theorem_s(strategies: dict[str, Strategy]) -> None:
    measured = []
    for seed, strategy in enumerate(strategies.values()):
        mean, error = excess(strategy, seed)
        assert abs(mean - theory(strategy)) < 4 * error  # fails by chance once in 5000 seeds
        assert error < 0.08 * mean  # sharp enough to see a mistake
        measured.append(mean)
    assert measured == sorted(measured, reverse=True)


def test_it_would_notice_a_wrong_row(strategies: dict[str, Strategy]) -> None:
    mean, error = excess(strategies["banded"], 1, sign=-1.0)
    assert abs(mean - theory(strategies["banded"])) > 10 * error
