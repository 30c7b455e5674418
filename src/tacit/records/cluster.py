"""The driver's end of a Dask cluster: what is sent there, what comes back, and what is said when it does not.

Nothing of a record shows outside of the processes that hold it: what tasks are given is sealed, so that no log and no
dashboard prints it; names of tasks are random; a task that fails returns the type of its error, never the words.
"""

from __future__ import annotations

import contextlib
import pickle
import secrets
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tacit.errors import ClusterError, InvalidInput, TacitError

__all__ = ["Block", "Cluster", "Fault", "Forgotten", "Sealed", "blocks_of", "guarded", "loaded"]

LARGE = 1 << 15
"""Bytes beyond which an argument of all tasks is sent once, and passed on from worker to worker."""


class Sealed:
    """A value on its way to workers, as bytes: no log shows what is in it.

    Args:
        value: anything that can be pickled, functions and classes of the caller's own too.
    """

    __slots__ = ("_data",)

    def __init__(self, value: Any) -> None:
        import cloudpickle  # type: ignore[import-untyped,unused-ignore]  # Dask brings it along

        self._data: bytes = cloudpickle.dumps(value)

    def open(self) -> Any:
        """The value, made anew."""
        return pickle.loads(self._data)

    def __sizeof__(self) -> int:
        return len(self._data)

    def __repr__(self) -> str:
        return "Sealed"

    def __getstate__(self) -> bytes:
        return self._data

    def __setstate__(self, data: bytes) -> None:
        self._data = data


@dataclass(frozen=True, eq=False, repr=False)
class Fault:
    """What a task returns instead of an error.

    Attributes:
        kind: the type of the error.
        error: the error itself, if it is one of ours: these hold no values.
    """

    kind: str
    error: TacitError | None = None


class Forgotten(Exception):
    """The scheduler has forgotten tasks that it held: it was restarted."""


def guarded(task: Callable[..., Any], *given: Any) -> Any:
    """Run a task on a worker; an error that might quote a record stays there.

    Args:
        task: what to run.
        *given: its arguments; a fault among them is returned as it is.

    Returns:
        What the task returns, or a ``Fault``.
    """
    fault = next((one for one in given if isinstance(one, Fault)), None)
    if fault is not None:
        return fault
    try:
        with np.errstate(all="ignore"):  # a warning in a worker's log would tell about a record
            return task(*given)
    except TacitError as error:
        error.__context__ = error.__cause__ = error.__traceback__ = None  # what caused it may quote a record
        return Fault(type(error).__name__, error)
    except Exception as error:
        return Fault(type(error).__name__)


def _same(value: Any) -> Any:
    return value


