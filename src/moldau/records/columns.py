"""A whole fetch as columns, with numpy: no Python object per record.

Finding where each record starts takes a short Python loop, because each length is known only after the one before;
everything else is done for all records of all batches at once. The result points into one buffer: keys and
values are (start, length) pairs, and `moldau.records.arrow` turns those into Arrow arrays without touching records.

Invariant: the columns hold exactly what `iter_records` gives for the batches a reader may see, and bytes it would
refuse are refused here too. One exception: headers that are not asked for are not looked at.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import repeat

import numpy as np
from numpy.typing import NDArray

from moldau.records.batch import (
    CODEC_MASK,
    HEADER_BYTES,
    LOG_APPEND_TIME_FLAG,
    BatchHeader,
    Buffer,
)
from moldau.records.codecs import DEFAULT_MAX_DECOMPRESSED_BYTES, Arena, Codec, decompress_at
from moldau.records.errors import CorruptBatch
from moldau.records.fetched import iter_fetched
from moldau.records.varint import HIGH_BITS, LOW_BITS, read_length, read_varint

Int64s = NDArray[np.int64]
UInt8s = NDArray[np.uint8]
Data = bytes | bytearray

# Length, attributes, two deltas, two lengths, header count: a lying record count must not fill the memory.
_MIN_RECORD_BYTES = 7
# Most bytes a varint may have, and the largest value of the last of them.
_INT32_LIMITS = (5, 0x0F)
_INT64_LIMITS = (10, 0x01)


@dataclass(slots=True, frozen=True)
class BinaryColumn:
    """Byte strings inside `Columns.data`, in growing order of position; a length of -1 means null."""

    starts: Int64s
    lengths: Int64s


@dataclass(slots=True, frozen=True)
class HeaderColumns:
    """Headers of all records in one row: those of record i are [offsets[i], offsets[i + 1])."""

    offsets: Int64s
    names: BinaryColumn
    values: BinaryColumn


@dataclass(slots=True, frozen=True)
class Columns:
    """Records of one fetch. `next_offset` is where to fetch next: it counts hidden batches too."""

    data: Data
    offsets: Int64s
    timestamps: Int64s
    timestamp_types: NDArray[np.int8]  # 0: create time, 1: log append time
    keys: BinaryColumn
    values: BinaryColumn
    headers: HeaderColumns | None
    next_offset: int

    def __len__(self) -> int:
        return len(self.offsets)


def read_columns(
    buffer: Buffer,
    fetch_offset: int = 0,
    *,
    until_offset: int | None = None,
    aborted: Iterable[tuple[int, int]] = (),
    with_headers: bool = False,
    check_crcs: bool = True,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
) -> Columns:
    """Every record a consumer may see from `fetch_offset` up to (not including) `until_offset`.

    `aborted` is the response's list of (producer id, first offset). `max_bytes` bounds all expanded batches together.
    """
    chunks = iter_columns(
        buffer,
        fetch_offset,
        until_offset=until_offset,
        aborted=aborted,
        with_headers=with_headers,
        check_crcs=check_crcs,
        max_bytes=max_bytes,
        chunk_bytes=None,
    )
    return next(chunks)


def iter_columns(
    buffer: Buffer,
    fetch_offset: int = 0,
    *,
    until_offset: int | None = None,
    aborted: Iterable[tuple[int, int]] = (),
    with_headers: bool = False,
    check_crcs: bool = True,
    max_bytes: int = DEFAULT_MAX_DECOMPRESSED_BYTES,
    chunk_bytes: int | None = 16 << 20,
    arena: Arena | None = None,
) -> Iterator[Columns]:
    """The same in pieces of about `chunk_bytes` of expanded records, at least one, so that memory stays bounded.

    `max_bytes` then bounds each expanded batch; without `chunk_bytes` it bounds all of them together. Given an `arena`
    to expand into, a piece is good only until the next one is asked for.
    """
    batches: list[BatchHeader] = []
    bodies: list[tuple[int, int]] = []  # from, to: in the buffer, or in the arena
    view = memoryview(buffer)
    next_offset = fetch_offset
    held_bytes = 0
    expanded = _Expanded(arena)
    for position, header, visible in iter_fetched(view, fetch_offset, aborted, check_crcs=check_crcs):
        if until_offset is not None and header.base_offset >= until_offset:
            next_offset = until_offset  # whatever lies between was compacted away, or hidden
            break
        if chunk_bytes is not None and held_bytes >= chunk_bytes:
            data, bodies = expanded.finish(view, bodies)
            yield _columns_of(data, batches, bodies, next_offset, fetch_offset, until_offset, with_headers=with_headers)
            batches, bodies, held_bytes = [], [], 0
            expanded = _Expanded(arena)
        next_offset = header.next_offset
        if not visible or not header.record_count:
            continue
        begin, end = position + HEADER_BYTES, position + header.size_bytes
        if header.attributes & CODEC_MASK or expanded.is_used:
            bodies = expanded.move(view, bodies)
            left = max_bytes if chunk_bytes is not None else max_bytes - held_bytes
            body = expanded.add(header.codec, view[begin:end], left)
        else:
            body = (begin, end)
        held_bytes += body[1] - body[0] if chunk_bytes is not None or header.attributes & CODEC_MASK else 0
        batches.append(header)
        bodies.append(body)
    data, bodies = expanded.finish(view, bodies)
    yield _columns_of(data, batches, bodies, next_offset, fetch_offset, until_offset, with_headers=with_headers)


class _Expanded:
    """Where the bodies of a piece lie: in the fetched bytes themselves until one of them is compressed, then here."""

    __slots__ = ("_arena", "_end", "is_used")

    def __init__(self, arena: Arena | None) -> None:
        self._arena = arena or Arena()
        self._end = 0
        self.is_used = False

    def add(self, codec: Codec, body: memoryview, max_bytes: int) -> tuple[int, int]:
        begin = self._end
        # What is not compressed came in one frame with the rest: its size needs no limit.
        self._end = decompress_at(codec, body, self._arena, begin, max_bytes if codec else len(body))
        return begin, self._end

    def move(self, view: memoryview, bodies: list[tuple[int, int]]) -> list[tuple[int, int]]:
        """Take along the bodies before the first compressed one."""
        if self.is_used:
            return bodies
        self.is_used = True
        return [self.add(Codec.NONE, view[begin:end], end - begin) for begin, end in bodies]

    def finish(self, view: memoryview, bodies: list[tuple[int, int]]) -> tuple[Data, list[tuple[int, int]]]:
        """The bytes that the bodies are positions of. Indexing a memoryview is slow, so it is what lies below it."""
        if self.is_used:
            return self._arena.data, bodies
        below = view.obj
        if not isinstance(below, bytes | bytearray) or not len(view):
            return bytes(view), bodies
        base = np.frombuffer(view, np.uint8).ctypes.data - np.frombuffer(below, np.uint8).ctypes.data
        return below, [(begin + base, end + base) for begin, end in bodies] if base else bodies


def _columns_of(
    data: Data,
    batches: list[BatchHeader],
    bodies: list[tuple[int, int]],
    next_offset: int,
    fetch_offset: int,
    until_offset: int | None,
    *,
    with_headers: bool,
) -> Columns:
    if until_offset is not None:
        next_offset = min(next_offset, until_offset)
    try:
        starts, ends = _find_records(data, batches, bodies)
    except IndexError:
        raise CorruptBatch("a record reaches beyond its batch, or has a negative length") from None
    columns = _read_fields(data, starts, ends, batches, next_offset, with_headers=with_headers)
    return _within(columns, fetch_offset, until_offset)


def _find_records(data: Data, batches: list[BatchHeader], bodies: list[tuple[int, int]]) -> tuple[Int64s, Int64s]:
    """Where each record starts and ends. The sum of the lengths must lead exactly to the end of each batch."""
    low_bits, high_bits = LOW_BITS, HIGH_BITS
    starts: list[int] = []
    add = starts.append
    for header, (begin, end) in zip(batches, bodies, strict=True):
        if header.record_count * _MIN_RECORD_BYTES > end - begin:
            raise CorruptBatch(f"{end - begin} bytes cannot hold {header.record_count} records")
        position = begin
        for _ in repeat(None, header.record_count):
            add(position)
            byte = data[position]
            if byte < 0x80:
                position += 1 + low_bits[byte]
            elif (second := data[position + 1]) < 0x80:
                position += 2 + low_bits[byte] + high_bits[second]
            else:
                length, position = read_length(data, position)
                position += length
        if position != end:
            raise CorruptBatch(f"the {header.record_count} records of a batch do not fill it")
    found = np.fromiter(starts, np.int64, len(starts))
    ends = np.empty_like(found)
    ends[:-1] = found[1:]
    counts = np.array([header.record_count for header in batches], np.int64)
    ends[np.cumsum(counts) - 1] = [end for _, end in bodies]
    return found, ends


def _read_varints(data: UInt8s, positions: Int64s, limits: tuple[int, int]) -> tuple[Int64s, Int64s]:
    """A varint from every position: (values, positions behind them)."""
    most_bytes, largest_last = limits
    first = data[positions]
    raw = (first & 0x7F).astype(np.uint64)
    positions = positions + 1
    rest = np.flatnonzero(first & 0x80)
    for index in range(1, most_bytes):
        if not len(rest):
            break
        more = data[positions[rest]]
        raw[rest] |= (more & 0x7F).astype(np.uint64) << np.uint64(7 * index)
        positions[rest] += 1
        if index == most_bytes - 1 and (more > largest_last).any():
            raise CorruptBatch(f"a varint is longer than {most_bytes} bytes")
        rest = rest[more >= 0x80]
    return (raw >> np.uint64(1)).view(np.int64) ^ -(raw & np.uint64(1)).view(np.int64), positions


def _read_fields(
    data: Data, starts: Int64s, ends: Int64s, batches: list[BatchHeader], next_offset: int, *, with_headers: bool
) -> Columns:
    source = np.frombuffer(data, np.uint8)
    counts = np.array([header.record_count for header in batches], np.int64)
    try:
        _, positions = _read_varints(source, starts, _INT32_LIMITS)
        timestamps, positions = _read_varints(source, positions + 1, _INT64_LIMITS)  # behind the unused attributes
        offsets, positions = _read_varints(source, positions, _INT32_LIMITS)
        key_lengths, key_starts = _read_varints(source, positions, _INT32_LIMITS)
        value_lengths, value_starts = _read_varints(source, key_starts + np.maximum(key_lengths, 0), _INT32_LIMITS)
        positions = value_starts + np.maximum(value_lengths, 0)
        header_counts, positions = _read_varints(source, positions, _INT32_LIMITS)
    except IndexError:
        raise CorruptBatch("a field reaches beyond its record") from None
    if (
        (positions > ends).any()
        or ((header_counts == 0) & (positions != ends)).any()
        or (header_counts < 0).any()
        or (offsets < 0).any()
    ):
        raise CorruptBatch("the fields of a record do not fill its declared length")

    append_time = np.array([bool(header.attributes & LOG_APPEND_TIME_FLAG) for header in batches], np.bool_)
    offsets += np.repeat(np.array([header.base_offset for header in batches], np.int64), counts)
    timestamps += np.repeat(np.array([header.base_timestamp for header in batches], np.int64), counts)
    if append_time.any():
        stamped = np.repeat(append_time, counts)
        batch_times = np.repeat(np.array([header.max_timestamp for header in batches], np.int64), counts)
        timestamps[stamped] = batch_times[stamped]
    return Columns(
        data=data,
        offsets=offsets,
        timestamps=timestamps,
        timestamp_types=np.repeat(append_time.astype(np.int8), counts),
        keys=BinaryColumn(key_starts, np.maximum(key_lengths, -1)),
        values=BinaryColumn(value_starts, np.maximum(value_lengths, -1)),
        headers=_read_headers(data, positions, ends, header_counts) if with_headers else None,
        next_offset=next_offset,
    )


def _read_headers(data: Data, positions: Int64s, ends: Int64s, counts: Int64s) -> HeaderColumns:
    """Headers take a Python loop: records have few or none, and each header's place depends on the one before."""
    names: list[tuple[int, int]] = []
    values: list[tuple[int, int]] = []
    try:
        for record in np.flatnonzero(counts).tolist():
            position = int(positions[record])
            for _ in repeat(None, int(counts[record])):
                length, position = read_length(data, position)
                names.append((position, length))
                length, position = read_varint(data, position + length)
                values.append((position, max(length, -1)))
                position += max(length, 0)
            if position != ends[record]:
                raise CorruptBatch("the headers of a record do not fill its declared length")
    except IndexError:
        raise CorruptBatch("a header reaches beyond its batch") from None
    return HeaderColumns(np.append(0, np.cumsum(counts)), _binary_column(names), _binary_column(values))


