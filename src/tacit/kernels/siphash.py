"""Keyed tags of rows: SipHash-2-4 of a row's numbers, for digests of a table that do not depend on its order.

Aumasson and Bernstein (2012), "SipHash: a fast short-input PRF". Without the key no two rows with equal tags can be
found on purpose.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.kernels._jit import jit

__all__ = ["multiset_digest", "row_tags", "row_tags_sparse"]

Words = NDArray[np.uint64]
Columns = tuple[Words, NDArray[np.int32], NDArray[np.int64]]
TILE = 512
"""Rows whose state stays in the cache."""


@jit
def _rotated(x: np.uint64, by: int) -> np.uint64:
    return np.uint64((x << np.uint64(by)) | (x >> np.uint64(64 - by)))


@jit
def _round(v: Words) -> None:
    """One SipRound, in place."""
    v[0] += v[1]
    v[2] += v[3]
    v[1] = _rotated(v[1], 13) ^ v[0]
    v[3] = _rotated(v[3], 16) ^ v[2]
    v[0] = _rotated(v[0], 32)
    v[2] += v[1]
    v[0] += v[3]
    v[1] = _rotated(v[1], 17) ^ v[2]
    v[3] = _rotated(v[3], 21) ^ v[0]
    v[2] = _rotated(v[2], 32)


@jit
def _absorb(v: Words, word: np.uint64) -> None:
    v[3] ^= word
    _round(v)
    _round(v)
    v[0] ^= word


@jit
def _begun(key: Words) -> Words:
    v = np.empty(4, np.uint64)
    v[0] = key[0] ^ np.uint64(0x736F6D6570736575)
    v[1] = key[1] ^ np.uint64(0x646F72616E646F6D)
    v[2] = key[0] ^ np.uint64(0x6C7967656E657261)
    v[3] = key[1] ^ np.uint64(0x7465646279746573)
    return v


@jit
def _ended(v: Words, words: int) -> np.uint64:
    _absorb(v, np.uint64((words * 8) & 0xFF) << np.uint64(56))
    v[2] ^= np.uint64(0xFF)
    for _ in range(4):
        _round(v)
    return np.uint64(v[0] ^ v[1] ^ v[2] ^ v[3])


@jit
def row_tags(words: Words, key: Words) -> Words:
    """SipHash-2-4 of each row.

    Args:
        words: (p, m), the columns of a table as 64-bit words.
        key: (2,).

    Returns:
        (m,).
    """
    p, m = words.shape
    out, start = np.empty(m, np.uint64), _begun(key)
    states = np.empty((TILE, 4), np.uint64)
    for first in range(0, m, TILE):
        rows = min(TILE, m - first)
        for i in range(rows):
            states[i] = start
        for j in range(p):
            for i in range(rows):
                _absorb(states[i], words[j, first + i])
        for i in range(rows):
            out[first + i] = _ended(states[i], p)
    return out


@jit
def row_tags_sparse(columns: Columns, m: int, key: Words) -> Words:
    """SipHash-2-4 of the (column, entry) pairs of each row of a table that is stored by columns, without zeros.

    Args:
        columns: entries as words, their rows, and where columns begin.
        m: the number of rows.
        key: (2,).

    Returns:
        (m,).
    """
    words, rows, starts = columns
    states, counts, start = np.empty((m, 4), np.uint64), np.zeros(m, np.int64), _begun(key)
    for i in range(m):
        states[i] = start
    for j in range(starts.size - 1):
        for e in range(starts[j], starts[j + 1]):
            i = rows[e]
            _absorb(states[i], np.uint64(j))
            _absorb(states[i], words[e])
            counts[i] += 2
    out = np.empty(m, np.uint64)
    for i in range(m):
        out[i] = _ended(states[i], counts[i])
    return out


def multiset_digest(matrix: Any, target: NDArray[np.float64], key: bytes) -> bytes:
    """A digest of the rows of a table with their targets, whatever their order.

    The sum of the rows' tags under two keys, modulo 2⁶⁴ each: rows that are added, removed or changed change it, except
    with probability 2⁻¹²⁸ without the key.

    Args:
        matrix: (m, p), an array in Fortran order or a CSC matrix; float32 or float64.
        target: (m,).
        key: 32 bytes.

    Returns:
        The number of rows and both sums.
    """
    own = np.frombuffer(key, np.uint64).reshape(2, 2)
    m = len(target)
    y = (np.ascontiguousarray(target, np.float64) + 0.0).view(np.uint64)  # −0.0 is 0.0
    sums = []
    for pair in own:
        if isinstance(matrix, np.ndarray):
            words = (np.asarray(matrix.T, np.float64) + 0.0).view(np.uint64)
            tags = row_tags(np.ascontiguousarray(words), np.ascontiguousarray(pair))
        else:
            entries = (matrix.data.astype(np.float64) + 0.0).view(np.uint64)
            columns = (entries, matrix.indices.astype(np.int32), matrix.indptr.astype(np.int64))
            tags = row_tags_sparse(columns, m, np.ascontiguousarray(pair))
        both = row_tags(np.stack([tags, y]), np.ascontiguousarray(pair))
        sums.append(int(both.sum(dtype=np.uint64)))
    return repr((m, *sums)).encode()
