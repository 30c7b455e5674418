"""Public records: the user's data as tensors with one leading axis, validated once."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset, default_collate

from tacit.errors import InvalidInput
from tacit.torch.objective import Objective, Record, first_line

__all__ = ["public_records"]


def public_records(data: object, objective: Objective) -> tuple[Record, Tensor | None]:
    """Inputs and labels as tensors on the model's device; floating inputs get the dtype of its parameters.

    Args:
        data: a tensor or array of inputs; a tuple (inputs…, labels), where labels may be None; or a ``Dataset`` with a
            length, whose items are one of these two.
        objective: gives device and type of the parameters.

    Returns:
        The inputs, and the labels or None.

    Raises:
        InvalidInput: if there are no records, the lengths differ, or a number is not finite.
    """
    parts = _parts(data)
    inputs, labels = (parts, None) if len(parts) == 1 else (parts[:-1], parts[-1])
    like = next(iter(objective.trainable().values()))
    tensors = [_tensor(part, f"inputs[{i}]" if len(inputs) > 1 else "inputs") for i, part in enumerate(inputs)]
    target = None if labels is None else _tensor(labels, "labels").to(like.device)
    lengths = {len(t) for t in [*tensors, *([] if target is None else [target])]}
    if len(lengths) != 1:
        raise InvalidInput(
            f"the parts of data hold {sorted(lengths)} records: they must have one leading axis in common"
        )
    if lengths == {0}:
        raise InvalidInput("data holds no record: the curvature needs at least one public record")
    placed = tuple(t.to(like.device, like.dtype) if t.is_floating_point() else t.to(like.device) for t in tensors)
    return placed, target


def _parts(data: object) -> list[Any]:
    if isinstance(data, Tensor | np.ndarray):
        return [data]
    if isinstance(data, tuple | list) and data and all(isinstance(x, Tensor | np.ndarray | None) for x in data):
        if any(x is None for x in data[:-1]):
            raise InvalidInput("only the last part of data, the labels, may be None")
        return list(data)
    if isinstance(data, Dataset):
        if not hasattr(data, "__len__"):
            raise InvalidInput("data has no length: pass a map-style Dataset, or collect the records into tensors")
        if len(data) == 0:
            raise InvalidInput("data holds no record: the curvature needs at least one public record")
        items = default_collate([data[i] for i in range(len(data))])
        return list(items) if isinstance(items, tuple | list) else [items]
    raise InvalidInput(
        f"data must be a tensor or array of inputs, a tuple (inputs…, labels) or a Dataset, got {type(data).__name__}"
    )


def _tensor(part: object, name: str) -> Tensor:
    try:
        tensor = torch.as_tensor(cast(Any, part)).detach()
    except (TypeError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"{name} is not an array of numbers ({first_line(error)})") from None
    if tensor.dim() == 0:
        raise InvalidInput(f"{name} is a single number: it must have one leading axis of records")
    if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
        bad = int((~torch.isfinite(tensor)).reshape(len(tensor), -1).any(1).sum())
        raise InvalidInput(f"{name} holds NaN or infinite numbers in {bad} records: remove or replace them")
    return tensor
