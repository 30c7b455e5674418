"""A scratch copy of a table: in memory up to a budget, beyond it in a file without a name.

The file is made with mode 0600 and its name removed before anything is written: nobody else can open it, and it is gone
as soon as this process closes it or ends, however it ends.
"""

from __future__ import annotations

import logging
import math
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput

__all__ = ["Scratch"]

Arrays = dict[str, NDArray[Any]]
_ALIGN = 64
log = logging.getLogger("tacit.records")
ANNOUNCED = (
    "tacit copies the records to a scratch file in %s: nobody else can open it, and it is gone when this process ends "
    "or lets go of it. scratch=False reads the source anew in every pass; memory= says how much may stay in memory."
)


class Scratch:
    """Columns of numbers in parts of equal length.

    Args:
        rows: of a part; the last one may have fewer.
        memory: bytes that may stay in memory.
        folder: for the file; None for the system's.
        by_columns: names of arrays that have a column for each row, instead of a row.
        silent: whether nothing is said about a file: another one was announced.
    """

    def __init__(
        self,
        rows: int,
        memory: int,
        folder: Path | None = None,
        by_columns: frozenset[str] = frozenset(),
        silent: bool = False,
    ) -> None:
        self.rows, self._memory, self._folder = rows, memory, folder
        self._by_columns, self._silent = by_columns, silent
        self._parts: list[Arrays] = []
        self._counts: list[int] = []
        self._like: dict[str, tuple[Any, tuple[int, ...], int]] = {}
        self._block = 0
        self._file: Any = None
        self._map: mmap.mmap | None = None
        self._held = 0

    def __len__(self) -> int:
        return sum(self._counts)

    @property
    def count(self) -> int:
        """The number of parts."""
        return len(self._counts)

    @property
    def on_disk(self) -> bool:
        """Whether it outgrew its budget."""
        return self._file is not None

    @property
    def held(self) -> int:
        """Bytes that are in memory."""
        return 0 if self.on_disk else self._held

    def add(self, arrays: Arrays) -> None:
        """Append a part."""
        if not self._like:
            self._lay_out(arrays)
        if self._counts and self._counts[-1] != self.rows:
            raise InvalidInput("only the last part of a copy may be shorter; please report this")
        self._counts.append(next(one.shape[-1 if name in self._by_columns else 0] for name, one in arrays.items()))
        self._held += sum(one.nbytes for one in arrays.values())
        if self._file is None and self._held <= self._memory:
            self._parts.append({name: one if one.base is None else one.copy() for name, one in arrays.items()})
            return
        if self._file is None:
            self._open()
            for k, part in enumerate(self._parts):
                self._write(k, part)
            self._parts.clear()
        self._write(self.count - 1, arrays)

    def _shape(self, name: str, array: NDArray[Any]) -> tuple[int, ...]:
        """Of one row."""
        return array.shape[:-1] if name in self._by_columns else array.shape[1:]

    def part(self, k: int, names: Sequence[str] | None = None) -> Arrays:
        """Some rows that follow each other; not to be changed.

        Args:
            k: which part.
            names: of the arrays to read; None for all.

        Returns:
            Arrays by name.
        """
        wanted = self._like if names is None else names
        if self._file is None:
            return {name: self._parts[k][name] for name in wanted if name in self._like}
        return {name: self._read(name, k) for name in wanted if name in self._like}

    def parts(self) -> Iterator[Arrays]:
        """All rows, part by part."""
        return map(self.part, range(self.count))

    def take(self, index: NDArray[np.intp]) -> Arrays:
        """Some rows; private copies.

        Args:
            index: increasing.

        Returns:
            The rows.
        """
        which = index // self.rows
        if self._file is not None and (self._map is None or len(self._map) < os.fstat(self._file.fileno()).st_size):
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        found: list[Arrays] = []
        for k in map(int, np.unique(which)):
            own = index[which == k] - k * self.rows
            found.append({name: self._seen(name, k)[own] for name in self._like})
        if self._map is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)  # pages of the file are no memory of ours
        return {name: np.concatenate([part[name] for part in found]) for name in self._like}

    # -- the file ---------------------------------------------------------------------------------------------

    def _lay_out(self, arrays: Arrays) -> None:
        """Where each array of a part lies in its block."""
        for name, one in arrays.items():
            shape = self._shape(name, one)
            self._like[name] = one.dtype, shape, self._block
            size = self.rows * math.prod(shape) * one.dtype.itemsize
            self._block += -(-size // _ALIGN) * _ALIGN

    def _place(self, name: str, k: int) -> tuple[Any, tuple[int, ...], int]:
        """The type and shape of an array, and where it lies."""
        (dtype, shape, first), count = self._like[name], self._counts[k]
        return dtype, (*shape, count) if name in self._by_columns else (count, *shape), k * self._block + first

    def _read(self, name: str, k: int) -> NDArray[Any]:
        """An array of a part, from the file: faster than the faults of a memory map, where all of it is needed."""
        dtype, shape, first = self._place(name, k)
        out = np.empty(shape, dtype)
        view, done = memoryview(out.data).cast("B"), 0
        while done < len(view):
            got = os.preadv(self._file.fileno(), [view[done:]], first + done)
            if got == 0:
                raise InvalidInput("scratch: the copy is shorter than it was written; please report this")
            done += got
        return out

    def _seen(self, name: str, k: int) -> NDArray[Any]:
        """An array of a part, of which few rows are needed."""
        if self._map is None:
            return self._parts[k][name]
        dtype, shape, first = self._place(name, k)
        return np.frombuffer(self._map, dtype, math.prod(shape), first).reshape(shape)

    def _open(self) -> None:
        folder = None if self._folder is None else str(self._folder)
        try:
            # Opened with mode 0600; where the system can, it never has a name.
            self._file = tempfile.TemporaryFile(prefix="tacit-", dir=folder, buffering=0)  # noqa: SIM115
        except OSError as error:
            raise InvalidInput(f"scratch: no file can be made in {folder!r}: {error.strerror}") from None
        weakref.finalize(self, self._file.close)
        if not self._silent:
            where = tempfile.gettempdir() if folder is None else folder
            log.warning(ANNOUNCED, where)

    def _write(self, k: int, arrays: Arrays) -> None:
        for name in self._like:
            dtype, _, first = self._place(name, k)
            data = memoryview(np.ascontiguousarray(arrays[name], dtype).data).cast("B")
            done = 0
            try:
                while done < len(data):
                    done += os.pwrite(self._file.fileno(), data[done:], first + done)
            except OSError as error:
                why = f"the copy cannot be written ({error.strerror})"
                raise InvalidInput(f"scratch: {why}: choose another folder, scratch=folder") from None
