"""Offsets by time: the time index names a batch, the batch names the record."""

from collections.abc import Sequence
from typing import NamedTuple

from moldau.log.errors import CorruptRecord
from moldau.log.segment import BatchPlace, Segment
from moldau.records import BatchHeader, RecordsError, iter_records


class FoundOffset(NamedTuple):
    timestamp: int
    offset: int
    leader_epoch: int  # -1 if unknown


def find_by_timestamp(segments: Sequence[Segment], timestamp: int, from_offset: int) -> FoundOffset | None:
    """The first record at or after `from_offset` whose timestamp is at least the given one."""
    for segment in segments:
        if not segment.size or segment.max_timestamp.timestamp < timestamp:
            continue
        for place, header in segment.find_timestamp(timestamp, from_offset):
            found = _first_record(segment, place, header, timestamp, from_offset)
            if found is not None:
                return found
    return None


def find_max_timestamp(segments: Sequence[Segment]) -> FoundOffset | None:
    """The first record with the largest timestamp of all."""
    youngest = max(segments, key=lambda segment: segment.max_timestamp.timestamp)
    known = youngest.max_timestamp
    place = youngest.find(known.offset) if known.timestamp >= 0 else None
    if place is None:
        return None
    header = youngest.header_at(place.position)
    return _first_record(youngest, place, header, known.timestamp, header.base_offset)


def _first_record(
    segment: Segment, place: BatchPlace, header: BatchHeader, timestamp: int, from_offset: int
) -> FoundOffset | None:
    batch = segment.file.read(place.position, place.size)
    try:
        for record in iter_records(batch, 0, header):
            if record.timestamp >= timestamp and record.offset >= from_offset:
                return FoundOffset(record.timestamp, record.offset, header.leader_epoch)
    except RecordsError as error:
        raise CorruptRecord(f"{segment!r}, position {place.position}: {error}") from error
    return None
