"""What a ledger reads off a certificate, checked once at the boundary."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from tacit import _validate
from tacit.errors import InvalidInput

__all__ = ["Certificate", "Claim", "encodable", "read_claim", "relation_name"]

_HEX = frozenset("0123456789abcdef")


class Certificate(Protocol):
    """A guarantee for one run, as far as a ledger needs to know it.

    ``mu`` is set if and only if the guarantee is μ-GDP; ``epsilon`` is valid at every δ that is fixed
    before the run's output is seen.
    """

    @property
    def adjacency(self) -> Enum:
        """The neighbouring relation."""

    @property
    def unit(self) -> str:
        """Whose contribution is protected: "record", "user", ..."""

    @property
    def mu(self) -> float | None:
        """The μ of an exact μ-GDP guarantee, else None."""

    @property
    def digest(self) -> str:
        """A hexadecimal digest that names the certificate."""

    def epsilon(self, delta: float, /) -> float:
        """The ε such that the run is (ε, δ)-DP."""

    def to_json(self) -> str:
        """The certificate as text, kept in the ledger for the record."""


@dataclass(frozen=True, slots=True)
class Claim:
    """A certificate's content after validation; only ``epsilon`` still calls the certificate."""

    adjacency: str
    unit: str
    mu: float | None
    digest: str
    document: str
    _epsilon: Callable[[float], object]

    def epsilon(self, delta: float) -> float:
        """ε(δ), validated: a float in [0, ∞].

        Args:
            delta: the δ of the charge.

        Returns:
            The certificate's ε, possibly infinite.

        Raises:
            InvalidInput: if the certificate answers with anything but a number of at least zero.
        """
        value = _validate.real(**{f"certificate.epsilon({delta:g})": self._epsilon(delta)})
        if value < 0:
            raise InvalidInput(f"certificate.epsilon({delta:g}) is negative ({value!r}): no mechanism has such an ε")
        return value + 0.0


def encodable(name: str, value: object) -> str:
    """A string that UTF-8 can hold (lone surrogates cannot be stored, so they are refused up front).

    Args:
        name: what the value is called in the message.
        value: the candidate.

    Returns:
        The string.

    Raises:
        InvalidInput: if it is no string, or not encodable.
    """
    if not isinstance(value, str):
        raise InvalidInput(f"{name} must be a string, got {type(value).__name__}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidInput(f"{name} holds characters that UTF-8 cannot encode: pass plain text") from None
    return value


def relation_name(value: object) -> str:
    """The name under which a relation is stored: REPLACE_ONE for the member, its name or "replace-one".

    Args:
        value: an Enum member or a string.

    Returns:
        The upper-case name.

    Raises:
        InvalidInput: if it is neither.
    """
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, str) and value.strip():
        return encodable("adjacency", value).strip().upper().replace("-", "_")
    raise InvalidInput(f"adjacency must be an Adjacency or its name, got {value!r}")


def read_claim(certificate: Certificate) -> Claim:
    """Read and validate everything that a reservation needs.

    Args:
        certificate: an object with the attributes of ``Certificate``.

    Returns:
        The claim.

    Raises:
        InvalidInput: if an attribute is missing or malformed.
    """
    names = ("adjacency", "unit", "mu", "epsilon", "digest", "to_json")
    missing = [name for name in names if not hasattr(certificate, name)]
    if missing:
        kind = type(certificate).__name__
        raise InvalidInput(f"not a certificate: {kind} lacks {', '.join(missing)}; pass what certify returned")
    if not (callable(certificate.epsilon) and callable(certificate.to_json)):
        raise InvalidInput("not a certificate: epsilon and to_json must be methods")
    if not isinstance(certificate.adjacency, Enum):
        raise InvalidInput(f"certificate.adjacency must be an Adjacency, got {certificate.adjacency!r}")
    unit = encodable("certificate.unit", certificate.unit)
    digest = encodable("certificate.digest", certificate.digest)
    if not unit or not digest or not _HEX.issuperset(digest.lower()):
        raise InvalidInput("certificate.unit must not be empty and certificate.digest must be hexadecimal")
    return Claim(
        adjacency=certificate.adjacency.name,
        unit=unit,
        mu=_read_mu(certificate.mu),
        digest=digest,
        document=encodable("certificate.to_json()", certificate.to_json()),
        _epsilon=certificate.epsilon,
    )


def _read_mu(value: float | None) -> float | None:
    if value is None:
        return None
    mu = _validate.real(**{"certificate.mu": value})
    if mu < 0:
        raise InvalidInput(f"certificate.mu must not be negative, got {value!r}")
    # SQLite stores −0.0 as 0, which would break the row's hash.
    return math.fabs(mu)
