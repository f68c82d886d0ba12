"""The stream: which offsets make the next micro-batch.

Spark keeps the end of each batch in its checkpoint and nothing else of ours; where the first batch began it asks again
after a restart, and "latest" would have moved on by then. So a partition that starts at its end has nothing in the
first batch: its end in the checkpoint is where it starts. Other starts (earliest, offsets, times) are the same when
asked again. Nothing but offsets is stored, so a checkpoint serves Spark's own source too, after any number of batches.

Spark 4.1 asks for the end of a batch without saying where it begins, and before it asks for the start of a new query.
So limits cannot be kept there, and are refused; a query that starts at the latest offsets starts at the end that was
told first. Ranges are as exact as ever: Spark names both ends when it plans.

Invariant: a batch, planned once, always reads the same offsets; no offset is skipped, except those that retention or
the deletion of a topic took, which is an error unless `failOnDataLoss` is off.
"""

import logging
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from moldau.client.cluster import Cluster, PartitionOffsets, TopicPartition, Topics
from moldau.client.connection import BrokerError
from moldau.spark.broker_outage import BrokerPatience
from moldau.spark.connecting import client_settings
from moldau.spark.offsets import from_json, resolve_start, start_in, to_json
from moldau.spark.options import (
    EARLIEST,
    LATEST,
    OptionError,
    SourceOptions,
    ask_value_reader,
    parse_stream_options,
    shown,
)
from moldau.spark.partitions import assigned_partitions, require_topics
from moldau.spark.progress import GroupProgress
from moldau.spark.ranges import DataLost
from moldau.spark.read_limits import (
    HAS_LIMITS,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)
from moldau.spark.source import make_tasks, open_cluster, read_rows, refuse_other_columns
from moldau.wire import ErrorCode

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_log = logging.getLogger(__name__)
# An idle query asks 60 times a second; brokers are asked ten times. That nothing is new is never an old answer:
# `processAllAvailable` ends with it, and promises that what was written before it was called has been read.
_LATEST_AGE_SECONDS_MAX = 0.1


def make_stream_reader(options: Mapping[str, str], schema: "StructType") -> "StreamReader":
    """For `spark.readStream.format("moldau")`."""
    parsed = parse_stream_options(options)
    client_settings(parsed.kafka)  # refuses bad security options before anything starts
    if not HAS_LIMITS:
        _refuse_limits(parsed)
    refuse_other_columns(options, schema)
    return StreamReader(replace(parsed, value_reader=ask_value_reader(options)))


