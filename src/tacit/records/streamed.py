"""Records that are read part by part, from wherever they are, in every pass; larger than memory, if need be."""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput
from tacit.inputs.tables import class_list
from tacit.records.base import Asked, Sums, row_weights
from tacit.records.encoding import Encoder, Part
from tacit.records.keeping import Keeper
from tacit.records.kept import Kept
from tacit.records.memory import part_rows
from tacit.records.opened import TICKS, Opened, as_type, no_records
from tacit.records.owners import Owners, People, people_of
from tacit.records.rows import Rows
from tacit.records.schema import Label, Numbers
from tacit.records.scratch import Scratch
from tacit.records.sources import Source, find_source

__all__ = ["MEMORY", "Streamed"]

MEMORY = 128 * 2**20
"""Bytes of a scratch copy that stay in memory, unless the user says otherwise."""
BESIDES = ("y", "lost", "tags")
"""What is read of a part of the copy in every pass; features are if a query looks at them."""


class _Store:
    """A source, its encoder, and a copy of what it encodes to, if there is one.

    Args:
        source: the table.
        encoder: of its columns.
        copied: whether to keep a copy.
        memory: bytes of it that may stay in memory.
        folder: for the rest of it.
    """

    def __init__(self, source: Source, encoder: Encoder, copied: bool, memory: int, folder: Path | None) -> None:
        self.source, self.encoder, self.copied = source, encoder, copied or source.once
        self._memory, self._folder = memory, folder
        self._copy: tuple[Encoder, Scratch] | None = None
        self._count: int | None = None
        self._people: People | None = None
        self._keeper = Keeper(folder)

    @property
    def rows(self) -> int:
        """Of a part."""
        return part_rows(len(self.encoder.names))

    def count(self, encoder: Encoder) -> int:
        """The number of rows, found out once; what can be read once is copied for it."""
        if self._count is None:
            self._count = len(self.copy(encoder)) if self.source.once else self.source.count()
        if self._count == 0:
            raise InvalidInput(no_records(self.source))
        return self._count

    def copy(self, encoder: Encoder, *, strict: bool = False, tick: Callable[[int], None] | None = None) -> Scratch:
        """The copy, made when it is first asked for, and anew for other labels."""
        if self._copy is None or self._copy[0] != encoder:
            if self._copy is not None and self.source.once:
                raise InvalidInput(f"{self.source.what} was read already, for other classes: open the data again")
            self._copy = None  # its room is needed
            made = Scratch(self.rows, self._memory, self._folder)
            for part in self._read(encoder, strict):
                made.add({name: one for name, one in vars(part).items() if one is not None})
                if tick is not None:
                    tick(len(made))
            self._copy = encoder, made
        return self._copy[1]

    def fits(self, encoder: Encoder) -> bool:
        """Whether a copy stays, or would stay, in memory."""
        if self._copy is not None:
            return not self._copy[1].on_disk
        row = len(encoder.names) * np.dtype(encoder.dtype).itemsize + 25  # target, lost, tags
        return self.copied and self.count(encoder) * row <= self._memory

    def keeper(self, view: tuple[Any, ...]) -> Keeper | None:
        """What keeps integers from pass to pass; None where nothing may be copied."""
        if self._copy is None:
            return None
        self._keeper.begin(view, self.rows, self._memory - self._copy[1].held)
        return self._keeper

    def people(self, encoder: Encoder) -> People:
        """Who occurs in the table, found out once: by a pass over ids alone."""
        if self._people is None:
            if self.source.once:
                copied = self.copy(encoder).parts()
                self._people = people_of(arrays["tags"][~arrays["lost"]] for arrays in copied)
            else:
                assert encoder.person is not None
                self._people = people_of(map(encoder.tags_of, self.source.batches([encoder.person])))
            if not len(self._people):
                raise InvalidInput(f"column {encoder.person!r} holds no ids: every row needs one")
        return self._people

    @property
    def encoder_of_copy(self) -> Encoder | None:
        """What the copy was made by, if there is one."""
        return None if self._copy is None else self._copy[0]

    def parts(self, encoder: Encoder) -> Iterator[Part]:
        """All rows, from the copy or from the source; features from the copy are read when they are needed."""
        if not self.copied:
            yield from self._read(encoder, False)
            return
        copied = self.copy(encoder)
        for k in range(copied.count):
            read = functools.partial(_features, copied, k)
            yield _part({"X": read, **copied.part(k, BESIDES)})

    def _read(self, encoder: Encoder, strict: bool) -> Iterator[Part]:
        """The source's rows in parts of equal length."""
        held: list[Part] = []
        done, expected = 0, None if self.source.once else self.count(encoder)
        for columns in self.source.batches(encoder.wanted):
            held.append(encoder(columns, strict=strict))
            done += len(held[-1])
            while sum(map(len, held)) >= self.rows:
                joined = _joined(held)
                yield _cut(joined, slice(0, self.rows))
                held = [_cut(joined, slice(self.rows, None))]
        if expected is not None and done != expected:
            raise InvalidInput(f"{self.source.what} has changed since it was opened: open it again")
        last = _joined(held) if held else None
        if last is not None and len(last):
            yield last


