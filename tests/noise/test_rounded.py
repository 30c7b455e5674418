"""Rounded normal numbers: exact probabilities, streams that repeat, and what is refused."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import scipy.stats

from tacit.errors import InvalidInput
from tacit.noise import rounded, rounded_normal
from tacit.noise.streams import Streams

SCALES = (0.3, 0.5, 1.0, 2.2, 5.7, 40.0, 1000.3, 2.0**16, 2.0**20 + 0.7, 2.0**30, 1.1 * 2.0**33, 2.0**36)


def stream(seed: int = 1) -> np.random.Generator:
    return Streams(seed).at("noise", 1)


def probability_below(k: int, S: float) -> float:
    """P(R < k), by mpmath."""
    with mpmath.workdps(50):
        return float(mpmath.erfc(-(2 * k - 1) / (2 * mpmath.mpf(S) * mpmath.sqrt(2))) / 2)


def cells(S: float, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Whole numbers that cut the line into cells that expect 20 draws or more, and the cells' probabilities."""
    levels = scipy.stats.norm.ppf(np.concatenate([[20 / n, 200 / n], np.arange(1, 100) / 100]))
    whole = np.floor(np.concatenate([levels, -levels]) * S)
    edges = np.union1d(whole, whole + 1)
    below = np.array([probability_below(int(k), S) for k in edges])
    kept = [0]
    for i in range(1, len(edges)):
        if (below[i] - below[kept[-1]]) * n >= 20 and (1 - below[i]) * n >= 20:
            kept.append(i)
    if below[kept[0]] * n < 20:
        kept = kept[1:]
    return edges[kept].astype(np.int64), np.diff(below[kept], prepend=0, append=1)


def p_values(draws: np.ndarray, S: float) -> list[float]:
    """χ² of the cells; of the residues modulo 16 where they are uniform (up to exp(−2π²S²/256)); of the signs."""
    edges, probabilities = cells(S, draws.size)
    found = np.bincount(np.searchsorted(edges, draws, side="right"), minlength=len(probabilities))
    out = [scipy.stats.chisquare(found, probabilities * draws.size).pvalue]
    if S >= 1000:
        out.append(scipy.stats.chisquare(np.bincount(draws & 15, minlength=16)).pvalue)
    positive, negative = int((draws > 0).sum()), int((draws < 0).sum())
    out.append(scipy.stats.binomtest(positive, positive + negative).pvalue)
    return [float(p) for p in out]


@pytest.mark.parametrize("S", SCALES)
def test_probabilities(S: float) -> None:
    assert min(p_values(rounded_normal(stream(), S, 10**6), S)) > 1e-3


@pytest.mark.attack
@pytest.mark.parametrize("S", SCALES)
def test_probabilities_of_ten_million(S: float, record_property: Callable[[str, object], None]) -> None:
    found = p_values(rounded_normal(stream(2), S, 10**7), S)
    record_property("p_values", [round(p, 4) for p in found])
    assert min(found) > 1e-4


def test_mutants_are_told_apart() -> None:
    rng, n = stream(), 10**6
    single = rng.standard_normal(n, dtype=np.float32).astype(np.float64)
    assert p_values(np.floor(2.0**30 * single + 0.5).astype(np.int64), 2.0**30)[1] < 1e-12
    normal = rng.standard_normal(n)
    assert p_values(np.floor(5.7 * normal).astype(np.int64), 5.7)[0] < 1e-12
    assert p_values(np.rint(5.7 * 1.01 * normal).astype(np.int64), 5.7)[0] < 1e-12
    assert p_values(np.rint(np.clip(5.7 * normal, -20, 20)).astype(np.int64), 5.7)[0] < 1e-12
    assert p_values(rounded_normal(rng, 0.3, n), 0.303)[0] < 1e-6


# A stream repeats its draws.


