"""Batches whose checksum is right and whose content lies: counts, deltas, lengths, bodies that are no records.

On a plain topic, a compacted one, one that stamps the append time, two that want another codec; each lie plain and
compressed, to Moldau and to Apache Kafka. Where Kafka looks into the records so does Moldau only if the topic demands
it: nothing is done per record otherwise. What follows from that, and nothing else, may differ (docs/compatibility.md).
"""

import struct
import time
from collections.abc import Iterator
from typing import Any

import pytest

from moldau.records import Codec, compress
from moldau.records.batch import ATTRIBUTES_AT, CRC_AT, HEADER_BYTES, LAST_OFFSET_DELTA_AT
from moldau.records.checksum import crc32c
from moldau.testing import Broker
from moldau.wire import ErrorCode
from tests.broker.requests.handlers.wire_client import WireClient
from tests.interop.apache_kafka import ApacheKafka
from tests.interop.scenarios.support import batch

COUNT_AT = 57
TOPICS: dict[str, dict[str, str]] = {
    "plain": {},
    "compacted": {"cleanup_policy": "compact"},
    "append-time": {"message_timestamp_type": "LogAppendTime"},
    "gzip": {"compression_type": "gzip"},
    "uncompressed": {"compression_type": "uncompressed"},
}
_NOT_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE, ErrorCode.NOT_LEADER_OR_FOLLOWER)
CODECS = (Codec.NONE, Codec.GZIP, Codec.LZ4)


def varint(value: int) -> bytes:
    value = value << 1 ^ value >> 63
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def record(offset_delta: int, value: bytes = b"v", key: bytes | None = b"k", timestamp_delta: int = 0) -> bytes:
    body = b"\0" + varint(timestamp_delta) + varint(offset_delta)
    body += varint(-1) if key is None else varint(len(key)) + key
    body += varint(len(value)) + value + varint(0)
    return varint(len(body)) + body


def seal(data: bytearray) -> None:
    """Make the checksum right, whatever the rest says."""
    struct.pack_into(">I", data, CRC_AT, crc32c(bytes(data[ATTRIBUTES_AT:])))


def made(body: bytes, count: int, last_delta: int | None = None, codec: Codec = Codec.NONE) -> bytes:
    """A batch with this body and these numbers, its checksum right."""
    now = time.time_ns() // 1_000_000
    data = bytearray(batch([b"x"], now))[:HEADER_BYTES] + compress(codec, body)
    struct.pack_into(">i", data, 8, len(data) - 12)
    struct.pack_into(">h", data, ATTRIBUTES_AT, codec)
    struct.pack_into(">i", data, LAST_OFFSET_DELTA_AT, count - 1 if last_delta is None else last_delta)
    struct.pack_into(">i", data, COUNT_AT, count)
    seal(data)
    return bytes(data)


def lies() -> Iterator[tuple[str, bytes, int, int | None]]:
    """Label, body, count, last offset delta (None: as the count says)."""
    good = b"".join(record(delta) for delta in range(3))
    yield "true", good, 3, None
    yield "fewer counted", good, 2, None
    yield "more counted", good, 4, None
    yield "one counted", good, 1, None
    yield "a million counted", good, 1_000_000, None
    yield "last delta too large", good, 3, 7
    yield "last delta too small", good, 3, 1
    yield "nothing in it", b"", 1, None
    yield "zero counted", b"", 0, None
    yield "zero counted, delta 0", b"", 0, 0
    yield "garbage", bytes(range(200, 250)), 3, None
    yield "garbage for one", bytes(range(200, 250)), 1, None
    yield "zeros", bytes(50), 3, None
    yield "bytes behind the records", good + b"tail", 3, None
    yield "deltas all 0", record(0) * 3, 3, None
    yield "deltas in disorder", record(2) + record(0) + record(1), 3, None
    yield "deltas with a gap", record(0) + record(5) + record(9), 3, None
    yield "deltas negative", record(-1) + record(-2) + record(-3), 3, None
    yield "deltas from 1", record(1) + record(2) + record(3), 3, None
    yield "a length too long", varint(100) + good[1:], 3, None
    yield "a length too short", varint(2) + good[1:], 3, None
    yield "a length negative", varint(-5) + good[1:], 3, None
    longer_key = bytearray(record(0))
    longer_key[4] = 0x7E
    yield "a key longer than its record", bytes(longer_key) + record(1), 2, None
    yield "headers that are not there", good[:-1] + varint(9), 3, None
    yield "headers below zero", good[:-1] + varint(-9), 3, None
    yield "one keyless among others", record(0) + record(1, key=None) + record(2), 3, None


