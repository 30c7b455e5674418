"""Checkpoint files: what a run needs to go on, written whole, mode 0600, read without running foreign code."""

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
from tacit.run import Checkpoint

__all__ = ["Saved", "read", "write"]

FORMAT = 1
OWNER_ONLY = 0o600


@dataclass(frozen=True)
class Saved:
    """A checkpoint in memory: **as secret as the data**.

    Attributes:
        plan: digest of the public settings.
        data: digest of the records.
        channel: where the channel stood, with its key.
        model: parameters and buffers.
        optimizer: its state.
    """

    plan: str
    data: bytes
    channel: Checkpoint
    model: dict[str, Any]
    optimizer: dict[str, Any]

    def __repr__(self) -> str:
        return f"Saved(step={self.channel.step})"  # never the key


def write(
    path: Path, *, plan: str, data: bytes, channel: Checkpoint, model: dict[str, Any], optimizer: dict[str, Any]
) -> None:
    """Write a checkpoint; an interrupt leaves the old file or the new one.

    Args:
        path: the goal.
        plan: digest of the public settings.
        data: digest of the records.
        channel: of the run.
        model: its state.
        optimizer: its state.
    """
    document = {
        "tacit": "checkpoint",
        "format": FORMAT,
        "plan": plan,
        "data": data.hex(),
        "model": model,
        "optimizer": optimizer,
        "channel": {
            "digest": channel.digest,
            "key": channel.key.hex(),
            "seeded": channel.seeded,
            "step": channel.step,
            "release": channel.release,
            "rows": None if channel.rows is None else torch.from_numpy(channel.rows),
            "stream": None if channel.stream is None else list(channel.stream),
        },
    }
    stream = io.BytesIO()
    torch.save(document, stream)
    write_whole(path, stream.getvalue(), mode=OWNER_ONLY)


def read(path: Path) -> Saved:
    """Read a checkpoint.

    Args:
        path: where it is.

    Returns:
        Its parts.

    Raises:
        InvalidInput: if there is none, or it is damaged.
    """
    try:
        document = torch.load(io.BytesIO(path.read_bytes()), weights_only=True, map_location="cpu")
        channel = document["channel"]
        ours = (document["tacit"], document["format"]) == ("checkpoint", FORMAT)
        rows, stream = channel["rows"], channel["stream"]
        saved = Saved(
            str(document["plan"]),
            bytes.fromhex(document["data"]),
            Checkpoint(
                str(channel["digest"]),
                bytes.fromhex(channel["key"]),
                bool(channel["seeded"]),
                int(channel["step"]),
                int(channel["release"]),
                None if rows is None else np.array(rows.numpy()),
                None if stream is None else (float(stream[0]), int(stream[1])),
            ),
            dict(document["model"]),
            dict(document["optimizer"]),
        )
    except OSError as error:
        raise InvalidInput(f"{str(path)!r} cannot be read: {error.strerror or error}") from None
    except (KeyError, TypeError, ValueError, RuntimeError, EOFError, AttributeError, pickle.UnpicklingError):
        ours = False
    if not ours:
        raise InvalidInput(f"{str(path)!r} is not a checkpoint that can be used: damaged, or another file")
    return saved
