"""A progress bar on stderr: steps only, which are public; nothing of the records or of the model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["progress_bar"]


def _watched() -> bool:
    """Whether stderr is a terminal; a program without one must not lose a fit that it has paid for."""
    try:
        return sys.stderr.isatty()
    except (AttributeError, ValueError):  # None, or closed
        return False


@contextmanager
def progress_bar(what: str, shown: bool | None = None) -> Iterator[Callable[[int, int], None] | None]:
    """A bar that disappears from a terminal when the work is done, and leaves a line in a file.

    Args:
        what: is being done.
        shown: True, False, or None for "on a terminal only".

    Yields:
        To be called with (done, all); None if there is no bar.
    """
    if not (_watched() if shown is None else shown):
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=_watched()) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
