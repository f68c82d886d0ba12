"""Snapshots in motion: fetched from the leader piece by piece, and handed out to those who are behind the log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.metadata_snapshots import PART_SUFFIX, SUFFIX, snapshot_name
from moldau.raft import FetchedSnapshot, FetchSnapshot, SnapshotChunk, SnapshotId
from moldau.seams import Disk, DiskFile
from moldau.wire import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.quorum import MetadataQuorum


class SnapshotDownload:
    """One snapshot on its way here. The file gets its name when it is complete and flushed."""

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
        assert self._file is not None
        assert chunk.snapshot == self._snapshot
        assert chunk.position == self._file.size
        self._file.append([chunk.data])

    def finish(self, snapshot: SnapshotId) -> None:
        assert self._file is not None
        assert snapshot == self._snapshot
        self._file.flush()
        self._file.close()
        self._disk.rename(self._part(), f"{self._folder}/{snapshot_name(snapshot)}")
        self._disk.flush_dir(self._folder)
        self._file = self._snapshot = None

    def drop(self) -> None:
        if self._file is not None:
            self._file.close()
            self._disk.remove(self._part())
        self._file = self._snapshot = None

    def _part(self) -> str:
        assert self._snapshot is not None
        return f"{self._folder}/{snapshot_name(self._snapshot).removesuffix(SUFFIX)}{PART_SUFFIX}"


def serve_snapshot(quorum: MetadataQuorum, now_ms: float, request: FetchSnapshot, max_bytes: int) -> FetchedSnapshot:
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
