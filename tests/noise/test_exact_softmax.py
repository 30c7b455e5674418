"""Softmax draws: every word decides as the true distribution function says, at its boundaries, too."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy import stats

from tacit.errors import InvalidInput
from tacit.noise import softmax as module
from tacit.noise.softmax import exact_softmax

CASES = {
    "few": (np.array([3, -1, 4, 1, 5]), 0.5),
    "equal": (np.zeros(7, np.int64), 2.0),
    "uniform": (np.arange(6) * 10**17, 0.0),
    "far": (np.array([0, -200, -201, 5, 5]), 0.9),
    "fine": (np.array([2**60, 2**60 - 2**40, 2**60 - 3 * 2**41]), 2.0**-41 * 1.3),
    "many": (np.random.default_rng(0).integers(-900, 0, 300), 0.01),
}


class Words:
    """Words in place of a generator."""

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def integers(self, high: int, dtype: type, endpoint: bool) -> int:
        assert (high, dtype, endpoint) == (2**64 - 1, np.uint64, True)
        return self.left.pop(0)


def boundary(k, kappa, j: int, bits: int) -> int:
    """⌊F_j/F_p·2^bits⌋ to 400 digits."""
    with mpmath.workdps(400):
        w = [mpmath.exp(mpmath.mpf(kappa) * (int(one) - int(k.max()))) for one in k]
        return int(mpmath.floor(mpmath.fsum(w[: j + 1]) / mpmath.fsum(w) * mpmath.mpf(2) ** bits))


@pytest.mark.parametrize("name", CASES)
def test_words_on_both_sides_of_a_boundary(name):
    k, kappa = CASES[name]
    for j in range(min(len(k) - 1, 40)):
        edge = boundary(k, kappa, j, 64)
        if 0 < edge < 2**64 - 2:
            assert exact_softmax(Words(edge - 1, 0), k, kappa) <= j
            assert exact_softmax(Words(edge + 1, 0), k, kappa) > j


@pytest.mark.parametrize("name", ["few", "equal", "fine", "many"])
def test_a_word_that_does_not_decide_is_continued(name):
    k, kappa = CASES[name]
    j = 1
    first, second = divmod(boundary(k, kappa, j, 128), 2**64)
    if name != "equal":
        words = Words(first, second - 1)
        assert exact_softmax(words, k, kappa) == j
        assert not words.left
        third = boundary(k, kappa, j, 192) % 2**64
        assert exact_softmax(Words(first, second, third - 1), k, kappa) == j
        assert exact_softmax(Words(first, second, third + 1), k, kappa) == j + 1
    assert exact_softmax(Words(first, second + 1), k, kappa) == j + 1


@pytest.mark.parametrize("name", CASES)
def test_the_law(name):
    k, kappa = CASES[name]
    rng = np.random.default_rng(4)
    found = np.bincount([exact_softmax(rng, k, kappa) for _ in range(4000)], minlength=len(k))
    w = np.exp(kappa * (k - k.max()).astype(float))
    expected = 4000 * w / w.sum()
    often = expected > 5
    rest = expected[~often].sum()
    assert found[~often].sum() <= rest + 6 * np.sqrt(rest) + 1
    scaled = expected[often] * found[often].sum() / expected[often].sum()
    assert often.sum() == 1 or stats.chisquare(found[often], scaled).pvalue > 1e-4


def test_floats_decide_nearly_always_and_never_against_integers(monkeypatch):
    rng = np.random.default_rng(1)
    undecided = 0
    for _ in range(300):
        k = rng.integers(0, int(10.0 ** rng.uniform(0, 12)), rng.integers(1, 60))
        kappa = float(10.0 ** rng.uniform(-1, 1.5) / max(int(k.max()), 1))
        u = int(rng.integers(2**64 - 1, dtype=np.uint64, endpoint=True))
        fast = module._decided(k.max() - k, kappa, u)
        slow = module._settled(k.max() - k, kappa, u << 64, 128)
        undecided += fast is None
        assert fast is None or slow in (fast, None)
    assert undecided == 0


def test_bounds_of_weights_hold_and_are_narrow():
    rng = np.random.default_rng(2)
    for _ in range(40):
        d = np.sort(rng.integers(0, 2 ** int(rng.integers(1, 60)), 5))
        kappa = float(rng.uniform(0.01, 90) / max(d.max(), 1))
        low, high = module._bounded_weights(d, kappa, 256)
        with mpmath.workdps(200):
            true = [mpmath.exp(-mpmath.mpf(kappa) * int(one)) * mpmath.mpf(2) ** 256 for one in d]
        assert all(a <= t <= b for a, t, b in zip(low, true, high, strict=True))
        assert max(b - a for a, b in zip(low, high, strict=True)) < 2**9
        x = d * kappa
        with mpmath.workdps(50):
            exact = np.array([float(mpmath.exp(-mpmath.mpf(one))) for one in x])
        near = x <= module.FAR
        np.testing.assert_allclose(module._weights(x[near]), exact[near], rtol=2.0**-41)


@pytest.mark.parametrize("scores", [np.zeros(0, np.int64), np.zeros(2), np.zeros((2, 2), np.int64)])
def test_scores_that_are_no_integers_are_refused(scores):
    with pytest.raises(InvalidInput):
        exact_softmax(np.random.default_rng(0), scores, 1.0)


def test_spreads_beyond_int64_are_refused():
    with pytest.raises(InvalidInput):
        exact_softmax(np.random.default_rng(0), np.array([-(2**63), 2**62]), 1.0)
