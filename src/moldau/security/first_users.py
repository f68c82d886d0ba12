"""`--add-scram`: the users a new cluster begins with, written as Kafka's `kafka-storage format` takes them.

SCRAM-SHA-512=[name=alice,password=alice-secret]
SCRAM-SHA-256=[name=bob,iterations=8192,salt="MWx…",saltedpassword="mT0…"]
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from dataclasses import dataclass, field

from moldau.security.sasl.scram import HASHES, ITERATIONS_MAX, ITERATIONS_MIN, ScramKeys, derive_keys, keys_from_salted

_ARGUMENT = re.compile(r"(SCRAM-SHA-(?:256|512))=\[(.*)\]", re.DOTALL)
_FIELD = re.compile(r'([a-z]+)=(?:"((?:[^"\\]|\\.)*)"|([^,]*))(?:,|$)')
_FIELDS = frozenset({"name", "password", "iterations", "salt", "saltedpassword"})
_SALT_BYTES = 26


@dataclass(slots=True, frozen=True)
class FirstUser:
    mechanism: str
    name: str
    keys: ScramKeys = field(repr=False)


def parse_first_user(text: str) -> FirstUser:
    """ValueError says what is wrong, and never the password."""
    found = _ARGUMENT.fullmatch(text.strip())
    if found is None:
        raise ValueError("write it as SCRAM-SHA-512=[name=USER,password=PASSWORD]")
    mechanism, inside = found.groups()
    fields = _fields(inside)
    name, password, salted = fields.get("name"), fields.get("password"), fields.get("saltedpassword")
    if not name:
        raise ValueError("it must say name=USER")
    if (password is None) == (salted is None):
        raise ValueError("it must say password or saltedpassword, and not both")
    iterations = int(fields["iterations"]) if fields.get("iterations", "").isdecimal() else ITERATIONS_MIN
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise ValueError(f"iterations must lie between {ITERATIONS_MIN} and {ITERATIONS_MAX}")
    salt = _unbase64("salt", fields["salt"]) if "salt" in fields else os.urandom(_SALT_BYTES)
    if password is not None:
        return FirstUser(mechanism, name, derive_keys(mechanism, password, salt, iterations))
    assert salted is not None
    if "salt" not in fields:
        raise ValueError("saltedpassword needs the salt that it was made with")
    return FirstUser(
        mechanism, name, keys_from_salted(mechanism, _unbase64("saltedpassword", salted), salt, iterations)
    )


def first_user(mechanism: str, name: str, password: str) -> FirstUser:
    if mechanism not in HASHES:
        raise ValueError(f"there is no mechanism {mechanism}; there are {', '.join(HASHES)}")
    return FirstUser(mechanism, name, derive_keys(mechanism, password, os.urandom(_SALT_BYTES), ITERATIONS_MIN))


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    position = 0
    while position < len(text):
        found = _FIELD.match(text, position)
        if found is None or found[1] not in _FIELDS or found.end() == position:
            raise ValueError(f"inside the brackets there may be {', '.join(sorted(_FIELDS))}, each as name=value")
        quoted = found[2]
        fields[found[1]] = found[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
        position = found.end()
    return fields


def _unbase64(name: str, text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise ValueError(f"{name} must be base64") from None
