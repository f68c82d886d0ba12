"""A pipeline once more over what was, into sinks beside the real ones: to try a change, or to fill in what is missing.

The shadow has its own checkpoint and its own outputs, all named after it, so nothing of the running pipeline is
touched; when it is as it should be, it takes the place of the real one, or is deleted.
"""

from __future__ import annotations

import re
from dataclasses import replace

from moldau.spark.pipelines import model
from moldau.spark.pipelines.errors import PipelineError, Problem
from moldau.spark.pipelines.secrecy import redacted

_NAME = re.compile(r"[A-Za-z0-9_]+")


def shadow_of(pipeline: model.Pipeline, name: str, *, start: str = "", until: str = "") -> model.Pipeline:
    """The pipeline as `PIPELINE-NAME`: from `start` to before `until`, each sink as `SINK-NAME`."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} cannot name a shadow: use letters, digits and '_'")
    sources = {key: _moved(source, start, until) for key, source in pipeline.sources.items()}
    sinks = tuple(_beside(sink, name) for sink in pipeline.sinks)
    written = {sink.topic for sink in pipeline.sinks if isinstance(sink, model.TopicSink)}
    for source in pipeline.sources.values():
        if isinstance(source, model.TopicSource) and written & {each.strip() for each in source.topic.split(",")}:
            told = "the pipeline reads a topic that it writes itself: a shadow would read the real one"
            raise PipelineError([Problem(source.where.of("topic"), told, "run its parts as pipelines of their own")])
    return replace(
        pipeline,
        name=f"{pipeline.name}-{name}",
        sources=sources,
        sinks=sinks,
        dead_letters=f"{pipeline.dead_letter_topic}-{name}",
        checkpoint=f"{pipeline.checkpoint_folder}-{name}",
    )


def outputs(pipeline: model.Pipeline) -> list[str]:
    """Where it writes, in words."""
    return [
        redacted(f"{model.kind_of(sink)} {getattr(sink, 'table', '') or getattr(sink, model.kind_of(sink))}", pipeline)
        for sink in pipeline.sinks
    ]


def _moved(source: model.Source, start: str, until: str) -> model.Source:
    if not isinstance(source, model.TopicSource | model.PatternSource):
        return source
    if isinstance(source, model.TopicSource) and source.as_table:
        return source
    moved = replace(source, start=start or source.start, until=until or source.until)
    # The pipeline itself may be running: its endpoint is its own.
    return replace(moved, http="", http_token="") if isinstance(moved, model.TopicSource) else moved


def _beside(sink: model.Sink, name: str) -> model.Sink:
    match sink:
        case model.TopicSink():
            return replace(sink, topic=f"{sink.topic}-{name}")
        case model.ParquetSink():
            return replace(sink, parquet=f"{sink.parquet.rstrip('/')}-{name}")
        case model.TableSink():
            return replace(sink, table=f"{sink.table.rstrip('/')}{'_' if sink.format == 'iceberg' else '-'}{name}")
        case model.DeltaSink():
            return replace(sink, delta=f"{sink.delta.rstrip('/')}-{name}")
        case model.IcebergSink():
            return replace(sink, iceberg=f"{sink.iceberg}_{name}")
        case model.DatabaseSink():
            return replace(sink, table=f"{sink.table}_{name}")
        case model.PythonSink():
            told = "a Python sink decides itself where it writes: it has no shadow"
            raise PipelineError([Problem(sink.where.mark, told, "leave it out of a copy of the file")])
        case _:
            return sink
