"""Sweeps: thousands of adaptive releases in one compiled call, built of two functions that are tested alone.

A coordinate step reads one column; leaving compiled code for each of them would cost more than the step. A sweep
therefore takes the noise of all its releases at once and alternates

    noisy = clipped_sum(rows, state, k) + noise[k],     state = apply(rows, state, noisy, k)

inside. ``clipped_sum`` reads records and is subject to record-and-replay; ``apply`` is post-processing of ``noisy``;
``run`` fuses them and is tested to do the same. In exact arithmetic all releases share one public grid; sums and noise
are int64 in its unit g, ``noisy`` is g·(q + R), and ``run`` is tested to do the same to the bit. A state holds values
per record (predictions, kept up to date with the released coefficients), so it stays inside: a session hands out
``released(state)`` only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from tacit._registry import drop_inherited
from tacit.errors import MechanismMismatch
from tacit.records import Rows
from tacit.release.query import Bounded, Example, Grid, Sums

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
        drop_inherited(cls, Sweep, "clipped_sum", ("grid",))  # another sum need not be one of integers

    def grid(self, sigma: float) -> Grid:
        """The lattice of a sweep whose largest noise has deviation σ; a sweep with integer sums overrides this.

        Raises:
            MechanismMismatch: if it has none.
        """
        raise MechanismMismatch(f"{type(self).__name__} has no integer sums: use arithmetic='float'")

    @abstractmethod
    def start(self, rows: Rows, w: Array) -> Any:
        """The state at public (or released) coefficients; what it keeps of a record is that record's, to the bit."""

    @abstractmethod
    def clipped_sum(self, rows: Rows, state: Any, k: int, grid: Grid | None = None) -> Sums:
        """The k-th sum at ``state``, without noise: ``sizes[k]`` numbers, int64 in units of a grid if there is one.

        ``rows.weights`` says what each row counts: it is multiplied by it once it is clipped, and before it is rounded.
        """

    @abstractmethod
    def apply(self, rows: Rows, state: Any, noisy: Array, k: int) -> Any:
        """The next state; it reads records only to keep predictions up to date with the released part."""

    def run(self, rows: Rows, state: Any, noise: Sums, grid: Grid | None = None) -> Any:
        """Every release, ``clipped_sum`` and ``apply`` in turn; an override fuses them, to the same result.

        Args:
            rows: all records.
            state: where the sweep starts.
            noise: of all releases, in units of the grid.
            grid: of an exact sweep.

        Returns:
            The last state.
        """
        first = 0
        for k, size in enumerate(self.sizes):
            noisy = self.clipped_sum(rows, state, k, grid) + noise[first : first + size]
            state = self.apply(rows, state, noisy if grid is None else noisy * grid.unit, k)
            first += size
        return state

    @abstractmethod
    def released(self, state: Any) -> Array:
        """What of a state is a function of releases alone: the coefficients."""

    @abstractmethod
    def fingerprint(self, rows: Rows, state: Any, key: bytes) -> bytes:
        """A digest, keyed by 32 secret bytes, of all that the sums can depend on besides the noise.

        That is: the records in any order, the settings, and the start.
        """

    @classmethod
    @abstractmethod
    def example(cls, rng: np.random.Generator, records: int) -> Example:
        """Random neighbours that differ in record 0, and public coefficients to start from."""
