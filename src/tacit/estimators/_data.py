"""The data of a search, and its public split into what is trained on and what is scored."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.records import Persons
from tacit.release import Streams

__all__ = ["Data", "held_out", "split"]


class Data(NamedTuple):
    """A table with its targets, and whose each row is.

    Attributes:
        X: (rows, features).
        y: (rows,).
        persons: or None.
    """

    X: Any
    y: Any
    persons: Persons | None = None


def held_out(holdout: object, n: int) -> int:
    """How many of n records are set aside: public.

    Args:
        holdout: the share of them.
        n: the number of records; of persons, where rows belong to persons.

    Returns:
        At least 1, at most n − 1.

    Raises:
        InvalidInput: if that leaves a part empty.
    """
    fraction = _validate.finite(holdout=holdout)
    held = round(fraction * n)
    if not 0 < fraction < 1 or not 0 < held < n:
        raise InvalidInput(f"holdout must be None, or a fraction that leaves some of {n} records in both parts")
    return held


def split(data: Data, held: int, streams: Streams) -> tuple[Data, Data]:
    """Training data and scoring data: the same, or disjoint by positions (of persons) that depend on n alone.

    Args:
        data: the table.
        held: how many records (persons) are scored and not trained on; 0 for "train and score on all".
        streams: the positions come from ``"split"``.

    Returns:
        Both parts, rows in the order they had.
    """
    if held == 0:
        return data, data
    X, y, persons = data
    order = streams.at("split").permutation(len(y) if persons is None else persons.n)
    rows = X.tocsr() if sparse.issparse(X) else X
    first, second = np.sort(order[held:]), np.sort(order[:held])
    if persons is None:
        return Data(rows[first], y[first]), Data(rows[second], y[second])
    (here, some), (there, others) = persons.part(first), persons.part(second)
    return Data(rows[here], y[here], some), Data(rows[there], y[there], others)