def cases() -> Iterator[tuple[Codec, str, bytes]]:
    for codec in CODECS:
        for label, body, count, last_delta in lies():
            yield codec, label, made(body, count, last_delta, codec)
        if codec is not Codec.NONE:
            broken = bytearray(made(record(0) * 20, 20, None, codec))
            broken[-8:] = b"\xff" * 8
            seal(broken)
            yield codec, "stream broken", bytes(broken)
            garbage = bytearray(made(record(0), 1))
            struct.pack_into(">h", garbage, ATTRIBUTES_AT, codec)
            seal(garbage)
            yield codec, "no stream", bytes(garbage)


def answers(bootstrap: str) -> dict[tuple[str, Codec, str], tuple[int, int, int, list[int]]]:
    """To each lie, told to a partition of its own: error code, base offset, log start offset, the records blamed."""
    found = {}
    lies_told = list(cases())
    with WireClient(bootstrap) as client:
        for topic, configs in TOPICS.items():
            name = client.new_topic(len(lies_told), f"lies-{topic}", **configs)
            for partition, (codec, label, data) in enumerate(lies_told):
                told = _tell(client, name, partition, data)
                blamed = [each.batch_index for each in told.record_errors]
                found[topic, codec, label] = (told.error_code, told.base_offset, told.log_start_offset, blamed)
    return found


def _tell(client: WireClient, topic: str, partition: int, data: bytes) -> Any:
    """A new partition takes a while to be led."""
    deadline = time.monotonic() + 30
    while True:
        told = client.produce_batch(topic, data, partition=partition)
        if told.error_code not in _NOT_YET or time.monotonic() > deadline:
            return told
        time.sleep(0.05)


INVALID, INTERNAL, CORRUPT, TAKEN = 87, -1, 2, 0
# On a plain batch only the first record's length is looked at: these lies lie deeper, and readers are told.
DEEPER = {"fewer counted", "bytes behind the records", "a key longer than its record"}
DEEPER |= {"headers that are not there", "headers below zero"}
# Kafka fails here with an internal error, or takes lengths that contradict the fields they enclose.
KAFKA_FAILS = {"garbage", "garbage for one", "stream broken", "no stream"}
DELTAS = {"deltas all 0", "deltas in disorder", "deltas with a gap", "deltas negative", "deltas from 1"}
LENGTHS = {"a length too long", "a length too short", "a length negative"}


def may_differ(topic: str, codec: Codec, label: str, moldau: int, kafka: int) -> bool:
    looks = topic == "compacted" or (topic == "gzip" and codec is not Codec.GZIP)
    looks = looks or (topic == "uncompressed" and codec is not Codec.NONE)
    if label in KAFKA_FAILS and kafka == INTERNAL and moldau in (INVALID, CORRUPT):
        return True
    if codec is not Codec.NONE and label in DELTAS and kafka == INTERNAL:
        return moldau in (TAKEN, INVALID)
    if codec is not Codec.NONE and label in LENGTHS and kafka == TAKEN:
        return moldau == INVALID
    if looks:
        return label == "deltas negative" and (moldau, kafka) == (INVALID, TAKEN)
    if codec is Codec.NONE:
        return label in DEEPER and (moldau, kafka) == (TAKEN, INVALID)
    return moldau == TAKEN and kafka in (INVALID, INTERNAL)  # compressed: nobody looked


@pytest.mark.timeout(300)
def test_lies_are_refused_as_kafka_refuses_them(apache_kafka: ApacheKafka) -> None:
    with Broker() as broker:
        ours = answers(broker.bootstrap_servers)
    theirs = answers(apache_kafka.bootstrap_servers)
    assert ours.keys() == theirs.keys()
    unexpected = {
        case: (ours[case], theirs[case])
        for case in ours
        if ours[case] != theirs[case] and not may_differ(*case, ours[case][0], theirs[case][0])
    }
    assert not unexpected, "\n".join(f"{case}: moldau {us}, kafka {them}" for case, (us, them) in unexpected.items())
