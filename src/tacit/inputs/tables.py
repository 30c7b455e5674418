"""Tables and targets: the shape first, then the values, in words that show no record.

The checks are scikit-learn's. Some of its messages quote values, or take several lines; only those that hold public
quantities (shapes, names, types) pass, others are said anew. Every fault of a table has its one sentence here.
"""

from __future__ import annotations

import datetime
import numbers
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse
from sklearn import config_context
from sklearn.utils.validation import check_array, validate_data

from tacit.errors import InvalidInput
from tacit.inputs.foreign import check_in_memory

__all__ = [
    "check_distinct",
    "check_entries",
    "class_list",
    "class_numbers",
    "columns_of",
    "encode_labels",
    "labels_of",
    "mixed_labels",
    "numbers_of",
    "sanitise_errors",
    "shape_of",
    "validate_shape",
    "validate_table",
]

_TIMES = (np.datetime64, np.timedelta64, datetime.date, datetime.time, datetime.timedelta)
_TIME_WORDS = re.compile(r"date|time|duration|period", re.IGNORECASE)
"""How types of dates and times begin: those of pandas, Arrow and Polars, too."""


def check_entries(name: str, table: Any, *, dates: bool = False, each: bool = True) -> None:
    """Refuse masked arrays, dates, times and complex numbers; no value is read.

    Args:
        name: for the message.
        table: what the user passed: an array, a frame, a column, lists.
        dates: True where they are categories like others.
        each: also look at the type of every entry where the table states none (lists, objects).

    Raises:
        InvalidInput: if it holds something that would be read as what it is not.
    """
    check_in_memory(name, table)
    parts = table if isinstance(table, list | tuple) else (table,)
    if any(isinstance(part, np.ma.MaskedArray) for part in parts):
        raise InvalidInput(
            f"{name} is a masked array, whose mask would be ignored: fill it with a public constant, e.g. "
            f"{name}.filled(0), or drop what is masked"
        )
    kinds = _stated(table) | {part.dtype for part in parts if isinstance(part, np.ndarray | np.generic)}
    if each and any(getattr(kind, "kind", "O") == "O" for kind in kinds):
        kinds |= _types(table)
    if not dates and any(map(_is_time, kinds)):
        raise InvalidInput(
            f"{name} holds dates or times, which would be read as huge numbers: subtract a public date and divide by a "
            f"unit first, e.g. ({name} - np.datetime64('2020-01-01')) / np.timedelta64(1, 'D')"
        )
    if any(map(_is_complex, kinds)):
        raise InvalidInput(f"Complex data not supported: {name} must hold real numbers, e.g. {name}.real")


def _stated(table: Any) -> set[Any]:
    """The types that a table states: one per column of a frame."""
    found = getattr(table, "dtypes", None)
    if found is None or not isinstance(found, Iterable):
        found = [getattr(table, "dtype", object)]
    return {getattr(getattr(kind, "categories", None), "dtype", kind) for kind in found}


def _types(table: Any) -> set[Any]:
    try:
        entries = np.asarray(table, dtype=object)
    except Exception:  # no table at all: the validation says so
        return set()
    return {type(entry) for entry in entries.ravel().tolist()}


def _is_time(kind: Any) -> bool:
    if isinstance(kind, type):
        return issubclass(kind, _TIMES) or kind.__name__ == "Period"
    return getattr(kind, "kind", None) in ("m", "M") or _TIME_WORDS.match(str(kind)) is not None


def _is_complex(kind: Any) -> bool:
    if isinstance(kind, type):
        return issubclass(kind, complex | np.complexfloating)
    return getattr(kind, "kind", None) == "c"


