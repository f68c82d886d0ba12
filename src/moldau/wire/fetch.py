"""Fetch by hand: partitions as plain tuples in, small headers and file regions out.

A topic is named by a string up to version 12 and by its 16-byte id from 13 on. Records are never looked at: they are
whole buffers or regions of segment files, sent as they are.
"""

from collections.abc import Sequence
from functools import partial
from struct import Struct, error
from typing import NamedTuple

from moldau.seams.disk import FileRegion
from moldau.wire.primitives import MalformedFrame, decode_uvarint, encode_tags, encode_uvarint, skip_tags

_FLEXIBLE = 12
_TOPIC_IDS = 13
_UUID_BYTES = 16
_NO_HIGH_WATERMARK = (1 << 63) - 1

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_LIMITS = Struct(">iiib")  # max wait, min bytes, max bytes, isolation level
_SESSION = Struct(">ii")
_REPLICA_STATE = Struct(">iq")
_EPOCH_AND_OFFSET = Struct(">iqB")
_OFFSET_AND_EPOCH = Struct(">qiB")
_LEADER = Struct(">iiB")

# One partition of a request, by the first version that has it. From 12 on its last byte is the (empty) tag section.
_PARTITION_4 = Struct(">iqi")
_PARTITION_5 = Struct(">iqqi")
_PARTITION_9 = Struct(">iiqqi")
_PARTITION_12 = Struct(">iiqiqiB")
_TAG_BYTE = _PARTITION_12.size - 1
_ROWS_AT_ONCE = 5_000  # more would be one long step of the interpreter, in which no other thread has a turn
_ONE_PARTITION_TAGS = _PARTITION_12.size  # from a count of one to the tag section of that partition

# (partition, current leader epoch, fetch offset, last fetched epoch, log start offset, max bytes, tags by number or 0)
FetchPartition = tuple[int, int, int, int, int, int, "int | dict[int, bytes]"]
Topic = str | bytes
Buffer = bytes | bytearray | memoryview


class FetchFrame(NamedTuple):
    replica_id: int
    replica_epoch: int
    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: list[tuple[Topic, list[FetchPartition]]]
    forgotten: list[tuple[Topic, list[int]]]
    rack_id: str
    cluster_id: str | None


class FetchedPartition(NamedTuple):
    """One partition of a response. `records` are buffers and file regions, in order."""

    partition: int
    error_code: int
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None  # (producer id, first offset); None for read_uncommitted
    records: Sequence[Buffer | FileRegion] = ()
    preferred_read_replica: int = -1
    diverging_epoch: tuple[int, int] | None = None  # (epoch, end offset)
    current_leader: tuple[int, int] | None = None  # (leader id, leader epoch)
    snapshot_id: tuple[int, int] | None = None  # (end offset, epoch)


_as_fetched: partial[FetchedPartition] = partial(tuple.__new__, FetchedPartition)  # from all its fields


class FetchedFrame(NamedTuple):
    """A whole response, as a client sees it."""

    throttle_time_ms: int
    error_code: int
    session_id: int
    topics: list[tuple[Topic, list[FetchedPartition]]]
    node_endpoints: Sequence[tuple[int, str, int, str | None]] = ()  # (node, host, port, rack) of leaders elsewhere


# --- requests --------------------------------------------------------------------------------------------------------


_ONE_BYTE_MAX = 127  # what a length of one byte can say at most


