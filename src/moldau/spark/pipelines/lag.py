"""How far behind a query is, measured: where its last batch ended against where its topics end now.

Spark's reports do not tell. A Python source has no metrics to give to `sources[].metrics`, and the latest offset in a
report is the one the batch was planned with: the end of the batch itself, unless batches are limited. So the brokers
are asked by whoever wants to know, and where a query has reported nothing, its checkpoint tells what it has done.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from moldau.client.cluster import Cluster, PartitionOffsets, Topics
from moldau.client.connection import ClientError
from moldau.client.sasl import AuthenticationFailed
from moldau.spark.offsets import from_json
from moldau.spark.options import EARLIEST, LATEST
from moldau.spark.pipelines import model, store
from moldau.spark.pipelines.graph import is_stream, resolve
from moldau.spark.pipelines.reach import hasty_settings
from moldau.spark.topic_patterns import topic_pattern

_AGE_SECONDS_MAX = 1.0
_PAUSE_SECONDS = 5.0  # after brokers did not answer


class LagMeter:
    """Asks the brokers at most once a second for all queries of a pipeline."""

    def __init__(self, pipeline: model.Pipeline, clock: Callable[[], float] = time.monotonic) -> None:
        self._pipeline = pipeline
        self._clock = clock
        self._graph, _ = resolve(pipeline)
        self._ends: PartitionOffsets = {}
        self._first: PartitionOffsets = {}
        self._at_times: dict[tuple[str, str, int], int] = {}  # where sources begin that begin at a time
        self._not_before = 0.0

    def of_query(self, query: str) -> Callable[[Mapping[str, Any]], int | None]:
        return lambda report: self.measure(query, report)

    def measure(self, query: str, report: Mapping[str, Any]) -> int | None:
        """Records that the query has not processed; None where it reads no topic, or nobody can tell."""
        topics = self._topics_of(query)
        if not topics:
            return None
        self._refresh()
        if not self._ends:
            return None
        checkpoint = self._pipeline.checkpoint_folder
        done = done_in(report) or done_in_checkpoint(checkpoint, query)
        planned = {} if done else planned_first(checkpoint, query)
        behind = 0
        for partition, end in self._ends.items():
            source = next((each for each in topics if _reads(each, partition[0])), None)
            if source is None:
                continue
            if partition in done:
                behind += max(end - done[partition], 0)
            elif done or source.start == "earliest":
                behind += max(end - self._first.get(partition, 0), 0)
            elif source.start == "latest":  # a first batch that begins at the end is empty: it ends where it begins
                behind += max(end - planned.get(partition, end), 0)
            else:
                behind += max(end - self._at_times.get((source.start, *partition), end), 0)
        return behind

    def _topics_of(self, query: str) -> list[model.TopicSource | model.PatternSource]:
        sink = self._graph.sinks.get(query)
        if sink is not None:
            names = {part.name for part in self._graph.upstream(sink)}
        else:
            names = {query.removeprefix(_LETTERS).removeprefix(_SHARED)}
        found: list[model.TopicSource | model.PatternSource] = []
        for name, part in self._graph.sources.items():
            source = part.item
            wanted = name in names and (sink is None or is_stream(source))
            if wanted and isinstance(source, model.TopicSource | model.PatternSource):
                found.append(source)
        return found

    def _refresh(self) -> None:
        now = self._clock()
        if now < self._not_before:
            return
        try:
            with Cluster(hasty_settings(self._pipeline), attempts=1, patience_s=0) as cluster:
                topics = self._topics(cluster)
                self._ends = cluster.list_offsets(
                    dict.fromkeys(topics.leaders, LATEST), read_committed=True, topics=topics
                )
                self._first = cluster.list_offsets(dict.fromkeys(topics.leaders, EARLIEST), topics=topics)
                self._find_times(cluster, topics)
        except (ClientError, AuthenticationFailed):
            self._not_before = self._clock() + _PAUSE_SECONDS  # what was measured last stays
        else:
            self._not_before = self._clock() + _AGE_SECONDS_MAX

    def _find_times(self, cluster: Cluster, topics: Topics) -> None:
        """Once a partition: where a time begins does not change. Without a record of that time or later, the end."""
        for source in self._pipeline.sources.values():
            if not isinstance(source, _TOPIC_SOURCES) or source.start in ("earliest", "latest"):
                continue
            asked = [
                each
                for each in topics.leaders
                if _reads(source, each[0]) and (source.start, *each) not in self._at_times
            ]
            time_ms = round(datetime.fromisoformat(source.start).timestamp() * 1000)
            for each, offset in cluster.list_offsets(dict.fromkeys(asked, time_ms), topics=topics).items():
                if offset >= 0:
                    self._at_times[(source.start, *each)] = offset

    def _topics(self, cluster: Cluster) -> Topics:
        sources = [each for each in self._pipeline.sources.values() if isinstance(each, model.TopicSource)]
        if any(isinstance(each, model.PatternSource) for each in self._pipeline.sources.values()):
            found = cluster.topics(None)
        else:
            found = cluster.topics({topic.strip() for each in sources for topic in each.topic.split(",")})
        every = [each for each in self._pipeline.sources.values() if isinstance(each, _TOPIC_SOURCES)]
        kept = {key: leader for key, leader in found.leaders.items() if any(_reads(each, key[0]) for each in every)}
        return Topics(kept, found.brokers, found.missing)


_TOPIC_SOURCES = (model.TopicSource, model.PatternSource)
_LETTERS = "dead-letters-"
_SHARED = "shared-"


def _reads(source: model.TopicSource | model.PatternSource, topic: str) -> bool:
    if isinstance(source, model.PatternSource):
        return topic_pattern(source.topic_pattern).search(topic) is not None
    return topic in (each.strip() for each in source.topic.split(","))


def done_in(report: Mapping[str, Any]) -> PartitionOffsets:
    """Where the last batch of a report ended."""
    done: PartitionOffsets = {}
    for source in report.get("sources", ()):
        done |= _offsets(source.get("endOffset"))
    return done


def done_in_checkpoint(checkpoint: str, query: str) -> PartitionOffsets:
    """Where the last batch that was committed ended."""
    committed = [int(name) for name in store.names(checkpoint, f"{query}/commits") if name.isdecimal()]
    return _end_of_batch(checkpoint, query, max(committed)) if committed else {}


def planned_first(checkpoint: str, query: str) -> PartitionOffsets:
    """Where the first batch is to end, if it was planned."""
    return _end_of_batch(checkpoint, query, 0)


def _end_of_batch(checkpoint: str, query: str, number: int) -> PartitionOffsets:
    text = store.read_text(checkpoint, f"{query}/offsets/{number}") or ""
    done: PartitionOffsets = {}
    for line in text.splitlines()[2:]:  # the version and the batch's metadata come first
        done |= _offsets(line)
    return done


def _offsets(value: Any) -> PartitionOffsets:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    if not isinstance(value, dict):
        return {}
    try:
        return from_json(value)
    except (AttributeError, TypeError, ValueError):
        return {}  # another kind of source: its offsets are its own
