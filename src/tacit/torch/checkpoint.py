"""Files of an interrupted run: the checkpoint it resumes from, and the journal of what it released after that.

A run that resumes from a checkpoint repeats the steps between the checkpoint and the crash. Repeated exactly (same
data, settings, model, loss, machine) they release nothing new. Anything else would be a second release of a step that
was paid for once; so each step writes the digest of its release to the journal before the result is used.
"""

from __future__ import annotations

import io
import os
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit._files import write_whole
from tacit.errors import InvalidInput, MechanismMismatch
from tacit.release import Checkpoint

__all__ = ["Journal", "Saved", "read", "write"]

FORMAT = 1
OWNER_ONLY = 0o600
_DAMAGE = (KeyError, TypeError, ValueError, RuntimeError, EOFError, AttributeError, pickle.UnpicklingError)


@dataclass(frozen=True)
class Saved:
    """A checkpoint in memory: **as secret as the data**.

    Attributes:
        plan: digest of the public settings.
        data: digest of the records.
        channel: position of the channel, with its key.
        model: parameters and buffers.
        optimizer: state of the optimiser.
        entry: number of the ledger's entry that paid for the run.
        marks: marks of the certificate that were declared so far.
    """

    plan: str
    data: bytes
    channel: Checkpoint
    model: dict[str, Any]
    optimizer: dict[str, Any]
    entry: int | None = None
    marks: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"Saved(step={self.channel.step})"  # never the key


def write(path: Path, saved: Saved) -> None:
    """Write a checkpoint, readable by its owner only; an interrupt leaves the old file or the new one.

    Args:
        path: where to write it.
        saved: the checkpoint.

    Raises:
        InvalidInput: if the state of the model or the optimizer contains something that could not be read back.
    """
    channel = saved.channel
    document = {
        "tacit": "checkpoint",
        "format": FORMAT,
        "plan": saved.plan,
        "data": saved.data.hex(),
        "model": _plain(saved.model),
        "optimizer": _plain(saved.optimizer),
        "entry": saved.entry,
        "marks": list(saved.marks),
        "channel": {
            "digest": channel.digest,
            "key": channel.key.hex(),
            "seeded": channel.seeded,
            "step": channel.step,
            "release": channel.release,
            "rows": None if channel.rows is None else torch.from_numpy(channel.rows),
            "stream": None if channel.stream is None else list(channel.stream),
            "history": channel.history.hex(),
            "sums": None if channel.sums is None else torch.from_numpy(channel.sums),
        },
    }
    stream = io.BytesIO()
    torch.save(document, stream)
    if _parsed(stream.getvalue()) is None:
        raise InvalidInput(
            "the model's or optimizer's state holds objects that cannot be read back: keep plain numbers"
        )
    write_whole(path, stream.getvalue(), mode=OWNER_ONLY)


def _plain(value: Any) -> Any:
    """NumPy's numbers as Python's, because only those can be read back without running code."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, dict):
        return {_plain(key): _plain(inner) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_plain(inner) for inner in value)
    return value


def read(path: Path) -> Saved:
    """Read a checkpoint, without running any code that the file might contain.

    Args:
        path: where it is.

    Returns:
        The checkpoint.

    Raises:
        InvalidInput: if there is none, or it is damaged.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    saved = _parsed(data)
    if saved is None:
        raise InvalidInput(f"{str(path)!r} is not a checkpoint that can be used: damaged, or another file")
    return saved


def _parsed(data: bytes) -> Saved | None:
    try:
        document = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
        channel = document["channel"]
        rows, stream, sums = channel["rows"], channel["stream"], channel.get("sums")
        if (document["tacit"], document["format"]) != ("checkpoint", FORMAT):
            return None
        return Saved(
            str(document["plan"]),
            bytes.fromhex(document["data"]),
            Checkpoint(
                str(channel["digest"]),
                bytes.fromhex(channel["key"]),
                bool(channel["seeded"]),
                int(channel["step"]),
                int(channel["release"]),
                None if rows is None else np.array(rows.numpy()),
                None if stream is None else (float(stream[0]), int(stream[1]), str((*stream[2:], "")[0])),
                bytes.fromhex(channel["history"]),
                None if sums is None else np.array(sums.numpy()),
            ),
            dict(document["model"]),
            dict(document["optimizer"]),
            None if document["entry"] is None else int(document["entry"]),
            tuple(str(mark) for mark in document["marks"]),
        )
    except _DAMAGE:
        return None


class Journal:
    """Digests of the releases after a checkpoint, one line per step, appended by every run that resumes from it.

    They are digests of secret sums: the file is as secret as the checkpoint, mode 0600.

    Args:
        checkpoint: the checkpoint file; the journal is written beside it.
    """

    def __init__(self, checkpoint: Path) -> None:
        self.path = checkpoint.with_name(f"{checkpoint.name}.journal")
        self._seen: dict[int, str] = {}
        self._read = 0

    def begin(self, first: int) -> None:
        """Start over after a new checkpoint: steps before ``first`` will not be repeated."""
        self._refresh()
        kept = {step: name for step, name in self._seen.items() if step >= first}
        self._write(os.O_WRONLY | os.O_CREAT | os.O_TRUNC, "".join(f"{s} {n}\n" for s, n in kept.items()))
        self._seen, self._read = {}, 0

    def check(self, step: int, name: bytes) -> None:
        """Append the digest of a release, or check that it equals the one made before.

        Args:
            step: number of the step.
            name: digest of everything released up to it.

        Raises:
            MechanismMismatch: if the step was made before with another result.
        """
        self._refresh()
        text = name.hex()
        known = self._seen.get(step)
        if known is None:
            self._write(os.O_WRONLY | os.O_CREAT | os.O_APPEND, f"{step} {text}\n")
        elif known != text:
            raise MechanismMismatch(
                f"step {step} was released before, from the same checkpoint, with another result: another model, loss, "
                "optimizer or machine would spend the budget twice; go on exactly as before, or start a new plan"
            )

    def remove(self) -> None:
        """Delete the file, at the end of the run."""
        self.path.unlink(missing_ok=True)

    def _write(self, flags: int, text: str) -> None:
        try:
            with os.fdopen(os.open(self.path, flags, OWNER_ONLY), "w") as file:
                file.write(text)
        except OSError as error:
            raise InvalidInput(f"{str(self.path)!r} cannot be written: {error.strerror or error}") from None

    def _refresh(self) -> None:
        """Read the lines that were appended since, by this run or another one."""
        try:
            with self.path.open() as file:
                if self._read > os.fstat(file.fileno()).st_size:
                    self._seen, self._read = {}, 0
                file.seek(self._read)
                new = file.read()
        except FileNotFoundError:
            self._seen, self._read = {}, 0
            return
        whole = new[: new.rfind("\n") + 1]
        self._read += len(whole)
        for line in whole.splitlines():
            step, _, name = line.partition(" ")
            if step.isdigit():
                self._seen.setdefault(int(step), name)
