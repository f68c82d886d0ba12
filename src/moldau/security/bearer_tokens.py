"""Bearer tokens: JWTs that somebody else signed, verified with the keys that somebody publishes (JWKS).

Verification is PyJWT's (`pip install 'moldau[security]'`). Keys come from the one place the broker's configuration
names, an https URL or a file; nothing in a token is ever fetched or opened. Only signatures with public keys count.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    from jwt import PyJWK

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
_TOKEN_CHARACTERS_MAX = 64 * 1024
_KEY_SET_BYTES_MAX = 1024 * 1024
_KEYS_MAX = 100
_FETCH_SECONDS_MAX = 10.0
_SECONDS_MAX = 1 << 43  # in milliseconds, less than a 64-bit number holds


class InvalidToken(Exception):
    """Why a token is not accepted: for the audit log. Holds nothing of the token."""


class KeysUnavailable(Exception):
    """The keys could not be had, or not be read."""


@dataclass(slots=True, frozen=True)
class TokenRules:
    """What a token must say, by Kafka's `sasl.oauthbearer.*`."""

    audiences: tuple[str, ...] = ()
    issuer: str | None = None
    subject_claim: str = "sub"
    scope_claim: str = "scope"
    clock_skew_seconds: int = 30


@dataclass(slots=True, frozen=True)
class Bearer:
    """Whom a token speaks for, and until when."""

    name: str
    expires_at_ms: int


class TokenVerifier:
    """Holds the keys of the moment; whoever owns it loads them."""

    def __init__(self, rules: TokenRules) -> None:
        self._rules = rules
        self._keys: dict[str | None, PyJWK] = {}
        self.wants_keys = False
        """A token was signed with a key that is not known: worth asking for new ones."""

    @property
    def has_keys(self) -> bool:
        return bool(self._keys)

    def load(self, data: bytes) -> None:
        """Take a key set. Raises KeysUnavailable; then the former ones stay."""
        import jwt

        if len(data) > _KEY_SET_BYTES_MAX:
            raise KeysUnavailable(f"the key set has more than {_KEY_SET_BYTES_MAX} bytes")
        try:
            told = json.loads(data)["keys"][:_KEYS_MAX]
            public = [each for each in told if each.get("kty") in ("RSA", "EC", "OKP")]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise KeysUnavailable("it is no JSON Web Key Set") from None
        keys: dict[str | None, PyJWK] = {}
        for each in public:
            key_id = each.get("kid")
            try:
                if key_id is None or isinstance(key_id, str):
                    keys[key_id] = jwt.PyJWK(each)
            except (jwt.PyJWTError, NotImplementedError):
                continue  # of a kind this library does not know: others may do
        if not keys:
            raise KeysUnavailable("there is no public key in it that could be used")
        self._keys = keys
        self.wants_keys = False

    def verify(self, token: str, now_ms: int) -> Bearer:
        """Raises InvalidToken."""
        import jwt

        if len(token) > _TOKEN_CHARACTERS_MAX:
            raise InvalidToken("the token is too long")
        rules = self._rules
        try:
            header = jwt.get_unverified_header(token)
            key = self._key_for(header.get("kid"))
            claims = jwt.decode(
                token,
                key,
                algorithms=[key.algorithm_name] if key.algorithm_name in ALGORITHMS else [],
                options={
                    "require": ["exp", "iat", rules.subject_claim],
                    "verify_aud": bool(rules.audiences),
                    "verify_exp": False,
                    "verify_iat": False,
                    "verify_nbf": False,
                },
                audience=rules.audiences or None,
                issuer=rules.issuer,
            )
        except (jwt.PyJWTError, ValueError, TypeError) as error:
            raise InvalidToken(f"{type(error).__name__}") from None
        return self._bearer(claims, now_ms)

    def _key_for(self, key_id: object) -> PyJWK:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        key = self._keys.get(key_id) if isinstance(key_id, str) else None
        if key is None:
            self.wants_keys = True
            raise InvalidToken("it is signed with a key that is not known")
        return key

    def _bearer(self, claims: dict[str, Any], now_ms: int) -> Bearer:
        """Times are those of the broker's clock, which the library does not know."""
        rules = self._rules
        skew_ms = rules.clock_skew_seconds * 1000
        name, expires, begins = claims[rules.subject_claim], claims["exp"], claims.get("nbf", claims["iat"])
        if not isinstance(name, str) or not name:
            raise InvalidToken(f"its claim {rules.subject_claim} is no name")
        if not _is_time(expires) or not _is_time(begins):
            raise InvalidToken("its times are no numbers")
        scope = claims.get(rules.scope_claim, "")
        if not isinstance(scope, str | list):
            raise InvalidToken(f"its claim {rules.scope_claim} is neither text nor a list")
        if expires * 1000 + skew_ms <= now_ms:
            raise InvalidToken("it has expired")
        if begins * 1000 - skew_ms > now_ms:
            raise InvalidToken("it is not valid yet")
        return Bearer(name, int(expires * 1000))


def _is_time(value: object) -> bool:
    """Seconds that a clock could show. JSON as Python reads it also knows NaN and Infinity, and numbers of any
    length; true is a number, too."""
    return isinstance(value, int | float) and not isinstance(value, bool) and -_SECONDS_MAX <= value <= _SECONDS_MAX


def check_key_url(url: str) -> None:
    """ValueError unless it is an https URL or names a file."""
    parts = urlsplit(url)
    if parts.scheme == "https" and parts.hostname:
        return
    if parts.scheme == "file" and not parts.netloc and parts.path:
        return
    raise ValueError("it must be https://… or file:///…")


def is_file(url: str) -> bool:
    return urlsplit(url).scheme == "file"


def fetch_keys(url: str) -> bytes:
    """Blocks, for seconds at most. Raises KeysUnavailable. Redirections are not followed: they might lead anywhere."""
    from http.client import HTTPException, HTTPSConnection
    from ssl import create_default_context

    parts = urlsplit(url)
    if parts.scheme == "file":
        try:
            with open(unquote(parts.path), "rb") as file:
                return file.read(_KEY_SET_BYTES_MAX + 1)
        except OSError as error:
            raise KeysUnavailable(f"{parts.path} cannot be read: {error.strerror}") from None
    if parts.hostname is None:
        raise KeysUnavailable(f"{url!r} names no host")
    connection = HTTPSConnection(
        parts.hostname, parts.port, timeout=_FETCH_SECONDS_MAX, context=create_default_context()
    )
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("GET", path, headers={"Accept": "application/json"})
        answer = connection.getresponse()
        if answer.status != 200:
            raise KeysUnavailable(f"{parts.hostname} answered {answer.status}")
        return answer.read(_KEY_SET_BYTES_MAX + 1)
    except (OSError, HTTPException) as error:
        raise KeysUnavailable(f"{parts.hostname} cannot be asked: {error}") from None
    finally:
        connection.close()
