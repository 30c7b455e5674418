"""Tables at the boundary: the shape first (public), the values only after the budget is reserved."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn import config_context
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data

from tacit._entries import check_entries
from tacit.errors import InvalidInput
from tacit.run.clipped_sum import records_array

__all__ = ["checked", "columns", "quiet", "shape_of", "table", "width"]

Array = NDArray[np.float64]

_SAFE = (
    "Found array with",
    "X has ",
    "The feature names should match",
    "Feature names",
    "Expected unique column names",
    "float() argument",
)
"""Beginnings of scikit-learn's messages that never show a record's value; others do, or take several lines."""

_NOT_FINITE = "X holds NaN or infinite values: fill them with a public constant before the private computation"
_FAULTS = {"NaN": _NOT_FINITE, "infinity": _NOT_FINITE}
_NO_TABLE = "X must be a table of numbers: encode other columns first, e.g. with PublicOneHotEncoder"


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
    check_entries("X", X, each=False)
    shape = shape_of(X)
    if len(shape) != 2:
        raise InvalidInput(
            f"X must have two dimensions, got {len(shape)}. Reshape your data: X.reshape(-1, 1) if it is one feature, "
            "X.reshape(1, -1) if it is one record"
        )
    if 0 in shape:
        checked(estimator, X, reset=True)  # raises
    return int(shape[1])


def quiet(check: Callable[..., Any], *arguments: Any, **settings: Any) -> Any:
    """What a check of scikit-learn's returns; its messages are replaced unless they are known to hold no values.

    Args:
        check: ``validate_data`` or ``check_array``.
        *arguments: for it; the last one is the table.
        **settings: for it; without a ``dtype`` of numbers the table may hold dates, as categories.

    Returns:
        The checked table.

    Raises:
        InvalidInput: with a message of ours.
        ValueError: as raised, if known to be harmless.
        TypeError: the same.
        OverflowError: the same.
    """
    check_entries("X", arguments[-1], dates=settings.get("dtype") in (None, object))
    try:
        with config_context(assume_finite=False):  # nobody can switch this check off
            return check(*arguments, **settings)
    except (ValueError, TypeError, OverflowError) as error:
        first = str(error).split("\n")[0]
        if first.startswith(_SAFE):
            raise
        fault = next((ours for theirs, ours in _FAULTS.items() if theirs in first), _NO_TABLE)
    raise InvalidInput(fault)  # outside the handler: no trace of the original


def checked(estimator: BaseEstimator, X: Any, *, reset: bool) -> Array:
    """The values as float64, finite; scikit-learn keeps the names and the number of features.

    Args:
        estimator: whose input it is.
        X: a table.
        reset: True in ``fit``.

    Returns:
        (n, p).
    """
    if not reset:
        width(estimator, X)
    return np.asarray(quiet(validate_data, estimator, X, reset=reset, dtype=np.float64))


def table(x: Any) -> Array:
    """One or several columns of records, (n, p), for plain functions.

    Args:
        x: one- or two-dimensional.

    Returns:
        Two-dimensional, finite.

    Raises:
        InvalidInput: if it is not numeric, or not finite.
    """
    check_entries("x", x)
    raw = np.asarray(x)
    try:
        out = records_array("x", raw, raw.ndim)
    except OverflowError:
        raise InvalidInput("x must hold numbers that fit into floats") from None
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
    check_entries("x", x, each=False)
    shape = shape_of(x)
    if len(shape) not in (1, 2) or 0 in shape:
        raise InvalidInput(f"x must be one column or a table with at least one record and column, got shape {shape}")
    return 1 if len(shape) == 1 else int(shape[1])
