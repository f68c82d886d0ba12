"""Pipelines tried on rows in a file: what differs is told, row by row."""

import time
from itertools import permutations
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moldau.spark.pipelines import PipelineError, loads, validate
from moldau.spark.pipelines.trial import _unlike, _unlike_reasons, file_of, read_trials, run_trials

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PIPELINE = """
name: orders
kafka: {bootstrap.servers: "nobody:1"}
sources:
  orders:
    topic: orders
    parse: {format: json, schema: {id: bigint not null, customer: string, amount: "decimal(8,2)", at: timestamp}}
    watermark: {column: at, delay: 1 minute}
  customers: {files: c, format: csv, schema: {customer: string, country: string}, static: true}
steps:
  - {name: known, from: orders, join: customers, on: customer}
  - {name: totals, window: {column: at, size: 1 minute}, group_by: [country], aggregate: {total: sum(amount)}}
sinks:
  - {topic: totals, from: totals}
"""
TRIALS = """
- name: totals of a country
  given:
    customers: [{customer: amy, country: cz}, {customer: bob, country: cz}]
    orders:
      - {id: 1, customer: amy, amount: 2.5, at: "2026-11-15T12:00:01Z"}
      - {id: 2, customer: bob, amount: 1, at: "2026-11-15T12:00:02Z"}
      - {id: 3, customer: nobody, amount: 1, at: "2026-11-15T12:00:02Z"}
      - "{nonsense"
  expect:
    topic-totals: [{country: cz, total: 3.5, window_start: "2026-11-15 12:00:00"}]
    known: [{id: 1}, {id: 2, country: cz}]
    dead-letters-orders: [not JSON]
- name: a trial that differs
  given: {orders: [{id: 1, customer: amy, amount: 1}], customers: []}
  expect: {topic-totals: [{country: cz}], dead-letters-orders: [no such reason]}
"""


def test_what_comes_out_is_compared_with_what_is_expected(spark: "SparkSession", tmp_path: Path) -> None:
    from moldau.spark.pipelines.sinks import prepared

    pipeline = loads(PIPELINE, "orders.yaml", folder=str(tmp_path))
    file = file_of(str(tmp_path / "orders.yaml"))
    assert file.name == "orders.test.yaml"
    file.write_text(TRIALS)
    trials = read_trials(file, pipeline, validate(pipeline))
    first, second = run_trials(prepared(spark, pipeline), pipeline, trials)
    assert (first.name, first.differences) == ("totals of a country", ())
    assert second.differences == (
        'topic-totals: missing {"country": "cz"}',
        "dead-letters-orders: missing a reason with 'no such reason'",
    )


