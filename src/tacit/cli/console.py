"""What the commands print, and what they show while they work."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["console", "print_json", "watched_bar", "working"]


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
    from tacit.inputs.progress import progress_bar

    with progress_bar(what, True) as tick:
        yield tick
