"""The ledger: reserve before any record is read, or do not run."""

from __future__ import annotations

import contextlib
import os
import secrets
import sqlite3
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tacit import _validate
from tacit.errors import LedgerError
from tacit.ledger import anchor as anchors
from tacit.ledger import opening, places, store, summary
from tacit.ledger.certificate import Certificate, Claim, encodable, read_claim
from tacit.ledger.chain import DamageError, Entry, Tip
from tacit.ledger.filters import Charge, admits, basic_charge, gaussian_charge

__all__ = ["Ledger"]


class Ledger:
    """A privacy budget (ε, δ) that many runs share, kept in one file.

    ``reserve`` comes *before* any record is read: it either commits the charge durably and returns, or
    raises and writes nothing. A run that then crashes has spent its charge; a charge is never given back.

    *Formal guarantee.* All runs admitted by one ledger, chosen adaptively, together satisfy (ε, δ)-DP for
    the ledger's relation and unit: Gaussian runs under Σμᵢ² ≤ B², others under basic composition, each
    with its part of a split that is fixed in advance (``tacit.ledger.filters`` has the proof).

    *Assumptions.* Every run on these records reserves here first, with a certificate that is true; limits
    and split were chosen without looking at the data. Damage, hand edits and old copies are refused
    (``LedgerCorrupt``), but somebody who rewrites the file *and* all its anchors is not stopped.

    *Sharing.* Any number of processes, threads and forks may use one file, or one object.
    Copies, deep copies and scikit-learn clones are the same object; a pickle holds the path alone.

    Args:
        path: the file. If it exists, ``Ledger(path)`` suffices; limits that differ from its own are refused.
        epsilon: the total ε of a new ledger.
        delta: the total δ of a new ledger.
        adjacency: the only relation it accepts; by default that of the first reservation.
        unit: the only privacy unit it accepts; by default that of the first reservation.
        basic_share: the share of (ε, δ) for runs that are not μ-GDP: 0 means Gaussian only, 1 basic only
            (μ-GDP runs are then charged as (ε(δᵢ), δᵢ)). By default the first reservation decides between
            those two, before any output, so that the choice is not adaptive.
        new: True gives up the ledger that was at ``path`` before and is no longer there: its records are out of use,
            or it has moved. Without it a path that held a ledger with entries is refused.

    Raises:
        InvalidInput: if an argument is out of range; no file is left behind.
        LedgerError: if the file cannot be reached, or has other limits.
        LedgerCorrupt: if the file is damaged, edited, rolled back, or gone while its anchor survives.

    >>> import tempfile, pathlib
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with Ledger(pathlib.Path(folder) / "study.ledger", epsilon=1.0, delta=1e-5) as ledger:
    ...         round(ledger.remaining().mu, 4)
    0.2681
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        epsilon: float | None = None,
        delta: float | None = None,
        *,
        adjacency: Enum | str | None = None,
        unit: str | None = None,
        basic_share: float | None = None,
        new: bool = False,
    ) -> None:
        terms = opening.read_terms(epsilon, delta, adjacency, unit, basic_share)
        self._path = opening.locate(path)
        self._closed = False
        # Notes and anchors are looked at first: a concurrent creator writes the file, then those.
        known = places.known_at(self._path)
        spent = places.spent_at(self._path, known)
        if self._path.exists():
            self._check_place(known, spent, new)
        elif spent and not new:
            raise places.gone(self._path, spent)
        else:
            first = opening.first_row(self._path, terms)
            places.clear(self._path)
            store.create(self._path, first)
        self._tip = self._load()
        opening.compare(self._path, terms, self._tip)
        if known != self._tip.genesis.ledger:
            places.note(self._path, self._tip.genesis.ledger)

    def reserve(self, certificate: Certificate, note: str = "", *, delta: float | None = None) -> int:
        """Charge a run to the budget, before it reads any record.

        Args:
            certificate: the guarantee of the run.
            note: free text for the record; it must not be derived from private data.
            delta: δᵢ if the charge goes to the basic part (a Gaussian charge has none); by default half of
                the δ that remains there, or all of it if only that fits the remaining ε.

        Returns:
            The number of the entry, now on disk.

        Raises:
            InvalidInput: if an argument is malformed.
            BudgetExhausted: if the charge does not fit; nothing is written.
            LedgerError: if relation, unit or kind do not belong in this ledger, or the file is out of reach.
            LedgerCorrupt: if the file is damaged, edited or rolled back.
        """
        claim, note = read_claim(certificate), encodable("note", note)
        delta = None if delta is None else _validate.probability(open_left=False, delta=delta) + 0.0
        number = self._commit(claim, None, note)
        while number is None:
            # ε(δ) may take long, so a basic charge is worked out without the lock. If others were faster
            # and it no longer fits, it is worked out again; each such round is somebody's progress.
            charge = basic_charge(self._tip.genesis.limits, self._tip.tally, claim, delta)
            number = self._commit(claim, charge, note)
        return number

    def spent(self) -> summary.Spent:
        """Return the guarantee of everything reserved so far, at the ledger's δ."""
        return summary.spent(self._refresh())

    def remaining(self) -> summary.Remaining:
        """Return what may still be reserved."""
        return summary.remaining(self._refresh())

    def entries(self) -> tuple[Entry, ...]:
        """Return all reservations, oldest first, verified from the first row on."""
        kept: list[Entry] = []
        self._reload(kept)
        return tuple(kept)

    def verify(self) -> int:
        """Check the whole file, its chain of hashes and its anchors.

        Returns:
            The number of entries.

        Raises:
            LedgerCorrupt: if anything does not fit.
        """
        return self._reload().count

    @property
    def path(self) -> Path:
        """Where the ledger lies."""
        return self._path

    @property
    def epsilon(self) -> float:
        """The total ε."""
        return self._tip.genesis.epsilon

    @property
    def delta(self) -> float:
        """The total δ."""
        return self._tip.genesis.delta

    @property
    def basic_share(self) -> float | None:
        """The share of the basic part; None if the first reservation decides."""
        return self._tip.genesis.basic_share

    @property
    def adjacency(self) -> str | None:
        """The name of the relation; None as long as it is open."""
        return (self._tip if self._tip.adjacency else self._refresh()).adjacency

    @property
    def gaussian_delta(self) -> float:
        """The part of δ at which Gaussian entries are added up: all of it but what basic ones may spend."""
        return float(self._tip.genesis.limits.gaussian_delta)

    @property
    def unit(self) -> str | None:
        """The privacy unit; None as long as it is open."""
        return (self._tip if self._tip.unit else self._refresh()).unit

    def close(self) -> None:
        """End the use of this object (and its copies); the file is whole at any time anyway."""
        self._closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # A copy would look like a second budget, so there is none.
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __sklearn_clone__(self) -> Self:
        return self

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (str(self._path),))

    def __repr__(self) -> str:
        return f"Ledger({str(self._path)!r}, epsilon={self.epsilon!r}, delta={self.delta!r})"

    def _session(self) -> contextlib.AbstractContextManager[sqlite3.Connection]:
        if self._closed:
            raise LedgerError(f"ledger {self._path} is closed: open it again with Ledger(path)")
        return store.session(self._path)

    def _check_place(self, known: str | None, spent: int | None, new: bool) -> None:
        """Refuse a ledger that lies where another one has granted something, unless the user says so."""
        with self._session() as connection:
            other = known not in (None, store.origin(connection).genesis.ledger) and spent != 0
        if new and not other:
            raise LedgerError(f"there is a ledger at {self._path} already: leave out new to go on with it")
        if other and not new:
            raise places.taken(self._path)
        if other:
            places.clear(self._path)

    def _load(self, kept: list[Entry] | None = None) -> Tip:
        with self._session() as connection:
            name = store.origin(connection).genesis.ledger
            witnesses = anchors.read_all(self._path, name)  # before the snapshot, which may be ahead of them
            with store.transaction(connection, write=False):
                tip = store.load(connection, kept)
                _check(witnesses, connection, tip)
            self._publish(connection, tip, witnesses)
        return tip

    def _reload(self, kept: list[Entry] | None = None) -> Tip:
        self._refresh()  # does the file continue what this object has seen?
        self._tip = self._load(kept)
        return self._tip

    def _refresh(self) -> Tip:
        with self._session() as connection:
            witnesses = anchors.read_all(self._path, self._tip.genesis.ledger)
            with store.transaction(connection, write=False):
                tip = store.catch_up(connection, self._tip)
                _check(witnesses, connection, tip)
            self._tip = tip
        return tip

    def _commit(self, claim: Claim, charge: Charge | None, note: str) -> int | None:
        """Return the number of the new entry, or None if it needs a basic charge that (still) fits."""
        with self._session() as connection:
            witnesses = anchors.read_all(self._path, self._tip.genesis.ledger)
            with store.transaction(connection, write=True):
                self._tip = tip = store.catch_up(connection, self._tip)
                _check(witnesses, connection, tip)
                self._agree(tip, claim)
                charge = gaussian_charge(tip.genesis.limits, tip.tally, claim) or charge
                if charge is None or not admits(tip.genesis.limits, tip.tally, charge):
                    return None
                entry = _entry(tip, claim, charge, note)
                tip = tip.extend(entry)
                store.append(connection, entry)
            self._tip = tip
            self._publish(connection, tip, witnesses)
        return entry.id

    def _publish(self, connection: sqlite3.Connection, tip: Tip, witnesses: dict[Path, anchors.Anchor]) -> None:
        if len(witnesses) == 2 and all(witness.count >= tip.count for witness in witnesses.values()):
            return
        # Under the write lock, so that writers of anchors queue up; best effort, as the entry is durable.
        with contextlib.suppress(sqlite3.Error), store.transaction(connection, write=True):
            anchors.write_all(self._path, anchors.Anchor(tip.genesis.ledger, tip.count, tip.head))

    def _agree(self, tip: Tip, claim: Claim) -> None:
        for what, ours, theirs in (
            ("relation", tip.adjacency, claim.adjacency),
            ("privacy unit", tip.unit, claim.unit),
        ):
            if ours is not None and ours != theirs:
                raise LedgerError(
                    f"ledger {self._path} is for the {what} {ours!r}, the certificate for {theirs!r}:"
                    " different relations or units never compose; use another ledger"
                )


def _entry(tip: Tip, claim: Claim, charge: Charge, note: str) -> Entry:
    return Entry(
        id=tip.count + 1,
        time=opening.now(),
        kind=charge.kind,
        mu=charge.mu,
        epsilon=charge.epsilon,
        delta=charge.delta,
        adjacency=claim.adjacency,
        unit=claim.unit,
        digest=claim.digest,
        note=note,
        nonce=secrets.token_hex(8),
        certificate=claim.document,
        previous=tip.head,
    ).sealed()


def _check(witnesses: dict[Path, anchors.Anchor], connection: sqlite3.Connection, tip: Tip) -> None:
    for file, witness in witnesses.items():
        if witness.count > tip.count:
            raise DamageError(f"it is rolled back: {file} has seen {witness.count} entries, here are {tip.count}")
        if store.hash_at(connection, tip, witness.count) != witness.head:
            raise DamageError(f"it is rolled back: entry {witness.count} is not the one that {file} has seen")