class _Reader:
    """Reads the parts of a frame that are not per partition."""

    __slots__ = ("end", "flexible", "frame", "position")

    def __init__(self, frame: bytes | memoryview, position: int, *, flexible: bool) -> None:
        self.frame = frame
        self.position = position
        self.end = len(frame)
        self.flexible = flexible

    def take(self, layout: Struct) -> tuple[int, ...]:
        values = layout.unpack_from(self.frame, self.position)
        self.position += layout.size
        return values

    def count(self, what: str, smallest: int, *, nullable: bool = False) -> int:
        """The length of an array, checked against what is left; -1 for null where that is allowed."""
        if self.flexible:
            size = self.frame[self.position] - 1
            if size < _ONE_BYTE_MAX:
                self.position += 1
            else:
                size, self.position = decode_uvarint(self.frame, self.position)
                size -= 1
        else:
            (size,) = self.take(_INT32)
        if size < 0 and not nullable:
            raise MalformedFrame(f"{what} is null, which it must not be")
        if size * smallest > self.end - self.position:
            raise MalformedFrame(f"{what} claims to be longer than what is left of the frame")
        return max(size, -1)

    def string(self, what: str) -> str | None:
        if self.flexible:
            size, self.position = decode_uvarint(self.frame, self.position)
            size -= 1
        else:
            (size,) = self.take(_INT16)
        if size < 0:
            return None
        start, stop = self.position, self.position + size
        if stop > self.end:
            raise MalformedFrame(f"{what} claims to be longer than what is left of the frame")
        self.position = stop
        return str(self.frame[start:stop], "utf-8")

    def topic(self, *, topic_ids: bool) -> Topic:
        if topic_ids:
            start, self.position = self.position, self.position + _UUID_BYTES
            if self.position > self.end:
                raise MalformedFrame("a topic id claims to be longer than what is left of the frame")
            return bytes(self.frame[start : self.position])
        name = self.string("a topic name")
        if name is None:
            raise MalformedFrame("a topic name is null, which it must not be")
        return name

    def tags(self) -> dict[int, bytes]:
        if self.frame[self.position] == 0:
            self.position += 1
            return {}
        count, position = decode_uvarint(self.frame, self.position)
        found: dict[int, bytes] = {}
        for _ in range(count):
            tag, position = decode_uvarint(self.frame, position)
            size, position = decode_uvarint(self.frame, position)
            if position + size > self.end:
                raise MalformedFrame("a tagged field claims to be longer than what is left of the frame")
            found[tag] = bytes(self.frame[position : position + size])
            position += size
        self.position = position
        return found

    def skip_tags(self) -> None:
        if self.flexible:
            position = self.position
            self.position = position + 1 if self.frame[position] == 0 else skip_tags(self.frame, position)

    def finish(self, what: str) -> None:
        if self.position != self.end:
            raise MalformedFrame(f"{what}: {self.end - self.position} bytes too many")


def decode_fetch_request(frame: bytes | memoryview, position: int, version: int) -> FetchFrame:
    """The body of a Fetch request."""
    try:
        # Small, and quicker to slice as bytes.
        data = frame if isinstance(frame, bytes) else bytes(frame)
        return _decode_request(_Reader(data, position, flexible=version >= _FLEXIBLE), version)
    except (IndexError, error):
        raise MalformedFrame(f"FetchRequest v{version}: the frame ends too early") from None
    except UnicodeDecodeError:
        raise MalformedFrame(f"FetchRequest v{version}: a name is not UTF-8") from None
    except MalformedFrame as malformed:
        raise MalformedFrame(f"FetchRequest v{version}: {malformed}") from None


def _decode_request(reader: _Reader, version: int) -> FetchFrame:
    replica_id, replica_epoch = -1, -1
    if version < 15:
        (replica_id,) = reader.take(_INT32)
    max_wait_ms, min_bytes, max_bytes, isolation_level = reader.take(_LIMITS)
    session_id, session_epoch = reader.take(_SESSION) if version >= 7 else (0, -1)
    topic_ids = version >= _TOPIC_IDS
    topics: list[tuple[Topic, list[FetchPartition]]] = []
    count = reader.count("topics", 3)
    if topic_ids:
        topics = _topics_by_id(reader, count)
    else:
        for _ in range(count):
            topic = reader.topic(topic_ids=False)
            topics.append((topic, _partitions(reader, version)))
            reader.skip_tags()
    forgotten: list[tuple[Topic, list[int]]] = []
    if version >= 7:
        for _ in range(reader.count("forgotten_topics_data", 3)):
            topic = reader.topic(topic_ids=topic_ids)
            count = reader.count("partitions", 4)
            forgotten.append((topic, list(reader.take(Struct(f">{count}i")))))
            reader.skip_tags()
    rack_id = (reader.string("rack_id") or "") if version >= 11 else ""
    cluster_id = None
    if version >= _FLEXIBLE:
        tags = reader.tags()
        if 0 in tags:
            inner = _Reader(tags[0], 0, flexible=True)
            cluster_id = inner.string("cluster_id")
            inner.finish("cluster_id")
        if version >= 15 and 1 in tags:
            inner = _Reader(tags[1], 0, flexible=True)
            replica_id, replica_epoch = inner.take(_REPLICA_STATE)
            inner.skip_tags()
            inner.finish("replica_state")
    return FetchFrame(
        replica_id,
        replica_epoch,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        rack_id,
        cluster_id,
    )


