"""Offsets: from what the options say to numbers, and from numbers to the text in Spark's checkpoints.

The text is that of Spark's own Kafka source, `{"topic": {"partition": offset}}`, with sorted keys: Spark compares
offsets as text, and another order would look like new data for ever.
"""

from typing import Any

from moldau.client.cluster import Cluster, PartitionOffsets, TopicPartition, Topics
from moldau.spark.options import EARLIEST, LATEST, OffsetLimit, OptionError, SourceOptions, shown

# The starting offsets of a query, beside the end of its first batch: in checkpoints of version 0.1, which are read, and
# no longer written, because Spark's own source cannot read them. No topic can have this name.
START_KEY = "#start"


def resolve(
    limit: OffsetLimit, cluster: Cluster, topics: Topics, options: SourceOptions, *, is_start: bool
) -> PartitionOffsets:
    """Every partition's offset. Partitions named in the options must be those that are there."""
    return resolve_start(limit, cluster, topics, options, is_start=is_start)[0]


def resolve_start(
    limit: OffsetLimit, cluster: Cluster, topics: Topics, options: SourceOptions, *, is_start: bool = True
) -> tuple[PartitionOffsets, frozenset[TopicPartition]]:
    """The same, and the partitions whose answer will be another one when it is asked again: latest moves on."""
    partitions = topics.leaders.keys()
    if limit.kind in {"offsets", "timestamps"} and limit.by_partition.keys() != partitions:
        raise OptionError(
            f"option '{limit.option}' must name every partition (-1 for latest, -2 for earliest): "
            f"it names {shown(limit.by_partition)}; there are {shown(partitions)}"
        )
    if limit.kind in {"timestamp", "timestamps"}:
        wanted = _at_timestamps(limit, cluster, topics, options, is_start=is_start)
    elif limit.kind == "offsets":
        wanted = dict(limit.by_partition)
    else:
        wanted = dict.fromkeys(partitions, EARLIEST if limit.kind == "earliest" else LATEST)
    special = {partition: offset for partition, offset in wanted.items() if offset < 0}
    found = wanted | cluster.list_offsets(special, read_committed=options.read_committed, topics=topics)
    return found, frozenset(each for each, offset in wanted.items() if offset == LATEST)


def _at_timestamps(
    limit: OffsetLimit, cluster: Cluster, topics: Topics, options: SourceOptions, *, is_start: bool
) -> PartitionOffsets:
    """The first offset at or after the time. Behind the last record: the end, or an error where a start was asked."""
    times: PartitionOffsets = (
        dict(limit.by_partition) if limit.kind == "timestamps" else dict.fromkeys(topics.leaders, limit.timestamp_ms)
    )
    found = cluster.list_offsets(times, read_committed=options.read_committed, topics=topics)
    for (topic, index), offset in found.items():
        if offset < 0:
            if is_start and not options.no_match_starts_latest:
                raise OptionError(
                    f"{topic}-{index} has no record at or after timestamp {times[topic, index]} "
                    f"('{limit.option}'): set startingOffsetsByTimestampStrategy to latest to start at its end"
                )
            found[topic, index] = LATEST
    return found


def to_json(offsets: PartitionOffsets) -> dict[str, Any]:
    """As Spark stores it, and as its own Kafka source does."""
    table: dict[str, Any] = {}
    for (topic, index), offset in sorted(offsets.items()):
        table.setdefault(topic, {})[str(index)] = offset
    return table


def from_json(table: dict[str, Any]) -> PartitionOffsets:
    found: dict[TopicPartition, int] = {}
    for topic, row in table.items():
        if topic != START_KEY:
            for index, offset in row.items():
                found[topic, int(index)] = int(offset)
    return found


def start_in(table: dict[str, Any]) -> PartitionOffsets | None:
    """The starting offsets that the end of a first batch carries, in a checkpoint of version 0.1."""
    return from_json(table[START_KEY]) if START_KEY in table else None
