"""Persons with several rows: whose each row is, and what it counts, so that nobody counts more than one record does.

Row i of a person with k rows counts

    w_i = 1/max(k, m) · min(s_i, M)/M,

m = 1 for ``weighting="person"`` (everybody counts once, in equal shares) and m = ``max_rows`` for ``weighting="rows"``
(a row counts 1/m; persons with more rows count once, in equal shares), s_i the row's ``sample_weight`` and M the public
``max_sample_weight`` (both 1 if there are none). So Σw_i ≤ 1 for each person, whose contribution Σw_i·c_i lies in the
convex hull of what single rows contribute and of 0: no longer than the bound, and as smooth and convex as a row's.
Every theorem then holds with "record" read as "person" (docs/persons.md).

What a row counts depends on its own person's rows alone, whatever their order and place. Persons are numbered by keyed
tags of their ids, the same from every place of records; neither ids nor tags are kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.siphash import row_tags

__all__ = [
    "MAX_ROWS",
    "WEIGHTINGS",
    "Persons",
    "Shares",
    "check_weighting",
    "id_tags",
    "keyed_tags",
    "row_shares",
    "tag_order",
]

Array = NDArray[np.float64]
Words = NDArray[np.uint64]
MAX_ROWS = 1 << 20
"""A person with more rows counts as nothing: sums of more terms would need another proof of their rounding."""
BELOW_ONE = 1 - 2.0**-48
"""Shares are so much smaller than stated: more than rounding of products with them can add."""
WEIGHTINGS = ("person", "rows")


class Shares(NamedTuple):
    """Whose each row is, and what it counts; **private**.

    Attributes:
        person: (rows,), numbers from 0.
        weight: (rows,), from 0 to 1; no more than 1 for the rows of a person together.
    """

    person: NDArray[np.intp]
    weight: Array

    def taken(self, index: Any) -> Shares:
        """Those of some rows."""
        return Shares(self.person[index], self.weight[index])


@dataclass(frozen=True, eq=False)
class Persons:
    """Whose each row is, and what it counts.

    Attributes:
        codes: (rows,), from 0 to n − 1; None if every row is a record of its own.
        n: the number of persons.
        tags: (n, 2), digests of ids without a key; None without ids.
        least: m, the number of rows that a person is taken to have at least.
        scale: (rows,), min(s, M)/M; None if all rows count alike.
    """

    codes: NDArray[np.intp] | None
    n: int
    tags: Words | None = None
    least: int = 1
    scale: Array | None = None

    @classmethod
    def of(
        cls,
        ids: object,
        rows: int,
        weighting: str = "person",
        max_rows: int | None = None,
        sample_weight: object = None,
        max_sample_weight: float | None = None,
    ) -> Persons:
        """Group rows by ids, which are not kept.

        Args:
            ids: one for each row: numbers, strings, or anything that can be sorted; None if every row is a record.
            rows: how many there must be.
            weighting: "person" or "rows".
            max_rows: m, for "rows".
            sample_weight: s, one for each row, or None.
            max_sample_weight: M, public.

        Returns:
            The persons.

        Raises:
            InvalidInput: if ids are missing, of another length, or of several kinds.
        """
        check_weighting(weighting, max_rows)
        scale = _scale(sample_weight, max_sample_weight, rows)
        if ids is None:
            return cls(None, rows, scale=scale)
        column = _column(ids)
        if column.shape != (rows,):
            raise InvalidInput(f"groups must hold one id for each of the {rows} rows, got shape {column.shape}")
        try:
            found, codes = np.unique(column, return_inverse=True)
        except TypeError:
            raise InvalidInput("groups holds ids of several kinds: convert all of them, e.g. to strings") from None
        return cls(codes.reshape(-1), len(found), id_tags(found), max_rows or 1, scale)

    @property
    def by_person(self) -> bool:
        """Whether rows belong to persons."""
        return self.codes is not None

    @property
    def secret_weight(self) -> bool:
        """Whether it is secret how much all rows count together."""
        return self.least > 1 or self.scale is not None

    def part(self, members: NDArray[np.intp]) -> tuple[NDArray[np.intp], Persons]:
        """The rows of some persons (or records), and whose these are.

        Args:
            members: numbers of persons, increasing.

        Returns:
            Row numbers, and the persons of these rows.
        """
        if self.codes is None or self.tags is None:
            index = members
            return index, Persons(None, len(index), scale=None if self.scale is None else self.scale[index])
        index = np.flatnonzero(np.isin(self.codes, members))
        codes = np.searchsorted(members, self.codes[index])
        scale = None if self.scale is None else self.scale[index]
        return index, Persons(codes, len(members), self.tags[members], self.least, scale)

    def shares(self, rng: np.random.Generator) -> Shares:
        """Give every person a secret number, and every row what it counts.

        Numbers are ranks of keyed tags under a fresh secret key: a person who takes another one's place takes their
        number too, in law, and the batches of all others stay as they were.

        Args:
            rng: secret.

        Returns:
            The shares.
        """
        if self.codes is None or self.tags is None:
            assert self.scale is not None
            return Shares(np.arange(self.n), np.where(self.scale < 1, self.scale * BELOW_ONE, 1.0))
        number = tag_order(self.tags, np.frombuffer(rng.bytes(16), np.uint64))
        counts = np.bincount(self.codes, minlength=self.n)
        weight = row_shares(counts, self.least)[self.codes]
        return Shares(number[self.codes], weight if self.scale is None else weight * self.scale)


def row_shares(counts: NDArray[Any], least: int = 1) -> Array:
    """What each row of a person counts: 1/max(k, m), a little less where that is not 1; 0 beyond ``MAX_ROWS`` rows.

    Args:
        counts: k, of each person.
        least: m.

    Returns:
        As many shares.
    """
    most = np.maximum(counts, least)
    return np.where(counts > MAX_ROWS, 0.0, np.where(most > 1, BELOW_ONE / np.maximum(most, 1), 1.0))


def id_tags(ids: NDArray[Any]) -> Words:
    """128-bit digests of ids, the same from every place: whole numbers by value, all others by their text.

    Args:
        ids: (n,), numbers, strings, dates or truth values, none missing.

    Returns:
        (n, 2).
    """
    if ids.dtype.kind == "f":
        whole = (np.abs(ids) < 2.0**53) & (ids == np.trunc(ids))
        out = _both_tags((ids.astype(np.float64) + 0.0).view(np.uint64)[None], 1)
        out[whole] = id_tags(ids[whole].astype(np.int64))  # whatever other ids there are
        return out
    if ids.dtype.kind in "iub":
        return _both_tags(ids.astype(np.int64).view(np.uint64)[None], 0)
    return _text_tags([str(one).encode() for one in ids.tolist()])


def _both_tags(words: Words, kind: int) -> Words:
    """Two tags of each column of words; numbers and text of the same words differ in their kind."""
    keys = np.array([[kind, 0], [kind, 1]], np.uint64)
    return np.stack([row_tags(np.ascontiguousarray(words), key) for key in keys], axis=1)


def _text_tags(text: list[bytes]) -> Words:
    """Tags of UTF-8 text as 64-bit words, padded with zeros, and its length; words of one length at a time."""
    lengths = np.array([len(one) for one in text], np.int64)
    out = np.empty((len(text), 2), np.uint64)
    for width in np.unique(-(-lengths // 8)):
        index = np.flatnonzero(-(-lengths // 8) == width)
        joined = b"".join(text[i].ljust(8 * width, b"\0") for i in index)
        packed = np.frombuffer(joined, np.uint64).reshape(len(index), width)
        out[index] = _both_tags(np.vstack([packed.T, lengths[None, index].astype(np.uint64)]), 2)
    return out


def tag_order(tags: Words, key: Words) -> NDArray[np.intp]:
    """The rank of each tag once it is keyed: a secret permutation, which no order of the tags changes.

    Args:
        tags: (n, 2), distinct.
        key: (2,), secret.

    Returns:
        (n,), numbers from 0 to n − 1.
    """
    keyed = keyed_tags(tags, key)
    out = np.empty(len(tags), np.intp)
    out[np.lexsort((keyed[:, 0], keyed[:, 1]))] = np.arange(len(tags))
    return out


def keyed_tags(tags: Words, key: Words) -> Words:
    """Tags of tags under a key: without it they tell neither ids nor the order of others.

    Args:
        tags: (n, 2).
        key: (2,), secret.

    Returns:
        (n, 2).
    """
    return np.stack([row_tags(np.ascontiguousarray(tags.T), key ^ np.uint64(word)) for word in (0, 1)], axis=1)


def check_weighting(weighting: object, max_rows: object) -> None:
    """Refuse a weighting that is not known, and ``max_rows`` where it is missing, out of range or without effect.

    Args:
        weighting: "person" or "rows".
        max_rows: m, or None.

    Raises:
        InvalidInput: naming the parameter.
    """
    word = _validate.one_of(WEIGHTINGS, weighting=weighting)
    if word == "person":
        if max_rows is not None:
            raise InvalidInput("max_rows has no effect with weighting='person': leave it out, or set weighting='rows'")
        return
    if max_rows is None:
        raise InvalidInput(
            "max_rows is missing: weighting='rows' needs a public number of rows of a person that may count, e.g. 10"
        )
    if _validate.positive_int(max_rows=max_rows) > MAX_ROWS:
        raise InvalidInput(f"max_rows must not exceed {MAX_ROWS}, got {max_rows}: noise grows with it")


def _scale(sample_weight: object, most: float | None, rows: int) -> Array | None:
    """min(s, M)/M, in parts of 2⁻³² so that products with shares keep their digits."""
    if sample_weight is None:
        if most is not None:
            raise InvalidInput("max_sample_weight has no effect without sample_weight: pass both to fit, or neither")
        return None
    if most is None:
        raise InvalidInput(
            "max_sample_weight is missing: sample_weight needs a public maximum, which every weight is clipped to"
        )
    top = _validate.positive(max_sample_weight=most)
    weight = np.asarray(sample_weight)
    if weight.shape != (rows,) or weight.dtype.kind not in "iufb":
        raise InvalidInput(f"sample_weight must hold one number for each of the {rows} rows, got shape {weight.shape}")
    if not np.isfinite(weight).all() or (weight < 0).any():
        raise InvalidInput("sample_weight holds numbers that are negative, missing or infinite: make them 0 or more")
    return np.floor(np.minimum(weight.astype(np.float64) / top, 1.0) * 2.0**32) * 2.0**-32


def _column(ids: object) -> NDArray[Any]:
    """The ids as an array of one kind; missing ones are refused."""
    if ids is None or isinstance(ids, str | bytes):
        raise InvalidInput("groups must hold one id for each row, e.g. groups=frame['patient_id']")
    column = np.asarray(ids)
    if column.ndim == 2 and column.shape[1] == 1:
        column = column[:, 0]
    if column.dtype == object:
        missing = any(one is None or one != one for one in column)
        column = column if missing else _uniform(column)
    else:
        missing = column.dtype.kind in "fcmM" and bool((column != column).any())  # NaN, NaT
    if missing:
        raise InvalidInput(
            "groups holds missing ids: drop these rows, or give each an id of its own, which makes it a person"
        )
    return column


def _uniform(column: NDArray[Any]) -> NDArray[Any]:
    """Objects of one type as an array of that type, which sorts faster; else as they are."""
    kinds = {type(one) for one in column}
    return np.asarray(column.tolist()) if len(kinds) == 1 and kinds <= {str, int} else column
