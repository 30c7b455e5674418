"""SQLite under a ledger: one short-lived connection per operation, full durability, one-line errors.

A connection that outlives its operation is what makes SQLite and ``fork`` dangerous: the child inherits
the library's table of locks without holding the locks. Here no connection exists between operations, and
a fork waits until none is in progress, so that parent, child and threads need no further care. Closing the
last connection also folds the write-ahead log into the file, which is then whole when copied.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

from tacit.errors import LedgerCorrupt, LedgerError
from tacit.ledger.chain import DamageError, Entry, Genesis, Tip

__all__ = ["append", "catch_up", "corrupt", "create", "hash_at", "load", "origin", "session", "transaction"]

_BUSY_SECONDS = 60.0
_BESIDE = ("-wal", "-shm", "-journal")  # SQLite's own files
_PAGE = 500
_GENESIS = ", ".join(f.name for f in fields(Genesis))
_ENTRY = ", ".join(f.name for f in fields(Entry))
_SCHEMA = (
    "CREATE TABLE genesis (ledger TEXT, created TEXT, epsilon REAL, delta REAL, basic_share REAL,"
    " gaussian_mu REAL, adjacency TEXT, unit TEXT, hash TEXT)",
    "CREATE TABLE entries (id INTEGER PRIMARY KEY, time TEXT, kind TEXT, mu REAL, epsilon REAL, delta REAL,"
    " adjacency TEXT, unit TEXT, digest TEXT, note TEXT, nonce TEXT, certificate TEXT, previous TEXT,"
    " hash TEXT)",
    "CREATE TABLE head (count INTEGER, hash TEXT)",
)
# The outside world's fault, as opposed to the file's.
_OUTSIDE = ("SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_READONLY", "SQLITE_FULL", "SQLITE_IOERR", "SQLITE_AUTH")

# Held during every operation of this process, and by a fork, which thus never copies a connection.
_turn = threading.RLock()


def _after_fork_in_child() -> None:
    global _turn
    _turn = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=lambda: _turn.acquire(),
        after_in_parent=lambda: _turn.release(),
        after_in_child=_after_fork_in_child,
    )


def corrupt(path: Path, why: object) -> LedgerCorrupt:
    """Return the error for a file that cannot be trusted."""
    return LedgerCorrupt(
        f"ledger {path} is not to be trusted: {why}; no budget is granted from it: restore the newest backup"
        " (with its -wal and .anchor files), and treat what it lacks as spent"
    )


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except DamageError as broken:
        raise corrupt(path, broken) from None
    except sqlite3.ProgrammingError:
        raise  # a bug of ours, not a state of the file
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", "")
        if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")):
            raise LedgerError(
                f"ledger {path} was locked for {_BUSY_SECONDS:g} s: nothing was reserved; find the process"
                " that holds it and try again"
            ) from error
        if name.startswith(_OUTSIDE):
            raise LedgerError(
                f"ledger {path} cannot be used ({error}): nothing was granted; check the folder's"
                " permissions and free space, and that it is on a local disk"
            ) from error
        raise corrupt(path, error) from error


@contextlib.contextmanager
def session(path: Path) -> Iterator[sqlite3.Connection]:
    """A connection for one operation, whose errors become one-line ones.

    A missing or damaged file, or a ``DamageError`` of the body, ends as LedgerCorrupt; a locked or
    unreachable file as LedgerError.

    Args:
        path: an existing ledger.

    Yields:
        The connection, in autocommit mode: open transactions with ``transaction``.
    """
    with _turn, _explained(path):
        connection = _connect(path, "rw")
        try:
            yield connection
        finally:
            connection.close()


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    if mode == "rw" and not path.exists():
        raise DamageError("the file is gone")
    for suffix in _BESIDE:  # SQLite would write through them
        if os.path.islink(f"{path}{suffix}"):
            raise LedgerError(f"{path}{suffix} is a symbolic link, not SQLite's file: nothing was granted; remove it")
    connection = sqlite3.connect(f"{path.as_uri()}?mode={mode}", uri=True, timeout=_BUSY_SECONDS, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous=FULL")
    except BaseException:
        connection.close()
        raise
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection, *, write: bool) -> Iterator[None]:
    """A snapshot to read from or, with ``write``, the only writer: committed at the end, or not at all.

    Args:
        connection: from ``session``.
        write: take the write lock at once, so that what is read stays true until the commit.

    Yields:
        Nothing.
    """
    connection.execute("BEGIN IMMEDIATE" if write else "BEGIN")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        with contextlib.suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
        raise


def create(path: Path, genesis: Genesis) -> None:
    """Put a new ledger at ``path`` in one step; if another process was faster, its ledger stays.

    The file is completed under another name and then linked, so that no crash leaves half a ledger.

    Args:
        path: where no ledger lies yet.
        genesis: the sealed limits.

    Raises:
        LedgerError: if the folder does not exist or cannot be written.
    """
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    try:
        with _turn, _explained(path):
            _check_leftovers(path)
            _fill(draft, genesis)
            with contextlib.suppress(FileExistsError):
                os.link(draft, path)
            _sync_folder(path.parent)
    except OSError as error:
        raise LedgerError(
            f"ledger {path} cannot be created ({error.strerror}): choose a writable folder on a local disk"
        ) from error
    finally:
        for suffix in ("", *_BESIDE):
            with contextlib.suppress(OSError):
                os.unlink(f"{draft}{suffix}")


def _check_leftovers(path: Path) -> None:
    """Refuse to create a ledger beside the log of one that was deleted: SQLite would take it for the new one's."""
    for suffix in _BESIDE:
        # Those of a ledger that another process has just created appear after its file.
        if os.path.lexists(f"{path}{suffix}") and not path.exists():
            raise LedgerError(f"{path}{suffix} is left of a ledger that is gone: nothing was created; remove it first")


