"""Public lists of labels: categories, and the classes of a classifier, by parameter or by declaration."""

from __future__ import annotations

import numbers
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput
from tacit.inputs.tables import check_entries, labels_of

__all__ = ["check_distinct", "class_list", "class_numbers", "encode_labels", "mixed_labels"]

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
