"""Where randomness comes from: AES in counter mode, keyed by the operating system, one stream per purpose and step.

A stream is named, not shared: ``streams.at("noise", step=7)`` always yields the same numbers, and no other name
yields them. The channel puts what the noise will hide into the name of its stream, so a resumed run repeats an
interrupted step exactly, and noise never hides two different values. Keys are secret: they are not pickled, not
copied, and a forked child gets fresh ones.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import secrets
import weakref
from typing import NoReturn

import numpy as np
import randomgen

from tacit.errors import InvalidInput

__all__ = ["SEEDED", "Streams"]

SEEDED = "not private: seeded"
"""The mark of a run whose noise anybody who knows the seed can subtract."""

_alive: weakref.WeakSet[Streams] = weakref.WeakSet()


class Streams:
    """Independent generators by purpose and step.

    Args:
        seed: None for the operating system's entropy; an integer makes the run repeatable and *not private*.
        key: a secret of 32 bytes from a checkpoint, instead of a seed.
    """

    def __init__(self, seed: int | None = None, *, key: bytes | None = None) -> None:
        if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0):
            raise InvalidInput(f"seed must be None or a non-negative integer, got {seed!r}")
        if key is not None and (seed is not None or len(key) != 32):
            raise InvalidInput("key must be the 32 bytes of a checkpoint, without a seed")
        self.seeded = seed is not None
        if key is None:
            key = secrets.token_bytes(32) if seed is None else hashlib.blake2b(b"%d" % seed, digest_size=32).digest()
        self._key = key
        self._children = itertools.count()  # next() is atomic: threads that share a family get children of their own
        _alive.add(self)

    def child(self, purpose: str) -> Streams:
        """A family of streams of its own: another one at every call, also for the same purpose."""
        name = f"child/{next(self._children)}/{purpose}".encode()
        out = Streams(key=hashlib.blake2b(name, digest_size=32, key=self._key).digest())
        out.seeded = self.seeded
        return out

    def at(self, purpose: str, step: int = 0, content: bytes = b"") -> np.random.Generator:
        """The generator of this purpose, step and content; asking again starts it again."""
        name = f"at/{purpose}/{step}/".encode() + content
        key = hashlib.blake2b(name, digest_size=16, key=self._key).digest()
        return np.random.Generator(randomgen.AESCounter(key=int.from_bytes(key, "little")))

    def key(self, purpose: str, step: int = 0, content: bytes = b"") -> bytes:
        """The key of a generator elsewhere (AES-256 in counter mode), 32 bytes: another one for each name."""
        name = f"key/{purpose}/{step}/".encode() + content
        return hashlib.blake2b(name, digest_size=32, key=self._key).digest()

    def secret_key(self) -> bytes:
        """For a checkpoint only, which must then be as secret as the data (mode 0600)."""
        return self._key

    def _rekey(self) -> None:
        self._key = secrets.token_bytes(32)
        self.seeded = False

    def __reduce__(self) -> NoReturn:
        raise TypeError("noise streams are not pickled or copied: their key would let a reader subtract the noise")

    def __repr__(self) -> str:
        return f"Streams({'seeded' if self.seeded else 'private'})"


def _rekey_all() -> None:
    # Parent and child would otherwise draw the same noise for different data.
    for streams in list(_alive):
        streams._rekey()


os.register_at_fork(after_in_child=_rekey_all)
