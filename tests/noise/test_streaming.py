"""Rows one after the other are rows of the explicit product C⁻¹Z."""

from __future__ import annotations

import numpy as np
import pytest

from tacit.errors import BudgetExhausted, InvalidInput
from tacit.noise import (
    BufferedToeplitz,
    Strategy,
    StreamingNoise,
    StreamState,
    optimise,
    optimise_buffered,
    prefix_sum,
    square_root_coefficients,
    toeplitz,
    toeplitz_sensitivity,
)

BUFFERED = BufferedToeplitz(np.array([0.3, 0.1]), np.array([0.5, 0.98]))


def strategy(T: int, b: int) -> Strategy:
    return optimise(prefix_sum(T), b, tolerance=1e-3).strategy


def dense(C: Strategy | BufferedToeplitz, T: int) -> np.ndarray:
    return (C if isinstance(C, Strategy) else Strategy(toeplitz(C.coefficients(T), T, normalise=False))).to_dense()


def rows_of(noise: StreamingNoise, state: StreamState, draws: object, count: int) -> np.ndarray:
    each = draws if isinstance(draws, np.ndarray) else [draws] * count
    return np.array([noise.next(state, z).copy() for z in each])


@pytest.mark.parametrize("size", [1, 7, 4096, 10_000])
@pytest.mark.parametrize("b", [1, 2, 3, 4, 5, 10])
def test_streaming_is_the_explicit_product(b: int, size: int) -> None:
    T = 25
    C = strategy(T, b)
    noise = StreamingNoise(C)
    state, rng = noise.init(size), np.random.default_rng(3)
    rows = rows_of(noise, state, rng, T)
    Z = np.random.default_rng(3).standard_normal((T, size))
    assert state.rows.shape == (b, size)
    assert np.abs(rows - np.linalg.solve(C.to_dense(), Z)).max() < 1e-12
    assert np.array_equal(rows, rows_of(noise, noise.init(size), Z, T))  # z itself instead of a generator
    by_bands = StreamingNoise(C.bands)
    assert np.array_equal(rows, rows_of(by_bands, by_bands.init(size), Z, T))
    with pytest.raises(BudgetExhausted):
        noise.next(state, rng)


@pytest.mark.parametrize("C", [strategy(40, 10), BUFFERED], ids=["banded", "buffered"])
def test_single_precision(C: Strategy | BufferedToeplitz) -> None:
    T, size = 40, 5000
    noise = StreamingNoise(C)
    state, rng = noise.init(size, np.float32), np.random.default_rng(4)
    rows = rows_of(noise, state, rng, T)
    again = np.random.default_rng(4)
    Z = np.array([again.standard_normal(size, dtype=np.float32) for _ in range(T)])
    assert rows.dtype == np.float32
    assert np.abs(rows - np.linalg.solve(dense(C, T), Z.astype(float))).max() < 1e-4
    assert np.array_equal(rows, rows_of(noise, noise.init(size, np.float32), Z.astype(float), T))


def test_toeplitz_without_an_end() -> None:
    c = square_root_coefficients(6)
    noise, rng = StreamingNoise(c[None, :]), np.random.default_rng(5)
    rows = rows_of(noise, noise.init(3), rng, 50)
    Z = np.random.default_rng(5).standard_normal((50, 3))
    explicit = np.linalg.solve(Strategy(toeplitz(c, 50, normalise=False)).to_dense(), Z)
    assert rows == pytest.approx(explicit, abs=1e-10)
    assert noise.steps is None
    assert StreamingNoise(Strategy(np.ones((1, 1)))).steps == 1  # a strategy of one step ends


def test_rows_cannot_be_tampered_with_and_are_not_printed() -> None:
    noise = StreamingNoise(np.ones((3, 1)))
    state = noise.init(4)
    row = noise.next(state, np.full(4, 0.12345))
    with pytest.raises(ValueError, match="read-only"):
        row[0] = 0.0
    assert "0.12" not in repr(state) + repr(noise)
    assert repr(state) == "StreamState(step=1, reached=1)"


class Interrupted(Exception):
    pass


class Breaking(np.random.Generator):
    """Fails in the middle of the row."""

    def standard_normal(self, *args: object, **fields: object) -> None:
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls == 2:
            raise Interrupted
        super().standard_normal(*args, **fields)


