"""A small certificate authority, for tests and for trying things out: elliptic curve P-256, PEM in and out.

Needs `cryptography` (`pip install 'moldau[security]'`). For production, use the authority your organisation has.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

_CLOCKS_DIFFER = datetime.timedelta(minutes=5)


class CertificatesUnavailable(Exception):
    """`cryptography` is not installed."""

    def __init__(self) -> None:
        super().__init__("making certificates needs `pip install 'moldau[security]'`")


@dataclass(slots=True, frozen=True)
class Certified:
    """A certificate and its key, in PEM."""

    certificate: str
    key: str = field(repr=False)

    def write(self, path: Path, chain: str = "") -> Path:
        """Key and certificates in one file, as Kafka's `ssl.keystore.type=PEM` has them; only its owner can read it."""
        write_secret(path, self.key + self.certificate + chain)
        return path

    @classmethod
    def read(cls, path: Path) -> Certified:
        """ValueError if it holds no key with a certificate."""
        text = path.read_text()
        start = text.find("-----BEGIN CERTIFICATE-----")
        if start < 0 or "PRIVATE KEY-----" not in text[:start]:
            raise ValueError(f"{path} holds no key followed by its certificate")
        return cls(text[start:], text[:start])


def new_authority(name: str = "Moldau trial CA", *, days: int = 3650) -> Certified:
    _require_library()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    usage = x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
    builder = _builder(subject, subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(usage, critical=True)
    return _certified(_identified(builder, key, key).sign(key, hashes.SHA256()), key)


def issue(authority: Certified, name: str, hosts: Sequence[str] = (), *, days: int = 365) -> Certified:
    """A certificate for a server at these hosts (names or addresses), or for a client if there are none."""
    _require_library()
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    issuer = x509.load_pem_x509_certificate(authority.certificate.encode())
    issuer_key = serialization.load_pem_private_key(authority.key.encode(), None)
    if not isinstance(issuer_key, ec.EllipticCurvePrivateKey):
        raise TypeError("the authority's key is not one that new_authority makes")
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    builder = _builder(subject, issuer.subject, key, days)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    if hosts:
        purposes.insert(0, ExtendedKeyUsageOID.SERVER_AUTH)
        names = x509.SubjectAlternativeName([_general_name(each) for each in hosts])
        builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    return _certified(_identified(builder, key, issuer_key).sign(issuer_key, hashes.SHA256()), key)


def _identified(
    builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey, issuer_key: ec.EllipticCurvePrivateKey
) -> x509.CertificateBuilder:
    """Say whose key it is and whose signed it: strict clients (Python from 3.13 on) want both, of authorities too."""
    from cryptography import x509

    own_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    issuer_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key())
    return builder.add_extension(own_id, critical=False).add_extension(issuer_id, critical=False)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
) -> x509.CertificateBuilder:
    from cryptography import x509

    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCKS_DIFFER)
        .not_valid_after(now + datetime.timedelta(days=days))
    )


def _general_name(host: str) -> x509.GeneralName:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _certified(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Certified:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Certified(certificate.public_bytes(Encoding.PEM).decode(), secret.decode())


def _require_library() -> None:
    from importlib.util import find_spec

    if find_spec("cryptography") is None:
        raise CertificatesUnavailable


def write_secret(path: Path, text: str) -> None:
    """Readable by its owner alone, from its first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        os.fchmod(file.fileno(), 0o600)
        file.write(text)
