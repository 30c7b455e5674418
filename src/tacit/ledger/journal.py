"""Journals: what a run that can be resumed has released so far, so that one charge pays for one run.

A checkpoint holds the noise key, and a copy of it could go on in another direction: other losses, other sums, all paid
once. Each release is therefore written down before its result is used, under a name that every copy of the checkpoint
knows: beside the checkpoint, and in the state directory of the user. A run that goes on from a checkpoint, or a copy of
it, repeats to the bit what was released after it, or is refused.

A journal holds keyed digests only, so it tells nothing to a reader without the checkpoint.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
from pathlib import Path

from tacit._files import write_whole
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.ledger.anchor import state_folder

__all__ = ["Journal"]

_OWNER_ONLY = 0o600
_LINE = re.compile(r"([0-9a-f]{32}) (end|\d+ [0-9a-f]{64})")
_END = "end"


class Journal:
    """The releases of one run, in one file or two that must agree.

    *Formal guarantee.* Of all processes that share one of the files, each release number gets one result: the first
    that was written. *Assumptions.* The files are not edited or rolled back together; appending is atomic, as on local
    disks.

    Args:
        key: a secret of 32 bytes that every checkpoint of the run holds, and no other run's.
        beside: a checkpoint, whose journal lies beside it; None for the state directory alone.
    """

    def __init__(self, key: bytes, beside: Path | None = None) -> None:
        self._key = hashlib.blake2b(b"journal", digest_size=32, key=key).digest()
        name = hashlib.blake2b(b"name", digest_size=16, key=self._key).hexdigest()
        folder = state_folder("journals")
        self._far = None if folder is None else _File(folder / name, name)
        self._near = None if beside is None else _File(beside.with_name(f"{beside.name}.journal"), name)

    def require(self, count: int, history: bytes) -> None:
        """Refuse to go on from a checkpoint whose journal is missing, or belongs to another run.

        Args:
            count: number of releases that the checkpoint has made.
            history: a digest of all of them.

        Raises:
            MechanismMismatch: if no journal knows this checkpoint, or the run has ended.
        """
        name = self._named(history)
        seen = [file.lines() for file in self._files()]
        if any(_END in lines for lines in seen):
            raise MechanismMismatch("the run of this checkpoint has ended: begin a new run, which is charged")
        found = {lines[str(count)] for lines in seen if str(count) in lines}
        if found != {name}:
            beside = "" if self._near is None else f" ({str(self._near.path)!r})"
            raise MechanismMismatch(
                f"the journal of this checkpoint{beside} is missing or another run's, so what was released since is"
                " not known: bring it with the checkpoint, share TACIT_STATE_DIR, or begin a new run, which is charged"
            )

    def check(self, count: int, history: bytes) -> None:
        """Write down a release, or check that it equals the one made before, before its result is used.

        Args:
            count: number of releases made, with this one.
            history: a digest of all of them.

        Raises:
            MechanismMismatch: if that release was made before with another result, or the run has ended.
            InvalidInput: if no journal can be written.
        """
        name, number, written = self._named(history), str(count), 0
        for file in self._files():
            lines = file.lines()
            if number not in lines and _END not in lines:
                try:
                    file.append(f"{number} {name}")
                except OSError as error:
                    if file is self._near:
                        raise InvalidInput(f"{str(file.path)!r} cannot be written: {error.strerror or error}") from None
                    continue  # as for anchors: a state directory that is out of reach counts as none
                lines = file.lines()  # of two that append at once, the first line counts
            written += 1
            if _END in lines or lines.get(number) != name:
                raise MechanismMismatch(
                    f"release {count} was made before, from this checkpoint or a copy of it, with another result: "
                    "another model, loss, optimizer or machine would spend the budget twice; go on exactly as before, "
                    "or begin a new run"
                )
        if not written:
            raise InvalidInput("the journal of this run cannot be written: set TACIT_STATE_DIR to a writable folder")

    def end(self) -> None:
        """Close the journal at the end of the run: no copy of a checkpoint goes on after it."""
        if self._far is not None:
            with contextlib.suppress(OSError, InvalidInput):
                self._far.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                write_whole(self._far.path, f"{self._far.run} {_END}\n".encode(), mode=_OWNER_ONLY)
        if self._near is not None:
            self._near.path.unlink(missing_ok=True)

    def _files(self) -> list[_File]:
        return [file for file in (self._near, self._far) if file is not None]

    def _named(self, history: bytes) -> str:
        return hashlib.blake2b(history, digest_size=32, key=self._key).hexdigest()


class _File:
    """Lines that are appended by any number of processes; of several with one number the first counts.

    A file may hold lines of an earlier run, whose checkpoint lay at the same path and which was killed before its end.
    """

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run = path, run
        self._seen: dict[str, str] = {}
        self._read = 0

    def lines(self) -> dict[str, str]:
        """All lines of the run by number; only what was appended since is read."""
        try:
            with self.path.open() as file:
                if self._read > os.fstat(file.fileno()).st_size:
                    self._seen, self._read = {}, 0  # replaced by its end
                file.seek(self._read)
                new = file.read()
        except OSError:
            self._seen, self._read = {}, 0
            return self._seen
        whole = new[: new.rfind("\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            found = _LINE.fullmatch(line)  # a line that a crash cut off is not one: its result was not used
            if found and found[1] == self.run:
                number, _, name = found[2].partition(" ")
                self._seen.setdefault(number, name)
        return self._seen

    def append(self, line: str) -> None:
        """Add a line, on disk when this returns; it begins a line of its own also after one that was cut off."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
        descriptor = os.open(self.path, flags, _OWNER_ONLY)
        try:
            os.write(descriptor, f"\n{self.run} {line}\n".encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
