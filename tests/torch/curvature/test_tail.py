"""Eq. (4) and the envelope."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.errors import InvalidInput
from tacit.torch.curvature import Count, TailFit, fit_tail
from tacit.torch.curvature.tail import bounded_tail, envelope


def test_the_curve_is_recovered_where_it_is_the_truth() -> None:
    truth = TailFit(C=4.0, alpha=0.6, count=900.0, threshold=1e-6, least_squares=4.0)
    fit = fit_tail(truth(np.arange(1, 41)), 900, 1e-6)
    assert (fit.C, fit.alpha) == pytest.approx((4.0, 0.6), rel=1e-6)
    assert np.allclose(fit(np.arange(1, 1000)), truth(np.arange(1, 1000)), rtol=1e-6)
    assert fit(900) == pytest.approx(1e-6)
    assert fit(901) == 0


@pytest.mark.parametrize("seed", range(20))
def test_the_curve_decreases_and_is_above_what_was_computed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, 40))
    top = np.sort(10 ** rng.uniform(-5, 1, k))[::-1]
    fit = fit_tail(top, k + rng.uniform(0.5, 1000), 1e-6)
    i = np.arange(1, int(fit.count) + 3)
    assert (fit(i[:k]) >= top).all()
    assert (np.diff(fit(i)) <= 0).all()
    assert fit.least_squares * (1 - 1e-9) <= fit.C


def test_what_cannot_be_fitted_is_refused() -> None:
    with pytest.raises(InvalidInput, match="above the threshold"):
        fit_tail([1.0, 1e-7], 10, 1e-6)
    with pytest.raises(InvalidInput, match="decrease"):
        fit_tail([1.0, 2.0], 10, 1e-6)
    with pytest.raises(InvalidInput, match="no tail"):
        fit_tail([2.0, 1.0], 2, 1e-6)


def test_the_envelope_bounds_every_spectrum_with_these_counts() -> None:
    mu = np.sort(np.random.default_rng(0).exponential(1, 500) ** 3)[::-1]
    levels = np.geomspace(1e-4, 5, 30)
    counts = [(mu > x).sum() for x in levels]
    bound = envelope(levels, counts, np.arange(1, 501), mu[0])
    assert (bound >= mu).all()
    assert (np.diff(bound) <= 0).all()
    assert (bound <= np.maximum(mu * (levels[1] / levels[0]) * (1 + 1e-9), levels[0]))[counts[-1] :].all()


def test_a_wrong_curve_is_corrected_by_the_density() -> None:
    """A plateau that the largest eigenvalues do not show."""
    mu = np.concatenate([10.0 ** -np.arange(0, 2, 0.2), np.full(200, 8e-3), np.full(100, 1e-5), np.zeros(50)])
    fit = fit_tail(mu[:10], 310, 1e-6)
    positions = np.arange(11.0, 361)
    assert (fit(positions) < mu[10:]).any()
    levels = np.geomspace(1e-6, mu[9], 96)
    counts = [Count(x, n := float((mu > x).sum()), 0.9 * n, 1.1 * n, 0.0) for x in levels]
    tail, bound = bounded_tail(fit, counts, positions, mu[9])
    assert (tail >= mu[10:]).all()
    assert (bound >= tail).all()
    assert (tail[300:] == 0).all()
