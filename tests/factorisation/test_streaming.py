"""Rows one after the other are rows of the explicit product C⁻¹Z."""

from __future__ import annotations

import doctest
from pathlib import Path

import numpy as np
import pytest

from tacit.errors import BudgetExhausted, InvalidInput
from tacit.factorisation import (
    BufferedToeplitz,
    buffered_next_row,
    init,
    next_row,
    optimise,
    optimise_buffered,
    prefix_sum,
    square_root_coefficients,
    to_dense,
    toeplitz,
    toeplitz_sensitivity,
)


@pytest.mark.parametrize("size", [1, 7, 4096, 10_000])
@pytest.mark.parametrize("b", [1, 2, 3, 4, 5, 10])
def test_streaming_is_the_explicit_product(b: int, size: int) -> None:
    T = 25
    bands = optimise(prefix_sum(T), b, tolerance=1e-3).bands
    state, rng = init(bands, size), np.random.default_rng(3)
    rows = np.array([next_row(state, rng).copy() for _ in range(T)])
    Z = np.random.default_rng(3).standard_normal((T, size))
    assert np.abs(rows - np.linalg.solve(to_dense(bands), Z)).max() < 1e-12
    with pytest.raises(BudgetExhausted):
        next_row(state, rng)


def test_single_precision() -> None:
    T, size = 40, 5000
    bands = optimise(prefix_sum(T), 10, tolerance=1e-3).bands
    state, rng = init(bands, size, np.float32), np.random.default_rng(4)
    rows = np.array([next_row(state, rng).copy() for _ in range(T)])
    again = np.random.default_rng(4)
    Z = np.array([again.standard_normal(size, dtype=np.float32) for _ in range(T)])
    assert rows.dtype == np.float32
    assert np.abs(rows - np.linalg.solve(to_dense(bands), Z.astype(float))).max() < 1e-4


def test_toeplitz_without_an_end() -> None:
    c = square_root_coefficients(6)
    state, rng = init(c[None, :], 3), np.random.default_rng(5)
    rows = np.array([next_row(state, rng).copy() for _ in range(50)])
    Z = np.random.default_rng(5).standard_normal((50, 3))
    assert rows == pytest.approx(np.linalg.solve(to_dense(toeplitz(c, 50, normalise=False)), Z), abs=1e-10)


def test_rows_cannot_be_tampered_with_and_are_not_printed() -> None:
    state = init(np.ones((3, 1)), 4)
    row = next_row(state, np.random.default_rng(0))
    with pytest.raises(ValueError, match="read-only"):
        row[0] = 0.0
    assert "ring" not in repr(state)


def test_buffered_streaming_is_the_explicit_product() -> None:
    T, size = 60, 5
    C = BufferedToeplitz(np.array([0.3, 0.1]), np.array([0.5, 0.98]))
    M = to_dense(toeplitz(C.coefficients(T), T, normalise=False))
    state, rng = C.init(size), np.random.default_rng(6)
    rows = np.array([buffered_next_row(state, rng) for _ in range(T)])
    Z = np.random.default_rng(6).standard_normal((T, size))
    assert rows == pytest.approx(np.linalg.solve(M, Z), abs=1e-11)
    assert state.buffers.shape == (2, size)
    S = np.tril(np.ones((T, T)))
    assert C.prefix_error(T) == pytest.approx(np.linalg.norm(S @ np.linalg.inv(M)) ** 2 / T)
    assert C.sensitivity(T) == pytest.approx(np.linalg.norm(M, axis=0).max())
    assert C.sensitivity(T, 20) == pytest.approx(np.linalg.norm(M[:, ::20].sum(axis=1)))


def test_buffered_optimum_beats_the_square_root_and_respects_the_dense_optimum() -> None:
    T = 200
    C = optimise_buffered(T, 4)
    mean = C.prefix_error(T) * C.sensitivity(T) ** 2
    c = square_root_coefficients(T)
    root = prefix_sum(T).value(toeplitz(c, T, normalise=False)) / T * toeplitz_sensitivity(c, T) ** 2
    best = optimise(prefix_sum(T), T, tolerance=1e-3)
    assert best.lower_bound / T <= mean < root


def test_what_is_refused() -> None:
    with pytest.raises(InvalidInput, match="positive first column"):
        init(np.array([[0.0, 1.0]]), 3)
    with pytest.raises(InvalidInput, match="float32 or float64"):
        init(np.ones((2, 1)), 3, np.int64)
    with pytest.raises(InvalidInput, match="at most 1"):
        BufferedToeplitz(np.array([0.9, 0.2]), np.array([0.5, 0.5]))
    with pytest.raises(InvalidInput, match="below 1"):
        BufferedToeplitz(np.array([0.2]), np.array([1.0]))
    with pytest.raises(InvalidInput, match="increase"):
        toeplitz_sensitivity(np.array([1.0, 2.0]), 5)


def test_the_page() -> None:
    page = Path(__file__).parents[2] / "docs" / "factorisation.md"
    result = doctest.testfile(str(page), module_relative=False)
    assert result.attempted >= 10
    assert result.failed == 0
