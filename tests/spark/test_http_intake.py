"""Events by HTTP: a caller that was told 200 finds its event in the topic; nobody else's bytes get in."""

import http.client
import json
import socket
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from moldau.spark.pipelines import PipelineError, http_intake, loads, model
from moldau.spark.pipelines.http_intake import Intake, open_intakes
from moldau.spark.pipelines.shadow import shadow_of
from moldau.spark.pipelines.validate import validate
from moldau.testing import Broker
from tests.support.clients import create_topic, read_all


def pipeline_of(bootstrap: str, topic: str, http: str = "127.0.0.1:0", token: str = "s3cret") -> model.Pipeline:
    return loads(
        f"name: p\nkafka: {{bootstrap.servers: '{bootstrap}'}}\n"
        f"sources: {{a: {{topic: '{topic}', http: '{http}', http_token: '{token}'}}}}\nsinks: [console: 1]",
        "p.yaml",
    )


@pytest.fixture
def topic(bootstrap: str) -> str:
    return create_topic(bootstrap)


@pytest.fixture
def intake(bootstrap: str, topic: str) -> Iterator[Intake]:
    (opened,) = open_intakes(pipeline_of(bootstrap, topic))
    yield opened
    opened.close()


def post(port: int, body: bytes, path: str = "/", **headers: str) -> tuple[int, dict[str, object]]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("POST", path, body, {"Authorization": "Bearer s3cret", **headers})
    answer = connection.getresponse()
    found = answer.status, json.loads(answer.read())
    connection.close()
    return found


def test_what_was_answered_is_in_the_topic(intake: Intake, bootstrap: str, topic: str) -> None:
    assert post(intake.port, b'{"n": 1}') == (200, {"written": 1})
    assert post(intake.port, b'{"n": 2}', "/?key=amy%C3%A9") == (200, {"written": 1})
    lines = b'{"n": 3}\r\n\n{"n": 4}\n'
    assert post(intake.port, lines, **{"Content-Type": "application/x-ndjson; charset=utf-8"}) == (200, {"written": 2})
    found = [(message.key(), message.value()) for message in read_all(bootstrap, topic)]
    assert found == [
        (None, b'{"n": 1}'),
        ("amyé".encode(), b'{"n": 2}'),
        (None, b'{"n": 3}'),
        (None, b'{"n": 4}'),
    ]


def test_who_may_not_and_what_is_too_much(intake: Intake, bootstrap: str, topic: str) -> None:
    assert post(intake.port, b"x", Authorization="Bearer wrong")[0] == 401
    assert post(intake.port, b"x", Authorization="s3cret")[0] == 401
    assert post(intake.port, b"")[0] == 400
    assert post(intake.port, b"", **{"Content-Length": "9999999"})[0] == 413
    assert post(intake.port, b"", **{"Content-Length": "-1"})[0] == 411
    with socket.create_connection(("127.0.0.1", intake.port)) as half:
        half.sendall(b"POST / HTTP/1.0\r\nAuthorization: Bearer s3cret\r\nContent-Length: 10\r\n\r\nabc")
        half.shutdown(socket.SHUT_WR)
        assert half.recv(100) == b"", "half an event is none"
    assert read_all(bootstrap, topic) == []


def test_what_is_no_event_is_told_as_the_callers_mistake(intake: Intake, bootstrap: str, topic: str) -> None:
    """Whoever is answered 5xx sends it again."""
    for method in ("GET", "HEAD", "PUT", "DELETE", "OPTIONS"):
        connection = http.client.HTTPConnection("127.0.0.1", intake.port, timeout=60)
        connection.request(method, "/", b"x" * 3_000_000)
        answer = connection.getresponse()
        assert (answer.status, answer.headers["Allow"], answer.headers["Server"]) == (405, "POST", "moldau")
        assert method == "HEAD" or json.loads(answer.read()) == {"error": "send events by POST"}
        connection.close()
    assert post(intake.port, b"\x1f\x8b", **{"Content-Encoding": "gzip"})[0] == 415
    assert post(intake.port, b"x", **{"Content-Encoding": "identity"})[0] == 200
    for odd in (b"\x16\x03\x01\x02\x00\r\n\r\n", b"POST /\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", intake.port)) as caller:
            caller.sendall(odd)
            assert caller.recv(100).startswith(b"HTTP/1.0 400 "), odd
    assert [message.value() for message in read_all(bootstrap, topic)] == [b"x"]