def _refuse_limits(options: SourceOptions) -> None:
    limits = {
        "maxOffsetsPerTrigger": options.max_offsets_per_trigger,
        "minOffsetsPerTrigger": options.min_offsets_per_trigger,
    }
    if given := next((name for name, limit in limits.items() if limit is not None), None):
        raise OptionError(
            f"'{given}' cannot be kept on Spark 4.1, which does not tell Python sources where a batch begins: leave it "
            "out, or use Spark 4.2 or newer"
        )


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Lives in a Python process beside the driver; executors get a pickled copy that has never asked anything."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._progress = GroupProgress(options.group_id) if options.group_id else None
        self._cluster: Cluster | None = None
        self._topics: Topics | None = None
        self._topics_at = -math.inf
        self._seen: set[str] = set()  # topics that are gone are a loss, and no mistake in the options
        self._latest: PartitionOffsets | None = None
        self._latest_at = -math.inf
        self._initial: PartitionOffsets | None = None
        self._is_first_planned = False
        self._first_end: PartitionOffsets | None = None  # told before anybody asked for the start: by Spark 4.1 only
        self._moving: frozenset[TopicPartition] = frozenset()  # starts that would be others if asked again
        self._patience = BrokerPatience(options.outage_ms / 1000, first_s=options.api_timeout_ms / 1000)
        self._available_now: PartitionOffsets | None = None
        self._triggered_at = -math.inf

    # --- what Spark calls, in this order ------------------------------------------------------------------------------

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802  # Spark's name
        """Asked several times for a first batch: always the same answer."""
        if self._initial is None:
            self._initial, self._moving = self._patience.outlast(self._resolve_start)
        return to_json(self._initial)

    def _resolve_start(self) -> "tuple[PartitionOffsets, frozenset[TopicPartition]]":
        topics = require_topics(self._known_topics(fresh=True))
        starts, moving = resolve_start(self._options.starting, self._asked(), topics, self._options)
        if self._first_end is not None:
            starts = starts | {each: end for each, end in self._first_end.items() if each in moving}
        return starts, moving

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802  # Spark's name
        self._available_now = self._patience.outlast(lambda: self._ask_latest({}, fresh=True))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802  # Spark's name
        """Spark takes one limit from Python; the other, if there are two, is applied with it."""
        if self._options.max_offsets_per_trigger is not None:
            return ReadMaxRows(self._options.max_offsets_per_trigger)
        if self._options.min_offsets_per_trigger is not None:
            return ReadMinRows(self._options.min_offsets_per_trigger)
        return ReadAllAvailable()

    def latestOffset(  # noqa: N802  # Spark's name
        self, start: dict[str, Any] | None = None, limit: ReadLimit | None = None
    ) -> dict[str, Any]:
        if start is None or limit is None:
            return self._patience.outlast(self._end_alone)
        return self._patience.outlast(lambda: self._end_of_batch(start, limit))

    def _end_alone(self) -> dict[str, Any]:
        """For Spark 4.1."""
        self._latest = self._ask_latest(self._latest or {}, fresh=self._first_end is None)
        if self._first_end is None:
            self._first_end = self._latest
        return to_json(self._latest)

    def _end_of_batch(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        begin = from_json(start)
        if self._progress is not None:
            self._progress.publish(self._asked(), begin)  # Spark goes on from here: everything before is done
        latest = self._available_now if self._available_now is not None else self._ask_latest(begin)
        self._latest = latest
        end = latest if isinstance(limit, ReadAllAvailable) else self._limited(begin, latest)
        if self._is_first(start):  # even if nothing is new, Spark runs an empty first batch and keeps its end
            self._is_first_planned = True  # the second begins at the same offsets if the first was empty
            end = {each: begin[each] if each in self._moving else end.get(each, begin[each]) for each in begin}
        return start if end == begin else to_json(end)

    def _is_first(self, start: dict[str, Any]) -> bool:
        return not self._is_first_planned and self._initial is not None and start == to_json(self._initial)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        return [] if start == end else self._patience.outlast(lambda: self._planned(start, end))

    def _planned(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        planned = start_in(end)
        starts = from_json(start) if planned is None else planned
        ends = from_json(end)
        if planned is None and self._is_first(start):
            self._is_first_planned = True
            # Asked again after a restart, a start may lie behind the end that was planned, or be of a new partition.
            starts = {
                each: min(offset, ends[each]) if each in self._moving else offset
                for each, offset in starts.items()
                if each in ends
            }
        added = ends.keys() - starts.keys()
        if added:
            starts = starts | self._starts_of_added(added)
        gone = starts.keys() - ends.keys()
        if gone:
            self._report_loss(f"the partitions {shown(gone)} are gone")
        for (topic, index), offset in ends.items():
            if (begin := starts.get((topic, index), 0)) > offset:
                self._report_loss(
                    f"{topic}-{index} was read up to offset {begin}, but ends at {offset}: it was deleted and created "
                    "again, or the start was set behind its end"
                )
        return make_tasks(starts, ends, self._known_topics(), self._options)

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_rows(partition, self._options)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802  # Spark's name
        return to_json(self._latest) if self._latest else None

    def commit(self, end: dict[str, Any]) -> None:
        """One batch late, and never for the last: `latestOffset` knows earlier what is done, but for Spark 4.1."""
        if self._first_end is not None and self._progress is not None:
            self._progress.publish(self._asked(), from_json(end))

    def stop(self) -> None:
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    # --- limits -------------------------------------------------------------------------------------------------------

    def _limited(self, begin: PartitionOffsets, latest: PartitionOffsets) -> PartitionOffsets:
        options = self._options
        if options.min_offsets_per_trigger is not None and self._available_now is None:
            available = sum(offset - begin.get(each, 0) for each, offset in latest.items())
            waited_ms = (time.monotonic() - self._triggered_at) * 1000
            if available < options.min_offsets_per_trigger and waited_ms < options.max_trigger_delay_ms:
                return begin
            self._triggered_at = time.monotonic()
        if options.max_offsets_per_trigger is None:
            return latest
        added = latest.keys() - begin.keys()
        return share(options.max_offsets_per_trigger, begin | self._earliest(added), latest)

    # --- questions to the cluster -------------------------------------------------------------------------------------

    def _asked(self) -> Cluster:
        if self._cluster is None:
            self._cluster = open_cluster(self._options)
        return self._cluster

    def _known_topics(self, *, fresh: bool = False) -> Topics:
        age_ms = (time.monotonic() - self._topics_at) * 1000
        if fresh or self._topics is None or age_ms >= self._options.metadata_age_ms_max:
            self._topics = assigned_partitions(self._asked(), self._options)
            self._topics_at = time.monotonic()
        return self._topics

    def _ask_latest(self, begin: PartitionOffsets, *, fresh: bool = False) -> PartitionOffsets:
        too_soon_s = _LATEST_AGE_SECONDS_MAX - (time.monotonic() - self._latest_at)
        if not fresh and self._latest is not None and too_soon_s > 0:
            if any(offset > begin.get(each, 0) for each, offset in self._latest.items()):
                return self._latest
            time.sleep(too_soon_s)  # what was told before is old by now, and brokers are asked ten times a second
        topics = self._known_topics(fresh=fresh)
        self._seen |= {topic for topic, _ in topics.leaders}
        if topics.missing - self._seen - {topic for topic, _ in begin}:
            require_topics(topics)
        for _ in range(self._options.offset_retries):
            try:
                latest = self._ends_of(topics)
            except BrokerError as error:
                if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    raise
                latest = self._ends_of(self._known_topics(fresh=True))  # one was deleted since we asked which there are
            if all(offset >= begin.get(each, 0) for each, offset in latest.items()):
                break
            time.sleep(self._options.offset_retry_interval_ms / 1000)  # a leader that just took over may lag behind
            topics = self._known_topics(fresh=True)
        self._latest_at = time.monotonic()
        return latest

    def _ends_of(self, topics: Topics) -> PartitionOffsets:
        wanted = dict.fromkeys(topics.leaders, LATEST)
        return self._asked().list_offsets(wanted, read_committed=self._options.read_committed, topics=topics)

    def _earliest(self, partitions: "set[TopicPartition]") -> PartitionOffsets:
        topics = self._known_topics()
        wanted = {each: EARLIEST for each in partitions if each in topics.leaders}
        return self._asked().list_offsets(wanted, topics=topics)

    def _starts_of_added(self, added: "set[TopicPartition]") -> PartitionOffsets:
        """New partitions are read from their beginning, and that should be zero."""
        found = self._earliest(added)
        if missing := added - found.keys():
            self._report_loss(f"the partitions {shown(missing)} were deleted before they were read")
        for (topic, index), offset in found.items():
            if offset:
                self._report_loss(f"the new partition {topic}-{index} starts at offset {offset} instead of 0")
        return found

    def _report_loss(self, what: str) -> None:
        if self._options.fail_on_data_loss:
            raise DataLost(f"{what}: records may be lost. To go on without them, set failOnDataLoss to false")
        _log.warning("%s: records may be lost", what)


def share(limit: int, begin: PartitionOffsets, latest: PartitionOffsets) -> PartitionOffsets:
    """At most about `limit` offsets, shared among partitions by what they hold; small ones get at least one."""
    sizes = {each: offset - begin[each] for each, offset in latest.items() if each in begin and offset > begin[each]}
    total = sum(sizes.values())
    if not total:
        return latest
    ends = dict(latest)
    for each, size in sizes.items():
        part = limit * (size / total)
        taken = math.ceil(part) if part < 1 else math.floor(part)
        ends[each] = min(latest[each], begin[each] + taken)
    return ends
