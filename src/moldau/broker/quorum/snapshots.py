"""Snapshots in motion: taken when the log has grown, fetched from the leader piece by piece, handed out to those who
are behind the log, and removed with the log they make superfluous.

Invariant: the log starts at 0 or where the oldest snapshot ends, so that with it nothing is missing.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Protocol

from moldau.broker.quorum.metadata_log import QuorumLog
from moldau.broker.quorum.snapshot_files import (
    PART_SUFFIX,
    SUFFIX,
    CorruptSnapshot,
    Snapshot,
    read_snapshot,
    snapshot_batches,
    snapshot_name,
    write_snapshot,
)
from moldau.broker.supervision import begin
from moldau.controller.image import ClusterImage
from moldau.raft import FetchedSnapshot, FetchSnapshot, Raft, SnapshotChunk, SnapshotId
from moldau.seams import Disk, DiskFile
from moldau.wire import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.config import BrokerConfig

    class Needs(Protocol):
        """What of the quorum `serve_snapshot` may touch."""

        files: QuorumLog

        @property
        def raft(self) -> Raft: ...


_log = logging.getLogger(__name__)


class SnapshotKeeper:
    """Takes a snapshot when enough was committed since the last one, off the loop, and drops the log behind it."""

    def __init__(self, files: QuorumLog, config: BrokerConfig, executor: Executor) -> None:
        self._files = files
        self._executor = executor
        self._clock = files.context.clock
        self._max_bytes = config.get_int("metadata.log.max.record.bytes.between.snapshots")
        self._max_ms = config.get_int("metadata.log.max.snapshot.interval.ms")
        self._retention_bytes = config.get_int("metadata.max.retention.bytes")
        self._retention_ms = config.get_int("metadata.max.retention.ms")
        self._since_ms = self._clock.monotonic_ms()
        self._bytes = 0
        self._timestamp_ms = -1
        self._running: asyncio.Task[None] | None = None

    def committed(self, size_bytes: int, timestamp_ms: int) -> None:
        """A batch more is committed."""
        self._bytes += size_bytes
        self._timestamp_ms = max(self._timestamp_ms, timestamp_ms)

    def take_if_due(self, image: ClusterImage, end_offset: int) -> None:
        """`image` is everything before `end_offset`."""
        if self._running is not None or not self._bytes or image.in_transaction:
            return
        now_ms = self._clock.monotonic_ms()
        is_late = self._max_ms > 0 and now_ms - self._since_ms >= self._max_ms
        if self._bytes >= self._max_bytes or is_late:
            self._since_ms = now_ms
            self._bytes = 0
            epoch = self._files.log.epochs.epoch_for_offset(end_offset - 1)
            snapshot = SnapshotId(end_offset, epoch)
            latest = self._files.latest_snapshot
            if epoch >= 0 and (latest is None or latest.end_offset < end_offset):
                self._running = begin(asyncio.get_running_loop(), "a snapshot", self._take(image, snapshot))

    async def _take(self, image: ClusterImage, snapshot: SnapshotId) -> None:
        files = self._files
        voters, kraft_version = files.history.at(snapshot.end_offset)
        parts = snapshot_batches(
            image, snapshot, timestamp_ms=self._timestamp_ms, kraft_version=kraft_version, voters=voters
        )
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._executor, write_snapshot, files.disk, files.folder, snapshot, parts)
            if files.add_snapshot(snapshot):
                removals = files.clean(self._retention_bytes, self._retention_ms)
                await loop.run_in_executor(self._executor, _remove, files, removals)
        except Exception:  # the log is all that is needed; the next one may succeed
            _log.exception("no snapshot of the metadata at offset %s; the log stays as it is", snapshot.end_offset)
        finally:
            self._running = None

    async def stop(self) -> None:
        if self._running is not None:
            await self._running


def _remove(files: QuorumLog, paths: list[str]) -> None:
    for path in paths:
        files.disk.remove(path)


class SnapshotDownload:
    """One snapshot on its way here. The file gets its name when it is complete, was read, and is flushed."""

    __slots__ = ("_disk", "_file", "_folder", "_snapshot")

    def __init__(self, disk: Disk, folder: str) -> None:
        self._disk = disk
        self._folder = folder
        self._snapshot: SnapshotId | None = None
        self._file: DiskFile | None = None

    def add(self, chunk: SnapshotChunk) -> None:
        if chunk.position == 0:
            self.drop()
            self._snapshot = chunk.snapshot
            self._file = self._disk.open(self._part())
            self._file.truncate(0)
        if self._file is None or chunk.snapshot != self._snapshot or chunk.position != self._file.size:
            raise CorruptSnapshot(f"a piece of snapshot {chunk.snapshot} came that does not follow what is there")
        self._file.append(chunk.data)

    def finish(self, snapshot: SnapshotId) -> Snapshot:
        """What it says. CorruptSnapshot, and nothing is left of it, unless it is whole: only then it gets its name."""
        if self._file is None or snapshot != self._snapshot:
            raise CorruptSnapshot(f"snapshot {snapshot} is not the one that was fetched")
        try:
            content = read_snapshot(self._file.read(0, self._file.size), snapshot)
        except CorruptSnapshot:
            self.drop()
            raise
        self._file.flush()
        self._file.close()
        self._disk.rename(self._part(), f"{self._folder}/{snapshot_name(snapshot)}")
        self._disk.flush_dir(self._folder)
        self._file = self._snapshot = None
        return content

    def drop(self) -> None:
        if self._file is not None:
            self._file.close()
            self._disk.remove(self._part())
        self._file = self._snapshot = None

    def _part(self) -> str:
        assert self._snapshot is not None
        return f"{self._folder}/{snapshot_name(self._snapshot).removesuffix(SUFFIX)}{PART_SUFFIX}"


def serve_snapshot(quorum: Needs, now_ms: float, request: FetchSnapshot, max_bytes: int) -> FetchedSnapshot:
    """A piece of a snapshot for a replica that is behind the log's start."""
    raft, files = quorum.raft, quorum.files
    error = raft.leader_only(request.epoch)
    leader = (raft.leader_id, raft.epoch, request.snapshot)
    address = raft.leader_address
    if error is ErrorCode.NONE and request.snapshot not in files.snapshots:
        error = ErrorCode.SNAPSHOT_NOT_FOUND
    if error is not ErrorCode.NONE:
        return FetchedSnapshot(error, *leader, leader_address=address)
    path = f"{files.folder}/{snapshot_name(request.snapshot)}"
    size = files.disk.file_size(path)
    if not 0 <= request.position < size:
        return FetchedSnapshot(ErrorCode.POSITION_OUT_OF_RANGE, *leader, leader_address=address)
    raft.heard_from(now_ms, request.replica)
    file = files.disk.open(path)
    try:
        data = file.read(request.position, min(max_bytes, size - request.position))
    finally:
        file.close()
    return FetchedSnapshot(error, *leader, size, request.position, data, address)
