"""The console sink prints values as they are: nothing in a record is markup, moves a cursor or ends the query."""

import time
from typing import TYPE_CHECKING

import pytest

from moldau.spark.pipelines import loads, model
from moldau.spark.pipelines.sinks import _console

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_values_are_text_and_times_those_of_the_session(
    spark: "SparkSession", monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pipeline = loads("name: p\nsources: {a: {rate: 1}}\nsinks: [console: 2]", "p.yaml")
    (sink,) = pipeline.sinks
    assert isinstance(sink, model.ConsoleSink)
    rows = spark.sql(
        "SELECT '[red]a[/b]' AS `x.[/y]`, 'up\\u001b[2J' AS b, timestamp '2026-11-15 12:00:00' AS at, "
        "CAST(null AS string) AS none, named_struct('n', 1) AS s, 1 AS twice, 2 AS twice FROM range(3)"
    )
    monkeypatch.setenv("TZ", "America/New_York")
    monkeypatch.setenv("COLUMNS", "200")
    time.tzset()
    try:
        _console(sink)(rows, 7)
    finally:
        monkeypatch.undo()
        time.tzset()
    shown = capsys.readouterr().out
    assert "batch 7" in shown
    assert shown.count("[red]a[/b]") == 2
    assert "x.[/y]" in shown
    assert shown.count("up\\u001b[2J") == 2
    assert shown.count("2026-11-15 12:00:00") == 2
    assert shown.count("{1}") == 2
    assert "… and more" in shown
