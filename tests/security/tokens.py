"""An issuer of bearer tokens, with a key set in a file."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm


class Issuer:
    def __init__(self, folder: Path) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.file = folder / "keys.json"
        self.write("key-1")

    def key_set(self, key_id: str) -> bytes:
        public = RSAAlgorithm.to_jwk(self.key.public_key(), as_dict=True) | {"kid": key_id, "alg": "RS256"}
        return json.dumps({"keys": [public]}).encode()

    def write(self, key_id: str) -> None:
        self.file.write_bytes(self.key_set(key_id))

    def token(self, *, key_id: str = "key-1", **claims: Any) -> str:
        now = int(time.time())
        told = {"sub": "olga", "iat": now, "exp": now + 300, "aud": "rivers", "iss": "tests"} | claims
        return jwt.encode(
            {key: value for key, value in told.items() if value is not None}, self.key, "RS256", {"kid": key_id}
        )
