"""Producer-state snapshots on disk: `%020d.snapshot`, byte for byte Kafka's format (ProducerSnapshot version 1).

A snapshot at offset N holds the state after every record below N. It is written without a flush, like the segment it
belongs to, and flushed with it; one that does not pass its checksum is dropped and an older one, or the log, is used.
"""

import struct
from bisect import bisect_left, insort

from moldau.log.errors import CorruptSnapshot
from moldau.log.producers.producer_state import BatchMetadata, ProducerEntry, ProducerState
from moldau.records.checksum import crc32c
from moldau.seams import Disk

SUFFIX = ".snapshot"
_VERSION = 1
_HEAD = struct.Struct(">hIi")
_CRC_COVERS_FROM = 6
_ENTRY = struct.Struct(">qhiqiqiq")


def encode(producers: dict[int, ProducerEntry]) -> bytes:
    body = b"".join(
        _ENTRY.pack(
            entry.producer_id,
            entry.epoch,
            entry.last_sequence,
            entry.last_data_offset,
            entry.batches[-1].offset_delta if entry.batches else 0,
            entry.last_timestamp,
            entry.coordinator_epoch,
            entry.txn_first_offset,
        )
        for entry in producers.values()
    )
    count = struct.pack(">i", len(producers))
    return struct.pack(">hI", _VERSION, crc32c(count + body)) + count + body


def decode(data: bytes) -> list[ProducerEntry]:
    if len(data) < _HEAD.size:
        raise CorruptSnapshot(f"{len(data)} bytes are no producer snapshot")
    version, crc, count = _HEAD.unpack_from(data)
    if version != _VERSION or count < 0 or len(data) != _HEAD.size + count * _ENTRY.size:
        raise CorruptSnapshot(f"producer snapshot of version {version} with {count} entries in {len(data)} bytes")
    if crc != crc32c(data[_CRC_COVERS_FROM:]):
        raise CorruptSnapshot("the checksum of the producer snapshot is wrong")
    entries = []
    for fields in _ENTRY.iter_unpack(data[_HEAD.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp, coordinator_epoch, txn_first = fields
        entry = ProducerEntry(producer_id, epoch, coordinator_epoch, timestamp, txn_first, last_sequence)
        if last_offset >= 0:
            entry.batches.append(BatchMetadata(last_sequence, last_offset, delta, timestamp))
            entry.is_from_snapshot = True
        entries.append(entry)
    return entries


class Snapshots:
    """The snapshot files of one partition."""

    __slots__ = ("_disk", "_folder", "offsets")

    def __init__(self, disk: Disk, folder: str, offsets: list[int]) -> None:
        self._disk = disk
        self._folder = folder
        self.offsets = sorted(offsets)

    def moved(self, folder: str) -> None:
        self._folder = folder

    def path(self, offset: int) -> str:
        return f"{self._folder}/{offset:020d}{SUFFIX}"

    def take(self, state: ProducerState, offset: int) -> None:
        """Write the state after every record below `offset`, unless a snapshot of this very offset exists."""
        if self.offsets and self.offsets[-1] >= offset:
            return
        self._disk.write_file_atomically(self.path(offset), encode(state.producers), flush=False)
        insort(self.offsets, offset)

    def load_latest(self, state: ProducerState, log_start_offset: int, now_ms: int, expiration_ms: int) -> int:
        """Put the newest readable snapshot into `state`, or nothing. The offset from which on the log must tell."""
        while self.offsets:
            offset = self.offsets[-1]
            try:
                entries = decode(self._disk.read_file(self.path(offset)))
            except (CorruptSnapshot, FileNotFoundError):
                self.remove(offset)
            else:
                state.load(entries, now_ms, expiration_ms)
                return offset
        state.clear()
        return log_start_offset

    def remove(self, offset: int) -> None:
        self.offsets.remove(offset)
        self._disk.remove(self.path(offset))

    def forget(self, offset: int) -> bool:
        """Drop a snapshot from the list, leaving its file to the caller; whether there was one."""
        index = bisect_left(self.offsets, offset)
        if index < len(self.offsets) and self.offsets[index] == offset:
            del self.offsets[index]
            return True
        return False

    def remove_outside(self, log_start_offset: int, log_end_offset: int) -> None:
        """Remove what lies before the log or beyond its end: it describes records that are not there."""
        for offset in list(self.offsets):
            if offset > log_end_offset or offset <= log_start_offset:
                self.remove(offset)
