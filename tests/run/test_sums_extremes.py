"""Sums over extreme records: contributions stay within their bound, and no record moves another one's."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tacit.problem import Design, Penalty, Squared
from tacit.run.sums import CoordinateSweep, LinearGradient, MomentSum
from tacit.run.sums.coordinates import Blocks


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize("scale", [1e10, 1e15, 1e28])
def test_one_record_more_moves_the_sum_of_a_diverged_run_by_its_own_contribution(scale, kind):
    """Xw by a library's product rounds a record by its place: equal records moved the sum by seven times the clip."""
    rng = np.random.default_rng(0)
    blocks = Blocks(np.array([0, 1, 2, 3, 0]), np.array([4, 1]))
    worst = 0.0
    for _ in range(200):
        x, w = rng.normal(size=4), rng.normal(size=4)
        w[-1] = -(x[:-1] @ w[:-1]) / x[-1]  # xᵀw is rounding alone
        sums = []
        for n in (30, 31):
            X, ones = Design(np.tile(3 * x / np.abs(x).max(), (n, 1)).astype(kind)), np.ones(4)
            sweep = CoordinateSweep(
                X, np.zeros(n), Squared(), Penalty.of(4), blocks, clips=ones, steps=ones, divisor=50
            )
            stepped = sweep.apply(sweep.start(np.zeros(4)), -25 * scale * w, 0)
            sums.append([sweep.clipped_sum(sweep.start(scale * w), 1), sweep.clipped_sum(stepped, 1)])
        worst = max(worst, float(np.abs(np.subtract(*sums)).max()))
    assert worst <= 1 + 1e-9


@pytest.mark.parametrize(("clip", "length"), [(1e-7, 1.0), (1e-2, 1e4), (1.0, 1e6)])
def test_so_does_a_gradient(clip, length):
    """Small clips of long records see the last bits of xᵀw: one record more moved the sum by seven clips."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(300):
        signs, x = rng.choice([-1.0, 1.0], size=4), rng.normal(size=4)
        x[-1] = -(x[:-1] * signs[:-1]).sum() * signs[-1]
        x *= length / np.linalg.norm(x)
        n = int(rng.integers(1, 60))
        sums = [
            LinearGradient(Design(np.tile(x, (m, 1))), np.zeros(m), Squared(), clip).total(
                1e30 * signs[None], np.ones((1, m), bool)
            )
            for m in (n, n + 1)
        ]
        worst = max(worst, float(np.linalg.norm(sums[0] - sums[1])))
    assert worst <= clip * (1 + 1e-6)


def _all(n):
    return np.ones((1, n), bool)


@pytest.mark.parametrize("offset", [1e300, -1e300])
def test_linear_gradient_of_a_tiny_row_stays_within_its_bound(offset):
    """‖x‖² underflows to 0, so the slope's cap is C/1e-300 and nothing is clipped."""
    total = LinearGradient(Design(np.array([[1e-170, 0.0]])), np.array([offset]), Squared(), 1.0)
    assert np.linalg.norm(total.total(np.zeros((1, 2)), _all(1))) <= total.bound * (1 + 1e-9)


def test_linear_gradient_of_a_sparse_float32_row_stays_within_its_bound():
    """A sparse float32 design squares its entries in float32, which underflows below 1e-23."""
    row = sparse.csc_array(np.array([[1e-23, 0.0]], np.float32))
    total = LinearGradient(Design(row), np.array([1e30]), Squared(), 1.0)
    assert np.linalg.norm(total.total(np.zeros((1, 2)), _all(1))) <= total.bound * (1 + 1e-9)


def test_row_norms_of_sparse_float32_are_as_precise_as_dense_ones():
    rows = np.random.default_rng(0).uniform(0.1, 1, (200, 3)).astype(np.float32)
    total = LinearGradient(Design(sparse.csc_array(rows)), np.full(200, 1e30), Squared(), 1.0)
    norms = [np.linalg.norm(total.total(np.zeros((1, 3)), np.eye(200, dtype=bool)[[i]])) for i in range(200)]
    assert max(norms) <= total.bound * (1 + 1e-12)


def test_one_record_cannot_turn_sparse_moments_into_nan():
    """v² and half² overflow in the sparse formula only: inf/inf."""
    low, high = np.array([-1e160]), np.array([1e160])
    with np.errstate(all="ignore"):
        calm = MomentSum(sparse.csc_array(np.zeros((3, 1))), low, high)
        poisoned = MomentSum(sparse.csc_array(np.array([[1e158], [0.0], [0.0]])), low, high)
        pair = [one.total(np.zeros((1, 1)), _all(3)) for one in (calm, poisoned)]
    assert np.isfinite(pair[0]).all()
    assert np.linalg.norm(pair[0] - pair[1]) <= calm.diameter


def test_adding_a_record_moves_a_gradient_by_its_own_contribution_only():
    """BLAS sums a row of Xw in another order in the tail of the matrix than in its body; at diverged states z is all
    rounding, so that another record count flips the slopes of up to seven other records."""
    rng = np.random.default_rng(0)
    worst = 0.0
    for _ in range(2000):
        x, w = rng.normal(size=4), rng.normal(size=4)
        w[-1] = -(x[:-1] @ w[:-1]) / x[-1]
        n, w = int(rng.integers(1, 40)), w * 1e28
        pair = [
            LinearGradient(Design(np.tile(x, (m, 1))), np.zeros(m), Squared(), 1.0, row_norm=10.0).total(
                w[None], _all(m)
            )
            for m in (n, n + 1)
        ]
        worst = max(worst, float(np.linalg.norm(pair[0] - pair[1])))
    assert worst <= 1 + 1e-9
