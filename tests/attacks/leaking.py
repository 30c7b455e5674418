"""A leak scan: what a fit lets out although every sum over its records is frozen.

Fit on D with seeded noise and keep every sum; then fit on the neighbour D′ with D's sums in place of its own. The noise
is named after the sums, so it is the same, too. Whatever differs now came past the session: attributes, pickles, saved
files, messages, warnings, errors. It must agree to the bit.
"""

from __future__ import annotations

import contextlib
import io
import pickle
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tacit import save_model
from tacit.errors import InvalidInput
from tacit.records import InMemory
from tacit.release import Session

__all__ = ["Frozen", "surface"]


class Frozen:
    """Sums of a first fit, handed out again in the fits that follow."""

    def __init__(self) -> None:
        self._sums: list[Any] = []
        self._tables: list[Any] = []

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Keep every sum, and the records of every sweep."""
        self._sums, self._tables = [], []
        total, sweep = Session._total, Session.sweep

        def kept(session: Session, *arguments: Any) -> Any:
            self._sums.append(total(session, *arguments))
            return self._sums[-1]

        def swept(session: Session, *arguments: Any, **options: Any) -> Any:
            self._tables.append(_table(session))
            return sweep(session, *arguments, **options)

        def added(records: Any, query: Any, place: Any, members: Any, add_up: Any) -> None:
            add_up(records, query, place, members)
            self._sums.append(place.sums.clone())

        with _patched(kept, swept), _in_place(added):
            yield

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """Compute every sum as usual, and hand out the recorded one instead."""
        sums, tables = iter(self._sums), iter(self._tables)
        total, sweep = Session._total, Session.sweep

        def frozen(session: Session, *arguments: Any) -> Any:
            own, first = total(session, *arguments), next(sums)
            assert (own.shape, own.dtype) == (first.shape, first.dtype)
            return first

        def swept(session: Session, one: Any, start: Any, *arguments: Any, **options: Any) -> Any:
            rows = session._whole(one)
            with np.errstate(all="ignore"):
                one.clipped_sum(rows, one.start(rows, start), 0)  # what reads records runs on D′, too
            there = session._records.through()
            there._table = next(tables)
            view = Session(session._run, there, session._first, session.progress)
            return sweep(view, one, start, *arguments, **options)

        def added(records: Any, query: Any, place: Any, members: Any, add_up: Any) -> None:
            add_up(records, query, place, members)
            place.sums.copy_(next(sums))

        with _patched(frozen, swept), _in_place(added):
            yield
        assert next(sums, None) is None, "the fit on the neighbour asks less"


@contextmanager
def _patched(total: Any, sweep: Any) -> Iterator[None]:
    before = Session._total, Session.sweep
    Session._total, Session.sweep = total, sweep
    try:
        yield
    finally:
        Session._total, Session.sweep = before


def _table(session: Session) -> Any:
    assert isinstance(session._records, InMemory)
    return session._records._table


@contextmanager
def _in_place(added: Any) -> Iterator[None]:
    """Sums of PyTorch, which stay where they are computed."""
    records = sys.modules.get("tacit.torch.records")
    if records is None:
        yield
        return
    add_up = records.Records.add_up
    records.Records.add_up = lambda self, query, place, members: added(self, query, place, members, add_up)
    try:
        yield
    finally:
        records.Records.add_up = add_up


def surface(run: Callable[[], Any], folder: Path) -> dict[str, Any]:
    """All that a fit lets out: of what it returns, of what it prints, warns and raises.

    Args:
        run: fits, and returns the model (or any object).
        folder: where to save it.

    Returns:
        Bytes and words by name.
    """
    out, err = io.StringIO(), io.StringIO()
    found: dict[str, Any] = {}
    with (
        warnings.catch_warnings(record=True) as told,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        warnings.simplefilter("always")
        try:
            model = run()
        except Exception as error:  # an error is an output
            found["error"] = (type(error).__name__, str(error), [type(e).__name__ for e in _causes(error)])
        else:
            found |= _held(model, folder)
    found["warnings"] = [(one.category.__name__, str(one.message)) for one in told]
    found["printed"] = out.getvalue(), err.getvalue()
    return found


def _held(model: Any, folder: Path) -> dict[str, Any]:
    found = {f"attribute {name}": _bits(value) for name, value in sorted(getattr(model, "__dict__", {}).items())}
    found["pickle"] = _pickled(model)
    with contextlib.suppress(InvalidInput):  # no model, or one of no registered kind
        save_model(model, folder / "model.json")
        found["file"] = (folder / "model.json").read_bytes()
        (folder / "model.json").unlink()
    return found


def _bits(value: Any) -> Any:
    """Arrays by type, shape and bytes; containers entry by entry; anything else as it prints, or pickled."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return value.dtype.str, value.shape, value.flags.c_contiguous, value.tobytes()
    if isinstance(value, np.ndarray | list | tuple):
        return type(value).__name__, [_bits(one) for one in value]
    if isinstance(value, dict):
        return {repr(key): _bits(one) for key, one in value.items()}
    return _pickled(value)


def _pickled(value: Any) -> Any:
    try:
        return pickle.dumps(value)
    except (TypeError, AttributeError, pickle.PicklingError):
        return type(value).__name__


def _causes(error: BaseException) -> Iterator[BaseException]:
    while (error := error.__cause__ or error.__context__) is not None:  # type: ignore[assignment]
        yield error
