"""What turns values into columns, without Spark: schemas, reasons, samples, templates."""

import random
import time

import pytest
from pyspark.sql import types as t

from moldau.spark.avro_types import SchemaError, spark_type_of_avro
from moldau.spark.pipelines import csv_text, json_text
from moldau.spark.pipelines.patterns import PatternError, group_names, java_pattern, line_pattern
from moldau.spark.pipelines.progress import first_reason
from moldau.spark.pipelines.schema import parse_schema
from moldau.spark.pipelines.templates import Learner, Matcher, learn, masked, shortened


def test_a_schema_is_read_as_spark_reads_it() -> None:
    found = parse_schema("id BIGINT NOT NULL, `a b` array<struct<x:int, y:map<string,decimal(5,2)>>>, d date")
    assert found.jsonValue() == {
        "type": "struct",
        "fields": [
            {"name": "id", "type": "long", "nullable": False, "metadata": {}},
            {
                "name": "a b",
                "type": {
                    "type": "array",
                    "elementType": {
                        "type": "struct",
                        "fields": [
                            {"name": "x", "type": "integer", "nullable": True, "metadata": {}},
                            {
                                "name": "y",
                                "type": {
                                    "type": "map",
                                    "keyType": "string",
                                    "valueType": "decimal(5,2)",
                                    "valueContainsNull": True,
                                },
                                "nullable": True,
                                "metadata": {},
                            },
                        ],
                    },
                    "containsNull": True,
                },
                "nullable": True,
                "metadata": {},
            },
            {"name": "d", "type": "date", "nullable": True, "metadata": {}},
        ],
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "the schema is empty"),
        ("a", "column 'a' has no type; write `a string`"),
        ("a int b int", "expected ',' but found 'b'"),
        ("a array<int", "expected '>' but found 'the end'"),
        ("a decimal(40,2)", r"decimal\(40,2\) is not possible"),
        ("a int, a int", "column 'a' stands in the schema twice"),
        ("a int, , b int", "expected a column name but found ','"),
        ("a int; b int", "cannot read '; b int'"),
    ],
)
def test_what_is_no_schema_is_said(text: str, reason: str) -> None:
    with pytest.raises(SchemaError, match=reason):
        parse_schema(text)


def test_avro_types_become_sparks() -> None:
    schema = {
        "type": "record",
        "name": "Order",
        "fields": [
            {"name": "id", "type": "long"},
            {"name": "note", "type": ["null", "string"]},
            {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
            {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
            {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A"]}},
            {"name": "other", "type": "Kind"},
            {"name": "tags", "type": {"type": "array", "items": "string"}},
            {"name": "more", "type": {"type": "map", "values": ["null", "int"]}},
        ],
    }
    found, nullable = spark_type_of_avro(schema)
    assert not nullable
    assert found.simpleString() == (
        "struct<id:bigint,note:string,at:timestamp,price:decimal(9,2),kind:string,other:string,"
        "tags:array<string>,more:map<string,int>>"
    )
    union, nullable = spark_type_of_avro(["null", "int", "long", {"type": "array", "items": ["int", "long"]}])
    assert (union.simpleString(), nullable) == ("struct<member0:int,member1:bigint,member2:array<bigint>>", True)
    with pytest.raises(SchemaError, match="contains itself"):
        spark_type_of_avro({"type": "record", "name": "R", "fields": [{"name": "next", "type": ["null", "int", "R"]}]})


ORDER = parse_schema("id int, price double, ok boolean, tags array<string>, who struct<name:string,age:smallint>")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b'{"id": 1,}', "not JSON: Expecting property name enclosed in double quotes at column 10"),
        (b"\xff{}", "not UTF-8 text: byte 0 is 0xff"),
        (b"7", "the value: expected an object, found 7"),
        (b'{"id": "7"}', 'field id: expected int, found "7"'),
        (
            b'{"price": 0.' + b"1" * 1_001 + b"}",
            "not JSON: a number has more than 1,000 digits, and Spark reads no more",
        ),
        (b'{"id": "a\tb"}', "not JSON: Invalid control character at column 10"),
        (b'{"id": 3000000000}', "field id: 3000000000 is too large for int"),
        (b'{"price": "cheap"}', 'field price: expected double, found "cheap"'),
        (b'{"ok": 1}', "field ok: expected boolean, found 1"),
        (b'{"tags": "a"}', 'field tags: expected an array, found "a"'),
        (b'{"who": {"age": 1.5}}', "field who.age: expected smallint, found 1.5"),
        (b'{"id": 1}', "it does not fit the schema"),
        (b'{"id": "' + b"x" * 100 + b'"}', 'field id: expected int, found "' + "x" * 38 + "…"),
    ],
)
def test_the_reason_names_what_does_not_fit(value: bytes, reason: str) -> None:
    assert json_text.explain(value, ORDER) == reason


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"1,2", "not CSV of this schema: 2 columns, expected 3"),
        (b"x,2,a", "field id: expected int, found 'x'"),
        (b"1,cheap,a", "field price: expected double, found 'cheap'"),
        (b"1,2,a\n2,3,b", "not a line of CSV: 2 lines"),
        (b"\xff", "not UTF-8 text: byte 0 is 0xff"),
    ],
)
def test_the_reason_names_the_column_of_a_line(value: bytes, reason: str) -> None:
    assert csv_text.explain(value, parse_schema("id int, price double, name string"), ",") == reason


