"""The classes of a classifier: public by parameter or by declaration."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput
from tacit.estimators._schema import labels_of

__all__ = ["class_list", "class_numbers"]


def class_list(stated: Any, y: Any) -> tuple[Any, tuple[str, ...]]:
    """The classes, sorted, and what the certificate must say about them.

    Args:
        stated: the labels that may occur, or None.
        y: the labels of the records.

    Returns:
        Classes and marks.

    Raises:
        InvalidInput: if there are fewer than two, or some are listed twice.
    """
    if stated is not None:
        given = np.asarray(stated)
        if given.ndim != 1 or len(given) < 2 or len(set(given.tolist())) < len(given):
            raise InvalidInput("classes must list at least two different labels, e.g. classes=[0, 1]")
        return np.unique(labels_of(given, "classes")), ()
    classes = np.unique(y)
    if classes.size < 2:
        raise InvalidInput("y holds one class only: pass classes=[…], the labels that may occur, which are public")
    return classes, ("declared: the set of classes is public (it was read off the data)",)


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