class Cluster:
    """A connection to the cluster; the client that is current when records are opened.

    Args:
        what: needs it, for the message.

    Raises:
        InvalidInput: if there is none.
    """

    def __init__(self, what: str) -> None:
        try:
            import distributed
        except ImportError:
            raise InvalidInput(f"{what}, and Dask's scheduler is not installed: pip install 'tacit-dp[dask]'") from None
        try:
            self._client = distributed.default_client()
        except ValueError:
            raise InvalidInput(
                f"{what}, and no cluster is connected: write `client = distributed.Client()` before it for one on this "
                "machine, or distributed.Client(address)"
            ) from None
        self.threads = max(sum(self._client.nthreads().values()), 1)

    def start(self, task: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
        """Begin a task for each row of the columns; its result stays on its worker.

        Args:
            task: a function of this package.
            *columns: its arguments, of equal length: sealed values, or what ``start`` returned.

        Returns:
            Futures.
        """
        run = secrets.token_hex(16)
        keys = [f"tacit-{run}-{i}" for i in range(len(columns[0]))]
        with self._explained(), _quiet():
            begun = self._client.map(guarded, [task] * len(keys), *columns, key=keys, pure=False)
            return list(begun)

    def run(self, task: Callable[..., Any], *columns: Sequence[Any]) -> list[Any]:
        """Run a task for each row of the columns.

        Args:
            task: a function of this package.
            *columns: as for ``start``.

        Returns:
            Results, in the order of the rows.
        """
        return self.results(self.start(task, *columns))

    def results(self, begun: Sequence[Any]) -> list[Any]:
        """What tasks return; the first fault is raised.

        Args:
            begun: futures.

        Returns:
            Results.
        """
        with self._explained():
            answers = list(self._client.gather(begun))
        for one in answers:
            _check(one)
        return answers

    def everywhere(self, value: Sealed) -> Any:
        """A value as an argument of many tasks: itself if it is small, else a task of its own, which Dask repeats."""
        if value.__sizeof__() <= LARGE:
            return value
        with self._explained(), _quiet():
            return self._client.submit(_same, value, key=f"tacit-{secrets.token_hex(16)}", pure=False)

    def persisted(self, table: Any) -> list[Any]:
        """The parts of a Dask collection, computed and held by the workers."""
        from distributed import futures_of

        with self._explained():
            return list(futures_of(self._client.persist(table)))

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Errors of Dask, or of tasks that are not ours, as one of ours that quotes nothing.

        Raises:
            Forgotten: if the scheduler answers, but has forgotten what it held.
            TacitError: in all other cases (a ``ClusterError``, or an error of ours as it is).
        """
        from concurrent.futures import CancelledError

        try:
            yield
        except TacitError:
            raise
        except CancelledError:
            fault: Exception = Forgotten() if self._client.status == "running" else _gone()
        except Exception as error:
            kind = type(error).__name__
            if self._client.status != "running" or isinstance(error, OSError):
                fault = _gone()
            elif kind == "KilledWorker":
                fault = ClusterError(
                    "workers ended again and again while they held the records, as a rule because their memory was "
                    "full: use more workers, or a larger memory_limit. What was charged stays charged"
                )
            elif "deserializ" in str(error).lower():
                fault = ClusterError(
                    "the scheduler or a worker cannot read what it was sent: install the same version of tacit there"
                )
            else:
                fault = ClusterError(_failed(kind))
        else:
            return
        raise fault from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without advice about large arguments: they are what is meant to be sent."""
    import dask

    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1TB"}):
        yield


def _gone() -> ClusterError:
    return ClusterError(
        "the Dask scheduler went away, and the records with it. What was charged stays charged, and what was released "
        "is private; connect a client, open the records again, and fit again, which is charged again (a session that "
        "goes on from its checkpoint is not)"
    )


def _failed(kind: str) -> str:
    return (
        f"a task on a worker failed ({kind}); what it said stays there, because it might quote a record. What was "
        "charged stays charged: look for the fault on made-up records"
    )


def _check(answer: Any) -> None:
    if isinstance(answer, Fault):
        raise ClusterError(_failed(answer.kind)) if answer.error is None else answer.error


# -- blocks: parts of a table that are not loaded yet ---------------------------------------------------------------

Block = Any
"""A part of a table: a sealed graph that its worker runs by itself, or what ``Cluster.persisted`` returned."""


def blocks_of(table: Any, cluster: Cluster) -> list[Block]:
    """The parts of a Dask collection, in their order.

    A part that can be computed by itself (files that are read, columns that are derived) becomes a sealed graph, which
    one task of ours runs: errors and arguments of its steps never reach a log, and one part at a time is in memory. If
    parts depend on each other (a shuffle), or are persisted already, Dask computes them in its own tasks.

    Args:
        table: a frame, array (of one block of columns) or bag.
        cluster: where it is.

    Returns:
        The blocks.
    """
    import dask
    from dask._task_spec import convert_legacy_graph, cull
    from dask.core import flatten
    from distributed import futures_of

    if futures_of(table):
        return cluster.persisted(table)
    best = table.optimize() if hasattr(table, "optimize") else dask.optimize(table)[0]
    graph, keys = convert_legacy_graph(dict(best.__dask_graph__())), list(flatten(best.__dask_keys__()))
    own = [cull(graph, [key]) for key in keys]
    if sum(map(len, own)) > len(graph) + len(keys):  # a task or so may be common to all
        return cluster.persisted(table)
    return [Sealed((dict(part), key)) for part, key in zip(own, keys, strict=True)]


def loaded(block: Block) -> Any:
    """A block's part of the table, on a worker."""
    if not isinstance(block, Sealed):
        return block
    from dask.local import get_sync

    return get_sync(*block.open())
