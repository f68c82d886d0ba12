"""Records into columns, in Spark: the good ones typed, the bad ones with their bytes and a reason."""

import datetime
import io
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from moldau.spark.pipelines import model, parse

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NOTHING = parse.Given()
COLUMNS = "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp, timestampType int"


def records(spark: "SparkSession", *values: bytes | None) -> "DataFrame":
    now = datetime.datetime(2026, 11, 15, 12, tzinfo=datetime.UTC)
    return spark.createDataFrame([(b"k", value, "t", 0, n, now, 0) for n, value in enumerate(values)], COLUMNS)


def split(
    spark: "SparkSession", how: model.Parse, *values: bytes | None, given: parse.Given = NOTHING
) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """Good rows as dictionaries, and the reasons of the bad ones by their offset."""
    frame = parse.parsed(records(spark, *values), how, given)
    good = [row.asDict(recursive=True) for row in parse.good(frame, ["offset"]).orderBy("_offset").collect()]
    bad = {row["offset"]: row["_error"] for row in parse.bad(frame, how, given).collect()}
    offsets = [row["_offset"] for row in good]
    # Each record is in one of the two, or has no value.
    assert sorted([*offsets, *bad]) == [n for n, value in enumerate(values) if value is not None]
    return good, bad


def test_not_null_may_stand_within_an_object(spark: "SparkSession") -> None:
    how = model.JsonParse(
        schema="id bigint not null, s struct<a: int not null, b: tinyint>, l array<struct<c: int not null>>"
    )
    good, bad = split(spark, how, b'{"id":1,"s":{"a":2,"b":3},"l":[{"c":4}]}', b'{"id":2,"s":{"a":2,"b":300}}')
    assert good == [{"id": 1, "s": {"a": 2, "b": 3}, "l": [{"c": 4}], "_offset": 0}]
    assert set(bad) == {1}


def test_json_types_what_fits_and_explains_what_does_not(spark: "SparkSession") -> None:
    how = model.JsonParse(
        schema="id bigint not null, price decimal(6,2), at timestamp, tags array<string>",
        require={"price is positive": "price > 0", "few tags": "coalesce(size(tags), 0) < 3"},
    )
    good, bad = split(
        spark,
        how,
        b'{"id": 1, "price": 9.99, "at": "2026-11-15T12:00:00Z", "tags": ["a"], "more": 1}',
        b'{"id": 2, "price": 1}',
        b'{"id": "3", "price": 1}',
        b'{"price": 1}',
        b"{nonsense",
        b"",
        b"\xff\xfe",
        b'{"id": 7, "price": -1}',
        b'{"id": 8}',
        b'{"id": 9, "price": 1, "tags": ["a", "b", "c"]}',
        b'{"id": 10, "price": 1, "at": "yesterday"}',
        None,
        b"[1]",
    )
    assert [row["id"] for row in good] == [1, 2]
    assert str(good[0]["price"]) == "9.99"
    assert good[0]["tags"] == ["a"]
    assert bad == {
        2: 'field id: expected bigint, found "3"',
        3: "field id: missing or null, but the schema says NOT NULL",
        4: "not JSON: Expecting property name enclosed in double quotes at column 2",
        5: "not JSON: Expecting value at column 1",
        6: "not UTF-8 text",
        7: "rule 'price is positive' is broken: price > 0",
        8: "rule 'price is positive' is broken: price > 0",
        9: "rule 'few tags' is broken: coalesce(size(tags), 0) < 3",
        10: 'field at: expected timestamp, found "yesterday"',
        12: "the value: expected an object, found [1]",
    }


