"""The sources of a cleaning and what is left of them, a chunk of batches at a time.

A batch may be as small as its one record. What every batch needs is therefore done in loops over a chunk, in few steps
for each; only what is special (compressed, of a transaction, rewritten) is looked at on its own.
"""

import struct
from collections.abc import Iterator
from typing import NamedTuple

from moldau.log.errors import CorruptRecord
from moldau.log.segment import IndexedBatch, Segment
from moldau.records import HEADER_BYTES, LOG_OVERHEAD_BYTES, CorruptBatch, check_crc, read_header
from moldau.records.batch import ATTRIBUTES_AT, MAGIC, MIN_BATCH_LENGTH
from moldau.records.checksum import crc32c

_CHUNK_BYTES = 1 << 18
_WRITE_BYTES = 1 << 20

# Of a header what a cleaning needs: base offset, length, magic, CRC, attributes, last offset delta, largest timestamp,
# record count.
BatchFields = tuple[int, int, int, int, int, int, int, int]
_read_fields = struct.Struct(">qi4xbIhi8xq14xi").unpack_from


class Chunk(NamedTuple):
    data: bytes  # begins with a batch, and may end with a part of one
    batches: list[BatchFields]  # of the whole ones
    size: int  # of these together
    record_count: int  # likewise
    attributes: int  # what is set in any of them


def read_chunks(segment: Segment, position: int, *, check_crcs: bool) -> Iterator[Chunk]:
    """Every batch of a source from a position on. A damaged one ends the cleaning."""
    size = segment.size
    want = _CHUNK_BYTES
    while position < size:
        chunk = _split(segment, position, segment.file.read(position, min(want, size - position)), check_crcs)
        if chunk.batches:
            yield chunk
            position += chunk.size
            want = _CHUNK_BYTES
            continue
        # A batch larger than a chunk: read all of it, if it is there.
        want = LOG_OVERHEAD_BYTES + _read_fields(chunk.data)[1] if len(chunk.data) >= HEADER_BYTES else 0
        if not len(chunk.data) < want <= size - position:
            raise CorruptRecord(f"{segment!r} holds no whole batch at position {position}")


def _split(segment: Segment, position: int, data: bytes, check_crcs: bool) -> Chunk:
    batches: list[BatchFields] = []
    view = memoryview(data)
    size = len(data)
    at = record_count = all_attributes = 0
    while size - at >= HEADER_BYTES:
        fields: BatchFields = _read_fields(data, at)
        _, length, magic, crc, attributes, delta, _, count = fields
        end = at + LOG_OVERHEAD_BYTES + length
        if end > size:
            break
        if (
            length < MIN_BATCH_LENGTH
            or magic != MAGIC
            or delta < 0
            or count < 0
            or (check_crcs and crc != crc32c(view[at + ATTRIBUTES_AT : end]))
        ):
            check_batch(segment, position + at, view[at:end])
        batches.append(fields)
        record_count += count
        all_attributes |= attributes
        at = end
    return Chunk(data, batches, at, record_count, all_attributes)


def check_batch(segment: Segment, position: int, batch: memoryview) -> None:
    """Raise CorruptRecord unless the batch is sound: compaction must not bless a damaged one with a new CRC."""
    try:
        check_crc(batch, 0, read_header(batch))
    except CorruptBatch as error:
        raise CorruptRecord(f"{segment!r}, position {position}: {error}") from error


class CleanOutput:
    """What is kept, on its way into a cleaned segment: written a mebibyte at a time, because many batches are small."""

    __slots__ = ("_pieces", "_segment", "batches", "size")

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._pieces: list[bytes | bytearray | memoryview] = []
        self.size = 0  # of what waits to be written
        self.batches: list[IndexedBatch] = []  # where each will be in it

    def add(self, batch: bytes | bytearray | memoryview) -> None:
        """Keep what was made of a batch."""
        header = read_header(batch)
        self.batches.append((self.size, len(batch), header.last_offset, header.max_timestamp))
        self.add_bytes(batch)

    def add_bytes(self, piece: bytes | bytearray | memoryview) -> None:
        """Keep batches that are among `batches` already."""
        self._pieces.append(piece)
        self.size += len(piece)

    def write(self, size_min: int = _WRITE_BYTES) -> int:
        """Write what waits if it is worth it; how many bytes."""
        size = self.size
        if size < size_min or not size:
            return 0
        self._segment.append_run(b"".join(self._pieces), self.batches)
        self._pieces, self.batches, self.size = [], [], 0
        return size
