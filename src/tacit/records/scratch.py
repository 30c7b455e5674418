"""A scratch copy of a table: in memory up to a budget, beyond it in a file without a name.

The file is made with mode 0600 and its name removed before anything is written: nobody else can open it, and it is gone
as soon as this process closes it or ends, however it ends.
"""

from __future__ import annotations

import logging
import mmap
import os
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput

__all__ = ["Scratch"]

Arrays = dict[str, NDArray[Any]]
_ALIGN = 64
log = logging.getLogger("tacit.records")


class Scratch:
    """Columns of numbers in parts of equal length.

    Args:
        rows: of a part; the last one may have fewer.
        memory: bytes that may stay in memory.
        folder: for the file; None for the system's.
    """

    def __init__(self, rows: int, memory: int, folder: Path | None = None) -> None:
        self.rows, self._memory, self._folder = rows, memory, folder
        self._parts: list[Arrays] = []
        self._like: dict[str, tuple[Any, tuple[int, ...]]] = {}
        self._file: Any = None
        self._length = self._held = 0

    def __len__(self) -> int:
        return self._length

    @property
    def on_disk(self) -> bool:
        """Whether it outgrew its budget."""
        return self._file is not None

    def add(self, arrays: Arrays) -> None:
        """Append a part."""
        if not self._like:
            self._like = {name: (one.dtype, one.shape[1:]) for name, one in arrays.items()}
        if self._length % self.rows:
            raise InvalidInput("only the last part of a copy may be shorter; please report this")
        self._length += len(next(iter(arrays.values())))
        self._held += sum(one.nbytes for one in arrays.values())
        if self._file is None and self._held <= self._memory:
            self._parts.append(arrays)
            return
        if self._file is None:
            self._open()
            for k, part in enumerate(self._parts):
                self._write(k, part)
            self._parts.clear()
        self._write((self._length - 1) // self.rows, arrays)

    def part(self, k: int) -> Arrays:
        """Some rows that follow each other; not to be changed."""
        if self._file is None:
            return self._parts[k]
        count = min(self.rows, self._length - k * self.rows)
        buffer = np.empty(self._block, np.uint8)
        view = memoryview(buffer.data)
        done, first = 0, k * self._block
        while done < self._block:
            got = os.preadv(self._file.fileno(), [view[done:]], first + done)
            if got == 0:
                break  # the last part is shorter
            done += got
        return self._views(buffer, 0, count)

    def parts(self) -> Iterator[Arrays]:
        """All rows, part by part."""
        for k in range(-(-self._length // self.rows)):
            yield self.part(k)

    def take(self, index: NDArray[np.intp]) -> Arrays:
        """Some rows; private copies.

        Args:
            index: increasing.

        Returns:
            The rows.
        """
        which = index // self.rows
        found: list[Arrays] = []
        for k in np.unique(which):
            own = index[which == k] - k * self.rows
            found.append({name: one[own] for name, one in self._mapped(int(k)).items()})
        if self._file is not None and hasattr(mmap, "MADV_DONTNEED"):
            self._map.madvise(mmap.MADV_DONTNEED)  # pages of the file are no memory of ours
        return {name: np.concatenate([part[name] for part in found]) for name in self._like}

    def _mapped(self, k: int) -> Arrays:
        if self._file is None:
            return self._parts[k]
        count = min(self.rows, self._length - k * self.rows)
        if getattr(self, "_map_length", None) != self._length:
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            self._map_length = self._length
        return self._views(np.frombuffer(self._map, np.uint8), k * self._block, count)

    # -- the file ---------------------------------------------------------------------------------------------

    @property
    def _block(self) -> int:
        return sum(self._span(dtype, shape) for dtype, shape in self._like.values())

    def _span(self, dtype: Any, shape: tuple[int, ...]) -> int:
        size = self.rows * int(np.prod(shape, dtype=int)) * int(dtype.itemsize)
        return -(-size // _ALIGN) * _ALIGN

    def _views(self, buffer: NDArray[np.uint8], first: int, count: int) -> Arrays:
        out: Arrays = {}
        for name, (dtype, shape) in self._like.items():
            size = count * int(np.prod(shape, dtype=int)) * int(dtype.itemsize)
            out[name] = buffer[first : first + size].view(dtype).reshape(count, *shape)
            first += self._span(dtype, shape)
        return out

    def _open(self) -> None:
        folder = None if self._folder is None else str(self._folder)
        try:
            # Opened with mode 0600; where the system can, it never has a name.
            self._file = tempfile.TemporaryFile(prefix="tacit-", dir=folder, buffering=0)  # noqa: SIM115
            weakref.finalize(self, self._file.close)
        except OSError as error:
            raise InvalidInput(f"scratch: no file can be made in {folder!r}: {error.strerror}") from None
        log.warning(
            "tacit copies the records to a scratch file in %s: nobody else can open it, and it is gone when this "
            "process closes it or ends. scratch=False reads the source anew in every pass; memory= says how large a "
            "copy may stay in memory.",
            tempfile.gettempdir() if folder is None else folder,
        )

    def _write(self, k: int, arrays: Arrays) -> None:
        first = k * self._block
        for name, (dtype, shape) in self._like.items():
            data = memoryview(np.ascontiguousarray(arrays[name], dtype).data).cast("B")
            done = 0
            try:
                while done < len(data):
                    done += os.pwrite(self._file.fileno(), data[done:], first + done)
            except OSError as error:
                raise InvalidInput(
                    f"scratch: the copy cannot be written ({error.strerror}): choose scratch=folder"
                ) from None
            first += self._span(dtype, shape)
