"""Sinks of the model into streaming queries.

| sink | how often a row is written |
|---|---|
| table | as delta and iceberg; the commit says which offsets are in the table |
| topic | exactly once to readers of committed records (`delivery: exactly-once`), else at least once |
| delta, iceberg, database | exactly once: the batch's number is committed with the rows |
| parquet | exactly once to Spark, which reads the folder's own log; others may see files of a failed batch |
| console, memory, python | at least once |

Invariant: a query's identity is the id Spark keeps in its checkpoint. A new checkpoint is a new query, whose batches
begin at 0 again and are not mistaken for old ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from moldau.spark.kinds_of_session import Notes
from moldau.spark.pipelines import model
from moldau.spark.pipelines.durations import seconds_of
from moldau.spark.pipelines.functions import find
from moldau.spark.pipelines.parse import EXTRA
from moldau.spark.pipelines.secrecy import hide_in_plans
from moldau.spark.pipelines.sources import kafka_options
from moldau.spark.session import own_session
from moldau.spark.sink import foreach_batch, make_batch_writer

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

WriteBatch = Callable[["DataFrame", int], None]


def start(
    pipeline: model.Pipeline, name: str, sink: model.Sink, rows: DataFrame, checkpoint: str, *, once: bool
) -> StreamingQuery:
    """Start the query of a sink; `once` takes what is there now and ends."""
    match sink:
        case model.TopicSink():
            writer = _topic(pipeline, sink, rows, checkpoint)
        case model.ParquetSink():
            writer = rows.writeStream.format("parquet").option("path", _path(pipeline, sink.parquet))
            if sink.partition_by:
                writer = writer.partitionBy(*sink.partition_by)
        case model.MemorySink():
            writer = rows.writeStream.format("memory")
        case _:
            # A batch is looked at more than once where new columns may be in it: compute it once.
            batch = _batch_writer(pipeline, sink, Notes(checkpoint))
            writer = rows.writeStream.foreachBatch(_computed_once(batch) if EXTRA in rows.columns else batch)
    mode = "append" if isinstance(sink, model.ParquetSink) else sink.mode
    query_name = sink.memory if isinstance(sink, model.MemorySink) else name
    return _started(writer.outputMode(mode), query_name, checkpoint, sink.every, once=once)


def beside_tables(sink: model.Sink) -> model.Sink:
    """The sink of rows that depend on tables too. A batch that was cut off comes again, and the tables may have changed
    meanwhile: what was written of it stays, the rest is made of what the tables hold now."""
    if isinstance(sink, model.TopicSink) and sink.delivery == "exactly-once":
        return replace(sink, options={"checkReplay": "false"} | dict(sink.options))
    return sink


def start_dead_letters(
    pipeline: model.Pipeline, name: str, rows: DataFrame, checkpoint: str, *, once: bool
) -> StreamingQuery:
    writer = rows.writeStream.format("moldau").options(**kafka_options(pipeline)).option("delivery", "exactly-once")
    return _started(writer, name, checkpoint, "", once=once)


def _started(writer: DataStreamWriter, name: str, checkpoint: str, every: str, *, once: bool) -> StreamingQuery:
    writer = writer.queryName(name).option("checkpointLocation", checkpoint)
    if once:
        writer = writer.trigger(availableNow=True)
    elif every:
        writer = writer.trigger(processingTime=every)
    return writer.start()


def _path(pipeline: model.Pipeline, path: str) -> str:
    return path if "://" in path else os.path.join(pipeline.folder, path)


# ---- topics ---------------------------------------------------------------------------------------------------------


def topic_options(pipeline: model.Pipeline, sink: model.TopicSink) -> dict[str, str]:
    own = {"topic": sink.topic, "delivery": sink.delivery}
    if sink.schema:
        own["valueFormat"] = sink.schema
        own |= {f"schema.registry.{key}": value for key, value in pipeline.registry.items()}
    return kafka_options(pipeline) | own | dict(sink.options)


def shared_writer(pipeline: model.Pipeline, notes: Notes, sink: model.Sink) -> WriteBatch:
    """How a sink takes its share of a batch that others take too; the batch is noted under its own name."""
    if isinstance(sink, model.TopicSink):
        options = topic_options(pipeline, sink)
        return lambda rows, batch_id: _write_to_topic(_records(sink, rows), rows, options, notes, batch_id)
    return _batch_writer(pipeline, sink, notes, is_kept=True)


def write_dead_letters(pipeline: model.Pipeline, notes: Notes, bad: DataFrame, batch_id: int) -> None:
    from moldau.spark.pipelines.dead_letters import dead_letters

    letters = dead_letters(bad, pipeline.dead_letter_topic, f"{pipeline.name}-{notes.name}")
    options = kafka_options(pipeline) | {"delivery": "exactly-once"}
    _write_to_topic(letters, bad, options, notes, batch_id)


def _write_to_topic(
    records: DataFrame, rows: DataFrame, options: Mapping[str, str], notes: Notes, batch_id: int
) -> None:
    """As `records.write.format("moldau")` does, without the processes that Spark starts for each such write."""
    noted = {}
    if options["delivery"] == "exactly-once":
        noted = {"transactionalIdPrefix": notes.app_id(rows), "batchId": str(batch_id)}
    writer = make_batch_writer({**options, **noted}, records.schema, overwrite=False)

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        written = writer.write(batches)
        yield pa.RecordBatch.from_pydict({"rows": [written.rows]})

    records.mapInArrow(write, "rows bigint").collect()


def start_batches(
    rows: DataFrame,
    write: WriteBatch,
    name: str,
    checkpoint: str,
    *,
    once: bool,
    mode: str = "append",
    every: str = "",
) -> StreamingQuery:
    """A query whose batches are handed to a function."""
    return _started(rows.writeStream.outputMode(mode).foreachBatch(write), name, checkpoint, every, once=once)


def _topic(pipeline: model.Pipeline, sink: model.TopicSink, rows: DataFrame, checkpoint: str) -> DataStreamWriter:
    options = topic_options(pipeline, sink)
    writing = _records(sink, rows).writeStream
    if sink.mode == "update":  # Spark lets Python's sinks append and write the complete result only
        return writing.foreachBatch(foreach_batch(options, checkpoint))
    return writing.format("moldau").options(**options)


def _records(sink: model.TopicSink, rows: DataFrame) -> DataFrame:
    """The columns that the sink takes."""
    value = (
        f.struct(*(f"`{name}`" for name in rows.columns if name != EXTRA)) if sink.schema else _value(rows, sink.value)
    )
    columns = [value.alias("value")]
    if sink.key:
        columns.append(_bytes_or_text(rows, sink.key).alias("key"))
    if sink.headers:
        pairs = (
            f.struct(f.lit(name).alias("key"), f.expr(text).cast("string").cast("binary").alias("value"))
            for name, text in sink.headers.items()
        )
        columns.append(f.array(*pairs).alias("headers"))
    return rows.select(*columns)


def _bytes_or_text(rows: DataFrame, expression: str) -> Column:
    kind = dict(rows.selectExpr(f"{expression} AS x").dtypes)["x"]
    column = f.expr(expression)
    if kind in ("binary", "string"):
        return column
    if kind.startswith(("struct", "array", "map")):
        return f.to_json(column)
    return column.cast("string")


def _value(rows: DataFrame, value: str) -> Column:
    if value != "json":
        return _bytes_or_text(rows, value)
    text = f.to_json(f.struct(*(f"`{name}`" for name in rows.columns if name != EXTRA)))
    if EXTRA not in rows.columns:
        return text
    extra = f.to_json(EXTRA)
    joined = f.concat(
        f.substring(text, 1, 1), f.substr(extra, f.lit(2), f.length(extra) - 2), f.lit(","), f.substr(text, f.lit(2))
    )
    return f.when(f.coalesce(f.size(EXTRA), f.lit(0)) <= 0, text).when(text == "{}", extra).otherwise(joined)


# ---- batches --------------------------------------------------------------------------------------------------------


def _computed_once(write: WriteBatch) -> WriteBatch:
    def wrapped(rows: DataFrame, batch_id: int) -> None:
        rows.persist()
        try:
            write(rows, batch_id)
        finally:
            rows.unpersist()

    return wrapped


def _batch_writer(pipeline: model.Pipeline, sink: model.Sink, notes: Notes, *, is_kept: bool = False) -> WriteBatch:
    """A function that can be pickled: behind Spark Connect, a process of the server calls it.

    Some sinks look at a batch more than once; `is_kept` says that it is computed once nevertheless."""
    match sink:
        case model.TableSink():
            table = _table(pipeline, sink, notes)
            return table if is_kept else _computed_once(table)
        case model.DeltaSink():
            return _delta(pipeline, sink, notes)
        case model.IcebergSink():
            return _iceberg(pipeline, sink, notes)
        case model.DatabaseSink():
            return _database(sink, notes)
        case model.ConsoleSink():
            return _console(sink)
        case model.PythonSink():
            write: WriteBatch = find(sink.python, pipeline.folder)
            return write
        case _:
            raise AssertionError(sink)


def _table(pipeline: model.Pipeline, sink: model.TableSink, notes: Notes) -> WriteBatch:
    """A topic as a table: rows keep their place in the topic, and the commit says how far the table is."""
    from moldau.spark.pipelines import tables

    if sink.format == "iceberg":
        iceberg = model.IcebergSink(
            iceberg=sink.table,
            warehouse=sink.warehouse,
            catalog=sink.catalog,
            partition_by=sink.partition_by,
            compact_every=sink.compact_every,
        )
        inner = _iceberg(pipeline, iceberg, notes)
    else:
        delta = model.DeltaSink(
            delta=sink.table,
            partition_by=sink.partition_by,
            compact_every=sink.compact_every,
            options=sink.options,
        )
        inner = _delta(pipeline, delta, notes)

    def write(rows: DataFrame, batch_id: int) -> None:
        tables.require_places(rows)
        inner(rows, batch_id)

    return write


def _delta(pipeline: model.Pipeline, sink: model.DeltaSink, notes: Notes) -> WriteBatch:
    from moldau.spark.pipelines import tables

    path = _path(pipeline, sink.delta)

    def write(rows: DataFrame, batch_id: int) -> None:
        done = tables.append_to_delta(
            rows,
            path,
            app_id=notes.app_id(rows),
            batch_id=batch_id,
            partition_by=sink.partition_by,
            overwrite=sink.mode == "complete",
            options=sink.options,
        )
        if done is not None and sink.compact_every and (batch_id + 1) % sink.compact_every == 0:
            tables.compact_delta(path, sink.options)

    return write


def _iceberg(pipeline: model.Pipeline, sink: model.IcebergSink, notes: Notes) -> WriteBatch:
    from moldau.spark.pipelines import tables
    from moldau.spark.pipelines.iceberg_compaction import compact_iceberg

    warehouse, settings = _path(pipeline, sink.warehouse) if sink.warehouse else "", tuple(sink.catalog.items())
    _catalog(warehouse, settings)  # one that cannot be had is told before the query starts

    def write(rows: DataFrame, batch_id: int) -> None:
        catalog = _catalog(warehouse, settings)
        done = tables.append_to_iceberg(
            rows,
            catalog,
            sink.iceberg,
            app_id=notes.app_id(rows),
            batch_id=batch_id,
            partition_by=sink.partition_by,
            overwrite=sink.mode == "complete",
        )
        if done is not None and sink.compact_every and (batch_id + 1) % sink.compact_every == 0:
            compact_iceberg(catalog, sink.iceberg)

    return write


@lru_cache(maxsize=16)
def _catalog(warehouse: str, settings: tuple[tuple[str, str], ...]) -> Any:
    """One for each process: what writes batches may be pickled to another."""
    from moldau.spark.pipelines import tables

    return tables.iceberg_catalog(warehouse, dict(settings))


def _database(sink: model.DatabaseSink, notes: Notes) -> WriteBatch:
    from moldau.spark.pipelines import database_sink
    from moldau.spark.pipelines.database_outage import Patience

    patience = Patience(seconds_of(sink.outage))

    def write(rows: DataFrame, batch_id: int) -> None:
        engine = database_sink.engine_of(sink.database)

        def write_once() -> None:
            database_sink.write_batch(
                rows,
                engine,
                sink.table,
                app_id=notes.app_id(rows),
                batch_id=batch_id,
                key=sink.key,
                delete_when=sink.delete_when,
                replace=sink.mode == "complete",
            )

        try:
            patience.outlast(engine, write_once)
        finally:
            engine.dispose()  # batches may be minutes apart; idle connections are not kept from others

    return write


# C0 but newline, DEL and C1, as `moldau consume` spells them.
_SPELLED = {code: f"\\u{code:04x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) != "\n"}


def _as_text(rows: DataFrame) -> DataFrame:
    """As Spark writes values: times in the session's zone, not in this machine's."""
    names = [f"c{number}" for number in range(len(rows.columns))]  # names of records may have points in them
    return rows.toDF(*names).select(*(f.col(name).cast("string") for name in names))


def _console(sink: model.ConsoleSink) -> WriteBatch:
    def write(rows: DataFrame, batch_id: int) -> None:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        shown = _as_text(rows).limit(sink.console + 1).collect()
        table = Table(title=f"batch {batch_id}", title_justify="left")
        for name in rows.columns:
            table.add_column(Text(name.translate(_SPELLED)))
        for row in shown[: sink.console]:
            # Text: brackets are no markup. What records hold cannot control the terminal.
            table.add_row(*(Text("" if value is None else value.translate(_SPELLED)) for value in row))
        if shown:
            Console().print(table)
        if len(shown) > sink.console:
            Console().print("… and more")

    return write


def prepared(spark: SparkSession, pipeline: model.Pipeline) -> SparkSession:
    """A session of the pipeline's own: its views and settings are nobody else's."""
    from moldau.spark.pipelines.database_source import DatabaseDataSource
    from moldau.spark.pipelines.delta_changes import DeltaChangesDataSource
    from moldau.spark.pipelines.topic_table import TopicTableDataSource
    from moldau.spark.pipelines.transforms import needs_rocksdb

    own = own_session(spark, DatabaseDataSource, DeltaChangesDataSource, TopicTableDataSource)
    # A row that cannot be calculated with becomes null; it does not stop the stream. `spark:` in the file may differ.
    own.conf.set("spark.sql.ansi.enabled", "false")
    # Exactly-once needs a row in the same task when its batch is repeated. Adaptive execution joins and splits tasks by
    # how large the data turns out to be, and a table beside the stream may have grown since.
    own.conf.set("spark.sql.adaptive.streaming.stateless.enabled", "false")
    own.conf.set("spark.sql.adaptive.enabled", "false")  # it would be on again for what is done with a single batch
    if any(needs_rocksdb(step, pipeline.folder) for step in pipeline.steps):
        own.conf.set(
            "spark.sql.streaming.stateStore.providerClass",
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
        )
    for key, value in pipeline.spark.items():
        if own.conf.isModifiable(key):
            own.conf.set(key, value)
    hide_in_plans(own, pipeline)
    return own
