"""What somebody who means harm would try: each of these was a hole once."""

import asyncio
import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from moldau.cli import console as command
from moldau.cli.frame import Target
from moldau.console import pipelines
from moldau.console.gate.audit import shown
from moldau.console.gate.roles import Role
from moldau.console.gate.sessions import _SESSIONS_MAX, Person, Sessions
from moldau.console.messages import reading, tail
from moldau.console.messages.decoding import decode
from moldau.console.messages.masking import WHOLE, Masks, parse_masks
from moldau.console.messages.records import Lens
from moldau.console.messages.registry import RegistryReader, RegistryTrouble
from moldau.console.messages.text import visible
from moldau.console.screens.toolkit import _step
from moldau.console.settings import ConsoleSettings
from moldau.spark.pipelines.redrive import original
from moldau.spark.registry import client as spark_registry
from moldau.toolkit.registry import Registry
from tests.console.support import Client, eventually, fragment

CARD = "4111111111111111"
MASKS = Masks(parse_masks("pay* value.card.number hide\npay* header.error hide"))


# ---- masking --------------------------------------------------------------------------------------------------------


def test_fields_by_number_are_no_way_around_rules_about_names() -> None:
    protobuf = b"\x0a\x10" + CARD.encode()
    assert decode(protobuf, "protobuf").tree == {"1": CARD}
    assert MASKS.apply("pay", "value", decode(protobuf, "protobuf")) == WHOLE


@pytest.mark.parametrize("value", [CARD, json.dumps(json.dumps({"card": {"number": CARD}})), f'{{"card": "{CARD}"}}'])
def test_what_stands_where_masked_fields_should_be_is_hidden(value: str) -> None:
    assert CARD not in MASKS.apply("pay", "value", decode(value.encode())).text


@pytest.mark.parametrize("topic", ["moldau-delays", "moldau-delays-pending", "moldau-delays-dlt"])
def test_envelopes_of_delayed_records_are_masked_whole(topic: str) -> None:
    assert MASKS.apply(topic, "value", decode(b'{"any": "thing"}')) == WHOLE
    assert MASKS.concern(topic)
    assert not Masks(()).concern(topic)


def test_records_may_only_be_sent_where_as_much_is_hidden() -> None:
    assert MASKS.cover("pay-dlt", "pay")
    assert not MASKS.cover("pay-dlt", "orders")
    assert MASKS.cover("orders-dlt", "anything")


# ---- records that break what shows them -----------------------------------------------------------------------------


def test_half_a_surrogate_pair_is_spelled_out() -> None:
    visible(decode(b'"\\ud800"').text).encode()


class _Trace:
    def __init__(self, value: bytes) -> None:
        self._value = value

    def value(self) -> bytes:
        return self._value


@pytest.mark.parametrize("value", [b'{"at_ms": Infinity, "event": "x"}', b"[" * 100_000])
def test_a_trace_that_is_none_is_left_out(value: bytes) -> None:
    assert _step(_Trace(value)) is None


def test_a_status_file_that_is_none_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / pipelines._STATUS
    file.write_text('{"running": false, "queries": [], "pipeline": "p", "time": 1e999}')
    assert pipelines.find_pipelines([tmp_path]) == []
    file.write_text(file.read_text().replace("1e999", "1"))
    assert len(pipelines.find_pipelines([tmp_path])) == 1


def test_one_evil_record_spoils_neither_lists_nor_files(client: Client, broker: str) -> None:
    admin = AdminClient({"bootstrap.servers": broker, "log_level": 0})
    any_time = {"message.timestamp.after.max.ms": str((1 << 63) - 1)}
    admin.create_topics([NewTopic("evil", 1, 1, config=any_time)])["evil"].result(20)
    producer = Producer({"bootstrap.servers": broker, "log_level": 0})
    producer.produce("evil", b'{"a": "\\ud800"}', timestamp=1 << 60)
    producer.produce("evil", None, b"=1+1")
    producer.flush(20)
    eventually(lambda: "evil" in client.house.snapshot.topics, "the console sees the topic")
    assert "D800" in fragment(client, "/topics/evil/messages")
    lines = client.get("/topics/evil/download").text.splitlines()
    assert sorted(str(json.loads(line)["value"]) for line in lines) == ["None", "{'a': '\\ud800'}"]
    table = client.get("/topics/evil/download?format=csv").text
    assert str(1 << 60) in table
    assert ",'=1+1,,{}" in table
    answer = client.get("/api/topics/evil/messages?limit=--5")
    assert (answer.status_code, "whole number" in answer.text) == (400, True)


@pytest.mark.parametrize("name", [b"\xff", b"", b"a b", b"../x", b"t" * 250])
def test_a_letter_of_a_pipeline_from_nowhere_goes_nowhere(name: bytes) -> None:
    assert original([("x-original-topic", name), ("mine", b"1")]) == (None, [("mine", b"1")])
    assert original([("x-original-topic", b"orders")]) == ("orders", [])


