"""The classes of a classifier: public by parameter or by declaration."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput
from tacit.inputs.entries import check_entries
from tacit.inputs.tables import labels_of

__all__ = ["class_list", "class_numbers"]

_KINDS = (str, bytes, numbers.Real | np.bool_)
_FEW = "classes must list at least two different labels, e.g. classes=[0, 1]"


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
        if len(set(given.tolist())) < len(given):
            raise InvalidInput(_FEW)
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
    if labels.ndim != 1 or len(labels) < 2:
        raise InvalidInput(_FEW)
    if not any(all(isinstance(label, kind) for label in labels) for kind in _KINDS):
        raise InvalidInput("classes must hold labels of one kind: pass all of them as numbers, or all as strings")
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
