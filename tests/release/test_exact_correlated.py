"""Correlated noise in exact arithmetic: releases are integers K·Q + R, and what a run prints is a function of them."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from tacit.accounting import certify
from tacit.accounting.banded import participation_sensitivity
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.mechanism import Adjacency, CorrelatedNoise, CyclicPoisson, FrozenArray, FullBatch, Mechanism, Separated
from tacit.noise import Strategy, optimise, prefix_sum, sgd_workload
from tacit.noise.sums import CorrelatedSums
from tacit.problem import Logistic
from tacit.records import InMemory
from tacit.release import channel as channels
from tacit.release import open_session
from tacit.release.queries import CountedSum, GramSum, LossGradient, VectorSum
from tacit.release.query import Grid

RNG = np.random.default_rng(11)
TABLE = RNG.normal(size=(40, 3))
BANDS = RNG.uniform(-0.5, 0.5, size=(7, 3)) + np.eye(3)[0]
STRATEGIES = {
    "toeplitz": CorrelatedNoise.toeplitz([1.0, -0.37, 0.21, 0.03]).rounded(),
    "columns": CorrelatedNoise(FrozenArray(BANDS)).rounded(10),
    "one band": CorrelatedNoise(FrozenArray([[0.7]])).rounded(),
    "more bands than steps": CorrelatedNoise.toeplitz(0.8 ** np.arange(9)).rounded(20),
    "large": CorrelatedNoise.toeplitz([3000.0, 1234.5]).rounded(),
}


def mechanism(noise, **more) -> Mechanism:
    return Mechanism(adjacency="replace-one", ratio=0.8, steps=7, noise=noise, arithmetic="exact", **more)


def optimum(T: int = 64, b: int = 8) -> Strategy:
    return optimise(prefix_sum(T), b, tolerance=1e-4).strategy


class Spy:
    """What the channel draws, and the integers it adds it to."""

    def __init__(self, monkeypatch, replay=None) -> None:
        self.noise, self.sums, self.scales, self.released = [], [], [], []
        drawn, mixed, solved = channels.rounded_normal, CorrelatedSums.mixed, CorrelatedSums.solved

        def draw(rng, scale, size):
            self.scales.append(scale)
            self.noise.append(drawn(rng, scale, size) if replay is None else replay[len(self.noise)])
            return self.noise[-1]

        def mix(stream, state, t, sums):
            self.sums.append(sums.copy())
            return mixed(stream, state, t, sums)

        def solve(stream, state, t, released):
            self.released.append(released.copy())
            return solved(stream, state, t, released)

        monkeypatch.setattr(channels, "rounded_normal", draw)
        monkeypatch.setattr(CorrelatedSums, "mixed", mix)
        monkeypatch.setattr(CorrelatedSums, "solved", solve)


def run(table, noise):
    """All releases of a run: (steps, size)."""
    with open_session(certify(mechanism(noise)), InMemory(table), random_state=5) as session:
        return np.array([session.release(VectorSum(1.0)) for _ in range(7)])


def integers(noise, steps=7):
    """K in Python's integers, and g_c."""
    unit = Fraction(noise.unit)
    return [[int(Fraction(c) / unit) for c in row] for row in noise.to_dense(steps).tolist()], unit


def python_product(K, rows):
    return [
        [sum(k * int(q) for k, q in zip(row, column, strict=True)) for column in zip(*rows, strict=True)] for row in K
    ]


# -- what is released -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", STRATEGIES)
def test_releases_are_what_explicit_matrices_of_python_integers_give(monkeypatch, name):
    noise, spy = STRATEGIES[name], Spy(monkeypatch)
    found = run(TABLE, noise)
    K, unit = integers(noise)
    mixed = python_product(K, spy.sums)
    r = [[a + int(b) for a, b in zip(row, R[0], strict=True)] for row, R in zip(mixed, spy.noise, strict=True)]
    grid = Fraction(VectorSum(1.0).grid(np.nextafter(2 / 0.8, 3) / noise.unit).unit)
    assert all(
        Fraction(x) == grid * unit * k
        for row, ks in zip(spy.released, r, strict=True)
        for x, k in zip(row, ks, strict=True)
    )
    C = noise.to_dense(7)
    np.testing.assert_allclose(found, np.linalg.solve(C, np.array(spy.released)), rtol=1e-10, atol=1e-10)
    np.testing.assert_array_equal(np.rint(C @ found / float(grid * unit)), np.array(r, float))


