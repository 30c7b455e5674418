"""What runs on the workers of a cluster, next to the records: encode, count, tag, and add up what a query asks.

Every function here is the body of a task (``tacit.records.cluster.guarded``). It gets blocks of a table or what was
encoded from them, sealed arguments, and no key but this fit's for tags.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import tacit
from tacit.records.base import row_weights
from tacit.records.cluster import Block, Sealed, loaded
from tacit.records.encoding import Encoder, Part, column_tags
from tacit.records.kept import Kept
from tacit.records.memory import part_rows
from tacit.records.opened import View
from tacit.records.persons import Shares, keyed_tags, row_shares
from tacit.records.rows import Rows
from tacit.records.sources import Column, Field, Source, find_source

__all__ = [
    "Answer",
    "Held",
    "Members",
    "Question",
    "answer",
    "block_columns",
    "count_rows",
    "encode",
    "fields_of",
    "held_rows",
    "held_tags",
    "owners_of",
    "tag_counts",
]

Words = NDArray[np.uint64]


def _sources(block: Block) -> list[Source]:
    table = loaded(block)
    paths = isinstance(table, list | tuple) or hasattr(table, "__next__")
    return [find_source(one) for one in (table if paths else [table])]


# -- before a record is paid for: types, numbers of rows, ids -------------------------------------------------------


def fields_of(blocks: Sequence[Block]) -> list[tuple[str, tuple[Field, ...]]]:
    """What each file of some blocks states about its columns: its name and these."""
    return [(one.what, one.fields) for block in blocks for one in _sources(block)]


def count_rows(blocks: Sequence[Block]) -> list[int]:
    """The number of rows of each block."""
    return [sum(one.count() for one in _sources(block)) for block in blocks]


def block_columns(blocks: Sequence[Block], wanted: Sequence[str]) -> list[dict[str, Column]]:
    """Some columns, for predictions."""
    return [columns for block in blocks for one in _sources(block) for columns in one.batches(wanted)]


def tag_counts(blocks: Sequence[Block], asked: Sealed) -> Words:
    """Keyed tags of the distinct ids of some blocks: ids alone are read.

    Args:
        blocks: parts of the table.
        asked: the encoder, and a key.

    Returns:
        (persons here, 2).
    """
    encoder, key = asked.open()
    tags = [encoder.tags_of(columns) for b in blocks for s in _sources(b) for columns in s.batches([encoder.person])]
    return keyed_tags(_distinct(np.concatenate([np.empty((0, 2), np.uint64), *tags]))[0], key)


def _distinct(tags: Words) -> tuple[Words, NDArray[np.intp]]:
    """Distinct tags, and the place of each among them."""
    order = np.lexsort((tags[:, 1], tags[:, 0]))
    new = np.concatenate([np.ones(min(len(tags), 1), bool), (tags[order][1:] != tags[order][:-1]).any(axis=1)])
    place = np.empty(len(tags), np.intp)
    place[order] = np.cumsum(new) - 1
    return tags[order][new], place


# -- what is held -----------------------------------------------------------------------------------------------


class Held:
    """Encoded blocks of a table in the memory of a worker; **private**.

    What queries derive from the rows stays with them from pass to pass, for one view; it is not moved or spilled with
    them, but made again.

    Args:
        parts: one for each block; without tags.
        tags: of the persons here, (m, 2), or None.
        place: whose each row is, by part; None without persons.
    """

    def __init__(self, parts: list[Part], tags: Words | None, place: list[NDArray[np.intp]] | None) -> None:
        self.parts, self.tags, self.place = parts, tags, place
        self.digest = _digest(parts, tags)
        self._kept: tuple[str, list[Kept]] = "", []

    def kept(self, view: str, chunks: int) -> list[Kept]:
        """What was derived from each chunk through a view; that of another view makes room."""
        if self._kept[0] != view:
            self._kept = view, [Kept() for _ in range(chunks)]
        return self._kept[1]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_kept": ("", [])}

    def __sizeof__(self) -> int:
        arrays = [one for part in self.parts for one in vars(part).values() if one is not None]
        arrays += [one for one in (self.tags, *(self.place or ())) if one is not None]
        return sum(int(one.nbytes) for one in arrays)


def _digest(parts: list[Part], tags: Words | None) -> bytes:
    """A name of the rows: the same after they were computed again, or they are not the same rows."""
    name = hashlib.blake2b(digest_size=16)
    for one in (tags, *(array for part in parts for array in (part.X, part.y, part.lost))):
        if one is not None:
            name.update(repr((one.shape, one.dtype.str)).encode())
            name.update(np.ascontiguousarray(one).data)
    return name.digest()


def encode(blocks: Sequence[Block], sealed: Sealed) -> Held:
    """Load blocks one by one and encode them.

    Args:
        blocks: parts of the table.
        sealed: the encoder.

    Returns:
        What stays on this worker.
    """
    encoder: Encoder = sealed.open()
    parts, tags = [], []
    for block in blocks:
        part, own = _encoded(block, encoder)
        parts.append(part)
        tags.append(own)
    if encoder.person is None:
        return Held(parts, None, None)
    distinct, place = _distinct(np.concatenate([own[:, :2] for own in tags]))
    cuts = np.cumsum([len(part) for part in parts])[:-1]
    return Held(parts, distinct, np.split(place, cuts))


def _encoded(block: Block, encoder: Encoder) -> tuple[Part, Words]:
    """A block as numbers; rows without an id belong to nobody, and are lost."""
    found, tags = [], []
    for one in _sources(block):
        for columns in one.batches(encoder.wanted):
            found.append(encoder(columns))
            if encoder.person is not None:
                own, missing = column_tags(columns[encoder.person])
                tags.append(np.where(missing[:, None], np.uint64(0), own))
    X = np.concatenate([np.empty((0, len(encoder.names)), encoder.dtype), *(part.X for part in found)])
    lost = np.concatenate([np.empty(0, bool), *(part.lost for part in found)])
    targets = [part.y for part in found if part.y is not None]
    y = None if encoder.target is None else np.concatenate([np.empty(0), *targets])
    return Part(X, y, lost), np.concatenate([np.empty((0, 2), np.uint64), *tags])


def held_rows(held: Held) -> int:
    """The number of rows."""
    return sum(map(len, held.parts))


# -- whose rows are ------------------------------------------------------------------------------------------------


def held_tags(held: Held, sealed: Sealed) -> tuple[Words, NDArray[np.int64]]:
    """Tags of the persons here under this fit's key, and how many rows each has here.

    Args:
        held: rows with ids.
        sealed: the key.

    Returns:
        (m, 2) and (m,); no row for those without an id, whose count is 0.
    """
    assert held.tags is not None
    assert held.place is not None
    counts = np.bincount(np.concatenate(held.place), minlength=len(held.tags))
    counts[~held.tags.any(axis=1)] = 0  # nobody's
    return keyed_tags(held.tags, sealed.open()), counts


def owners_of(held: Held, sealed: Sealed) -> NDArray[np.float64]:
    """What a row of each person here counts.

    Args:
        held: depends on it, so that both are in one place.
        sealed: rows of each person in the whole table, and the least number that a person is taken to have.

    Returns:
        (m,).
    """
    counts, least = sealed.open()
    return np.where(counts > 0, row_shares(counts, least), 0.0)


# -- what is asked -----------------------------------------------------------------------------------------------


class Members(NamedTuple):
    """Who takes part, of those whom one task reads; by bits, or by their places if they are few.

    Attributes:
        shape: (replicas, records or persons here).
        places: in the flat table of bits, or None.
        bits: of the table, or None.
    """

    shape: tuple[int, int]
    places: NDArray[np.int64] | None
    bits: NDArray[np.uint8] | None

    @classmethod
    def of(cls, members: NDArray[np.bool_]) -> Members:
        """The shorter of both."""
        index = np.flatnonzero(members)
        if len(index) * 64 < members.size:
            return cls(members.shape, index, None)
        return cls(members.shape, None, np.packbits(members))

    def table(self) -> NDArray[np.bool_]:
        """(replicas, records or persons here)."""
        if self.bits is not None:
            return np.unpackbits(self.bits, count=self.shape[0] * self.shape[1]).view(bool).reshape(self.shape)
        out = np.zeros(self.shape[0] * self.shape[1], bool)
        out[self.places] = True
        return out.reshape(self.shape)


class Question(NamedTuple):
    """What is asked in one pass; public.

    Attributes:
        query: registered.
        state: where to evaluate it, one row per replica.
        grid: of an exact release, or None.
        replicas: how many rows the state has.
    """

    query: Any
    state: Any
    grid: Any
    replicas: int


class Answer(NamedTuple):
    """What one task returns: **as secret as the records**.

    Attributes:
        sums: integers added up, or one sum for each block, which the driver adds in the order of blocks.
        digest: of the rows that were read.
        version: of this library on the worker.
    """

    sums: list[NDArray[Any]]
    digest: bytes
    version: str


_views: dict[str, View] = {}
"""The last views that were sent here, by name."""


def _view(name: str, sealed: Sealed) -> View:
    if name not in _views:
        while len(_views) >= 4:
            _views.pop(next(iter(_views)), None)
        _views[name] = sealed.open()
    return _views.get(name) or sealed.open()


def answer(held: Held, weights: Any, view: Sealed, named: Sealed, question: Sealed, sealed: Sealed | None) -> Answer:
    """A query's sums over the rows that are held here.

    Args:
        held: the rows.
        weights: what a row of each person here counts; None without persons.
        view: what the rows are seen through.
        named: the name of the view.
        question: what is asked.
        sealed: who takes part, or None for everybody.

    Returns:
        The sums.
    """
    name, asked = named.open(), question.open()
    seen, members = _view(name, view), None if sealed is None else sealed.open().table()
    each = [
        _sum([asked.query.total(rows, asked.state, own, asked.grid) for rows, own in some])
        for some in _blocks(held, weights, seen, name, members, asked.replicas)
    ]
    sums = [one for one in each if one is not None]
    if not sums:  # an empty batch has a sum, too: nobody's
        nobody = _nobody(held, seen)
        sums = [asked.query.total(nobody, asked.state, np.zeros((asked.replicas, 1), bool), asked.grid)]
    if asked.grid is not None:
        sums = [np.add.reduce(sums)]
    return Answer(sums, held.digest, tacit.__version__)


def _sum(sums: list[NDArray[Any]]) -> NDArray[Any] | None:
    out = sums[0] if sums else None
    for one in sums[1:]:
        out = out + one
    return out


def _nobody(held: Held, view: View) -> Rows:
    like = held.parts[0]
    y = None if like.y is None else np.zeros(1)
    return view.rows(Part(np.zeros((1, like.X.shape[1]), like.X.dtype), y, np.ones(1, bool)))


def _blocks(
    held: Held, weights: Any, view: View, name: str, members: NDArray[np.bool_] | None, replicas: int
) -> Iterator[Iterator[tuple[Rows, NDArray[Any]]]]:
    """For each block the rows that take part, some at a time, and what each counts."""
    size = part_rows(held.parts[0].X.shape[1])
    chunks = [max(-(-len(part) // size), 0) for part in held.parts]
    kept = held.kept(name, sum(chunks)) if members is None else []
    first = done = 0
    for k, part in enumerate(held.parts):
        person = None if held.place is None or weights is None else held.place[k]
        own = None
        if members is not None:
            own = members[:, first : first + len(part)] if person is None else members
        yield _chunks(part, person, weights, view, own, kept[done : done + chunks[k]], replicas, size)
        first, done = first + len(part), done + chunks[k]


def _chunks(
    part: Part,
    person: NDArray[np.intp] | None,
    weights: Any,
    view: View,
    members: NDArray[np.bool_] | None,
    kept: list[Kept],
    replicas: int,
    size: int,
) -> Iterator[tuple[Rows, NDArray[Any]]]:
    """Rows of one block that fit into the processor's cache; of a batch, those who take part alone."""
    index = None
    if members is not None:
        anybody = np.asarray(members.any(axis=0))
        index = np.flatnonzero(anybody if person is None else anybody[person])
    for j, first in enumerate(range(0, len(part) if index is None else len(index), size)):
        some: Any = slice(first, first + size) if index is None else index[first : first + size]
        few = Part(part.X[some], None if part.y is None else part.y[some], part.lost[some])
        who = None if person is None else Shares(person[some], weights[person[some]])
        rows = view.rows(few, kept[j] if index is None else None, who)
        if who is not None:
            everybody = np.broadcast_to(np.True_, (replicas, len(weights)))
            own = row_weights(rows, everybody if members is None else members)
        elif members is None:
            own = np.broadcast_to(np.True_, (replicas, len(rows)))
        else:
            own = members[:, some]
        yield rows, rows.kept_members(own)
