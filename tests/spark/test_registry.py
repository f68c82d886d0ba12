"""Schemas by id: nothing is guessed, what was asked is kept, and all three kinds are read as they were written."""

import datetime
import decimal
import io
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from fastavro import parse_schema, schemaless_writer
from pyspark.sql.types import StringType, StructField, StructType

from moldau.spark.arrow_rows import decoded
from moldau.spark.arrow_types import arrow_type_of
from moldau.spark.avro_bytes import refuse_endless
from moldau.spark.avro_types import record_schema
from moldau.spark.datasource import MoldauDataSource
from moldau.spark.options import OptionError
from moldau.spark.pipelines import avro_records
from moldau.spark.pipelines.avro_records import Decoder as PipelineDecoder
from moldau.spark.pipelines.schema import parse_schema as spark_schema
from moldau.spark.registry import client
from moldau.spark.registry.client import Registry, RegistryError, RegistrySettings, UnknownSchema
from moldau.spark.registry.columns import BadValue, with_bytes
from moldau.spark.registry.formats import Decoder, Encoder, encoder_of_tasks, reader_schema
from moldau.spark.registry.protobuf_text import ProtoError, message_class
from moldau.spark.sink import _as_bytes, write_at_least_once
from moldau.spark.sink_columns import check_columns
from moldau.spark.sink_options import sink_options
from moldau.spark.source import BatchReader, make_batch_reader
from tests.spark.fake_registry import FakeRegistry, running
from tests.spark.reading import send
from tests.support.clients import create_topic

PROTO = """
syntax = "proto3"; package shop;
import "google/protobuf/timestamp.proto"; import "common.proto";
option java_package = "x";
message Order { // an order
  int64 id = 1; string customer = 2; repeated string tags = 3; map<string, int32> counts = 4;
  enum State { NEW = 0; PAID = 1; } State state = 5; optional double amount = 6 [deprecated = true];
  oneof how { string card = 7; int32 cash = 8; }
  message Line { string sku = 1; } repeated Line lines = 9;
  google.protobuf.Timestamp at = 10; Money price = 11; reserved 12, 13; bytes raw = 14;
}
message Second { string x = 1; }
"""
COMMON = 'syntax = "proto3"; package shop; message Money { int64 units = 1; }'


@pytest.fixture
def registry() -> Iterator[FakeRegistry]:
    client.of_tasks.cache_clear()
    encoder_of_tasks.cache_clear()
    with running() as found:
        yield found


def settings(registry: FakeRegistry, **more: str) -> RegistrySettings:
    return RegistrySettings.parse({"url": registry.url, **more})


def header(number: int) -> bytes:
    return b"\0" + number.to_bytes(4, "big")


def avro(schema: Any, record: dict[str, Any], number: int) -> bytes:
    stream = io.BytesIO()
    schemaless_writer(stream, parse_schema(schema), record)
    return header(number) + stream.getvalue()


def test_avro_is_read_with_the_schema_it_was_written_with(registry: FakeRegistry) -> None:
    old = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "int"}, {"name": "gone", "type": "string"}]}
    new = {
        "type": "record",
        "name": "O",
        "fields": [{"name": "id", "type": "long"}, {"name": "note", "type": ["null", "string"], "default": None}],
    }
    first = registry.add("orders-value", old)
    second = registry.add("orders-value", new)
    reader = reader_schema("avro", settings(registry), "orders-value")
    assert reader.spark_type().simpleString() == "struct<id:bigint,note:string>"
    decoder = Decoder(reader)
    values = [avro(old, {"id": 1, "gone": "x"}, first), avro(new, {"id": 2, "note": "n"}, second)]
    for _ in range(3):
        assert [decoder.decode(each) for each in values] == [{"id": 1, "note": None}, {"id": 2, "note": "n"}]
    for _ in range(2):
        with pytest.raises(ValueError, match=r"schema id 9 is not known to the registry \(404 Schema not found\)"):
            decoder.decode(avro(old, {"id": 3, "gone": ""}, 9))
    assert registry.asked.count("/schemas/ids/9") == 1, "that it is not there is remembered too"
    assert registry.asked.count(f"/schemas/ids/{first}") == 1
    for value, told in ((b"\x01abcd", "no schema id"), (values[0] + b"!", "1 bytes are left over")):
        with pytest.raises(ValueError, match=told):
            decoder.decode(value)