@pytest.mark.parametrize("name", STRATEGIES)
def test_the_scale_of_the_noise_is_rounded_up_and_within_the_samplers_range(monkeypatch, name):
    noise, spy = STRATEGIES[name], Spy(monkeypatch)
    run(TABLE, noise)
    grid = Fraction(VectorSum(1.0).grid(np.nextafter(2 / 0.8, 3) / noise.unit).unit)
    for scale in spy.scales:
        assert Fraction(2) / Fraction(0.8) <= Fraction(scale) * grid * Fraction(noise.unit)
        assert 2**33 < scale <= 2**36


def test_the_sums_are_those_of_the_query_and_close_to_the_releases_without_noise(monkeypatch):
    spy = Spy(monkeypatch, replay=[np.zeros((1, 3), np.int64)] * 7)
    found = run(TABLE, STRATEGIES["toeplitz"])
    clipped = TABLE * np.minimum(1, 1 / np.linalg.norm(TABLE, axis=1))[:, None]
    np.testing.assert_allclose(found, np.tile(clipped.sum(axis=0), (7, 1)), atol=1e-5)
    assert len({q.tobytes() for q in spy.sums}) == 1


def test_any_output_is_possible_on_a_neighbour_to_the_last_bit(monkeypatch):
    """R′ = R + K·(Q − Q′) gives every bit of the same run: no bit tells neighbours apart."""
    noise = STRATEGIES["columns"]
    other = TABLE.copy()
    other[0] = -3 * TABLE[0]
    with monkeypatch.context() as patch:
        here = Spy(patch)
        found = run(TABLE, noise)
    with monkeypatch.context() as patch:
        there = Spy(patch)
        assert not np.array_equal(run(other, noise), found)
    K, _ = integers(noise)
    moved = python_product(K, np.array(here.sums) - np.array(there.sums))
    replay = [R + np.array([row]) for R, row in zip(here.noise, moved, strict=True)]
    with monkeypatch.context() as patch:
        Spy(patch, replay=replay)
        np.testing.assert_array_equal(run(other, noise), found)


@pytest.mark.parametrize("sampling", [FullBatch(), Separated(2, 3)], ids=lambda s: type(s).__name__)
@pytest.mark.parametrize("name", STRATEGIES)
def test_integers_of_neighbours_move_by_no_more_than_the_certificate_says(monkeypatch, name, sampling):
    """‖g·g_c·K(Q − Q′)‖ ≤ Δ × participation sensitivity, in fractions and with no tolerance but the bound's own."""
    noise = STRATEGIES[name]
    turns = [True] * 7 if isinstance(sampling, FullBatch) else [t in (0, 3, 5) for t in range(7)]
    other = TABLE.copy()
    other[0] = -TABLE[0]
    rows = []
    for table in (TABLE, other):
        with monkeypatch.context() as patch:
            spy = Spy(patch)
            run(table, noise)
            rows.append(np.array(spy.sums))
    moved = [[int(x) * turn for x in row] for row, turn in zip(rows[0] - rows[1], turns, strict=True)]
    K, unit = integers(noise)
    grid = Fraction(VectorSum(1.0).grid(np.nextafter(2 / 0.8, 3) / noise.unit).unit)
    square = (grid * unit) ** 2 * sum(x * x for row in python_product(K, moved) for x in row)
    bound = Fraction(2.0 * participation_sensitivity(noise, 7, sampling)) ** 2
    assert square <= bound * (1 + Fraction(1, 10**12))


def test_wrap_around_changes_nothing():
    """Integers modulo 2⁶⁴: K·Q + R is the same class, whichever partial sum left the range first."""
    K = np.array([[0.5, 0.25, -0.75]])
    stream = CorrelatedSums(K)
    state, far = stream.init(2), RNG.integers(-(2**62), 2**62, size=(6, 2))
    for t, q in enumerate(far):
        row = stream.mixed(state, t, q)
        exact = [sum(int(K[0, i] * 4) * int(far[t - i, j]) for i in range(min(3, t + 1))) for j in range(2)]
        assert [int(x) for x in row] == [(x + 2**63) % 2**64 - 2**63 for x in exact]


