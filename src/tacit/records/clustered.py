"""Records on a Dask cluster: a query is sent to their workers, which send back sums of integers."""

from __future__ import annotations

import copy
import secrets
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import tacit
from tacit.errors import ClusterError, InvalidInput, MechanismMismatch
from tacit.records.base import Asked, Sums
from tacit.records.cluster import Forgotten, Sealed
from tacit.records.encoding import Encoder, Part
from tacit.records.opened import TICKS, Opened, View, no_records
from tacit.records.rows import Rows
from tacit.records.schema import Label, Numbers
from tacit.records.sources.dask import DaskArray, DaskSource
from tacit.records.workers import (
    Answer,
    Members,
    Question,
    answer,
    encode,
    held_rows,
    held_tags,
    owners_of,
    tag_counts,
)

__all__ = ["Clustered"]

Words = NDArray[np.uint64]
T = TypeVar("T")
ATTEMPTS = 3
"""Passes that are begun again after the scheduler was restarted, before the fit ends in an error."""


class _Shared:
    """What all views of one table share: its encoded parts on the workers, and how many rows these have.

    Args:
        source: the table.
    """

    def __init__(self, source: DaskSource) -> None:
        self.source, self.cluster = source, source.cluster
        self._count: int | None = None
        self._encoder: Encoder | None = None
        self._held: list[Any] = []
        self._rows: list[int] | None = None
        self._digests: tuple[Encoder | None, list[bytes]] = None, []
        self._view: tuple[View, Any, Sealed] | None = None

    def count(self) -> int:
        """The number of rows, found out once: by a pass that looks at no value."""
        if self._count is None:
            self._count = self.source.count()
        if not self._count:
            raise InvalidInput(no_records(self.source))
        return self._count

    def persons(self, encoder: Encoder) -> int:
        """How many distinct ids there are, exactly: by tags under a key that nobody needs again."""
        assert encoder.person is not None
        groups = self.source.groups([encoder.person])
        asked = Sealed((encoder, np.frombuffer(secrets.token_bytes(16), np.uint64)))
        tags = self.cluster.run(tag_counts, groups, [asked] * len(groups))
        n = _merged(tags, [np.ones(len(some), np.int64) for some in tags])[0]
        if not n:
            raise InvalidInput(f"column {encoder.person!r} holds no ids: every row needs one")
        return n

    def held(self, encoder: Encoder) -> list[Any]:
        """Encoded parts, made when they are first asked for, and anew for other labels."""
        if self._encoder != encoder:
            self._held, self._encoder, self._rows = [], None, None  # their room is needed
            groups = self.source.groups(encoder.wanted)
            self._held = self.cluster.start(encode, groups, [Sealed(encoder)] * len(groups))
            self._encoder = encoder
        return self._held

    def rows_held(self, encoder: Encoder) -> list[int]:
        """How many rows each encoded part has: where Dask reads other columns, it may cut the table otherwise."""
        held = self.held(encoder)
        if self._rows is None:
            self._rows = self.cluster.run(held_rows, held)
            if sum(self._rows) != self.count():
                raise ClusterError(f"{self.source.what} holds other rows than were counted: open it again")
        return self._rows

    def is_held(self, encoder: Encoder) -> bool:
        """Whether the table is encoded so."""
        return self._encoder == encoder

    def forget(self) -> None:
        """The workers hold nothing any more."""
        self._held, self._encoder, self._view = [], None, None

    def sent(self, view: View) -> tuple[Any, Sealed]:
        """A view and its name, sent once for all passes through it."""
        if self._view is None or self._view[0] != view:
            self._view = view, self.cluster.everywhere(Sealed(view)), Sealed(secrets.token_hex(8))
        return self._view[1:]

    def check(self, answers: Sequence[Answer]) -> None:
        """Refuse answers about other rows than before, or by another version of this library."""
        if any(one.version != tacit.__version__ for one in answers):
            raise ClusterError(
                f"workers have another version of tacit than this process ({tacit.__version__}): install the same one"
            )
        found = [one.digest for one in answers]
        if self._digests[0] != self._encoder:
            self._digests = self._encoder, found
        if found != self._digests[1]:
            raise ClusterError(
                f"{self.source.what} held other rows when they were computed again: its steps must give the same rows "
                "every time, so write it to Parquet first. What was charged stays charged"
            )