@pytest.mark.parametrize("length", [b"\x10", b"\x01", b"\xff" * 9 + b"\x01"])
def test_avro_that_was_cut_off_is_refused_also_where_the_reader_does_not_look(
    registry: FakeRegistry, length: bytes
) -> None:
    """A text of 8 bytes with 3 in it, of -1 and of -2^63 bytes, in a field that the newest schema has not any more."""
    kept: list[Any] = [{"name": "id", "type": "int"}]
    old = {"type": "record", "name": "O", "fields": [*kept, {"name": "gone", "type": "string"}]}
    new = {"type": "record", "name": "O", "fields": kept}
    first = registry.add("orders-value", old)
    registry.add("orders-value", new)
    decoder = Decoder(reader_schema("avro", settings(registry), "orders-value"))
    by_hand = avro_records.Decoder(json.dumps(new), {first: json.dumps(old)}, confluent_header=True)
    for decode in (decoder.decode, by_hand.decode):
        assert decode(avro(old, {"id": 1, "gone": "abc"}, first)) == {"id": 1}
        with pytest.raises(ValueError, match=r"not Avro of .* it ends too early, or a length in it is none"):
            decode(header(first) + b"\x02" + length + b"abc")


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    "items",
    [
        "null",
        {"type": "null"},
        {"type": "record", "name": "E", "fields": []},
        {"type": "record", "name": "E", "fields": [{"name": "x", "type": {"type": "fixed", "name": "F", "size": 0}}]},
    ],
)
def test_six_bytes_of_avro_cannot_hold_billions_of_elements(registry: FakeRegistry, items: Any) -> None:
    kept: list[Any] = [{"name": "id", "type": "int"}]
    gone = {"name": "gone", "type": ["null", {"type": "array", "items": items}]}
    old = {"type": "record", "name": "O", "fields": [*kept, gone]}
    new = {"type": "record", "name": "O", "fields": kept}
    first = registry.add("orders-value", old)
    registry.add("orders-value", new)
    decoder = Decoder(reader_schema("avro", settings(registry), "orders-value"))
    with pytest.raises(ValueError, match="array whose elements take no bytes"):
        decoder.decode(header(first) + b"\x02\x02" + b"\x80" * 8 + b"\x01\0")
    with pytest.raises(ValueError, match="array whose elements take no bytes"):
        avro_records.Decoder(json.dumps(new), {first: json.dumps(old)}, confluent_header=True)


def test_arrays_whose_elements_take_bytes_are_fine() -> None:
    inner = {"type": "record", "name": "n.E", "fields": [{"name": "x", "type": ["null", "n.E"]}]}
    for items in ("int", inner, ["null"], {"type": "array", "items": "int"}, {"type": "map", "values": "null"}):
        refuse_endless(
            {"type": "record", "name": "O", "fields": [{"name": "a", "type": {"type": "array", "items": items}}]}
        )


