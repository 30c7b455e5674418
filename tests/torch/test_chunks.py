"""Chunks have public sizes, and cover every record once."""

from __future__ import annotations

import pytest

from tacit.torch.chunks import spans


def test_chunks_of_one_size_unless_a_number_is_expected():
    assert list(spans(10, 4, None)) == [(0, 4, 4), (4, 8, 4), (8, 10, 4)]
    assert list(spans(0, 4, None)) == []
    assert list(spans(200, 512, 256)) == [(0, 200, 280)]  # hardly more than expected: 256 + 1.5·16
    assert list(spans(300, 512, 256)) == [(0, 280, 280), (280, 300, 35)]
    assert list(spans(270, 100, 256)) == [(0, 94, 94), (94, 188, 94), (188, 270, 94)]


@pytest.mark.parametrize("expected", [None, 1, 20, 256.5])
@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_every_record_is_in_one_chunk_and_sizes_do_not_depend_on_their_number(expected, chunk):
    longest = [width for _, _, width in spans(500, chunk, expected)]
    for count in range(0, 500, 13):
        cut = list(spans(count, chunk, expected))
        assert [i for first, end, _ in cut for i in range(first, end)] == list(range(count))
        assert all(end - first <= width <= chunk for first, end, width in cut)
        assert [width for _, _, width in cut] == longest[: len(cut)]
