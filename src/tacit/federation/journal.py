"""The journal of a run: what nodes offered and answered, so that a server that stopped can go on.

Everything in it was sent by nodes, so certificates cover it; it also names the sessions that nodes still hold, so it is
kept with mode 0600. A server that goes on computes everything again from the first sum on, which gives the same
questions to the bit, and asks nodes only for what is missing.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit._files import read_whole
from tacit.errors import InvalidInput
from tacit.federation.wire import Message, decode, encode

__all__ = ["Journal"]

Array = NDArray[np.float64]
_LENGTH = struct.Struct(">Q")


class Journal:
    """A file of messages, each written through to the disk before the run goes on.

    Args:
        path: the file.
        resume: whether to go on with the run in it; without it there must be no file, so that no run is overwritten.

    Attributes:
        head: of the run that is gone on with, or None for a new one.
        begun: the nodes that had begun when the server stopped, or None if that is not known.

    Raises:
        InvalidInput: if there is a file and ``resume`` is not stated, or the other way round.
    """

    def __init__(self, path: str | os.PathLike[str], resume: bool) -> None:
        self.path = Path(path)
        if resume is not self.path.exists():
            raise InvalidInput(
                f"there is no journal at {self.path}: leave out resume=True to begin a run"
                if resume
                else f"there is a journal at {self.path}: go on with its run by resume=True, or name another file"
            )
        self._sums: list[Message] = []
        self.head: Message | None = None
        self.begun: list[int] | None = None
        if resume:
            self._read()

    def _read(self) -> None:
        """All whole records; one that was cut off by a crash is asked for again."""
        data, at = read_whole(self.path), 0
        found: list[Message] = []
        while at + _LENGTH.size <= len(data):
            (length,) = _LENGTH.unpack_from(data, at)
            at += _LENGTH.size
            if at + length > len(data):
                at -= _LENGTH.size
                break
            found.append(decode(data[at : at + length]))
            at += length
        if not found or found[0].kind != "run":
            raise InvalidInput(f"{self.path} is no journal of a federation: begin a run under another name")
        with self.path.open("r+b") as file:
            file.truncate(at)
        self.head, self._sums = found[0], [message for message in found if message.kind == "sums"]
        self.begun = next((message.fields["nodes"] for message in found if message.kind == "begun"), None)

    def begin(self, **fields: Any) -> None:
        """Write the head of a new run."""
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        os.close(descriptor)
        self._append(encode("run", **fields))

    def all_begun(self, nodes: list[int]) -> None:
        """Write that these nodes have reserved their budgets, and no others take part."""
        self._append(encode("begun", nodes=nodes))

    def recorded(self, step: int, question: str) -> dict[int, Array] | None:
        """The sums of a step, or None if nodes must be asked.

        Args:
            step: counted from 0.
            question: a digest of what is asked.

        Returns:
            One sum per node that answered.

        Raises:
            InvalidInput: if the journal belongs to another computation.
        """
        if step >= len(self._sums):
            return None
        message = self._sums[step]
        if message.fields.get("question") != question or message.array is None:
            raise InvalidInput(
                f"{self.path} belongs to another computation (settings, version or machine): begin a new run, which is "
                "charged by itself"
            )
        return dict(zip(message.fields["nodes"], message.array, strict=True))

    def add(self, question: str, sums: dict[int, Array]) -> None:
        """Keep the sums of a step."""
        message = encode("sums", np.stack(list(sums.values())), question=question, nodes=list(sums))
        self._append(message)
        self._sums.append(decode(message))

    def end(self) -> None:
        """The run is over: remove the file, which names sessions that are no more."""
        self.path.unlink(missing_ok=True)

    def _append(self, message: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(_LENGTH.pack(len(message)) + message)
            file.flush()
            os.fsync(file.fileno())
