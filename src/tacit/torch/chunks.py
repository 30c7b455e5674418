"""Into how many chunks a batch is cut: from public numbers only."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from tacit.torch.layers import chain_of
from tacit.torch.ways import Way

__all__ = ["CHUNK", "chunk_for", "default_chunk", "exact_chunk", "spans"]

CHUNK = 64
"""Most records whose gradients vmap computes at once: more is not faster on a CPU."""
CHAIN_CHUNK = 24
"""Most records in one pass through a chain of layers: more takes more memory and saves hardly any time."""
LINEAR_CHUNK = 512
"""Most records in one pass through a chain of linear layers, whose gradients are never formed."""
_HELD = 64_000_000  # most numbers in the gradients of a chunk
_HELD_EXACT = 16_000_000  # in exact arithmetic all of them are formed, in float64
_HELD_FACTORS = 16_000_000
"""Most numbers in the factors of a chunk; what PyTorch keeps for its backward pass is several times as much."""


def chunk_for(size: int, most: int = CHUNK) -> int:
    """Size of a chunk whose gradients fit into memory: 64 records, or fewer for large models."""
    return max(1, min(most, _HELD // max(size, 1)))


def exact_chunk(size: int) -> int:
    """Size of a chunk in exact arithmetic, where every gradient is formed."""
    return max(1, min(CHUNK, _HELD_EXACT // max(size, 1)))


def default_chunk(model: nn.Module, size: int, way: Way) -> int:
    """Number of records that are differentiated at once, unless the user chooses it.

    Args:
        model: a chain of layers needs less memory than ``vmap``.
        size: number of trainable parameters.
        way: how gradients are computed.

    Returns:
        The size of a chunk.
    """
    if way.kind == "alone":
        return 1
    chain = chain_of(model) if way.kind == "chain" else None
    if chain is not None:
        return LINEAR_CHUNK if chain.is_linear else chunk_for(size, CHAIN_CHUNK)
    return chunk_for(size) if way.held == 0 else max(1, min(LINEAR_CHUNK, _HELD_FACTORS // way.held))


def spans(count: int, chunk: int, expected: float | None) -> Iterator[tuple[int, int, int]]:
    """How a batch is cut into chunks of public sizes: (first, last + 1, size of the chunk).

    Chunks are filled up with made-up records, so that what is computed for a record does not depend on how many others
    were drawn with it. With an expected number, the first chunks hold hardly more than it, and what is left comes in
    small ones: fewer made-up records are computed.

    Args:
        count: number of records.
        chunk: the largest chunk.
        expected: number of records in a batch, public; None for chunks of one size.

    Yields:
        The chunks.
    """
    size = small = chunk
    pieces = 0
    if expected is not None:
        most = expected + 1.5 * expected**0.5
        pieces = int(-(-most // chunk))
        size = min(chunk, int(-(-most // pieces)))
        small = max(1, size // 8)
    first = 0
    while first < count:
        width = size if pieces > 0 or expected is None else small
        yield first, min(first + width, count), width
        first, pieces = first + width, pieces - 1