def test_the_covariance_of_the_noise_is_that_of_C_inverse_Z():
    noise = STRATEGIES["columns"]
    zeros = np.zeros((2, 20_000))
    found = run(zeros, noise)
    inverse = np.linalg.inv(noise.to_dense(7)) * (2 / 0.8)
    expected = inverse @ inverse.T
    error = found @ found.T / zeros.shape[1] - expected
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)) + expected**2)
    assert np.abs(error / scale).max() < 5 / np.sqrt(zeros.shape[1])


# -- state ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stop", range(8))
@pytest.mark.parametrize("name", ["toeplitz", "columns", "more bands than steps"])
def test_a_resumed_run_goes_on_to_the_bit(name, stop):
    certificate, records, query = certify(mechanism(STRATEGIES[name])), InMemory(TABLE), VectorSum(1.0)
    with open_session(certificate, records) as session:
        start = session.checkpoint()
    with open_session(certificate, records, resume=start) as session:
        whole = [session.release(query) for _ in range(7)]
    with open_session(certificate, records, resume=start) as session:
        first = [session.release(query) for _ in range(stop)]
        point = session.checkpoint()
    with open_session(certificate, records, resume=point) as session:
        np.testing.assert_array_equal([*first, *(session.release(query) for _ in range(7 - stop))], whole)


def test_a_stream_may_depend_on_its_releases(monkeypatch):
    """An adaptive run: its integers are those of a matrix product whose rows are only known one after the other."""
    noise, query = STRATEGIES["columns"], CountedSum(LossGradient(Logistic(), 1.0, 1.0))
    spy, state = Spy(monkeypatch), np.zeros(3)
    with open_session(certify(mechanism(noise)), InMemory(TABLE, np.sign(TABLE[:, 0]))) as session:
        sigma = np.nextafter(session.noise_std(query), 9)
        for _ in range(7):
            state = state - session.release(query, state)[:3]
    assert len({q.tobytes() for q in spy.sums}) == 7
    r = np.array(python_product(integers(noise)[0], spy.sums)) + np.array(spy.noise)[:, 0]
    np.testing.assert_array_equal(spy.released, r * query.grid(sigma / noise.unit).unit * noise.unit)


def test_public_factors_stay_out_of_the_integers(monkeypatch):
    noise, query, spy = STRATEGIES["toeplitz"], GramSum(1.0), Spy(monkeypatch)
    with open_session(certify(mechanism(noise)), InMemory(TABLE)) as session:
        sigma = np.nextafter(session.noise_std(query), 9)
        found = np.array([session.release(query) for _ in range(7)])
    unit = query.grid(sigma / noise.unit).unit * noise.unit * query.scales(6)
    r = np.array(python_product(integers(noise)[0], spy.sums)) + np.array(spy.noise)[:, 0]
    np.testing.assert_array_equal(spy.released, r * unit)
    np.testing.assert_allclose(noise.to_dense(7) @ found, r * unit, rtol=1e-9, atol=1e-9)
    assert all((scale * unit >= sigma * (1 - 1e-15)).all() and scale.max() <= 2**36 for scale in spy.scales)


def test_an_interrupted_release_is_made_again(monkeypatch):
    noise = STRATEGIES["toeplitz"]
    whole = run(TABLE, noise)
    with open_session(certify(mechanism(noise)), InMemory(TABLE), random_state=5) as session:
        found = [session.release(VectorSum(1.0)) for _ in range(4)]
        for name in ("mixed", "solved"):  # the row was begun, and its sum kept
            with monkeypatch.context() as patch:
                inner = getattr(CorrelatedSums, name)

                def broken(*args, inner=inner):
                    inner(*args)
                    raise KeyboardInterrupt

                patch.setattr(CorrelatedSums, name, broken)
                with pytest.raises(KeyboardInterrupt):
                    session.release(VectorSum(1.0))
        found += [session.release(VectorSum(1.0)) for _ in range(3)]
    np.testing.assert_array_equal(found, whole)