def test_a_sample_gives_the_narrowest_types_that_hold_all_values() -> None:
    sample = [
        b'{"a": 1, "b": 1, "c": true, "d": null, "e": [1, 2.5], "f": {"x": 1}}',
        b'{"a": 2, "b": 1.5, "c": "no", "e": [], "f": {"y": "z"}, "g": {}}',
        b"not json",
        None,
        b"[1]",
    ]
    found = json_text.infer_schema(sample)
    assert found is not None
    assert json_text.without_nulls(found).simpleString() == (
        "struct<a:bigint,b:double,c:string,d:string,e:array<double>,f:struct<x:bigint,y:string>,g:map<string,string>>"
    )
    assert json_text.infer_schema([b"[]", None, b"{}"]) is None


def test_a_log_line_becomes_a_pattern() -> None:
    pattern = line_pattern("[<time>] [<level>] <content>")
    assert group_names(pattern) == ["time", "level", "content"]
    java, numbers = java_pattern(pattern)
    assert numbers == {"time": 1, "level": 2, "content": 3}
    assert "?<" not in java
    with pytest.raises(PatternError, match="stands in the line twice"):
        line_pattern("<a> <a>")
    with pytest.raises(PatternError, match="has no places"):
        line_pattern("nothing")


TEMPLATES = [
    "authentication failure; rhost=<*>",
    "authentication failure; rhost=<*>  user=<*>",
    "Failed password for <*> from <*> port <*> ssh2",
    "Failed password for invalid user <*> from <*> port <*> ssh2",
    "<*> Served block <*> to <*>",
    "<*>",
]


@pytest.mark.parametrize(
    ("message", "template", "parameters"),
    [
        ("authentication failure; rhost=1.2.3.4", 0, ("1.2.3.4",)),
        ("authentication failure; rhost=1.2.3.4  user=root", 1, ("1.2.3.4", "root")),
        ("Failed password for root from h port 22 ssh2", 2, ("root", "h", "22")),
        ("Failed password for invalid user x y from h port 22 ssh2", 3, ("x y", "h", "22")),
        ("10.0.0.1:50010 Served block b to /h", 4, ("10.0.0.1:50010", "b", "/h")),
        ("something else", 5, ("something else",)),
    ],
)
def test_the_most_constant_template_wins(message: str, template: int, parameters: tuple[str, ...]) -> None:
    found = Matcher(TEMPLATES).match(message)
    assert found is not None
    assert (found.template, found.template_id) == (TEMPLATES[template], f"T{template + 1}")
    assert found.parameters == parameters


def test_a_message_of_no_template_has_none() -> None:
    assert Matcher(TEMPLATES[:3]).match("cron started") is None


def test_templates_are_learned_from_messages_in_any_order() -> None:
    patterns = ["user {} logged in from 10.0.0.{}", "cache miss for key k{} after {} ms", "shutting down"]
    messages = [pattern.format(n, n % 7) for pattern in patterns for n in range(50)]
    for seed in range(5):
        random.Random(seed).shuffle(messages)
        assert set(learn(messages)) == {
            "user <*> logged in from <*>",
            "cache miss for key <*> after <*> ms",
            "shutting down",
        }


def test_a_word_that_varies_without_digits_becomes_a_place() -> None:
    messages = [f"Invalid user {name} from host {name}.example" for name in ("amy", "bob", "eve")]
    assert learn(messages) == ["Invalid user <*> from host <*>"]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (
            "[PYTHON_EXCEPTION] An exception was thrown from the Python worker: Traceback (most recent call last):\n"
            '  File "sink.py", line 149, in write\n    raise ReplayDiffers(x)\n'
            "moldau.spark.transactions.ReplayDiffers: batch 0 comes again with other rows\n SQLSTATE: 38000\n"
            "\tat org.apache.spark.X.y(X.scala:1)\norg.apache.spark.SparkException: Job aborted\n"
            "=== Streaming Query ===\nIdentifier: out [id = 3bd87c9b]",
            "moldau.spark.transactions.ReplayDiffers: batch 0 comes again with other rows",
        ),
        ("Traceback (most recent call last):\nValueError: no\n", "ValueError: no"),
        (
            "[USER_RAISED_EXCEPTION] record t-0@1: missing SQLSTATE: P0001\nmore",
            "[USER_RAISED_EXCEPTION] record t-0@1: ",
        ),
        ("Job aborted: org.apache.spark.SparkException: lost\n\tat org.x.Error: (X)", "Job aborted: org.apache.spark."),
        ("", ""),
    ],
)
def test_the_reason_of_a_failure_is_one_line_of_sparks_many(message: str, reason: str) -> None:
    assert first_reason(message).startswith(reason)
    assert "\n" not in first_reason(message)


def test_types_of_avro_and_schema_agree() -> None:
    assert spark_type_of_avro("long")[0] == t.LongType()


def test_lines_of_any_length_are_learnt_in_time_that_does_not_grow_with_them() -> None:
    words = ["".join(random.Random(number).choices("abcdefgh", k=5)) for number in range(500)]
    choose = random.Random(3)
    long = ["dump of " + " ".join(choose.choices(words, k=100_000)) for _ in range(30)]
    learner = Learner()
    began = time.process_time()
    for line in long:
        learner.learn(line)
    assert time.process_time() - began < 3, "comparing every word of every line takes minutes"
    again = Learner()
    for line in long:
        again.learn(shortened(line))
    assert again.templates() == learner.templates(), "what is kept of a line teaches the same"
    templates = learner.templates()
    assert all(len(each) < 2_000 for each in templates)
    found = Matcher(templates, templates)
    assert all(found.match(line) is not None for line in long)


@pytest.mark.parametrize("tail", ["x" * 5_000, "word " * 700 + "end"])
def test_a_line_that_was_too_long_to_keep_is_learnt_all_the_same(tail: str) -> None:
    line = f"token is {tail}"
    own = masked(line)
    assert (own.parameters[-1][-3:], len(own.template) < 1_000) == (line[-3:], True)
    templates = learn([shortened(line)])
    assert Matcher(templates).match(line) is not None
