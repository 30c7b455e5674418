"""Coins, integers and permutations have exact probabilities: NumPy's generator is fed with chosen words."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest
import randomgen

from tacit.accounting import certify
from tacit.kernels.dyadic import coin_rate
from tacit.mechanism import CyclicPoisson, Groups, Mechanism, Poisson
from tacit.noise.streams import Streams

RATES = [0.1, 0.3, 1 / 3, 0.2500000001, 0.75, 1.0, 1e-3, 7e-17, float(np.nextafter(0.25, 1))]


class Words:
    """A generator that returns these words, and arbitrary ones after them; ``at`` makes it a family of streams."""

    def __init__(self, *words: int) -> None:
        self.words, self.used = words, 0

    def __call__(self, _: object = None) -> int:
        self.used += 1
        return self.words[self.used - 1] if self.used <= len(self.words) else self.used * 0x9E3779B97F4A7C15 % 2**64

    def at(self, purpose: str, step: int = 0) -> np.random.Generator:
        if purpose != "batch":
            return np.random.default_rng(0)
        return np.random.Generator(randomgen.UserBitGenerator(self, 64))


def heads(sampling, j: int) -> bool:
    """Whether the coin of the first record shows heads if the upper 53 bits of the word are j."""
    return bool(sampling.draw(1, 1, Words(j << 11))(0)[0, 0])


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize(
    "sampling", [Poisson, lambda q: CyclicPoisson(1, q), lambda q: CyclicPoisson(1, q, Groups.INDEPENDENT)]
)
def test_a_coin_shows_heads_for_the_first_k_words_and_no_other(sampling, rate):
    """k = ⌊q·2⁵³⌋ of 2⁵³ equally likely words: never more than the certificate says."""
    k = math.floor(Fraction(rate) * 2**53)
    near = {j for j in (0, 1, k - 2, k - 1, k, k + 1, 2**53 - 1) if 0 <= j < 2**53}
    assert {j: heads(sampling(rate), j) for j in near} == {j: j < k for j in near}
    assert Fraction(coin_rate(rate)) == Fraction(k, 2**53) <= Fraction(rate)


def test_random_numbers_of_our_streams_are_the_upper_53_bits_of_words():
    words = Streams(seed=3).at("batch").bit_generator.random_raw(1000)
    np.testing.assert_array_equal(
        Streams(seed=3).at("batch").random(1000) * 2.0**53, (words >> np.uint64(11)).astype(float)
    )


def test_a_stated_rate_keeps_its_digest_and_the_certificate_says_how_it_is_rounded():
    m = Mechanism(adjacency="zero-out", ratio=0.5, steps=10, sampling=Poisson(0.1))
    assert m.sampling.rate == 0.1
    assert any("multiple of 2⁻⁵³" in a.text for a in certify(m).assumptions)


# -- integers and permutations ---------------------------------------------------------------------------------------


def lemire(word: int, n: int, bits: int) -> int | None:
    """The integer below n that a word of so many bits gives; None if the word is rejected."""
    product = word * n
    return product >> bits if product % 2**bits >= 2**bits % n else None


@pytest.mark.parametrize("n", [1, 2, 3, 5, 7, 100, 255])
def test_lemires_integers_have_equally_many_words(n):
    found = [lemire(word, n, 8) for word in range(256)]
    assert {found.count(j) for j in range(n)} == {256 // n}


@pytest.mark.parametrize("n", [2, 3, 7, 10, 1000, 3_000_000_019])
def test_numpy_draws_integers_by_that_rule(n):
    edges = [-(-j * 2**32 // n) + step for j in range(min(n, 40)) for step in (-1, 0, 1)]
    for word in (w for w in edges if 0 <= w < 2**32):
        source = Words(word << 32 | word)
        found = int(source.at("batch").integers(n))
        expected = lemire(word, n, 32)
        if expected is None:
            assert source.used > 1  # rejected: the next word decided
        else:
            assert (found, source.used) == (expected, 1)


def test_numpy_permutes_by_rejection():
    """Three records: words 0, 1, 2 and 0, 1 give each of the six orders once, and 3 is drawn again."""
    orders = {}
    for first, second in itertools.product(range(4), range(2)):
        source = Words(*(word << 32 | word for word in (first, second)))
        order = tuple(source.at("batch").permuted(np.arange(3)).tolist())
        orders[first, second] = order
        assert (source.used > 2) == (first == 3)
    assert len({order for (first, _), order in orders.items() if first < 3}) == 6