class _Numbers:
    """The persons of one fit: numbered by its session's secret, each row with what it counts.

    Args:
        n: how many there are.
        least: the number of rows that a person is taken to have at least.
    """

    def __init__(self, n: int, least: int) -> None:
        self.n, self._least = n, least
        self._key: Words | None = None
        self._made: tuple[list[Any], list[NDArray[np.intp]], list[Any]] | None = None

    def key(self, rng: np.random.Generator) -> None:
        """Take the secret; nothing is read."""
        self._key, self._made = np.frombuffer(rng.bytes(16), np.uint64), None

    def of(self, shared: _Shared, held: list[Any]) -> tuple[list[NDArray[np.intp]], list[Any]]:
        """The numbers of the persons of each group of parts, and (on its worker) what a row of each counts.

        Args:
            shared: the table.
            held: its encoded parts.

        Returns:
            Both, for each group.

        Raises:
            MechanismMismatch: if no session has numbered the persons.
            ClusterError: if there are other persons than were counted.
        """
        if self._key is None:
            raise MechanismMismatch("rows of persons are read by a session only, which numbers persons secretly")
        if self._made is None or self._made[0] is not held:
            found = shared.cluster.run(held_tags, held, [Sealed(self._key)] * len(held))
            n, numbers, counts = _merged([tags for tags, _ in found], [some for _, some in found])
            if n != self.n:
                raise ClusterError(f"{shared.source.what} holds other persons than were counted: open it again")
            sealed = [Sealed((some, self._least)) for some in counts]
            self._made = held, numbers, shared.cluster.start(owners_of, held, sealed)
        return self._made[1:]


def _merged(
    tags: Sequence[Words], counts: Sequence[NDArray[np.int64]]
) -> tuple[int, list[NDArray[np.intp]], list[NDArray[np.int64]]]:
    """Number tags by their ranks, as ``tacit.records.persons.tag_order`` does, and add up their counts.

    Args:
        tags: of each group, keyed.
        counts: of rows; where it is 0, the tag is nobody's.

    Returns:
        How many there are; the number of each tag and the count of its person, by group.
    """
    every, count = np.concatenate(tags), np.concatenate(counts)
    order = np.lexsort((every[:, 0], every[:, 1]))
    order = order[count[order] > 0]
    some = every[order]
    new = np.concatenate([np.ones(min(len(some), 1), bool), (some[1:] != some[:-1]).any(axis=1)])
    rank = np.cumsum(new) - 1
    number, total = np.zeros(len(every), np.intp), np.zeros(len(every), np.int64)
    if len(some):
        number[order] = rank
        total[order] = np.add.reduceat(count[order], np.flatnonzero(new))[rank]
    cuts = np.cumsum([len(one) for one in tags])[:-1]
    return int(new.sum()), np.split(number, cuts), np.split(total, cuts)


