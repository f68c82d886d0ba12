"""One segment: a `.log` file of record batches and the indexes that make it searchable.

The log file is the truth; the indexes only save reading it, so they are checked whenever they are used and rebuilt
from the log when they lie. Offsets in a segment lie in [base_offset, base_offset + 2^31), batches are whole and in
offset order. Appends go to the end; nothing else ever writes into a log file.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from moldau.log.config import LogConfig
from moldau.log.errors import CorruptIndex, CorruptRecord
from moldau.log.index.offset_index import ENTRY_BYTES as OFFSET_ENTRY_BYTES
from moldau.log.index.offset_index import MAX_RELATIVE_OFFSET, OffsetIndex, pack_entry
from moldau.log.index.time_index import ENTRY_BYTES as TIME_ENTRY_BYTES
from moldau.log.index.time_index import NO_TIMESTAMP, TimeIndex, TimestampOffset
from moldau.log.index.txn_index import TxnIndex
from moldau.log.open_segments import OpenSegments
from moldau.records import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchHeader, CorruptBatch, read_header
from moldau.seams import Disk, DiskFile

LOG_SUFFIX = ".log"
INDEX_SUFFIX = ".index"
TIME_INDEX_SUFFIX = ".timeindex"
TXN_INDEX_SUFFIX = ".txnindex"
SUFFIXES = (LOG_SUFFIX, INDEX_SUFFIX, TIME_INDEX_SUFFIX, TXN_INDEX_SUFFIX)

_SCAN_BYTES = 8192
_STREAM_BYTES = 1 << 20
_MIN_LENGTH = HEADER_BYTES - LOG_OVERHEAD_BYTES
# Of a header only what a search needs: base offset, length, magic, last offset delta.
_read_place = struct.Struct(">qi4xb6xi").unpack_from


class BatchPlace(NamedTuple):
    """Where a batch is."""

    position: int
    size: int
    base_offset: int


# Position, size, last offset and largest timestamp of a batch: what the indexes need to know.
IndexedBatch = tuple[int, int, int, int]


def segment_name(base_offset: int) -> str:
    return f"{base_offset:020d}"


class Segment:
    __slots__ = (
        "_disk",
        "_open_segments",
        "base_offset",
        "batch_bytes_max",
        "bytes_max",
        "created_ms",
        "first_timestamp",
        "folder",
        "index_after",
        "index_end",
        "index_full",
        "index_interval_bytes",
        "indexed_timestamp",
        "largest",
        "leader_epoch",
        "offset_index",
        "offset_max",
        "offsets",
        "open_file",
        "recently_used",
        "roll_jitter_ms",
        "size",
        "suffix",
        "time_index",
        "timestamp_max",
        "txn_index",
    )

    def __init__(
        self,
        disk: Disk,
        open_segments: OpenSegments,
        folder: str,
        base_offset: int,
        config: LogConfig,
        *,
        created_ms: int,
        suffix: str = "",
        size: int = 0,
        index_bytes: int = 0,
        time_index_bytes: int = 0,
        has_txn_index: bool = False,
        roll_jitter_ms: int = 0,
    ) -> None:
        """Describe a segment; sizes are those found on disk. No file is touched until it is needed."""
        self._disk = disk
        self._open_segments = open_segments
        self.open_file: DiskFile | None = None
        # The largest timestamp and the last offset of its batch, if known. A plain pair: a producer's clock goes on, so
        # nearly every batch makes a new one.
        self.largest: tuple[int, int] | None = (NO_TIMESTAMP, base_offset) if not size else None
        self.indexed_timestamp: tuple[int, int] | None = None  # the one that needs no other entry in the time index
        self.index_interval_bytes = config.index_interval_bytes
        self.index_after = size + config.index_interval_bytes  # a batch beyond this position gets an index entry
        self.index_end = 0  # up to how many entries both indexes surely have room, as they are mapped now
        self.first_timestamp: int | None = None
        self.folder = folder
        self.suffix = suffix
        self.base_offset = base_offset
        self.offset_max = base_offset + MAX_RELATIVE_OFFSET
        self.batch_bytes_max = -1  # see `open_short_way`, as for the next three
        self.bytes_max = 0
        self.timestamp_max = NO_TIMESTAMP
        self.leader_epoch = -1
        self.created_ms = created_ms
        self.roll_jitter_ms = roll_jitter_ms
        self.size = size
        self.recently_used = False
        limit = config.segment_index_bytes
        self.offset_index = OffsetIndex(
            disk, self.path(INDEX_SUFFIX), base_offset, limit, index_bytes // OFFSET_ENTRY_BYTES
        )
        self.offsets = self.offset_index.file
        self.time_index = TimeIndex(
            disk, self.path(TIME_INDEX_SUFFIX), base_offset, limit, time_index_bytes // TIME_ENTRY_BYTES
        )
        self.txn_index = TxnIndex(disk, self.path(TXN_INDEX_SUFFIX), base_offset, exists=has_txn_index)
        self.index_full = False

    def path(self, kind: str) -> str:
        return f"{self.folder}/{self.base_offset:020d}{kind}{self.suffix}"

    def __repr__(self) -> str:
        return f"Segment({self.path(LOG_SUFFIX)}, size={self.size})"

    # -- the file

    @property
    def file(self) -> DiskFile:
        """The open log file. Opening may close another segment's, never one that somebody still reads from."""
        self.recently_used = True
        return self.open_file or self._open()

    def _open(self) -> DiskFile:
        # What should have records and does not exist was deleted, or lost: it must not come into being empty.
        file = self._disk.open(self.path(LOG_SUFFIX), create=not self.size)
        if file.size < self.size:
            raise CorruptRecord(f"{self.path(LOG_SUFFIX)} shrank from {self.size} to {file.size} bytes")
        self._open_segments.opened(self)
        self.open_file = file
        return file

    def create_file(self) -> None:
        """Make sure there is a log file, however empty."""
        _ = self.file

    def private_copy(self, open_segments: OpenSegments) -> "Segment":
        """The same segment with handles of its own, for another thread to read; it must not change anything."""
        copy = Segment(
            self._disk,
            open_segments,
            self.folder,
            self.base_offset,
            LogConfig(index_interval_bytes=self.index_interval_bytes),
            created_ms=self.created_ms,
            size=self.size,
        )
        copy.offset_index.file.count = self.offset_index.file.count
        copy.time_index.file.count = self.time_index.file.count
        return copy

    def cleaned_copy(self, open_segments: OpenSegments, config: LogConfig, suffix: str) -> "Segment":
        """An empty segment of the same base offset, for the cleaner to fill."""
        return Segment(
            self._disk,
            open_segments,
            self.folder,
            self.base_offset,
            config,
            created_ms=self.created_ms,
            suffix=suffix,
        )

    def join(self, open_segments: OpenSegments) -> None:
        """Become part of a log: from now on its bound on open files counts."""
        self.close_files()
        self._open_segments = open_segments

    def release(self) -> None:
        """Give up descriptors and mappings, keeping everything known: the next use opens them again."""
        self.close_short_way()
        self.open_file = None  # not closed: a region on its way to a socket may hold it
        self.offset_index.file.release()
        self.time_index.file.release()
        self.txn_index.release()

    def close_files(self) -> None:
        """Release for good."""
        self._open_segments.closed(self)
        self.release()

    def seal(self) -> None:
        """Bring the files into the shape of a segment at rest: the largest timestamp indexed, no reserve."""
        if self.size:
            self.time_index.maybe_append(*self.max_timestamp)
        self.close_short_way()
        self.offset_index.file.trim()
        self.time_index.file.trim()

    # -- append

    def would_overflow(self, last_offset: int) -> bool:
        return last_offset > self.offset_max

    def open_short_way(self, config: LogConfig, leader_epoch: int, now_ms: int) -> None:
        """Note within which limits batches of this leader may follow one that was just appended without another look at
        the settings, the clock, the time to roll and the room in the indexes. Holds until `close_short_way`; meanwhile
        files are open.

        (A batch is too new for the clock if it is `after.max` ahead; a clock goes on, so what was not too new for an
        earlier moment is not for a later one.)"""
        first = self.first_timestamp
        if first is not None and first >= 0 and not self.index_full:
            self.batch_bytes_max = config.plain_bytes_max
            has_index_room = self.offsets.count < self.index_end
            self.bytes_max = config.segment_bytes if has_index_room else min(config.segment_bytes, self.index_after)
            roll_ms = first + config.max_segment_ms - self.roll_jitter_ms
            self.timestamp_max = min(roll_ms, now_ms + config.message_timestamp_after_max_ms)
            self.leader_epoch = leader_epoch

    def close_short_way(self) -> None:
        """Let the next batch be looked at closely, and count the room in the indexes anew."""
        self.batch_bytes_max = -1
        self.index_end = 0

    def append(self, buffer: bytes | bytearray | memoryview, size: int, last_offset: int, max_timestamp: int) -> None:
        """Write one batch of `size` bytes at the end. OSError leaves the segment unchanged."""
        position = self.size
        largest = self.largest or self.max_timestamp  # found out before there is another batch in the file
        is_indexed = position > self.index_after
        if is_indexed and self.offsets.count >= self.index_end:
            self._make_index_room()  # before the records: a full disk must refuse the batch, not lose its index entry
        self.file.append(buffer)
        self.size = position + size
        if not position:
            self.first_timestamp = max_timestamp
        self.largest = (max_timestamp, last_offset) if max_timestamp > largest[0] else largest
        if is_indexed:
            self.add_index_entries(position, last_offset)

    def add_index_entries(self, position: int, last_offset: int) -> None:
        """For the batch just written at `position`; there is room (`index_end`)."""
        self.index_after = position + self.index_interval_bytes
        offsets, largest = self.offsets, self.largest
        pack_entry(offsets.mapped_view, offsets.count * OFFSET_ENTRY_BYTES, last_offset - self.base_offset, position)
        offsets.count += 1
        if largest is not None and largest is not self.indexed_timestamp:
            self.time_index.maybe_append(largest[0], largest[1])
            self.indexed_timestamp = largest
        if offsets.count == self.index_end:
            self.check_index_full()

    def _make_index_room(self) -> None:
        """Let both indexes have space on the disk for another entry, and count how many more they have it for."""
        offsets, times = self.offset_index.file, self.time_index.file
        offsets.reserve()
        times.reserve()
        room = min(offsets.capacity - offsets.count, times.capacity - times.count)
        # It ends at the latest where an index may be full.
        room = max(1, min(room, offsets.max_entries - offsets.count, times.max_entries - 1 - times.count))
        self.index_end = offsets.count + room

    def check_index_full(self) -> None:
        """To be called when room that was made in the indexes is used up."""
        self.index_full = self.offset_index.is_full or self.time_index.is_full
        self.close_short_way()

    def append_run(self, buffer: bytes | bytearray | memoryview, batches: Sequence[IndexedBatch]) -> None:
        """Write several batches at once; positions are those in the buffer."""
        self.largest = self.largest or self.max_timestamp  # before there are other batches in the file
        entries = len(buffer) // max(1, self.index_interval_bytes) + 2
        self.offset_index.file.reserve(entries)
        self.time_index.file.reserve(entries)
        position = self.size
        self.file.append(buffer)
        if not position:
            self.first_timestamp = batches[0][3]
        self.size = position + len(buffer)
        self.index_batches(batches, position)
        self.check_index_full()

    @property
    def max_timestamp(self) -> TimestampOffset:
        """The largest timestamp and the last offset of the batch that has it."""
        known = self.largest
        if known is None:
            known = self.largest = self._read_max_timestamp()
        return TimestampOffset(*known)

    def _read_max_timestamp(self) -> tuple[int, int]:
        """The last entry of the time index, if nothing after it is younger: an index may have lost its end."""
        last = self.time_index.last
        place = self.find(last.offset) if last.timestamp >= 0 else None
        if place is not None and self.header_at(place.position).max_timestamp == last.timestamp:
            later = (header.max_timestamp for _, header in self.headers(place.position))
            if max(later) == last.timestamp:
                return last
        if self.size:
            self.rebuild_indexes()
        return self.largest or (NO_TIMESTAMP, self.base_offset)

    @property
    def largest_timestamp(self) -> int:
        """For retention: of the records, or of the file if they carry none or are damaged, which must not keep them
        for ever."""
        try:
            timestamp = self.max_timestamp.timestamp
        except CorruptRecord:
            timestamp = NO_TIMESTAMP
        return timestamp if timestamp >= 0 else self._disk.modified_ms(self.path(LOG_SUFFIX))

    def read_first_timestamp(self) -> int:
        """The largest timestamp of the first batch: what rolling by time counts from. Kept in `first_timestamp`."""
        timestamp = self.first_timestamp
        if timestamp is None:
            timestamp = self.first_timestamp = self.header_at(0).max_timestamp if self.size else NO_TIMESTAMP
        return timestamp

    # -- search

    def find(self, offset: int) -> BatchPlace | None:
        """The first batch that ends at or after `offset`; None if the segment ends before it."""
        lower, upper = self.offset_index.bounds(offset)
        if upper - lower > _SCAN_BYTES:
            # Large batches, each indexed: the upper bound is most likely the very one, and saves reading another.
            place = self._place_at(upper, offset)
            if place is not None:
                return place
        try:
            return self._scan(offset, lower)
        except CorruptIndex:
            self.rebuild_indexes()
            return self._scan(offset, self.offset_index.lookup(offset))

    def _place_at(self, position: int, offset: int) -> BatchPlace | None:
        """The batch at `position`, if one is there and holds `offset`."""
        if self.size - position < HEADER_BYTES:
            return None
        base_offset, length, magic, delta = _read_place(self.file.read(position, HEADER_BYTES))
        size = LOG_OVERHEAD_BYTES + length
        if magic == 2 and base_offset <= offset <= base_offset + delta and HEADER_BYTES <= size <= self.size - position:
            return BatchPlace(position, size, base_offset)
        return None

    def _scan(self, offset: int, start: int) -> BatchPlace | None:
        size = self.size
        if start and size - start < HEADER_BYTES:
            raise CorruptIndex(f"{self.path(INDEX_SUFFIX)} leads to position {start}, beyond the last batch")
        position = start
        file = self.file
        while size - position >= HEADER_BYTES:
            chunk = file.read(position, min(_SCAN_BYTES, size - position))
            at = 0
            end = len(chunk) - HEADER_BYTES
            while at <= end:
                base_offset, length, magic, delta = _read_place(chunk, at)
                if position + at == start:
                    self._check_start(start, offset, base_offset, length, magic)
                if length < _MIN_LENGTH or delta < 0:
                    raise CorruptRecord(f"{self.path(LOG_SUFFIX)} holds no batch at position {position + at}")
                if base_offset + delta >= offset:
                    if LOG_OVERHEAD_BYTES + length > size - position - at:
                        raise self._leads_out(position + at)
                    return BatchPlace(position + at, LOG_OVERHEAD_BYTES + length, base_offset)
                at += LOG_OVERHEAD_BYTES + length
            position += at
        if position > size:
            raise self._leads_out(position)
        return None

    def _leads_out(self, position: int) -> CorruptRecord:
        """A length that leads out of the file is damage; what follows such a batch must not be passed over."""
        return CorruptRecord(
            f"{self.path(LOG_SUFFIX)}: a batch at or before position {position} is longer than the file"
        )

    def _check_start(self, position: int, offset: int, base_offset: int, length: int, magic: int) -> None:
        """Whether the index led to a batch, and not past the one looked for."""
        honest = (
            magic == 2
            and length >= _MIN_LENGTH
            and position + LOG_OVERHEAD_BYTES + length <= self.size
            and self.base_offset <= base_offset
            and (position == 0 or base_offset <= offset)
        )
        if honest:
            return
        if position == 0:
            raise CorruptRecord(f"{self.path(LOG_SUFFIX)} does not begin with a batch")
        raise CorruptIndex(f"{self.path(INDEX_SUFFIX)} leads to position {position}, where no batch begins")

    def _time_entry_holds(self, entry: TimestampOffset) -> bool:
        """Whether the batch a time index entry names is there and is of that age."""
        place = self.find(entry.offset)
        if place is None:
            return False
        return self.header_at(place.position).max_timestamp == entry.timestamp

    def header_at(self, position: int) -> BatchHeader:
        try:
            return read_header(self.file.read(position, HEADER_BYTES))
        except CorruptBatch as error:
            raise CorruptRecord(f"{self.path(LOG_SUFFIX)}, position {position}: {error}") from error

    def find_timestamp(self, timestamp: int, from_offset: int) -> Iterator[tuple[BatchPlace, BatchHeader]]:
        """Batches at or after `from_offset` that hold a record of at least this age, in order."""
        entry = self.time_index.lookup(timestamp)
        if entry.timestamp >= 0 and not self._time_entry_holds(entry):
            self.rebuild_indexes()
            entry = self.time_index.lookup(timestamp)
        place = self.find(max(entry.offset, from_offset))
        if place is None:
            return
        for position, header in self.headers(place.position):
            if header.max_timestamp >= timestamp:
                yield BatchPlace(position, header.size_bytes, header.base_offset), header

    def headers(self, position: int = 0) -> Iterator[tuple[int, BatchHeader]]:
        """Every batch header from a position on, reading as little of the records as possible."""
        size = self.size
        while size - position >= HEADER_BYTES:
            chunk = self.file.read(position, min(_SCAN_BYTES, size - position))
            at = 0
            while len(chunk) - at >= HEADER_BYTES:
                try:
                    header = read_header(chunk, at)
                except CorruptBatch as error:
                    raise CorruptRecord(f"{self.path(LOG_SUFFIX)}, position {position + at}: {error}") from error
                if header.size_bytes > size - position - at:
                    raise self._leads_out(position + at)
                yield position + at, header
                at += header.size_bytes
            position += at

    def batches(self, position: int = 0) -> Iterator[tuple[int, BatchHeader, memoryview]]:
        """Every whole batch from a position on, with its bytes. Ends silently where no whole batch follows."""
        size = self.size
        file = self.file
        want = _STREAM_BYTES
        while size - position >= HEADER_BYTES:
            chunk = memoryview(file.read(position, min(want, size - position)))
            at = 0
            while len(chunk) - at >= HEADER_BYTES:
                try:
                    header = read_header(chunk, at)
                except CorruptBatch:
                    return
                if len(chunk) - at < header.size_bytes:
                    break
                yield position + at, header, chunk[at : at + header.size_bytes]
                at += header.size_bytes
            if at == 0:
                header_size = read_header(chunk).size_bytes
                if header_size > size - position:
                    return
                want = header_size
            else:
                want = _STREAM_BYTES
            position += at

    def next_offset(self) -> int:
        """One past the last offset in the file."""
        last = self.base_offset - 1
        count = self.offset_index.file.count
        place = self.find(self.offset_index.entry(count - 1)[0]) if count else None
        for _, header in self.headers(place.position if place else 0):
            last = header.last_offset
        return last + 1

    # -- repair and change

    def rebuild_indexes(self) -> None:
        """Write the offset and time index anew from the batch headers."""
        self.reset_indexes()
        self.index_batches(self._batches_to_index())
        self.seal()

    def _batches_to_index(self) -> Iterator[IndexedBatch]:
        """Offsets are not covered by the CRC: those that cannot be are damage, too."""
        last_offset = self.base_offset - 1
        for position, header in self.headers():
            if not last_offset < header.base_offset <= header.last_offset <= self.offset_max:
                raise CorruptRecord(
                    f"{self.path(LOG_SUFFIX)}, position {position}: {header.base_offset} is no offset here"
                )
            last_offset = header.last_offset
            yield position, header.size_bytes, last_offset, header.max_timestamp

    def reset_indexes(self) -> None:
        self.offset_index.file.truncate(0)
        self.time_index.reset()
        self.indexed_timestamp = None
        self.index_after = self.index_interval_bytes
        self.largest = (NO_TIMESTAMP, self.base_offset)

    def index_batches(self, batches: Iterable[IndexedBatch], start: int = 0) -> None:
        """Index batches that are in the file from `start` on, as if they had just been appended. They may be small and
        many, so what is counted is kept in locals between entries."""
        offsets, times = self.offset_index, self.time_index
        largest, offset_of_largest = self.largest or self.max_timestamp
        after, interval = self.index_after, self.index_interval_bytes
        for position, _, last_offset, timestamp in batches:
            if timestamp > largest:
                largest, offset_of_largest = timestamp, last_offset
            if start + position > after and not (offsets.is_full or times.is_full):
                offsets.append(last_offset, start + position)
                times.maybe_append(largest, offset_of_largest)
                after = start + position + interval
        self.largest = (largest, offset_of_largest)
        self.index_after = after

    def truncate_to(self, offset: int) -> None:
        """Remove every batch that ends at or after `offset`."""
        self.close_short_way()
        place = self.find(offset)
        if place is not None:
            self.truncate_bytes(place.position)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.txn_index.truncate_to(offset)
        self.indexed_timestamp = None
        self.largest = None if self.size else (NO_TIMESTAMP, self.base_offset)
        if self.size:
            # The truncation may have taken the batch with the largest timestamp: look at what the index does not cover.
            last = self.time_index.last
            known = TimestampOffset(NO_TIMESTAMP, self.base_offset) if last.timestamp < 0 else last
            place = self.find(known.offset)
            for _, header in self.headers(place.position if place else 0):
                if header.max_timestamp > known.timestamp:
                    known = TimestampOffset(header.max_timestamp, header.last_offset)
            self.largest = known
        else:
            self.first_timestamp = None
        self.index_after = self.size + self.index_interval_bytes

    def truncate_bytes(self, size: int) -> None:
        self.file.truncate(size)
        self.size = size

    def flush(self) -> None:
        """fsync all files of the segment. Touches nothing but the disk, so any thread may call it."""
        for kind in SUFFIXES:
            self._disk.flush_file(self.path(kind))

    def rename(self, suffix: str, *, log_first: bool = False) -> None:
        """Change the suffix of all files, the log file last (or first), for its name tells recovery what the others
        are."""
        former = {kind: self.path(kind) for kind in (SUFFIXES if log_first else SUFFIXES[::-1])}
        self.suffix = suffix
        for kind, path in former.items():
            if self._disk.exists(path):
                self._disk.rename(path, self.path(kind))
        self._moved()

    def discard(self, suffix: str) -> None:
        """Rename all files out of the way and let go of them, the log file first: without it the others are orphans."""
        former = {kind: self.path(kind) for kind in SUFFIXES}
        self.suffix = suffix
        for kind, path in former.items():
            if self._disk.exists(path):
                self._disk.rename(path, self.path(kind))
        self.close_files()
        self._moved()

    def moved(self, folder: str) -> None:
        self.folder = folder
        self._moved()

    def _moved(self) -> None:
        self.close_short_way()
        self.offset_index.file.moved(self.path(INDEX_SUFFIX))
        self.time_index.file.moved(self.path(TIME_INDEX_SUFFIX))
        self.txn_index.moved(self.path(TXN_INDEX_SUFFIX))

    def remove_files(self) -> None:
        for kind in SUFFIXES:
            self._disk.remove(self.path(kind))
