"""Tables at the boundary: the shape first (public), the values only after the budget is reserved."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from tacit.errors import InvalidInput
from tacit.run.clipped_sum import records_array

__all__ = ["checked", "columns", "shape_of", "table", "width"]

Array = NDArray[np.float64]

_FAULTS = {
    "could not convert": "X must hold numbers: encode other columns first, e.g. with PublicOneHotEncoder",
    "Complex data": "Complex data not supported: pass real numbers",
    "NaN": "X holds NaN or infinite values: fill them with a public constant before the private computation",
    "infinity": "X holds NaN or infinite values: fill them with a public constant before the private computation",
}
"""scikit-learn's messages that show values of records, or take several lines, and ours instead."""


def shape_of(X: Any) -> tuple[int, ...]:
    """The shape of a table, from its attribute if it has one (no value is read), else of what it converts to."""
    shape = getattr(X, "shape", None)
    if isinstance(shape, tuple):
        return shape
    try:
        return np.asarray(X).shape
    except ValueError:
        raise InvalidInput("X must be a table: its rows differ in length") from None


def width(estimator: BaseEstimator, X: Any) -> int:
    """The number of features, before any value is read.

    Args:
        estimator: for scikit-learn's message about empty tables.
        X: a table.

    Returns:
        p.

    Raises:
        InvalidInput: if it is sparse or has no two dimensions.
    """
    if sparse.issparse(X):
        raise InvalidInput("X is sparse, and centring would fill it: pass a dense array, or leave these columns out")
    shape = shape_of(X)
    if len(shape) != 2:
        raise InvalidInput(
            f"X must have two dimensions, got {len(shape)}. Reshape your data: X.reshape(-1, 1) if it is one feature, "
            "X.reshape(1, -1) if it is one record"
        )
    if 0 in shape:
        checked(estimator, X, reset=True)  # raises
    return int(shape[1])


def checked(estimator: BaseEstimator, X: Any, *, reset: bool) -> Array:
    """The values as float64, finite; scikit-learn keeps the names and the number of features.

    Args:
        estimator: whose input it is.
        X: a table.
        reset: True in ``fit``.

    Returns:
        (n, p).

    Raises:
        InvalidInput: if shape, type or finiteness do not fit; a message never holds a record's value.
        ValueError: as scikit-learn does, if names or the number of features differ from those of ``fit``.
    """
    if not reset:
        width(estimator, X)
    try:
        return np.asarray(validate_data(estimator, X, reset=reset, dtype=np.float64))
    except ValueError as error:
        first = str(error).split("\n")[0]
        fault = next((ours for theirs, ours in _FAULTS.items() if theirs in first), None)
        if fault is None:
            raise
    raise InvalidInput(fault)


def table(x: Any) -> Array:
    """One or several columns of records, (n, p), for plain functions.

    Args:
        x: one- or two-dimensional.

    Returns:
        Two-dimensional, finite.

    Raises:
        InvalidInput: if it is neither, empty, or not finite.
    """
    out = records_array("x", x, len(shape_of(x)))
    if len(out) == 0:
        raise InvalidInput("x is empty: at least one record is needed")
    return out[:, None] if out.ndim == 1 else out


def columns(x: Any) -> int:
    """The number of columns of ``table(x)``, before any value is read.

    Args:
        x: one- or two-dimensional.

    Returns:
        p.

    Raises:
        InvalidInput: if it has other dimensions, or none of a column.
    """
    shape = shape_of(x)
    if len(shape) not in (1, 2) or 0 in shape:
        raise InvalidInput(f"x must be one column or a table with at least one record and column, got shape {shape}")
    return 1 if len(shape) == 1 else int(shape[1])
