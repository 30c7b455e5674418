"""Counterexamples to claim 1: contributions beyond their bound, poisoned sums, records that move each other."""

import numpy as np
import pytest
from scipy import sparse

from tacit.problem import Squared
from tacit.records import Rows
from tacit.release.queries import LossGradient, MomentSum


def _all(n):
    return np.ones((1, n), bool)


@pytest.mark.parametrize("offset", [1e300, -1e300])
def test_linear_gradient_of_a_tiny_row_stays_within_its_bound(offset):
    """‖x‖² underflows to 0, so the slope's cap is C/1e-300 and nothing is clipped."""
    rows = Rows(np.array([[1e-170, 0.0]]), np.array([offset]))
    assert np.linalg.norm(LossGradient(Squared(), 1.0).total(rows, np.zeros((1, 2)), _all(1))) <= 1 + 1e-9


def test_linear_gradient_of_a_sparse_float32_row_stays_within_its_bound():
    """A sparse float32 design squares its entries in float32, which underflows below 1e-23."""
    row = sparse.csc_array(np.array([[1e-23, 0.0]], np.float32))
    rows = Rows(row, np.array([1e30]))
    assert np.linalg.norm(LossGradient(Squared(), 1.0).total(rows, np.zeros((1, 2)), _all(1))) <= 1 + 1e-9


def test_row_norms_of_sparse_float32_are_as_precise_as_dense_ones():
    rows = np.random.default_rng(0).uniform(0.1, 1, (200, 3)).astype(np.float32)
    table, query = Rows(sparse.csc_array(rows), np.full(200, 1e30)), LossGradient(Squared(), 1.0)
    members = np.eye(200, dtype=bool)
    norms = [np.linalg.norm(query.total(table, np.zeros((1, 3)), members[[i]])) for i in range(200)]
    assert max(norms) <= 1 + 1e-12


def test_one_record_cannot_turn_sparse_moments_into_nan():
    """v² and half² overflow in the sparse formula only: inf/inf."""
    low, high = np.array([-1e160]), np.array([1e160])
    with np.errstate(all="ignore"):
        tables = np.zeros((3, 1)), np.array([[1e158], [0.0], [0.0]])
        query = MomentSum(low, high)
        pair = [query.total(Rows(sparse.csc_array(table)), np.zeros((1, 1)), _all(3)) for table in tables]
    assert np.isfinite(pair[0]).all()
    assert np.linalg.norm(pair[0] - pair[1]) <= query.diameter


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
            LossGradient(Squared(), 1.0, 10.0).total(Rows(np.tile(x, (m, 1)), np.zeros(m)), w[None], _all(m))
            for m in (n, n + 1)
        ]
        worst = max(worst, float(np.linalg.norm(pair[0] - pair[1])))
    assert worst <= 1 + 1e-9
