"""One-hot encoding by public categories: free of cost."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from math import sqrt
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import _check_feature_names_in, check_is_fitted

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.inputs.tables import check_distinct, validate_table
from tacit.maps.steps import norm_of_rows, public_step

__all__ = ["PublicOneHotEncoder"]

_MISSING = object()
"""Every NaN is this one category (NaN is not equal to itself)."""


def _key(value: Any) -> Hashable:
    return _MISSING if isinstance(value, float | np.floating) and value != value else value


def _norm(encoder: PublicOneHotEncoder) -> float:
    """One 1 per column at most."""
    return sqrt(encoder.n_features_in_)


@norm_of_rows(_norm)
@public_step
class PublicOneHotEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """One column of zeros and ones per public category.

    Values that are not listed (missing ones included) become all zeros, silently: a message would tell about a record.
    With ``drop="first"`` they cannot be told from the dropped category.

    *Formal guarantee.* The fitted encoder is a function of public arguments, so it costs nothing: ``certificate_`` is
    None.

    *Assumptions.* The categories were not read off the data: a vocabulary found there tells who is in it.

    Args:
        categories: a list of lists, one per column; or one flat list for all columns.
        drop: None, or "first" to leave out the first category of every column.
        sparse_output: a CSC matrix instead of a dense array.

    Attributes:
        categories_: the categories of each column.
        certificate_: None.
        n_features_in_: the number of columns.

    >>> encoder = PublicOneHotEncoder(categories=[["red", "green"], [1, 2, 3]])
    >>> encoder.fit_transform([["green", 1], ["blue", 3]]).tolist()
    [[0.0, 1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0, 1.0]]
    >>> encoder.get_feature_names_out(["colour", "size"]).tolist()
    ['colour_red', 'colour_green', 'size_1', 'size_2', 'size_3']
    """

    def __init__(self, categories: Any = None, *, drop: str | None = None, sparse_output: bool = False) -> None:
        self.categories = categories
        self.drop = drop
        self.sparse_output = sparse_output

    def fit(self, X: Any, y: object = None) -> Self:
        """Read the number (and names) of columns.

        Args:
            X: (n, p), numbers or words.
            y: ignored.

        Returns:
            Itself.
        """
        if self.drop is not None:
            _validate.one_of(("first",), drop=self.drop)
        table = self._table(X, reset=True)
        self.categories_ = _per_column(self.categories, table.shape[1])
        self.certificate_ = None
        return self

    def transform(self, X: Any) -> Any:
        """Zeros and ones.

        Args:
            X: (n, p).

        Returns:
            (n, number of kept categories), dense or CSC.
        """
        check_is_fitted(self)
        table = self._table(X, reset=False)
        skip = int(self.drop == "first")
        rows, places, first = [], [], 0
        for j, known in enumerate(self.categories_):
            code = _codes(table[:, j], known, j) - skip
            hit = np.flatnonzero(code >= 0)
            rows.append(hit)
            places.append(first + code[hit])
            first += len(known) - skip
        row, place = np.concatenate(rows), np.concatenate(places)
        if self.sparse_output:
            return sparse.csc_array((np.ones(len(row)), (row, place)), shape=(len(table), first))
        out = np.zeros((len(table), first))
        out[row, place] = 1.0
        return out

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        """column_category, for every kept category.

        Args:
            input_features: names of the columns; by default those seen in ``fit``, or x0, x1, ...

        Returns:
            The names.
        """
        check_is_fitted(self)
        names = _check_feature_names_in(self, input_features)
        skip = int(self.drop == "first")
        kept = [f"{name}_{c}" for name, known in zip(names, self.categories_, strict=True) for c in known[skip:]]
        return np.array(kept, dtype=object)

    def _table(self, X: Any, *, reset: bool) -> NDArray[Any]:
        dtype = None if hasattr(X, "dtype") or hasattr(X, "dtypes") else object  # a list of words and numbers stays one
        return np.asarray(validate_table(self, X, dates=True, reset=reset, dtype=dtype, ensure_all_finite=False))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.categorical = True
        tags.input_tags.string = True
        tags.input_tags.allow_nan = True
        return tags


def _per_column(categories: Any, p: int) -> list[tuple[Any, ...]]:
    if categories is None or (isinstance(categories, str) and categories == "auto"):
        raise InvalidInput(
            "categories must be public: list them, [[...], [...]] with one list per column; a vocabulary found in the "
            "data would leak who is in it"
        )
    if isinstance(categories, str) or not isinstance(categories, Sequence | np.ndarray) or len(categories) == 0:
        raise InvalidInput("categories must be a list of lists, one per column, or one flat list for all columns")
    nested = [isinstance(c, Sequence | np.ndarray) and not isinstance(c, str | bytes) for c in categories]
    if not any(nested):
        return [_distinct(categories, 0)] * p
    if not all(nested) or len(categories) != p:
        raise InvalidInput(f"categories must hold one list per column ({p}), got {len(categories)} entries")
    return [_distinct(known, j) for j, known in enumerate(categories)]


def _distinct(known: Any, j: int) -> tuple[Any, ...]:
    out = tuple(known.tolist() if isinstance(known, np.ndarray) else known)
    check_distinct(f"categories[{j}]", [_key(c) if isinstance(c, Hashable) else c for c in out])
    return out


def _codes(column: NDArray[Any], known: tuple[Any, ...], j: int) -> NDArray[np.intp]:
    """The index of each value among the categories, −1 for others."""
    index = {_key(c): k for k, c in enumerate(known)}
    if column.dtype.kind in "biuf" and all(isinstance(c, str) for c in known):
        raise InvalidInput(f"column {j} holds numbers, but its categories are words: give both in one type")
    if column.dtype.kind == "O":  # words and numbers do not sort together
        return np.array([index.get(_key(v), -1) if isinstance(v, Hashable) else -1 for v in column], dtype=np.intp)
    values, inverse = np.unique(column, return_inverse=True)
    return np.array([index.get(_key(v), -1) for v in values.tolist()], dtype=np.intp)[inverse]
