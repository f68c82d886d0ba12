"""Certificates for tests, made on the spot: no private key in the repository, no tool on the machine.

Just enough DER and elliptic curve (P-256) for an authority, a server and clients. Slow, guessable by timing, and
for nothing but tests.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
import ssl
from dataclasses import dataclass
from pathlib import Path

_P = 2**256 - 2**224 + 2**192 + 2**96 - 1
_N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
_G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)
Point = tuple[int, int] | None


def _add(a: Point, b: Point) -> Point:
    if a is None or b is None:
        return a or b
    if a[0] == b[0]:
        if (a[1] + b[1]) % _P == 0:
            return None
        slope = (3 * a[0] * a[0] - 3) * pow(2 * a[1], -1, _P)
    else:
        slope = (b[1] - a[1]) * pow(b[0] - a[0], -1, _P)
    x = (slope * slope - a[0] - b[0]) % _P
    return x, (slope * (a[0] - x) - a[1]) % _P


def _times(factor: int, point: Point) -> tuple[int, int]:
    result: Point = None
    while factor:
        if factor & 1:
            result = _add(result, point)
        point = _add(point, point)
        factor >>= 1
    assert result is not None
    return result


def _der(tag: int, *contents: bytes) -> bytes:
    content = b"".join(contents)
    size = len(content)
    if size < 128:
        return bytes([tag, size]) + content
    length = size.to_bytes((size.bit_length() + 7) // 8, "big")
    return bytes([tag, 0x80 | len(length)]) + length + content


def _integer(value: int) -> bytes:
    return _der(0x02, value.to_bytes(value.bit_length() // 8 + 1, "big"))


def _oid(dotted: str) -> bytes:
    first, second, *rest = map(int, dotted.split("."))
    encoded = bytearray([first * 40 + second])
    for arc in rest:
        parts = [arc & 0x7F]
        while arc := arc >> 7:
            parts.append(0x80 | arc & 0x7F)
        encoded += bytes(reversed(parts))
    return _der(0x06, bytes(encoded))


def _sequence(*contents: bytes) -> bytes:
    return _der(0x30, *contents)


_CURVE = _oid("1.2.840.10045.3.1.7")
_ECDSA_SHA256 = _sequence(_oid("1.2.840.10045.4.3.2"))
_NAME_OIDS = {"C": "2.5.4.6", "O": "2.5.4.10", "OU": "2.5.4.11", "CN": "2.5.4.3"}


def _name(parts: list[tuple[str, str]]) -> bytes:
    return _sequence(
        *(_der(0x31, _sequence(_oid(_NAME_OIDS[kind]), _der(0x0C, value.encode()))) for kind, value in parts)
    )


def _pem(kind: str, der: bytes) -> str:
    text = base64.encodebytes(der).decode()
    return f"-----BEGIN {kind}-----\n{text}-----END {kind}-----\n"


@dataclass(frozen=True)
class Identity:
    """A certificate and its key, as PEM text."""

    certificate: str
    key: str
    secret: int
    name: bytes
    key_id: bytes


def make_identity(
    subject: list[tuple[str, str]], issuer: Identity | None = None, *, days: tuple[int, int] = (2020, 2049)
) -> Identity:
    """An authority if `issuer` is None, else a certificate it signed, for localhost and 127.0.0.1."""
    secret = secrets.randbelow(_N - 1) + 1
    x, y = _times(secret, _G)
    public = b"\x00\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
    name = _name(subject)
    key_id = hashlib.sha1(public[1:], usedforsecurity=False).digest()
    # Whose key it is, and whose signed it: Python from 3.13 on wants both, and the usage of an authority.
    extensions = [
        _sequence(_oid("2.5.29.14"), _der(0x04, _der(0x04, key_id))),
        _sequence(_oid("2.5.29.35"), _der(0x04, _sequence(_der(0x80, issuer.key_id if issuer else key_id)))),
    ]
    if issuer is None:
        is_critical = _der(0x01, b"\xff")
        extensions.append(_sequence(_oid("2.5.29.19"), is_critical, _der(0x04, _sequence(_der(0x01, b"\xff")))))
        extensions.append(_sequence(_oid("2.5.29.15"), is_critical, _der(0x04, _der(0x03, b"\x01\x06"))))
    else:
        hosts = _sequence(_der(0x82, b"localhost"), _der(0x87, bytes([127, 0, 0, 1])))
        extensions.append(_sequence(_oid("2.5.29.17"), _der(0x04, hosts)))
    validity = _sequence(*(_der(0x17, f"{year % 100:02}0101000000Z".encode()) for year in days))
    body = _sequence(
        _der(0xA0, _integer(2)),
        _integer(secrets.randbelow(2**64) + 1),
        _ECDSA_SHA256,
        issuer.name if issuer else name,
        validity,
        name,
        _sequence(_sequence(_oid("1.2.840.10045.2.1"), _CURVE), _der(0x03, public)),
        _der(0xA3, _sequence(*extensions)),
    )
    signer = issuer.secret if issuer else secret
    nonce = secrets.randbelow(_N - 1) + 1
    r = _times(nonce, _G)[0] % _N
    s = pow(nonce, -1, _N) * (int.from_bytes(hashlib.sha256(body).digest(), "big") + r * signer) % _N
    signature = _der(0x03, b"\x00", _sequence(_integer(r), _integer(s)))
    key = _sequence(
        _integer(1), _der(0x04, secret.to_bytes(32, "big")), _der(0xA0, _CURVE), _der(0xA1, _der(0x03, public))
    )
    certificate = _sequence(body, _ECDSA_SHA256, signature)
    return Identity(_pem("CERTIFICATE", certificate), _pem("EC PRIVATE KEY", key), secret, name, key_id)


def as_pkcs8(identity: Identity) -> str:
    """The key in the only form that Java reads."""
    body = "".join(line for line in identity.key.splitlines() if not line.startswith("-----"))
    algorithm = _sequence(_oid("1.2.840.10045.2.1"), _CURVE)
    return _pem("PRIVATE KEY", _sequence(_integer(0), algorithm, _der(0x04, base64.b64decode(body))))


def make_context(
    folder: Path, identity: Identity | None, authority: Identity, *, server_side: bool, ask_for_client: bool = False
) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=authority.certificate)
    if identity is not None:
        path = folder / f"{secrets.token_hex(8)}.pem"
        path.write_text(identity.certificate + identity.key)
        context.load_cert_chain(path)
    if ask_for_client:
        context.verify_mode = ssl.CERT_REQUIRED
    return context