def _topics_by_id(reader: _Reader, count: int) -> list[tuple[Topic, list[FetchPartition]]]:
    """What consumers send: each topic an id, few partitions, and no tagged fields anywhere."""
    frame = reader.frame
    position = reader.position
    topics: list[tuple[Topic, list[FetchPartition]]] = []
    for _ in range(count):
        stop = position + _UUID_BYTES
        if frame[stop] == 2 and frame[stop + _ONE_PARTITION_TAGS] == 0 == frame[stop + _ONE_PARTITION_TAGS + 1]:
            topics.append((frame[position:stop], [_PARTITION_12.unpack_from(frame, stop + 1)]))  # type: ignore[arg-type]  # bytes, see above
            position = stop + _ONE_PARTITION_TAGS + 2
            continue
        reader.position = position
        topic = reader.topic(topic_ids=True)
        topics.append((topic, _partitions(reader, _TOPIC_IDS)))
        reader.skip_tags()
        position = reader.position
    reader.position = position
    return topics


def _partitions(reader: _Reader, version: int) -> list[FetchPartition]:
    if version >= _FLEXIBLE:
        count = reader.count("partitions", _PARTITION_12.size)
        start = reader.position
        stop = start + count * _PARTITION_12.size
        rows = reader.frame[start:stop]
        # Without tagged fields, which is nearly always, the partitions are an array of fixed-size rows.
        if bytes(rows[_TAG_BYTE :: _PARTITION_12.size]) == bytes(count):
            reader.position = stop
            if count <= _ROWS_AT_ONCE:
                return list(_PARTITION_12.iter_unpack(rows))
            partitions: list[FetchPartition] = []
            for at in range(0, len(rows), _ROWS_AT_ONCE * _PARTITION_12.size):
                partitions += _PARTITION_12.iter_unpack(rows[at : at + _ROWS_AT_ONCE * _PARTITION_12.size])
            return partitions
        return [_tagged_partition(reader) for _ in range(count)]
    if version >= 9:
        count = reader.count("partitions", _PARTITION_9.size)
        rows = reader.frame[reader.position : reader.position + count * _PARTITION_9.size]
        reader.position += len(rows)
        return [
            (index, epoch, offset, -1, log_start, max_bytes, 0)
            for index, epoch, offset, log_start, max_bytes in _PARTITION_9.iter_unpack(rows)
        ]
    if version >= 5:
        count = reader.count("partitions", _PARTITION_5.size)
        rows = reader.frame[reader.position : reader.position + count * _PARTITION_5.size]
        reader.position += len(rows)
        return [
            (index, -1, offset, -1, log_start, max_bytes, 0)
            for index, offset, log_start, max_bytes in _PARTITION_5.iter_unpack(rows)
        ]
    count = reader.count("partitions", _PARTITION_4.size)
    rows = reader.frame[reader.position : reader.position + count * _PARTITION_4.size]
    reader.position += len(rows)
    return [(index, -1, offset, -1, -1, max_bytes, 0) for index, offset, max_bytes in _PARTITION_4.iter_unpack(rows)]


def _tagged_partition(reader: _Reader) -> FetchPartition:
    index, epoch, offset, last_epoch, log_start, max_bytes, _ = reader.take(_PARTITION_12)
    reader.position -= 1
    return index, epoch, offset, last_epoch, log_start, max_bytes, reader.tags() or 0


def high_watermark_of(tags: "int | dict[int, bytes]") -> int:
    """The follower's high watermark (version 18), or the largest offset when it did not say."""
    if isinstance(tags, dict) and len(data := tags.get(1, b"")) == 8:
        return int(_INT64.unpack(data)[0])
    return _NO_HIGH_WATERMARK


# --- responses -------------------------------------------------------------------------------------------------------


