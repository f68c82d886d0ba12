"""Addresses and answers of schema registries: what the toolkit, Spark, the console and the command line stand on."""

import threading
import traceback
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from moldau.client.schema_registry import RegistryAddress, RegistryAway, RegistryRefusal, ask_registry
from moldau.spark.registry.client import RegistrySettings
from moldau.toolkit.errors import SetupError
from moldau.toolkit.registry import Registry
from tests.spark.fake_registry import running


@pytest.mark.parametrize(
    ("given", "url", "login"),
    [
        ("http://h:1", "http://h:1", ""),
        ("https://h/a/b/", "https://h/a/b", ""),
        ("http://u:p@h:1/x", "http://h:1/x", "u:p"),
        ("http://u@h", "http://h", "u:"),
        ("http://a%40b:p%2Fw%3A%3A@h:1", "http://h:1", "a@b:p/w::"),
        ("http://u:p@[::1]:8081", "http://[::1]:8081", "u:p"),
    ],
)
def test_addresses_and_the_logins_in_them(given: str, url: str, login: str) -> None:
    import base64

    expected = f"Basic {base64.b64encode(login.encode()).decode()}" if login else ""
    found = RegistryAddress.parse(given)
    assert (found.url, found.login) == (url, expected)
    assert repr(found) == f"RegistryAddress(url={url!r})"
    assert Registry(given).url == url
    assert RegistrySettings.parse({"url": given}).url == url


@pytest.mark.parametrize(
    "given",
    [
        "",
        "h:8081",
        "ftp://h",
        "http://",
        "http://u:secret@",
        "http://u:secret@h:99999",
        "http://u:secret@[::1",
        "http://h:x",
    ],
)
def test_what_is_no_address_is_said_without_the_login(given: str) -> None:
    with pytest.raises(ValueError, match="is no address of a schema registry") as raised:
        RegistryAddress.parse(given)
    assert "secret" not in str(raised.value)
    with pytest.raises(SetupError):
        Registry(given)
    with pytest.raises(ValueError, match=r"schema\.registry\.url"):
        RegistrySettings.parse({"url": given})


def test_a_user_or_a_token_beside_the_address() -> None:
    assert RegistryAddress.parse("http://h", user_info="u:p").login == "Basic dTpw"
    assert RegistryAddress.parse("http://h", user_info="u:p", token="t").login == "Bearer t"
    with running("u:p") as fake:
        fake.add("s", {"type": "string"})
        address = RegistryAddress.parse(fake.url, user_info="u:p")
        assert ask_registry(address, "GET", "/subjects", timeout_s=5, follows=False) == ["s"]
        with pytest.raises(RegistryRefusal) as refused:
            ask_registry(RegistryAddress.parse(fake.url), "GET", "/subjects", timeout_s=5, follows=False)
        assert (refused.value.status, refused.value.code) == (401, None)
        with pytest.raises(RegistryRefusal) as missing:
            ask_registry(address, "GET", "/subjects/none/versions", timeout_s=5, follows=False)
        assert (missing.value.status, missing.value.code) == (404, 40401)
    with pytest.raises(RegistryAway, match="refused"):
        ask_registry(address, "GET", "/subjects", timeout_s=5, follows=False)


@pytest.mark.parametrize("url", ["http://a..b:1", "http://h:1/\u00e4", "http://h:1/a b"])
def test_an_address_that_cannot_be_asked_is_no_bad_answer(url: str) -> None:
    with pytest.raises(RegistryAway, match="address or login has characters") as raised:
        ask_registry(RegistryAddress.parse(url), "POST", "/subjects", {}, timeout_s=5, follows=False)
    assert not raised.value.was_sent


def test_a_token_that_cannot_be_sent_is_not_shown() -> None:
    address = RegistryAddress.parse("http://h:1", token="\n" + "x" * 9)
    with pytest.raises(RegistryAway, match="address or login") as raised:
        ask_registry(address, "GET", "/", timeout_s=5, follows=False)
    assert "x" * 9 not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("status", [200, 404])
def test_nesting_without_end_is_no_answer_of_a_registry(status: int) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b"[" * 100_000)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.handle_request, daemon=True).start()
        address = RegistryAddress.parse(f"http://127.0.0.1:{server.server_port}")
        with pytest.raises((RegistryAway, RegistryRefusal)) as raised:
            ask_registry(address, "GET", "/", timeout_s=5, follows=False)
    assert isinstance(raised.value, RegistryAway if status == 200 else RegistryRefusal)
