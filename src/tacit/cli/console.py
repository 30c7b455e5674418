"""What the commands print, what they show while they work, and how they fail: in one line."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from tacit.errors import TacitError

if TYPE_CHECKING:
    from rich.console import Console

    from tacit.tables.fitting import WatchedLedger

__all__ = ["OneLineErrors", "console", "hide_record_errors", "print_json", "watched_bar", "working"]


def console() -> Console:
    """Rich's console on stdout; characters that the terminal's encoding lacks are replaced, not fatal."""
    from rich.console import Console

    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    return Console(highlight=False, markup=False, emoji=False)


def watched() -> bool:
    """Whether somebody looks at stderr."""
    return sys.stderr.isatty()


@contextlib.contextmanager
def working(what: str) -> Iterator[None]:
    """A spinner on stderr while the numbers are computed, if somebody is watching."""
    if not watched():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what):
        yield


def print_json(data: object) -> None:
    """One JSON object on stdout."""
    typer.echo(json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False))


@contextlib.contextmanager
def watched_bar(what: str) -> Iterator[Callable[[int, int], None] | None]:
    """A progress bar on stderr, on a terminal only."""
    if not watched():
        yield None
        return
    from tacit.estimators.progress import progress_bar

    with progress_bar(what, True) as tick:
        yield tick


# -- failures: one line on stderr, which quotes no record ---------------------------------------------------------


class CliError(Exception):
    """A line for the user and an exit code, made up where the circumstances are known."""


def message_of(error: Exception) -> tuple[str, int] | None:
    """One line for the user and an exit code, or None for an error that the user can do nothing about."""
    if isinstance(error, CliError):
        return error.args[0], error.args[1]
    if isinstance(error, TacitError):
        return str(error), 2
    usage = getattr(error, "format_message", None)  # click's errors, whether click is a package or part of typer
    if callable(usage):
        return str(usage()), 2
    if isinstance(error, OSError):
        return f"{error.filename or 'file'}: {error.strerror or error}", 2
    if isinstance(error, ArithmeticError | MemoryError | RecursionError):
        return f"out of numerical range: {str(error) or type(error).__name__}; choose less extreme values", 2
    return None


class OneLineErrors(TyperGroup):
    """A command group whose every failure is one line on stderr."""

    def main(self, args: Sequence[str] | None = None, *_: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run, and turn exceptions into a line and an exit code."""
        try:
            code = super().main(args, standalone_mode=False, **extra)
        except typer.Abort as error:
            fail(str(error) or "aborted", 130)
        except SystemExit as end:
            # How typer and rich end when the reader of what they print has left (``| head``). Nothing failed: whatever
            # a command saves, it saves before it prints.
            if not standalone_mode or not isinstance(end.__context__, BrokenPipeError):
                raise
            code = 0
        except Exception as error:
            if not standalone_mode or "TACIT_TRACEBACK" in os.environ:
                raise
            known = message_of(error)
            if known is None:
                hint = "please report it, with what TACIT_TRACEBACK=1 prints"
                known = f"internal: {type(error).__name__}: {error}; {hint}", 1
            fail(*known)
        if standalone_mode:
            sys.exit(code if isinstance(code, int) else 0)
        return code


def fail(message: str, code: int) -> None:
    """Say why, in one line, and end."""
    typer.echo(f"error: {' '.join(message.split())}", err=True)
    sys.exit(code)


@contextlib.contextmanager
def hide_record_errors(ledger: WatchedLedger | None = None) -> Iterator[None]:
    """Around work on records: an unforeseen error may quote one, so its text is not shown; a charge is reported."""

    def told() -> str:
        if ledger is None or ledger.entry is None:
            return ""
        return f"; the ledger {ledger.path} was charged before (entry {ledger.entry}), and a charge is never given back"

    try:
        yield
    except (typer.Abort, typer.Exit):
        raise
    except KeyboardInterrupt:
        raise typer.Abort(f"aborted{told()}") from None
    except Exception as error:
        if "TACIT_TRACEBACK" in os.environ:
            raise
        name = type(error).__name__
        hidden = f"internal: {name}; please report it (its text may quote records; TACIT_TRACEBACK=1 shows it to you)"
        text, code = message_of(error) or (hidden, 1)
        raise CliError(text + told(), code) from None
