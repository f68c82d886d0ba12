"""Types become bytes and back; what does not fit is said at the call, with field and topic."""

import contextlib
import json
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Annotated, Any

import msgspec
import pydantic
import pytest
from google.protobuf import timestamp_pb2, type_pb2, wrappers_pb2  # type: ignore[import-untyped]  # no stubs here
from hypothesis import given
from hypothesis import strategies as st

from moldau.toolkit import Avro, ByField, ByHeader, Float32, Float64, Int16, Int32, Int64, Undecodable, WrongType
from moldau.toolkit.codecs import codec_for, codec_of_value
from moldau.toolkit.errors import RegistryAway, SchemaMissing, SetupError
from moldau.toolkit.registry import Registry


@dataclass
class Order:
    id: str
    amount: int
    tags: list[str]


class Created(msgspec.Struct):
    id: str


class Cancelled(msgspec.Struct):
    id: str
    reason: str


class Model(pydantic.BaseModel):
    id: str
    amount: int


ORDER = Order("o-1", 42, ["a"])
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "string"},
        {"name": "amount", "type": "long"},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
    ],
}


@pytest.mark.parametrize(
    ("annotation", "value", "data"),
    [
        (bytes, b"\x00x", b"\x00x"),
        (str, "Vltava ü", "Vltava ü".encode()),
        (int, -2, struct.pack(">q", -2)),
        (float, 1.5, struct.pack(">d", 1.5)),
        (Int16, -2, struct.pack(">h", -2)),
        (Int32, 7, struct.pack(">i", 7)),
        (Int64, 7, struct.pack(">q", 7)),
        (Float32, 1.5, struct.pack(">f", 1.5)),
        (Float64, 1.5, struct.pack(">d", 1.5)),
        (dict, {"a": [1, None]}, b'{"a":[1,null]}'),
        (Order, ORDER, b'{"id":"o-1","amount":42,"tags":["a"]}'),
        (Created, Created("x"), b'{"id":"x"}'),
        (Model, Model(id="x", amount=1), b'{"id":"x","amount":1}'),
        (str | None, None, None),
    ],
)
def test_round_trips(annotation: Any, value: Any, data: bytes | None) -> None:
    codec = codec_for(annotation, "t")
    assert codec.write(value)[0] == data
    assert codec.read(data, ()) == value


@pytest.mark.parametrize(
    ("annotation", "value", "says"),
    [
        (bytes, "text", "`bytes`"),
        (str, b"bytes", "`str`"),
        (int, True, "bool"),
        (Int16, 40_000, "does not fit int16"),
        (Float32, 1e300, "float32"),
        (Order, Order("o", "much", []), r"amount"),  # type: ignore[arg-type]  # the mistake it is about
        (Order, {"id": "o"}, "expected `Order`, got `dict`"),
        (Created, Created(3), r"\$.id"),  # type: ignore[arg-type]  # the mistake it is about
        (Model, Model.model_construct(id="x", amount="no"), "amount"),
        (Created, None, "tombstones"),
    ],
)
def test_a_wrong_type_names_topic_and_field(annotation: Any, value: Any, says: str) -> None:
    with pytest.raises(WrongType, match=says) as caught:
        codec_for(annotation, "orders").write(value)
    assert value is None or "orders" in str(caught.value)


@pytest.mark.parametrize("annotation", [str, int, Int16, dict, Order, Created, Model, Annotated[dict, Avro(SCHEMA)]])
@given(data=st.binary(max_size=40))
def test_any_bytes_decode_or_are_undecodable(annotation: Any, data: bytes) -> None:
    with contextlib.suppress(Undecodable):
        codec_for(annotation, "orders").read(data, ())


def test_a_null_is_not_a_value() -> None:
    with pytest.raises(Undecodable, match="tombstones"):
        codec_for(Order, "orders").read(None, ())


def test_undeclared_topics_take_what_the_value_is() -> None:
    for value in (b"x", "x", 5, 1.5, {"a": 1}, [1], ORDER, Created("x"), True):
        codec = codec_of_value(value, "t")
        assert codec.read(codec.write(value)[0], ()) == value


def test_several_types_by_header() -> None:
    codec = codec_for(Annotated[Created | Cancelled, ByHeader("type")], "orders")
    for value in (Created("x"), Cancelled("x", "y")):
        data, headers = codec.write(value)
        assert list(headers) == [("type", type(value).__name__.encode())]
        assert codec.read(data, headers) == value
    with pytest.raises(Undecodable, match="no 'type'"):
        codec.read(b"{}", ())
    with pytest.raises(Undecodable, match="none of Cancelled, Created"):
        codec.read(b"{}", [("type", b"Other")])
    with pytest.raises(WrongType, match="one of Cancelled, Created"):
        codec.write(ORDER)


def test_several_types_by_field() -> None:
    mark = ByField("kind", names=(("gone", Cancelled),))
    codec = codec_for(Annotated[Created | Cancelled, mark], "orders")
    data, headers = codec.write(Cancelled("x", "y"))
    assert json.loads(data or b"") == {"id": "x", "reason": "y", "kind": "gone"}
    assert not headers
    assert codec.read(data, ()) == Cancelled("x", "y")
    assert codec.read(b'{"kind":"Created","id":"1"}', ()) == Created("1")
    with pytest.raises(Undecodable, match="none of Created, gone"):
        codec.read(b'{"kind":"Other"}', ())


