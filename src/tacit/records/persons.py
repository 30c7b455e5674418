"""Persons with several rows: whose each row is, and what it counts, in integers that add up to one for each person.

A row i of person j counts w_i = W_i/2ᵇ ≥ 0 with Σ_{i of j} W_i ≤ 2ᵇ, so that a person's contribution Σ w_i·c_i lies in
the convex hull of what single rows contribute and of 0: no longer than the bound, and as smooth and convex as a row's.
Every theorem then holds with "record" read as "person".

- ``weighting="person"``: every person counts once, in equal shares. 2ᵇ/k is whole for few k only, so W_i is ⌊2ᵇ/k⌋, and
  one more for the first 2ᵇ mod k of a person's rows, in the order of keyed tags of what the rows hold. A person with
  more than 2ᵇ rows is counted by 2ᵇ of them.
- ``weighting="rows"``: a row counts 1/k for a public ``max_rows`` = k; of a person with more rows, k count. How much a
  person counts is then secret, and so is the sum of all weights.

What a row counts depends on its own person's rows alone, whatever their order and place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.siphash import row_tags, row_tags_sparse

__all__ = ["MAX_ROWS", "WEIGHTINGS", "WEIGHT_BITS", "Persons", "Shares", "check_weighting"]

Array = NDArray[np.float64]
WEIGHT_BITS = 10
"""b: what a row counts is a multiple of 2⁻ᵇ."""
MAX_ROWS = 1 << WEIGHT_BITS
"""Rows of one person that can count."""
WEIGHTINGS = ("person", "rows")
CHUNK = 4096
"""Rows whose tags are made at a time."""


class Shares(NamedTuple):
    """Whose each row is, and what it counts; **private**.

    Attributes:
        person: (rows,), numbers from 0.
        weight: (rows,), integers W, as float64.
    """

    person: NDArray[np.intp]
    weight: Array

    @property
    def fractions(self) -> Array:
        """What each row counts, as shares of 1."""
        return self.weight * 2.0**-WEIGHT_BITS

    def taken(self, index: Any) -> Shares:
        """Those of some rows."""
        return Shares(self.person[index], self.weight[index])


@dataclass(frozen=True, eq=False)
class Persons:
    """Whose each row is, by codes that follow the order of ids.

    Attributes:
        codes: (rows,), from 0 to n − 1.
        n: the number of persons.
        weighting: "person" or "rows".
        max_rows: k, for "rows".
    """

    codes: NDArray[np.intp]
    n: int
    weighting: str = "person"
    max_rows: int | None = None

    @classmethod
    def of(cls, ids: object, rows: int, weighting: str = "person", max_rows: int | None = None) -> Persons:
        """Group rows by ids, which are not kept.

        Args:
            ids: one for each row: numbers, strings, or anything that can be sorted.
            rows: how many there must be.
            weighting: "person" or "rows".
            max_rows: how many rows of a person count, for "rows".

        Returns:
            The persons.

        Raises:
            InvalidInput: if ids are missing, of another length, or of several kinds.
        """
        check_weighting(weighting, max_rows)
        column = _column(ids)
        if column.shape != (rows,):
            raise InvalidInput(f"groups must hold one id for each of the {rows} rows, got shape {column.shape}")
        try:
            found, codes = np.unique(column, return_inverse=True)
        except TypeError:
            raise InvalidInput("groups holds ids of several kinds: convert all of them, e.g. to strings") from None
        return cls(codes.reshape(-1), len(found), weighting, max_rows)

    def shares(self, X: Any, y: Any, rng: np.random.Generator) -> Shares:
        """Give every person a secret number, and every row its weight.

        Numbers are a fresh secret permutation: a person who takes another one's place takes their number too, in law,
        and the batches of all others stay as they were. Which rows count more by one unit than others follows from
        keyed tags.

        Args:
            X: (rows, features), as they came; read only if what a row counts depends on it.
            y: (rows,) or (rows, outputs), or None.
            rng: secret.

        Returns:
            The shares.
        """
        order, key = rng.permutation(self.n), np.frombuffer(rng.bytes(16), np.uint64)
        counts = np.bincount(self.codes, minlength=self.n)[self.codes]
        if self.weighting == "rows":
            assert self.max_rows is not None
            whole, more = np.full(len(self.codes), MAX_ROWS // self.max_rows), np.zeros(len(self.codes), np.int64)
            uneven = counts > self.max_rows
            counted = np.minimum(counts, self.max_rows)
        else:
            whole, more = MAX_ROWS // counts, MAX_ROWS % counts
            uneven = more > 0
            counted = np.minimum(counts, MAX_ROWS)
        weight = whole.astype(np.float64)
        index = np.flatnonzero(uneven)
        if index.size:
            rank = _ranks(self.codes[index], _tags(X, y, index, key))
            weight[index] += rank < more[index]
            weight[index] *= rank < counted[index]
        return Shares(order[self.codes], weight)


def check_weighting(weighting: object, max_rows: object) -> None:
    """Refuse a weighting that is not known, and ``max_rows`` where it is missing, out of range or without effect.

    Args:
        weighting: "person" or "rows".
        max_rows: k, or None.

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


def _ranks(codes: NDArray[np.intp], tags: NDArray[np.uint64]) -> NDArray[np.int64]:
    """The place of each row among those of its person, by tag; rows with equal tags are alike."""
    order = np.lexsort((tags, codes))
    sorted_codes = codes[order]
    first = np.flatnonzero(np.concatenate([[True], sorted_codes[1:] != sorted_codes[:-1]]))
    within = np.arange(len(codes)) - np.repeat(first, np.diff(np.append(first, len(codes))))
    out = np.empty(len(codes), np.int64)
    out[order] = within
    return out


def _tags(X: Any, y: Any, index: NDArray[np.intp], key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Keyed tags of what some rows hold, targets included."""
    out = np.empty(len(index), np.uint64)
    rows = X.tocsr() if sparse.issparse(X) else X
    for first in range(0, len(index), CHUNK):
        part = slice(first, first + CHUNK)
        own = _row_tags(rows[index[part]], key)
        if y is not None:
            targets = _words(np.asarray(y)[index[part]].reshape(len(own), -1).T)
            own = row_tags(np.ascontiguousarray(np.vstack([own[None], targets])), key)
        out[part] = own
    return out


def _row_tags(rows: Any, key: NDArray[np.uint64]) -> NDArray[np.uint64]:
    if not sparse.issparse(rows):
        return row_tags(np.ascontiguousarray(_words(np.asarray(rows).T)), key)
    columns = sparse.csc_array(rows)
    columns.sum_duplicates()
    columns.eliminate_zeros()  # a stored zero is no other row
    return row_tags_sparse(
        (_words(columns.data), columns.indices.astype(np.int32), columns.indptr.astype(np.int64)), rows.shape[0], key
    )


def _words(values: NDArray[Any]) -> NDArray[np.uint64]:
    """Numbers as 64-bit words; −0.0 is 0.0."""
    return np.ascontiguousarray(values.astype(np.float64) + 0.0).view(np.uint64)
