"""Certificates of a federation's parties: who may ask, and who answers.

Every party has a key of its own, a certificate that names it and says in which role it is, and the certificate of an
authority that both sides trust. A node takes questions from the server's certificate only; a server talks to a node
only if its certificate bears the node's name.
"""

from __future__ import annotations

import datetime
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tacit import _validate
from tacit._files import read_whole, write_whole
from tacit.errors import InvalidInput

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

__all__ = ["SERVER", "TLS", "make_trial_certificates", "missing_extra"]

SERVER = "server"
"""The name of the server's certificate, unless a node is told another one."""
AUTHORITY = "authority.pem"
DAYS = 30
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?")


def missing_extra(package: str) -> InvalidInput:
    """What to say where the packages of the extra are not installed."""
    return InvalidInput(f"{package} is not installed: pip install 'tacit-dp[federation]'")


@dataclass(frozen=True)
class TLS:
    """What one party needs for mutual TLS, as PEM.

    Attributes:
        authority: the certificate that vouches for the others.
        certificate: of this party.
        key: of this party; secret.
    """

    authority: bytes
    certificate: bytes
    key: bytes = field(repr=False)

    @classmethod
    def read(cls, folder: str | os.PathLike[str], name: str) -> TLS:
        """From ``authority.pem``, ``NAME.pem`` and ``NAME.key`` in a folder.

        Args:
            folder: where they are.
            name: of the party.

        Returns:
            Its certificates and key.

        Raises:
            InvalidInput: if a file is missing, or others than its owner may read the key.
        """
        place = Path(folder)
        key = place / f"{name}.key"
        found = cls(read_whole(place / AUTHORITY), read_whole(place / f"{name}.pem"), read_whole(key))
        if os.name == "posix" and key.stat().st_mode & 0o077:
            raise InvalidInput(f"{key} can be read by others than its owner: chmod 600 it, or better make a new key")
        return found


def make_trial_certificates(
    folder: str | os.PathLike[str], nodes: Sequence[str], *, server: str = SERVER, days: int = DAYS
) -> Path:
    """Make an authority, and certificates for a server and some nodes, for a trial on one machine or among friends.

    **For trials only**: one hand makes the keys of all parties here, and could keep them. In earnest every party makes
    its own key, and an authority that all of them trust signs its name. The authority's own key is not kept, so that
    nobody can be added later: make new certificates for another set of parties.

    Args:
        folder: made if it is missing; a folder that has certificates already is refused.
        nodes: their names: lower-case letters, digits, dots and dashes.
        server: the name of the server.
        days: until the certificates end.

    Returns:
        The folder, with ``authority.pem`` and, for each party, ``NAME.pem`` and ``NAME.key``, all of mode 0600.

    Raises:
        InvalidInput: if a name is none, is there twice, or there are certificates already.
    """
    names = [server, *nodes]
    if isinstance(nodes, str) or not nodes or not all(isinstance(n, str) and _NAME.fullmatch(n) for n in names):
        raise InvalidInput("nodes must be names of lower-case letters, digits, dots and dashes, e.g. ['a', 'b']")
    if len(set(names)) != len(names) or "authority" in names:
        raise InvalidInput("the server and the nodes need different names, none of them 'authority'")
    lifetime, place = datetime.timedelta(days=_validate.positive_int(days=days)), Path(folder)
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    if (place / AUTHORITY).exists():
        raise InvalidInput(f"there are certificates in {place} already: name another folder")
    made = _made(names, server, lifetime)
    for name, data in made.items():
        write_whole(place / name, data, mode=0o600)
    return place


def _made(names: Sequence[str], server: str, lifetime: datetime.timedelta) -> dict[str, bytes]:
    """All files by name."""
    try:
        from cryptography.hazmat.primitives import serialization
        from cryptography.hazmat.primitives.asymmetric import ec
    except ImportError:
        raise missing_extra("cryptography") from None
    pem = serialization.Encoding.PEM
    root = ec.generate_private_key(ec.SECP256R1())
    issuer = _certificate("tacit trial authority", root, None, root, lifetime, None)
    out = {AUTHORITY: issuer.public_bytes(pem)}
    for name in names:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = _certificate(name, key, issuer, root, lifetime, name == server)
        form = (pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        out |= {f"{name}.pem": certificate.public_bytes(pem), f"{name}.key": key.private_bytes(*form)}
    return out


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    issuer: x509.Certificate | None,
    signer: EllipticCurvePrivateKey,
    lifetime: datetime.timedelta,
    asks: bool | None,
) -> x509.Certificate:
    """One certificate: of the authority (``asks`` is None), of a party that asks, or of one that answers."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(subject).public_key(key.public_key())
    builder = builder.issuer_name(subject if issuer is None else issuer.subject)
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - datetime.timedelta(minutes=5)).not_valid_after(now + lifetime)
    root = asks is None
    extensions: list[tuple[Any, bool]] = [(x509.BasicConstraints(ca=root, path_length=0 if root else None), True)]
    extensions.append((_usage(root), True))
    extensions.append((x509.SubjectKeyIdentifier.from_public_key(key.public_key()), False))
    extensions.append((x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), False))
    if not root:
        role = ExtendedKeyUsageOID.CLIENT_AUTH if asks else ExtendedKeyUsageOID.SERVER_AUTH
        extensions.append((x509.ExtendedKeyUsage([role]), True))
        extensions.append((x509.SubjectAlternativeName([x509.DNSName(name)]), False))
    for extension, critical in extensions:
        builder = builder.add_extension(extension, critical)
    return builder.sign(signer, hashes.SHA256())


def _usage(root: bool) -> x509.KeyUsage:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not root,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=root,
        crl_sign=root,
        encipher_only=False,
        decipher_only=False,
    )
