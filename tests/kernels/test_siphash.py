"""Tags of rows: SipHash-2-4 by its published vectors, and digests that no order changes."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse

from tacit.kernels.siphash import multiset_digest, row_tags

KEY = bytes(range(32))


def test_the_published_vectors():
    """Appendix A of the paper and its reference code: key 00 01 … 0f, input 00 01 …, of 8 and 16 bytes."""
    key = np.frombuffer(KEY[:16], np.uint64)
    for size, expected in ((8, 0x93F5F5799A932462), (16, 0x3F2ACC7F57C29BDB)):
        words = np.frombuffer(bytes(range(size)), np.uint64)[:, None]
        assert int(row_tags(np.ascontiguousarray(words), key)[0]) == expected


@pytest.mark.parametrize("form", [np.asfortranarray, sparse.csc_array])
def test_a_digest_depends_on_every_row_and_on_no_order(form):
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(1300, 4)) * (rng.random((1300, 4)) < 0.5), rng.normal(size=1300)
    plain = multiset_digest(form(X), y, KEY)
    order = rng.permutation(1300)
    assert multiset_digest(form(X[order]), y[order], KEY) == plain
    assert multiset_digest(form(X), y[order], KEY) != plain
    assert multiset_digest(form(X[1:]), y[1:], KEY) != plain
    assert multiset_digest(form(X), y, KEY[::-1]) != plain
    for i, j in ((0, 0), (700, 3)):
        other = X.copy()
        other[i, j] += 1e-9
        assert multiset_digest(form(other), y, KEY) != plain
    twice = np.concatenate([np.arange(1300), [5, 5]])
    assert multiset_digest(form(X[twice]), y[twice], KEY) != plain
