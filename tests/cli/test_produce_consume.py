"""`moldau produce` and `moldau consume`: every form, every place to begin and end, and what is said to bad input."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from moldau.records.client_headers import UNREADABLE
from tests.cli.running import Command
from tests.support.clients import CONFLUENT, Sent, create_topic
from tests.support.raw_records import send_raw


@pytest.fixture
def topic(moldau: Command) -> str:
    return create_topic(moldau.bootstrap_servers, "records")


def read(moldau: Command, topic: str, *more: str) -> bytes:
    return moldau.ok("consume", topic, "-a", "-e", *more).data


def test_lines_with_keys_headers_and_tombstones(moldau: Command, topic: str) -> None:
    ended = moldau.ok(
        "produce", topic, "-k", ":", "-Z", "", "-H", "x=1", "-H", "empty", "-t", "2026-01-02T03:04:05Z",
        stdin="a:1\nb:\na:2:3\n",
    )  # fmt: skip
    assert (ended.out, ended.err) == ("", f"3 records to {topic}\n")
    assert read(moldau, topic, "-k", "=") == b"a=1\nb=\na=2:3\n"
    assert read(moldau, topic, "-Z", "NULL") == b"1\nNULL\n2:3\n"
    assert read(moldau, topic, "--headers", "--timestamps", "--positions", "-n", "1") == (
        f"2026-01-02T03:04:05.000Z\t{topic}-0@0\tx=1,empty\t1\n".encode()
    )
    first = json.loads(read(moldau, topic, "--json", "-n", "1"))
    assert first == {
        "topic": topic, "partition": 0, "offset": 0, "timestamp": "2026-01-02T03:04:05.000Z",
        "timestamp_ms": 1_767_323_045_000, "key": "a", "value": "1", "headers": [["x", "1"], ["empty", None]],
    }  # fmt: skip
    assert read(moldau, topic, "--format", "{offset}:{key}:{value}:{value_size}", "-s", "|") == (
        b"0:a:1:1|1:b::0|2:a:2:3:3|"
    )


def test_a_header_whose_name_is_no_text_hides_no_record(moldau: Command, topic: str) -> None:
    send_raw(moldau.bootstrap_servers, topic, b"one", [(b"\xff", b"x")])
    send_raw(moldau.bootstrap_servers, topic, b"two", [(b"a", b"x")])
    assert read(moldau, topic) == b"one\ntwo\n"
    first, second = map(json.loads, read(moldau, topic, "--json").splitlines())
    assert first["headers"] == [[UNREADABLE, "a name is not UTF-8: b'\\xff'"]]
    assert second["headers"] == [["a", "x"]]


def test_what_consume_writes_produce_reads(moldau: Command, topic: str) -> None:
    sent = [Sent(b"\xff\x00", b"k", (("h", b"\xfe"),), 1_700_000_000_000), Sent(None, b"gone"), Sent(b"plain")]
    CONFLUENT.send(moldau.bootstrap_servers, topic, sent, "none")
    copy = create_topic(moldau.bootstrap_servers, "copy")
    moldau.ok("produce", copy, "--json-input", stdin=read(moldau, topic, "--json"))
    assert [each[1:5] for each in CONFLUENT.read(moldau.bootstrap_servers, copy, 3, 0)] == [
        each[1:5] for each in CONFLUENT.read(moldau.bootstrap_servers, topic, 3, 0)
    ]
    assert read(moldau, topic) == b"\xff\x00\n\nplain\n", "bytes that are no text pass as they are"


@pytest.mark.parametrize(
    ("form", "line", "data", "shown"),
    [
        ("hex", b"00ff", b"\x00\xff", b"00ff"),
        ("base64", b"AP8=", b"\x00\xff", b"AP8="),
        ("escaped", rb"a\tb\n\x01", b"a\tb\n\x01", rb"a\tb\n\x01"),
        ("json", b'{"a": [1]}', b'{"a": [1]}', b'{"a":[1]}'),
        ("int32", b"-2", b"\xff\xff\xff\xfe", b"-2"),
        ("int64", b"7", b"\0\0\0\0\0\0\0\7", b"7"),
        ("float64", b"0.5", b"\x3f\xe0\0\0\0\0\0\0", b"0.5"),
        ("uint8", b"255", b"\xff", b"255"),
        ("uint64", b"18446744073709551615", b"\xff" * 8, b"18446744073709551615"),
        ("float32", b"0.5", b"\x3f\0\0\0", b"0.5"),
        ("struct:>iq", b"[-1, 7]", b"\xff\xff\xff\xff\0\0\0\0\0\0\0\7", b"[-1,7]"),
        ("struct:iq$", b"[-1, 7]", b"\xff\xff\xff\xff\0\0\0\0\0\0\0\7", b"[-1,7]"),
        ("struct:<Hb?", b"[258, -2, true]", b"\2\1\xfe\1", b"[258,-2,true]"),
        ("struct:>cds", '["A", 0.5, "é"]'.encode(), b"A\x3f\xe0\0\0\0\0\0\0\xc3\xa9", '["A",0.5,"é"]'.encode()),
        ("struct:s", b'["x"]', b"x", b'["x"]'),
    ],
)
def test_forms(moldau: Command, topic: str, form: str, line: bytes, data: bytes, shown: bytes) -> None:
    moldau.ok("produce", topic, "--value-as", form, stdin=line)
    (record,) = CONFLUENT.read(moldau.bootstrap_servers, topic, 1, 0)
    assert record.value == data
    assert read(moldau, topic, "--value-as", form) == shown + b"\n"


@pytest.mark.parametrize(
    ("form", "line"),
    [
        ("struct:>iq", "7"),
        ("struct:>iq", "[1]"),
        ("struct:>iq", "[1, 2, 3]"),
        ("struct:>iq", "[1, 2.5]"),
        ("struct:>iq", '[1, "2"]'),
        ("struct:>iq", "[1, true]"),
        ("struct:>i", "[2147483648]"),
        ("struct:?", "[1]"),
        ("struct:c", '["ab"]'),
        ("struct:s", '["\\ud800"]'),
        ("struct:>f", "[1e300]"),
        ("float32", "1e300"),
        ("uint16", "-1"),
        ("json", "{"),
    ],
)
def test_a_line_that_does_not_fit_its_form_is_named(moldau: Command, topic: str, form: str, line: str) -> None:
    assert "line 1: it is no " in moldau.refused(1, "produce", topic, "--value-as", form, stdin=line)


@pytest.mark.parametrize(
    "odd",
    [
        {"value": "\ud800"},  # half a character
        {"key": "\ud800"},
        {"headers": [["h", "\ud800"]]},
        {"headers": [["\ud800", "h"]]},
        {"headers": [["h", {"base64": "?"}]]},
        {"partition": float("inf")},
        {"partition": 1 << 40},
        {"timestamp_ms": 1 << 70},
    ],
)
def test_whatever_json_says_ends_in_the_number_of_its_line(moldau: Command, topic: str, odd: dict[str, Any]) -> None:
    lines = [json.dumps({"value": "first"}), json.dumps({"value": "v", **odd})]
    said = moldau.refused(1, "produce", topic, "--json-input", stdin="\n".join(lines))
    assert "line 2" in said
    assert "--debug" not in said
    assert read(moldau, topic) == b"first\n"


def test_bytes_of_the_command_line_that_are_no_text(moldau: Command, topic: str) -> None:
    """As a shell hands over $'\\xff'."""
    moldau.ok("produce", topic, "--key", "\udcff", "-H", "h=\udcff", stdin="v")
    (record,) = CONFLUENT.read(moldau.bootstrap_servers, topic, 1, 0)
    assert (record.key, record.headers) == (b"\xff", (("h", b"\xff"),))
    assert "the name is no UTF-8" in moldau.refused(2, "produce", topic, "-H", "\udcff=1", stdin="v")


def test_json_without_an_end_to_its_depth_is_a_bad_line(moldau: Command, topic: str) -> None:
    assert "line 1 is no JSON" in moldau.refused(1, "produce", topic, "--json-input", stdin="[" * 200_000)
    assert "line 1: it is no JSON" in moldau.refused(1, "produce", topic, "--value-as", "json", stdin="[" * 200_000)


def test_layouts_of_several_numbers(moldau: Command, topic: str) -> None:
    for wrong in ("struct:", "struct:<", "struct:>x", "struct:>si", "struct:$", "struct:>2i"):
        assert "a letter for each value" in moldau.refused(2, "consume", topic, "--value-as", wrong)
    as_pairs = ("--key-as", "struct:>Hs", "--value-as", "struct:<iI")
    envelope = {"key": [9, "k"], "value": [-1, 4294967295]}
    moldau.ok("produce", topic, "--json-input", *as_pairs, stdin=json.dumps(envelope))
    (record,) = CONFLUENT.read(moldau.bootstrap_servers, topic, 1, 0)
    assert (record.key, record.value) == (b"\0\x09k", b"\xff" * 8)
    shown = json.loads(read(moldau, topic, "--json", *as_pairs))
    assert {name: shown[name] for name in envelope} == envelope
    assert read(moldau, topic, *as_pairs, "--where", "value.1>5", "--format", "{key}") == b'[9,"k"]\n'
    assert "has 6 bytes, and this has 8" in moldau("consume", topic, "-a", "-e", "--value-as", "struct:>ih").err


def test_avro_and_protobuf(moldau: Command, topic: str, tmp_path: Path) -> None:
    from google.protobuf import descriptor_pb2  # type: ignore[import-untyped]

    schema = tmp_path / "order.avsc"
    schema.write_text('{"type": "record", "name": "Order", "fields": [{"name": "id", "type": "int"}]}')
    avro = ["--value-as", "avro", "--value-schema", str(schema)]
    moldau.ok("produce", topic, *avro, stdin='{"id": 5}\n')
    assert read(moldau, topic, *avro) == b'{"id":5}\n'
    assert "line 1: it does not fit the Avro schema" in moldau.refused(1, "produce", topic, *avro, stdin='{"id": "x"}')
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="order.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Order").field.add(name="id", number=1, type=5, label=1)
    (tmp_path / "order.pb").write_bytes(files.SerializeToString())
    other = create_topic(moldau.bootstrap_servers, "proto")
    protobuf = ["--value-as", "protobuf", "--value-schema", f"{tmp_path / 'order.pb'}#shop.Order"]
    moldau.ok("produce", other, *protobuf, stdin='{"id": 6}\n')
    assert read(moldau, other, *protobuf) == b'{"id":6}\n'
    for wrong in (["--value-as", "avro"], ["--value-as", "protobuf"], ["--value-schema", "x"], ["--value-as", "runes"]):
        moldau.refused(2, "consume", topic, *wrong)


def test_where_to_begin_and_to_end(moldau: Command, topic: str) -> None:
    base = 1_700_000_000_000
    CONFLUENT.send(
        moldau.bootstrap_servers, topic, [Sent(b"%d" % n, timestamp_ms=base + n * 1000) for n in range(10)], "none"
    )

    def values(*arguments: str) -> str:
        return moldau.ok("consume", topic, *arguments).out.replace("\n", "")

    assert values("-o", "7", "-e") == "789"
    assert values("-o", "-2", "-e") == "89"
    assert values("-o", "+3", "-n", "2") == "34"
    assert values("--since", str(base + 8000), "-e") == "89"
    assert values("--since", "2023-11-14T22:13:29Z", "-e") == "9"
    assert values("--last", "3") == "789"
    assert values("-a", "--until", str(base + 3000)) == "012"
    assert values("-a", "--until-offset", "2") == "01"
    assert values("-a", "-n", "0") == ""
    assert values("-e") == ""
    assert values("-a", "--timeout", "0.3") == "0123456789"
    assert values("-a", "-p", "0", "-n", "1") == "0"
    began = time.monotonic()
    assert values("-a", "-n", "4", "--rate", "20") == "0123"
    assert time.monotonic() - began > 0.14


def test_the_last_of_several_partitions_in_order_of_time(moldau: Command) -> None:
    topic = create_topic(moldau.bootstrap_servers, "parts", 3)
    for number in range(9):
        place = ["-p", str(number % 3), "-t", str(1_700_000_000_000 + number)]
        moldau.ok("produce", topic, *place, "-X", "enable.idempotence=false", stdin=f"{number}\n")
    assert moldau.ok("consume", topic, "--last", "4").out == "5\n6\n7\n8\n"
    moldau.ok("produce", topic, "--timestamp", "2001-01-01", "--partition", "0", stdin="late\n")
    assert moldau.ok("consume", topic, "--last", "2", "--partition", "0").out == "6\nlate\n", "as the log has them"
    assert moldau.ok("consume", topic, "--last", "3").out == "late\n7\n8\n", "after what stands before it"
    assert moldau.ok("consume", topic, "--last", "1", "--where", "value=4").out == "4\n"


def test_filters(moldau: Command, topic: str) -> None:
    objects = [
        {"key": str(n % 2), "value": json.dumps({"price": n, "tags": ["a"]}), "headers": {"n": str(n)}}
        for n in range(6)
    ]
    moldau.ok("produce", topic, "-j", stdin="\n".join(map(json.dumps, objects)))

    def offsets(*tests: str) -> str:
        options = [each for test in tests for each in ("--where", test)]
        return read(moldau, topic, *options, "--format", "{offset}", "-s", "").decode()

    assert offsets("key=1") == "135"
    assert offsets("key!=1", "value.price>=2") == "24"
    assert offsets("value~price.: 3") == "3"
    assert offsets("value!~price.: 3") == "01245"
    assert offsets("headers.n=4") == "4"
    assert offsets("offset<2") == "01"
    assert offsets("value.tags.0=a", "value.price<=0") == "0"
    assert offsets("value.nothing=1") == ""
    for wrong in ("x=1", "value", "value>many", "value~("):
        moldau.refused(2, "consume", topic, "--where", wrong)


def test_a_group_commits_what_was_shown(moldau: Command, topic: str) -> None:
    CONFLUENT.send(moldau.bootstrap_servers, topic, [Sent(b"%d" % n) for n in range(5)], "none")
    group = f"g-{topic}"
    assert moldau.ok("consume", topic, "-g", group, "-a", "-n", "2").out == "0\n1\n"
    assert moldau.ok("consume", topic, "-g", group, "-n", "1", "--no-commit").out == "2\n"
    assert moldau.ok("consume", topic, "-g", group, "-n", "3").out == "2\n3\n4\n"
    assert moldau.ok("group", "describe", group, "--json").json[0]["lag"] == 0
    assert "a group decides" in moldau.refused(2, "consume", topic, "-g", group, "--last", "3")


def test_transactions(moldau: Command, topic: str) -> None:
    ended = moldau.ok("produce", topic, "--transactional-id", "t1", "--transaction-every", "2", stdin="1\n2\n3\n")
    assert ended.err == f"3 records to {topic} in 2 transactions\n"
    said = moldau.refused(1, "produce", topic, "--transactional-id", "t1", "-k", ":", stdin="a:4\nbad\n")
    assert "line 2 has no key separator" in said
    assert "aborted" in said
    assert read(moldau, topic) == b"1\n2\n3\n"
    assert read(moldau, topic, "--isolation", "read_uncommitted").startswith(b"1\n2\n3\n")


def test_whole_files_separators_and_places(moldau: Command, topic: str, tmp_path: Path) -> None:
    (tmp_path / "one").write_bytes(b"a\nb")
    (tmp_path / "two").write_bytes(b"c,d")
    shown = moldau.ok("produce", topic, str(tmp_path / "one"), "--whole", "--json").json
    assert shown == {"topic": topic, "partition": 0, "offset": 0}
    assert moldau.ok("produce", topic, str(tmp_path / "two"), "-s", ",", "--format", "{offset}").out == "1\n2\n"
    assert read(moldau, topic, "-s", "|") == b"a\nb|c|d|"
    assert "cannot read" in moldau.refused(2, "produce", topic, str(tmp_path / "three"))


def test_a_bad_line_is_named_and_what_came_before_it_is_sent(moldau: Command, topic: str) -> None:
    said = moldau.refused(1, "produce", topic, "-k", ":", stdin="a:1\nb:2\nnone\nc:3\n")
    assert said.startswith(f"2 records to {topic}\nmoldau: line 3 has no key separator ':': 'none'; what came before")
    assert read(moldau, topic) == b"1\n2\n"
    assert "line 1 is no JSON" in moldau.refused(1, "produce", topic, "-j", stdin="nonsense\n")
    assert 'an object with a "value"' in moldau.refused(1, "produce", topic, "-j", stdin="[1]\n")
    assert "line 1: it is no hex" in moldau.refused(1, "produce", topic, "--value-as", "hex", stdin="xyz\n")


def test_records_nobody_can_read_are_named_and_the_others_shown(moldau: Command, topic: str) -> None:
    CONFLUENT.send(moldau.bootstrap_servers, topic, [Sent(b"{}"), Sent(b"no"), Sent(b"[]")], "none")
    ended = moldau("consume", topic, "-a", "-e", "--value-as", "json")
    assert (ended.code, ended.out) == (1, "{}\n[]\n")
    assert f"{topic}-0@1: it is no JSON" in ended.err


def test_half_a_character_in_json_is_shown_as_json(moldau: Command, topic: str) -> None:
    CONFLUENT.send(moldau.bootstrap_servers, topic, [Sent(b'"\\ud800"'), Sent(b'["\\ud800"]')], "none")
    assert read(moldau, topic, "--value-as", "json") == b'\\ud800\n["\\ud800"]\n'


def test_a_record_too_large_for_the_topic_is_counted(moldau: Command) -> None:
    topic = create_topic(moldau.bootstrap_servers, "small", max_message_bytes="1000")
    said = moldau.refused(1, "produce", topic, stdin="x\n" + "y" * 5_000 + "\n")
    assert "were not delivered" in said


@pytest.mark.parametrize(
    "arguments",
    [
        ["produce", "t", "-k", ""], ["produce", "t", "-z", "rar"], ["produce", "t", "--acks", "2"],
        ["produce", "t", "-j", "-k", ":"], ["produce", "t", "--whole"], ["produce", "t", "--transaction-every", "2"],
        ["produce", "t", "--transactional-id", "x", "--acks", "1"], ["produce", "t", "-H", "=x"],
        ["produce", "t", "-t", "noon"], ["consume", "t", "-a", "-o", "3"], ["consume", "t", "-o", "x"],
        ["consume", "t", "--isolation", "none"], ["consume", "t", "-f"], ["consume", "t", "--format", "{x}"],
        ["consume", "t", "--until", "later"], ["consume"], ["produce"],
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_begins(moldau: Command, arguments: list[str]) -> None:
    assert moldau.refused(2, *arguments).startswith("moldau: ")


def test_one_record_is_one(moldau: Command, topic: str) -> None:
    assert moldau("produce", topic, stdin="x\n").err == f"1 record to {topic}\n"
    ended = moldau("produce", topic, "--transactional-id", "one", stdin="x\n")
    assert ended.err == f"1 record to {topic} in 1 transaction\n"


def test_what_is_not_there(moldau: Command) -> None:
    assert "no such topic: nowhere" in moldau.refused(4, "consume", "nowhere")
    assert "1 of 1 records" in moldau.refused(
        1, "produce", "nowhere", "-X", "topic.metadata.propagation.max.ms=100", stdin="x\n"
    )


def test_a_partition_that_is_not_there(moldau: Command, topic: str) -> None:
    assert f"{topic} has 1 partition, and no 7" in moldau.refused(4, "produce", topic, "-p", "7", stdin="x\n")
    assert "has 1 partition, and no 7" in moldau.refused(4, "consume", topic, "-p", "7")


def test_a_line_the_client_refuses_takes_no_other_with_it(moldau: Command, topic: str) -> None:
    """Too large for librdkafka, or a number it cannot take: a bad line like any other, not the end of what was read."""
    said = moldau.refused(1, "produce", topic, "-p", "0", stdin=b"one\n" + b"x" * 2_000_000 + b"\nthree\n")
    assert said.startswith(f"1 record to {topic}\nmoldau: line 2 has 2000000 bytes, more than the client sends")
    assert moldau.ok("consume", topic, "-p", "0", "-a", "-e").lines == ["one"]
    line = json.dumps({"value": "x", "partition": 2**40})
    said = moldau.refused(1, "produce", topic, "--json-input", stdin=f'{{"value": "two", "partition": 0}}\n{line}\n')
    assert said.startswith(f"1 record to {topic}\nmoldau: line 2: ")
    assert moldau.ok("consume", topic, "-p", "0", "-a", "-e").lines == ["one", "two"]