_ENCODE = "encode categories first, e.g. with tacit.maps.PublicOneHotEncoder"
_FILL = "fill such values with a public constant, or drop their records"
_TWO_DIMENSIONS = (
    "X must have two dimensions (records, features). Reshape your data: X.reshape(-1, 1) if it is one feature, "
    "X.reshape(1, -1) if it is one record"
)
_SPARSE = "X is sparse, where a dense table is needed: pass X.toarray(), or leave these columns out"
_RAGGED = "X must be a table and y a column: their rows differ in length or type"
_FAULTS = {
    r"Input (\w) contains NaN": rf"Input \1 contains NaN: {_FILL}",
    r"Input contains NaN|boolean value of NA": f"Input X or y contains NaN: {_FILL}",
    r"Input (\w) contains infinity": rf"Input \1 contains infinity or a value too large for its type: {_FILL}",
    r"Expected 2D (array|input)|Found array with dim \d+": _TWO_DIMENSIONS,
    r"Sparse data was passed": _SPARSE,
    r"setting an array element": _RAGGED,
    r"(This )?(\w+) (estimator )?requires y": r"\2 requires y to be passed, but the target y is None: call fit(X, y)",
    r"(float\(\) argument must be .*)": rf"X and y must hold numbers: {_ENCODE} (\1)",
}
"""How a message of scikit-learn or numpy begins, and what we say instead."""

_PUBLIC = re.compile(
    r"Found (array|input variables) with |X has \d+ features|y should be a 1d array|"
    r"Only sparse matrices|Expected sequence or array-like|The feature names should match|Feature names are only|"
    r"np\.matrix is not supported|Expected unique column names"
)
"""Messages that hold shapes, types and names only."""


def shape_of(X: Any) -> tuple[int, ...]:
    """The shape of a table: that which it states (no value is read), or that of the array it converts to.

    Args:
        X: a table.

    Returns:
        One number per dimension.

    Raises:
        InvalidInput: if its rows differ in length.
    """
    shape = getattr(X, "shape", None)
    if isinstance(shape, tuple):
        return shape
    try:
        return np.asarray(X).shape
    except ValueError:  # outside of the handler: its exception may hold a value
        pass
    raise InvalidInput(_RAGGED)


def validate_shape(estimator: Any, X: Any, *, column: bool = False) -> tuple[int, int]:
    """The numbers of records and features of a dense table, before a value is read.

    For estimators that read values only after they are paid for (``validate_table`` then).

    Args:
        estimator: whose input it is; it keeps the number and the names of the features.
        X: (records, features).
        column: whether (records,) is a table of one feature.

    Returns:
        The numbers.

    Raises:
        InvalidInput: if the table is sparse, empty, or of another shape.
    """
    check_entries("X", X, each=False)
    if sparse.issparse(X):
        raise InvalidInput(_SPARSE)
    shape = shape_of(X)
    if column and len(shape) == 1:
        shape = (*shape, 1)
    if len(shape) != 2:
        raise InvalidInput(_TWO_DIMENSIONS)
    if 0 in shape:
        sanitise_errors(check_array, np.empty(shape), estimator=estimator, input_name="X")  # raises
    if not column:
        sanitise_errors(validate_data, estimator, X, skip_check_array=True)
    return shape


def validate_table(estimator: Any, X: Any, y: Any = "no_validation", *, dates: bool = False, **options: Any) -> Any:
    """X, or (X, y), as scikit-learn validates it; a fault is told in one line that holds no record's value.

    Args:
        estimator: whose input it is; it keeps the number and the names of the features.
        X: (records, features).
        y: (records,); left out for prediction.
        dates: whether dates are categories like others.
        options: of scikit-learn's ``validate_data``; by default float64 and float32 stay, others become float64.

    Returns:
        The validated X, or X and y.
    """
    check_entries("X", X, dates=dates)
    if not (y is None or isinstance(y, str)):
        check_entries("y", y)
    found = sanitise_errors(
        validate_data, estimator, X, y, **{"dtype": [np.float64, np.float32], "order": None, **options}
    )
    _check_sparse(found[0] if isinstance(found, tuple) else found)
    return found


