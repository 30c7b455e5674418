"""Sweeps: thousands of adaptive releases in one compiled call, built of two functions that are tested alone.

A coordinate step reads one column; leaving compiled code for each of them would cost more than the step. A sweep
therefore takes the noise of all its releases at once and alternates

    noisy = clipped_sum(state, k) + noise[k],     state = apply(state, noisy, k)

inside. ``clipped_sum`` reads records and is subject to record-and-replay; ``apply`` is post-processing of ``noisy``;
``run`` fuses them and is tested to do the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from tacit.errors import InvalidInput
from tacit.run.clipped_sum import Bounded

__all__ = ["SWEEPS", "Sweep", "register_sweep"]

Array = NDArray[np.float64]


class Sweep(Bounded, ABC):
    """A fixed number of adaptive releases, each a sum over all records of contributions of norm at most ``bound``.

    Attributes:
        sizes: how many numbers each release has.
    """

    name: ClassVar[str]
    sizes: NDArray[np.int64]

    @abstractmethod
    def clipped_sum(self, state: Any, k: int) -> Array:
        """The k-th sum at ``state``, without noise: ``sizes[k]`` numbers."""

    @abstractmethod
    def apply(self, state: Any, noisy: Array, k: int) -> Any:
        """The next state; it reads records only to keep predictions up to date with the released part."""

    @abstractmethod
    def run(self, state: Any, noise: Array) -> Any:
        """Every release: the same as alternating ``clipped_sum`` and ``apply``, fused."""

    @abstractmethod
    def fingerprint(self, state: Any) -> bytes:
        """A digest of all that the sums can depend on besides the noise: records, settings and start."""

    @classmethod
    @abstractmethod
    def example(cls, rng: np.random.Generator, records: int) -> tuple[Self, Self, Any, Any]:
        """Random neighbours that differ in record 0, and the same public state on either side."""


SWEEPS: dict[str, type[Sweep]] = {}
"""Every registered sweep, by name."""

S = TypeVar("S", bound=type[Sweep])


def register_sweep(name: str) -> Callable[[S], S]:
    """Class decorator: add a sweep to the trusted code, and with it to the record-and-replay test."""

    def add(cls: S) -> S:
        if name in SWEEPS:
            raise InvalidInput(f"a sweep named {name!r} is registered already")
        cls.name = name
        SWEEPS[name] = cls
        return cls

    return add