def test_integers_of_two_grids_are_not_added(monkeypatch):
    with open_session(certify(mechanism(STRATEGIES["toeplitz"])), InMemory(TABLE)) as session:
        session.release(VectorSum(1.0))
        grid = VectorSum.grid
        monkeypatch.setattr(VectorSum, "grid", lambda self, sigma: Grid(2 * grid(self, sigma).unit))
        with pytest.raises(MechanismMismatch, match="integers of one grid"):
            session.release(VectorSum(1.0))


def test_sums_of_another_size_are_refused():
    with open_session(certify(mechanism(STRATEGIES["toeplitz"])), InMemory(TABLE)) as session:
        session.release(VectorSum(1.0))
        with pytest.raises(MechanismMismatch, match="one sensitivity and size"):
            session.release(CountedSum(VectorSum(1.0)))


# -- strategies on a grid --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [3, 10, 14, 24])
def test_rounding_lengthens_no_column_and_no_pattern_of_visits(bits):
    for C in (optimum(), Strategy(np.abs(BANDS)), Strategy(5000 * np.abs(BANDS))):
        plain = CorrelatedNoise(FrozenArray(C.bands))
        noise = plain.rounded(bits)
        assert (C.rounded(bits).column_norms <= C.column_norms).all()
        np.testing.assert_array_equal(C.rounded(bits).bands, noise.bands.values)
        assert noise.unit is not None
        assert noise.rounded(bits) == noise
        for sampling in (FullBatch(), Separated(3, 4)):
            here = participation_sensitivity(noise, C.steps, sampling)
            assert here <= participation_sensitivity(plain, C.steps, sampling) * (1 + 1e-12)  # C ≥ 0, so |KᵀK| ≤ |CᵀC|


@pytest.mark.parametrize(("bits", "limit"), [(14, 5e-4), (18, 4e-5)])
@pytest.mark.parametrize("workload", [prefix_sum(400), sgd_workload(400, momentum=0.9)], ids=["prefix", "momentum"])
@pytest.mark.parametrize("b", [2, 8, 32])
def test_the_error_that_a_grid_costs(b, workload, bits, limit):
    """√error × largest column norm, by the workload's own function: 14 bits cost at most 0.05 %."""
    C = optimise(workload, b, tolerance=1e-3).strategy

    def cost(C: Strategy) -> float:
        return float(np.sqrt(workload.value(C.bands)) * C.column_norms.max())

    assert cost(C.rounded(bits)) <= (1 + limit) * cost(C)


def test_the_certificate_is_about_the_rounded_strategy():
    plain = CorrelatedNoise(FrozenArray(0.99 * optimum().bands))  # the last column, one entry, is rounded down, too
    more = {"sampling": CyclicPoisson(8, 0.2)}
    base = {"adjacency": Adjacency.ZERO_OUT, "ratio": 0.5, "steps": 64}
    exact = Mechanism(**base, **more, noise=plain.rounded(6), arithmetic="exact")
    assert certify(exact).epsilon(1e-6) < certify(Mechanism(**base, **more, noise=plain)).epsilon(1e-6)
    assert certify(exact).epsilon(1e-6) == certify(Mechanism(**base, **more, noise=plain.rounded(6))).epsilon(1e-6)


@pytest.mark.parametrize("bands", [[[0.8, 0.6]], [[1.0, 2.0**-25]], [[1.0, 1e-300]]])
def test_bands_that_are_on_no_grid_are_refused_with_the_way_out(bands):
    noise = CorrelatedNoise(FrozenArray(bands))
    with pytest.raises(InvalidInput, match=r"rounded\(\)"):
        mechanism(noise)
    assert mechanism(noise.rounded()).noise.unit is not None


def test_a_diagonal_that_would_vanish_is_refused():
    noise = CorrelatedNoise(FrozenArray([[1.0, 0.5], [1e-6, 0.0]]))
    with pytest.raises(InvalidInput, match="more bits"):
        noise.rounded(14)
    with pytest.raises(InvalidInput, match="must not exceed 24"):
        noise.rounded(30)
    assert noise.rounded(24).unit == 2.0**-20  # 1e-6 becomes 16 · 2⁻²⁴