def test_times_are_moments_wherever_the_trial_runs(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark hands out times as this machine's clock shows them, and YAML reads some with a zone of their own."""
    from moldau.spark.pipelines.sinks import prepared

    text = """
name: times
kafka: {bootstrap.servers: "nobody:1"}
sources:
  s: {topic: s, parse: {format: json, schema: "at timestamp, plain timestamp_ntz, parts array<struct<at: timestamp>>"}}
sinks: [{topic: out}]
"""
    trials = """
- given: {s: [{at: "2026-11-15T12:00:00Z", plain: "2026-11-15T12:00:00", parts: [{at: "2026-11-15T14:00:00+02:00"}]}]}
  expect: {s: [{at: 2026-11-15T14:00:00+02:00, plain: 2026-11-15 12:00:00, parts: [{at: 2026-11-15T12:00:00Z}]}]}
- given: {s: [{at: "2026-11-15T12:00:00Z"}]}
  expect: {s: [{at: 2026-11-15 12:00:00, plain: null}]}
- given: {s: [{at: 2026-11-15 12:00:00}]}
  expect: {s: [{at: 2026-11-15T13:00:00Z}]}
- given: {s: [{at: 2026-11-15 12:00:00}]}
  expect: {s: [{att: 2026-11-15T13:00:00Z}]}
"""
    pipeline = loads(text, "times.yaml", folder=str(tmp_path))
    file = tmp_path / "times.test.yaml"
    file.write_text(trials)
    ready = prepared(spark, pipeline)
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        outcomes = run_trials(ready, pipeline, read_trials(file, pipeline, validate(pipeline)))
    finally:
        monkeypatch.undo()
        time.tzset()
    assert [each.differences for each in outcomes] == [
        (),
        (),
        (
            's: missing {"at": "2026-11-15 13:00:00"}',
            's: not expected {"at": "2026-11-15 12:00:00", "plain": null, "parts": null}',
        ),
        ("s: there is no column 'att' (did you mean 'at'?)",),
    ]


def test_rows_are_compared_by_the_columns_that_are_named() -> None:
    assert _unlike("s", [{"a": 1}, {"a": 1, "b": 2.0}], [{"a": 1, "b": 4}, {"a": 1, "b": 3}]) == [
        's: missing {"a": 1, "b": 2.0}',
        's: not expected {"a": 1, "b": 3}',
    ]
    assert _unlike("s", [{"t": "2026-11-15T12:00:00Z"}], [{"t": "2026-11-15 12:00:00"}]) == []
    assert _unlike("s", [{"l": [0.3, {"a": 1}]}], [{"l": [0.1 + 0.2, {"a": 1, "b": 2}]}]) == []
    assert len(_unlike("s", [{"a": 1}, {"a": True}], [{"a": True}, {"a": True}])) == 2


def test_rows_that_fit_more_than_one_are_left_to_those_that_need_them() -> None:
    """Whatever the order: a loose row took the only one that a strict row, or a strict reason, could have had."""
    found = [{"a": 1, "b": 1}, {"a": 1, "b": 2}, {"a": 2, "b": 2}]
    for expected in permutations([{"a": 1}, {"b": 2}, {"a": 1, "b": 1}]):
        for rows in permutations(found):
            assert _unlike("s", list(expected), list(rows)) == []
    assert _unlike("s", [{"a": 1}, {"b": 2}, {"a": 3}], found)[:1] == ['s: missing {"a": 3}']
    assert _unlike_reasons("d", ["", "not"], ["not JSON", "too old"]) == []


def test_what_is_not_shown_of_many_differences_is_counted() -> None:
    told = _unlike("s", [], [{"a": number} for number in range(25)])
    assert (len(told), told[-1]) == (21, "s: not expected 5 more")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1", "a file of trials is a list"),
        (
            "- {name: x, given: {order: []}, expect: {}}",
            "`given` names 'order', which is not there; did you mean 'orders'",
        ),
        ("- {name: x, given: {}, expect: {totls: []}}", "`expect` names 'totls'"),
        ("- {name: x, given: []}", "`given` is a mapping"),
        ("- [", "not YAML"),
        ("[]", "a file of trials is a list"),
        ("- {name: x, given: {}, expect: {}, expects: {}}", "'expects' is no part of a trial; did you mean 'expect'"),
        ("- {name: x, given: {}, expect: {totals: [cz]}}", "a row of 'totals' is a mapping"),
        ("- {given: {}, expect: {}}\n- {given: {5: []}}", ":2:3: trial 2: `given` names '5', which is not there"),
        ("- name: x\n\tgiven: {}", ":2:1: this is not YAML: .*indent with spaces"),
        ("- {name: x,\n   name: y}", ":2:4: 'name' stands here twice; the first is in line 1"),
        ("- &x {name: x,\n   given: {orders: [*x]}}", ":2:20: this goes too deep, or repeats itself"),
        ("- {given: {orders: [2026-13-45]}}", ":1:3: a value is none .month must be in 1..12.; put it in quotes"),
        ("- !!python/object:x {}", ":1:3: this means nothing here: could not determine a constructor"),
        ("# \udcff", "cannot be read: it is not UTF-8 text"),
    ],
)
def test_mistakes_in_a_file_of_trials_are_told(tmp_path: Path, text: str, told: str) -> None:
    pipeline = loads(PIPELINE, "orders.yaml", folder=str(tmp_path))
    file = tmp_path / "orders.test.yaml"
    with pytest.raises(PipelineError, match="cannot be read"):
        read_trials(file, pipeline, validate(pipeline))
    file.write_text(text, errors="surrogateescape")
    with pytest.raises(PipelineError, match=told):
        read_trials(file, pipeline, validate(pipeline))
