"""Exactly-once: one Kafka transaction per task, which says by itself whether it happened.

Into the transaction goes, beside the records, an offset of a consumer group that nobody reads by: the number of the
batch, with what was written as its metadata. Both become visible together or not at all. So a task that runs again
(after the death of a worker, of the executor, or of the driver) asks first and writes only what is not there.

The order of steps carries the proof:

1. `InitProducerId` for the task's transactional id. It fences every earlier attempt, alive or not, and ends what that
   one left open: from here on nobody but us commits for this partition of the query.
2. Read the marker, and wait for offsets that are still in doubt. What it says now stays true until we change it.
3. Only if the batch is not there: write records, then the marker, then commit.

Where markers are kept. Each query (the writer) has groups of its own, one per task, so that another query under the
same `transactionalIdPrefix` changes nothing about them. In the group, the offset is stored once for every topic the
transaction wrote to: a cluster forgets the offsets of a topic that is deleted. Hence, whichever topics come, go or
change from batch to batch: a topic that holds records of a batch has its marker too, and a batch none of whose markers
is left has no records left either.

An attempt that was fenced fails; its transaction is aborted. If the outcome of a commit is unknown, the task fails
too, and the next attempt learns the outcome in steps 1 and 2.

Limits. A batch that is run again must bring the same rows to the same task: Spark does that for a replayable source
and a deterministic query. The marker keeps count and size of the rows, so a task whose rows have changed is an error
and not a silent loss. Atomic is the task, not the batch: readers may see some partitions of a batch before others.
Markers are kept by the cluster as long as offsets of empty groups (`offsets.retention.minutes`, a week).
"""

import contextlib
import json
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition

from moldau.client.cluster import Cluster
from moldau.client.connection import ClientError
from moldau.spark.producing import LIBRDKAFKA_LOG, DeliveryFailed, make_producer
from moldau.spark.sink_options import SinkOptions

T = TypeVar("T")
_ATTEMPT_SECONDS = 10.0
_ABORT_SECONDS = 10.0
_PAUSE_SECONDS = 0.05
_FENCED = (KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH)


class Fenced(RuntimeError):
    """Another attempt of the same task has taken over, or the transaction took too long."""


class ReplayDiffers(RuntimeError):
    """A batch that was written before came again with other rows."""


@dataclass(slots=True, frozen=True)
class Marker:
    """What the last transaction of a task wrote. `writer` is the query's id: a new checkpoint starts a new query."""

    writer: str
    batch_id: int
    rows: int
    size_bytes: int


class TaskTransaction:
    """The transaction of one task: `open`, then either nothing, or `begin`, sending, and `commit` or `abort`."""

    def __init__(self, options: SinkOptions, writer: str, partition: int) -> None:
        self._options = options
        self._writer = writer
        self.transactional_id = f"{options.transactional_id_prefix or writer}-{partition}"
        self.group = marker_group(self.transactional_id, options.transactional_id_prefix, writer)
        self._deadline_seconds = options.max_block_ms / 1000
        self.producer: Producer

    def open(self) -> Marker | None:
        """Fence earlier attempts, and tell what the last of them committed."""
        self.producer = make_producer(
            self._options.producer,
            **{
                "transactional.id": self.transactional_id,
                "transaction.timeout.ms": self._options.transaction_timeout_ms,
            },
        )
        self._call("starting a transactional producer", lambda: self.producer.init_transactions(_ATTEMPT_SECONDS))
        # The sink once kept markers of all writers under the prefix in one group: those count as well.
        return read_marker(self._options, dict.fromkeys((self.group, self.transactional_id)), self._writer)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def commit(self, topics: Iterable[str], marker: Marker) -> None:
        """Make the records in these topics and the marker visible together. Everything was acknowledged before."""
        text = json.dumps(asdict(marker), separators=(",", ":"))
        places = [TopicPartition(topic, 0, marker.batch_id, text) for topic in sorted(topics)]
        # Only a consumer can name a group to librdkafka; this one reads nothing.
        consumer = Consumer({**self._options.connection, "group.id": self.group, "logger": LIBRDKAFKA_LOG})
        try:
            group = consumer.consumer_group_metadata()
            self._call(
                "noting the batch in the transaction",
                lambda: self.producer.send_offsets_to_transaction(places, group, _ATTEMPT_SECONDS),
            )
        finally:
            consumer.close()
        self.end()

    def end(self) -> None:
        self._call("committing the transaction", lambda: self.producer.commit_transaction(_ATTEMPT_SECONDS))

    def abort(self) -> None:
        """Give up what was written, so that readers need not wait for the timeout. Never hides what went wrong."""
        try:
            self.producer.purge()
            self.producer.abort_transaction(_ABORT_SECONDS)
        except (KafkaException, RuntimeError):
            return  # fenced, or out of reach: the coordinator aborts by itself

    def _call(self, what: str, step: Callable[[], T]) -> T:
        """Repeat a step until it works, fails for good or takes too long; librdkafka continues where it was."""
        deadline = time.monotonic() + self._deadline_seconds
        while True:
            try:
                return step()
            except KafkaException as failure:
                if not failure.args[0].retriable() or time.monotonic() > deadline:
                    raise self.explained(what, failure) from failure
                time.sleep(_PAUSE_SECONDS)  # the client tells nobody when a step it calls retriable may succeed

    def explained(self, what: str, failure: KafkaException) -> RuntimeError:
        """What an error of librdkafka's means here, and what to do."""
        error: KafkaError = failure.args[0]
        if error.code() in _FENCED:
            return Fenced(_fenced_text(self.transactional_id, self._options))
        return DeliveryFailed(
            f"{what} {self.transactional_id!r} failed: {error.str()} ({error.name()}){_advice(error)}"
        )


