"""Reading topics: the batch reader, and what it shares with the stream's: partitions of a job, and their rows.

The driver decides on offsets; an executor is told one range and reads exactly that, so a task that runs twice reads
the same rows twice.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from moldau.client.cluster import Cluster, PartitionOffsets, Topics
from moldau.spark.broker_outage import BrokerPatience
from moldau.spark.connecting import client_settings
from moldau.spark.offsets import resolve
from moldau.spark.options import (
    LATEST,
    OptionError,
    SourceOptions,
    ask_value_reader,
    parse_batch_options,
    read_int_or,
)
from moldau.spark.partitions import assigned_partitions, require_topics
from moldau.spark.ranges import DataLost, FetchSettings, RangeToRead, split
from moldau.spark.worker_process import keep_imports_out_of_collections

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_PARTITION_BYTES_DEFAULT = 4 << 20
_PATIENCE_SECONDS_MAX = 5.0
_log = logging.getLogger(__name__)


class RangePartition(InputPartition):
    """One task: a range of one partition."""

    def __init__(self, work: RangeToRead) -> None:
        super().__init__(work)


def open_cluster(options: SourceOptions) -> Cluster:
    return Cluster(
        client_settings(options.kafka),
        # Longer outages are waited for by whoever asks, who says so (`broker_outage`).
        patience_s=min(options.api_timeout_ms / 1000, _PATIENCE_SECONDS_MAX),
        attempts=options.offset_retries,
        pause_s=options.offset_retry_interval_ms / 1000,
    )


def make_ranges(starts: PartitionOffsets, ends: PartitionOffsets, topics: Topics) -> list[RangeToRead]:
    """One for each partition, in the order of topics and partitions."""
    return [
        RangeToRead(topic, index, starts[topic, index], end, topics.address((topic, index)), topics.ids.get(topic, b""))
        for (topic, index), end in sorted(ends.items())
        if (topic, index) in starts
    ]


def make_tasks(
    starts: PartitionOffsets, ends: PartitionOffsets, topics: Topics, options: SourceOptions
) -> list[InputPartition]:
    """The tasks of a batch, in the order of topics and partitions."""
    tasks = split(
        make_ranges(starts, ends, topics),
        min_partitions=options.min_partitions,
        max_records=options.max_records_per_partition,
    )
    return [RangePartition(task) for task in tasks]


def read_rows(partition: InputPartition, options: SourceOptions) -> Iterator[Any]:
    """The rows of one task as Arrow record batches. Runs on an executor."""
    # Here and not above: the driver, which only plans, starts without numpy and Arrow, in half the time.
    from moldau.spark.arrow_rows import arrow_schema, to_rows
    from moldau.spark.fetch_client import read_range

    keep_imports_out_of_collections()

    work: RangeToRead | None = partition.value
    if work is None:  # Spark's own stand-in for a job without tasks
        return
    schema = arrow_schema(include_headers=options.include_headers)
    rows = (
        to_rows(columns, work.topic, work.partition, schema)
        for columns in read_range(work, fetch_settings(options))
        if len(columns)
    )
    if options.value_reader is None:
        yield from rows
    else:
        from moldau.spark.registry.columns import with_values

        yield from with_values(rows, options.value_reader, fails=options.fails_on_bad_value)


def fetch_settings(options: SourceOptions) -> FetchSettings:
    numbers = {f"kafka.{name}": value for name, value in options.kafka.items()}
    return FetchSettings(
        client=client_settings(options.kafka),
        read_committed=options.read_committed,
        include_headers=options.include_headers,
        fail_on_data_loss=options.fail_on_data_loss,
        max_bytes=read_int_or(numbers, "kafka.max.partition.fetch.bytes", _PARTITION_BYTES_DEFAULT, least=1),
        max_wait_ms=read_int_or(numbers, "kafka.fetch.max.wait.ms", 500, least=0),
        timeout_s=options.poll_timeout_ms / 1000,
        outage_s=options.outage_ms / 1000,
        check_crcs=options.kafka.get("check.crcs", "true").lower() != "false",
    )


def make_batch_reader(options: Mapping[str, str], schema: "StructType") -> "BatchReader":
    """For `spark.read.format("moldau")`."""
    keep_imports_out_of_collections()
    parsed = parse_batch_options(options)
    client_settings(parsed.kafka)  # refuses bad security options before anything starts
    refuse_other_columns(options, schema)
    return BatchReader(replace(parsed, value_reader=ask_value_reader(options)))


def refuse_other_columns(options: Mapping[str, str], schema: "StructType") -> None:
    from moldau.spark.options import source_schema

    if schema.fieldNames() != source_schema(options).fieldNames():
        raise OptionError("the columns are given by the source: leave out .schema(…) and use select")


class BatchReader(DataSourceReader):
    """From one set of offsets to another, both fixed when the query is planned."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    @property
    def options(self) -> SourceOptions:
        return self._options

    def partitions(self) -> list[InputPartition]:
        return BrokerPatience(0, first_s=self._options.api_timeout_ms / 1000).outlast(self._planned)

    def _planned(self) -> list[InputPartition]:
        starts, ends, topics = self._offsets()
        return make_tasks(starts, ends, topics, self._options)

    def ranges(self) -> list[RangeToRead]:
        """What there is to read of each partition now, of empty ones too."""
        return make_ranges(*self._offsets())

    def _offsets(self) -> tuple[PartitionOffsets, PartitionOffsets, Topics]:
        options = self._options
        with open_cluster(options) as cluster:
            topics = require_topics(assigned_partitions(cluster, options))
            starts = resolve(options.starting, cluster, topics, options, is_start=True)
            ends = resolve(options.ending, cluster, topics, options, is_start=False)
            if options.ending.kind == "offsets":
                ends = self._that_are_there(starts, ends, cluster, topics)
        for partition, start in starts.items():
            if start > ends[partition]:
                raise OptionError(
                    f"{partition[0]}-{partition[1]} would start at offset {start}, after its end {ends[partition]}: "
                    f"check '{options.starting.option}' and '{options.ending.option}', and whether the topic was "
                    "deleted and created again"
                )
        return starts, ends, topics

    def _that_are_there(
        self, starts: PartitionOffsets, ends: PartitionOffsets, cluster: Cluster, topics: Topics
    ) -> PartitionOffsets:
        """Ends beyond the end of a partition are not waited for: nobody says that anything will come."""
        options = self._options
        latest = cluster.list_offsets(dict.fromkeys(ends, LATEST), read_committed=options.read_committed, topics=topics)
        for (topic, index), end in ends.items():
            if end > latest[topic, index]:
                told = f"'{options.ending.option}' is {end} for {topic}-{index}, which ends at {latest[topic, index]}"
                if options.fail_on_data_loss:
                    raise DataLost(f"{told}. To read what is there, set failOnDataLoss to false")
                _log.warning("%s: reading what is there", told)
        return {each: min(end, max(latest[each], starts[each])) for each, end in ends.items()}

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return read_rows(partition, self._options)