@pytest.mark.parametrize("S", [0.3, 1000.3, 2.0**36])
def test_a_draw_depends_on_its_place_only(S: float, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rounded_normal(stream(), S, 20_000)
    for n in (1, 7, 8191, 8192, 8193):
        np.testing.assert_array_equal(rounded_normal(stream(), S, n), expected[:n])
    for block in (1, 97, 1 << 20):
        monkeypatch.setattr(rounded, "_BLOCK", block)
        np.testing.assert_array_equal(rounded_normal(stream(), S, 3000), expected[:3000])
    rng = stream()
    np.testing.assert_array_equal(np.concatenate([rounded_normal(rng, S, n) for n in (5, 1, 300)]), expected[:306])


def test_draws_are_these_numbers_on_every_machine() -> None:
    """Recorded once: a float operation that rounds differently must not change them."""
    draws = rounded_normal(stream(), 2.0**36, 10**6)
    assert draws[:4].tolist() == [16538094116, -78678791051, -46530994967, -136221284431]
    assert int(np.bitwise_xor.reduce(draws)) == -526949180493


def doubtful(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Make every word undecided; the list of (V, first further word) fills as they are settled."""
    wide, seen, settle = rounded.load_cells().copy(), [], rounded.settle
    wide[:, -1] = 1.0

    def watched(V: int, scale: float, low: int, high: int, further: Callable[[], int]) -> int:
        seen.append((V, further()))
        return settle(V, scale, low, high, further)

    monkeypatch.setattr(rounded, "load_cells", lambda: wide)
    monkeypatch.setattr(rounded, "settle", watched)
    return seen


def test_further_words_belong_to_a_place_in_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = rounded_normal(stream(), 7.0, 50)
    seen = doubtful(monkeypatch)
    np.testing.assert_array_equal(rounded_normal(stream(), 7.0, 50), expected)
    whole = seen.copy()
    assert len({word for _, word in whole}) == 50
    for sizes, block in (((50,), 7), ((3, 30, 17), 8192), ((49, 1), 1)):
        seen.clear()
        monkeypatch.setattr(rounded, "_BLOCK", block)
        rng = stream()
        for n in sizes:
            rounded_normal(rng, 7.0, n)
        assert seen == whole
    seen.clear()
    rng = stream()
    rng.bit_generator.random_raw(11)
    rounded_normal(rng, 7.0, 39)
    assert seen == whole[11:]


def test_further_words_are_far_from_the_stream_and_from_each_other() -> None:
    """Places p and p + 1 are 2³² blocks apart, from block 2¹²⁶ on; the stream itself is checked to agree with that."""
    rng = stream()
    source = rng.bit_generator
    first = source.random_raw(100)
    state = source.state["s"]
    key = int(state["seed"][0]) | int(state["seed"][1]) << 64

    def blocks(counter: int, words: int) -> np.ndarray:
        return type(source)(key=key, counter=counter).random_raw(words)

    np.testing.assert_array_equal(blocks(0, 100), first)
    np.testing.assert_array_equal(blocks(17, 20), first[34:54])
    for i in (0, 41, 99):
        further = rounded._further_words(source, 100, i)
        assert [further() for _ in range(20)] == blocks((1 << 126) + (i << 32), 20).tolist()
    np.testing.assert_array_equal(source.random_raw(5), blocks(50, 5))  # looking at it moved nothing


# What may be passed.


def test_scales_broadcast() -> None:
    scales = np.array([0.5, 3.0, 1000.0, 2.0**36])
    expected = np.empty((5000, 4), dtype=np.int64)
    for j, S in enumerate(scales):
        expected[:, j] = rounded_normal(stream(), S, (5000, 4))[:, j]
    np.testing.assert_array_equal(rounded_normal(stream(), scales, (5000, 4)), expected)
    np.testing.assert_array_equal(rounded_normal(stream(), np.tile(scales, (5000, 1))), expected)
    np.testing.assert_array_equal(rounded_normal(stream(), scales.tolist(), expected.shape), expected)
    rows = rounded_normal(stream(), scales[:, None], (4, 5))
    np.testing.assert_array_equal(rows[2], rounded_normal(stream(), 1000.0, (4, 5))[2])
    assert rounded_normal(stream(), scales[:1], 9).tolist() == rounded_normal(stream(), 0.5, 9).tolist()
    fixed = scales.copy()
    fixed.setflags(write=False)
    np.testing.assert_array_equal(rounded_normal(stream(), fixed), expected[0])


def test_shapes() -> None:
    assert rounded_normal(stream(), 3.0).shape == ()
    assert rounded_normal(stream(), 3, (2, 3)).dtype == np.int64
    assert rounded_normal(stream(), 3.0, (0, 3)).shape == (0, 3)
    assert rounded_normal(stream(), np.empty(0)).shape == (0,)
    assert rounded_normal(stream(), np.float32(3)).shape == ()


def test_an_array_is_filled_in_place() -> None:
    out = np.zeros((3, 9000), dtype=np.int64)
    assert rounded_normal(stream(), 40.0, out=out) is out
    np.testing.assert_array_equal(out, rounded_normal(stream(), 40.0, out.shape))
    np.testing.assert_array_equal(rounded_normal(stream(), 40.0, out.shape, out=out), out)


@pytest.mark.parametrize("scale", [7.0, np.linspace(1, 9, 100)])
def test_a_large_array_needs_no_second_one(scale: float | np.ndarray) -> None:
    out = np.empty((10_000, 100), dtype=np.int64)
    rounded_normal(stream(), scale, out=out[:1])
    tracemalloc.start()
    try:
        rounded_normal(stream(), scale, out=out)
        assert tracemalloc.get_traced_memory()[1] < out.nbytes / 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "scale",
    [
        *(0, 0.0, -1.0, float("nan"), float("inf"), 2.0**36 * (1 + 2**-52), [1.0, 0.0], [1.0, float("nan")]),
        *("3", None, True, [[1.0], [2.0, 3.0]], 1j, 10**400),
    ],
)
def test_bad_scales_are_refused(scale: object) -> None:
    rng = stream()
    with pytest.raises(InvalidInput, match="scale"):
        rounded_normal(rng, scale, 2)
    np.testing.assert_array_equal(rng.bit_generator.random_raw(3), stream().bit_generator.random_raw(3))


def test_bad_shapes_and_generators_are_refused() -> None:
    with pytest.raises(InvalidInput, match="AES"):
        rounded_normal(np.random.default_rng(1), 1.0, 3)
    with pytest.raises(InvalidInput, match="broadcast"):
        rounded_normal(stream(), [1.0, 2.0], 3)
    for size in (-1, 2.5, "x"):
        with pytest.raises(InvalidInput, match="size"):
            rounded_normal(stream(), 1.0, size)
    with pytest.raises(InvalidInput, match="size"):
        rounded_normal(stream(), 1.0, 4, out=np.empty(3, dtype=np.int64))
    frozen = np.empty(3, dtype=np.int64)
    frozen.setflags(write=False)
    for out in (np.empty(3), np.empty((3, 3), dtype=np.int64).T[1:], np.empty(6, dtype=np.int64)[::2], frozen, [1]):
        with pytest.raises(InvalidInput, match="out"):
            rounded_normal(stream(), 1.0, out=out)
