"""Users and delegation tokens of the cluster's metadata, as SCRAM needs them.

Keys of tokens are derived when a token first comes, and kept: deriving takes milliseconds, and so does being asked for
tokens that do not exist. Those get a decoy, which costs next to nothing.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
from collections.abc import Callable

from moldau.controller.delegation_tokens import is_expired, token_hmac
from moldau.controller.image import ClusterImage, ScramKey
from moldau.controller.scram import decoy_secret
from moldau.security.principal import Principal
from moldau.security.sasl.mechanism import SCRAM_SHA_256, SCRAM_SHA_512
from moldau.security.sasl.scram import ITERATIONS_MIN, ScramKeys, TokenKeys, derive_keys

_NUMBERS = {SCRAM_SHA_256: 1, SCRAM_SHA_512: 2}
_SALT_BYTES = 26  # as long as Kafka's tools make it
_TOKENS_KEPT_MAX = 10_000
_KINDS_MAX = 16
_Kind = tuple[int, int]


class ClusterUsers:
    """See `moldau.security.sasl.scram.ScramUsers`. `image` gives the newest one."""

    def __init__(self, image: Callable[[], ClusterImage], token_secret: str | None = None) -> None:
        self._image = image
        self._token_secret = token_secret
        self._token_keys: dict[tuple[str, str], ScramKeys] = {}
        self._fallback_secret = os.urandom(32)
        self._models: tuple[object, dict[int, list[_Kind]], bytes] = (None, {}, b"")

    def keys_of(self, user: str, mechanism: str) -> ScramKeys | None:
        found = self._image().scram.get(ScramKey(user, _NUMBERS[mechanism]))
        if found is None:
            return None
        return ScramKeys(found.salt, found.stored_key, found.server_key, found.iterations)

    def token_keys_of(self, token_id: str, mechanism: str, now_ms: int) -> TokenKeys | None:
        token = self._image().delegation_tokens.get(token_id)
        if token is None or self._token_secret is None or is_expired(token, now_ms):
            return None
        keys = self._token_keys.get((token_id, mechanism))
        if keys is None:
            if len(self._token_keys) >= _TOKENS_KEPT_MAX:
                self._token_keys.clear()
            password = base64.b64encode(token_hmac(self._token_secret, token_id)).decode()
            keys = derive_keys(mechanism, password, os.urandom(_SALT_BYTES), ITERATIONS_MIN)
            self._token_keys[token_id, mechanism] = keys
        until_ms = min(token.expiration_timestamp_ms, token.max_timestamp_ms)
        return TokenKeys(keys, Principal.parse(token.owner), until_ms)

    def decoy_keys(self, user: str, mechanism: str) -> ScramKeys:
        """Salt and iterations like those of some user there is. What they depend on is secret, the same on every node
        of the cluster, and stays when users come and go: asking twice, later or elsewhere, gives nothing away."""
        kinds, secret = self._known(mechanism)
        seed = hmac.digest(secret, f"{mechanism} {user}".encode("utf-8", "surrogatepass"), "sha512")
        salt_bytes, iterations = _SALT_BYTES, ITERATIONS_MIN
        if kinds:  # the one that goes best with the seed: another kind that comes or goes changes few of them
            salt_bytes, iterations = min(kinds, key=lambda kind: hmac.digest(seed, b"%d %d" % kind, "sha256"))
        stream = hashlib.shake_256(seed).digest(salt_bytes)
        return ScramKeys(stream, hmac.digest(seed, b"stored", _HASH[mechanism]), os.urandom(32), iterations)

    def _known(self, mechanism: str) -> tuple[list[_Kind], bytes]:
        """Lengths of salts and iterations that users of the mechanism have; and what decoys are made of."""
        image = self._image()
        if self._models[0] is not image.scram:
            kinds: dict[int, set[_Kind]] = {}
            for key, each in image.scram.items():
                kinds.setdefault(key.mechanism, set()).add((len(each.salt), max(each.iterations, ITERATIONS_MIN)))
            few = {number: sorted(each)[:_KINDS_MAX] for number, each in kinds.items()}
            self._models = (image.scram, few, decoy_secret(image) or self._fallback_secret)
        return self._models[1].get(_NUMBERS[mechanism], []), self._models[2]


_HASH = {SCRAM_SHA_256: "sha256", SCRAM_SHA_512: "sha512"}