@pytest.mark.parametrize("b", [0, 1, 2, 5])
def test_a_row_can_be_made_again(b: int) -> None:
    """After an interrupt in the middle of a row, or after it: the same z gives the same row, and those that follow."""
    T, size = 20, 9000
    noise = StreamingNoise(strategy(T, b) if b else BUFFERED)
    Z = np.random.default_rng(6).standard_normal((T, size))
    wanted = rows_of(noise, noise.init(size), Z, T)
    state = noise.init(size)
    for t in range(T):
        with pytest.raises(Interrupted):
            noise.next(state, Breaking(np.random.PCG64(t)))
        assert state.step == t
        noise.next(state, Z[t])
        state.step -= 1
        assert np.array_equal(noise.next(state, Z[t]), wanted[t])
        state.step -= 1
        with pytest.raises(Interrupted):
            noise.next(state, Breaking(np.random.PCG64(t)))
        assert np.array_equal(noise.next(state, Z[t]), wanted[t])
        assert state.step == t + 1


def test_going_back_further_is_refused() -> None:
    noise = StreamingNoise(strategy(20, 4))
    state = noise.init(9000)
    with pytest.raises(InvalidInput, match="at most"):
        noise.next(StreamState(state.rows, -1), np.zeros(9000))
    for z in np.ones((5, 9000)):
        noise.next(state, z)
    state.step = 3
    with pytest.raises(InvalidInput, match="at most"):
        noise.next(state, np.ones(9000))
    state.step = 5
    with pytest.raises(Interrupted):
        noise.next(state, Breaking(np.random.PCG64(0)))
    state.step = 4  # row 5 was begun: it has overwritten what row 4 was made from
    with pytest.raises(InvalidInput, match="at most"):
        noise.next(state, np.ones(9000))


def test_a_state_goes_on_elsewhere() -> None:
    noise = StreamingNoise(strategy(20, 4))
    Z = np.random.default_rng(7).standard_normal((20, 3))
    wanted = rows_of(noise, noise.init(3), Z, 20)
    state = noise.init(3)
    rows_of(noise, state, Z[:11], 11)
    later = StreamState(state.rows.copy(), state.step)
    assert np.array_equal(rows_of(noise, later, Z[11:], 9), wanted[11:])


def test_buffered_streaming_is_the_explicit_product() -> None:
    T, size = 60, 5000
    C, noise = BUFFERED, StreamingNoise(BUFFERED)
    M = dense(C, T)
    state, rng = noise.init(size), np.random.default_rng(6)
    rows = rows_of(noise, state, rng, T)
    Z = np.random.default_rng(6).standard_normal((T, size))
    assert rows == pytest.approx(np.linalg.solve(M, Z), abs=1e-11)
    assert state.rows.shape == (5, size)
    S = np.tril(np.ones((T, T)))
    assert C.prefix_error(T) == pytest.approx(np.linalg.norm(S @ np.linalg.inv(M)) ** 2 / T)
    assert C.sensitivity(T) == pytest.approx(np.linalg.norm(M, axis=0).max())
    assert C.sensitivity(T, 20) == pytest.approx(np.linalg.norm(M[:, ::20].sum(axis=1)))


def test_buffered_optimum_beats_the_square_root_and_respects_the_dense_optimum() -> None:
    T = 200
    C = optimise_buffered(T, 4)
    mean = C.prefix_error(T) * C.sensitivity(T) ** 2
    c = square_root_coefficients(T)
    root = prefix_sum(T).value(toeplitz(c, T, normalise=False)) * toeplitz_sensitivity(c, T) ** 2
    best = optimise(prefix_sum(T), T, tolerance=1e-3)
    assert best.lower_bound <= mean < root


def test_what_is_refused() -> None:
    with pytest.raises(InvalidInput, match="positive first column"):
        StreamingNoise(np.array([[0.0, 1.0]]))
    noise = StreamingNoise(np.ones((2, 1)))
    with pytest.raises(InvalidInput, match="float32 or float64"):
        noise.init(3, np.int64)
    with pytest.raises(InvalidInput, match="size"):
        noise.init(0)
    for bad in (np.ones(4), np.ones((1, 3)), np.ones(3, int), "z", None):
        with pytest.raises(InvalidInput, match="3 floats"):
            noise.next(noise.init(3), bad)
    with pytest.raises(InvalidInput, match="this stream's init"):
        noise.next(StreamingNoise(BUFFERED).init(3), np.ones(3))
    with pytest.raises(InvalidInput, match="at most 1"):
        BufferedToeplitz(np.array([0.9, 0.2]), np.array([0.5, 0.5]))
    with pytest.raises(InvalidInput, match="below 1"):
        BufferedToeplitz(np.array([0.2]), np.array([1.0]))
    with pytest.raises(InvalidInput, match="increase"):
        toeplitz_sensitivity(np.array([1.0, 2.0]), 5)
