"""Pipelines tried on rows in a file: what differs is told, row by row."""

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from moldau.spark.pipelines import PipelineError, loads, validate
from moldau.spark.pipelines.trial import _unlike, file_of, read_trials, run_trials

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


def test_rows_are_compared_by_the_columns_that_are_named() -> None:
    assert _unlike("s", [{"a": 1}, {"a": 1, "b": 2.0}], [{"a": 1, "b": 2}, {"a": 1, "b": 3}]) == [
        's: missing {"a": 1, "b": 2.0}',
        's: not expected {"a": 1, "b": 3}',
    ]
    assert _unlike("s", [{"t": "2026-11-15T12:00:00Z"}], [{"t": "2026-11-15 12:00:00"}]) == []


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
    ],
)
def test_mistakes_in_a_file_of_trials_are_told(tmp_path: Path, text: str, told: str) -> None:
    pipeline = loads(PIPELINE, "orders.yaml", folder=str(tmp_path))
    file = tmp_path / "orders.test.yaml"
    with pytest.raises(PipelineError, match="cannot be read"):
        read_trials(file, pipeline, validate(pipeline))
    file.write_text(text)
    with pytest.raises(PipelineError, match=told):
        read_trials(file, pipeline, validate(pipeline))
