"""The short way into a log: for a batch that is whole, its producer's next, and fits where the one before went.

Nearly every batch of a producer is such a one. It goes in here, in as few steps as Python allows, for they cost as much
as the write itself. The limits were noted by the last careful append (`Segment.open_short_way`), which looked at the
settings, the clock, the time to roll and the room in the indexes.

What closes it, `Segment.close_short_way`, is whatever those limits depend on. The log says so: other settings, another
leader epoch, a failure. The segment says so: its files are released, sealed, truncated or renamed, or an index is used
up. A batch that finds the way closed, or has anything unusual, is not written here.
"""

import struct

from moldau.log.producers.producer_state import ProducerEntry, ProducerState
from moldau.log.segment import Segment
from moldau.log.validation import LAST_CODEC
from moldau.records.batch import (
    COVERED_BY_CRC,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    RECORD_BYTES_MIN,
    may_hold,
    pack_place,
)
from moldau.records.checksum import crc32c

NOT_TAKEN = -1
# A header without what an append does not look at. Attributes, delta and count are read without a sign, for one
# comparison each to do: what is negative comes out far too large. Last, the two bytes the first record begins with.
_read_plain = struct.Struct(">qi4xbIHI8xqqhiIH").unpack_from
# Sizes of a batch with one record whose length takes one byte or two.
_SIZE_OF_ONE_MIN = HEADER_BYTES + RECORD_BYTES_MIN
_SIZE_OF_ONE_END = HEADER_BYTES + 2 + (1 << 13)


def append_on_short_way(
    segment: Segment, producers: ProducerState, buffer: bytearray | memoryview, base_offset: int, leader_epoch: int
) -> int:
    """Stamp and write the one batch in `buffer`, and note it: its last offset. NOT_TAKEN, and nothing happened, if it
    must be looked at closely. OSError leaves the segment unchanged."""
    try:
        zero, length, magic, crc, attributes, delta, timestamp, producer_id, epoch, sequence, count, first = (
            _read_plain(buffer)
        )
    except struct.error:
        return NOT_TAKEN
    size = len(buffer)
    position = segment.size
    end = position + size
    last_offset: int = base_offset + delta
    file = segment.open_file
    largest = segment.largest
    entry: ProducerEntry | None = None
    if (
        zero
        or magic != MAGIC
        or attributes > LAST_CODEC  # hence neither of a transaction, nor control, nor LogAppendTime
        or length != size - LOG_OVERHEAD_BYTES
        or delta != count - 1
        or size > segment.batch_bytes_max
        or end > segment.bytes_max
        or last_offset > segment.offset_max
        or timestamp > segment.timestamp_max
        or leader_epoch != segment.leader_epoch
        or file is None
        or largest is None
        or (
            not attributes
            # A record that is alone fills its batch: its length, in one byte or two. Of others, `may_hold` knows.
            and (
                count != 1
                or not _SIZE_OF_ONE_MIN <= size < _SIZE_OF_ONE_END
                or (
                    first >> 8 != 2 * size - 124
                    if size < 126
                    else first != 0x8000 | (size + 1 & 63) << 9 | size - 63 >> 6
                )
            )
            and not may_hold(buffer, size, count)
        )
        or (producer_id >= 0 and (entry := producers.in_sequence(producer_id, epoch, sequence)) is None)
        or crc != crc32c(buffer[COVERED_BY_CRC])
    ):
        return NOT_TAKEN
    pack_place(buffer, 0, base_offset, length, leader_epoch)
    file.append(buffer)
    segment.size = end
    segment.recently_used = True
    if timestamp > largest[0]:
        segment.largest = (timestamp, last_offset)
    if position > segment.index_after:
        segment.add_index_entries(position, last_offset)
    if entry is not None:
        entry.add(sequence, last_offset, delta, timestamp)
    return last_offset
