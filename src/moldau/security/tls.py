"""TLS contexts from Kafka's settings: key and certificates in PEM (files or texts) or PKCS#12.

A PEM key store is one file with the private key and its chain. PKCS#12 is read with `cryptography`, which the extra
`moldau[security]` brings. Java's own format, JKS, is refused with the command that converts it.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {"none": ssl.CERT_NONE, "requested": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
_TLS13_SUITES = frozenset({"TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256"})
_SUITE = re.compile(r"TLS_(ECDHE|DHE)_(RSA|ECDSA)_WITH_(AES_128_GCM|AES_256_GCM|CHACHA20_POLY1305)_SHA(256|384)")
_PEM, _PKCS12 = "PEM", "PKCS12"


class TlsTrouble(Exception):
    """A setting, or the file it names, does not make a TLS context. Says which, what to do, and no secret."""

    def __init__(self, setting: str, problem: str) -> None:
        super().__init__(f"{setting}: {problem}")
        self.setting = setting
        self.problem = problem


@dataclass(slots=True, frozen=True)
class TlsSettings:
    """Kafka's `ssl.*` settings of one listener. Secrets are not shown."""

    key_store_type: str | None = None
    """None: whatever the file is."""
    key_store_location: str | None = None
    key_store_password: str | None = field(default=None, repr=False)
    certificate_chain: str | None = field(default=None, repr=False)
    key: str | None = field(default=None, repr=False)
    key_password: str | None = field(default=None, repr=False)
    trust_store_type: str | None = None
    trust_store_location: str | None = None
    trust_store_password: str | None = field(default=None, repr=False)
    trusted_certificates: str | None = field(default=None, repr=False)
    client_auth: str = "none"
    protocols: tuple[str, ...] = ("TLSv1.2", "TLSv1.3")
    cipher_suites: tuple[str, ...] = ()
    checks_host_names: bool = True

    @property
    def has_key(self) -> bool:
        return self.key_store_location is not None or self.key is not None

    @property
    def files(self) -> tuple[str, ...]:
        """What to look at for a renewed certificate."""
        return tuple(each for each in (self.key_store_location, self.trust_store_location) if each)


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """For a listener. Raises TlsTrouble."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _limit(context, settings)
    if not settings.has_key:
        raise TlsTrouble(
            "ssl.keystore.location", "a TLS listener needs a key: name a PEM file with the key and its certificates"
        )
    _load_key(context, settings)
    context.verify_mode = _CLIENT_AUTH[settings.client_auth]
    if context.verify_mode is not ssl.CERT_NONE:
        _load_trust(context, settings)
    return context


def client_context(settings: TlsSettings) -> ssl.SSLContext:
    """Towards other nodes: with the same key, if there is one, and the same trust. Raises TlsTrouble."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.checks_host_names
    _limit(context, settings)
    if settings.has_key:
        _load_key(context, settings)
    _load_trust(context, settings)
    return context


def file_stamps(settings: TlsSettings) -> tuple[object, ...]:
    """Changes when a file does."""
    stamps: list[object] = []
    for path in settings.files:
        try:
            status = os.stat(path)
        except OSError:
            stamps.append(None)
        else:
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return tuple(stamps)


def _limit(context: ssl.SSLContext, settings: TlsSettings) -> None:
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_CIPHER_SERVER_PREFERENCE
    unknown = [each for each in settings.protocols if each not in _VERSIONS]
    if unknown or not settings.protocols:
        raise TlsTrouble("ssl.enabled.protocols", f"{', '.join(unknown) or 'empty'}: there are TLSv1.2 and TLSv1.3")
    versions = [_VERSIONS[each] for each in settings.protocols]
    context.minimum_version, context.maximum_version = min(versions), max(versions)
    if settings.cipher_suites:
        _choose_ciphers(context, settings)


def _choose_ciphers(context: ssl.SSLContext, settings: TlsSettings) -> None:
    """By the names Java and IANA have. Python offers no choice among those of TLS 1.3."""
    older = [each for each in settings.cipher_suites if each not in _TLS13_SUITES]
    newer = _TLS13_SUITES.intersection(settings.cipher_suites)
    names = []
    for suite in older:
        found = _SUITE.fullmatch(suite)
        if found is None:
            raise TlsTrouble("ssl.cipher.suites", f"{suite} is not known, or not safe: use ECDHE with GCM or CHACHA20")
        exchange, signature, cipher, digest = found.groups()
        cipher = cipher.replace("AES_", "AES").replace("_", "-")
        names.append(f"{exchange}-{signature}-{cipher}" + ("" if "CHACHA" in cipher else f"-SHA{digest}"))
    if newer and newer != _TLS13_SUITES and "TLSv1.3" in settings.protocols:
        raise TlsTrouble("ssl.cipher.suites", "of TLS 1.3, name all suites or none: OpenSSL offers them together")
    if not newer:
        if "TLSv1.2" not in settings.protocols:
            raise TlsTrouble(
                "ssl.cipher.suites", "none of them belongs to TLS 1.3, and ssl.enabled.protocols has no other"
            )
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    if names:
        try:
            context.set_ciphers(":".join(names))
        except ssl.SSLError:
            raise TlsTrouble("ssl.cipher.suites", "this OpenSSL has none of them") from None
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3