class Clustered(Opened):
    """A table on a Dask cluster (``tacit.open_records`` makes one); its rows stay there.

    Parts are encoded once and held by their workers, one large task for each thread. In every pass the query is sent to
    them with its state; each returns a sum of integers, which are added here: the same bits for any number of workers,
    and after any of them was lost, because what it held is computed again from the source. The keys of noise and the
    ledger stay here. In floating point the sums of parts are added in the order of these.

    Args:
        source: the table.
        encoder: of its columns.
        classes: the labels that its schema lists, or None.
    """

    def __init__(self, source: DaskSource, encoder: Encoder, classes: tuple[Label, ...] | None = None) -> None:
        super().__init__(source, encoder, classes)
        self._shared = _Shared(source)
        self._owners: _Numbers | None = None

    @property
    def n(self) -> int:  # type: ignore[override]
        """How many records there are, or persons: by one pass that counts."""
        return self._shared.count() if self._owners is None else self._owners.n

    @property
    def by_person(self) -> bool:  # type: ignore[override]
        """Whether rows are read as those of persons."""
        return self._owners is not None

    def of_persons(self, least: int = 1) -> Clustered:
        """The same table, for one fit: records are persons, who are counted here."""
        out = copy.copy(self)
        out._owners = _Numbers(self._shared.persons(self._encoder), least)
        return out

    def key(self, rng: np.random.Generator) -> None:
        """Number persons by this secret, when rows are first read."""
        if self._owners is not None:
            self._owners.key(rng)

    # -- what the release layer asks --------------------------------------------------------------------------

    def total(self, query: Asked, state: Any, members: NDArray[Any], grid: Any) -> Sums:
        """One pass: each worker adds up its own rows, this process adds the sums."""
        return self._again(lambda: self._total(query, state, members, grid))

    def _total(self, query: Asked, state: Any, members: NDArray[Any], grid: Any) -> Sums:
        shared = self._shared
        held, numbers, weights = self._filled()
        view, named = shared.sent(self._view)
        question = shared.cluster.everywhere(Sealed(Question(query, state, grid, len(members))))
        same = [[one] * len(held) for one in (view, named, question)]
        answers = shared.cluster.run(answer, held, weights, *same, self._members(members, numbers))
        shared.check(answers)
        if self._tick is not None:
            self._tick(TICKS)
        sums = [one for some in answers for one in some.sums]
        out = sums[0]
        for one in sums[1:]:
            out = out + one
        return np.asarray(out)

    def _members(self, members: NDArray[Any], numbers: list[NDArray[np.intp]] | None) -> list[Sealed | None]:
        """To each task its own members."""
        counts = self._shared.rows_held(self._encoder)
        if members.strides == (0, 0) or bool(members.all()):
            return [None] * len(counts)
        if numbers is None:
            cuts = np.cumsum(counts)[:-1]
            return [Sealed(Members.of(some)) for some in np.split(members, cuts, axis=1)]
        return [Sealed(Members.of(members[:, some])) for some in numbers]

    def _filled(self) -> tuple[list[Any], list[NDArray[np.intp]] | None, list[Any]]:
        """The encoded parts, a pass of its own, and whose their rows are."""
        made = self._shared.is_held(self._encoder)
        held = self._shared.held(self._encoder)
        if not made and self._tick is not None:
            self._tick(TICKS)
        if self._owners is None:
            return held, None, [None] * len(held)
        return held, *self._owners.of(self._shared, held)

    def _again(self, work: Callable[[], T]) -> T:
        """Work that is begun again if the scheduler was restarted: the same integers, from rows encoded again."""
        for _ in range(ATTEMPTS):
            try:
                return work()
            except Forgotten:
                self._shared.forget()
        raise ClusterError(
            "the Dask scheduler forgot the records again and again: they were cancelled, or persisted before it was "
            "restarted. What was charged stays charged; open them again"
        )

    def first(self) -> Rows:
        """No row, of the types that all have."""
        y = None if self._encoder.target is None else np.zeros(0)
        return self._view.rows(Part(np.zeros((0, len(self._encoder.names)), self._encoder.dtype), y, np.zeros(0, bool)))

    def parts(self) -> Iterator[Rows]:
        """All rows, fetched part by part, for a look at small tables; no query asks for them."""
        if self._owners is not None:
            raise MechanismMismatch("rows of persons stay on their workers: ask them by a query")
        return (self._view.rows(self._encoder(one)) for one in self._source.batches(self._encoder.wanted))

    @classmethod
    def example(cls, X: Any, y: Any) -> Clustered:
        """As columns of a Dask array, ten rows at a time, on the cluster that is connected."""
        import dask.array

        table = np.column_stack([X, y])
        source = DaskArray(dask.array.from_array(table, chunks=(10, -1)))
        names = [field.name for field in source.fields]
        features = tuple(Numbers(name, -np.inf, np.inf) for name in names[:-1])
        return cls(source, Encoder(features, np.float64, names[-1]))