class _Reader:
    """A consumer whose every record breaks the one who looks at it."""

    def assign(self, _: Any) -> None:
        pass

    def consume(self, *_: Any) -> Any:
        raise ZeroDivisionError

    def close(self) -> None:
        pass


def test_a_tail_that_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "consumer", lambda _: _Reader())
    made = tail._Tail({}, "t", [0], Lens("t", MASKS), None, "viewer")
    made.run()
    assert "ZeroDivisionError" in made.take()[2]


# ---- the gate -------------------------------------------------------------------------------------------------------


def test_a_body_that_does_not_say_its_length_has_a_limit(client: Client) -> None:
    host = client.origin.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=20)
    kind = {"content-type": "application/json", "transfer-encoding": "chunked", "host": host}
    try:
        connection.request("POST", "/login", (b" " * 32_768 for _ in range(3)), kind, encode_chunked=True)
        assert connection.getresponse().status == 413
    finally:
        connection.close()


@pytest.mark.parametrize("body", [b"[" * 50_000, b'{"csrf": "\\ud800"}', b'{"name": "\\ud800"}'])
def test_odd_json_is_refused_in_words(client: Client, body: bytes) -> None:
    answer = client.post("/login", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 403)
    assert "error" in answer.json()


def test_a_form_of_very_many_fields_is_refused(client: Client) -> None:
    kind = {"content-type": "application/x-www-form-urlencoded"}
    assert client.post("/login", content=b"a=&" * 1_000, headers=kind).status_code == 400


def test_strangers_cannot_push_people_out() -> None:
    sessions = Sessions()
    anna = sessions.begin(Person("anna", Role.ADMIN))
    for _ in range(_SESSIONS_MAX + 1):
        sessions.begin(Person("", Role.ANYBODY))
    assert sessions.find(anna.id) is anna
    sessions.end(anna)
    assert not sessions.is_open(anna)


def test_an_open_page_keeps_no_session_alive_for_ever() -> None:
    now = 0.0
    sessions = Sessions(lambda: now)
    anna = sessions.begin(Person("anna", Role.ADMIN))
    for hour in range(24):
        now = hour * 3_600.0
        assert sessions.find(anna.id) is anna
    now = 24 * 3_600.0 + 1
    assert sessions.find(anna.id) is None


def test_many_logins_leave_threads_for_those_who_are_in(client: Client) -> None:
    release = threading.Event()

    async def crowd() -> tuple[str, bool]:
        house = client.house
        waiting = [asyncio.create_task(house.ask_for_login(release.wait, 20)) for _ in range(9)]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return str(done.pop().exception()), await house.ask(lambda: True, timeout_s=5)
        finally:
            release.set()
            await asyncio.gather(*waiting, return_exceptions=True)

    told, was_answered = asyncio.run(crowd())
    assert told.startswith("Too many people")
    assert was_answered


def test_a_console_behind_an_https_address_marks_its_cookies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "oidc.properties"
    file.write_text("issuer=https://login.example\nclient.id=c\npublic.url=https://console.example/\n")
    made: list[ConsoleSettings] = []
    monkeypatch.setattr(command, "_serve", lambda settings, *_, **__: made.append(settings))
    command.console(Target({"bootstrap.servers": "127.0.0.1:9092"}), listen="0.0.0.0:8080", oidc=file)
    assert made[0].is_secure
    assert "console.example" in made[0].hosts


def test_the_audit_trail_keeps_no_secret_settings() -> None:
    assert "hunter2" not in str(shown({"setting": "ssl.keystore.password", "setting_value": "hunter2"}))
    assert shown({"setting": "retention.ms", "setting_value": "7"})["setting_value"] == "7"


# ---- whom we ask ----------------------------------------------------------------------------------------------------


@contextmanager
def _server(status: int, location: str, seen: list[Any]) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("authorization"))
            self.send_response(status)
            self.send_header("location", location)
            self.end_headers()
            self.wfile.write(b'{"schema": "x"}')

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_registry_cannot_send_us_and_our_login_elsewhere() -> None:
    stolen: list[Any] = []
    with (
        _server(200, "", stolen) as elsewhere,
        _server(302, f"http://{elsewhere}/", []) as registry,
        pytest.raises(RegistryTrouble, match="302"),
    ):
        RegistryReader(f"http://me:secret@{registry}").subjects()
    assert stolen == []


def _ask_of_the_toolkit(url: str) -> str:
    return Registry(url).fetch(1).text


def _ask_of_spark(url: str) -> str:
    return spark_registry.Registry(spark_registry.RegistrySettings.parse({"url": url})).schema(1).text


@pytest.mark.parametrize("ask", [_ask_of_the_toolkit, _ask_of_spark])
def test_a_redirect_of_a_registry_is_followed_without_our_login(ask: Callable[[str], str]) -> None:
    asked: list[Any] = []
    stolen: list[Any] = []
    with _server(200, "", stolen) as elsewhere, _server(302, f"http://{elsewhere}/", asked) as registry:
        assert ask(f"http://me:secret@{registry}") == "x"
    assert asked[0].startswith("Basic ")
    assert stolen == [None]
