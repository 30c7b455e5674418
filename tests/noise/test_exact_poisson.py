"""Poisson numbers: every word decides as the true distribution function says, at its boundaries, too."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy import stats

from tacit.errors import InvalidInput
from tacit.noise.poisson import exact_poisson

MEANS = [1e-3, 0.3, 1.0, 2.5, 10.0, 31.7]


class Words:
    """Words in place of a generator."""

    def __init__(self, *words: int) -> None:
        self.left = list(words)

    def integers(self, high: int, dtype: type, endpoint: bool) -> int:
        assert (high, dtype, endpoint) == (2**64 - 1, np.uint64, True)
        return self.left.pop(0)


def boundary(mean: float, k: int, bits: int) -> int:
    """⌊P(K ≤ k)·2^bits⌋ to 400 digits."""
    with mpmath.workdps(400):
        m = mpmath.mpf(mean)
        total = mpmath.fsum(m**j / mpmath.factorial(j) for j in range(k + 1)) * mpmath.exp(-m)
        return int(mpmath.floor(total * mpmath.mpf(2) ** bits))


@pytest.mark.parametrize("mean", MEANS)
def test_words_on_both_sides_of_a_boundary(mean):
    for k in range(int(mean + 8 * mean**0.5) + 2):
        edge = boundary(mean, k, 64)
        if edge >= 2**64 - 1:
            break
        if edge > 0:
            assert exact_poisson(Words(edge - 1), mean) <= k
        assert exact_poisson(Words(edge + 1), mean) > k


@pytest.mark.parametrize("mean", MEANS)
def test_a_word_that_does_not_decide_is_continued(mean):
    k = int(mean)
    first, second = divmod(boundary(mean, k, 128), 2**64)
    words = Words(first, second - 1)
    assert exact_poisson(words, mean) == k
    assert not words.left
    assert exact_poisson(Words(first, second + 1), mean) == k + 1
    third = boundary(mean, k, 192) % 2**64
    assert exact_poisson(Words(first, second, third - 1), mean) == k
    assert exact_poisson(Words(first, second, third + 1), mean) == k + 1


def test_the_rarest_words():
    assert exact_poisson(Words(0), 10.0) == 0
    assert exact_poisson(Words(2**64 - 1, 0), 10.0) > 40  # P(K > 40) = 2e-13, P(K ≥ 52) < 2⁻⁶⁴
    assert exact_poisson(Words(2**64 - 1, 2**64 - 1, 0), 1e-3) > 8


@pytest.mark.parametrize("mean", [0.4, 10.0, 47.0, 300.0])
def test_the_law(mean):
    rng = np.random.default_rng(4)
    found = np.array([exact_poisson(rng, mean) for _ in range(6000)])
    low, high = stats.poisson.ppf([0.002, 0.998], mean).astype(int)
    expected = 6000 * np.diff(stats.poisson.cdf(np.arange(low, high + 1), mean), prepend=0, append=1)
    counts = np.bincount(np.clip(found, low, high + 1) - low, minlength=high - low + 2)
    assert stats.chisquare(counts, expected).pvalue > 1e-4
    assert stats.chisquare(counts[::-1], expected).pvalue < 1e-6  # the test can fail


@pytest.mark.parametrize("mean", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_means_are_refused(mean):
    with pytest.raises(InvalidInput, match="mean"):
        exact_poisson(np.random.default_rng(0), mean)
