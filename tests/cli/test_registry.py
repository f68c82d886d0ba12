"""`moldau registry`: against a registry in this process, and against what is none."""

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.running import Command
from tests.spark.fake_registry import FakeRegistry, running

ORDER = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    with running() as fake:
        yield fake


@pytest.fixture
def alone(tmp_path: Path) -> Command:
    """No cluster is there: nobody may ask one."""
    return Command("127.0.0.1:1", str(tmp_path))


def written(folder: Path, text: str, name: str = "order.avsc") -> str:
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


def test_a_schema_goes_in_and_comes_out_as_it_was(alone: Command, registry: FakeRegistry, tmp_path: Path) -> None:
    text = 'syntax = "proto3";\r\n// \x1b[31m\r\nmessage Order { string Ä = 1; }\r\n'
    file = tmp_path / "order.proto"
    file.write_bytes(text.encode())
    at = ("--registry", registry.url)
    alone.ok("registry", "register", "a/b c", str(file), *at)
    assert registry.schemas == [{"schema": text, "schemaType": "PROTOBUF", "references": []}]
    assert alone.ok("registry", "show", "a/b c", *at).data == text.encode()
    registry.add("\x1b[31mred", ORDER)
    listed = alone.ok("registry", "list", "--format", "{subject}", *at)
    assert listed.data == b"\x1b[31mred\na/b c\n", "pipes get what is there"
    assert alone.ok("registry", "show", "--id", "1", "--json", *at).json["used_by"] == ["a/b c:1"]


def test_references_of_all_kinds_of_names(alone: Command, registry: FakeRegistry, tmp_path: Path) -> None:
    at = ("--registry", registry.url)
    registry.add("price", {"type": "string"})
    file = written(tmp_path, json.dumps(ORDER))
    alone.ok("registry", "register", "o", file, "-r", "shop.Price=price:1", *at)
    assert registry.schemas[1]["references"] == [{"name": "shop.Price", "subject": "price", "version": 1}]
    shown = alone.ok("registry", "versions", "o", "--json", *at).json
    assert shown == [{"subject": "o", "version": 1, "id": 2, "type": "AVRO", "references": ["shop.Price=price:1"]}]
    assert alone.ok("registry", "references", "price", "--format", "{subject}", *at).lines == ["o"]
    for wrong in ("price:1", "x=price", "x=price:latest", "=price:1", "x=:1"):
        assert "NAME=SUBJECT:VERSION" in alone.refused(2, "registry", "register", "o", file, "-r", wrong, *at)


def test_what_can_be_seen_to_be_wrong_is_said_before_anybody_is_asked(
    alone: Command, registry: FakeRegistry, tmp_path: Path
) -> None:
    at = ("--registry", registry.url)
    for name, text, said in (
        ("a.avsc", "{", "no JSON"),
        ("b.json", "[" * 200_000, "no JSON"),
        ("c.proto", " \n", "empty"),
        ("d.txt", "{}", "avro, json or protobuf?"),
    ):
        assert said in alone.refused(2, "registry", "register", "s", written(tmp_path, text, name), *at)
    (tmp_path / "e.avsc").write_bytes(b"\xff")
    assert "UTF-8" in alone.refused(2, "registry", "check", "s", str(tmp_path / "e.avsc"), *at)
    assert registry.asked == []
    alone.ok("registry", "register", "s", "-", "--type", "Json", *at, stdin='{"type": "object"}')
    assert registry.schemas[0]["schemaType"] == "JSON"


def test_deleting_for_good_deletes_first(alone: Command, registry: FakeRegistry, tmp_path: Path) -> None:
    at = ("--registry", registry.url)
    for number in range(3):
        registry.add("s", {**ORDER, "name": f"V{number}"})
    gone = alone.ok("registry", "delete", "s", "-v", "latest", "--permanent", "--format", "{version}", *at)
    assert gone.lines == ["3"], "the one that was the latest, and no other"
    assert [row["version"] for row in alone.ok("registry", "versions", "s", "--json", *at).json] == [1, 2]
    alone.ok("registry", "delete", "s", "-v", "1", *at)
    assert alone("registry", "delete", "s", "-v", "9", "--permanent", *at).code == 4
    alone.ok("registry", "delete", "s", "--permanent", *at)
    assert alone.ok("registry", "list", "--deleted", "--json", *at).json == []


def test_a_login_beside_the_address_in_a_context_too(alone: Command) -> None:
    with running("amy:s3:cret") as registry:
        denied = alone.refused(5, "registry", "list", "--registry", registry.url)
        assert "basic.auth.user.info" in denied
        where, login = f"schema.registry.url={registry.url},http://other:1", "basic.auth.user.info=amy:s3:cret"
        alone.ok("registry", "list", "-X", where, "-X", login)
        alone.ok("registry", "list", "--registry", registry.url, "-X", f"schema.registry.{login}")
        alone.ok("registry", "list", "--registry", registry.url.replace("//", "//amy:s3%3Acret@"))
        alone.ok("context", "set", "shop", "-b", "127.0.0.1:1", "-X", where, "-X", login)
        alone.ok("registry", "list", "--context", "shop")
        assert "s3" not in denied + alone.refused(
            5, "registry", "list", "--registry", f"http://amy:s3x@{registry.url[7:]}"
        )