def test_a_key_is_bytes_and_a_token_any_text(intake: Intake, bootstrap: str, topic: str) -> None:
    assert post(intake.port, b"x", "/?key=%FF%00a") == (200, {"written": 1})
    with socket.create_connection(("127.0.0.1", intake.port)) as curl:
        target = "/?key=\u00e9%C3".encode() + b"\xa9\xff"
        curl.sendall(b"POST %b HTTP/1.0\r\nAuthorization: Bearer s3cret\r\nContent-Length: 1\r\n\r\nx" % target)
        assert b" 200 " in curl.recv(100)
    assert {message.key() for message in read_all(bootstrap, topic)} == {b"\xff\x00a", b"\xc3\xa9\xc3\xa9\xff"}
    (other,) = open_intakes(pipeline_of(bootstrap, topic, token="gehe\u00edm"))
    try:
        assert post(other.port, b"y", Authorization="Bearer gehe\u00edm".encode().decode("latin-1"))[0] == 200
    finally:
        other.close()


def test_what_is_never_taken_is_said_so_and_the_answer_arrives(intake: Intake, bootstrap: str, topic: str) -> None:
    """Whoever is told nothing, or 503, sends it again, for ever."""
    assert post(intake.port, b"x" * (5 << 20))[0] == 413
    assert post(intake.port, b"x" * (5 << 20), Authorization="Bearer wrong")[0] == 401
    assert post(intake.port, b"x" * (1 << 20)) == (413, {"error": "an event is larger than a record may be"})
    for headers, code in (
        (b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", b"411"),
        (b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nabcde", b"400"),
    ):
        with socket.create_connection(("127.0.0.1", intake.port)) as caller:
            caller.sendall(b"POST / HTTP/1.1\r\nAuthorization: Bearer s3cret\r\n" + headers)
            assert caller.recv(100).split()[1] == code
    assert read_all(bootstrap, topic) == []


def test_more_events_than_the_client_keeps_at_a_time(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = Producer
    monkeypatch.setattr(
        http_intake,
        "Producer",
        lambda settings: plain({**settings, "queue.buffering.max.messages": 10, "linger.ms": 50}),
    )
    (opened,) = open_intakes(pipeline_of(bootstrap, topic))
    try:
        lines = b"".join(b"%d\n" % number for number in range(100))
        assert post(opened.port, lines, **{"Content-Type": "application/x-ndjson"}) == (200, {"written": 100})
    finally:
        opened.close()
    assert [message.value() for message in read_all(bootstrap, topic)] == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("sent", [b"POST / HTTP/1.0\r\nX-A: ", b"POST / HTTP/1.0\r\nContent-Length: 9999\r\n\r\n"])
def test_who_sends_a_byte_now_and_then_holds_no_place(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(http_intake, "_REQUEST_SECONDS", 1.0)
    (opened,) = open_intakes(pipeline_of(bootstrap, topic, token=""))
    try:
        with socket.create_connection(("127.0.0.1", opened.port)) as slow:
            slow.sendall(sent)
            slow.settimeout(0.05)
            while True:  # until we are sent away
                try:
                    slow.sendall(b"x")
                    if slow.recv(1000) == b"":
                        break
                except TimeoutError:
                    continue
                except OSError:
                    break
        assert post(opened.port, b"y")[0] == 200
    finally:
        opened.close()


def test_who_was_refused_and_does_not_leave_holds_no_place(
    bootstrap: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_intake, "_AT_ONCE", 1)
    monkeypatch.setattr(http_intake, "_REQUEST_SECONDS", 600.0)
    monkeypatch.setattr(http_intake, "_SILENCE_SECONDS", 600.0)
    (opened,) = open_intakes(pipeline_of(bootstrap, topic))
    try:
        with socket.create_connection(("127.0.0.1", opened.port)) as stranger:
            stranger.sendall(b"POST / HTTP/1.0\r\nContent-Length: 9\r\n\r\n")
            assert b"401" in stranger.recv(1000)
            assert post(opened.port, b"y")[0] == 200
    finally:
        opened.close()


def test_brokers_that_are_away_are_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_intake, "_ANSWER_SECONDS", 1.0)
    with Broker() as broker:
        topic = create_topic(broker.bootstrap_servers)
        (opened,) = open_intakes(pipeline_of(broker.bootstrap_servers, topic))
    try:
        assert post(opened.port, b"x") == (503, {"error": "not written: send it again"})
    finally:
        opened.close()


def test_an_address_that_is_taken_and_mistakes_in_the_file(intake: Intake, bootstrap: str, topic: str) -> None:
    with pytest.raises(PipelineError, match="source 'a' cannot take events at"):
        open_intakes(pipeline_of(bootstrap, topic, f"127.0.0.1:{intake.port}"))
    for http_, token, told in (
        ("somewhere", "x", "is not an address"),
        ("0.0.0.0:8080", "", "everybody could write"),
    ):
        with pytest.raises(PipelineError, match=told):
            validate(pipeline_of(bootstrap, topic, http_, token))
    with pytest.raises(PipelineError, match="one topic"):
        validate(pipeline_of(bootstrap, "a, b"))
    alone = pipeline_of(bootstrap, topic, "8080", "")
    validate(alone)
    assert open_intakes(shadow_of(alone, "replay")) == [], "a replay leaves the endpoint to the pipeline"
