"""Logging in with a provider: a small one on loopback that signs real tokens, and every way it could lie."""

import base64
import hashlib
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa

from moldau.console.gate.oidc import Oidc, OidcSettings
from moldau.console.gate.roles import Role
from tests.console.support import Client, console


class Provider:
    """What it answers can be bent."""

    def __init__(self) -> None:
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.other_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        self.claims: dict[str, Any] = {}
        self.signs_with = self.key
        self.names_its_key = True
        self.more: dict[str, Any] = {}  # of its configuration
        self.secrets: list[tuple[str | None, list[str] | None]] = []
        self.keys = [self.key]
        self.challenges: dict[str, tuple[str, str]] = {}  # code -> challenge, nonce
        provider = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path.endswith("openid-configuration"):
                    names = {"authorization_endpoint": "/auth", "token_endpoint": "/token", "jwks_uri": "/keys"}
                    there = {name: provider.url + path for name, path in names.items()}
                    self._say({"issuer": provider.url, **there, **provider.more})
                else:
                    shown = [
                        {**json.loads(jwt.algorithms.RSAAlgorithm.to_jwk(key.public_key())), "kid": str(number)}
                        for number, key in enumerate(provider.keys, 1)
                    ]
                    self._say({"keys": [{**key, "use": "sig", "alg": "RS256"} for key in shown]})

            def do_POST(self) -> None:
                form = parse_qs(self.rfile.read(int(self.headers["content-length"])).decode())
                provider.secrets.append((self.headers.get("authorization"), form.get("client_secret")))
                challenge, nonce = provider.challenges.pop(form["code"][0])
                digest = hashlib.sha256(form["code_verifier"][0].encode()).digest()
                assert base64.urlsafe_b64encode(digest).rstrip(b"=").decode() == challenge
                now = int(time.time())
                claims = {
                    "iss": provider.url,
                    "aud": "console",
                    "sub": "7",
                    "iat": now,
                    "exp": now + 60,
                    "nonce": nonce,
                }
                named = {"kid": "1"} if provider.names_its_key else None
                token = jwt.encode({**claims, **provider.claims}, provider.signs_with, "RS256", headers=named)
                self._say({"id_token": token})

            def _say(self, what: Any) -> None:
                body = json.dumps(what).encode()
                self.send_response(200)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"


@pytest.fixture
def provider() -> Iterator[Provider]:
    made = Provider()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    thread.join()
    made.server.server_close()


@pytest.fixture
def client(broker: str, provider: Provider) -> Iterator[Client]:
    roles = {"kafka-admins": Role.ADMIN, "developers": Role.VIEWER}
    settings = OidcSettings(provider.url, "console", "secret", "http://127.0.0.1:1", "realm.groups", roles)
    with console(broker, oidc=settings) as opened:
        yield opened


def come_back(client: Client, provider: Provider, **bent: str) -> Any:
    """Begin, be vouched for, come back."""
    away = client.get("/oidc/start?next=/groups")
    assert away.status_code == 303, away.text
    asked = {name: values[0] for name, values in parse_qs(urlsplit(away.headers["location"]).query).items()}
    assert asked["redirect_uri"] == "http://127.0.0.1:1/oidc/callback"
    provider.challenges["c0de"] = (asked["code_challenge"], asked["nonce"])
    return client.get("/oidc/callback", params={"code": "c0de", "state": asked["state"], **bent})


def test_a_login_through_a_provider(client: Client, provider: Provider) -> None:
    assert client.get("/topics").status_code == 303
    provider.claims = {"preferred_username": "vera", "realm": {"groups": ["others", "developers"]}}
    answer = come_back(client, provider)
    assert (answer.status_code, answer.headers["location"]) == (303, "/groups")
    told = client.get("/api/session").json()
    assert (told["name"], told["role"]) == ("vera", "viewer")
    assert client.get("/audit").status_code == 403
    assert client.get("/oidc/callback?code=c0de&state=again").status_code == 403


@pytest.mark.parametrize(
    "claims",
    [
        {"realm": {"groups": ["strangers"]}},
        {"aud": "another", "realm": {"groups": ["developers"]}},
        {"iss": "http://evil.example", "realm": {"groups": ["developers"]}},
        {"exp": 1, "realm": {"groups": ["developers"]}},
        {"nonce": "of another login", "realm": {"groups": ["developers"]}},
    ],
    ids=["no role", "audience", "issuer", "expired", "nonce"],
)
def test_who_is_not_vouched_for_stays_out(client: Client, provider: Provider, claims: dict[str, Any]) -> None:
    provider.claims = claims
    answer = come_back(client, provider)
    assert (answer.status_code, "Logging in failed" in answer.text) == (403, True)
    assert client.get("/api/session").status_code == 401


def test_foreign_keys_states_and_refusals(client: Client, provider: Provider) -> None:
    provider.claims = {"realm": {"groups": ["kafka-admins"]}}
    assert come_back(client, provider, state="guessed").status_code == 403
    assert come_back(client, provider, error="access_denied").status_code == 403
    provider.signs_with = provider.other_key
    assert come_back(client, provider).status_code == 403
    provider.signs_with = provider.key
    assert come_back(client, provider).status_code == 303
    assert client.get("/audit").status_code == 200


@pytest.mark.parametrize("methods", [None, ["client_secret_basic"], ["client_secret_post"]])
def test_the_secret_is_sent_as_the_provider_takes_it(client: Client, provider: Provider, methods: Any) -> None:
    provider.claims = {"realm": {"groups": ["kafka-admins"]}}
    provider.more = {"token_endpoint_auth_methods_supported": methods} if methods else {}
    assert come_back(client, provider).status_code == 303
    basic = "Basic " + base64.b64encode(b"console:secret").decode()
    is_posted = methods == ["client_secret_post"]
    assert provider.secrets == [(None, ["secret"]) if is_posted else (basic, None)]


def test_a_token_that_names_no_key_is_of_the_only_one(client: Client, provider: Provider) -> None:
    """A provider need not say which key it was if it has one; if it has two, nobody guesses."""
    provider.claims = {"realm": {"groups": ["kafka-admins"]}}
    provider.names_its_key = False
    provider.signs_with = provider.other_key
    assert come_back(client, provider).status_code == 403
    provider.signs_with = provider.key
    provider.keys = [provider.key, provider.other_key]
    assert come_back(client, provider).status_code == 403
    provider.keys = [provider.key]
    assert come_back(client, provider).status_code == 303
    assert client.get("/audit").status_code == 200


def test_only_https_issuers_are_asked() -> None:
    with pytest.raises(ValueError, match="https"):
        Oidc(OidcSettings("http://login.example.com", "console"))
