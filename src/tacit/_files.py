"""Files that are whole or not there."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from tacit.errors import InvalidInput

__all__ = ["NoSuchFile", "read_whole", "write_whole"]


class NoSuchFile(InvalidInput, FileNotFoundError):
    """There is no such file; for those who catch the one or the other."""


def read_whole(path: Path) -> bytes:
    """The content of a file.

    Args:
        path: where it is.

    Returns:
        All of it.

    Raises:
        NoSuchFile: if there is none.
        InvalidInput: if it cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise NoSuchFile(f"No such file: {str(path)!r}; check the path") from None
    except IsADirectoryError:
        raise InvalidInput(f"{str(path)!r} is a folder: name a file in it") from None
    except OSError as error:
        raise InvalidInput(f"{str(path)!r} cannot be read: {error.strerror or error}") from None


def write_whole(path: Path, data: bytes, *, mode: int = 0o666) -> None:
    """Write beside the goal, then rename: an interrupt or a full disk leaves the old file or the new one.

    Args:
        path: the goal.
        data: the content.
        mode: of the file, before the process's umask; 0o600 for secrets, from the first byte on.

    Raises:
        InvalidInput: if it cannot be written.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
    except OSError as error:
        raise InvalidInput(f"{str(path)!r} cannot be written: {error.strerror or error}") from None
    finally:
        fresh.unlink(missing_ok=True)
