"""Logging in with a provider (OpenID Connect): the authorization code flow with PKCE, and claims that become a role.

All addresses come from the issuer the console was started with; nothing of a request decides whom we ask. Blocking.
"""

from __future__ import annotations

import base64
import hashlib
import json
import secrets
import threading
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from moldau.console.gate.roles import Role
from moldau.console.gate.sessions import Person

_PLAIN = {"Accept": "application/json"}
_TIMEOUT_S = 8.0
_ANSWER_BYTES_MAX = 1 << 20
_ALGORITHMS = ["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA"]
_CLOCK_S = 60
_LOOPBACK = ("127.0.0.1", "localhost", "::1")


class LoginFailed(Exception):
    """The provider did not vouch for anybody; says why."""


@dataclass(slots=True, frozen=True)
class OidcSettings:
    """A provider people log in with, and which of its claims says what they may do here."""

    issuer: str
    client_id: str
    client_secret: str = field(repr=False, default="")
    public_url: str = ""  # where browsers reach the console: the provider sends them back there
    role_claim: str = "roles"
    roles: Mapping[str, Role] = field(default_factory=dict)  # value of the claim -> role
    default_role: Role | None = None
    scopes: str = "openid profile email"


class Oidc:
    def __init__(self, settings: OidcSettings) -> None:
        parts = urllib.parse.urlsplit(settings.issuer)
        if parts.scheme != "https" and parts.hostname not in _LOOPBACK:
            raise ValueError(f"the issuer {settings.issuer!r} must be an https address")
        self._settings = settings
        self._lock = threading.Lock()
        self._found: dict[str, Any] | None = None
        self._keys: Any = None

    @property
    def _redirect(self) -> str:
        return self._settings.public_url.rstrip("/") + "/oidc/callback"

    def begin(self) -> tuple[str, dict[str, str]]:
        """Where the browser goes, and what its session must remember until it is back."""
        verifier, state, nonce = (secrets.token_urlsafe(48) for _ in range(3))
        challenge = base64.urlsafe_b64encode(hashlib.sha256(verifier.encode()).digest()).rstrip(b"=").decode()
        query = {
            "response_type": "code",
            "client_id": self._settings.client_id,
            "redirect_uri": self._redirect,
            "scope": self._settings.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": challenge,
            "code_challenge_method": "S256",
        }
        address = str(self._provider()["authorization_endpoint"]) + "?" + urllib.parse.urlencode(query)
        return address, {"oidc_state": state, "oidc_nonce": nonce, "oidc_verifier": verifier}

    def finish(self, notes: Mapping[str, str], state: str, code: str, refusal: str = "") -> Person:
        """Who came back; `refusal` is what the provider says instead, if it does."""
        if refusal:
            raise LoginFailed(f"the provider says: {refusal}")
        expected = notes.get("oidc_state", "")
        if not expected or not secrets.compare_digest(expected.encode(), state.encode()):
            raise LoginFailed("the answer does not belong to a login that was begun in this browser: try again")
        body = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": self._redirect,
            "client_id": self._settings.client_id,
            "code_verifier": notes.get("oidc_verifier", ""),
        }
        provider, secret, headers = self._provider(), self._settings.client_secret, {}
        if secret and "client_secret_post" in (provider.get("token_endpoint_auth_methods_supported") or ()):
            body["client_secret"] = secret
        elif secret:  # what a provider takes that says nothing about it
            pair = ":".join(urllib.parse.quote_plus(each) for each in (self._settings.client_id, secret))
            headers["Authorization"] = "Basic " + base64.b64encode(pair.encode()).decode()
        answer = _call(str(provider["token_endpoint"]), body, headers)
        claims = self._verified(str(answer.get("id_token", "")), notes.get("oidc_nonce", ""))
        return Person(_name(claims), self.role_of(claims))

    def role_of(self, claims: Mapping[str, Any]) -> Role:
        """The highest of the roles its claim leads to. A claim may lie inside of others: realm_access.roles."""
        found: Any = claims
        for part in self._settings.role_claim.split("."):
            found = found.get(part) if isinstance(found, Mapping) else None
        values = [found] if isinstance(found, str) else found if isinstance(found, list) else []
        roles = [self._settings.roles[str(value)] for value in values if str(value) in self._settings.roles]
        if roles:
            return max(roles)
        if self._settings.default_role is None:
            raise LoginFailed(f"{_name(claims)} has no role here: ask whoever runs this console")
        return self._settings.default_role

    def _verified(self, token: str, nonce: str) -> Mapping[str, Any]:
        import jwt

        provider = self._provider()
        with self._lock:
            if self._keys is None:
                self._keys = jwt.PyJWKClient(str(provider["jwks_uri"]), timeout=_TIMEOUT_S, max_cached_keys=16)
            keys = self._keys
        try:
            claims: dict[str, Any] = jwt.decode(
                token,
                _key(keys, token),
                algorithms=_ALGORITHMS,
                audience=self._settings.client_id,
                issuer=str(provider["issuer"]),
                leeway=_CLOCK_S,
                options={"require": ["exp", "iat", "iss", "aud", "sub"]},
            )
        except jwt.PyJWTError as error:
            raise LoginFailed(f"the provider's token is not valid: {error}") from error
        if not nonce or not secrets.compare_digest(str(claims.get("nonce", "")).encode(), nonce.encode()):
            raise LoginFailed("the provider's token belongs to another login")
        return claims

    def _provider(self) -> dict[str, Any]:
        with self._lock:
            if self._found is not None:
                return self._found
        found = _call(self._settings.issuer.rstrip("/") + "/.well-known/openid-configuration", None)
        needed = ("issuer", "authorization_endpoint", "token_endpoint", "jwks_uri")
        if any(not isinstance(found.get(name), str) for name in needed):
            raise LoginFailed("the provider's configuration is incomplete")
        if str(found["issuer"]).rstrip("/") != self._settings.issuer.rstrip("/"):
            raise LoginFailed(f"the provider calls itself {found['issuer']}, and not {self._settings.issuer}")
        with self._lock:
            self._found = found
        return found


def _key(keys: Any, token: str) -> Any:
    """The key a token names. One that names none is signed with the only key there is: providers may do so."""
    import jwt

    if "kid" in jwt.get_unverified_header(token):
        return keys.get_signing_key_from_jwt(token).key
    found = [each for each in keys.get_jwk_set(refresh=True).keys if each.public_key_use in ("sig", None)]
    if len(found) != 1:
        raise jwt.PyJWTError("it does not say which of the provider's keys it was signed with")
    return found[0].key


def _name(claims: Mapping[str, Any]) -> str:
    for claim in ("preferred_username", "email", "name", "sub"):
        if isinstance(claims.get(claim), str) and claims[claim]:
            return str(claims[claim])[:200]
    return "?"


def _call(address: str, form: Mapping[str, str] | None, headers: Mapping[str, str] = _PLAIN) -> dict[str, Any]:
    data = urllib.parse.urlencode(form).encode() if form is not None else None
    request = urllib.request.Request(address, data, {**_PLAIN, **headers})  # noqa: S310  of the issuer
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310  of the issuer
            found = json.loads(answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(300).decode(errors="replace")
        raise LoginFailed(f"the provider answers {error.code}: {said}") from error
    except (OSError, ValueError) as error:
        raise LoginFailed(f"the provider cannot be asked: {error}") from error
    if not isinstance(found, dict):
        raise LoginFailed("the provider answers with something that is no object")
    return found
