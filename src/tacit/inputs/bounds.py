"""Public bounds, checked: every message about a pair (low, high), once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput

__all__ = ["MAX_BOUND", "bounds_of"]

Array = NDArray[np.float64]
MAX_BOUND = 1e100
"""The largest size of a bound, and of its inverse: beyond it, squares and ratios of scales would overflow."""


def bounds_of(name: str, bounds: object, size: int | None = None) -> tuple[Array, Array]:
    """Lower and upper ends, checked.

    Args:
        name: of the parameter, for messages.
        bounds: (low, high), numbers or one per feature.
        size: the number of features; None for one pair of numbers.

    Returns:
        The ends, one per feature, or of no dimension.

    Raises:
        InvalidInput: if they are missing, malformed, infinite or too far from 1.
    """
    if bounds is None:
        raise InvalidInput(
            f"{name} is missing: state public limits (low, high) of the values; limits read off the data would leak it"
        )
    if size is not None and _looks_like_pairs(bounds, size):
        raise InvalidInput(
            f"{name} looks like one (low, high) pair per feature, but must be one pair of columns (lows, highs): pass "
            f"tuple(np.transpose({name}))"
        )
    held = list(bounds) if isinstance(bounds, tuple | list) or (isinstance(bounds, np.ndarray) and bounds.ndim) else []
    if len(held) != 2:
        raise InvalidInput(f"{name} must be a pair (low, high), got {_kind(bounds)}: {_forms(size)}")
    ends = [_end(f"{name}[{k}]", end) for k, end in enumerate(held)]
    shape = () if size is None else (size,)
    try:
        low, high = (np.broadcast_to(end, shape).astype(np.float64) for end in ends)
    except ValueError:
        shapes = f"shapes {ends[0].shape} and {ends[1].shape}"
        raise InvalidInput(f"{name} do not fit the data, got {shapes}: {_forms(size)}") from None
    _check_range(name, low, high)
    return low, high


def _end(name: str, end: object) -> Array:
    try:
        return _validate.real_array(name, end)
    except InvalidInput:
        kind = np.asarray(end, object).dtype if isinstance(end, list | tuple) else getattr(end, "dtype", None)
        got = f"entries of type {kind}" if kind is not None else repr(end)[:40]
        raise InvalidInput(f"{name} must be a number, or one per feature, got {got}: convert it to float") from None


def _check_range(name: str, low: Array, high: Array) -> None:
    """Finite, ordered, and of a size that leaves room for squares."""
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise InvalidInput(f"{name} must be finite: state public limits of the values")
    if (low > high).any():
        raise InvalidInput(f"{name} must have low ≤ high: put the smaller number first")
    beyond = (np.maximum(-low, high) > MAX_BOUND).any() or (np.maximum(low, -high) > MAX_BOUND).any()
    if beyond or ((low < high) & (high - low < 1 / MAX_BOUND)).any():
        raise InvalidInput(
            f"{name} must lie within ±{MAX_BOUND:g}, and be equal or at least {1 / MAX_BOUND:g} apart: choose other "
            "units"
        )


def _looks_like_pairs(bounds: object, size: int) -> bool:
    """Whether the caller listed (low, high) per feature: the other way round than we read it."""
    try:
        table = np.asarray(bounds, np.float64)
    except (ValueError, TypeError):
        return False
    if table.shape != (size, 2) or not (table[:, 0] < table[:, 1]).all():
        return False
    if size != 2:
        return True
    # For two features both readings have one shape. Two arrays are what we ask for; a list of tuples is how pairs are
    # written; and if our reading fixed a feature or reversed its ends while the other did not, the other was meant.
    if isinstance(bounds, tuple) and all(isinstance(end, np.ndarray) for end in bounds):
        return False
    listed = isinstance(bounds, list) and all(isinstance(pair, tuple) for pair in bounds)
    return listed or not bool((table[0] < table[1]).all())


def _kind(value: object) -> str:
    return f"{len(value)} items" if isinstance(value, tuple | list) else f"an object of type {type(value).__name__}"


def _forms(size: int | None) -> str:
    if size is None:
        return "e.g. (0, 10)"
    return f"e.g. (0, 1), or (lows, highs) with one number per feature ({size}), in the order of the columns"
