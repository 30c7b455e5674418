"""Word by word: a rounded normal number is what 60 digits say, also at thresholds, in tails, and with every margin."""

from __future__ import annotations

import math
import re
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import mpmath
import numba
import numpy as np
import pytest
import scipy.special

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "tools"))

import rounded_cells

from tacit.errors import InvalidInput
from tacit.kernels import rounded as kernel
from tacit.noise import rounded
from tacit.noise.erfc import _pi, compare_erfc

SCALES = (0.3, 1.0, math.pi, 1000.3, 2.0**20, 2.0**30 * 1.1, 2.0**36)
TOP = 1 << 63


@pytest.fixture(autouse=True)
def _sixty_digits() -> Iterator[None]:
    with mpmath.workdps(60):
        yield


def threshold(b: int, S: float) -> mpmath.mpf:
    """The magnitude is b or more exactly if v is below this."""
    return mpmath.erfc((2 * b - 1) / (2 * mpmath.mpf(S) * mpmath.sqrt(2)))


def magnitude(v: mpmath.mpf, S: float) -> int:
    """⌊S·w(v) + ½⌋, from the inverse of erf at 120 digits."""
    with mpmath.workdps(120):
        y = mpmath.mpf(S) * mpmath.sqrt(2) * mpmath.erfinv(1 - v) + mpmath.mpf(1) / 2
        assert abs(y - mpmath.nint(y)) > mpmath.mpf(10) ** -40
        return int(mpmath.floor(y))


def words_of(Vs: list[int]) -> np.ndarray:
    return np.array([2 * V + 1 for V in Vs], dtype=np.uint64)


def no_more(i: int) -> Callable[[], int]:
    raise AssertionError(f"word {i} was not decided by its own bits")


def middle(i: int) -> Callable[[], int]:
    """v is the middle of its interval."""
    return iter([TOP, *[0] * 50]).__next__


def drawn(words: np.ndarray, S: float, further: rounded.Further = no_more) -> list[int]:
    out = np.full(words.size, -(1 << 62))
    rounded.round_words(words, np.array([S]), out, further)
    return out.tolist()


def near_thresholds(S: float, count: int, spread: int, seed: int = 1) -> list[tuple[int, int]]:
    """(V, magnitude for the middle of V's interval) at most ``spread`` units off a threshold."""
    rng, out = np.random.default_rng(seed), []
    while len(out) < count:
        b = max(1, round(S * abs(rng.standard_normal() * rng.choice([1, 2]))))
        edge = threshold(b, S) * TOP
        V = int(edge) + int(rng.integers(-spread, spread + 1))
        if 0 < V < TOP - 1 and threshold(b + 1, S) * TOP < V - 1 and (b == 1 or threshold(b - 1, S) * TOP > V + 2):
            out.append((V, b if V + mpmath.mpf(0.5) < edge else b - 1))
    return out


def undecided(words: np.ndarray, S: float, cells: np.ndarray) -> int:
    out, count, i = np.empty(words.size, dtype=np.int64), 0, -1
    while (i := kernel.round_decided(words, np.array([S]), cells, out, i + 1)[0]) < words.size:
        count += 1
    return count


