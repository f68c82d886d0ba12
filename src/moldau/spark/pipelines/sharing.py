"""One read for many sinks: a topic is fetched and parsed once, and each batch goes to all its sinks and dead letters.

Structured Streaming reads for every query anew. Where a pipeline says `share_reads: true`, sinks that rest on one
stream by steps without memory (filter, select, add, cast, rename, drop, joins with tables) become one query: the parsed
batch is kept while all of them take their rows, at once. What needs a query of its own keeps it: windows,
dedup, stateful steps, SQL and Python steps (nobody can tell whether they remember), Parquet files, output modes other
than append, an `every` of its own.

Exactly-once is kept: each sink notes the batch under the query's id and its own name, so a batch that is repeated is
written by those only that have not written it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from moldau.spark.kinds_of_session import Notes
from moldau.spark.pipelines import model, parse, sinks, sources
from moldau.spark.pipelines.at_once import at_once
from moldau.spark.pipelines.build import Beside, build_sink
from moldau.spark.pipelines.graph import DEAD_LETTERS, SHARED, Graph, Part, is_stream
from moldau.spark.pipelines.lookups import BATCH_SINKS, MEMORYLESS, sized, tables_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery


@dataclass(slots=True, frozen=True)
class Shared:
    """One query: a source and the sinks that take its batches."""

    source: str
    sinks: tuple[str, ...]

    @property
    def query(self) -> str:
        return f"{SHARED}{self.source}"


def shared_reads(pipeline: model.Pipeline, graph: Graph) -> list[Shared]:
    """The reads worth sharing: those with two takers or more, dead letters being one."""
    if not pipeline.share_reads:
        return []
    takers: dict[str, list[str]] = {}
    for name, part in graph.sinks.items():
        source = _only_stream(graph, part)
        if source is not None:
            takers.setdefault(source, []).append(name)
    found = []
    for source, names in takers.items():
        item = graph.sources[source].item
        how = getattr(item, "parse", None)
        letters = how is not None and how.on_error == "dead_letter"
        if len(names) + letters > 1:
            found.append(Shared(source, tuple(names)))
    return found


def _only_stream(graph: Graph, part: Part) -> str | None:
    sink = part.item
    if not isinstance(sink, BATCH_SINKS) or sink.every or sink.mode != "append":
        return None
    upstream = {each.name: each for each in graph.upstream(part) if each is not part}
    if not all(isinstance(each.item, (*MEMORYLESS, *model.SOURCES)) for each in upstream.values()):
        return None
    streams = [each for each in upstream.values() if is_stream(each.item)]
    if len(streams) != 1 or not isinstance(streams[0].item, model.TopicSource | model.PatternSource):
        return None
    return streams[0].name


def start_shared(
    spark: SparkSession, pipeline: model.Pipeline, graph: Graph, shared: Shared, checkpoint: str, *, once: bool
) -> StreamingQuery:
    """Start the query of a shared read."""
    source = graph.sources[shared.source].item
    assert isinstance(source, model.TopicSource | model.PatternSource)
    frame, given = sources.open_shared(spark, pipeline, shared.source, source, f"{pipeline.name}-{shared.query}")
    how = source.parse
    writers = {
        name: sinks.shared_writer(pipeline, Notes(checkpoint, name), _sink(graph, name)) for name in shared.sinks
    }
    tables = tables_of(spark, pipeline, graph, *(graph.sinks[name] for name in shared.sinks))
    letters = Notes(checkpoint, f"{DEAD_LETTERS}{shared.source}")

    def write(batch: DataFrame, batch_id: int) -> None:
        session = batch.sparkSession
        has_letters = how is not None and how.on_error == "dead_letter"
        rows = parse.good_of(batch) if has_letters else batch

        def take() -> None:
            beside = Beside(tables, sized(batch, tables)) if tables.tables else None
            frames = {shared.source: rows}
            # Planned one after the other: views of steps have the same names for all.
            own = {
                name: build_sink(session, pipeline, graph, graph.sinks[name], frames, beside) for name in shared.sinks
            }
            works = [partial(writers[name], own[name], batch_id) for name in shared.sinks]
            if how is not None and has_letters:
                bad = parse.bad(batch, how, given)
                works.append(partial(sinks.write_dead_letters, pipeline, letters, bad, batch_id))
            at_once(session, works)

        batch.persist()
        try:
            tables.outlast_loss(take)
        finally:
            batch.unpersist()

    return sinks.start_batches(frame, write, shared.query, checkpoint, once=once)


def _sink(graph: Graph, name: str) -> model.Sink:
    part = graph.sinks[name]
    found = part.item
    assert isinstance(found, model.Sink)
    return sinks.beside_tables(found) if graph.rests_on_tables(part) else found


def left_over(graph: Graph, shares: Sequence[Shared]) -> tuple[set[str], set[str]]:
    """Sinks that need a query of their own, and sources whose dead letters do."""
    taken = {name for each in shares for name in each.sinks}
    return set(graph.sinks) - taken, set(graph.sources) - {each.source for each in shares}
