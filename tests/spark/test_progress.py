"""What a query's reports add up to, whoever brings them."""

from types import SimpleNamespace
from typing import Any

from moldau.spark.pipelines.progress import QueryWatch, refusal


def test_reports_of_spark_connect_are_added_up_from_their_sources() -> None:
    """A server of Spark Connect leaves out the numbers that stand above the sources."""
    sources = [{"numInputRows": 40, "processedRowsPerSecond": 8.0}, {"numInputRows": 2, "processedRowsPerSecond": None}]
    report = {"batchId": 0, "sources": sources, "stateOperators": []}
    whole = {"batchId": 1, "sources": sources, "stateOperators": [], "numInputRows": 5, "processedRowsPerSecond": 3.0}
    query: Any = SimpleNamespace(
        recentProgress=[report], isActive=True, status={"isTriggerActive": True}, exception=lambda: None
    )
    watch = QueryWatch("q", query, lambda _: 7)
    assert [watch.look().rows_total, watch.look().rows_per_second] == [42, 8.0]
    query.recentProgress = [report, whole]
    assert [watch.look().rows_total, watch.look().rows_per_second] == [47, 3.0]


def test_what_a_source_says_is_told_and_not_the_first_line_of_a_traceback() -> None:
    told = """
[PYTHON_DATA_SOURCE_ERROR] Failed to create Python data source instance: Traceback (most recent call last):
  File "worker.py", line 5, in main
    raise OptionError(text)
moldau.spark.options.OptionError: 'includeHeaders' is true or false
 SQLSTATE: 38000"""
    assert refusal(Exception(told)) == "moldau.spark.options.OptionError: 'includeHeaders' is true or false"
    assert refusal(Exception("\n[NO_COLUMN] no  such\tcolumn;\n'Project\n+- x")) == "[NO_COLUMN] no such column"


def test_a_batch_after_a_pause_counts_although_its_number_was_reported_before() -> None:
    """A query that waits reports every ten seconds, under the number of the batch that it has not made yet."""

    def report(batch: int, rows: int, **steps: int) -> dict[str, Any]:
        numbers = {"numInputRows": rows, "processedRowsPerSecond": float(rows)}
        return {"batchId": batch, "sources": [], "stateOperators": [], "durationMs": steps, **numbers}

    first, idle = report(0, 40, addBatch=9, triggerExecution=10), report(1, 0, latestOffset=1, triggerExecution=1)
    query: Any = SimpleNamespace(
        recentProgress=[first, idle], isActive=True, status={"isTriggerActive": False}, exception=lambda: None
    )
    watch = QueryWatch("q", query, lambda _: 0)
    assert [watch.look().batch_id, watch.look().rows_total] == [0, 40]
    query.recentProgress = [first, idle, report(1, 2, addBatch=9, triggerExecution=10)]
    assert [watch.look().batch_id, watch.look().rows_total] == [1, 42]
    query.recentProgress += [report(2, 0, addBatch=3, triggerExecution=4)]  # without rows: it moves the watermark
    assert [watch.look().batch_id, watch.look().rows_total] == [2, 42]


def test_a_query_that_looks_for_news_waits() -> None:
    """A source may take its time to look; Spark counts that as a trigger at work."""
    query: Any = SimpleNamespace(recentProgress=[], isActive=True, exception=lambda: None)
    watch = QueryWatch("q", query, lambda _: 0)
    for message, is_active, state in (
        ("Getting offsets from PythonMicroBatchStream", True, "waiting"),
        ("Waiting for data to arrive", False, "waiting"),
        ("Processing new data", True, "running"),
        ("Waiting for next trigger", False, "waiting"),
    ):
        query.status = {"isTriggerActive": is_active, "message": message}
        assert watch.look().state == state