def sanitise_errors(check: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Call a check of scikit-learn's; a fault is told in one line that holds no record's value.

    Args:
        check: ``validate_data`` or ``check_array``.
        *arguments: for it.
        **options: for it.

    Returns:
        What it returns.

    Raises:
        InvalidInput: if shape, type or finiteness do not fit.
        TypeError: if an entry is no number at all, as scikit-learn wants it.
    """
    try:
        # The caller's settings cannot switch this check off, nor make its sums warn about a record.
        with np.errstate(all="ignore"), config_context(assume_finite=False):
            return check(*arguments, **options)
    except (ValueError, TypeError, OverflowError) as error:
        fault = _fault(str(error))
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


_KINDS = (str, bytes, numbers.Real | np.bool_)


def check_distinct(name: str, labels: Sequence[Any], least: int = 1) -> None:
    """Refuse a public list that is too short, or names a label twice.

    Args:
        name: of the list, for messages.
        labels: words, numbers or truth values.
        least: how many there must be, 1 or 2.

    Raises:
        InvalidInput: if there are fewer, some are equal, or one is a list itself.
    """
    try:
        distinct = len(set(labels))
    except TypeError:
        raise InvalidInput(f"{name} must hold words or numbers, not lists of them") from None
    if distinct != len(labels) or distinct < least:
        few = "two different labels" if least == 2 else "one label"
        raise InvalidInput(f"{name} must list at least {few}, each once")


def mixed_labels(name: str) -> InvalidInput:
    """The error about a list of several kinds of labels."""
    return InvalidInput(f"{name} must hold labels of one kind: all words, all numbers, or all truth values")


def encode_labels(stated: Any, y: Any) -> tuple[Any, tuple[str, ...], NDArray[np.intp]]:
    """The classes, sorted; what the certificate must say about them; and which class each label is.

    Args:
        stated: the labels that may occur, or None.
        y: the labels of the records, one-dimensional.

    Returns:
        Classes, marks, and numbers from 0.
    """
    y = labels_of(y)
    classes, marks = class_list(stated, y)
    return classes, marks, class_numbers(classes, y)


def class_list(stated: Any, y: Any) -> tuple[Any, tuple[str, ...]]:
    """The classes, sorted, and what the certificate must say about them.

    Args:
        stated: the labels that may occur, or None.
        y: the labels of the records.

    Returns:
        Classes and marks.

    Raises:
        InvalidInput: if there are fewer than two, some are listed twice, or they are of several kinds.
    """
    if stated is not None:
        given = _listed(stated)
        return np.unique(labels_of(given, "classes")), ()
    classes = np.unique(y)
    if classes.size < 2:
        raise InvalidInput("y holds one class only: pass classes=[…], the labels that may occur, which are public")
    return classes, ("declared: the set of classes is public (it was read off the data)",)


def _listed(stated: Any) -> Any:
    """As an array; refuses what numpy would not convert, or would turn into something else (0 into "0")."""
    check_entries("classes", stated, dates=True)
    if isinstance(stated, Set | Mapping):
        raise InvalidInput("classes is a set, which has no order: pass a list, e.g. classes=[0, 1]")
    try:
        labels = np.asarray(stated, dtype=object)
    except ValueError:  # tables of several shapes
        labels = np.empty(0, object)
    labels = labels if labels.ndim == 1 else np.empty(0, object)
    if not any(all(isinstance(label, kind) for label in labels) for kind in _KINDS):
        raise mixed_labels("classes")
    check_distinct("classes", labels.tolist(), 2)
    return np.asarray(stated)


def class_numbers(classes: Any, y: Any) -> NDArray[np.intp]:
    """Which class each label is.

    Args:
        classes: sorted.
        y: labels.

    Returns:
        Numbers from 0.

    Raises:
        InvalidInput: if a label is not in classes.
    """
    if (classes.dtype.kind in "biuf") != (y.dtype.kind in "biuf"):
        raise InvalidInput("y and classes must hold labels of one kind, numbers or strings: convert one of them")
    index = np.minimum(np.searchsorted(classes, y), len(classes) - 1)
    if (classes[index] != y).any():
        raise InvalidInput("y holds a label that is not in classes: list every label that may occur")
    return np.asarray(index)
