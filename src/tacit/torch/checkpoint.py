"""Checkpoints: files from which an interrupted run is resumed.

A run that resumes from a checkpoint repeats the steps between the checkpoint and the crash. Repeated exactly (same
data, settings, model, loss, machine) they release nothing new. Anything else would be a second release of a step that
was paid for once, and is refused by the run's journal (``tacit.ledger.journal``).
"""

from __future__ import annotations

import io
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tacit._files import write_whole
from tacit.errors import InvalidInput
from tacit.release import Checkpoint

__all__ = ["Saved", "read", "write"]

FORMAT = 2
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
        run: secret of this run, under which its journal is kept (two seeded runs share the noise key).
        entry: number of the ledger's entry that paid for the run.
        marks: marks of the certificate that were declared so far.
        median_norm: what the pilot release found, if there was one.
    """

    plan: str
    data: bytes
    channel: Checkpoint
    model: dict[str, Any]
    optimizer: dict[str, Any]
    run: bytes
    entry: int | None = None
    marks: tuple[str, ...] = ()
    median_norm: float | None = None

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
        "run": saved.run.hex(),
        "entry": saved.entry,
        "marks": list(saved.marks),
        "median_norm": saved.median_norm,
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
            bytes.fromhex(document["run"]),
            None if document["entry"] is None else int(document["entry"]),
            tuple(str(mark) for mark in document["marks"]),
            None if document.get("median_norm") is None else float(document["median_norm"]),
        )
    except _DAMAGE:
        return None