def test_clients_of_a_cluster_are_not_told_where_the_registry_is(moldau: Command) -> None:
    """Java's programs have it in the same file; librdkafka refuses what it does not know."""
    given = ("schema.registry.url=http://h:1", "basic.auth.credentials.source=USER_INFO", "basic.auth.user.info=u:p")
    moldau.ok("topic", "list", *(word for each in (*given, "auto.register.schemas=false") for word in ("-X", each)))


def test_records_find_the_registry_of_the_settings(moldau: Command, tmp_path: Path) -> None:
    with running("amy:secret") as registry:
        at = ("-X", f"schema.registry.url={registry.url}", "-X", "basic.auth.user.info=amy:secret")
        form = ("--value-as", "avro")
        moldau.ok("topic", "create", "told")
        schema = written(tmp_path, json.dumps(ORDER))
        moldau.ok("produce", "told", *form, "--value-schema", schema, *at, stdin='{"id": 5}\n')
        assert moldau.ok("consume", "told", "-a", "-e", *form, *at).lines == ['{"id":5}']


@contextmanager
def answering(answer: bytes | None) -> Iterator[str]:
    """Somebody who says this to everybody, or (None) nothing."""
    stopped = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            kept = []
            while not stopped.is_set():
                try:
                    connection, _ = server.accept()
                except OSError:
                    break
                kept.append(connection)
                connection.recv(65_536)
                if answer is not None:
                    connection.sendall(answer)
                    connection.close()
            for each in kept:
                each.close()

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}"
        finally:
            stopped.set()
            socket.create_connection(server.getsockname()).close()
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def http(status: str, body: bytes, *more: str) -> bytes:
    head = "\r\n".join((f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", "Connection: close", *more))
    return head.encode() + b"\r\n\r\n" + body


@pytest.mark.parametrize(
    ("answer", "code", "said"),
    [
        (b"", 3, "no schema registry answers"),
        (b"\x00\x00\x00\x04kafka", 3, "no schema registry answers"),
        (http("200 OK", b"<html>"), 3, "is it a schema registry?"),
        (http("200 OK", b"{}"), 1, "no schema registry"),
        (http("404 Not Found", b"<html>"), 1, "is no schema registry: 404"),
        (http("302 Found", b"", "Location: http://127.0.0.1:1/"), 1, "is no schema registry: 302"),
        (http("500 Oops", b'{"error_code": 50001, "message": "the store is\\n away"}'), 1, "the store is\\n away"),
        (http("503 Busy", b"<html>"), 1, "Busy"),
    ],
)
def test_what_answers_may_be_no_registry(alone: Command, answer: bytes, code: int, said: str) -> None:
    with answering(answer) as url:
        told = alone.refused(code, "registry", "list", "--registry", url)
    assert said in told
    assert told.count("\n") == 1


def test_a_registry_that_hangs_is_waited_for_as_long_as_is_said(alone: Command, tmp_path: Path) -> None:
    hasty = ("-X", "request.timeout.ms=200")
    with answering(None) as url:
        assert "timed out" in alone.refused(3, "registry", "list", "--registry", url, *hasty)
        said = alone.refused(3, "registry", "level", "s", "--set", "full", "--registry", url, *hasty)
    assert "may have been done" in said
    said = alone.refused(3, "registry", "level", "s", "--set", "full", "--registry", url, *hasty)
    assert "may have been done" not in said, "nobody was there to do it"


def test_a_subject_without_a_name_is_not_all_subjects(alone: Command, registry: FakeRegistry) -> None:
    """As a script gives it whose variable is not set."""
    at = ("--registry", registry.url)
    for command in (("level", "", "--set", "none"), ("mode", "", "--unset"), ("delete", ""), ("versions", "")):
        assert "has a name" in alone.refused(2, "registry", *command, *at)
    assert registry.settings["config"] == {"": "BACKWARD"}


@pytest.mark.parametrize("sent", ["[]", "{}", "null", '[null, "a"]', '{"schema": 1, "references": [1], "version": {}}'])
def test_answers_of_another_kind_crash_no_command(alone: Command, tmp_path: Path, sent: str) -> None:
    file = written(tmp_path, '"string"')
    answer = f"HTTP/1.0 200 OK\r\nContent-Length: {len(sent)}\r\n\r\n{sent}".encode()
    for command in (
        *(("versions", "a"), ("show", "a"), ("show", "--id", "1"), ("references", "a"), ("level",), ("mode", "a")),
        *(
            ("register", "a", file),
            ("check", "a", file),
            ("delete", "a"),
            ("delete", "a", "--permanent", "-v", "latest"),
        ),
    ):
        with answering(answer) as url:
            ended = alone("registry", *command, "--registry", url)
        assert "--debug" not in ended.err, command
