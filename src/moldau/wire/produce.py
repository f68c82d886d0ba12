"""Produce by hand: records stay a view into the frame they came in; nothing is done per record.

Batches are opaque here. A topic is named by a string up to version 12 and by its 16-byte id from 13 on.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from struct import Struct, error
from typing import NamedTuple

from moldau.wire.primitives import ONE_BYTE, MalformedFrame, encode_tags, encode_uvarint, finish_uvarint, skip_tags

_FLEXIBLE = 9
_TOPIC_IDS = 13

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_ACKS_AND_TIMEOUT = Struct(">hi")
_ACKS_TIMEOUT_AND_BYTE = Struct(">hiB")
_INDEX_AND_SIZE = Struct(">ii")
_INDEX_AND_BYTE = Struct(">iB")
_UUID_BYTES = 16
_NO_LIMIT = 1 << 62
# index, error code, base offset, log append time, log start offset; then: no record errors, no message, no tags.
_PLAIN_OUTCOME_9 = Struct(">ihqqqBBB")
_OUTCOME_9 = Struct(">ihqqq")
_ONLY_OUTCOME_9 = Struct(">ihqqqBBBBiB")  # ... the topic's tags, throttle time, the response's tags
_OUTCOME_5 = Struct(">ihqqq")
_OUTCOME_3 = Struct(">ihqq")
_LEADER = Struct(">iiB")
_THROTTLE_AND_NO_TAGS = Struct(">iB")


class ProduceFrame(NamedTuple):
    transactional_id: str | None
    acks: int
    timeout_ms: int
    # (topic name or id, [(partition, batches)])
    topics: list[tuple[str | bytes, list[tuple[int, memoryview | None]]]]


# A named tuple made without its own slow constructor: this happens for every request.
_produce_frame: partial[ProduceFrame] = partial(tuple.__new__, ProduceFrame)


class ProduceOutcome(NamedTuple):
    """What became of one partition's batches."""

    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    error_message: str | None = None
    record_errors: Sequence[tuple[int, str | None]] = ()
    current_leader: tuple[int, int] | None = None  # (leader id, leader epoch), sent with NOT_LEADER_OR_FOLLOWER


_JOINED_AT_ONCE = 10_000  # of more, joining and freeing is one long step, in which no other thread has a turn


class ManyPartitions(Exception):
    """More of them than the caller wants to wait for."""


def decode_produce_request(
    frame: memoryview, position: int, version: int, partitions_max: int = _NO_LIMIT
) -> ProduceFrame:
    """The body of a Produce request; batches are slices of `frame` and live as long as it does. ManyPartitions if there
    are more than `partitions_max`, a topic counting for one."""
    try:
        if version >= _FLEXIBLE:
            return _decode_flexible(frame, position, partitions_max, topic_ids=version >= _TOPIC_IDS)
        return _decode_plain(frame, position, partitions_max)
    except (IndexError, error):
        raise MalformedFrame(f"ProduceRequest v{version}: the frame ends too early") from None
    except UnicodeDecodeError:
        raise MalformedFrame(f"ProduceRequest v{version}: a name is not UTF-8") from None


def _beyond(what: str) -> MalformedFrame:
    return MalformedFrame(f"ProduceRequest: {what} claims to be longer than what is left of the frame")