def test_no_number_runs_over_into_another(spark: "SparkSession") -> None:
    """Spark's reader takes 255 for -1, and seconds beyond microseconds for some time of another century."""
    how = model.JsonParse(
        schema="b tinyint, at timestamp, local timestamp_ntz, day date, l array<tinyint>, "
        "n struct<at: timestamp>, m map<string,timestamp>, a array<timestamp>"
    )
    turned = (1 << 64) // 1_000_000 + 1_763_208_000  # once round, and it is 2025
    good, bad = split(
        spark,
        how,
        b'{"b": 127, "at": 1763208000, "l": [-128, null], "n": {"at": -5}, "m": {"x": 0}, "a": [0, null]}',
        b'{"b": 128}',
        b'{"b": -129}',
        b'{"l": [1, 255]}',
        b'{"at": 1763208000000}',
        b'{"at": %d}' % turned,
        b'{"n": {"at": %d}}' % turned,
        b'{"m": {"x": %d}}' % turned,
        b'{"a": [0, %d]}' % -turned,
        b'{"at": "10000-01-01T00:00:00Z"}',
        b'{"local": "10000-01-01T00:00:00"}',
        b'{"day": "10000-01-01"}',
        b'{"b": 7, "more": 12345678901234567890, "at": "9999-12-31T23:59:59Z"}',
        b'{"m": {"x": "2025-11-15T12:00:00Z", "y": %d}}' % turned,
        b'{"a": ["2025-11-15T12:00:00.12345678901234Z", 0]}',
    )
    assert [(row["b"], row["l"]) for row in good] == [(127, [-128, None]), (7, None), (None, None)]
    assert good[0]["at"].timestamp() == 1763208000
    no_time = "seconds are no time between the years 1 and 9999"
    assert bad == {
        1: "field b: 128 is too large for tinyint",
        2: "field b: -129 is too large for tinyint",
        3: "field l[1]: 255 is too large for tinyint",
        4: f"field at: 1763208000000 {no_time}",
        5: f"field at: {turned} {no_time}",
        6: f"field n.at: {turned} {no_time}",
        7: f"field m.x: {turned} {no_time}",
        8: f"field a[1]: -{turned} {no_time}",
        9: 'field at: expected timestamp, found "10000-01-01T00:00:00Z"',
        10: 'field local: expected timestamp_ntz, found "10000-01-01T00:00:00"',
        11: 'field day: expected date, found "10000-01-01"',
        13: f"field m.y: {turned} {no_time}",
    }


def test_no_json_ends_a_query_and_no_number_becomes_infinite(spark: "SparkSession") -> None:
    """Reasons are found in Python, which has limits of its own, and are written as UTF-8."""
    how = model.JsonParse(
        schema="a bigint, d decimal(10,2), s string, l array<double>, n struct<f: float>, m map<string,double>"
    )
    infinite = "is too large for"
    wanted = {
        b'{"a": ' + b"1" * 5000 + b"}": "more than 1,000 digits",
        b'{"d": ' + b"1" * 400 + b"}": "field d: ",
        b'{"d": "nan"}': 'field d: expected decimal(10,2), found "nan"',
        b'{"a": "\\ud800"}': 'field a: expected bigint, found "\\ud800"',
        b'{"\\ud800": 1, "\\ud800": 2}': 'the key "\\ud800" stands there twice',
        b'{"s": "\\ud800"}': "half of a surrogate pair",
        b'\xef\xbb\xbf{"a": 1}': "not JSON: it begins with a byte order mark",
        '{"a": 1}'.encode("utf-16-le"): "not JSON: ",
        b'{"l": [1, 1e999]}': f"field l[1]: Infinity {infinite} double",
        b'{"n": {"f": 1e39}}': f"field n.f: 1e+39 {infinite} float",
        b'{"m": {"k": 1e999}}': f"field m.k: Infinity {infinite} double",
        b'{"' + b"k" * 60_000 + b'": 1}': "a key has more than 50,000 characters",
    }
    good, bad = split(spark, how, *wanted, b'{"a": 1, "l": [1.5], "n": {"f": 2}, "m": {"k": 3}}')
    assert [row["a"] for row in good] == [1]
    for number, reason in enumerate(wanted.values()):
        assert reason in bad[number]


def test_a_field_nobody_announced_is_ignored_rejected_or_kept(spark: "SparkSession") -> None:
    old, new = b'{"id": 1}', b'{"id": 2, "colour": "red", "size": {"w": 3}}'
    good, bad = split(spark, model.JsonParse(schema="id int"), old, new)
    assert good == [{"id": 1, "_offset": 0}, {"id": 2, "_offset": 1}]
    good, bad = split(spark, model.JsonParse(schema="id int", new_columns="reject"), old, new)
    assert [row["id"] for row in good] == [1]
    assert bad == {1: "fields the schema does not have: colour, size"}
    good, bad = split(spark, model.JsonParse(schema="id int", new_columns="evolve"), old, new)
    assert [row["_extra"] for row in good] == [{}, {"colour": "red", "size": '{"w":3}'}]


def test_csv_and_patterns_and_text(spark: "SparkSession") -> None:
    good, bad = split(
        spark,
        model.CsvParse(schema="id int, name string, price double", options={"sep": ";"}),
        b'1;"a; b";2.5',
        b"2;b",
        b"x;c;1",
    )
    assert good == [{"id": 1, "name": "a; b", "price": 2.5, "_offset": 0}]
    assert bad == {1: "not CSV of this schema: 2 columns, expected 3", 2: "field id: expected int, found 'x'"}

    good, bad = split(
        spark,
        model.RegexParse(pattern=r'^(?<host>\S+) "(?<verb>\w+) (?P<path>[^"]*)" (?<code>\S+)$', types={"code": "int"}),
        b'h1 "GET /a b" 200',
        b"nothing",
        b'h1 "GET /" many',
    )
    assert good == [{"host": "h1", "verb": "GET", "path": "/a b", "code": 200, "_offset": 0}]
    assert bad == {1: "the value does not match the pattern", 2: "field code: expected int, found many"}

    good, bad = split(spark, model.TextParse(column="line"), "Vltava — Moldau".encode(), b"\xff")
    assert good == [{"line": "Vltava — Moldau", "_offset": 0}]
    assert bad == {1: "not UTF-8 text"}