def _features(copied: Scratch, k: int) -> NDArray[Any]:
    return copied.part(k, ["X"])["X"]


def _part(arrays: dict[str, Any]) -> Part:
    return Part(arrays["X"], arrays.get("y"), arrays["lost"], arrays.get("tags"))


def _cut(part: Part, rows: slice) -> Part:
    return _part({name: one[rows] for name, one in vars(part).items() if one is not None})


def _joined(parts: list[Part]) -> Part:
    if len(parts) == 1:
        return parts[0]
    names = [name for name, one in vars(parts[0]).items() if one is not None]
    return _part({name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


class Streamed(Opened):
    """A table that is read part by part (``tacit.open_records`` makes one).

    Batches are drawn by the rows' places. What a query derives from a part (norms, integers) goes with the part, so
    that a pass needs the memory of one.

    Args:
        source: the table.
        encoder: of its columns.
        copied: whether to keep a scratch copy.
        memory: bytes of the copy that may stay in memory.
        folder: for the rest of it; None for the system's.
    """

    def __init__(
        self,
        source: Source,
        encoder: Encoder,
        *,
        copied: bool = False,
        memory: int = MEMORY,
        folder: Path | None = None,
        classes: tuple[Label, ...] | None = None,
    ) -> None:
        super().__init__(source, encoder, classes)
        self._store = _Store(source, encoder, copied, memory, folder)
        self._owners: Owners | None = None

    @property
    def n(self) -> int:  # type: ignore[override]
        """How many records there are, or persons: from metadata, or by one pass that counts."""
        return self._length if self._owners is None else len(self._owners.people)

    @property
    def _length(self) -> int:
        """How many rows there are; secret where they belong to persons."""
        return self._store.count(self._encoder)

    @property
    def by_person(self) -> bool:  # type: ignore[override]
        """Whether rows are read as those of persons."""
        return self._owners is not None

    @property
    def by_index(self) -> bool:  # type: ignore[override]
        """Whether rows can be fetched by their places: from a copy."""
        return self._store.copied

    @property
    def in_memory(self) -> bool:  # type: ignore[override]
        """Whether all rows are, or will be, in a copy in memory; no if they are of persons, whose number is secret."""
        return self._owners is None and self._store.fits(self._encoder)

    # -- views ------------------------------------------------------------------------------------------------

    def of_persons(self, least: int = 1) -> Streamed:
        """The same table, for one fit: records are persons, who are counted here."""
        out = copy.copy(self)
        out._owners = Owners(self._store.people(self._encoder), least)
        return out

    def key(self, rng: np.random.Generator) -> None:
        """Number persons by this secret."""
        if self._owners is not None:
            self._owners.key(rng)

    # -- what the release layer asks --------------------------------------------------------------------------

    def parts(self) -> Iterator[Rows]:
        """Parts that fit into the processor's cache."""
        self._fill()
        return map(self._rows, self._store.parts(self._encoder))

    def whole(self) -> Rows | None:
        """All records as one part where their copy is in memory."""
        if not self.in_memory:
            return None
        self._fill()
        copied = self._store.copy(self._encoder)
        arrays = list(copied.parts())
        return self._rows(_part({name: np.concatenate([one[name] for one in arrays]) for name in arrays[0]}))

    def total(self, query: Asked, state: Any, members: NDArray[Any], grid: Any) -> Sums:
        """Part by part; a batch of few rows is fetched from the copy by their places."""
        self._fill()
        everybody = members.strides == (0, 0) or bool(members.all())
        sums: Sums | None = None
        done = 0
        fetched = not everybody and self.by_index and self._owners is None
        for rows, own in self._some(members) if fetched else self._all(members):
            done += len(rows)
            more = query.total(rows, state, own, grid)
            sums = more if sums is None else sums + more
            if self._tick is not None and done < self._length:
                self._tick(TICKS * done // self._length)
        if self._tick is not None:
            self._tick(TICKS)
        assert sums is not None
        return sums

    def _all(self, members: NDArray[Any]) -> Iterator[tuple[Rows, NDArray[Any]]]:
        first, keeper = 0, self._store.keeper((self._maps, self._dtype, self._encoder))
        for k, part in enumerate(self._store.parts(self._encoder)):
            rows = self._rows(part, None if keeper is None else keeper.of(k))
            own = members[:, first : first + len(rows)] if rows.shares is None else row_weights(rows, members)
            yield rows, rows.kept_members(own)
            first += len(rows)

    def _some(self, members: NDArray[Any]) -> Iterator[tuple[Rows, NDArray[Any]]]:
        copied, size = self._store.copy(self._encoder), self._store.rows
        index = np.flatnonzero(members.any(axis=0))
        if not len(index):
            index = np.zeros(1, np.intp)  # an empty batch has a sum, too: nobody's
        for first in range(0, len(index), size):
            some = index[first : first + size]
            rows = self._rows(_part(copied.take(some)))
            yield rows, rows.kept_members(members[:, some])

    def _fill(self) -> None:
        """Make the copy, if there is to be one: a pass of its own."""
        if self._store.copied:
            n, tick = self._length, self._tick
            self._store.copy(self._encoder, tick=None if tick is None else lambda done: tick(TICKS * done // n))

    def _rows(self, part: Part, kept: Kept | None = None) -> Rows:
        if self._owners is None:
            return self._view.rows(part, kept)
        assert part.tags is not None
        shares, lost = self._owners.shares(part.tags, part.lost)
        return self._view.rows(dataclasses.replace(part, lost=lost), kept, shares)

    # -- beside fits ------------------------------------------------------------------------------------------

    def copy_now(self) -> None:
        """Copy, and refuse the first faulty value without showing it: for tables that nothing was charged for yet."""
        assert self.header is not None
        classes = self.header.classes
        seen = self if classes is None else self.labelled(class_list(classes, ())[0])
        self._store.copy(seen._encoder, strict=True)

    def features(self) -> Iterator[NDArray[Any]]:
        """Features of all rows in their order, for predictions; a stream that is read once is read from its copy.

        Yields:
            Some rows at a time.

        Raises:
            InvalidInput: if a value is missing, or of another type than the model needs.
        """
        if not self._source.once:
            yield from super().features()
            return
        store, encoder = self._store, dataclasses.replace(self._encoder, target=None, classes=None, person=None)
        for part in store.parts(encoder if store.encoder_of_copy is None else store.encoder_of_copy):
            if part.lost.any():
                raise InvalidInput("a row has missing values: fill them in, or state in a schema what stands for them")
            yield as_type(part.X, self._dtype)

    @classmethod
    def example(cls, X: Any, y: Any) -> Streamed:
        """As columns of one array."""
        table = np.column_stack([X, y])
        source = find_source(table)
        names = [field.name for field in source.fields]
        features = tuple(Numbers(name, -np.inf, np.inf) for name in names[:-1])
        return cls(source, Encoder(features, np.float64, names[-1]), copied=True)
