"""A validated pipeline into DataFrames: one plan for each sink, one for the dead letters of each source.

Each query has a plan of its own from the source on, because in Structured Streaming each query reads for itself; so
each has its own consumer group, whose lag is the lag of that sink.

Invariant: whatever Spark says about a step, the error names the line of that step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from pyspark.sql import functions as f

from moldau.spark.pipelines import model, sources, transforms
from moldau.spark.pipelines.errors import PipelineError, Problem, Where
from moldau.spark.pipelines.graph import DEAD_LETTERS, Graph, Part
from moldau.spark.pipelines.kept_tables import KeptTables
from moldau.spark.pipelines.progress import refusal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

T = TypeVar("T")


@dataclass(slots=True, frozen=True)
class Beside:
    """What a batch is joined with: tables, as of now. How depends on the size of the batch."""

    tables: KeptTables
    size: transforms.Size

    def found(self, table: str, left: DataFrame, step: model.Step) -> DataFrame | None:
        """Of a table, what a small batch may find there, if that can be told at once."""
        assert isinstance(step, model.JoinStep)
        if self.size is transforms.Size.MANY_ROWS or not transforms.finds_by_columns(step):
            return None
        found = self.tables.tables[table].found(left, step.on)
        return None if found is None else f.broadcast(found)


def build_sink(
    spark: SparkSession,
    pipeline: model.Pipeline,
    graph: Graph,
    sink: Part,
    instead: Mapping[str, DataFrame] | None = None,
    beside: Beside | None = None,
) -> DataFrame:
    """The rows that go into a sink. `instead` of parts, frames may be given: for trials, and for single batches, which
    may look up tables that are kept `beside` the stream."""
    frames: dict[str, DataFrame] = {}
    instead = instead or {}
    needed = _needed(graph, sink, instead)
    kept = set() if beside is None else needed & beside.tables.tables.keys()
    for name, part in graph.sources.items():
        if name in needed - kept:
            source = part.item
            assert isinstance(source, model.Source)
            opened = partial(_rows, spark, pipeline, name, source, sink.name)
            frames[name] = instead[name] if name in instead else _placed(source.where, name, opened)
            frames[name].createOrReplaceTempView(name)
    for name, part in graph.steps.items():
        if name in needed:
            step = part.item
            assert isinstance(step, model.Step)
            made = partial(_step, spark, pipeline, graph, part, frames, beside)
            frames[name] = instead[name] if name in instead else _placed(step.where, name, made)
            frames[name].createOrReplaceTempView(name)
    return frames[sink.inputs[0]]


def _step(
    spark: SparkSession,
    pipeline: model.Pipeline,
    graph: Graph,
    part: Part,
    frames: Mapping[str, DataFrame],
    beside: Beside | None,
) -> DataFrame:
    step = part.item
    assert isinstance(step, model.Step)
    if beside is None:
        return transforms.apply(spark, step, {each: frames[each] for each in part.inputs}, pipeline.folder)
    looks_up = isinstance(step, model.JoinStep) and _looks_up(graph, part)
    inputs: dict[str, DataFrame] = {}
    for number, each in enumerate(part.inputs):
        if each in frames:
            inputs[each] = frames[each]
        elif number == 1 and looks_up and (few := beside.found(each, inputs[part.inputs[0]], step)) is not None:
            inputs[each], looks_up = few, False
        else:
            inputs[each] = beside.tables.tables[each].frame(spark)
    return transforms.apply(spark, step, inputs, pipeline.folder, beside.size if looks_up else None)


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
        query = f"{DEAD_LETTERS}{name}"
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
        raise PipelineError([Problem(where.mark, f"Spark does not accept {name!r}: {refusal(error)}")]) from error
    except (TypeError, ValueError, OSError, AttributeError) as error:
        raise PipelineError([Problem(where.mark, f"{name!r}: {type(error).__name__}: {error}")]) from error
