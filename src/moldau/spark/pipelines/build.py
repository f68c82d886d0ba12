"""A validated pipeline into DataFrames: one plan for each sink, one for the dead letters of each source.

Each query has a plan of its own from the source on, because in Structured Streaming each query reads for itself; so
each has its own consumer group, whose lag is the lag of that sink.

Invariant: whatever Spark says about a step, the error names the line of that step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from moldau.spark.pipelines import model, sources, transforms
from moldau.spark.pipelines.errors import PipelineError, Problem, Where
from moldau.spark.pipelines.graph import Graph, Part

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


def build_sink(
    spark: SparkSession,
    pipeline: model.Pipeline,
    graph: Graph,
    sink: Part,
    instead: Mapping[str, DataFrame] | None = None,
    size: transforms.Size | None = None,
) -> DataFrame:
    """The rows that go into a sink. `instead` of parts, frames may be given: for trials, and for single batches, whose
    `size` is known then."""
    frames: dict[str, DataFrame] = {}
    instead = instead or {}
    needed = _needed(graph, sink, instead)
    for name, part in graph.sources.items():
        if name in needed:
            source = part.item
            assert isinstance(source, model.Source)
            opened = partial(_rows, spark, pipeline, name, source, sink.name)
            frames[name] = instead[name] if name in instead else _placed(source.where, name, opened)
            frames[name].createOrReplaceTempView(name)
    for name, part in graph.steps.items():
        if name in needed:
            step = part.item
            assert isinstance(step, model.Step)
            inputs = {each: frames[each] for each in part.inputs if each in frames}
            own = size if _looks_up(graph, part) else None
            made = partial(transforms.apply, spark, step, inputs, pipeline.folder, own)
            frames[name] = instead[name] if name in instead else _placed(step.where, name, made)
            frames[name].createOrReplaceTempView(name)
    return frames[sink.inputs[0]]


def _needed(graph: Graph, sink: Part, given: Collection[str]) -> set[str]:
    """The parts a sink rests on, without those that only what is given rests on."""
    needed: set[str] = set()
    waiting = list(sink.inputs)
    while waiting:
        name = waiting.pop()
        needed.add(name)
        waiting += () if name in given else graph.part(name).inputs
    return needed


def _looks_up(graph: Graph, part: Part) -> bool:
    """Whether it joins a stream with something that is none."""
    if not isinstance(part.item, model.JoinStep):
        return False
    left, right = (graph.streams(graph.part(name)) for name in part.inputs)
    return left and not right


def build_dead_letters(spark: SparkSession, pipeline: model.Pipeline, graph: Graph) -> dict[str, DataFrame]:
    """Rows for the dead-letter topic, by the name of their query."""
    from moldau.spark.pipelines.dead_letters import dead_letters

    found: dict[str, DataFrame] = {}
    used = {part.name for sink in graph.sinks.values() for part in graph.upstream(sink)}
    for name, part in graph.sources.items():
        source = part.item
        if not isinstance(source, model.TopicSource | model.PatternSource) or name not in used:
            continue
        query = f"dead-letters-{name}"
        opened = _placed(source.where, name, partial(sources.open_source, spark, pipeline, name, source, query))
        bad = opened.bad
        if bad is not None:
            found[query] = dead_letters(bad, pipeline.dead_letter_topic, f"{pipeline.name}-{query}")
    return found


def _rows(spark: SparkSession, pipeline: model.Pipeline, name: str, source: model.Source, query: str) -> DataFrame:
    return sources.open_source(spark, pipeline, name, source, query).rows


def _placed(where: Where, name: str, make: Callable[[], T]) -> T:
    """Run it; what Spark does not accept becomes an error that names the line."""
    from pyspark.errors import PySparkException

    try:
        return make()
    except PySparkException as error:
        message = " ".join(str(error).strip().split(";\n")[0].split("\n")[0].split())  # some begin with an empty line
        raise PipelineError([Problem(where.mark, f"Spark does not accept {name!r}: {message}")]) from error
    except (TypeError, ValueError, OSError, AttributeError) as error:
        raise PipelineError([Problem(where.mark, f"{name!r}: {type(error).__name__}: {error}")]) from error
