"""Files of partitions, read as they lie on disk by somebody who is not the broker: batches, indexes, checkpoints.

Nothing is changed here, so a running node's files can be looked at too; of a batch that is just being written, the end
may be missing.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from moldau.records.batch import HEADER_BYTES, BatchHeader, check_crc, read_header
from moldau.records.errors import RecordsError
from moldau.records.reader import Record, iter_records

_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")
_TXN_ENTRY = struct.Struct(">hqqqq")
_LENGTH_BYTES = 12
_BATCH_BYTES_MAX = 1 << 31


class Problem(NamedTuple):
    file: str
    position: int | None
    offset: int | None
    what: str


class Batch(NamedTuple):
    position: int
    header: BatchHeader
    data: bytes


class Torn(Exception):
    """No whole, true batch is at this position."""

    def __init__(self, position: int, what: str) -> None:
        super().__init__(what)
        self.position = position


def base_offset(file: Path) -> int:
    return int(file.name.partition(".")[0].partition("-")[0])


def segments(folder: Path) -> list[Path]:
    return sorted(each for each in folder.glob("*.log") if each.stem.isdecimal())


def batches(file: Path) -> Iterator[Batch]:
    """All batches of a segment; Torn where there is none any more."""
    size = file.stat().st_size
    position = 0
    with file.open("rb") as opened:
        while position < size:
            head = opened.read(_LENGTH_BYTES)
            length = int.from_bytes(head[8:12], "big", signed=True) if len(head) == _LENGTH_BYTES else -1
            whole = _LENGTH_BYTES + length
            if not HEADER_BYTES <= whole <= _BATCH_BYTES_MAX:
                raise Torn(position, f"no batch begins here: it would have {whole} bytes")
            data = head + opened.read(length)
            if len(data) < whole:
                raise Torn(position, f"a batch of {whole} bytes is cut off after {len(data)}")
            try:
                header = read_header(data)
            except RecordsError as error:
                raise Torn(position, str(error)) from error
            yield Batch(position, header, data)
            position += whole


def records(batch: Batch) -> Iterator[Record]:
    return iter_records(batch.data, 0, batch.header)


def offset_entries(file: Path) -> list[tuple[int, int]]:
    """Offset and position; what was reserved and not used is zero and left out."""
    base = base_offset(file)
    found = [(base + offset, position) for offset, position in _entries(file, _OFFSET_ENTRY)]
    return _used(found, lambda each: each[1] == 0)


def time_entries(file: Path) -> list[tuple[int, int]]:
    """Timestamp and offset."""
    base = base_offset(file)
    found = [(timestamp, base + offset) for timestamp, offset in _entries(file, _TIME_ENTRY)]
    return _used(found, lambda each: each[0] == 0)


def aborted_entries(file: Path) -> list[dict[str, int]]:
    names = ("version", "producer_id", "first_offset", "last_offset", "last_stable_offset")
    return [dict(zip(names, each, strict=True)) for each in _entries(file, _TXN_ENTRY)]


def _entries(file: Path, entry: struct.Struct) -> list[tuple[Any, ...]]:
    data = file.read_bytes()
    return list(entry.iter_unpack(data[: len(data) - len(data) % entry.size]))


def _used(found: list[Any], is_blank: Any) -> list[Any]:
    """Without the reserve at the end; the first entry may look like it."""
    end = len(found)
    while end > 1 and is_blank(found[end - 1]):
        end -= 1
    return found[:end] if not (end == 1 and is_blank(found[0])) else []


def verify_folder(folder: Path, *, deep: bool = True) -> tuple[list[Problem], int, int]:
    """What is wrong with a partition's files, and how many batches and bytes were looked at."""
    problems: list[Problem] = []
    count = size = 0
    expected = -1
    for file in segments(folder):
        positions: dict[int, tuple[int, int]] = {}  # of each batch: where, and its last offset
        first, largest = base_offset(file), -1
        if first < expected:
            problems.append(Problem(str(file), None, first, f"begins at {first}, before the end of the one before it"))
        try:
            for batch in batches(file):
                header = batch.header
                count += 1
                size += len(batch.data)
                positions[batch.position] = (header.base_offset, header.last_offset)
                largest = max(largest, header.max_timestamp)
                problems += [
                    Problem(str(file), batch.position, header.base_offset, what)
                    for what in _wrong(batch, max(first, expected), deep=deep)
                ]
                expected = header.next_offset
        except Torn as error:
            problems.append(Problem(str(file), error.position, max(first, expected), str(error)))
        problems += _wrong_indexes(file, positions)
    return problems, count, size


def _wrong(batch: Batch, least: int, *, deep: bool) -> Iterator[str]:
    header = batch.header
    if header.base_offset < least:
        yield f"begins at offset {header.base_offset}, and {least} is the least it could be"
    try:
        check_crc(batch.data, 0, header)
    except RecordsError as error:
        yield str(error)
        return
    if deep and header.record_count:
        try:
            last = -1
            for record in records(batch):
                if not max(header.base_offset, last + 1) <= record.offset <= header.last_offset:
                    yield f"its record {record.offset} is out of order"
                    return
                last = record.offset
        except RecordsError as error:
            yield str(error)


def _wrong_indexes(file: Path, positions: dict[int, tuple[int, int]]) -> Iterator[Problem]:
    """An entry that leads astray. What an index lacks is no trouble: it is sparse."""
    index, times = file.with_suffix(".index"), file.with_suffix(".timeindex")
    last = -1
    if index.exists():
        for offset, position in offset_entries(index):
            place = positions.get(position)
            if place is None or not place[0] <= offset <= place[1]:
                yield Problem(str(index), position, offset, "leads to a place where no batch of that offset begins")
            elif offset <= last:
                yield Problem(str(index), position, offset, "does not grow")
            last = offset
    if times.exists():
        before = (-1, -1)
        for entry in time_entries(times):
            if entry[0] < before[0] or entry[1] < before[1]:
                yield Problem(str(times), None, entry[1], "does not grow")
            before = entry


def partition_folders(place: Path) -> list[Path]:
    """The folder itself if it is a partition's, else those in it."""
    from moldau.log.dirs.folders import parse_folder

    if segments(place):
        return [place]
    return sorted(each for each in place.iterdir() if each.is_dir() and parse_folder(each.name) and segments(each))