def _load_key(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if settings.key is not None:
        if settings.certificate_chain is None:
            raise TlsTrouble("ssl.keystore.certificate.chain", "is missing: ssl.keystore.key needs its certificates")
        pem, where, password = (
            f"{settings.key}\n{settings.certificate_chain}\n",
            "ssl.keystore.key",
            settings.key_password,
        )
    else:
        where = "ssl.keystore.location"
        if settings.key_store_location is None:
            raise TlsTrouble(where, "is missing")
        data = _read(where, settings.key_store_location)
        password = settings.key_password
        if _kind("ssl.keystore", settings.key_store_type, data, settings.key_store_location) == _PKCS12:
            pem = _pem_of_pkcs12(data, settings.key_store_password or settings.key_password, where)
            password = None
        else:
            pem = data.decode("latin-1")
    try:
        with _as_file(pem) as path:
            # Without a password OpenSSL would ask for one at the terminal.
            context.load_cert_chain(path, password=password or "")
    except (ssl.SSLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise TlsTrouble(
            where, f"no key with its certificates can be read ({reason}): check the PEM and ssl.key.password"
        ) from None


def _load_trust(context: ssl.SSLContext, settings: TlsSettings) -> None:
    where = "ssl.truststore.location"
    if settings.trusted_certificates is not None:
        where, pem = "ssl.truststore.certificates", settings.trusted_certificates
    elif settings.trust_store_location is not None:
        data = _read(where, settings.trust_store_location)
        if _kind("ssl.truststore", settings.trust_store_type, data, settings.trust_store_location) == _PKCS12:
            pem = _pem_of_pkcs12(data, settings.trust_store_password, where)
        else:
            pem = data.decode("latin-1")
    else:
        context.load_default_certs()
        return
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or type(error).__name__
        raise TlsTrouble(where, f"no trusted certificates can be read ({reason}): it must be PEM") from None


def _kind(setting: str, told: str | None, data: bytes, location: str) -> str:
    kind = (told or "").upper()
    if not kind:
        kind = _PEM if b"-----BEGIN " in data[: 64 * 1024] else "JKS" if data[:4] == b"\xfe\xed\xfe\xed" else _PKCS12
    if kind not in (_PEM, _PKCS12):
        raise TlsTrouble(
            f"{setting}.type",
            f"{kind} is Java's own: convert it (keytool -importkeystore -srckeystore {location} -destkeystore "
            "store.p12 -deststoretype pkcs12; openssl pkcs12 -in store.p12 -out store.pem -nodes) and set it to PEM",
        )
    return kind


def _pem_of_pkcs12(data: bytes, password: str | None, where: str) -> str:
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError:
        raise TlsTrouble(where, "PKCS#12 needs `pip install 'moldau[security]'`, or convert it to PEM") from None
    try:
        store = pkcs12.load_pkcs12(data, None if password is None else password.encode())
    except ValueError:
        raise TlsTrouble(where, "the PKCS#12 file cannot be opened: check its password") from None
    pieces = []
    if store.key is not None:
        pieces.append(store.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    certificates = ([store.cert] if store.cert is not None else []) + list(store.additional_certs)
    pieces += [each.certificate.public_bytes(Encoding.PEM) for each in certificates]
    return b"\n".join(pieces).decode()


def _read(setting: str, path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise TlsTrouble(setting, f"{path} cannot be read: {error.strerror}") from None


@contextlib.contextmanager
def _as_file(pem: str) -> Iterator[str]:
    """Python reads keys from files only: this one lives in memory where the system can, and is gone at once."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("moldau-key")
        try:
            os.write(descriptor, pem.encode("latin-1"))
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
    else:
        with tempfile.NamedTemporaryFile("wb", suffix=".pem") as file:
            file.write(pem.encode("latin-1"))
            file.flush()
            yield file.name
