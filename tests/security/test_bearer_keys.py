"""Where the keys of bearer tokens come from: one https URL or file, fetched again when a token names a new one."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from moldau.broker.node import bearer_keys
from moldau.security.bearer_tokens import KeysUnavailable, TokenRules, TokenVerifier, fetch_keys
from tests.net.certificates import make_context, make_identity
from tests.security.secured import Secured
from tests.security.test_hostile_logins import raw


@contextmanager
def key_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Answers `/keys`, sends `/away` to somewhere else, and talks without end at `/long`."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response({"/keys": 200, "/long": 200, "/away": 302}.get(self.path, 404))
            if self.path == "/away":
                self.send_header("Location", "/keys")
            self.end_headers()
            self.wfile.write(b"x" * 3_000_000 if self.path == "/long" else b"the keys")

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002 - its name in the library

    authority = make_identity([("CN", "authority")])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    identity = make_identity([("CN", "localhost")], authority)
    context = make_context(folder, identity, authority, server_side=True)
    server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    (folder / "ca.pem").write_text(authority.certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "ca.pem"))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"https://localhost:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_keys_over_https(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with key_server(tmp_path, monkeypatch) as url:
        assert fetch_keys(f"{url}/keys") == b"the keys"
        for path, told in (("/away", "answered 302"), ("/nothing", "answered 404")):
            with pytest.raises(KeysUnavailable, match=told):
                fetch_keys(url + path)
        assert len(fetch_keys(f"{url}/long")) == 1024 * 1024 + 1  # one more than is taken
        monkeypatch.delenv("SSL_CERT_FILE")
        with pytest.raises(KeysUnavailable, match="certificate"):
            fetch_keys(f"{url}/keys")
    with pytest.raises(KeysUnavailable, match="cannot be asked"):
        fetch_keys(f"{url}/keys")


def test_keys_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "the keys.json").write_bytes(b"keys")
    assert fetch_keys((tmp_path / "the keys.json").as_uri()) == b"keys"
    with pytest.raises(KeysUnavailable, match="cannot be read"):
        fetch_keys((tmp_path / "others").as_uri())


@pytest.mark.parametrize("odd", [{"kid": ["x"]}, {"kid": {}}, {"alg": "none"}])
def test_one_odd_key_does_not_spoil_the_others(secured: Secured, odd: dict[str, object]) -> None:
    (good,) = json.loads(secured.issuer.key_set("key-1"))["keys"]
    verifier = TokenVerifier(TokenRules())
    verifier.load(json.dumps({"keys": [good | odd, good]}).encode())
    assert verifier.has_keys


def test_keys_without_end_are_none() -> None:
    with pytest.raises(KeysUnavailable):
        TokenVerifier(TokenRules()).load(b'{"keys":' + b"[" * 200_000)


def test_new_keys_are_fetched_when_a_token_names_one(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bearer_keys, "_ASK_AGAIN_MS", 0.0)

    def is_believed(key_id: str) -> bool:
        with raw(secured.port("SASL_PLAINTEXT")) as peer:
            peer.shake_hands("OAUTHBEARER")
            token = secured.issuer.token(key_id=key_id)
            answer = peer.authenticate(f"n,,\x01auth=Bearer {token}\x01\x01".encode())
            return bool(answer.error_code == 0 and not answer.auth_bytes)

    def until_believed(key_id: str) -> None:
        deadline = time.monotonic() + 10
        while not is_believed(key_id):
            assert time.monotonic() < deadline
            time.sleep(0.05)

    assert is_believed("key-1")
    secured.issuer.write("key-2")
    try:
        until_believed("key-2")
        assert not is_believed("key-1")
    finally:
        secured.issuer.write("key-1")
        until_believed("key-1")
