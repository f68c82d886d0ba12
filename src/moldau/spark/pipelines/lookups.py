"""Sinks whose rows were joined with a topic as a table: the table is kept from batch to batch (`kept_tables`).

Up to the join, the rows are a stream's. The join, and the steps behind it, are done batch by batch in `foreachBatch`,
where the table may be another one each time. So nothing behind the join may remember: windows, dedup and stateful
steps, SQL and Python steps, and sinks that are Spark's own (Parquet) leave the table in the stream's plan, where all of
it is read for each batch (`topic_table`).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moldau.spark.kinds_of_session import Notes
from moldau.spark.pipelines import model, sinks
from moldau.spark.pipelines.at_once import at_once
from moldau.spark.pipelines.build import Beside, build_sink
from moldau.spark.pipelines.graph import Graph, Part, is_stream
from moldau.spark.pipelines.kept_tables import KeptTables
from moldau.spark.pipelines.transforms import Size

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

MEMORYLESS = (
    model.FilterStep,
    model.SelectStep,
    model.RenameStep,
    model.CastStep,
    model.AddStep,
    model.DropStep,
    model.JoinStep,
)
BATCH_SINKS = (
    model.TopicSink,
    model.TableSink,
    model.DeltaSink,
    model.IcebergSink,
    model.DatabaseSink,
    model.ConsoleSink,
    model.PythonSink,
)
_FEW_ROWS_MAX = 50_000


def stream_to_batch(graph: Graph, sink: Part) -> str | None:
    """The part whose batches are joined with tables; None if no table is looked up, or in a way that cannot be kept."""
    if not isinstance(sink.item, BATCH_SINKS) or "transactionalidprefix" in _options(sink):
        return None
    upstream = {each.name: each for each in graph.upstream(sink) if each is not sink}
    behind = [each for each in upstream.values() if any(is_table(above) for above in graph.upstream(each))]
    if not behind or not all(is_table(each) or isinstance(each.item, MEMORYLESS) for each in behind):
        return None
    names = {each.name for each in behind}
    streams = {name for each in behind for name in each.inputs if name not in names and graph.streams(graph.part(name))}
    return streams.pop() if len(streams) == 1 and sink.inputs[0] in names else None


def _options(sink: Part) -> set[str]:
    return {each.lower() for each in getattr(sink.item, "options", {})}


def is_table(part: Part) -> bool:
    """Whether it is a topic as a table."""
    return isinstance(part.item, model.TopicSource) and not is_stream(part.item)


def tables_of(spark: SparkSession, pipeline: model.Pipeline, graph: Graph, *parts: Part) -> KeptTables:
    names = {each.name for part in parts for each in graph.upstream(part) if is_table(each)}
    return KeptTables.opened(spark, pipeline, sorted(names))


def sized(batch: DataFrame, tables: KeptTables) -> Size:
    """How much a batch is that is persisted: it is computed by this. The tables are brought up to date meanwhile."""
    counted: list[int] = []
    session = batch.sparkSession
    at_once(session, [partial(tables.renew, session), lambda: counted.append(batch.count())])
    return Size.FEW_ROWS if counted[0] <= _FEW_ROWS_MAX else Size.MANY_ROWS


def start_lookup(
    spark: SparkSession, pipeline: model.Pipeline, graph: Graph, name: str, stream: str, checkpoint: str, *, once: bool
) -> StreamingQuery:
    """Start the query of a sink; its batches are those of the part `stream`."""
    part = graph.sinks[name]
    sink = part.item
    assert isinstance(sink, model.Sink)
    assert not isinstance(sink, model.ParquetSink), "is left in the stream's plan"
    rows = build_sink(spark, pipeline, graph, Part(name, sink, (stream,)))
    tables = tables_of(spark, pipeline, graph, part)
    writer = sinks.shared_writer(pipeline, Notes(checkpoint), sinks.beside_tables(sink))

    def write(batch: DataFrame, batch_id: int) -> None:
        batch.persist()
        try:

            def look_up() -> None:
                beside = Beside(tables, sized(batch, tables))
                frame = build_sink(batch.sparkSession, pipeline, graph, part, {stream: batch}, beside)
                writer(frame, batch_id)

            tables.outlast_loss(look_up)
        finally:
            batch.unpersist()

    return sinks.start_batches(rows, write, name, checkpoint, once=once, mode=sink.mode, every=sink.every)