def _fenced_text(transactional_id: str, options: SinkOptions) -> str:
    return (
        f"the transaction {transactional_id!r} was ended by somebody else: another attempt of this task runs (turn "
        "spark.speculation off), another query uses the same transactionalIdPrefix, or writing took longer than "
        f"kafka.transaction.timeout.ms={options.transaction_timeout_ms} (raise it, or make batches smaller by "
        "maxOffsetsPerTrigger)"
    )


def _advice(error: KafkaError) -> str:
    if error.code() == KafkaError.INVALID_TRANSACTION_TIMEOUT:
        return "; set kafka.transaction.timeout.ms to at most the brokers' transaction.max.timeout.ms"
    return ""


def is_written(marker: Marker | None, batch_id: int) -> bool:
    """Whether the batch is there already. A marker ahead of the batch means that the checkpoint went back in time."""
    if marker is None or marker.batch_id < batch_id:
        return False
    if marker.batch_id > batch_id:
        raise ReplayDiffers(
            f"batch {batch_id} comes after batch {marker.batch_id} was written: the checkpoint is older than the "
            "output. Restore the newer checkpoint; or start anew with another checkpoint, and another "
            "transactionalIdPrefix if one is set, which writes everything again"
        )
    return True


def check_replay(marker: Marker, rows: int, size_bytes: int, transactional_id: str) -> None:
    """A batch that was written and comes again must be the same."""
    if (marker.rows, marker.size_bytes) != (rows, size_bytes):
        raise ReplayDiffers(
            f"batch {marker.batch_id} of {transactional_id!r} was written with {marker.rows} rows of "
            f"{marker.size_bytes} bytes and comes again with {rows} rows of {size_bytes} bytes. Exactly-once "
            "needs a batch to be the same when it is repeated: keep the number of partitions (minPartitions, "
            "spark.sql.shuffle.partitions, repartition) across a restart, and leave out rand(), uuid() and the like. "
            "If the rows depend on a table beside the stream, which may have changed, set checkReplay=false. Other "
            "partitions of this batch may have been written twice or not at all"
        )


def marker_group(transactional_id: str, prefix: str | None, writer: str) -> str:
    """The group of a task's markers: the transactional id, and the writer if that does not name it."""
    return transactional_id if prefix in (None, writer) else f"{transactional_id}-{writer}"


def read_marker(options: SinkOptions, groups: Iterable[str], writer: str) -> Marker | None:
    """The newest marker of this writer: there is one for each topic that a task ever wrote to."""
    # Not by librdkafka, whose AdminClient (2.16) crashes the process when the coordinator has moved or is loading.
    markers: list[Marker] = []
    with Cluster(options.client, pause_s=_PAUSE_SECONDS, patience_s=options.max_block_ms / 1000) as cluster:
        for group_id in groups:
            try:
                offsets = cluster.committed(group_id)
            except ClientError as failure:
                raise DeliveryFailed(f"asking what {group_id!r} has written failed: {failure}") from failure
            markers += [_parse(group_id, each.metadata) for each in offsets.values()]
    own = [marker for marker in markers if marker.writer == writer]
    return max(own, key=lambda marker: marker.batch_id, default=None)


def _parse(group_id: str, text: str) -> Marker:
    try:
        return Marker(**json.loads(text.rstrip("\0")))  # confluent-kafka counts C's end of a string in
    except (TypeError, ValueError) as failure:
        raise ValueError(
            f"group {group_id!r} holds offsets that this sink did not write: choose another transactionalIdPrefix"
        ) from failure


def delete_markers(options: SinkOptions, groups: list[str]) -> None:
    """Forget markers that nobody will ask for again. If it fails, the cluster's retention does it."""
    with contextlib.suppress(ClientError), Cluster(options.client, patience_s=_ATTEMPT_SECONDS) as cluster:
        cluster.delete_groups(groups)