def test_avro_without_a_registry() -> None:
    codec = codec_for(Annotated[Order, Avro(SCHEMA)], "orders")
    data, _ = codec.write(ORDER)
    assert codec.read(data, ()) == ORDER
    assert data == b"\x06o-1\x54\x02\x02a\x00"
    with pytest.raises(WrongType, match="orders"):
        codec.write(Order("x", "y", []))  # type: ignore[arg-type]  # the mistake it is about
    with pytest.raises(Undecodable, match="left over"):
        codec.read((data or b"") + b"x", ())


def test_protobuf_without_a_registry() -> None:
    codec = codec_for(wrappers_pb2.StringValue, "orders")
    data, _ = codec.write(wrappers_pb2.StringValue(value="x"))
    assert codec.read(data, ()).value == "x"
    with pytest.raises(Undecodable, match="StringValue"):
        codec.read(b"\xff", ())
    with pytest.raises(WrongType, match="StringValue"):
        codec.write(timestamp_pb2.Timestamp())


class FakeRegistry(ThreadingHTTPServer):
    """Answers the three requests the toolkit makes, as Confluent's registry does."""

    schemas: list[dict[str, str]]
    asked: list[str]
    is_away = False


class Answers(BaseHTTPRequestHandler):
    server: FakeRegistry

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
        """Quietly."""

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        number = int(self.path.rpartition("/")[2])
        known = 0 < number <= len(self.server.schemas)
        self.answer(200 if known else 404, self.server.schemas[number - 1] if known else {"error_code": 40403})

    def do_POST(self) -> None:
        self.server.asked.append(self.path)
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if body not in self.server.schemas:
            self.server.schemas.append(body)
        self.answer(200, {"id": self.server.schemas.index(body) + 1})

    def answer(self, code: int, content: dict[str, Any]) -> None:
        data = json.dumps(content).encode()
        self.send_response(503 if self.server.is_away else code)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def registry_server() -> Iterator[FakeRegistry]:
    with FakeRegistry(("127.0.0.1", 0), Answers) as server:
        server.schemas, server.asked = [], []
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def registry(registry_server: FakeRegistry) -> Registry:
    return Registry(f"http://127.0.0.1:{registry_server.server_port}")


def test_avro_in_confluents_wire_format(registry: Registry, registry_server: FakeRegistry) -> None:
    kind = Annotated[Order, Avro(SCHEMA)]
    data, _ = codec_for(kind, "orders", "value", registry).write(ORDER)
    assert data is not None
    assert data[:5] == b"\x00\x00\x00\x00\x01"
    assert registry_server.asked == ["/subjects/orders-value/versions"]
    other = Registry(registry.url)
    codec = codec_for(kind, "orders", "value", other)
    with pytest.raises(SchemaMissing):
        codec.read(data, ())
    other.fetch(1)
    assert codec.read(data, ()) == ORDER
    with pytest.raises(Undecodable, match="wire format"):
        codec.read(data[5:], ())
    with pytest.raises(Undecodable, match="knows no schema 9"):
        other.fetch(9)


def test_avro_reads_what_an_older_schema_wrote(registry: Registry) -> None:
    old = {"type": "record", "name": "Order", "fields": SCHEMA["fields"][:2]}
    data, _ = codec_for(Annotated[dict, Avro(old)], "orders", "value", registry).write({"id": "x", "amount": 1})
    newer = {**SCHEMA, "fields": [*SCHEMA["fields"][:2], SCHEMA["fields"][2] | {"default": []}]}  # type: ignore[operator]
    assert codec_for(Annotated[Order, Avro(newer)], "orders", "value", registry).read(data, ()) == Order("x", 1, [])


def test_protobuf_in_confluents_wire_format(registry: Registry) -> None:
    codec = codec_for(wrappers_pb2.DoubleValue, "orders", "value", registry)
    data, _ = codec.write(wrappers_pb2.DoubleValue(value=1.5))
    assert data is not None
    assert data[:6] == b"\x00\x00\x00\x00\x01\x00"  # the first message of its file has a short form
    assert codec.read(data, ()).value == 1.5
    second, _ = codec_for(type_pb2.Field, "fields", "value", registry).write(type_pb2.Field(name="x"))
    assert second is not None
    assert second[5:7] == b"\x02\x02"  # one index, and it is 1
    with pytest.raises(Undecodable, match="of its file"):
        codec.read(second, ())


def test_a_registry_that_is_away_is_not_the_records_fault(registry: Registry, registry_server: FakeRegistry) -> None:
    registry_server.is_away = True
    with pytest.raises(RegistryAway, match="503"):
        registry.fetch(1)
    with pytest.raises(SetupError, match="http"):
        Registry("localhost:8081")


def test_without_the_extra_it_is_said_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "msgspec", None)
    with pytest.raises(SetupError, match=r"pip install 'moldau\[toolkit\]'"):
        codec_for(dict[str, int], "orders")
