"""SCRAM-SHA-256 and -512 (RFC 5802, 7677) as a server speaks it, with Kafka's extension for delegation tokens.

The server keeps keys derived from the password, and never sees the password itself. Whoever asks for a user that does
not exist gets a salt and a number of iterations as those of the others are, does all the work, and is refused at the
end with the same words after the same computations: users cannot be enumerated.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from moldau.security.principal import Principal
from moldau.security.sasl.mechanism import SCRAM_SHA_256, SCRAM_SHA_512, AuthenticationFailed, Identity, Step

HASHES: Mapping[str, str] = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
MESSAGE_BYTES_MAX = 16 * 1024  # nobody has proved anything yet: reading and keeping more is too much to ask
_SASL_NAME = r"(?:[\x01-\x2b\x2d-\x3c\x3e-\x7f]|=2C|=3D)+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_EXTENSIONS = r"((?:,[A-Za-z]+=[\x01-\x2b\x2d-\x7f]+)*)"
_FIRST = re.compile(rf"(n,(?:a=({_SASL_NAME}))?,)(n=({_SASL_NAME}),r=({_PRINTABLE}){_EXTENSIONS})")
_FINAL = re.compile(rf"(c=([A-Za-z0-9/+=]*),r=({_PRINTABLE}){_EXTENSIONS}),p=([A-Za-z0-9/+=]+)")


@dataclass(slots=True, frozen=True)
class ScramKeys:
    """What is kept of a password, for one mechanism."""

    salt: bytes = field(repr=False)
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)
    iterations: int


@dataclass(slots=True, frozen=True)
class TokenKeys:
    """A delegation token, as something to log in with."""

    keys: ScramKeys
    owner: Principal
    expires_at_ms: int


class ScramUsers(Protocol):
    """Where a server finds users and tokens."""

    def keys_of(self, user: str, mechanism: str) -> ScramKeys | None: ...

    def token_keys_of(self, token_id: str, mechanism: str, now_ms: int) -> TokenKeys | None: ...

    def decoy_keys(self, user: str, mechanism: str) -> ScramKeys:
        """For a user that does not exist: always the same, and like those of one that does."""


def derive_keys(mechanism: str, password: str, salt: bytes, iterations: int) -> ScramKeys:
    """RFC 5802, section 3. Takes milliseconds on purpose."""
    return keys_from_salted(mechanism, salted_password(mechanism, password, salt, iterations), salt, iterations)


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    return hashlib.pbkdf2_hmac(HASHES[mechanism], password.encode(), salt, iterations)


def keys_from_salted(mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramKeys:
    name = HASHES[mechanism]
    client_key = hmac.digest(salted, b"Client Key", name)
    server_key = hmac.digest(salted, b"Server Key", name)
    return ScramKeys(salt, hashlib.new(name, client_key).digest(), server_key, iterations)


class ScramServer:
    def __init__(self, mechanism: str, users: ScramUsers, new_nonce: Callable[[], str]) -> None:
        self._mechanism = mechanism
        self._users = users
        self._new_nonce = new_nonce
        self._first: _FirstSeen | None = None

    def step(self, token: bytes, now_ms: int) -> Step:
        if len(token) > MESSAGE_BYTES_MAX:
            raise AuthenticationFailed(detail="the SCRAM message is too long")
        text = token.decode("utf-8", "replace")
        if self._first is None:
            return self._answer_first(text, now_ms)
        first, self._first = self._first, None
        return self._answer_final(first, text)

    def _answer_first(self, text: str, now_ms: int) -> Step:
        found = _FIRST.fullmatch(text)
        if found is None:
            raise AuthenticationFailed(detail="the first SCRAM message cannot be read")
        header, authorization_id, bare, escaped, client_nonce, extensions = found.groups()
        user = escaped.replace("=2C", ",").replace("=3D", "=")
        if authorization_id is not None and authorization_id.replace("=2C", ",").replace("=3D", "=") != user:
            raise AuthenticationFailed(
                "Authentication failed: Client requested an authorization id that is different from username", user=user
            )
        decoy = self._users.decoy_keys(user, self._mechanism)  # made in any case: both ways take the same time
        keys, identity = self._look_up(user, now_ms, is_token=_says_token(extensions))
        if keys is None or keys.iterations < ITERATIONS_MIN:
            keys, identity = decoy, None
        nonce = client_nonce + self._new_nonce()
        answer = f"r={nonce},s={base64.b64encode(keys.salt).decode()},i={keys.iterations}"
        self._first = _FirstSeen(header, nonce, f"{bare},{answer}", keys, identity, user)
        return Step(answer.encode())

    def _look_up(self, user: str, now_ms: int, *, is_token: bool) -> tuple[ScramKeys | None, Identity | None]:
        if not is_token:
            return self._users.keys_of(user, self._mechanism), Identity(Principal.user(user))
        token = self._users.token_keys_of(user, self._mechanism, now_ms)
        if token is None:
            return None, None
        owner = Principal(token.owner.type, token.owner.name, token_authenticated=True)
        return token.keys, Identity(owner, token.expires_at_ms)

    def _answer_final(self, first: _FirstSeen, text: str) -> Step:
        found = _FINAL.fullmatch(text)
        if found is None:
            raise AuthenticationFailed(detail="the last SCRAM message cannot be read", user=first.user)
        bare, binding, nonce, _, proof_text = found.groups()
        if nonce != first.nonce or _unbase64(binding) != first.header.encode():
            raise AuthenticationFailed(detail="the last SCRAM message belongs to another login", user=first.user)
        name, keys = HASHES[self._mechanism], first.keys
        signed = f"{first.signed},{bare}".encode()
        signature = hmac.digest(keys.stored_key, signed, name)
        proof = _unbase64(proof_text).ljust(len(signature), b"\0")[: len(signature)]
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        is_right = hmac.compare_digest(hashlib.new(name, client_key).digest(), keys.stored_key)
        answer = b"v=" + base64.b64encode(hmac.digest(keys.server_key, signed, name))
        if not is_right or first.identity is None:
            raise AuthenticationFailed(user=first.user)
        return Step(answer, first.identity)


@dataclass(slots=True, frozen=True)
class _FirstSeen:
    """What the second message is checked against."""

    header: str
    nonce: str
    signed: str
    keys: ScramKeys
    identity: Identity | None
    """None if there is no such user."""
    user: str


def _says_token(extensions: str) -> bool:
    pairs = (each.partition("=") for each in extensions.split(",") if each)
    return any(name == "tokenauth" and value.lower() == "true" for name, _, value in pairs)


def _unbase64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return b""
