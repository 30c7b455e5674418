"""Sums of many outputs over extreme records: steps do not expand, and bounds hold in float32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from tacit.errors import InvalidInput
from tacit.problem import OneVsRest, Softmax, SquaredOutputs
from tacit.records import InMemory, Rows
from tacit.release import open_session
from tacit.release.queries import GatedOutputs, LinearOutputs
from tacit.solvers.hidden import plan_cyclic

SINGLE = np.ones((1, 1), bool)


# -- a gradient that is zero only for some W is no gradient --------------------------------------------------


def asked(x: Any, y: int, R: float = 1.0) -> list[tuple[Any, Rows]]:
    """Both queries, with one record."""
    rows = Rows(np.atleast_2d(np.asarray(x, np.float32)), np.array([y]))
    gates = np.zeros((1, rows.X.shape[1]))
    return [(LinearOutputs(Softmax(2), R), rows), (GatedOutputs(Softmax(2), R, gates), rows)]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.filterwarnings("ignore")
def test_huge_records_do_not_make_steps_expand(which: int) -> None:
    """(X @ W) overflows before it is shrunk: the record counts for |w| < 1.13 and not beyond."""
    query, rows = asked([3e38], 1)[which]
    a, b = np.array([1.130, 0.0]), np.array([1.136, 0.0])
    ga, gb = (query.total(rows, v[None], SINGLE)[0] for v in (a, b))
    assert (ga - gb) @ (a - b) >= -1e-6, "not monotone: no gradient of a convex function"
    eta = 2 / query.smoothness
    grown = np.linalg.norm((a - eta * ga) - (b - eta * gb)) / np.linalg.norm(a - b)
    assert grown <= 1 + 1e-3, f"a certified non-expansive step expands {grown:.0f}-fold"


@pytest.mark.filterwarnings("ignore")
def test_audit_of_a_run_with_huge_records() -> None:
    """End to end: hostile common records turn the chain bistable, and hiding does not happen."""
    k, b, replicas, loss = 120, 160, 120, Softmax(2)
    n, edge = k * b, 3.4028e38 / 3e38
    plan = plan_cyclic(
        None, 1e-5, n=n, batch_size=b, epochs=1, bound=loss.slope, smoothness=loss.curvature, noise_multiplier=0.3
    )
    rates = []
    for seed, record in enumerate((1.0, -1.0)):
        X, y = np.ones((n, 1), np.float32), np.zeros(n, int)
        X[:b], X[0] = edge / 2 * b / (b - 1), record  # the first batch leads to the edge of overflow
        X[b::2], y[b::2] = 3e38, 1
        with open_session(plan.certificate, InMemory(X, y), random_state=seed, replicas=replicas) as session:
            end = session.run_chain(plan.chain(), LinearOutputs(loss, 1.0), np.zeros((replicas, 2)))
        rates.append(float((end[:, 0] > edge - 0.5).mean()))
    assert plan.certificate.mu is not None
    allowed = 2 * norm.cdf(plan.certificate.mu / 2) - 1
    found, error = abs(rates[0] - rates[1]), 2 * 0.5 / np.sqrt(replicas)
    assert found <= allowed + 2 * error, f"advantage {found:.2f}, certified at most {allowed:.2f}"


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_squared_gradient_of_a_huge_residual_keeps_its_length(dtype: Any) -> None:
    """‖r‖² overflows, a/∞ = 0: the clipped gradient vanishes beyond 2e19 (1e154) instead of being a·r/‖r‖."""
    big = 3e19 if dtype is np.float32 else 1e160
    with np.errstate(all="ignore"):
        g = SquaredOutputs(2, 1.0).gradient(np.array([[big, 0.0]], dtype), np.zeros((1, 2), dtype))
    assert g[0, 0] == pytest.approx(1.0)


# -- bounds in float32 ---------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")
def test_batch_sums_move_by_no_more_than_the_sensitivity() -> None:
    """A float32 product adds up 10⁶ records: rounding after a power of two differs between neighbours (Casacuberta
    et al. 2022). Blocks of 320 rows are OpenBLAS's; another library needs another period."""
    n, loss, block = 10**6, OneVsRest(2), 320
    top = 2.0**17
    unit, count = top * 2.0**-23, int(top / 0.25)
    X, start = np.zeros((n, 4), np.float32), -(-count // block) * block
    X[:count, 0] = 0.5
    period = np.repeat(np.array([0.6, -0.4, -0.2]) * unit * 2 / block, block).astype(np.float32)
    times = (n - start) // len(period)
    X[start : start + times * len(period), 0] = np.tile(period, times)
    ends = []
    for first in (-0.9, 0.9):
        X[0, 0] = first
        query = LinearOutputs(loss, 1.0)
        ends.append(query.total(Rows(X, np.ones(n, int)), np.zeros((1, 8)), np.ones((1, n), bool))[0])
    moved = np.linalg.norm(ends[0] - ends[1])
    assert moved <= 2 * query.bound, f"one record moves the sum by {moved:.1f}, certified {2 * query.bound:.1f}"


@pytest.mark.parametrize("R", [1e-1, 1e-3, 1e-6])
@pytest.mark.filterwarnings("ignore")
def test_huge_rows_keep_the_bound_for_small_norms(R: float) -> None:
    """R/‖x‖ is a subnormal float32: too few bits to keep the row within R."""
    worst = 0.0
    for x in np.linspace(1e38, 3.4e38, 60):
        for d in (1, 10, 100):
            query, rows = asked(np.full(d, x), 0, R)[0]
            g = query.total(rows, np.zeros((1, 2 * d)), SINGLE)
            worst = max(worst, float(np.linalg.norm(g)) / (query.bound / 2))  # p = 1/2: half of the bound
    assert worst <= 1, f"{worst:.5f} times the bound"


def test_wide_rows_keep_the_bound() -> None:
    """The norm is summed up in float32: squares below half a unit in the last place are lost."""
    worst, d = 0.0, 10_000
    for lead in (1, 4, 8, 16, 32, 64):
        x = np.full(d, np.sqrt(2.0**-24 * 0.99), np.float32)
        x[:lead] = 1
        query = LinearOutputs(OneVsRest(2), 1.0)
        g = query.total(Rows(x[None], np.array([0])), np.zeros((1, 2 * d)), SINGLE)
        worst = max(worst, float(np.linalg.norm(g)) / (query.bound / 2))
    assert worst <= 1, f"{worst:.6f} times the bound"


def test_tiny_clips_keep_the_bound() -> None:
    """‖r‖² underflows to 0, so r is not clipped: 10⁷ times the bound with clip=1e-30."""
    try:
        loss = SquaredOutputs(1, 1e-30)
    except InvalidInput:
        return
    g = loss.gradient(np.array([[1e-23]], np.float32), np.zeros((1, 1), np.float32))
    assert float(np.abs(g).max()) <= loss.slope * (1 + 1e-6)


@pytest.mark.parametrize("clip", [1e-3, 1e-5, 1e-7])
def test_softmax_keeps_small_clips_in_float32(clip: float) -> None:
    """1 − p_y is a difference of float32 numbers: off by 6e-8, which is much of a small clip. (1.5e-5 is SHRINK.)"""
    try:
        loss = Softmax(2, clip)
    except InvalidInput:
        return
    z = np.log((1 - clip) / clip) + np.linspace(-3, 3, 20_001)
    g = loss.gradient(np.stack([z, 0 * z], axis=1).astype(np.float32), np.zeros(len(z), int)).astype(float)
    worst = np.linalg.norm(g, axis=1).max() / loss.slope
    assert worst <= 1 + 2.0**-16, f"{worst:.6f} times the slope"


def crossing(period: int, ones: int) -> np.ndarray:
    """4,096 records of which a library adds ``period`` after each other: ones up to 2^j, then 1.2 half units.

    With its first record a period reaches 2^j, where the last place of float32 is twice as wide; without it the others
    move up, none reaches it before its end, and what is rounded off differs by half a unit, record by record.
    """
    rows = np.full(period, 1.2 * ones * 2.0**-23)  # outputs are near 0 there, and slopes ½
    rows[:ones] = 1.0
    return np.tile(rows, 4096 // period)[:, None].astype(np.float32)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("period", "ones"), [(320, 128), (384, 128), (512, 256), (1024, 512), (2048, 512)])
def test_a_record_less_moves_a_float32_batch_by_no_more_than_its_bound(period: int, ones: int, gated: bool) -> None:
    """Added up in float32, a batch of 4,096 records moved by 1.046 times the bound of the one that was taken out."""
    X = crossing(period, ones)
    n, loss, R = len(X), Softmax(2), 1 + 2.0**-12
    query = GatedOutputs(loss, R, np.ones((1, 1))) if gated else LinearOutputs(loss, R)
    theta = np.array([[60.0, -60.0]])  # sure about the ones, and wrong
    rows, everybody = Rows(X / np.float32(np.sqrt(2.0) if gated else 1.0), np.ones(n, int)), np.ones((1, n), bool)
    others = everybody & (np.arange(n) > 0)
    for grid in (None, query.grid(query.bound / 20)):
        unit = 1.0 if grid is None else grid.unit
        whole, less = (query.total(rows, theta, members, grid) * unit for members in (everybody, others))
        moved = float(np.linalg.norm(whole - less)) / query.bound
        assert 0.99 < moved <= 1, f"one record less moves the sum by {moved:.4f} times its bound"