def encode_fetch_response(
    version: int,
    topics: Sequence[tuple[Topic, Sequence[FetchedPartition]]],
    *,
    error_code: int = 0,
    session_id: int = 0,
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[tuple[int, str, int, str | None]] = (),
) -> list[Buffer | FileRegion]:
    """The body of a Fetch response: headers coalesced, records as they came."""
    flexible = version >= _FLEXIBLE
    out: list[Buffer | FileRegion] = []
    head = bytearray(_INT32.pack(throttle_time_ms))
    if version >= 7:
        head += _INT16.pack(error_code) + _INT32.pack(session_id)
    head += _count(len(topics), flexible=flexible)
    for topic, partitions in topics:
        if version >= _TOPIC_IDS:
            head += topic  # type: ignore[arg-type]  # ids from version 13 on
        else:
            name = topic.encode()  # type: ignore[union-attr]  # names up to version 12
            head += (encode_uvarint(len(name) + 1) if flexible else _INT16.pack(len(name))) + name
        head += _count(len(partitions), flexible=flexible)
        for partition in partitions:
            _encode_partition_head(head, partition, version)
            if partition.records:
                out.append(head)
                out += partition.records
                head = bytearray()
            if flexible:
                head += _partition_tags(partition)
        if flexible:
            head += b"\0"
    if flexible:
        tags = {0: _endpoints(node_endpoints)} if node_endpoints and version >= 16 else {}
        head += encode_tags(tags)
    if head:
        out.append(head)
    return out


def records_size(records: Sequence[Buffer | FileRegion]) -> int:
    return sum(each.length if isinstance(each, FileRegion) else len(each) for each in records)


def _count(count: int, *, flexible: bool) -> bytes:
    return encode_uvarint(count + 1) if flexible else _INT32.pack(count)


_HEAD_4 = Struct(">ihqq")
_HEAD_5 = Struct(">ihqqq")
_NO_ABORTED_12 = Struct(">ihqqqBi")  # ... null aborted list, preferred replica


def _encode_partition_head(head: bytearray, partition: FetchedPartition, version: int) -> None:
    """Everything of a partition before its records, including their size."""
    size = records_size(partition.records)
    aborted = partition.aborted
    if version >= _FLEXIBLE:
        if aborted is None:
            head += _NO_ABORTED_12.pack(*partition[:5], 0, partition.preferred_read_replica)
        else:
            head += _HEAD_5.pack(*partition[:5]) + encode_uvarint(len(aborted) + 1)
            for producer_id, first_offset in aborted:
                head += _INT64.pack(producer_id) + _INT64.pack(first_offset) + b"\0"
            head += _INT32.pack(partition.preferred_read_replica)
        head += encode_uvarint(size + 1)
        return
    head += _HEAD_5.pack(*partition[:5]) if version >= 5 else _HEAD_4.pack(*partition[:4])
    head += _INT32.pack(-1 if aborted is None else len(aborted))
    for producer_id, first_offset in aborted or ():
        head += _INT64.pack(producer_id) + _INT64.pack(first_offset)
    if version >= 11:
        head += _INT32.pack(partition.preferred_read_replica)
    head += _INT32.pack(size)


def _partition_tags(partition: FetchedPartition) -> bytes:
    if partition.diverging_epoch is None and partition.current_leader is None and partition.snapshot_id is None:
        return b"\0"
    tags = {}
    if partition.diverging_epoch is not None:
        tags[0] = _EPOCH_AND_OFFSET.pack(*partition.diverging_epoch, 0)
    if partition.current_leader is not None:
        tags[1] = _LEADER.pack(*partition.current_leader, 0)
    if partition.snapshot_id is not None:
        tags[2] = _OFFSET_AND_EPOCH.pack(*partition.snapshot_id, 0)
    return encode_tags(tags)


def _endpoints(endpoints: Sequence[tuple[int, str, int, str | None]]) -> bytes:
    out = bytearray(encode_uvarint(len(endpoints) + 1))
    for node_id, host, port, rack in endpoints:
        name = host.encode()
        out += _INT32.pack(node_id) + encode_uvarint(len(name) + 1) + name + _INT32.pack(port)
        shelf = None if rack is None else rack.encode()
        out += (b"\0" if shelf is None else encode_uvarint(len(shelf) + 1) + shelf) + b"\0"
    return bytes(out)


def decode_fetch_response(frame: memoryview, position: int, version: int) -> FetchedFrame:
    """The body of a Fetch response; records are slices of `frame`."""
    try:
        return _decode_response(_Reader(frame, position, flexible=version >= _FLEXIBLE), frame, version)
    except (IndexError, error):
        raise MalformedFrame(f"FetchResponse v{version}: the frame ends too early") from None
    except UnicodeDecodeError:
        raise MalformedFrame(f"FetchResponse v{version}: a name is not UTF-8") from None
    except MalformedFrame as malformed:
        raise MalformedFrame(f"FetchResponse v{version}: {malformed}") from None


