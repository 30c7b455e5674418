"""What all public feature maps share: the schema of records, and rows made block by block."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from tacit.errors import InvalidInput
from tacit.inputs.tables import shape_of, validate_table
from tacit.maps.rows import Range, RowMap

__all__ = ["FeatureMap", "blocks", "records", "width_of"]

BLOCK = 2**19
"""Numbers made at a time: a few megabytes, so that what lies between input and output stays in the cache."""


def blocks(n: int, width: int) -> Iterator[slice]:
    """Slices of rows that make about ``BLOCK`` numbers each.

    Args:
        n: rows.
        width: numbers per row.

    Yields:
        Slices, in order.
    """
    step = max(1, BLOCK // max(1, width))
    for start in range(0, n, step):
        yield slice(start, min(start + step, n))


def width_of(X: Any) -> int | None:
    """The number of columns, before any value is read; None for a table without rows or columns.

    Args:
        X: a table.

    Returns:
        p.

    Raises:
        InvalidInput: if it is sparse or has no two dimensions.
    """
    if sparse.issparse(X):
        raise InvalidInput("X is sparse, and feature maps are dense: pass X.toarray(), or batches of it (Streamed)")
    shape = shape_of(X)
    if len(shape) != 2:
        raise InvalidInput(
            f"X must have two dimensions, got {len(shape)}. Reshape your data: X.reshape(-1, 1) if it is one feature, "
            "X.reshape(1, -1) if it is one record"
        )
    return None if 0 in shape else int(shape[1])


def records(estimator: BaseEstimator, X: Any, *, reset: bool) -> NDArray[Any]:
    """The values, finite; float32 stays float32, anything else becomes float64; rows are contiguous.

    The order of sums, and so the last bits of the features, depends on the layout in memory: there is only one.

    Args:
        estimator: whose input it is; scikit-learn keeps the names and the number of features on it.
        X: a table.
        reset: True in ``fit``.

    Returns:
        (n, p).
    """
    width_of(X)
    return np.asarray(validate_table(estimator, X, reset=reset, order="C"))


class FeatureMap(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, RowMap):  # type: ignore[misc]
    """z_i = φ(x_i) with ‖φ(x)‖₂ ≤ norm for every x: a function of one record and of public constants.

    *Formal guarantee.* Nothing is learned: the fitted map is a function of its arguments and of the number of columns,
    so it costs nothing (``certificate_`` is None); changing one record changes one row of the output, and a row is the
    same to the bit whoever stands beside it. A private estimator behind it may be told ``norm`` as a bound that costs
    no accuracy.

    *Assumptions.* Arguments and seeds are public and were not chosen by looking at private records. The table is
    finite: NaN and infinite values are refused, which is part of the schema.

    A fitted map is a ``RowMap``: ``map(X)`` are the features of checked records, without a word about their values.

    Subclasses give ``_prepare``, ``_rows`` and ``_norm``, and are decorated with ``public_step``; the decoration is
    not inherited. Those without usable default parameters also give ``example``.
    """

    by_rows = True

    def fit(self, X: Any, y: object = None) -> Self:
        """Read the number (and names) of columns.

        Args:
            X: (n, p).
            y: ignored.

        Returns:
            Itself.
        """
        p = width_of(X)
        if p is not None:  # else scikit-learn's message follows
            self._n_features_out = self._prepare(p)
            self._norm(None)
        records(self, X, reset=True)
        self.certificate_ = None
        return self

    def transform(self, X: Any) -> Any:
        """The features of each record.

        Args:
            X: (n, p).

        Returns:
            (n, number of features), float32 for float32 and float64 otherwise; every row within ``norm``.
        """
        check_is_fitted(self)
        return self._mapped(records(self, X, reset=False))

    def __call__(self, X: Any) -> NDArray[Any]:
        """The features of records that were checked before; a row that is not finite has none (zeros)."""
        values = np.ascontiguousarray(X)
        out, odd = self._mapped(values), ~np.isfinite(values).all(axis=1)
        out[odd] = 0.0
        return out

    def range(self, before: Range | None) -> Range:
        """Every entry, and the whole row, within the norm."""
        norm = self._norm(None if before is None or not np.isfinite(before.norm) else before.norm)
        ends = np.full(self._n_features_out, norm)
        return Range(-ends, ends, norm)

    @classmethod
    def example(cls, rng: np.random.Generator) -> tuple[FeatureMap, Any]:
        """The map with its default parameters, on rows of very different length."""
        return cls().fit(np.zeros((1, 5))), rng.normal(size=(40, 5)) * 10.0 ** rng.integers(-3, 4, size=(40, 1))

    def _mapped(self, values: NDArray[Any]) -> NDArray[Any]:
        out = np.empty((len(values), self._n_features_out), values.dtype)
        with np.errstate(all="ignore"):  # a warning would tell about a record
            for rows in blocks(len(values), max(out.shape[1], values.shape[1])):
                out[rows] = self._rows(values[rows])
        return out

    def _prepare(self, p: int) -> int:
        """Make the public constants for p columns; return the number of features."""
        raise NotImplementedError

    @abstractmethod
    def _rows(self, x: NDArray[Any]) -> NDArray[Any]:
        """The features of a block of records, each from its own row."""

    @abstractmethod
    def _norm(self, input_norm: float | None) -> float:
        """The bound on the norm of rows, if records are known to be within ``input_norm``."""

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