def test_lines_of_logs_get_their_template(spark: "SparkSession") -> None:
    how = model.LogParse(line="<time> <level> <component>: <content>")
    templates = ("user <*> logged in", "user <*> logged in from <*>", "shutting down")
    good, bad = split(
        spark,
        how,
        b"12:00 INFO auth: user amy logged in",
        b"12:01 INFO auth: user bob logged in from 10.0.0.1",
        b"12:02 WARN main: shutting down",
        b"12:03 INFO main: something else",
        b"no line",
        given=parse.Given(templates={template: f"T{number}" for number, template in enumerate(templates, 1)}),
    )
    assert [(row["level"], row["template_id"], row["parameters"]) for row in good] == [
        ("INFO", "T1", ["amy"]),
        ("INFO", "T2", ["bob", "10.0.0.1"]),
        ("WARN", "T3", []),
        ("INFO", None, None),
    ]
    assert bad == {4: "the value does not match the pattern"}


def test_avro_with_and_without_header_and_of_an_older_schema(spark: "SparkSession") -> None:
    from fastavro import parse_schema, schemaless_writer

    old: dict[str, Any] = {"type": "record", "name": "O", "fields": [{"name": "id", "type": "long"}]}
    moment = {"type": "long", "logicalType": "timestamp-millis"}
    new: dict[str, Any] = {
        "type": "record",
        "name": "O",
        "fields": [*old["fields"], {"name": "at", "type": ["null", moment], "default": None}],
    }

    def written(schema: dict[str, Any], record: dict[str, Any], header: bytes = b"") -> bytes:
        out = io.BytesIO(header)
        out.seek(len(header))
        schemaless_writer(out, parse_schema(schema), record)
        return out.getvalue()

    at = datetime.datetime(2026, 11, 15, 12, tzinfo=datetime.UTC)
    given = parse.Given(avro_schema=json.dumps(new), avro_writers={7: json.dumps(old), 9: json.dumps(new)})
    good, bad = split(spark, model.AvroParse(schema="x"), written(new, {"id": 1, "at": at}), b"\x02", given=given)
    assert [row["id"] for row in good] == [1]
    assert bad[1].startswith("not Avro of this schema: ")

    good, bad = split(
        spark,
        model.AvroParse(schema="x", confluent_header=True),
        written(new, {"id": 1, "at": at}, b"\x00\x00\x00\x00\x09"),
        written(old, {"id": 2}, b"\x00\x00\x00\x00\x07"),
        written(old, {"id": 3}),
        written(new, {"id": 4, "at": None}, b"\x00\x00\x00\x00\x09") + b"!",
        written(new, {"id": 5, "at": None}, b"\x00\x00\x00\x00\x05"),
        given=given,
    )
    assert [(row["id"], row["at"] is None) for row in good] == [(1, False), (2, True)]
    assert bad == {
        2: "no schema id: the value does not begin with a zero byte and four bytes of id",
        3: "not Avro of this schema: 1 bytes are left over",
        4: "schema id 5 is not known: name it under writer_schemas, or use a registry (format: registry)",
    }


@pytest.mark.parametrize(
    ("how", "parser"),
    [
        (model.JsonParse(schema="id int not null, n int", require={"r": "n > 1"}), "from_json("),
        (model.CsvParse(schema="id int not null, n int", require={"r": "n > 1"}), "from_csv("),
        (model.AvroParse(schema="x", require={"r": "n > 1"}), "decode("),
    ],
    ids=["json", "csv", "avro"],
)
def test_a_value_is_parsed_once_however_many_columns_are_asked_about(
    spark: "SparkSession", how: model.Parse, parser: str
) -> None:
    fields = [{"name": name, "type": "int"} for name in ("id", "n")]
    given = parse.Given(avro_schema=json.dumps({"type": "record", "name": "O", "fields": fields}))
    frame = parse.parsed(records(spark, b"x").repartition(2), how, given)  # Spark calculates a local table at once
    for rows in (parse.good(frame, ["offset"]).where("n > 5 AND id < 3"), parse.bad(frame, model.TextParse(), given)):
        plan = rows._jdf.queryExecution().optimizedPlan().toString()
        assert plan.count(parser) == 1, plan


