"""What older versions of Spark lack is said, not stumbled over; what they can do is done exactly.

Spark 4.1 asks for the end of a batch without saying where it begins, and before the start of a new query. Its calls are
made here in its order.
"""

import importlib
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.spark import arrow_types, read_limits, stream_source
from moldau.spark.options import OptionError
from moldau.spark.pipelines import PipelineError, loads, sources
from moldau.spark.source import read_rows
from moldau.spark.stream_source import StreamReader, make_stream_reader
from tests.spark.reading import send
from tests.support.clients import create_topic


def stream(bootstrap: str, topic: str, **options: str) -> StreamReader:
    from moldau.spark.options import source_schema

    given = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, **options}
    return make_stream_reader(given, source_schema(given))


def offsets_of(reader: StreamReader, start: dict[str, object], end: dict[str, object]) -> list[int]:
    tasks = reader.partitions(start, end)
    return [
        offset
        for task in tasks
        for batch in read_rows(task, reader._options)
        for offset in batch.column("offset").to_pylist()
    ]


def test_a_stream_that_is_told_no_start_reads_each_record_once(bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 3)
    reader = stream(bootstrap, topic, startingOffsets="earliest")
    first = reader.latestOffset()
    assert first == {topic: {"0": 3}}
    assert offsets_of(reader, reader.initialOffset(), first) == [0, 1, 2]
    send(bootstrap, topic, 2)
    again = stream(bootstrap, topic, startingOffsets="earliest")  # after a restart: no start is asked for
    second = again.latestOffset()
    assert offsets_of(again, first, second) == [3, 4]
    again.stop()
    reader.stop()


def test_a_stream_from_the_latest_starts_at_the_end_that_was_told_first(bootstrap: str) -> None:
    topic = create_topic(bootstrap)
    send(bootstrap, topic, 3)
    reader = stream(bootstrap, topic, startingOffsets="latest")
    first = reader.latestOffset()
    send(bootstrap, topic, 2)  # between the two questions: they belong to the next batch
    assert reader.initialOffset() == first == {topic: {"0": 3}}
    assert offsets_of(reader, reader.initialOffset(), first) == []
    send(bootstrap, topic, 1)
    # The batch is repeated by a process that has never told an end.
    again = stream(bootstrap, topic, startingOffsets="latest")
    assert offsets_of(again, again.initialOffset(), first) == []
    assert offsets_of(again, first, again.latestOffset()) == [3, 4, 5]
    again.stop()
    reader.stop()


@pytest.fixture
def without_limits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The names of Spark 4.2 are not there."""
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "pyspark.sql.streaming.datasource", None)
        importlib.reload(read_limits)
        assert not read_limits.HAS_LIMITS
        patched.setattr(stream_source, "HAS_LIMITS", read_limits.HAS_LIMITS)
        yield
    importlib.reload(read_limits)


@pytest.mark.parametrize("limit", ["maxOffsetsPerTrigger", "minOffsetsPerTrigger"])
@pytest.mark.usefixtures("without_limits")
def test_limits_are_refused_where_they_cannot_be_kept(limit: str) -> None:
    with pytest.raises(OptionError, match=rf"'{limit}' cannot be kept on Spark 4\.1.*use Spark 4\.2"):
        stream("h:1", "t", **{limit: "5"})
    assert stream("h:1", "t") is not None


def test_types_are_arrows_by_either_name_for_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spark 4.1 takes `timestamp_utc` where those after it take `timezone`."""
    import pyarrow as pa
    from pyspark.sql import types as t
    from pyspark.sql.pandas import types as translated

    plain_schema, plain_type = translated.to_arrow_schema, translated.to_arrow_type

    def older_schema(schema: t.StructType, timestamp_utc: bool = False) -> object:
        return plain_schema(schema, timezone="UTC" if timestamp_utc else None)

    def older_type(kind: t.DataType, timestamp_utc: bool = False, **by_schema: Any) -> object:
        return plain_type(kind, **{"timezone": "UTC" if timestamp_utc else None, **by_schema})

    wanted = pa.schema([pa.field("at", pa.timestamp("us", "UTC"))])
    schema = t.StructType([t.StructField("at", t.TimestampType())])
    with monkeypatch.context() as patched:
        assert arrow_types.arrow_schema_of(schema) == wanted
        patched.setattr(translated, "to_arrow_schema", older_schema)
        patched.setattr(translated, "to_arrow_type", older_type)
        importlib.reload(arrow_types)
        assert arrow_types.arrow_schema_of(schema) == wanted
        assert arrow_types.arrow_type_of(t.TimestampType()) == pa.timestamp("us", "UTC")
    importlib.reload(arrow_types)


@pytest.mark.usefixtures("without_limits")
def test_what_pipelines_ask_of_sources_is_there_or_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("database_source", "delta_changes"):  # every pipeline imports them
        monkeypatch.delitem(sys.modules, f"moldau.spark.pipelines.{name}", raising=False)
        importlib.import_module(f"moldau.spark.pipelines.{name}")
    monkeypatch.setattr(sources, "HAS_LIMITS", read_limits.HAS_LIMITS)
    for source, what in (
        ("database: sqlite:///x, table: t, cursor: id", "a database with a cursor"),
        ("delta: x, changes: true", "a change feed"),
    ):
        pipeline = loads(f"name: p\nsources: {{a: {{{source}}}}}\nsinks: [console: 1]", "p.yaml")
        with pytest.raises(PipelineError, match=rf"p.yaml:2:\d+: {what} needs Spark 4\.2 or newer"):
            sources.open_source(None, pipeline, "a", pipeline.sources["a"], "q")  # type: ignore[arg-type]  # not asked
