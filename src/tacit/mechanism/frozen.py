"""Arrays that may stand in a proof: read-only, compared by content, hashable, cheap when constant."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tacit import _validate
from tacit._codec import leaf
from tacit.errors import InvalidInput

__all__ = ["FrozenArray", "Schedule"]

Array = NDArray[np.float64]


def _finite_array(name: str, values: object) -> Array:
    out = _validate.real_array(name, values)
    if not np.isfinite(out).all():
        raise InvalidInput(f"{name} holds NaN or infinite values: pass finite numbers")
    return out


def _run_lengths(name: str, counts: object) -> NDArray[np.int64]:
    lengths = _finite_array(name, counts).ravel()
    if (lengths < 1).any() or (lengths != np.floor(lengths)).any() or lengths.sum() > 1e12:
        raise InvalidInput(f"{name} has runs of impossible lengths: give positive integers")
    return lengths.astype(np.int64)


MAX_STEPS = 50_000_000
"""More steps than this are refused where each of them must be looked at."""


class _ByContent:
    """Equality and hash from a digest of the content, computed once."""

    __slots__ = ("_digest",)
    _digest: bytes

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and self._digest == other._digest

    def __hash__(self) -> int:
        return hash(self._digest)

    def _seal(self, *parts: NDArray[Any]) -> None:
        h = hashlib.blake2b(digest_size=16)
        for part in parts:
            part.setflags(write=False)
            h.update(str(part.shape).encode())
            h.update((part + 0.0).tobytes())  # −0.0 and 0.0 are the same number
        object.__setattr__(self, "_digest", h.digest())

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is read-only")


@leaf("array")
class FrozenArray(_ByContent):
    """A finite float64 array, read-only and hashable (matrices of a mechanism, e.g. a strategy C)."""

    __slots__ = ("_values",)
    _values: Array

    def __init__(self, values: ArrayLike, *, name: str = "array") -> None:
        out = _finite_array(name, values)
        object.__setattr__(self, "_values", out)
        self._seal(out)

    @property
    def values(self) -> Array:
        """The read-only array."""
        return self._values

    def to_json(self) -> Any:
        """Nested lists of plain numbers (floats round-trip exactly through JSON)."""
        return self._values.tolist()

    @classmethod
    def from_json(cls, data: Any) -> FrozenArray:
        """The inverse of ``to_json``."""
        return cls(data)

    def __reduce__(self) -> tuple[Any, ...]:
        return (FrozenArray, (np.array(self._values),))

    def __repr__(self) -> str:
        return f"FrozenArray(shape={self._values.shape})"


@leaf("schedule")
class Schedule(_ByContent):
    """One non-negative number per step, stored as runs: a constant over 10⁷ steps is one run.

    Args:
        values: the value of each run.
        counts: the length of each run (omitted: each value stands for one step).

    >>> Schedule.constant(0.5, 10_000_000)
    Schedule(0.5 × 10000000)
    """

    __slots__ = ("_counts", "_ends", "_length", "_values")
    _values: Array
    _counts: NDArray[np.int64]
    _ends: NDArray[np.int64]
    _length: int

    def __init__(self, values: ArrayLike, counts: ArrayLike | None = None, *, name: str = "schedule") -> None:
        v = np.atleast_1d(_finite_array(name, values)).ravel()
        n = np.ones(v.size, np.int64) if counts is None else _run_lengths(name, counts)
        if v.size == 0 or v.size != n.size:
            raise InvalidInput(f"{name} is empty or its runs do not match: give at least one step")
        if (v < 0).any():
            raise InvalidInput(f"{name} must not be negative, got {v[v < 0][0]!r}")
        starts = np.flatnonzero(np.concatenate([[True], v[1:] != v[:-1]]))
        v, n = v[starts], np.add.reduceat(n, starts)
        object.__setattr__(self, "_values", v)
        object.__setattr__(self, "_counts", n)
        ends = np.cumsum(n)
        ends.setflags(write=False)
        object.__setattr__(self, "_ends", ends)
        object.__setattr__(self, "_length", int(n.sum()))
        self._seal(v, n)

    @classmethod
    def constant(cls, value: float, length: int) -> Schedule:
        """The same value at every step."""
        return cls([value], [length])

    @classmethod
    def of(cls, value: object, length: int, *, name: str = "schedule") -> Schedule:
        """A schedule of ``length`` steps from a number, an array of that length, or a schedule.

        Args:
            value: what to hold.
            length: the number of steps.
            name: for the error message.

        Returns:
            The schedule.

        Raises:
            InvalidInput: if the length does not fit, or a value is negative, NaN or infinite.
        """
        if isinstance(value, Schedule):
            out = value
        else:
            v = _finite_array(name, value)
            out = cls(v, [length], name=name) if v.ndim == 0 else cls(v, name=name)
        if len(out) != length:
            raise InvalidInput(f"{name} has {len(out)} values for {length} steps: give one, or one per step")
        return out

    def __len__(self) -> int:
        return self._length

    @property
    def is_constant(self) -> bool:
        """Whether every step has the same value."""
        return self._values.size == 1

    @property
    def runs(self) -> tuple[Array, NDArray[np.int64]]:
        """Values and lengths of the runs (read-only)."""
        return self._values, self._counts

    @property
    def max(self) -> float:
        """The largest value."""
        return float(self._values.max())

    @property
    def min(self) -> float:
        """The smallest value."""
        return float(self._values.min())

    def to_array(self) -> Array:
        """One value per step, as a new array."""
        if self._length > MAX_STEPS:
            raise InvalidInput(f"{self._length} steps cannot be laid out in memory: stay below {MAX_STEPS:.0e}")
        return np.repeat(self._values, self._counts)

    def __getitem__(self, step: int) -> float:
        if not 0 <= step < self._length:
            raise IndexError(f"step {step} of {self._length}")
        if self.is_constant:
            return float(self._values[0])
        return float(self._values[int(self._ends.searchsorted(step, side="right"))])

    def sum_of_squares(self) -> float:
        """Σ value² over all steps, correctly rounded over the runs."""
        return math.fsum(float(v) * float(v) * int(n) for v, n in zip(self._values, self._counts, strict=True))

    def scaled(self, factor: float) -> Schedule:
        """Every value times ``factor``."""
        return Schedule(self._values * factor, self._counts)

    def to_json(self) -> dict[str, list[float]]:
        """Runs as plain numbers (floats round-trip exactly through JSON)."""
        return {"values": self._values.tolist(), "counts": self._counts.tolist()}

    @classmethod
    def from_json(cls, data: dict[str, Iterable[float]]) -> Schedule:
        """The inverse of ``to_json``."""
        return cls(list(data["values"]), list(data["counts"]))

    @staticmethod
    def json_size(data: dict[str, Iterable[float]]) -> int:
        """The number of steps that the runs stand for."""
        return sum(max(math.ceil(count), 1) for count in data["counts"])

    def __reduce__(self) -> tuple[Any, ...]:
        return (Schedule, (np.array(self._values), np.array(self._counts)))

    def __repr__(self) -> str:
        if self.is_constant:
            return f"Schedule({self._values[0]:.6g} × {self._length})"
        return f"Schedule({self.min:.6g} … {self.max:.6g}, {self._length} steps)"