def test_with_fail_the_first_bad_record_stops_and_is_named(spark: "SparkSession") -> None:
    from pyspark.errors import PySparkException

    how = model.JsonParse(schema="id int not null", on_error="fail")
    rows = model.CsvParse(schema="id int", on_error="fail")
    for parser, value, reason in (
        (how, b"{}", "field id: missing or null"),
        (how, b'{"id": "x"}', 'field id: expected int, found "x"'),
        (rows, b"x", "field id: expected int, found 'x'"),
    ):
        good = b'{"id": 1}' if parser is how else b"1"
        frame = parse.failing(parse.parsed(records(spark, good, value), parser, NOTHING), parser, NOTHING)
        with pytest.raises(PySparkException, match=f"record t-0@1: {reason}"):
            parse.good(frame, []).collect()
    frame = parse.failing(parse.parsed(records(spark, b'{"id": 1}'), how, NOTHING), how, NOTHING)
    assert parse.good(frame, []).collect() == [(1,)]


def test_templates_come_from_a_file_of_lines(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a <*> b\n\nc\n")
    assert parse.read_templates(model.LogParse(templates_file="t.txt"), str(tmp_path)) == {"a <*> b": "T1", "c": "T2"}
    assert parse.read_templates(model.LogParse(templates=("learn",)), str(tmp_path)) == {}


def test_json_that_is_more_or_less_than_one_object_is_a_dead_letter(spark: "SparkSession") -> None:
    how = model.JsonParse(schema="a bigint, d double, b decimal(6,2), at timestamp")
    good, bad = split(
        spark,
        how,
        b' {"a": 1, "at": "2026-11-15T12:00:00Z"}\n',
        b'{"a":1}{"a":2}',
        b'{"a":1} xyz',
        b'{"a":1},{"a":2}',
        b'{"a":1}]',
        b'{"a":1}}',
        b'{"a":1},"w":5',
        b'{"a":1}] [{"b":2}',
        b'{"a":1,"a":2}',
        b'{"a":1,"x":{"y":1,"y":2}}',
        b"{'a':1}",
        b'{"d":NaN}',
        b'{"d":1e999,"at":"2026-11-15T12:00:00Z"}',
        b'{"a":99999999999999999999,"at":"2026-11-15T12:00:00Z"}',
        b'{"b":123456789.5,"at":"2026-11-15T12:00:00Z"}',
        b"null",
    )
    assert [row["a"] for row in good] == [1]
    assert bad == {
        1: "not JSON: the value goes on after its end, at column 8",
        2: "not JSON: the value goes on after its end, at column 9",
        3: "not JSON: the value goes on after its end, at column 8",
        4: "not JSON: the value goes on after its end, at column 8",
        5: "not JSON: the value goes on after its end, at column 8",
        6: "not JSON: the value goes on after its end, at column 8",
        7: "not JSON: the value goes on after its end, at column 8",
        8: 'not JSON: the key "a" stands there twice',
        9: 'not JSON: the key "y" stands there twice',
        10: "not JSON: Expecting property name enclosed in double quotes at column 2",
        11: "not JSON: NaN is no number",
        12: "field d: Infinity is too large for double",
        13: "field a: 99999999999999999999 is too large for bigint",
        14: "field b: 123456789.5 is too large for decimal(6,2)",
        15: "the value: expected an object, found null",
    }
    good, bad = split(spark, model.JsonParse(schema="a bigint", strict=False), b'{"a":1,"a":2}', b"{'a':3}")
    assert [row["a"] for row in good] == [2, 3]


def test_values_with_ids_of_a_registry(spark: "SparkSession") -> None:
    from moldau.spark.registry.client import RegistrySettings
    from moldau.spark.registry.formats import reader_schema
    from tests.spark.fake_registry import running

    with running() as registry:
        text = {"type": "object", "properties": {"id": {"type": "integer"}, "big": {"type": "integer"}}}
        header = b"\0" + registry.add("t-value", text, "JSON").to_bytes(4, "big")
        reader = reader_schema("json", RegistrySettings.parse({"url": registry.url}), "t-value")
        good, bad = split(
            spark,
            model.RegistryParse(values="json"),
            header + b'{"id": 1}',
            header + b'{"id": 99999999999999999999}',
            b"\0\0\0\0\x63{}",
            header + b'{"id": "x"}',
            given=parse.Given(reader=reader),
        )
    assert good == [{"id": 1, "big": None, "_offset": 0}]
    assert sorted(bad) == [1, 2, 3]
    assert "does not fit its schema" in bad[1]
    assert bad[2] == "schema id 99 is not known to the registry (404 Schema not found)"
