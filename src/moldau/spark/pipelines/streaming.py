"""What Spark's streams cannot do, or would do for ever: looked for once all parts of a pipeline are sound."""

from __future__ import annotations

from collections.abc import Iterator

from moldau.spark.pipelines import model
from moldau.spark.pipelines.errors import Problem
from moldau.spark.pipelines.graph import Graph, Part, is_stream


def streaming_problems(graph: Graph) -> Iterator[Problem]:
    for part in graph.steps.values():
        step = part.item
        if (
            isinstance(step, model.DedupStep)
            and step.within_watermark
            and graph.streams(part)
            and not _watermarked(graph, part)
        ):
            yield Problem(
                step.where.of("dedup"),
                "dedup of a stream would remember every key for ever",
                "give the source a `watermark:`, or write `within_watermark: false` if the keys are few",
            )
    for part in graph.sinks.values():
        sink = part.item
        assert isinstance(sink, model.Sink)
        if not graph.streams(part):
            yield Problem(
                sink.where.mark,
                f"nothing streams into this sink ({part.inputs[0]})",
                "read from a topic, files or a database cursor",
            )
            continue
        if isinstance(sink, model.TopicSink) and any(
            isinstance(each.item, model.TopicSource) and sink.topic in topics_of(each.item)
            for each in graph.upstream(part)
        ):
            yield Problem(
                sink.where.of("topic"),
                f"topic {sink.topic!r} is also its source: records would go round",
                "choose another",
            )
        mode = "append" if isinstance(sink, model.ParquetSink) else sink.mode
        grouped = [each for each in graph.upstream(part) if isinstance(each.item, model.AggregateStep)]
        if mode == "append" and any(not _watermarked(graph, each) for each in grouped):
            yield Problem(
                grouped[0].item.where.of("aggregate"),
                "this aggregate is appended to a sink, so Spark has to know when a group is final",
                "give the source a `watermark:`, or the sink `mode: update`",
            )
        if (
            mode == "complete"
            and not grouped
            and not any(isinstance(each.item, model.SqlStep | model.PythonStep) for each in graph.upstream(part))
        ):
            yield Problem(sink.where.of("mode"), "mode complete is for aggregates", "write `mode: append`")


def _watermarked(graph: Graph, part: Part) -> bool:
    for each in graph.upstream(part):
        if isinstance(each.item, model.WatermarkStep | model.PythonStep):
            return True
        if is_stream(each.item) and getattr(each.item, "watermark", None) is not None:
            return True
    return False


def topics_of(source: model.TopicSource) -> list[str]:
    return [topic.strip() for topic in source.topic.split(",") if topic.strip()]
