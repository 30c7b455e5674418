"""Worker processes that read the items of a dataset."""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import torch

__all__ = ["Workers"]

Read = Callable[[int, int], Any]
_read: Read | None = None
"""In a worker: what it reads items with."""


class Workers:
    """Processes that read items in parallel, started at the first read and ended with their owner.

    Args:
        read: ``read(number, seed)`` returns what becomes of an item; it never raises. It is inherited, not pickled, so
            that any dataset can be read; what it returns is pickled.
        count: how many processes.
    """

    def __init__(self, read: Read, count: int) -> None:
        self._read, self.count = read, count
        self._pool: ProcessPoolExecutor | None = None

    def map(self, numbers: Sequence[int], seeds: Sequence[int]) -> list[Any]:
        """What ``read`` returns for each item, in their order."""
        if self._pool is None:
            context = multiprocessing.get_context("fork")
            self._pool = ProcessPoolExecutor(self.count, context, _start, (self._read,))
            weakref.finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)
        size = max(1, -(-len(numbers) // self.count))
        return list(self._pool.map(_one, numbers, seeds, chunksize=size))


def _start(read: Read) -> None:
    global _read
    _read = read
    torch.set_num_threads(1)


def _one(number: int, seed: int) -> Any:
    assert _read is not None
    return _read(number, seed)
