"""Sweeps: thousands of adaptive releases in one compiled call, built of two functions that are tested alone.

A coordinate step reads one column; leaving compiled code for each of them would cost more than the step. A sweep
therefore takes the noise of all its releases at once and alternates

    noisy = clipped_sum(rows, state, k) + noise[k],     state = apply(rows, state, noisy, k)

inside. ``clipped_sum`` reads records and is subject to record-and-replay; ``apply`` is post-processing of ``noisy``;
``run`` fuses them and is tested to do the same. A state holds values per record (predictions, kept up to date with the
released coefficients), so it stays inside: a session hands out ``released(state)`` only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit._registry import drop_inherited
from tacit.records import Rows
from tacit.release.query import Bounded, Example

__all__ = ["Sweep"]

Array = NDArray[np.float64]


class Sweep(Bounded, ABC):
    """A fixed number of adaptive releases, each a sum over all records of contributions of norm at most ``bound``.

    Attributes:
        name: in the registry of queries.
        sizes: how many numbers each release has.
    """

    name: ClassVar[str]
    sizes: NDArray[np.int64]

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for method in ("start", "clipped_sum", "apply"):
            drop_inherited(cls, Sweep, method, ("run",))

    @abstractmethod
    def start(self, rows: Rows, w: Array) -> Any:
        """The state at public (or released) coefficients."""

    @abstractmethod
    def clipped_sum(self, rows: Rows, state: Any, k: int) -> Array:
        """The k-th sum at ``state``, without noise: ``sizes[k]`` numbers."""

    @abstractmethod
    def apply(self, rows: Rows, state: Any, noisy: Array, k: int) -> Any:
        """The next state; it reads records only to keep predictions up to date with the released part."""

    def run(self, rows: Rows, state: Any, noise: Array) -> Any:
        """Every release: ``clipped_sum`` and ``apply`` in turn; an override fuses them, to the same result."""
        first = 0
        for k, size in enumerate(self.sizes):
            state = self.apply(rows, state, self.clipped_sum(rows, state, k) + noise[first : first + size], k)
            first += size
        return state

    @abstractmethod
    def released(self, state: Any) -> Array:
        """What of a state is a function of releases alone: the coefficients."""

    @abstractmethod
    def fingerprint(self, rows: Rows, state: Any) -> bytes:
        """A digest of all that the sums can depend on besides the noise: records, settings and start."""

    @classmethod
    @abstractmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Random neighbours that differ in record 0, and public coefficients to start from."""