def _binary_column(fields: list[tuple[int, int]]) -> BinaryColumn:
    table = np.array(fields, np.int64).reshape(-1, 2)
    return BinaryColumn(table[:, 0].copy(), table[:, 1].copy())


def _within(columns: Columns, fetch_offset: int, until_offset: int | None) -> Columns:
    """Leave out what lies before the offset that was asked for: brokers send whole batches."""
    wanted = columns.offsets >= fetch_offset
    if until_offset is not None:
        wanted &= columns.offsets < until_offset
    if wanted.all():
        return columns
    headers = columns.headers
    if headers is not None:
        counts = np.diff(headers.offsets)
        kept = np.repeat(wanted, counts)
        headers = HeaderColumns(
            np.append(0, np.cumsum(counts[wanted])), _select(headers.names, kept), _select(headers.values, kept)
        )
    return Columns(
        data=columns.data,
        offsets=columns.offsets[wanted],
        timestamps=columns.timestamps[wanted],
        timestamp_types=columns.timestamp_types[wanted],
        keys=_select(columns.keys, wanted),
        values=_select(columns.values, wanted),
        headers=headers,
        next_offset=columns.next_offset,
    )


def _select(column: BinaryColumn, wanted: NDArray[np.bool_]) -> BinaryColumn:
    return BinaryColumn(column.starts[wanted], column.lengths[wanted])
