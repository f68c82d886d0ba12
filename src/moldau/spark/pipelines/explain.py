"""A pipeline in words: for each query what it reads, what happens, where it goes, and how often a row can arrive."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.spark.pipelines import model
from moldau.spark.pipelines.graph import DEAD_LETTERS, Graph, Part, is_stream
from moldau.spark.pipelines.secrecy import keeping_secrets, redacted, spark_settings
from moldau.spark.pipelines.sharing import shared_reads
from moldau.spark.pipelines.validate import validate

if TYPE_CHECKING:
    from collections.abc import Iterator


def explained(pipeline: model.Pipeline) -> str:
    """Text for people; needs no Spark."""
    graph = validate(pipeline)
    return redacted("\n".join(_lines(pipeline, graph)), pipeline)


def _lines(pipeline: model.Pipeline, graph: Graph) -> Iterator[str]:
    yield f"{pipeline.name}: {pipeline.about}" if pipeline.about else pipeline.name
    if pipeline.bootstrap_servers:
        yield f"cluster {pipeline.bootstrap_servers}; checkpoint {pipeline.checkpoint_folder}"
    shares = shared_reads(pipeline, graph)
    for share in shares:
        yield f"query {share.query} reads and parses {share.source} once for {', '.join(share.sinks)} and dead letters"
    used = set()
    for number, (name, sink) in enumerate(graph.sinks.items(), 1):
        yield ""
        yield f"query {number}, {name} (consumer group {pipeline.name}-{name} shows its lag)"
        parts = list({part.name: part for part in graph.upstream(sink)}.values())
        used |= {part.name for part in parts}
        for part in (*graph.sources.values(), *graph.steps.values()):
            if part in parts:
                yield f"  {_told(part)}"
        yield f"  → {_sink(sink)}"
    for name, part in graph.sources.items():
        parse = getattr(part.item, "parse", None)
        if name in used and parse is not None and parse.on_error == "dead_letter":
            yield ""
            told = f"bad records of {name} → topic {pipeline.dead_letter_topic}, exactly once"
            yield f"query {DEAD_LETTERS}{name}: {told}"
    unused = [name for name in (*graph.sources, *graph.steps) if name not in used]
    if unused:
        yield ""
        yield f"not used by any sink: {', '.join(unused)}"


def _told(part: Part) -> str:
    item = part.item
    kind = model.kind_of(item)
    value = getattr(item, kind)
    shown = " ".join(str(value).split()) if isinstance(value, str) else _joined(value)
    if isinstance(item, model.Source):
        what = "stream" if is_stream(item) else "table"
        parse = getattr(item, "parse", None)
        how = "" if parse is None else f", parsed as {parse.FORMAT}, bad records: {parse.on_error}"
        watermark = getattr(item, "watermark", None)
        late = "" if watermark is None else f", {watermark.delay} late by {watermark.column}"
        return f"{part.name}: {what} of {kind} {shown}{how}{late}"
    return f"{part.name}: {kind} {shown} (from {', '.join(part.inputs)})"


def _joined(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} = {each}" for key, each in value.items())
    if isinstance(value, tuple):
        return ", ".join(map(str, value))
    return str(value)


def _sink(part: Part) -> str:
    match part.item:
        case model.TopicSink() as sink:
            return f"topic {sink.topic}, {sink.delivery.replace('-', ' ')}"
        case model.TableSink() as sink:
            return f"{sink.format} table {sink.table} of the topic, exactly once, offsets in the commit"
        case model.DeltaSink() as sink:
            return f"Delta table {sink.delta}, exactly once"
        case model.IcebergSink() as sink:
            return f"Iceberg table {sink.iceberg}, exactly once"
        case model.DatabaseSink() as sink:
            how = f"upsert by {', '.join(sink.key)}" if sink.key else "insert"
            return f"database table {sink.table}, {how}, exactly once"
        case model.ParquetSink() as sink:
            return f"Parquet files in {sink.parquet}, exactly once for Spark's readers"
        case other:
            return f"{model.kind_of(other)}, at least once"


@keeping_secrets
def plans(pipeline: model.Pipeline) -> dict[str, str]:
    """Spark's own plan of each query; starts Spark, writes nothing."""
    from moldau.spark.pipelines import sinks
    from moldau.spark.pipelines.build import build_dead_letters, build_sink
    from moldau.spark.session import session

    graph = validate(pipeline)
    spark = sinks.prepared(session(f"moldau-{pipeline.name}", config=spark_settings(pipeline)), pipeline)
    rows = {name: build_sink(spark, pipeline, graph, part) for name, part in graph.sinks.items()}
    rows |= build_dead_letters(spark, pipeline, graph)
    found = {name: str(each._jdf.queryExecution().analyzed().toString()) for name, each in rows.items()}
    return {name: redacted(text, pipeline) for name, text in found.items()}