def _decode_flexible(frame: memoryview, position: int, left: int, *, topic_ids: bool) -> ProduceFrame:
    end = len(frame)
    transactional_id = None
    size = frame[position]
    position += 1
    if size:
        if size > 127:
            size, position = finish_uvarint(frame, position, size)
        stop = position + size - 1
        if stop > end:
            raise _beyond("transactional_id")
        transactional_id = str(frame[position:stop], "utf-8")
        position = stop
    acks, timeout_ms, topic_count = _ACKS_TIMEOUT_AND_BYTE.unpack_from(frame, position)
    position += 7
    if topic_count > 127:
        topic_count, position = finish_uvarint(frame, position, topic_count)
    if topic_count > end - position + 1:
        raise _beyond("topic_data")
    if topic_count == 0:
        raise MalformedFrame("ProduceRequest: topic_data is null, which it must not be")
    topics: list[tuple[str | bytes, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count - 1):
        topic: str | bytes
        if topic_ids:
            stop = position + _UUID_BYTES
            topic = bytes(frame[position:stop])
        else:
            size = frame[position]
            position += 1
            if size > 127:
                size, position = finish_uvarint(frame, position, size)
            stop = position + size - 1
            topic = str(frame[position:stop], "utf-8") if size else ""
            if not size:
                raise MalformedFrame("ProduceRequest: a topic name is null, which it must not be")
        if stop > end:
            raise _beyond("a topic name")
        count = frame[stop]
        position = stop + 1
        if count > 127:
            count, position = finish_uvarint(frame, position, count)
        if count > end - position + 1:
            raise _beyond("partition_data")
        if count == 0:
            raise MalformedFrame("ProduceRequest: partition_data is null, which it must not be")
        left -= count
        if left < 0:
            raise ManyPartitions
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(count - 1):
            index, size = _INDEX_AND_BYTE.unpack_from(frame, position)
            position += 5
            if size > 127:
                # Three bytes reach 2 MiB: nearly every batch, without a call.
                second, third = frame[position], frame[position + 1]
                if third < 128 <= second:
                    size = size & 127 | (second & 127) << 7 | third << 14
                    position += 2
                else:
                    size, position = finish_uvarint(frame, position, size)
            if size:
                stop = position + size - 1
                if stop > end:
                    raise _beyond("records")
                partitions.append((index, frame[position:stop]))
                position = stop
            else:
                partitions.append((index, None))
            position = position + 1 if frame[position] == 0 else skip_tags(frame, position)
        topics.append((topic, partitions))
        position = position + 1 if frame[position] == 0 else skip_tags(frame, position)
    if frame[position] != 0:
        skip_tags(frame, position)
    return _produce_frame((transactional_id, acks, timeout_ms, topics))


def _decode_plain(frame: memoryview, position: int, left: int) -> ProduceFrame:
    end = len(frame)
    transactional_id, position = _plain_string(frame, position, "transactional_id")
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(frame, position)
    (topic_count,) = _INT32.unpack_from(frame, position + 6)
    position += 10
    if not 0 <= topic_count <= end - position:
        raise _beyond("topic_data")
    topics: list[tuple[str | bytes, list[tuple[int, memoryview | None]]]] = []
    for _ in range(topic_count):
        topic, position = _plain_string(frame, position, "a topic name")
        if topic is None:
            raise MalformedFrame("ProduceRequest: a topic name is null, which it must not be")
        (count,) = _INT32.unpack_from(frame, position)
        position += 4
        if not 0 <= count <= end - position:
            raise _beyond("partition_data")
        left -= count + 1
        if left < 0:
            raise ManyPartitions
        partitions: list[tuple[int, memoryview | None]] = []
        for _ in range(count):
            index, size = _INDEX_AND_SIZE.unpack_from(frame, position)
            position += 8
            if size < 0:
                partitions.append((index, None))
                continue
            stop = position + size
            if stop > end:
                raise _beyond("records")
            partitions.append((index, frame[position:stop]))
            position = stop
        topics.append((topic, partitions))
    return ProduceFrame(transactional_id, acks, timeout_ms, topics)


def _plain_string(frame: memoryview, position: int, what: str) -> tuple[str | None, int]:
    (size,) = _INT16.unpack_from(frame, position)
    position += 2
    if size < 0:
        return None, position
    stop = position + size
    if stop > len(frame):
        raise _beyond(what)
    return str(frame[position:stop], "utf-8"), stop


def _in_pieces(outcomes: Sequence[ProduceOutcome]) -> Iterator[Sequence[ProduceOutcome]]:
    for at in range(0, len(outcomes), _JOINED_AT_ONCE):
        yield outcomes[at : at + _JOINED_AT_ONCE]


def encode_produce_response(
    version: int,
    topics: Sequence[tuple[str | bytes, Sequence[ProduceOutcome]]],
    *,
    throttle_time_ms: int = 0,
    node_endpoints: Sequence[tuple[int, str, int, str | None]] = (),
) -> bytes:
    """The body of a Produce response. `node_endpoints` (id, host, port, rack) tell where the new leaders are."""
    if version < _FLEXIBLE:
        return _encode_plain(version, topics, throttle_time_ms)
    if len(topics) == 1 and not node_endpoints:
        topic, outcomes = topics[0]
        if len(outcomes) == 1:
            # One batch, and it went well: the answer a busy producer gets.
            index, code, base_offset, append_time_ms, start_offset, message, record_errors, leader = outcomes[0]
            if message is None and leader is None and not record_errors:
                head = b"\2" + topic + b"\2" if isinstance(topic, bytes) else _only_topic(topic)
                return head + _ONLY_OUTCOME_9.pack(
                    index, code, base_offset, append_time_ms, start_offset, 1, 0, 0, 0, throttle_time_ms, 0
                )
    out: list[bytes] = [_count(len(topics))]
    for topic, outcomes in topics:
        if version >= _TOPIC_IDS:
            out.append(topic)  # type: ignore[arg-type]  # ids from version 13 on
        else:
            name = topic.encode()  # type: ignore[union-attr]  # names up to version 12
            out.append(_count(len(name)) + name)
        out.append(_count(len(outcomes)))
        for some in (outcomes,) if len(outcomes) <= _JOINED_AT_ONCE else _in_pieces(outcomes):
            if len(out) > _JOINED_AT_ONCE:
                out = [b"".join(out)]
            for outcome in some:
                index, code, base_offset, append_time_ms, start_offset, message, record_errors, leader = outcome
                if message is None and leader is None and not record_errors:
                    out.append(_PLAIN_OUTCOME_9.pack(index, code, base_offset, append_time_ms, start_offset, 1, 0, 0))
                else:
                    out.append(_encode_outcome(outcome, version))
        out.append(b"\0")
    if node_endpoints and version >= 10:
        out.append(_INT32.pack(throttle_time_ms) + encode_tags({0: _encode_endpoints(node_endpoints)}))
    else:
        out.append(_THROTTLE_AND_NO_TAGS.pack(throttle_time_ms, 0))
    return b"".join(out)


@lru_cache(maxsize=1024)
def _only_topic(name: str) -> bytes:
    """What precedes the only outcome of the only topic."""
    data = name.encode()
    return b"\2" + _count(len(data)) + data + b"\2"


def _count(count: int) -> bytes:
    """A compact length."""
    return ONE_BYTE[count + 1] if count < 127 else encode_uvarint(count + 1)


def _encode_outcome(outcome: ProduceOutcome, version: int) -> bytes:
    out = bytearray(_OUTCOME_9.pack(*outcome[:5]))
    out += encode_uvarint(len(outcome.record_errors) + 1)
    for batch_index, message in outcome.record_errors:
        out += _INT32.pack(batch_index) + _compact_string(message) + b"\0"
    out += _compact_string(outcome.error_message)
    if outcome.current_leader is not None and version >= 10:
        out += encode_tags({0: _LEADER.pack(*outcome.current_leader, 0)})
    else:
        out += b"\0"
    return bytes(out)


def _compact_string(text: str | None) -> bytes:
    if text is None:
        return b"\0"
    data = text.encode()
    return encode_uvarint(len(data) + 1) + data


def _encode_endpoints(endpoints: Sequence[tuple[int, str, int, str | None]]) -> bytes:
    out = bytearray(encode_uvarint(len(endpoints) + 1))
    for node_id, host, port, rack in endpoints:
        out += _INT32.pack(node_id) + _compact_string(host) + _INT32.pack(port) + _compact_string(rack) + b"\0"
    return bytes(out)


def _encode_plain(
    version: int, topics: Sequence[tuple[str | bytes, Sequence[ProduceOutcome]]], throttle_time_ms: int
) -> bytes:
    out = bytearray(_INT32.pack(len(topics)))
    for topic, outcomes in topics:
        name = topic.encode()  # type: ignore[union-attr]  # names up to version 12
        out += _INT16.pack(len(name)) + name + _INT32.pack(len(outcomes))
        for outcome in outcomes:
            if version < 5:
                out += _OUTCOME_3.pack(*outcome[:4])
            elif version < 8:
                out += _OUTCOME_5.pack(*outcome[:5])
            else:
                out += _OUTCOME_5.pack(*outcome[:5]) + _INT32.pack(len(outcome.record_errors))
                for batch_index, message in outcome.record_errors:
                    out += _INT32.pack(batch_index) + _nullable_string(message)
                out += _nullable_string(outcome.error_message)
    out += _INT32.pack(throttle_time_ms)
    return bytes(out)


def _nullable_string(text: str | None) -> bytes:
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return _INT16.pack(len(data)) + data
