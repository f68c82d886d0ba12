"""A range of one partition, from its leader into Arrow: raw Fetch responses, no Python object per record.

A thread asks ahead while the decoder works: the next offset is known from the last batch header, long before the
records are decoded. At most two responses wait, so memory stays bounded whatever the partition holds.

Invariant: what is yielded is exactly the visible records in [start, end), in order, each once, whatever leaders do
meanwhile. If records of the range are gone, it is an error, or with `fail_on_data_loss` off, a warning.

An empty answer is not the end of the range: a broker may be throttled (then Apache Kafka names no partition at all), be
short of memory, or wait for a remote store. That nothing is left is believed when a batch beyond the range is seen, or
when a compacted log, in which that can be, says so several times.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from moldau.client.cluster import Cluster
from moldau.client.connection import BrokerError, ClientError, Connection, Disconnected
from moldau.records.batch import Buffer, iter_batches
from moldau.records.codecs import Arena
from moldau.records.columns import Columns, iter_columns
from moldau.seams.disk import FileRegion
from moldau.spark.broker_outage import Waiting
from moldau.spark.ranges import DataLost, FetchSettings, RangeToRead
from moldau.wire import ErrorCode, MalformedFrame, apis, encode
from moldau.wire.fetch import FetchedPartition, decode_fetch_response
from moldau.wire.messages import FetchRequest

_log = logging.getLogger(__name__)
_FETCH = 1
_BY_NAME = 12  # version 13 names topics by id
_EARLIEST = -2
_AHEAD = 2
_NO_LEADER_EPOCH = -1
_STALE_LEADER = {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.FENCED_LEADER_EPOCH,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.REPLICA_NOT_AVAILABLE,
    ErrorCode.KAFKA_STORAGE_ERROR,
    ErrorCode.OFFSET_NOT_AVAILABLE,
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
}
_RETRY_SECONDS = 0.1
# A broker that was just started may not know every topic yet; who is told for so long that there is none believes it.
_GONE_SECONDS = 10.0
_THROTTLED_SECONDS_MAX = 5.0
_EMPTY_ANSWERS_BELIEVED = 3
_BYTES_MAX = 1 << 30


@dataclass(slots=True, frozen=True)
class _Fetched:
    fetch_offset: int
    records: Buffer
    aborted: Sequence[tuple[int, int]]


def read_range(work: RangeToRead, settings: FetchSettings) -> Iterator[Columns]:
    """The records of the range, some thousands at a time; each piece is good until the next is asked for."""
    responses: queue.Queue[_Fetched | BaseException | None] = queue.Queue(_AHEAD)
    fetcher = _Fetcher(work, settings, responses)
    thread = threading.Thread(target=fetcher.run, name=f"fetch {work}", daemon=True)
    thread.start()
    arena = Arena()
    try:
        while (response := responses.get()) is not None:
            if isinstance(response, BaseException):
                raise response
            yield from iter_columns(
                response.records,
                response.fetch_offset,
                until_offset=work.end,
                aborted=response.aborted,
                with_headers=settings.include_headers,
                check_crcs=settings.check_crcs,
                arena=arena,
            )
    finally:
        fetcher.stop()
        thread.join()


class _Fetcher:
    """Walks from the start of the range to its end, one request at a time, on a thread of its own."""

    def __init__(
        self, work: RangeToRead, settings: FetchSettings, out: "queue.Queue[_Fetched | BaseException | None]"
    ) -> None:
        self._work = work
        self._settings = settings
        self._out = out
        self._offset = work.start
        self._leader = work.leader
        self._connection: Connection | None = None
        self._is_stopped = threading.Event()
        self._deadline = 0.0
        self._waiting: Waiting | None = None
        self._max_bytes = settings.max_bytes
        self._missing_since: float | None = None  # since when brokers say that there is no such partition
        self._empty_answers = 0  # in a row, from a log that reaches the end of the range
        self._is_compacted: bool | None = None  # None: not asked yet

    def stop(self) -> None:
        self._is_stopped.set()
        connection = self._connection
        if connection is not None:
            connection.break_off()
        while not self._out.empty():  # a fetcher that waits for room goes on, sees that it is stopped, and ends
            self._out.get_nowait()

    def run(self) -> None:
        try:
            self._walk()
            self._put(None)
        except BaseException as error:  # the reader's thread raises it
            self._put(error)
        finally:
            if self._connection is not None:
                self._connection.close()

    def _put(self, item: _Fetched | BaseException | None) -> None:
        while not self._is_stopped.is_set():
            try:
                self._out.put(item, timeout=0.5)
            except queue.Full:
                continue
            return

    def _walk(self) -> None:
        self._made_progress()
        while self._offset < self._work.end and not self._is_stopped.is_set():
            try:
                answer = self._fetch()
                if answer is not None:
                    self._act_on(answer)
            except Disconnected as error:
                self._try_again(error)
            if self._missing_since is not None and time.monotonic() - self._missing_since > _GONE_SECONDS:
                self._lose(self._work.end, f"{self._work} is gone: the topic was deleted while it was read")

    def _act_on(self, answer: FetchedPartition) -> None:
        code = answer.error_code
        if code in _STALE_LEADER:
            self._try_again(BrokerError(code, f"cannot read {self._work}"))
        elif code == ErrorCode.OFFSET_OUT_OF_RANGE:
            self._skip_lost()
        elif code:
            raise BrokerError(code, f"cannot read {self._work}")
        else:
            self._take(answer)

    def _take(self, answer: FetchedPartition) -> None:
        """Hand over the records and go on behind them."""
        records = _records(answer)
        next_offset = _next_offset(records, self._offset)
        if next_offset is None:
            self._wait_for_records(answer, is_cut=bool(records))
            return
        fetched = _Fetched(self._offset, records, answer.aborted or ())
        self._offset = next_offset
        self._made_progress()
        self._put(fetched)

    def _wait_for_records(self, answer: FetchedPartition, *, is_cut: bool) -> None:
        """Nothing came although the range goes on: find out whether anything will."""
        if is_cut:  # the beginning of a batch that is larger than what was asked for
            self._max_bytes = min(2 * self._max_bytes, _BYTES_MAX)
        settings, work = self._settings, self._work
        reached = answer.last_stable_offset if settings.read_committed else answer.high_watermark
        if reached < work.end or is_cut:
            self._empty_answers = 0
        elif self._is_gap():
            self._offset = work.end
            return
        if time.monotonic() > self._deadline:
            self._lose(
                work.end,
                f"{work} has no records from {self._offset} on after {settings.timeout_s:.0f} s: the partition ends at "
                f"{reached}. Was the topic deleted and created again?",
            )
            return
        self._is_stopped.wait(_RETRY_SECONDS)

    def _is_gap(self) -> bool:
        """Whether the log, which reaches the end of the range, has nothing more in it: compaction took the rest."""
        self._empty_answers += 1
        if self._settings.read_committed:
            # Below the last stable offset there may be nothing; what follows it tells, whether committed or not.
            beyond = self._fetch(read_committed=False)
            first = None if beyond is None or beyond.error_code else next(iter_batches(_records(beyond)), None)
            if first is not None:
                return bool(first[1].base_offset >= self._work.end)
        if self._empty_answers < _EMPTY_ANSWERS_BELIEVED:
            return False
        if self._is_compacted is None:
            try:
                with Cluster(self._settings.client) as cluster:
                    self._is_compacted = cluster.is_compacted(self._work.topic)
            except ClientError as error:  # we may not ask: then only time can tell
                _log.info("cannot ask whether %s is compacted: %s", self._work.topic, error)
                self._is_compacted = False
        return self._is_compacted

    def _lose(self, resume: int, message: str) -> None:
        if self._settings.fail_on_data_loss:
            raise DataLost(f"{message}. To go on without them, set the option failOnDataLoss to false")
        _log.warning("%s; going on without them", message)
        self._offset = resume
        self._made_progress()

    def _skip_lost(self) -> None:
        """The offset is gone: retention, deleted records, or a topic that was created anew."""
        lost_from = self._offset
        with Cluster(self._settings.client) as cluster:
            partition = (self._work.topic, self._work.partition)
            earliest = cluster.list_offsets({partition: _EARLIEST})[partition]
        resume = earliest if lost_from < earliest < self._work.end else self._work.end
        message = (
            f"offsets {lost_from} to {resume} of {self._work.topic}-{self._work.partition} are not there any more "
            f"(the partition begins at {earliest}): retention took them before they were read, or the topic was "
            "deleted"
        )
        self._lose(resume, message)

    def _fetch(self, *, read_committed: bool | None = None) -> FetchedPartition | None:
        """What the leader says of the partition; None, after a while, if it was too busy to say anything."""
        connection = self._connection = self._connection or self._connect()
        api = apis()[_FETCH]
        version = connection.version(api, _BY_NAME)
        settings = self._settings
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=settings.max_wait_ms,
            min_bytes=1,
            max_bytes=max(self._max_bytes, 1 << 20),
            isolation_level=int(settings.read_committed if read_committed is None else read_committed),
            session_epoch=-1,
            topics=[
                FetchRequest.FetchTopic(
                    topic=self._work.topic,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=self._work.partition,
                            current_leader_epoch=_NO_LEADER_EPOCH,
                            fetch_offset=self._offset,
                            partition_max_bytes=self._max_bytes,
                        )
                    ],
                )
            ],
        )
        connection.send(api, version, encode(request, version))
        frame, position = connection.receive(api, version)
        try:
            answer = decode_fetch_response(frame, position, version)
        except MalformedFrame as error:
            raise ClientError(f"{connection.peer} sent an answer that makes no sense: {error}") from error
        if answer.error_code:
            raise BrokerError(answer.error_code, f"cannot read {self._work}")
        for topic, partitions in answer.topics:
            for partition in partitions:
                if (topic, partition.partition) == (self._work.topic, self._work.partition):
                    return partition
        if time.monotonic() > self._deadline:
            raise ClientError(
                f"{connection.peer} says nothing of {self._work} for {settings.timeout_s:.0f} s: it throttles this "
                "client. Raise its quota, or kafkaConsumer.pollTimeoutMs"
            )
        self._is_stopped.wait(min(max(answer.throttle_time_ms / 1000, _RETRY_SECONDS), _THROTTLED_SECONDS_MAX))
        return None

    def _connect(self) -> Connection:
        if self._leader is None:
            with Cluster(self._settings.client, attempts=1, patience_s=0) as cluster:
                topics = cluster.topics([self._work.topic])
            partition = (self._work.topic, self._work.partition)
            self._leader = topics.address(partition)
            if partition in topics.leaders:
                self._missing_since = None
            elif self._missing_since is None:
                self._missing_since = time.monotonic()
            if self._leader is None:
                raise Disconnected(f"{self._work.topic}-{self._work.partition} has no leader right now")
        return Connection(*self._leader, self._settings.client)

    def _made_progress(self) -> None:
        self._deadline = time.monotonic() + self._settings.timeout_s
        self._waiting = None
        self._empty_answers = 0

    def _try_again(self, error: ClientError) -> None:
        """Ask who leads now, after a moment; too long without progress is the error itself."""
        if self._waiting is None:
            self._waiting = Waiting(max(self._settings.timeout_s, self._settings.outage_s))
        if self._waiting.is_over():
            raise error
        self._waiting.say(error)
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._leader = None
        self._is_stopped.wait(_RETRY_SECONDS)


def _records(answer: FetchedPartition) -> Buffer:
    records = answer.records[0] if answer.records else b""
    assert not isinstance(records, FileRegion), "only brokers have those"
    return records


def _next_offset(records: Buffer, fetch_offset: int) -> int | None:
    """Where to go on after these batches; None if there is no whole one."""
    last: Any = None
    for _, header in iter_batches(records):
        last = header
    if last is None or last.next_offset <= fetch_offset:
        return None
    return int(last.next_offset)
