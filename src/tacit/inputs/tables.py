"""Tables and targets: shape, type and finiteness, checked before anything else, in words that show no record.

The checks are scikit-learn's. Some of its messages quote values, or take several lines; only those that hold public
quantities (shapes, names, types) pass, others are said anew.
"""

from __future__ import annotations

import numbers
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn import config_context
from sklearn.utils.validation import validate_data

from tacit.errors import InvalidInput
from tacit.inputs.entries import check_entries

__all__ = ["columns_of", "labels_of", "numbers_of", "validate_table"]

_ENCODE = "encode categories first, e.g. with tacit.preprocessing.PublicOneHotEncoder"
_FILL = "fill such values with a public constant, or drop their records"
_FAULTS = {
    r"Input ([Xy]) contains NaN": rf"Input \1 contains NaN: {_FILL}",
    r"Input contains NaN|boolean value of NA": f"Input X or y contains NaN: {_FILL}",
    r"Input ([Xy]) contains infinity": rf"Input \1 contains infinity or a value too large for its type: {_FILL}",
    r"Expected 2D (array|input)": (
        "X must have two dimensions (records, features). Reshape your data: X.reshape(-1, 1) if it is one feature, "
        "X.reshape(1, -1) if it is one record"
    ),
    r"setting an array element": "X must be a table and y a column: their rows differ in length or type",
    r"(This )?(\w+) (estimator )?requires y": r"\2 requires y to be passed, but the target y is None: call fit(X, y)",
    r"(float\(\) argument must be .*)": rf"X and y must hold numbers: {_ENCODE} (\1)",
}
"""How a message of scikit-learn or numpy begins, and what we say instead."""

_PUBLIC = re.compile(
    r"Found (array|input variables) with |X has \d+ features|y should be a 1d array|Sparse data was passed|"
    r"Only sparse matrices|Expected sequence or array-like|The feature names should match|Feature names are only|"
    r"np\.matrix is not supported|Expected unique column names"
)
"""Messages that hold shapes, types and names only."""


def validate_table(estimator: Any, X: Any, y: Any = "no_validation", **options: Any) -> Any:
    """X, or (X, y), as scikit-learn validates it; a fault is told in one line that holds no record's value.

    Args:
        estimator: whose input it is; it keeps the number and the names of the features.
        X: (records, features).
        y: (records,); left out for prediction.
        options: of scikit-learn's ``validate_data``.

    Returns:
        The validated X, or X and y.

    Raises:
        InvalidInput: if shape, type or finiteness do not fit.
        TypeError: if an entry is no number at all, as scikit-learn wants it.
    """
    check_entries("X", X)
    if not (y is None or isinstance(y, str)):
        check_entries("y", y)
    try:
        with (
            np.errstate(all="ignore"),
            config_context(assume_finite=False),
        ):  # the caller's settings cannot switch this check off
            found = validate_data(estimator, X, y, dtype=[np.float64, np.float32], order=None, **options)
        fault = ""
    except (ValueError, TypeError, OverflowError) as error:
        fault = _fault(str(error))
    if not fault:
        _check_sparse(found[0] if isinstance(found, tuple) else found)
        return found
    # Outside of the handler: the first message must not follow as the context of ours.
    if "argument must be" in fault:
        raise TypeError(fault)
    raise InvalidInput(fault)


def _check_sparse(table: Any) -> None:
    """Compiled code trusts indices: those of a sparse table must lie inside of it."""
    if not sparse.issparse(table) or not hasattr(table, "check_format"):
        return
    try:
        table.check_format(full_check=True)
    except ValueError:
        raise InvalidInput("X is a broken sparse matrix: its indices point outside of it; build it again") from None


def _fault(message: str) -> str:
    for theirs, ours in _FAULTS.items():
        if found := re.match(theirs, message):
            return found.expand(ours)
    if _PUBLIC.match(message):
        return re.sub(r"\s*\n\s*", " ", message.strip())
    return f"X must be a table of real numbers, and y a column as long: {_ENCODE}"


def numbers_of(y: Any) -> NDArray[np.float64]:
    """The target of a regression as float64.

    Args:
        y: validated, one-dimensional.

    Returns:
        The numbers.

    Raises:
        InvalidInput: if it holds anything else.
    """
    numeric = y.dtype.kind in "biuf" or all(isinstance(value, numbers.Real | None) for value in y)
    if not numeric:
        raise InvalidInput("y must hold numbers: for labels use a classifier, e.g. DPLogisticRegression")
    with np.errstate(all="ignore"):
        out = np.asarray(y, np.float64)
    if not np.isfinite(out).all():  # None, or too large for a float64: unseen by the check of the original
        raise InvalidInput(f"Input y contains NaN or infinity: {_FILL}")
    return out


def columns_of(y: Any) -> NDArray[np.float64]:
    """The targets of a regression with one or several outputs as float64, (records, outputs).

    Args:
        y: validated, of one or two dimensions.

    Returns:
        The numbers.

    Raises:
        InvalidInput: if it holds anything else.
    """
    if sparse.issparse(y):
        raise InvalidInput("y is sparse: pass y.toarray()")
    table = np.asarray(y).reshape(len(y), -1)
    return np.stack([numbers_of(column) for column in table.T], axis=1)


def labels_of(y: Any, name: str = "y") -> Any:
    """The labels of a classification.

    Args:
        y: one-dimensional.
        name: for messages.

    Returns:
        Strings, integers, booleans, or floats without fractions.

    Raises:
        InvalidInput: if it holds fractions, or a mixture of types.
    """
    if y.dtype.kind == "O" and all(isinstance(label, numbers.Real) for label in y):
        y = np.asarray(y.tolist())
    if y.dtype.kind == "f" and not (y == np.floor(y)).all():
        raise InvalidInput(
            f"Unknown label type: continuous; {name} must hold class labels: for numbers use a regressor, e.g. DPRidge"
        )
    mixed = y.dtype.kind == "O" and not all(isinstance(label, str) for label in y)
    if mixed or y.dtype.kind not in "biufUSO":
        raise InvalidInput(f"Unknown label type: {name} must hold strings, integers or booleans, all of one kind")
    return y