def _decode_response(reader: _Reader, frame: memoryview, version: int) -> FetchedFrame:
    (throttle_time_ms,) = reader.take(_INT32)
    error_code = session_id = 0
    if version >= 7:
        (error_code,) = reader.take(_INT16)
        (session_id,) = reader.take(_INT32)
    topics: list[tuple[Topic, list[FetchedPartition]]] = []
    for _ in range(reader.count("responses", 3)):
        topic = reader.topic(topic_ids=version >= _TOPIC_IDS)
        count = reader.count("partitions", 18)
        topics.append((topic, [_decode_partition(reader, frame, version) for _ in range(count)]))
        reader.skip_tags()
    endpoints: list[tuple[int, str, int, str | None]] = []
    if version >= _FLEXIBLE and (tags := reader.tags()) and 0 in tags:
        endpoints = _decode_endpoints(tags[0])
    reader.finish("the frame")
    return FetchedFrame(throttle_time_ms, error_code, session_id, topics, endpoints)


def _decode_endpoints(data: bytes) -> list[tuple[int, str, int, str | None]]:
    reader = _Reader(data, 0, flexible=True)
    endpoints = []
    for _ in range(reader.count("node_endpoints", 11)):
        (node_id,) = reader.take(_INT32)
        host = reader.string("a host")
        if host is None:
            raise MalformedFrame("a host is null, which it must not be")
        (port,) = reader.take(_INT32)
        rack = reader.string("a rack")
        reader.skip_tags()
        endpoints.append((node_id, host, port, rack))
    reader.finish("node_endpoints")
    return endpoints


def _decode_partition(reader: _Reader, frame: memoryview, version: int) -> FetchedPartition:
    if version >= _FLEXIBLE:
        # Nearly always nothing was aborted, and there are no tagged fields: a row of fixed size, and the records.
        head = _NO_ABORTED_12.unpack_from(frame, reader.position)
        if head[5] <= 1:
            size, position = decode_uvarint(frame, reader.position + _NO_ABORTED_12.size)
            end = position + max(size - 1, 0)
            if end < reader.end and frame[end] == 0:
                reader.position = end + 1
                found: Sequence[Buffer | FileRegion] = [frame[position:end]] if end > position else []
                return _as_fetched((*head[:5], [] if head[5] else None, found, head[6], None, None, None))
    index, error_code, high_watermark, last_stable_offset = reader.take(_HEAD_4)
    log_start_offset = reader.take(_INT64)[0] if version >= 5 else -1
    aborted = None
    count = reader.count("aborted_transactions", 16, nullable=True)
    if count >= 0:
        aborted = []
        for _ in range(count):
            (producer_id,) = reader.take(_INT64)
            (first_offset,) = reader.take(_INT64)
            reader.skip_tags()
            aborted.append((producer_id, first_offset))
    preferred = reader.take(_INT32)[0] if version >= 11 else -1
    size = reader.count("records", 1, nullable=True)
    records: list[Buffer | FileRegion] = []
    if size > 0:
        records.append(frame[reader.position : reader.position + size])
        reader.position += size
    diverging = leader = snapshot = None
    if version >= _FLEXIBLE and (tags := reader.tags()):
        diverging = _small_struct(tags.get(0), _EPOCH_AND_OFFSET)
        leader = _small_struct(tags.get(1), _LEADER)
        snapshot = _small_struct(tags.get(2), _OFFSET_AND_EPOCH)
    return FetchedPartition(
        index,
        error_code,
        high_watermark,
        last_stable_offset,
        log_start_offset,
        aborted,
        records,
        preferred,
        diverging,
        leader,
        snapshot,
    )


def _small_struct(data: bytes | None, layout: Struct) -> tuple[int, int] | None:
    """A tagged struct of two numbers and its own (empty, or ignored) tag section."""
    if data is None:
        return None
    first, second, _ = layout.unpack_from(data)
    if skip_tags(data, layout.size - 1) != len(data):
        raise MalformedFrame("a tagged struct does not fill its tag")
    return first, second
