"""One-line validation at the boundary: ``positive(noise_multiplier=σ)`` returns a float or raises."""

from __future__ import annotations

import math
import numbers

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput

__all__ = [
    "delta",
    "finite",
    "index",
    "nonnegative",
    "nonnegative_array",
    "one_of",
    "positive",
    "positive_int",
    "probability",
    "real",
    "real_array",
]


def _single(named: dict[str, object]) -> tuple[str, object]:
    ((name, value),) = named.items()
    return name, value


def real(**named: object) -> float:
    """Any real number, infinities included, as a float (never NaN, never a bool or a string)."""
    name, value = _single(named)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidInput(f"{name} must be a real number, got {value!r}: pass a float")
    out = _as_float(name, value)
    if math.isnan(out):
        raise InvalidInput(f"{name} is NaN: pass a number")
    return out


def _as_float(name: str, value: numbers.Real) -> float:
    try:
        return float(value)
    except OverflowError:
        raise InvalidInput(f"{name} is too large for a float: pass a smaller number") from None


def finite(**named: object) -> float:
    """A finite real number."""
    name, value = _single(named)
    out = real(**named)
    if math.isinf(out):
        raise InvalidInput(f"{name} must be finite, got {value!r}")
    return out


def positive(**named: object) -> float:
    """A finite real number above zero."""
    name, value = _single(named)
    out = finite(**named)
    if out <= 0:
        raise InvalidInput(f"{name} must be positive, got {value!r}")
    return out


def nonnegative(**named: object) -> float:
    """A finite real number, zero or above."""
    name, value = _single(named)
    out = finite(**named)
    if out < 0:
        raise InvalidInput(f"{name} must not be negative, got {value!r}")
    return out


def probability(*, open_left: bool = True, **named: object) -> float:
    """A probability in (0, 1], or in [0, 1] if ``open_left`` is false."""
    name, value = _single(named)
    out = finite(**named)
    if not (0 < out <= 1 or (out == 0 and not open_left)):
        raise InvalidInput(f"{name} must lie in {'(' if open_left else '['}0, 1], got {value!r}")
    return out


def delta(value: object) -> float:
    """A δ in (0, 1): refused when absent, because a default would be somebody else's promise."""
    if value is None:
        raise InvalidInput("delta is missing: choose it before the data is read; 1/n² is a common choice")
    out = finite(delta=value)
    if not 0 < out < 1:
        raise InvalidInput(f"delta must lie strictly between 0 and 1, got {value!r}; 1/n² is a common choice")
    return out


def positive_int(**named: object) -> int:
    """An integer of at least one (integral floats such as 1e3 are accepted)."""
    name, value = _single(named)
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise InvalidInput(f"{name} must be a positive integer, got {value!r}")
    as_float = _as_float(name, value)
    if not math.isfinite(as_float) or as_float != int(as_float) or as_float < 1:
        raise InvalidInput(f"{name} must be a positive integer, got {value!r}")
    return int(as_float)


def index(length: int, **named: object) -> int:
    """An integer from 0 to length − 1."""
    name, value = _single(named)
    number = real(**named)
    if not 0 <= number < length or number != math.floor(number):
        raise InvalidInput(f"{name} must be a whole number from 0 to {length - 1}, got {_short(value)}")
    return int(number)


def real_array(name: str, value: object) -> NDArray[np.float64]:
    """A new float64 array from a number, a sequence or an array of real numbers.

    Args:
        name: for the message.
        value: what the caller passed.

    Returns:
        The array, possibly with NaN or infinite entries.

    Raises:
        InvalidInput: if it does not hold real numbers, or is ragged.
    """
    try:
        raw = np.asarray(value)
    except (ValueError, TypeError, OverflowError):
        raw = np.empty(0, object)
    if raw.dtype.kind not in "iuf":
        raise InvalidInput(f"{name} must be a real number or an array of them, got {_short(value)}")
    return np.array(raw, dtype=np.float64, order="C")


def nonnegative_array(name: str, value: object) -> NDArray[np.float64]:
    """As ``real_array``, not empty, finite and without negative entries.

    Args:
        name: for the message.
        value: what the caller passed.

    Returns:
        The array.

    Raises:
        InvalidInput: if an entry is negative, NaN or infinite, or there is none.
    """
    out = real_array(name, value)
    if out.size == 0:
        raise InvalidInput(f"{name} is empty: give at least one value")
    if not np.isfinite(out).all() or (out < 0).any():
        raise InvalidInput(f"{name} must hold finite non-negative numbers")
    return out


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def one_of(options: tuple[str, ...], **named: object) -> str:
    """One of the listed words."""
    name, value = _single(named)
    if not isinstance(value, str) or value not in options:
        raise InvalidInput(f"{name} must be one of {', '.join(map(repr, options))}, got {value!r}")
    return str(value)
