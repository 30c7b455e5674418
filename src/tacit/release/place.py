"""Sums that stay where they are computed: noise is added to them in place, and nothing of their size is copied."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tacit.errors import MechanismMismatch
from tacit.mechanism import Arithmetic, Mechanism
from tacit.noise import StreamingNoise, StreamState
from tacit.noise.streams import Streams
from tacit.release.query import Bounded, Members

__all__ = ["Place", "ReleasesInPlace", "RowStore"]

Array = NDArray[np.float64]


class RowStore(Protocol):
    """Earlier rows of correlated noise, beside the sums that they hide: **as secret as the data**."""

    def array(self) -> NDArray[Any]:
        """A copy, (slots, size), for a checkpoint."""


class Place(Protocol):
    """One sum in the memory of some device, which learns nothing of how it is hidden."""

    @property
    def size(self) -> int:
        """How many numbers it has."""

    def feed(self, digest: Any) -> None:
        """Pass the bytes of the sum to ``digest.update``."""

    def store(self, slots: int, rows: NDArray[Any] | None) -> RowStore:
        """Room for earlier rows of noise: those of a checkpoint, or zeros."""

    def add_noise(
        self, sigma: float, key: bytes, rows: RowStore | None, target: int, coefficients: NDArray[np.float64]
    ) -> None:
        """Add σ times a row of noise.

        Args:
            sigma: σ.
            key: 32 secret bytes, of this row only.
            rows: earlier rows; None for independent noise.
            target: the slot of ``rows`` that the new row takes.
            coefficients: of fresh normal noise, then of the row before, the row before that, and so on.
        """


class ReleasesInPlace:
    """The part of a channel that releases sums in place."""

    mechanism: Mechanism
    replicas: int
    _lock: Any
    _streams: Streams
    _step: int
    _release: int
    _history: bytes
    _key_is_shared: bool
    _correlated: StreamingNoise | None
    _rows: StreamState | None
    _store: RowStore | None
    noise_std: Callable[..., float]
    _current_members: Callable[[], Members]
    _check_stream: Callable[[Bounded, int, str], None]
    _go_on: Callable[[int, bytes], None]

    def release_in_place(self, query: Bounded, place: Place, total: Callable[[Members], None]) -> None:
        """The next certified release, in a sum that stays where it is: members are added, then noise.

        The noise is named after the sum, and everything released before, only where the key can be known elsewhere
        (a seed, a checkpoint): otherwise a release is made once, and its number is name enough.

        Args:
            query: its bound sets the noise.
            place: zeros at first, afterwards the release. Whatever is raised, it must not be used then.
            total: adds the contributions of members to the place.

        Raises:
            MechanismMismatch: if the mechanism is exact, or its noise hides sums of another size.
        """
        with self._lock:
            m = self.mechanism
            if m.arithmetic is Arithmetic.EXACT or self.replicas != 1:
                raise MechanismMismatch("sums in place are those of one run in floating point: use release")
            here = self._current_members()
            index, sigma = self._step * m.releases + self._release, self.noise_std(query)
            with np.errstate(all="ignore"):  # a caller's errstate("raise") would tell about a record
                total(here)
            self._check_stream(query, place.size, "")
            history = self._named_in_place(place, sigma)
            key = self._streams.key("noise", index, history)
            if self._correlated is None:
                place.add_noise(sigma, key, None, 0, np.ones(1))
            else:
                store, slots = self._stored(place), self._correlated.slots
                place.add_noise(sigma, key, store, index % slots, self._correlated.coefficients(index))
            self._go_on(index + 1, history)

    def _stored(self, place: Place) -> RowStore:
        """Earlier rows beside the sums, those of a checkpoint at first."""
        assert self._correlated is not None
        if self._store is None:
            rows, self._rows = self._rows, None
            self._store = place.store(self._correlated.slots, None if rows is None else rows.rows)
        return self._store

    def _named_in_place(self, place: Place, sigma: float) -> bytes:
        """As ``_named``; without the sum itself where nobody else can have the key."""
        sums = hashlib.sha256(self._history)
        sums.update(repr((sigma, place.size, "in place", self._key_is_shared)).encode())
        if self._key_is_shared:
            place.feed(sums)
        return sums.digest()