def check_thresholds(S: float, count: int) -> int:
    """How many of these words float64 did not decide."""
    found = 0
    for spread in (2, 300, 5000):
        cases = near_thresholds(S, count // 3, spread, seed=spread)
        words = words_of([V for V, _ in cases])
        assert drawn(words, S, middle) == [b for _, b in cases]
        found += undecided(words, S, rounded.load_cells())
    return found


@pytest.mark.parametrize("S", SCALES)
def test_words_next_to_a_threshold(S: float) -> None:
    assert check_thresholds(S, 300) >= 100


@pytest.mark.attack
@pytest.mark.parametrize("S", SCALES)
def test_words_next_to_a_threshold_by_the_ten_thousands(
    S: float, record_property: Callable[[str, object], None]
) -> None:
    found = check_thresholds(S, 45_000)
    record_property("undecided", found)
    assert found >= 15_000


def deep(b: int, S: float, depth: int, last: int) -> tuple[int, list[int], int]:
    """The first 63 bits of a threshold, ``depth`` words that go on with it, off by ``last`` at the end; b or b − 1."""
    bits = 63 + 64 * depth
    with mpmath.workdps(bits // 3 + 40):
        edge = int(threshold(b, S) * mpmath.mpf(2) ** bits)
    v = edge + last
    return v >> (64 * depth), [v >> (64 * k) & (2**64 - 1) for k in reversed(range(depth))], b if v < edge else b - 1


@pytest.mark.parametrize("S", SCALES)
@pytest.mark.parametrize("depth", [1, 2, 5])
def test_words_that_agree_with_a_threshold_to_many_bits(S: float, depth: int) -> None:
    for b in (1, 2, max(1, round(S * 0.7)), max(1, round(S * 3))):
        for last in (-3, -1, 1, 2):
            V, more, expected = deep(b, S, depth, last)
            assert drawn(words_of([V]), S, lambda i, more=more: iter(more).__next__) == [expected]


@pytest.mark.parametrize("S", SCALES)
def test_random_words(S: float) -> None:
    words = np.random.default_rng(3).integers(0, 2**64, 200, dtype=np.uint64)
    reference = [magnitude((int(u >> 1) + mpmath.mpf(0.5)) / TOP, S) * (1 if u & 1 else -1) for u in words.tolist()]
    assert drawn(words, S, middle) == reference


@pytest.mark.parametrize("S", SCALES)
def test_tails(S: float) -> None:
    """From 6σ past the last cell to 9σ: V of 30 bits down to one."""
    Vs = [V for bits in range(1, 31) for V in {1 << (bits - 1), (1 << bits) - 1, (5 << bits) // 8}]
    Vs = [V for V in Vs if V > 0]
    reference = [magnitude((V + mpmath.mpf(0.5)) / TOP, S) for V in Vs]
    assert drawn(words_of(Vs), S, middle) == reference
    assert max(reference) > 9 * S - 1


@pytest.mark.parametrize("S", SCALES)
@pytest.mark.parametrize("zeros", [0, 1, 3])
def test_tails_beyond_one_word(S: float, zeros: int) -> None:
    """A leading word of zeros: the further words are the leading ones, up to 26σ."""
    more = [0] * zeros + [12345, TOP]
    with mpmath.workdps(150):
        v = (12345 + mpmath.mpf(0.5)) / mpmath.mpf(2) ** (63 + 64 * (zeros + 1))
        w = mpmath.findroot(
            lambda w: mpmath.log(mpmath.erfc(w / mpmath.sqrt(2)) / v), math.sqrt(-2 * float(mpmath.log(v)))
        )
        expected = int(mpmath.floor(S * w + mpmath.mpf(0.5)))
    assert drawn(words_of([0]), S, lambda i: iter([*more, *[0] * 9]).__next__) == [expected]


@pytest.mark.parametrize("S", [0.05, 0.02, 1e-3, 1e-300, 5e-324])
def test_small_scales_are_zero_except_far_out(S: float) -> None:
    words = np.random.default_rng(3).integers(0, 2**64, 1000, dtype=np.uint64)
    assert drawn(words, S) == [0] * 1000
    assert drawn(words_of([1]), S, middle) == [0]
    if S > 1e-2:
        with mpmath.workdps(300):
            edge = int(threshold(1, S) * mpmath.mpf(2) ** (63 + 64 * 10))
        for v, expected in ((edge - 1, 1), (edge + 1, 0)):
            more = [v >> (64 * k) & (2**64 - 1) for k in reversed(range(10))]
            assert drawn(words_of([v >> 640]), S, lambda i, more=more: iter(more).__next__) == [expected]


def test_the_lowest_bit_is_the_sign() -> None:
    words = np.random.default_rng(4).integers(0, 2**64, 5000, dtype=np.uint64)
    for S in SCALES:
        assert drawn(words, S, middle) == [-k for k in drawn(words ^ np.uint64(1), S, middle)]


@pytest.mark.parametrize("S", SCALES)
def test_wider_margins_change_nothing(S: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Integers alone, from brackets of all widths, say the same as float64 where it decides."""
    words = np.random.default_rng(5).integers(0, 2**64, 300, dtype=np.uint64)
    expected = drawn(words, S, middle)
    for width in (0.3, 0.51, 40.0):
        wide = rounded.load_cells().copy()
        wide[:, -1] = width / S
        assert undecided(words, S, wide) > 100
        monkeypatch.setattr(rounded, "load_cells", lambda wide=wide: wide)
        assert drawn(words, S, middle) == expected


# Mutants: each must be told apart, or the tests above would show nothing.


def wrong(sampler: Callable[[np.ndarray, float], np.ndarray], S: float, spread: int) -> int:
    cases = near_thresholds(S, 400, spread)
    return int((sampler(words_of([V for V, _ in cases]), S) != [b for _, b in cases]).sum())


def decided_by(round_decided: Callable[..., tuple[int, int, int]], cells: np.ndarray) -> Callable[..., np.ndarray]:
    def sampler(words: np.ndarray, S: float) -> np.ndarray:
        out = np.full(words.size, 0)
        i, low, high = round_decided(words, np.array([S]), cells, out, 0)
        while i < words.size:
            out[i] = rounded.settle(int(words[i]) >> 1, S, low, high, middle(i))
            i, low, high = round_decided(words, np.array([S]), cells, out, i + 1)
        return out

    return sampler


def compiled(**replaced: object) -> Callable[..., tuple[int, int, int]]:
    python = kernel.round_decided.py_func
    return numba.njit(types.FunctionType(python.__code__, {**python.__globals__, **replaced}))


def test_mutants_at_thresholds() -> None:
    cells = rounded.load_cells()
    bare = cells.copy()
    bare[:, -1] = 0
    skewed = cells.copy()
    skewed[:, 5] *= 1 + 1e-6  # one coefficient
    assert wrong(decided_by(kernel.round_decided, cells), 2.0**36, 30) == 0
    assert wrong(decided_by(kernel.round_decided, bare), 2.0**36, 30) > 5
    assert wrong(decided_by(kernel.round_decided, skewed), 2.0**36, 300) > 5
    slack = decided_by(compiled(SLACK=0.0), cells)
    assert wrong(slack, 1.0, 300) > 5
    assert wrong(decided_by(compiled(), cells), 1.0, 300) == 0


@pytest.mark.parametrize("S", [1.0, 2.0**30, 2.0**36])
def test_rounded_float_noise_is_wrong_at_thresholds(S: float) -> None:
    def floats(words: np.ndarray, S: float) -> np.ndarray:
        return np.floor(-S * scipy.special.ndtri((words >> np.uint64(1)) * 2.0**-64) + 0.5).astype(np.int64)

    assert wrong(floats, S, 300) > 20


# The compiled loop and its table.


def test_no_flag_lets_the_compiler_reorder() -> None:
    fastmath = kernel.round_decided.targetoptions.get("fastmath", False)
    assert not fastmath
    function = numba.njit(fastmath=fastmath)(kernel.round_decided.py_func)
    decided_by(function, rounded.load_cells())(words_of([TOP // 2]), 1.0)
    (signature,) = function.signatures
    operations = re.findall(r"= f(?:add|sub|mul) (.*?)double", function.inspect_llvm(signature))
    assert len(operations) > 10
    assert set(operations) == {""}


def test_fused_operations_would_do_no_harm() -> None:
    fused = numba.njit(fastmath={"contract"})(kernel.round_decided.py_func)
    cells = rounded.load_cells()
    for S in SCALES:
        assert wrong(decided_by(fused, cells), S, 300) == 0


def test_the_table_is_what_mpmath_computes() -> None:
    cells = rounded_cells.build()
    np.testing.assert_array_equal(cells, rounded.load_cells())
    assert rounded_cells.digest(cells) == rounded.CELLS_DIGEST


def test_the_table_is_right_by_another_way() -> None:
    """The polynomial is w(v) up to its margin, anywhere in a cell; head and tail have the bits that the proof needs."""
    cells, rng = rounded.load_cells(), np.random.default_rng(6)
    assert (cells >= 0).all()
    assert (cells[:, 0] < 8).all()
    assert (cells[:, 0] * 2**23 == np.floor(cells[:, 0] * 2**23)).all()
    assert (cells[:, 1] < 2.0**-23).all()
    for _ in range(300):
        octave, j, t = int(rng.integers(0, 44)), int(rng.integers(0, 64)), mpmath.mpf(rng.random())
        row = [mpmath.mpf(float(c)) for c in cells[octave * 64 + j]]
        v = mpmath.mpf(2) ** -(octave + 7) * (64 + j + 1 - t)
        with mpmath.workdps(80):
            w = mpmath.sqrt(2) * mpmath.erfinv(1 - v)
            assert abs(row[0] + mpmath.polyval(row[9:0:-1], t) - w) < row[10]


def test_a_damaged_table_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = rounded.load_cells().copy()
    cells[17, 3] = np.nextafter(cells[17, 3], 1)
    np.save(tmp_path / "cells.npy", cells)
    monkeypatch.setattr(rounded, "CELLS", tmp_path / "cells.npy")
    with pytest.raises(InvalidInput, match="reinstall"):
        rounded.load_cells.__wrapped__()


# The integers.


@pytest.mark.parametrize("places", [64, 128, 192, 640, 2048])
def test_pi(places: int) -> None:
    with mpmath.workdps(700):
        low, high = _pi(places)
        assert low < mpmath.pi * mpmath.mpf(2) ** places < high <= low + 3


def test_a_comparison_with_erfc_never_errs_and_needs_few_bits() -> None:
    rng = np.random.default_rng(7)
    for _ in range(2000):
        numerator, denominator, bits = int(rng.integers(1, 2**50)), int(rng.integers(2**44, 2**50)), 40
        numerator //= int(rng.choice([1, 100, 2**20])) + 1
        numerator += 1
        edge = mpmath.erfc(mpmath.sqrt(mpmath.mpf(numerator) / denominator)) * 2**bits
        for V in {int(edge), max(int(edge) + int(rng.integers(-3, 4)), 0), int(edge) + 1}:
            expected = 1 if edge >= V + 1 else -1 if edge <= V else 0
            assert compare_erfc(V, bits, numerator, denominator) == expected
