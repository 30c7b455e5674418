"""Hashed rows: every entry names the hash of the one before it, the first that of the limits.

Editing, swapping, inserting or deleting a row breaks the chain from there on; cutting its end breaks the
stored head, and the anchors. The hashes are not keyed: they reveal damage and hand edits, not a forger
who recomputes the whole chain together with all anchors.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter

from tacit.ledger.filters import Charge, Limits, Tally

__all__ = ["DamageError", "Entry", "Genesis", "Tip"]


class DamageError(Exception):
    """What is wrong with a file, before its name and the remedy are added (``store`` does)."""


def _sha256(content: tuple[object, ...]) -> str:
    # JSON tells 1 from 1.0 and None from "", and prints floats so that they read back exactly.
    try:
        text = json.dumps(("tacit-ledger-1", *content), separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        raise DamageError("a field has a type that Tacit never writes") from None
    return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class Genesis:
    """The first row: a random name and the limits, under one hash."""

    ledger: str
    created: str
    epsilon: float
    delta: float
    basic_share: float | None
    gaussian_mu: float
    adjacency: str | None
    unit: str | None
    hash: str = ""

    def row(self) -> tuple[object, ...]:
        """Return the fields in the order of the table's columns."""
        return _genesis_row(self)

    def sealed(self) -> Genesis:
        """Return the same row with its hash."""
        return replace(self, hash=_sha256(self.row()[:-1]))

    @property
    def limits(self) -> Limits:
        """The limits as the filters read them."""
        return Limits(self.epsilon, self.delta, self.basic_share, self.gaussian_mu)


@dataclass(frozen=True, slots=True)
class Entry:
    """One reservation, as stored.

    Attributes:
        id: 1, 2, 3, ...
        time: when it was reserved (UTC).
        kind: "gaussian" or "basic": the part of the budget that was charged.
        mu: the charge of a Gaussian entry, else None.
        epsilon: the ε of a basic entry, else None.
        delta: the δ of a basic entry, else None.
        adjacency: the neighbouring relation's name.
        unit: the privacy unit.
        digest: the certificate's digest.
        note: free text.
        nonce: random, so that equal reservations in two copies of a ledger still have different hashes.
        certificate: the certificate's JSON.
        previous: the hash of the entry before, or of the limits.
        hash: sha256 over all of the above.
    """

    id: int
    time: str
    kind: str
    mu: float | None
    epsilon: float | None
    delta: float | None
    adjacency: str
    unit: str
    digest: str
    note: str
    nonce: str = field(repr=False)
    certificate: str = field(repr=False)
    previous: str = field(repr=False)
    hash: str = field(default="", repr=False)

    def row(self) -> tuple[object, ...]:
        """Return the fields in the order of the table's columns."""
        return _entry_row(self)

    def sealed(self) -> Entry:
        """Return the same row with its hash."""
        return replace(self, hash=_sha256(self.row()[:-1]))

    @property
    def charge(self) -> Charge:
        """What the entry costs."""
        return Charge(self.kind, self.mu, self.epsilon, self.delta)

    @property
    def marks(self) -> tuple[str, ...]:
        """What the certificate says besides its numbers, e.g. "not private: seeded"; none of certificates of others."""
        try:
            found = json.loads(self.certificate)["marks"]
        except (ValueError, LookupError, TypeError):
            return ()
        return tuple(map(str, found)) if isinstance(found, list) else ()

    def __str__(self) -> str:
        note = f" {self.note!r}" if self.note else ""
        marks = f" ({'; '.join(self.marks)})" if self.marks else ""
        return f"#{self.id} {self.time} {self.charge} [{self.digest[:12]}]{note}{marks}"


# Written out once: ``astuple`` copies every field and takes longer than the hash.
_genesis_row = attrgetter(*(f.name for f in fields(Genesis)))
_entry_row = attrgetter(*(f.name for f in fields(Entry)))


@dataclass(frozen=True, slots=True)
class Tip:
    """A verified prefix of the chain. Immutable, so that threads and forks may share it without a lock."""

    genesis: Genesis
    count: int
    head: str
    tally: Tally
    adjacency: str | None
    unit: str | None

    @classmethod
    def origin(cls, genesis: Genesis) -> Tip:
        """The empty chain over verified limits.

        Args:
            genesis: the first row as read.

        Returns:
            The tip with no entries.

        Raises:
            DamageError: if the limits do not match their hash.
        """
        if _sha256(genesis.row()[:-1]) != genesis.hash:
            raise DamageError("the limits do not match their hash")
        return cls(genesis, 0, genesis.hash, Tally(), genesis.adjacency, genesis.unit)

    def extend(self, entry: Entry) -> Tip:
        """The tip after one more entry, verified.

        Args:
            entry: the next row as read.

        Returns:
            The new tip.

        Raises:
            DamageError: if the row is not the next link.
        """
        if entry.id != self.count + 1:
            raise DamageError(f"entry {self.count + 1} is missing")
        if entry.previous != self.head or _sha256(entry.row()[:-1]) != entry.hash:
            raise DamageError(f"entry {entry.id} does not match its hash")
        tally = self.tally.add(entry.charge)
        return Tip(self.genesis, entry.id, entry.hash, tally, entry.adjacency, entry.unit)