def test_json_is_checked_against_its_schema(registry: FakeRegistry) -> None:
    schema = {
        "type": "object",
        "properties": {
            "id": {"type": "integer"},
            "price": {"oneOf": [{"type": "null"}, {"type": "number", "minimum": 0}]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "to": {"$ref": "#/definitions/place"},
        },
        "required": ["id"],
        "definitions": {"place": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
    number = registry.add("orders-value", schema, "JSON")
    reader = reader_schema("json", settings(registry), "orders-value")
    assert (
        reader.spark_type().simpleString() == "struct<id:bigint,price:double,tags:array<string>,to:struct<city:string>>"
    )
    decoder = Decoder(reader)
    found = decoder.decode(header(number) + b'{"id": 1, "price": 2.5}')
    assert found == {"id": 1, "price": 2.5, "tags": None, "to": None}
    for body, told in (
        (b'{"price": 1}', "'id' is a required property"),
        (b'{"id": 1, "price": -1}', "price: "),
        (b'{"id": 1, "id": 2}', "stands there twice"),
        (b"{", "not JSON"),
    ):
        with pytest.raises(ValueError, match=told):
            decoder.decode(header(number) + body)


def test_protobuf_of_the_first_message_of_a_file_and_of_no_other(registry: FakeRegistry) -> None:
    registry.add("common", COMMON, "PROTOBUF")
    reference = {"name": "common.proto", "subject": "common", "version": 1}
    number = registry.add("orders-value", PROTO, "PROTOBUF", [reference])
    reader = reader_schema("protobuf", settings(registry), "orders-value")
    assert reader.spark_type().simpleString() == (
        "struct<id:bigint,customer:string,tags:array<string>,counts:map<string,int>,state:string,amount:double,"
        "card:string,cash:int,lines:array<struct<sku:string>>,at:timestamp,price:struct<units:bigint>,raw:binary>"
    )
    cls = message_class(PROTO, {"common.proto": COMMON})
    order = cls(id=5, customer="amy", tags=["a"], counts={"x": 1}, state=1, card="v", price={"units": 3})
    order.lines.add(sku="q")
    order.at.FromDatetime(datetime.datetime(2026, 11, 16))  # noqa: DTZ001  # Protobuf takes it for UTC
    decoder = Decoder(reader)
    found = decoder.decode(header(number) + b"\0" + order.SerializeToString())
    assert found == {
        "id": 5,
        "customer": "amy",
        "tags": ["a"],
        "counts": [("x", 1)],
        "state": "PAID",
        "amount": None,
        "card": "v",
        "cash": None,
        "lines": [{"sku": "q"}],
        "at": 1_794_787_200_000_000,
        "price": {"units": 3},
        "raw": b"",
    }
    second = message_class(PROTO, {"common.proto": COMMON}, (1,))(x="y")
    with pytest.raises(ValueError, match=r"is a shop\.Second, and the columns are those of shop\.Order"):
        decoder.decode(header(number) + b"\x02\x02" + second.SerializeToString())
    for name in ("Second", "shop.Second"):
        chosen = reader_schema("protobuf", settings(registry), "orders-value", name)
        assert chosen.spark_type().simpleString() == "struct<x:string>"
        assert Decoder(chosen).decode(header(number) + b"\x02\x02" + second.SerializeToString()) == {"x": "y"}
    inner = reader_schema("protobuf", settings(registry), "orders-value", "Order.Line").spark_type()
    assert inner.simpleString() == "struct<sku:string>"
    with pytest.raises(
        ValueError, match=r"no message 'Third'; there are shop\.Order, shop\.Second, .*shop\.Order\.Line"
    ):
        reader_schema("protobuf", settings(registry), "orders-value", "Third").spark_type()
    nested = message_class(PROTO, {"common.proto": COMMON}, (0, 0))(sku="s")
    with pytest.raises(ValueError, match=r"is a shop\.Order\.Line, and"):
        decoder.decode(header(number) + b"\x04\x00\x00" + nested.SerializeToString())
    with pytest.raises(ValueError, match="has no message at 7"):
        decoder.decode(header(number) + b"\x02\x0e")
    for body in (b"", b"\x02", b"\x02\x20", b"\0\xff\xff"):
        with pytest.raises(ValueError, match="Protobuf"):
            decoder.decode(header(number) + body)
    for text in (
        "message {",
        "message A { optional group B = 1 { } }",
        "syntax = 'proto3'; message A { Missing x = 1; }",
    ):
        with pytest.raises(ProtoError):
            message_class(text, {})


def test_what_is_written_is_registered_and_can_be_read(registry: FakeRegistry) -> None:
    schema = spark_schema("id bigint not null, name string, tags array<string>, price decimal(6,2)")
    for format_ in ("avro", "json"):
        encoder = Encoder(format_, settings(registry), f"{format_}-value", schema)
        reader = reader_schema(format_, settings(registry), f"{format_}-value")
        value = encoder.encode({"id": 1, "name": None, "tags": ["a"], "price": None})
        assert Decoder(reader).decode(value) == {"id": 1, "name": None, "tags": ["a"], "price": None}
        Encoder(format_, settings(registry), f"{format_}-value", schema)
        assert len(registry.subjects[f"{format_}-value"]) == 1, "the same schema is no new version"


def test_protobuf_is_written_and_its_numbers_stay(registry: FakeRegistry) -> None:
    """Readers go by field numbers: columns that come later, in another order, change none of them."""
    first = spark_schema(
        "id bigint not null, at timestamp, price decimal(6,2), tags array<string>, small tinyint, raw binary, "
        "who struct<name: string, age: int>, many array<struct<n: int>>, by map<string, double>, days map<int, date>"
    )
    row: dict[str, Any] = {
        "id": 7,
        "at": datetime.datetime(2026, 11, 15, 12, tzinfo=datetime.UTC),
        "price": decimal.Decimal("1.50"),
        "tags": ["a", "b"],
        "small": None,
        "raw": b"\0",
        "who": {"name": "amy", "age": None},
        "many": [{"n": 1}, {"n": None}],
        "by": [("x", 0.5)],
        "days": [(1, datetime.date(2026, 1, 2))],
    }
    old = Encoder("protobuf", settings(registry), "t-value", first)
    again = Encoder("protobuf", settings(registry), "t-value", first)
    assert len(registry.subjects["t-value"]) == 1, "the same columns are no new version"
    value = old.encode(row)
    assert value == again.encode(row)
    read = Decoder(reader_schema("protobuf", settings(registry), "t-value")).decode(value)
    assert read == row | {"at": 1794744000000000, "price": "1.50", "days": [(1, "2026-01-02")]}

    other = spark_schema("note string, who struct<city: string, name: string>, id bigint")
    newer = Encoder("protobuf", settings(registry), "t-value", other)
    assert len(registry.subjects["t-value"]) == 2
    decoder = Decoder(reader_schema("protobuf", settings(registry), "t-value"))
    assert decoder.decode(value)["who"] == {"name": "amy", "age": None, "city": None}, "what it has not is null"
    same = message_class(Registry(settings(registry)).latest("t-value").text, {}).FromString(value[6:])
    assert (same.id, same.who.name, same.tags[:], same.note) == (7, "amy", ["a", "b"], ""), "under the same numbers"
    assert decoder.decode(newer.encode({"note": "n", "id": 1, "who": None}))["note"] == "n"
    Encoder("protobuf", settings(registry), "t-value", first)
    assert len(registry.subjects["t-value"]) == 2, "a schema with more fields serves as it is"

    with pytest.raises(ValueError, match=r"column 'who\.age' is string, and int"):
        Encoder("protobuf", settings(registry), "t-value", spark_schema("who struct<age: string>"))
    with pytest.raises(ValueError, match="no lists of lists"):
        Encoder("protobuf", settings(registry), "l-value", spark_schema("x array<array<int>>"))
    with pytest.raises(ValueError, match="no nulls in lists"):
        newer.encode({"tags": [None]})


def test_protobuf_that_people_wrote_is_used_and_not_changed(registry: FakeRegistry) -> None:
    text = """syntax = "proto3"; package shop; import "google/protobuf/wrappers.proto";
    enum Kind { NONE = 0; NEW = 4; }
    message Order { string id = 12; Kind kind = 3; google.protobuf.Int64Value pieces = 5; }
    message Other { string id = 1; }"""
    number = registry.add("orders-value", text, "PROTOBUF")
    encoder = Encoder("protobuf", settings(registry), "orders-value", spark_schema("kind string, pieces bigint"))
    value = encoder.encode({"kind": "NEW", "pieces": 3})
    assert value == header(number) + b"\0" + b"\x18\x04" + b"\x2a\x02\x08\x03"
    with pytest.raises(ValueError, match=r"'OLD' is not one of the values of shop\.Kind"):
        encoder.encode({"kind": "OLD"})
    with pytest.raises(ValueError, match=r"shop\.Order has no field for note: add it"):
        Encoder("protobuf", settings(registry), "orders-value", spark_schema("id string, note string"))
    assert len(registry.subjects["orders-value"]) == 1


def test_logins_outages_and_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(client, "_FIRST_SECONDS", 0.5)
    with running("amy:s3cret:x") as registry:
        number = registry.add("a", {"type": "string"})
        with pytest.raises(RegistryError, match=r"401 Unauthorized: check schema\.registry\.basic\.auth\.user\.info"):
            Registry(settings(registry)).schema(number)
        logged_in = settings(registry, **{"basic.auth.user.info": "amy:s3cret:x"})
        assert "s3cret" not in repr(logged_in)
        assert Registry(logged_in).schema(number).text == json.dumps({"type": "string"})
        registry.failures = 3
        assert Registry(logged_in).latest("a").id == number
        with pytest.raises(UnknownSchema):
            Registry(logged_in).latest("b")
        registry.failures = 10**6
        with pytest.raises(RegistryError, match="500 not now"):
            Registry(logged_in).latest("a")
    with pytest.raises(RegistryError, match="does not answer"):
        Registry(logged_in).latest("a")
    for wrong in ({"url": "registry:8081"}, {}, {"url": "http://h", "basic.auth": "x"}):
        with pytest.raises(ValueError, match=r"schema\.registry"):
            RegistrySettings.parse(wrong)
    assert RegistrySettings.parse({"url": "http://u:p@h:1/x"}) == RegistrySettings("http://h:1/x", "u", "p")


def test_programs_read_columns_instead_of_bytes(registry: FakeRegistry, bootstrap: str) -> None:
    """valueFormat, in the source and, under a schema that is registered, in the sink; without a JVM."""
    topic = create_topic(bootstrap)
    options = {"kafka.bootstrap.servers": bootstrap, "schema.registry.url": registry.url, "valueFormat": "avro"}
    written = sink_options({**options, "topic": topic})
    value = spark_schema("id bigint not null, name string")
    schema = StructType([StructField("value", value)])
    rows = pa.RecordBatch.from_pylist(
        [{"value": {"id": 1, "name": "a"}}, {"value": {"id": 2, "name": None}}, {"value": None}],
        pa.schema([("value", pa.struct([("id", pa.int64()), ("name", pa.string())]))]),
    )
    write_at_least_once(written, _as_bytes(written, schema, iter([rows])))
    assert list(registry.subjects) == [f"{topic}-value"]
    given = {**options, "subscribe": topic}
    source = MoldauDataSource(given)
    assert source.schema()["value"].dataType.simpleString() == "struct<id:bigint,name:string>"
    reader = make_batch_reader(given, source.schema())

    def read(reader: BatchReader) -> list[Any]:
        return [
            row["value"] for task in reader.partitions() for batch in reader.read(task) for row in batch.to_pylist()
        ]

    assert read(reader) == [{"id": 1, "name": "a"}, {"id": 2, "name": None}, None]
    send(bootstrap, topic, 1)
    with pytest.raises(BadValue, match=rf"the value at {topic}-0 offset 3: no schema id.*valueMode=PERMISSIVE"):
        read(reader)
    lenient = make_batch_reader({**given, "valueMode": "permissive"}, source.schema())
    assert read(lenient)[2:] == [None, None]
    for wrong, told in (
        ({"valueFormat": "xml"}, "option 'valueFormat' is 'xml': write avro, json, protobuf"),
        ({"schema.registry.url": ""}, r"option 'schema\.registry\.url is missing"),
        ({"schema.subject": "nobody"}, "the schema of subject 'nobody' cannot be had"),
        (
            {"schema.message": "Order"},
            "option 'schema.message' names a message of Protobuf, and 'valueFormat' is 'avro'",
        ),
    ):
        with pytest.raises(OptionError, match=told):
            make_batch_reader(given | wrong, source.schema())
    with pytest.raises(ValueError, match="value must be a\\(n\\) struct"):
        check_columns(StructType([StructField("value", StringType())]), topic, structs=True)


def test_an_unknown_id_is_not_guessed_without_a_registry() -> None:
    schema = json.dumps({"type": "record", "name": "O", "fields": [{"name": "id", "type": "int"}]})
    decoder = PipelineDecoder(schema, {7: schema}, confluent_header=True)
    assert decoder.decode(avro(json.loads(schema), {"id": 1}, 7)) == {"id": 1}
    with pytest.raises(ValueError, match="schema id 8 is not known: name it under writer_schemas, or use a registry"):
        decoder.decode(avro(json.loads(schema), {"id": 1}, 8))


def rows_of(registry: FakeRegistry, format_: str, subject: str, *values: bytes) -> list[Any]:
    """What a worker makes of values: each a record, or the reason why not."""
    reader = reader_schema(format_, settings(registry), subject)
    kind = arrow_type_of(reader.spark_type())
    found = decoded(pa.array(values, pa.binary()), Decoder(reader).decode, kind).to_pylist()
    return [each["error"] or each["record"] for each in found]


def test_avro_has_times_of_day_names_in_spaces_and_numbers_of_two_sizes(registry: FakeRegistry) -> None:
    inner = [
        {"type": "record", "name": "X", "namespace": "a", "fields": [{"name": "p", "type": "long"}]},
        {"type": "record", "name": "X", "namespace": "b", "fields": [{"name": "q", "type": "string"}]},
    ]
    types_of = {
        "at": {"type": "int", "logicalType": "time-millis"},
        "fine": {"type": "long", "logicalType": "time-micros"},
        "n": ["null", "int", "long"],
        "one": inner[0],
        "two": inner[1],
        "again": "a.X",
    }
    schema = {"type": "record", "name": "R", "fields": [{"name": n, "type": each} for n, each in types_of.items()]}
    number = registry.add("t-value", schema)
    record = {"at": datetime.time(0, 0, 2), "fine": datetime.time(0, 0, 0, 7), "n": 5}
    value = avro(schema, {**record, "one": {"p": 1}, "two": {"q": "z"}, "again": {"p": 3}}, number)
    wanted = {"at": 2000, "fine": 7, "n": 5, "one": {"p": 1}, "two": {"q": "z"}, "again": {"p": 3}}
    assert rows_of(registry, "avro", "t-value", value) == [wanted]
    node = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
    with pytest.raises(ValueError, match="'Node' contains itself"):
        record_schema(json.dumps(node))


def test_json_values_that_no_column_can_hold_spoil_nothing_else(registry: FakeRegistry) -> None:
    properties = {"a": {"type": "integer"}, "any": {}, "s": {"type": "string"}, "free": {"type": "object"}}
    number = registry.add("j-value", {"type": "object", "properties": properties}, "JSON")
    empty = dict.fromkeys(properties)
    values = {
        b'{"a": 1}': {**empty, "a": 1},
        b'{"any": {"k": [1]}, "free": {"k": 1, "l": "x"}}': {
            **empty,
            "any": '{"k": [1]}',
            "free": [("k", "1"), ("l", "x")],
        },
        b'{"s": "\\ud800"}': "it does not fit its schema: a text has half of a surrogate pair",
        b'{"any": 1e999}': "not JSON: 1e999 is too large",
        b'{"a": ' + b"1" * 5000 + b"}": "not JSON: a number has too many digits",
        b'{"\\ud800": 1, "\\ud800": 2}': 'not JSON: the key "\\ud800" stands there twice',
    }
    found = rows_of(registry, "json", "j-value", *(header(number) + each for each in values))
    assert found == list(values.values())


def test_json_schemas_refer_to_each_other_and_never_to_the_network(registry: FakeRegistry) -> None:
    registry.add("addr", {"type": "object", "properties": {"zip": {"type": "string"}}}, "JSON")
    reference = [{"name": "addr.json", "subject": "addr", "version": 1}]
    main = {"type": "object", "properties": {"home": {"$ref": "addr.json"}}}
    number = header(registry.add("r-value", main, "JSON", reference))
    lost = {"type": "object", "properties": {"home": {"$ref": registry.url + "/x.json"}}}
    slow = {"type": "object", "properties": {"s": {"pattern": "^(a+)+$"}}}
    values = [number + b'{"home": {"zip": "1"}}', number + b'{"home": {"zip": 1}}']
    values.append(header(registry.add("lost", lost, "JSON")) + b'{"home": {}}')
    values.append(header(registry.add("slow", slow, "JSON")) + b'{"s": "' + b"a" * 40 + b'!"}')
    assert rows_of(registry, "json", "r-value", *values) == [
        {"home": {"zip": "1"}},
        "not of its JSON Schema: home/zip: 1 is not of type 'string'",
        f"its JSON Schema refers to '{registry.url}/x.json', which the registry has not",
        "its JSON Schema needs more than 1 s for this value",
    ]
    assert "/x.json" not in registry.asked


@pytest.mark.parametrize("format_", ["avro", "json"])
def test_what_is_written_fits_the_schema_it_is_registered_under(registry: FakeRegistry, format_: str) -> None:
    schema = spark_schema("m map<string,bigint>, l array<bigint>, d decimal(20,2), s struct<m:map<string,array<int>>>")
    kind = arrow_type_of(schema)
    row = {"m": {"a": 1, "b": None}, "l": [1, None], "d": decimal.Decimal("123.40"), "s": {"m": {"k": [2]}}}
    batch = pa.RecordBatch.from_arrays([pa.array([row], kind)], names=["value"])
    (written,) = with_bytes(iter([batch]), format_, settings(registry), "2026-w-value", schema)
    (found,) = rows_of(registry, format_, "2026-w-value", written.column(0)[0].as_py())
    price = decimal.Decimal("123.40") if format_ == "avro" else 123.4
    assert found == {"m": [("a", 1), ("b", None)], "l": [1, None], "d": price, "s": {"m": [("k", [2])]}}
    if format_ == "json":
        assert b'"d": 123.40' in written.column(0)[0].as_py()
        nan = Encoder(format_, settings(registry), "nan", spark_schema("x double"))
        with pytest.raises(ValueError, match="JSON has neither NaN nor Infinity"):
            nan.encode({"x": float("nan")})
    else:
        assert json.loads(registry.schemas[0]["schema"])["name"] == "_2026_w_value"
        with pytest.raises(ValueError, match="'odd name' cannot be a field of Avro"):
            Encoder(format_, settings(registry), "odd", spark_schema("`odd name` string"))


def test_an_id_may_become_known_and_what_is_no_registry_is_not_believed(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "_FIRST_SECONDS", 0.0)
    now = [0.0]
    asked = Registry(settings(registry), lambda: now[0])
    for _ in range(2):
        with pytest.raises(UnknownSchema):
            asked.schema(1)
    assert registry.asked == ["/schemas/ids/1"]
    registry.add("late", {"type": "string"})
    now[0] = client._UNKNOWN_SECONDS
    assert asked.schema(1).id == 1
    for code, content in ((404, {"detail": "no such page"}), (404, ["x"]), (200, ["x"]), (200, {"schema": 1})):
        monkeypatch.setattr(registry, "answer", lambda *_, code=code, content=content: (code, content))
        with pytest.raises(RegistryError):
            Registry(settings(registry)).schema(1)


def test_tasks_of_a_process_share_what_they_were_told_and_outlast_a_registry_that_is_away(
    registry: FakeRegistry, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(client, "_PAUSE_SECONDS", 0.0)
    monkeypatch.setattr(client, "_FIRST_SECONDS", 0.0)
    schema = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "int"}]}
    number = registry.add("orders-value", schema)
    own = RegistrySettings.parse({"url": registry.url}, outage_s=60)
    reader = reader_schema("avro", own, "orders-value")
    registry.asked.clear()
    registry.failures = 20
    for _ in range(3):
        assert Decoder(reader).decode(avro(schema, {"id": 7}, number)) == {"id": 7}
    assert registry.asked == ["/schemas/ids/1"] * 21
    assert caplog.text.count("waiting for the schema registry, 60 s more (option outage): the registry fails at") == 1
    rows = pa.RecordBatch.from_arrays([pa.array([{"x": 1}], pa.struct([("x", pa.int64())]))], names=["value"])
    registry.asked.clear()
    for _ in range(3):
        list(with_bytes(iter([rows]), "avro", own, "out-value", spark_schema("x bigint")))
    assert registry.asked == ["/subjects/out-value/versions"]
    registry.failures = 2
    with pytest.raises(RegistryError, match="500 not now"):  # whom nobody has heard of yet is not waited for
        reader_schema("avro", own, "orders-value")


def test_protobuf_is_resolved_by_numbers_whatever_the_names(registry: FakeRegistry) -> None:
    old_text = """syntax = "proto3"; package shop;
    message O { string name = 1; int32 n = 2; P p = 3; map<string, P> by = 4; repeated P all = 5; string x = 6; }
    message P { string street = 1; string gone = 2; }"""
    new_text = """syntax = "proto3"; package shop.v2;
    message O { string full_name = 1; int64 n = 2; Q p = 3; map<string, Q> by = 4; repeated Q all = 5;
      string name = 9; }
    message Q { string road = 1; int32 zip = 3; }"""
    old = registry.add("t-value", old_text, "PROTOBUF")
    registry.add("t-value", new_text, "PROTOBUF")
    written = message_class(old_text, {})(name="amy", n=3, p={"street": "s"}, by={"k": {"gone": "t"}}, all=[{}])
    decoder = Decoder(reader_schema("protobuf", settings(registry), "t-value"))
    nothing = {"road": "", "zip": None}
    assert decoder.decode(header(old) + b"\0" + written.SerializeToString()) == {
        "full_name": "amy",
        "n": 3,
        "p": {"road": "s", "zip": None},
        "by": [("k", nothing)],
        "all": [nothing],
        "name": None,
    }


def test_protobuf_with_options_of_ones_own_and_what_registries_have_by_themselves(registry: FakeRegistry) -> None:
    text = """syntax = "proto3"; import "confluent/meta.proto"; import "confluent/type/decimal.proto";
    import 'google/type/date.proto';
    message O { confluent.type.Decimal price = 1 [(confluent.field_meta) = { params: [ { key: "scale" } ] }];
      google.type.Date day = 2; extend Other { int32 more = 100; } }
    extend google.protobuf.FieldOptions { string own = 50000; }
    enum E { NONE = 00; TEN = 0x0A; EIGHT = 010; }"""
    registry.add("t-value", text, "PROTOBUF")
    found = reader_schema("protobuf", settings(registry), "t-value").spark_type().simpleString()
    price, day = "struct<value:binary,precision:bigint,scale:int>", "struct<year:int,month:int,day:int>"
    assert found == f"struct<price:{price},day:{day}>"
    numbers = message_class(text, {}).DESCRIPTOR.file.enum_types_by_name["E"].values_by_number
    assert sorted(numbers) == [0, 8, 10]


POINT = {"type": "record", "name": "Point", "namespace": "shapes", "fields": [{"name": "x", "type": "int"}]}
DAY = {"type": "int", "logicalType": "date"}
MANY = ["null", POINT, {"type": "enum", "name": "Kind", "symbols": ["A"]}, "long", "boolean", "string", DAY]


@pytest.mark.parametrize(
    ("written", "member", "found"),
    [
        ({"-type": "shapes.Point", "x": 1}, 0, {"x": 1}),
        (("Kind", "A"), 1, "A"),
        (2**40, 2, 2**40),
        (True, 3, True),
        ("text", 4, "text"),
        (datetime.date(2026, 1, 2), 5, datetime.date(2026, 1, 2)),
    ],
)
def test_an_avro_union_of_several_types_is_a_struct_of_which_one_member_is_set(
    registry: FakeRegistry, written: Any, member: int, found: Any
) -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "what", "type": MANY},
            {"name": "one", "type": ["null", "shapes.Point"]},
            {"name": "list", "type": {"type": "array", "items": ["Kind", "shapes.Point"]}},
        ],
    }
    value = avro(schema, {"what": written, "one": {"x": 2}, "list": [("Kind", "A"), {"x": 3}]}, 1)
    registry.add("orders-value", schema)
    decoders = (
        Decoder(reader_schema("avro", settings(registry), "orders-value")).decode,
        PipelineDecoder(json.dumps(schema), {1: json.dumps(schema)}, True).decode,
    )
    for decode in decoders:
        assert decode(value) == {
            "what": {f"member{index}": found if index == member else None for index in range(6)},
            "one": {"x": 2},
            "list": [{"member0": "A", "member1": None}, {"member0": None, "member1": {"x": 3}}],
        }
    assert decoders[0](avro(schema, {"what": None, "one": None, "list": []}, 1)) == {
        "what": None,
        "one": None,
        "list": [],
    }


def test_avro_that_was_written_before_a_field_became_a_union(registry: FakeRegistry) -> None:
    def schema(kind: Any) -> Any:
        return {"type": "record", "name": "O", "fields": [{"name": "what", "type": kind}]}

    new = schema(["string", POINT])
    for old, value, found in (
        (schema("string"), "s", {"member0": "s", "member1": None}),
        (schema(POINT), {"x": 1}, {"member0": None, "member1": {"x": 1}}),
    ):
        number = registry.add(f"{value}-value", old)
        registry.add("t-value", new)
        decoder = Decoder(reader_schema("avro", settings(registry), "t-value"))
        assert decoder.decode(avro(old, {"what": value}, number)) == {"what": found}
    registry.add("t-value", schema(POINT))
    plain = Decoder(reader_schema("avro", settings(registry), "t-value"))
    assert plain.decode(avro(new, {"what": {"x": 1}}, 2)) == {"what": {"x": 1}}
