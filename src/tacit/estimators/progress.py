"""A progress bar on stderr: steps only, which are public; nothing of the records or of the model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Tick", "progress_bar", "watching"]

Tick = Callable[[int, int], None]
"""To be called with (done, all)."""


def _watched() -> bool:
    """Whether stderr is a terminal; a program without one must not lose a fit that it has paid for."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # None, or closed
        return False


@contextmanager
def progress_bar(what: str, shown: bool | Tick | None = None) -> Iterator[Tick | None]:
    """A bar that disappears from a terminal when the work is done, and leaves a line in a file.

    Args:
        what: is being done.
        shown: True, False, None for "on a terminal only", or what the caller shows instead of a bar.

    Yields:
        To be called with (done, all); None if there is no bar.
    """
    if callable(shown):
        yield shown
        return
    if not (_watched() if shown is None else shown):
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=_watched()) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)


@contextmanager
def watching(model: Any, tick: Tick | None) -> Iterator[None]:
    """Let a caller follow the fits of a model; nothing of it stays in the model, or in its parameters.

    Args:
        model: an estimator.
        tick: called with (done, all); None leaves the model's own bar.
    """
    if tick is None:
        yield
        return
    model._progress = lambda *_: tick
    try:
        yield
    finally:
        vars(model).pop("_progress", None)
