"""Witnesses against rolled-back copies: how many entries a ledger had, and the hash of the last.

A chain of hashes cannot show that its end is missing. After each commit, the length and head are therefore
also written beside the ledger (``<path>.anchor``) and into a per-user state directory under the ledger's
random name. An older copy of the file, or of its whole folder, then contradicts a witness.

A ledger *ahead* of an anchor is whole: the process died between the commit and the anchor. Writers hold
the ledger's write lock, and an anchor is never replaced by one with a smaller count.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from tacit.ledger.chain import DamageError

__all__ = ["Anchor", "beside", "in_state", "read", "read_all", "state_folder", "write_all"]


@dataclass(frozen=True, slots=True)
class Anchor:
    """``count`` entries of the ledger named ``ledger`` were seen; the last had the hash ``head``."""

    ledger: str
    count: int
    head: str


def beside(path: Path) -> Path:
    """Return the anchor that lies next to the ledger."""
    return path.with_name(path.name + ".anchor")


def state_folder(kind: str) -> Path | None:
    """Return the folder of this user's state for one kind of file, or None if there is no home to hold it."""
    override = os.environ.get("TACIT_STATE_DIR")
    if override:
        return Path(override) / kind
    try:
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    except RuntimeError:
        return None
    return Path(base) / "tacit" / kind


def in_state(ledger: str) -> Path | None:
    """Return the anchor in this user's state directory, or None if there is no home to hold one."""
    folder = state_folder("anchors")
    return None if folder is None else folder / f"{ledger}.json"


def _parse(file: Path, text: bytes) -> Anchor:
    try:
        found = Anchor(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        raise DamageError(f"its anchor {file} is unreadable") from None
    if type(found.count) is not int or not isinstance(found.head, str):
        raise DamageError(f"its anchor {file} is unreadable")
    return found


def read(file: Path) -> Anchor | None:
    """The anchor in a file.

    Args:
        file: where it is.

    Returns:
        The anchor, or None if there is none.

    Raises:
        DamageError: if it is unreadable.
    """
    try:
        text = file.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return _parse(file, text)


def read_all(path: Path, ledger: str) -> dict[Path, Anchor]:
    """All surviving anchors of a ledger, by file.

    Args:
        path: where the ledger lies.
        ledger: its random name.

    Returns:
        At most two anchors; an unreachable state directory counts as none.

    Raises:
        DamageError: if an anchor is unreadable or belongs to another ledger.
    """
    found: dict[Path, Anchor] = {}
    try:
        near = read(beside(path))
    except OSError as error:
        raise DamageError(f"its anchor {beside(path)} cannot be read ({error.strerror})") from None
    if near is not None:
        found[beside(path)] = near
    far_file = in_state(ledger)
    if far_file is not None:
        with contextlib.suppress(OSError):
            far = read(far_file)
            if far is not None:
                found[far_file] = far
    for file, anchor in found.items():
        if anchor.ledger != ledger:
            raise DamageError(f"its anchor {file} belongs to another ledger, so this is not the file that was here")
    return found


def write_all(path: Path, anchor: Anchor) -> None:
    """Raise both anchors to ``anchor``; the caller holds the ledger's write lock.

    Failures are not errors: the entry is already durable, and the next reservation writes the anchors again.
    """
    for file in (beside(path), in_state(anchor.ledger)):
        if file is not None:
            with contextlib.suppress(OSError, DamageError):
                _raise_to(file, anchor)


def _raise_to(file: Path, anchor: Anchor) -> None:
    old = read(file)
    if old is not None and old.count >= anchor.count:
        return
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)  # the state directory's first use
    # One fixed temporary name: the write lock excludes other writers, and a crash leaves at most one. What lies there
    # is removed and the file made afresh, so that a link in its place is never written through.
    draft = file.with_name(file.name + ".tmp")
    draft.unlink(missing_ok=True)
    with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666), "w", encoding="ascii") as stream:
        stream.write(json.dumps(asdict(anchor)) + "\n")
        stream.flush()
        os.fsync(stream.fileno())
    draft.replace(file)
