"""The logistic function: accurate, and the same bits wherever an entry stands."""

from __future__ import annotations

import mpmath
import numpy as np

from tacit.kernels.logistic import logistic


def test_it_is_accurate_to_a_few_last_places():
    rng = np.random.default_rng(0)
    z = np.concatenate([rng.normal(size=300) * scale for scale in (1e-3, 1.0, 20.0, 250.0)])
    with mpmath.workdps(40):
        exact = [1 / (1 + mpmath.exp(-mpmath.mpf(float(v)))) for v in np.clip(z, -690, 690)]
        error = max(abs(mpmath.mpf(float(got)) / want - 1) for got, want in zip(logistic(z), exact, strict=True))
    assert error < 1e-14


def test_ends_saturate_and_halves_meet():
    found = logistic([0.0, -0.0, 1e308, -1e308, np.inf, -np.inf])
    assert (found[:2] == 0.5).all()
    assert (found[[2, 4]] == 1.0).all()
    assert (found[[3, 5]] > 0).all()
    assert (found[[3, 5]] < 1e-299).all()
    assert logistic(np.zeros((2, 3))).shape == (2, 3)
    assert (np.diff(logistic(np.linspace(-40, 40, 100_001))) >= -(2.0**-52)).all()  # one last place below 1


def test_no_place_changes_a_bit():
    z = np.random.default_rng(1).normal(size=1003) * 30
    whole = logistic(z)
    for size in (1, 2, 3, 7, 500):
        assert all((logistic(z[i : i + size]) == whole[i : i + size]).all() for i in range(0, 1003 - size, 11))
