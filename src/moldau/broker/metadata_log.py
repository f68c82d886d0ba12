"""The metadata log of a quorum of one: `__cluster_metadata-0`, in Kafka's own records.

Commands are appended at once, in order, and made durable by one flush for all that came meanwhile; what is flushed is
committed, since this node is the whole quorum. Every change of the cluster is a record here before anything acts on it.

Invariants
- The image that is published never runs ahead of what is durable.
- Each start is a new leader epoch: it is in `quorum-state` before the first record of it is written.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor

from moldau.controller.features import record_version
from moldau.controller.fold import apply
from moldau.controller.image import EMPTY_IMAGE, ClusterImage
from moldau.log.config import LogConfig
from moldau.log.context import LogContext
from moldau.log.flush import FlushJob
from moldau.log.partition_log import PartitionLog
from moldau.log.producer_state import AppendOrigin
from moldau.log.recovery import open_log
from moldau.records import BatchBuilder, ControlType, build_control_batch, iter_batches, iter_records
from moldau.wire import Message, encode
from moldau.wire import messages as m
from moldau.wire.internal import decode_metadata_record, encode_metadata_record

TOPIC = "__cluster_metadata"
TOPIC_ID = bytes(15) + b"\x01"
QUORUM_STATE = "quorum-state"
_READ_BYTES = 8 << 20
# Metadata is small and never expires by itself; one segment per GiB is plenty.
_CONFIG = LogConfig(retention_ms=-1, max_message_bytes=8 << 20, segment_ms=2**63 - 1)


class MetadataLog:
    """Belongs to the event loop."""

    def __init__(
        self,
        context: LogContext,
        log_dir: str,
        node_id: int,
        publish: Callable[[ClusterImage, ClusterImage], None],
        executor: Executor,
    ) -> None:
        self._context = context
        self._disk = context.disk
        self._folder = f"{log_dir}/{TOPIC}-0"
        self._node_id = node_id
        self._publish = publish
        self._executor = executor
        self.epoch = 0
        # With everything appended; the next command is decided on this.
        self.latest = EMPTY_IMAGE
        # With everything durable; this is what the node shows and acts on.
        self.committed = EMPTY_IMAGE
        self._pending: deque[tuple[ClusterImage, asyncio.Future[None]]] = deque()
        self._flushing: asyncio.Task[None] | None = None
        self.log: PartitionLog

    def open(self) -> None:
        """Read what there is, and become the leader of a new epoch. Blocks: the node is not serving yet."""
        self._disk.make_dirs(self._folder)
        self.log = open_log(self._context, self._folder, TOPIC, 0, _CONFIG, topic_id=TOPIC_ID)
        self.epoch = max(self._read_epoch(), self.log.epochs.latest or 0) + 1
        self._write_quorum_state()
        for records, offset, epoch in self._replay():
            self.latest = apply(self.latest, records, offset=offset, epoch=epoch)
        voter = m.LeaderChangeMessage.Voter(self._node_id)
        change = m.LeaderChangeMessage(leader_id=self._node_id, voters=[voter], granting_voters=[voter])
        now_ms = self._context.clock.wall_ms()
        batch = build_control_batch([(ControlType.LEADER_CHANGE, encode(change, 0))], timestamp_ms=now_ms)
        self.log.append_as_leader(batch, self.epoch, AppendOrigin.RAFT_LEADER)
        FlushJob(self.log).run_and_finish()
        self.log.update_high_watermark(self.log.log_end_offset)
        self.committed = self.latest

    def _read_epoch(self) -> int:
        path = f"{self._folder}/{QUORUM_STATE}"
        if not self._disk.exists(path):
            return 0
        return int(json.loads(self._disk.read_file(path))["leaderEpoch"])

    def _write_quorum_state(self) -> None:
        state = {
            "clusterId": "",
            "leaderId": self._node_id,
            "leaderEpoch": self.epoch,
            "votedId": -1,
            "appliedOffset": 0,
            "currentVoters": [{"voterId": self._node_id}],
            "data_version": 0,
        }
        self._disk.write_file_atomically(f"{self._folder}/{QUORUM_STATE}", json.dumps(state).encode())

    def _replay(self) -> Iterator[tuple[list[Message], int, int]]:
        """(records, offset of the last, epoch) of every batch in the log."""
        offset = self.log.log_start_offset
        while offset < self.log.log_end_offset:
            region = self.log.read(offset, _READ_BYTES).region
            if region is None:
                return
            data = region.read()
            for position, header in iter_batches(data):
                if not header.is_control:
                    values = (record.value for record in iter_records(data, position))
                    records = [decode_metadata_record(value) for value in values if value is not None]
                    yield records, header.last_offset, header.leader_epoch
                offset = header.next_offset

    @property
    def leader_id(self) -> int | None:
        return self._node_id

    @property
    def is_leader(self) -> bool:
        return True

    def leader_endpoint(self) -> tuple[str, int] | None:
        return None

    @property
    def next_offset(self) -> int:
        return self.log.log_end_offset

    def append(self, records: Sequence[Message]) -> asyncio.Future[None]:
        """Append records that belong together; the future is done when they are committed and acted upon."""
        now_ms = self._context.clock.wall_ms()
        version = self.latest.metadata_version
        builder = BatchBuilder()
        for record in records:
            builder.append(now_ms, None, encode_metadata_record(record, record_version(record, version)))
        batch = builder.finish()
        info = self.log.append_as_leader(batch, self.epoch, AppendOrigin.RAFT_LEADER)
        self.latest = apply(self.latest, records, offset=info.last_offset, epoch=self.epoch)
        loop = asyncio.get_running_loop()
        done: asyncio.Future[None] = loop.create_future()
        self._pending.append((self.latest, done))
        if self._flushing is None:
            self._flushing = loop.create_task(self._flush())
        return done

    async def _flush(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._pending:
                covered = len(self._pending)
                job = FlushJob(self.log)
                await loop.run_in_executor(self._executor, job.run)
                job.finish()
                self.log.update_high_watermark(self.log.flushed_offset)
                for _ in range(covered):
                    image, done = self._pending.popleft()
                    before, self.committed = self.committed, image
                    self._publish(before, image)
                    if not done.done():
                        done.set_result(None)
        except Exception as error:
            # The disk of the metadata failed: nothing appended since can be trusted to be there.
            while self._pending:
                _, done = self._pending.popleft()
                if not done.done():
                    done.set_exception(error)
            raise
        finally:
            self._flushing = None

    async def close(self) -> None:
        if self._flushing is not None:
            await self._flushing
        self.log.close()
