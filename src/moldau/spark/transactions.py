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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from moldau.client.cluster import Cluster, Committed, TopicPartition
from moldau.client.connection import ClientError
from moldau.spark.producing import DeliveryFailed
from moldau.spark.sink_options import SinkOptions
from moldau.wire import ErrorCode

_DELETE_SECONDS = 10.0
_PAUSE_SECONDS = 0.05


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


class Writing(Protocol):
    """What sends a task's rows in a transaction: librdkafka (`row_transactions`) or columns (`column_transactions`).

    Errors are `Fenced`, or `DeliveryFailed` with what to do.
    """

    @property
    def rows(self) -> int: ...

    @property
    def size_bytes(self) -> int: ...

    def fence(self) -> None:
        """Become the only producer of the transactional id."""

    def begin(self) -> None: ...

    def send(self, batch: Any) -> None:
        """Hand over the rows of an Arrow batch."""

    def finish(self) -> Iterable[str]:
        """Wait until all rows are acknowledged; the topics that were written to."""

    def note(self, group: str, offsets: Mapping[TopicPartition, Committed]) -> None:
        """Store offsets of a group as part of the transaction."""

    def commit(self) -> None: ...

    def abort(self) -> None:
        """Give up what was written, so that readers need not wait for the timeout. Never hides what went wrong."""

    def close(self) -> None: ...


class TaskTransaction:
    """The transaction of one task: `open`, then nothing; or `begin`, any `send`, `flush`, and `commit` or `abort`."""

    def __init__(self, options: SinkOptions, writer: str, partition: int, choose: Callable[[str], Writing]) -> None:
        """`choose` finds the way for the rows of a transactional id."""
        self._options = options
        self._writer = writer
        self.transactional_id = f"{options.transactional_id_prefix or writer}-{partition}"
        self.group = marker_group(self.transactional_id, options.transactional_id_prefix, writer)
        self._choose = choose
        self._writing: Writing
        self._topics: Iterable[str] = ()

    def open(self) -> Marker | None:
        """Fence earlier attempts, and tell what the last of them committed."""
        self._writing = self._choose(self.transactional_id)
        try:
            self._writing.fence()
            # The sink once kept markers of all writers under the prefix in one group: those count as well.
            return read_marker(self._options, dict.fromkeys((self.group, self.transactional_id)), self._writer)
        except BaseException:
            self._writing.close()
            raise

    def close(self) -> None:
        self._writing.close()

    def begin(self) -> None:
        self._writing.begin()

    def send(self, batch: Any) -> None:
        self._writing.send(batch)

    def flush(self) -> None:
        """Wait until everything is acknowledged."""
        self._topics = self._writing.finish()

    def commit(self, batch_id: int) -> int:
        """Make the records and the marker visible together; how many rows. Everything was acknowledged before."""
        marker = Marker(self._writer, batch_id, self._writing.rows, self._writing.size_bytes)
        text = json.dumps(asdict(marker), separators=(",", ":"))
        self._writing.note(self.group, {(topic, 0): Committed(batch_id, text) for topic in sorted(self._topics)})
        self.end()
        return marker.rows

    def end(self) -> None:
        self._writing.commit()

    def abort(self) -> None:
        self._writing.abort()


def fenced(transactional_id: str, options: SinkOptions) -> Fenced:
    return Fenced(
        f"the transaction {transactional_id!r} was ended by somebody else: another attempt of this task runs (turn "
        "spark.speculation off), another query uses the same transactionalIdPrefix, or writing took longer than "
        f"kafka.transaction.timeout.ms={options.transaction_timeout_ms} (raise it, or make batches smaller by "
        "maxOffsetsPerTrigger)"
    )


def advice_for(code: int) -> str:
    if code == ErrorCode.INVALID_TRANSACTION_TIMEOUT:
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
    with contextlib.suppress(ClientError), Cluster(options.client, patience_s=_DELETE_SECONDS) as cluster:
        cluster.delete_groups(groups)
