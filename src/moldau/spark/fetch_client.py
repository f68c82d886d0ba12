"""A range of one partition, from its leader into Arrow: raw Fetch responses, no Python object per record.

A thread asks ahead while the decoder works: the next offset is known from the last batch header, long before the
records are decoded. At most two responses wait, so memory stays bounded whatever the partition holds.

Invariant: what is yielded is exactly the visible records in [start, end), in order, each once, whatever leaders do
meanwhile. If records of the range are gone, it is an error, or with `fail_on_data_loss` off, a warning.
"""

import logging
import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from moldau.records.batch import Buffer, iter_batches
from moldau.records.codecs import Arena
from moldau.records.columns import Columns, iter_columns
from moldau.seams.disk import FileRegion
from moldau.spark.admin import Address, Cluster
from moldau.spark.client import BrokerError, ClientError, ClientSettings, Connection, Disconnected
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


class DataLost(ClientError):
    """Records that were to be read are not there any more."""


@dataclass(slots=True, frozen=True)
class RangeToRead:
    """One task's work, with what the driver knows about the leader."""

    topic: str
    partition: int
    start: int
    end: int
    leader: Address | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


@dataclass(slots=True, frozen=True)
class FetchSettings:
    """How to ask."""

    client: ClientSettings
    read_committed: bool = False
    include_headers: bool = False
    fail_on_data_loss: bool = True
    max_bytes: int = 4 << 20
    max_wait_ms: int = 500
    timeout_s: float = 120.0  # without progress
    check_crcs: bool = True


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
            except Disconnected as error:
                self._try_again(error)
                continue
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
        """Hand over the records; or, if there are none although the log goes on, there is nothing left to read."""
        records = answer.records[0] if answer.records else b""
        assert not isinstance(records, FileRegion), "only brokers have those"
        next_offset = _next_offset(records, self._offset)
        if next_offset is None:
            reached = answer.last_stable_offset if self._settings.read_committed else answer.high_watermark
            if reached >= self._work.end:
                self._offset = self._work.end  # compaction took the rest, or a transaction left only its marker
            elif time.monotonic() > self._deadline:
                raise ClientError(
                    f"{self._work} has no records from {self._offset} on after {self._settings.timeout_s:.0f} s: "
                    f"the partition ends at {reached}. Was the topic deleted and created again?"
                )
            return
        fetched = _Fetched(self._offset, records, answer.aborted or ())
        self._offset = next_offset
        self._made_progress()
        self._put(fetched)

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
        if self._settings.fail_on_data_loss:
            raise DataLost(f"{message}. To go on without them, set the option failOnDataLoss to false")
        _log.warning("%s; going on without them", message)
        self._offset = resume
        self._made_progress()

    def _fetch(self) -> FetchedPartition:
        connection = self._connection = self._connection or self._connect()
        api = apis()[_FETCH]
        version = connection.version(api, _BY_NAME)
        settings = self._settings
        request = FetchRequest(
            replica_id=-1,
            max_wait_ms=settings.max_wait_ms,
            min_bytes=1,
            max_bytes=max(settings.max_bytes, 1 << 20),
            isolation_level=int(settings.read_committed),
            session_epoch=-1,
            topics=[
                FetchRequest.FetchTopic(
                    topic=self._work.topic,
                    partitions=[
                        FetchRequest.FetchPartition(
                            partition=self._work.partition,
                            current_leader_epoch=_NO_LEADER_EPOCH,
                            fetch_offset=self._offset,
                            partition_max_bytes=settings.max_bytes,
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
        return answer.topics[0][1][0]

    def _connect(self) -> Connection:
        if self._leader is None:
            with Cluster(self._settings.client, attempts=1, patience_s=0) as cluster:
                topics = cluster.topics([self._work.topic])
            self._leader = topics.address((self._work.topic, self._work.partition))
            if self._leader is None:
                raise Disconnected(f"{self._work.topic}-{self._work.partition} has no leader right now")
        return Connection(*self._leader, self._settings.client)

    def _made_progress(self) -> None:
        self._deadline = time.monotonic() + self._settings.timeout_s

    def _try_again(self, error: ClientError) -> None:
        """Ask who leads now, after a moment; too long without progress is the error itself."""
        if time.monotonic() > self._deadline:
            raise error
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        self._leader = None
        self._is_stopped.wait(_RETRY_SECONDS)


def _next_offset(records: Buffer, fetch_offset: int) -> int | None:
    """Where to go on after these batches; None if there is no whole one."""
    last: Any = None
    for _, header in iter_batches(records):
        last = header
    if last is None or last.next_offset <= fetch_offset:
        return None
    return int(last.next_offset)
