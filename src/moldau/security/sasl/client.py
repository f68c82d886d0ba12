"""SASL as a client speaks it: PLAIN (RFC 4616), SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628) as generators.

A mechanism yields what it sends and is given the broker's answer; it returns when the broker has proved itself too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from collections.abc import Generator
from dataclasses import dataclass, field

from moldau.security.sasl.mechanism import OAUTHBEARER, PLAIN
from moldau.security.sasl.scram import HASHES, ITERATIONS_MIN

_ITERATIONS_MAX = 1_000_000  # a broker that asks for more wants to keep us busy
Exchange = Generator[bytes, bytes, None]


class LoginRefused(Exception):
    """The broker refused the credentials, or could not prove that it knows them."""


@dataclass(slots=True, frozen=True)
class Credentials:
    """What to log in with. Secrets are not shown."""

    mechanism: str
    username: str = ""
    password: str = field(default="", repr=False)
    is_token: bool = False
    """The user is the id of a delegation token, the password its HMAC."""
    bearer_token: str = field(default="", repr=False)


def exchange(credentials: Credentials) -> Exchange:
    if credentials.mechanism == PLAIN:
        return _plain(credentials.username, credentials.password)
    if credentials.mechanism == OAUTHBEARER:
        return _bearer(credentials.bearer_token)
    import secrets

    return _scram(credentials, secrets.token_urlsafe(24))


def _plain(username: str, password: str) -> Exchange:
    yield f"\0{username}\0{password}".encode()


def _bearer(token: str) -> Exchange:
    answer = yield f"n,,\x01auth=Bearer {token}\x01\x01".encode()
    if answer:  # what is wrong with the token, as JSON; the broker ends the exchange on this
        yield b"\x01"
        raise LoginRefused(f"the broker refused the token: {answer.decode(errors='replace')[:200]}")


def _scram(credentials: Credentials, nonce: str) -> Exchange:
    hash_name = HASHES[credentials.mechanism]
    name = credentials.username.replace("=", "=3D").replace(",", "=2C")
    extension = ",tokenauth=true" if credentials.is_token else ""
    first_bare = f"n={name},r={nonce}{extension}"
    server_first = yield f"n,,{first_bare}".encode()
    fields = _fields(server_first)
    if "e" in fields:
        raise LoginRefused(f"the broker refused the login: {fields['e']}")
    iterations = int(fields["i"]) if fields.get("i", "").isdecimal() else 0
    # A server that asks for fewer iterations would get something easier to guess from.
    if not fields.get("r", "").startswith(nonce) or not ITERATIONS_MIN <= iterations <= _ITERATIONS_MAX:
        raise LoginRefused("the broker's SCRAM answer does not belong to this login")
    salt = _unbase64(fields.get("s", ""))
    salted = hashlib.pbkdf2_hmac(hash_name, credentials.password.encode(), salt, iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    final_bare = f"c=biws,r={fields['r']}"
    signed = f"{first_bare},{server_first.decode()},{final_bare}".encode()
    signature = hmac.digest(stored_key, signed, hash_name)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    server_final = yield f"{final_bare},p={proof}".encode()
    answer = _fields(server_final)
    if "e" in answer:
        raise LoginRefused(f"the broker refused the login: {answer['e']}")
    expected = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name)
    if not hmac.compare_digest(expected, _unbase64(answer.get("v", ""))):
        raise LoginRefused("the broker could not prove that it knows the password")


def _fields(message: bytes) -> dict[str, str]:
    return {part[:1]: part[2:] for part in message.decode(errors="replace").split(",")}


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text)
    except binascii.Error:
        return b""
