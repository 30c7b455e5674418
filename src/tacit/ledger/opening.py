"""The constructor's arguments: checked before anything is touched, then compared or turned into limits."""

from __future__ import annotations

import os
import secrets
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from tacit import _validate
from tacit.errors import InvalidInput, LedgerError
from tacit.ledger.certificate import encodable, relation_name
from tacit.ledger.chain import Genesis, Tip
from tacit.ledger.filters import Limits

__all__ = ["Terms", "compare", "first_row", "locate", "now", "read_terms"]

_LONGEST_NAME = 200  # of the usual 255, as the anchor and SQLite's files append to it


class Terms(NamedTuple):
    """What the caller asks of a ledger; None leaves it open."""

    epsilon: float | None
    delta: float | None
    adjacency: str | None
    unit: str | None
    basic_share: float | None


def read_terms(epsilon: object, delta: object, adjacency: object, unit: object, basic_share: object) -> Terms:
    """Check each argument that was given on its own.

    Args:
        epsilon: positive and finite.
        delta: in (0, 1).
        adjacency: an Enum member or its name.
        unit: a word.
        basic_share: in [0, 1].

    Returns:
        The terms.

    Raises:
        InvalidInput: if one is out of range or of the wrong type.
    """
    word = None if unit is None else encodable("unit", unit)
    if word == "":
        raise InvalidInput("unit must not be empty: say whose data is protected, for instance 'record'")
    share = None
    if basic_share is not None:
        share = _validate.probability(open_left=False, basic_share=basic_share) + 0.0  # never −0.0
    return Terms(
        epsilon=None if epsilon is None else _validate.positive(epsilon=epsilon),
        delta=None if delta is None else _validate.delta(delta),
        adjacency=None if adjacency is None else relation_name(adjacency),
        unit=word,
        basic_share=share,
    )


def locate(path: object) -> Path:
    """Resolve the path once, so that a later change of the working directory does not matter.

    Args:
        path: the name of a file that exists or can be created.

    Returns:
        The absolute path without symbolic links.

    Raises:
        InvalidInput: if it is no path, or names something other than a file.
        LedgerError: if its folder does not exist.
    """
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str) or not name:
        raise InvalidInput(f"path must be the name of a file, got {path!r}")
    if len(os.fsencode(Path(name).name)) > _LONGEST_NAME:
        raise InvalidInput(f"path has a file name of more than {_LONGEST_NAME} bytes: choose a shorter one")
    try:
        place = Path(name).resolve()
        no_file = place.exists() and not place.is_file()
        no_folder = not place.parent.is_dir()
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"path {name!r} cannot be used ({error}): name a file for the ledger") from None
    if no_file:
        raise InvalidInput(f"path {place} is not a regular file: name a file for the ledger")
    if no_folder:
        raise LedgerError(f"the folder {place.parent} does not exist: create it or choose another path")
    return place


def first_row(path: Path, terms: Terms) -> Genesis:
    """Name a new ledger and seal its limits.

    Args:
        path: where it will lie.
        terms: must hold epsilon and delta.

    Returns:
        The sealed first row.

    Raises:
        LedgerError: if both limits are missing: the caller expected a ledger to be there.
        InvalidInput: if one of them is, or the split leaves a part empty.
    """
    if terms.epsilon is None and terms.delta is None:
        raise LedgerError(f"there is no ledger at {path}: pass epsilon and delta to create one")
    if terms.epsilon is None:
        raise InvalidInput("epsilon is missing: a new ledger needs epsilon and delta")
    limits = Limits.build(terms.epsilon, _validate.delta(terms.delta), terms.basic_share)
    return Genesis(
        ledger=secrets.token_hex(16),
        created=now(),
        epsilon=limits.epsilon,
        delta=limits.delta,
        basic_share=limits.basic_share,
        gaussian_mu=limits.gaussian_mu,
        adjacency=terms.adjacency,
        unit=terms.unit,
    ).sealed()


def compare(path: Path, terms: Terms, tip: Tip) -> None:
    """Refuse terms other than those of the ledger that was found.

    Args:
        path: where it lies.
        terms: what the caller asks; None agrees with everything.
        tip: the verified ledger.

    Raises:
        LedgerError: if they differ.
    """
    genesis = tip.genesis
    stored = Terms(genesis.epsilon, genesis.delta, tip.adjacency, tip.unit, genesis.basic_share)
    for name, asked, ours in zip(Terms._fields, terms, stored, strict=True):
        if asked is not None and asked != ours:
            raise LedgerError(
                f"ledger {path} has {name}={ours!r}, not {asked!r}: open it with Ledger(path) alone, or"
                " choose another path for another budget"
            )


def now() -> str:
    """Return the time (UTC) as an entry records it."""
    return datetime.now(UTC).isoformat(timespec="seconds")
