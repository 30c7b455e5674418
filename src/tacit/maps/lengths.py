"""The lengths of rows, kept within a bound in floating point as well as on paper."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tacit import _validate
from tacit.errors import InvalidInput
from tacit.kernels.rows import row_squares

__all__ = ["FAR", "margin", "public_norm", "relative", "scaled", "scaled_down"]

FAR = 1e12
"""Rows beyond are scaled_down to it before a product, which must not overflow."""


def public_norm(**named: object) -> float:
    """A bound on norms that float32 holds with room to spare: from 1e-30 to 1e30.

    Args:
        **named: one name with its value.

    Returns:
        The bound.

    Raises:
        InvalidInput: if it is anything else.
    """
    ((name, value),) = named.items()
    out = _validate.positive(**named)
    if not 1e-30 <= out <= 1e30:
        raise InvalidInput(f"{name} must lie between 1e-30 and 1e30, got {value!r}: scale your units")
    return out


def margin(dtype: Any, width: int) -> float:
    """The relative error of a computed norm, and of storing a scaled row, from above.

    Squares are summed in float64, where any order of ``width`` terms is off by at most width·ε/2.

    Args:
        dtype: of the stored rows.
        width: entries of a row.

    Returns:
        The margin.
    """
    return float(4 * np.finfo(dtype).eps + (width + 4) * np.finfo(np.float64).eps)


def relative(x: NDArray[Any]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Write x = top·y with the entries of y in [−1, 1]: the largest one is ±1, or the row is zero.

    Args:
        x: (n, p), finite.

    Returns:
        y (n, p) and top (n, 1).
    """
    top = np.abs(x).max(axis=1, keepdims=True).astype(np.float64)
    return np.divide(x, np.where(top > 0, top, 1.0), dtype=np.float64), top


def scaled_down(x: NDArray[Any], bound: float) -> NDArray[Any]:
    """Rows longer than ``bound`` are scaled down to it; others are returned to the bit.

    Formal guarantee: the exact norm of every row of the result is at most ``bound``; doing it twice changes nothing.

    Args:
        x: (n, p), finite.
        bound: the norm.

    Returns:
        (n, p), of the same type.
    """
    y, top = relative(x)
    length = np.sqrt(row_squares(y))[:, None]
    slack = margin(x.dtype, x.shape[1])
    with np.errstate(over="ignore"):
        too_long = top * length > bound * (1 - slack)
    if not too_long.any():
        return x
    factor = bound * (1 - 2 * slack) / np.where(too_long, length, 1.0)
    return np.where(too_long, y * factor, x).astype(x.dtype)


def scaled(x: NDArray[Any], norm: float) -> NDArray[Any]:
    """Every row but a zero one scaled up or down to ``norm``, less a margin for rounding.

    Args:
        x: (n, p), finite.
        norm: the norm.

    Returns:
        (n, p), of the same type.
    """
    y, top = relative(x)
    length = np.sqrt(row_squares(y))[:, None]
    goal = norm * (1 - 2 * margin(x.dtype, x.shape[1]))
    return np.asarray(y * (goal / np.where(top > 0, length, 1.0)), dtype=x.dtype)
