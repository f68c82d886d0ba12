"""SASL as a client speaks it: PLAIN (RFC 4616) and SCRAM (RFC 5802) as generators of what to send.

A mechanism yields what it sends and is given the broker's answer; it returns when the broker has proved itself too.
"""

import base64
import hashlib
import hmac
import secrets
from collections.abc import Generator

Exchange = Generator[bytes, bytes, None]
_SCRAM_HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
# RFC 7677 asks for 4096; a server that asks for fewer would get something easier to guess from.
_ITERATIONS_MIN = 4096


class AuthenticationFailed(Exception):
    """The broker refused the credentials, or could not prove that it knows them."""


def exchange(mechanism: str, username: str, password: str) -> Exchange:
    if mechanism == "PLAIN":
        return _plain(username, password)
    return _scram(_SCRAM_HASHES[mechanism], username, password, secrets.token_urlsafe(24))


def _plain(username: str, password: str) -> Exchange:
    yield f"\0{username}\0{password}".encode()


def _scram(hash_name: str, username: str, password: str, nonce: str) -> Exchange:
    name = username.replace("=", "=3D").replace(",", "=2C")
    first_bare = f"n={name},r={nonce}"
    server_first = yield f"n,,{first_bare}".encode()
    fields = _fields(server_first)
    if "e" in fields:
        raise AuthenticationFailed(f"the broker refused the login: {fields['e']}")
    iterations = int(fields.get("i", "0"))
    if not fields.get("r", "").startswith(nonce) or iterations < _ITERATIONS_MIN:
        raise AuthenticationFailed("the broker's SCRAM answer does not belong to this login")
    salted = hashlib.pbkdf2_hmac(hash_name, password.encode(), base64.b64decode(fields["s"]), iterations)
    client_key = hmac.digest(salted, b"Client Key", hash_name)
    stored_key = hashlib.new(hash_name, client_key).digest()
    final_bare = f"c=biws,r={fields['r']}"
    signed = f"{first_bare},{server_first.decode()},{final_bare}".encode()
    signature = hmac.digest(stored_key, signed, hash_name)
    proof = base64.b64encode(bytes(a ^ b for a, b in zip(client_key, signature, strict=True))).decode()
    server_final = yield f"{final_bare},p={proof}".encode()
    answer = _fields(server_final)
    if "e" in answer:
        raise AuthenticationFailed(f"the broker refused the login: {answer['e']}")
    expected = hmac.digest(hmac.digest(salted, b"Server Key", hash_name), signed, hash_name)
    if not hmac.compare_digest(expected, base64.b64decode(answer.get("v", ""))):
        raise AuthenticationFailed("the broker could not prove that it knows the password")


def _fields(message: bytes) -> dict[str, str]:
    return {part[:1]: part[2:] for part in message.decode().split(",")}
