"""Patterns that no value can stall: lines of logs in one walk, users' patterns by RE2 or under an alarm."""

import re
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from moldau.spark.pipelines import model, parse
from moldau.spark.pipelines.linear_groups import finder, is_linear
from moldau.spark.pipelines.patterns import compiled, line_pattern
from tests.spark.test_pipeline_parse import split

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINES = (
    "<date> <time> <level> <component>: <content>",
    "<a> <b> <c> <d> <e> <f> <g> <h> [<pid>] <content>",
    "[<time>] [<level>] <content>",
    '<host> - [<time>] "<request>" <code>',
)


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("unit", ["word ", " ", "[x] ", "a:", "a: ", '" ', " - ["])
def test_a_line_that_does_not_fit_is_known_after_one_walk(line: str, unit: str) -> None:
    pattern = compiled(line_pattern(line))
    times = []
    for count in (2_000, 32_000):
        text = unit * count + "\0"
        began = time.perf_counter()
        pattern.match(text)
        times.append(time.perf_counter() - began)
    assert times[1] < 0.5, "sixteen times the text, and quadratic would be 256 times the time"


def test_places_hold_what_they_held_before() -> None:
    before = re.compile(r"^(?P<time>.*?)\s+(?P<level>.*?)\s+(?P<component>.*?):\s+(?P<content>.*?)\s*$")
    now = compiled(line_pattern("<time> <level> <component>: <content>"))
    for text in (
        "12 INFO a: b",
        "12  INFO  a b: c: d  ",
        "12 INFO a:b: c",
        "12 INFO a:",
        "x",
        "",
        "1 I a: b\n",
        "1 I : b",
    ):
        found, expected = now.match(text), before.match(text)
        assert (found and found.groupdict()) == (expected and expected.groupdict()), text


def test_a_users_pattern_is_linear_or_has_a_limit_of_time() -> None:
    evil = r"^(?<a>(x+x+)+)y$"
    assert is_linear(evil)
    array = pa.array(["x" * 5_000, "xxy", None])
    (found,) = finder(evil, 1.0)(iter([array]))
    assert found.to_pylist() == [
        {"found": None, "error": "the value does not match the pattern"},
        {"found": {"a": "xx"}, "error": None},
        {"found": None, "error": None},
    ]
    backwards = r"^(?<a>(x+x+)+)y(?<!z)$"
    assert not is_linear(backwards)
    began = time.perf_counter()
    (found,) = finder(backwards, 0.1)(iter([array]))
    assert time.perf_counter() - began < 1
    assert found.to_pylist()[0]["error"] == "the pattern needs more than 0.1 s for this value (time_limit)"
    assert found.to_pylist()[1:] == [{"found": {"a": "xx"}, "error": None}, {"found": None, "error": None}]


def test_spark_matches_long_lines_and_refuses_those_that_are_too_long(spark: "SparkSession") -> None:
    how = model.LogParse(line="<a> <b> <c> <d> <e> <f> <g> <h> [<pid>] <content>", max_bytes=200_000)
    long_line = b"word " * 30_000
    good, bad = split(spark, how, long_line, b"1 2 3 4 5 6 7 8 [9] " + long_line, b"x" * 200_001)
    assert [row["pid"] for row in good] == ["9"]
    assert good[0]["content"] == long_line.decode().strip()
    assert bad == {
        0: "the value does not match the pattern",
        2: "the value has 200001 bytes, more than max_bytes: 200000",
    }
    how_regex = model.RegexParse(pattern=r"^(?<a>(x+x+)+)y$", max_bytes=10_000)
    good, bad = split(spark, how_regex, b"x" * 5_000, b"xxy", b"x" * 10_001, given=parse.Given())
    assert [row["a"] for row in good] == ["xx"]
    assert sorted(bad) == [0, 2]