def _fill(draft: Path, genesis: Genesis) -> None:
    connection = _connect(draft, "rwc")
    try:
        connection.execute("PRAGMA journal_mode=WAL").fetchall()
        with transaction(connection, write=True):
            for statement in _SCHEMA:
                connection.execute(statement)
            _insert(connection, "genesis", genesis.row())
            _insert(connection, "head", (0, genesis.hash))
    finally:
        connection.close()


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # not every system lets one open a folder
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _insert(connection: sqlite3.Connection, table: str, values: tuple[object, ...]) -> None:
    marks = ", ".join("?" * len(values))
    connection.execute(f"INSERT INTO {table} VALUES ({marks})", values)


def append(connection: sqlite3.Connection, entry: Entry) -> None:
    """Write one sealed entry and the new head; the caller holds a write transaction."""
    _insert(connection, "entries", entry.row())
    connection.execute("UPDATE head SET count = ?, hash = ?", (entry.id, entry.hash))


def _only_row(connection: sqlite3.Connection, columns: str, table: str) -> tuple[object, ...]:
    rows = connection.execute(f"SELECT {columns} FROM {table} LIMIT 2").fetchall()
    if len(rows) != 1:
        raise DamageError(f"its table {table!r} does not hold exactly one row")
    return tuple(rows[0])


def hash_at(connection: sqlite3.Connection, tip: Tip, count: int) -> str | None:
    """Return the hash of entry ``count`` (of the limits for 0), or None if there is no such entry."""
    if count == 0:
        return tip.genesis.hash
    if count == tip.count:
        return tip.head
    row = connection.execute("SELECT hash FROM entries WHERE id = ?", (count,)).fetchone()
    return None if row is None else str(row[0])


def _genesis(connection: sqlite3.Connection) -> Genesis:
    return Genesis(*_only_row(connection, _GENESIS, "genesis"))  # type: ignore[arg-type]


def origin(connection: sqlite3.Connection) -> Tip:
    """Return the verified limits, as a chain without entries."""
    return Tip.origin(_genesis(connection))


def load(connection: sqlite3.Connection, keep: list[Entry] | None = None) -> Tip:
    """Verify the whole file from its first row; the caller holds a transaction.

    Args:
        connection: from ``session``.
        keep: if given, receives all entries.

    Returns:
        The verified tip.

    Raises:
        DamageError: if any part of the content is not what Tacit wrote.
    """
    if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
        raise DamageError("its pages are damaged")
    tip = catch_up(connection, origin(connection), keep)
    if connection.execute("SELECT count(*) FROM entries").fetchone() != (tip.count,):
        raise DamageError("it holds rows outside its chain")
    return tip


def catch_up(connection: sqlite3.Connection, tip: Tip, keep: list[Entry] | None = None) -> Tip:
    """Verify what was appended since ``tip``; the caller holds a transaction.

    Args:
        connection: from ``session``.
        tip: a verified prefix.
        keep: if given, receives the new entries.

    Returns:
        The tip of all entries.

    Raises:
        DamageError: if the file no longer continues ``tip``, or an appended row is not valid.
    """
    if _genesis(connection) != tip.genesis:
        raise DamageError("another ledger lies at this path")
    if tip.count:
        row = connection.execute("SELECT hash FROM entries WHERE id = ?", (tip.count,)).fetchone()
        if row != (tip.head,):
            raise DamageError(f"it is rolled back: entry {tip.count}, read earlier, is gone or altered")
    # In pages, so that memory stays bounded and no cursor outlives an exception.
    query = f"SELECT {_ENTRY} FROM entries WHERE id > ? ORDER BY id LIMIT {_PAGE}"
    while rows := connection.execute(query, (tip.count,)).fetchall():
        for row in rows:
            entry = Entry(*row)
            tip = tip.extend(entry)
            if keep is not None:
                keep.append(entry)
    if _only_row(connection, "count, hash", "head") != (tip.count, tip.head):
        raise DamageError("its end does not match its head: entries are missing")
    return tip
