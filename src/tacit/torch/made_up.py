"""Made-up records: public stand-ins of the records' shapes and types, for dry runs and for places without a record."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from tacit.torch.objective import Record

__all__ = ["FILLS", "zeros", "Fill", "made_up"]

Fill = Callable[[Tensor], float]


def zeros(part: Tensor) -> float:
    """Zero, a valid index and label."""
    return 0


def _one(part: Tensor) -> float:
    return 1


def _share(part: Tensor) -> float:
    return 1 / max(part.shape[-1], 1) if part.is_floating_point() and part.ndim > 1 else 1


FILLS: tuple[Fill, ...] = (zeros, _one, _share)
"""Zeros; then, for models that look at values, ones, and shares of one."""


def made_up(like: Record, count: int, fill: Fill) -> Record:
    """Made-up records.

    Args:
        like: tensors whose shapes (without the leading axis) and types are taken.
        count: how many.
        fill: the value of each part.

    Returns:
        One tensor per part.
    """
    return tuple(part.new_full((count, *part.shape[1:]), fill(part)) for part in like)
