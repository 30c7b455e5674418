"""Which ledger lies at a path: a note in the state directory, which survives when the file and its anchor are deleted.

Without it ``rm study.ledger*`` would give a fresh budget for the same records, and nothing would tell.
"""

from __future__ import annotations

import contextlib
import hashlib
from pathlib import Path

from tacit._files import write_whole
from tacit.errors import InvalidInput, LedgerCorrupt
from tacit.ledger import anchor as anchors
from tacit.ledger.chain import DamageError

__all__ = ["clear", "gone", "known_at", "note", "spent_at", "taken"]

_WAY_OUT = (
    "only if its records are out of use, or it has moved, Ledger(path, epsilon, delta, new=True) or tacit ledger PATH"
    " --new begins another budget here"
)


def _file(path: Path) -> Path | None:
    folder = anchors.state_folder("places")
    return None if folder is None else folder / hashlib.sha256(str(path).encode()).hexdigest()[:32]


def known_at(path: Path) -> str | None:
    """The random name of the ledger that was last opened at ``path`` by this user, None if there was none."""
    file = _file(path)
    with contextlib.suppress(OSError):
        return None if file is None else file.read_text("ascii", errors="replace").strip()
    return None


def note(path: Path, ledger: str) -> None:
    """Write down that ``ledger`` lies at ``path``; best effort, as for anchors."""
    file = _file(path)
    if file is not None:
        with contextlib.suppress(OSError, InvalidInput):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(file, f"{ledger}\n".encode("ascii"))


def spent_at(path: Path, ledger: str | None) -> int | None:
    """How many entries the surviving anchors of a ledger have seen.

    Args:
        path: where it lay.
        ledger: its name; None if only the anchor beside the file can tell.

    Returns:
        The number, −1 if the anchors are gone or damaged, None if there was no ledger.
    """
    seen = [] if ledger is None else [-1]
    for file in (anchors.beside(path), None if ledger is None else anchors.in_state(ledger)):
        try:
            found = None if file is None else anchors.read(file)
        except (OSError, DamageError):
            seen.append(-1)
        else:
            seen += [found.count] if found is not None and ledger in (None, found.ledger) else []
    return max(seen, default=None)


def clear(path: Path) -> None:
    """Remove the anchor beside a ledger that the user gives up."""
    with contextlib.suppress(OSError):
        anchors.beside(path).unlink()


def gone(path: Path, count: int) -> LedgerCorrupt:
    """The error for a ledger whose file was deleted."""
    held = f"held {count} {'entry' if count == 1 else 'entries'}" if count >= 0 else "was there"
    return LedgerCorrupt(
        f"ledger {path} {held}: the file is gone, but its anchor survives, so no budget is granted; restore the newest"
        f" backup (with its -wal and .anchor files), and treat what it lacks as spent; {_WAY_OUT}"
    )


def taken(path: Path) -> LedgerCorrupt:
    """The error for a ledger that lies where another one has been."""
    return LedgerCorrupt(
        f"ledger {path} is not to be trusted: another ledger was here, so no budget is granted from this one; restore"
        f" the one that was, from its newest backup; {_WAY_OUT}"
    )
