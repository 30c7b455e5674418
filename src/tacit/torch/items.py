"""Items of a dataset as tensors: tuples, numbers, dicts and dataclasses of numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from tacit.errors import InvalidInput
from tacit.inputs.tables import check_entries
from tacit.torch.objective import Record

__all__ = ["Collate", "Item", "Names", "as_named", "form_of", "item_of", "stacked", "tensor_of"]

Names = tuple[str, ...] | None
"""The names of a record's parts, sorted; None if they have places only."""
Collate = Callable[[list[Any]], Any]


class Item(NamedTuple):
    """One record, or several.

    Attributes:
        names: of the parts.
        parts: tensors with a leading axis.
    """

    names: Names
    parts: Record


def as_named(value: object) -> Mapping[str, Any] | None:
    """The entries of a dict-like object or a dataclass, None for anything else; entries that are None are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type | Mapping):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if not isinstance(value, Mapping):
        return None
    return {str(name): part for name, part in value.items() if part is not None}


def item_of(value: object, collate: Collate | None = None) -> Item:
    """One item of a dataset as tensors with a leading axis of one.

    Args:
        value: what the dataset returned.
        collate: makes a batch of a list of items; it is called with this one alone.

    Returns:
        The tensors, with their names if the item (or the batch) is a dict or a dataclass.

    Raises:
        InvalidInput: if it holds something other than numbers.
    """
    if collate is not None:
        return _batch(collate([value]))
    named = as_named(value)
    if named is not None:
        names = tuple(sorted(named))
        return Item(names, tuple(_entry(name, named[name])[None] for name in names))
    check_entries("data", value, each=False)
    try:
        batch = default_collate([value])
    except TypeError:
        batch = None
    parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
    if not parts or not all(isinstance(part, Tensor) for part in parts):
        raise InvalidInput(
            "the dataset's items must be tuples of tensors or numbers (inputs…, target), or dicts of them"
        )
    return Item(None, parts)


def _batch(batch: object) -> Item:
    """What a collate function made of one item."""
    named = as_named(batch)
    if named is not None:
        names = tuple(sorted(named))
        found = Item(names, tuple(_entry(name, named[name]) for name in names))
    else:
        parts = tuple(batch) if isinstance(batch, tuple | list) else (batch,)
        found = Item(None, tuple(_entry("the batch", part) for part in parts))
    if not found.parts or any(part.ndim == 0 or len(part) != 1 for part in found.parts):
        raise InvalidInput("collate_fn must keep a leading axis of records: it is called with a list of one item")
    return found


def _entry(name: str, part: object) -> Tensor:
    """A tensor of one entry of a dict."""
    try:
        return tensor_of(part)
    except InvalidInput:
        raise InvalidInput(
            f"entry {name!r} of the dataset's items does not hold numbers: tokenise or encode it before training, and "
            "remove what the model does not read"
        ) from None


def form_of(item: Item) -> object:
    """Names, types and shapes of the parts of an item."""
    return item.names, tuple((part.dtype, part.shape) for part in item.parts)


def stacked(items: Sequence[Item]) -> Record:
    """One tensor per part of items of one form.

    Args:
        items: at least one.

    Returns:
        Tensors with one row per item.

    Raises:
        InvalidInput: if the forms differ.
    """
    if len(set(map(form_of, items))) > 1:
        raise InvalidInput("the dataset's items differ in shape or type: make them alike (padding, one dtype)")
    return tuple(torch.cat(parts) for parts in zip(*(item.parts for item in items), strict=True))


def tensor_of(part: object) -> Tensor:
    """A tensor of numbers; arrays of floats become the default type, as PyTorch's models expect.

    Args:
        part: a tensor, an array or nested lists.

    Returns:
        The tensor.

    Raises:
        InvalidInput: if it does not hold numbers, or rows differ in length.
    """
    if isinstance(part, Tensor):
        return part
    check_entries("data", part, each=False)
    try:
        array = np.asarray(part)
    except Exception:  # its message may contain a value of a record
        array = np.empty(0, object)
    if array.dtype.kind not in "biuf":
        raise InvalidInput(
            "data must hold numbers, one row of the same shape per record: encode text and categories before training, "
            "and pass a tuple (inputs…, target) of tensors, a dict of tensors, or a list of such tuples or dicts, one "
            "per record"
        )
    out = torch.from_numpy(np.array(array, order="C"))  # a copy, because arrays may be read-only
    return out.to(torch.get_default_dtype()) if array.dtype.kind == "f" else out
