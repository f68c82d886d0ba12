"""Whatever bytes arrive, decoding ends in a message or in MalformedFrame, soon and without much memory."""

import os
import random
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moldau.wire import MalformedFrame, apis, codec, decode, encode, messages
from moldau.wire import messages as m
from moldau.wire.codegen import MAX_ELEMENTS
from moldau.wire.fetch import decode_fetch_request, decode_fetch_response
from moldau.wire.headers import decode_request_header, decode_response_header, peek_api
from moldau.wire.internal import decode_metadata_record, decode_value
from moldau.wire.primitives import encode_uvarint
from moldau.wire.produce import decode_produce_request
from tests.support.random_messages import every_message_and_version, random_message

CASES = int(os.environ.get("FUZZ_CASES", "100000"))
SHARDS = 8
KNOWN = every_message_and_version()


def mutate(data: bytes, rng: random.Random) -> bytes:
    """One to three of the things that go wrong with bytes."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 3)):
        place = rng.randint(0, len(out)) if out else 0
        match rng.randrange(6):
            case 0:
                del out[place:]
            case 1:
                out[place:place] = rng.randbytes(rng.choice([1, 4, 40]))
            case 2 if out:
                out[place % len(out)] = rng.choice([0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)])
            case 3:
                out[place : place + 5] = b"\xff\xff\xff\xff\x0f"  # the largest varint
            case 4:
                out[place : place + 4] = rng.choice([b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"\x80\0\0\0"])
            case _:
                out[place : place + 11] = b"\xff" * 11  # an over-long varint
    return bytes(out)


def by_hand(name: str, version: int) -> Callable[[bytes], Any] | None:
    return {
        "ProduceRequest": lambda data: decode_produce_request(memoryview(data), 0, version),
        "FetchRequest": lambda data: decode_fetch_request(memoryview(data), 0, version),
        "FetchResponse": lambda data: decode_fetch_response(memoryview(data), 0, version),
    }.get(name)


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("shard", range(SHARDS))
def test_mutated_frames(shard: int) -> None:
    rng = random.Random(shard)
    refused = 0
    cases = CASES // SHARDS
    made = 0
    while made < cases:
        name, version = rng.choice(KNOWN)
        cls = getattr(messages, name)
        data = codec.encode(random_message(name, version, rng), version)
        for _ in range(10):
            made += 1
            bad = mutate(data, rng)
            try:
                codec.decode_request(cls, version, bad)
            except MalformedFrame:
                refused += 1
            decode_by_hand = by_hand(name, version)
            if decode_by_hand is not None:
                try:
                    decode_by_hand(bad)
                except MalformedFrame:
                    refused += 1
    assert refused > cases // 4  # the mutations do bite


@given(st.binary(max_size=200), st.sampled_from(KNOWN))
def test_arbitrary_bytes(data: bytes, which: tuple[str, int]) -> None:
    name, version = which
    try:
        codec.decode(getattr(messages, name), version, data)
    except MalformedFrame:
        return


@given(st.binary(max_size=60))
def test_arbitrary_headers_and_internal_records(data: bytes) -> None:
    for read in (
        peek_api,
        lambda each: decode_request_header(each, flexible=True),
        lambda each: decode_request_header(memoryview(each), flexible=False),
        lambda each: decode_response_header(each, header_version=1),
        decode_metadata_record,
        lambda each: decode_value(m.OffsetCommitValue, each),
        lambda each: decode_value(m.GroupMetadataValue, each),
    ):
        try:
            read(data)
        except MalformedFrame:
            continue


def peak_bytes(action: Callable[[], object]) -> int:
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("api", apis().values(), ids=lambda api: api.name)
def test_absurd_lengths_allocate_nothing(api: Any) -> None:
    """Every prefix of a real request followed by the largest lengths there are."""
    rng = random.Random(api.key)
    version = api.versions.last
    data = encode(random_message(api.name + "Request", version, rng), version)
    codec.decode_request(api.request, version, data)  # compiled outside the measurement

    def attack() -> None:
        for place in range(min(len(data), 60)):
            for length in (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\xff\xff\x03"):
                try:
                    codec.decode_request(api.request, version, data[:place] + length + data[place:])
                except MalformedFrame:
                    continue

    assert peak_bytes(attack) < 400_000


def test_a_frame_cannot_blow_up_into_countless_objects() -> None:
    count = MAX_ELEMENTS + 1
    frame = encode_uvarint(count + 1) + b"\1\1\0" * count + b"\0\0\0"
    request = m.DescribeTopicPartitionsRequest
    started = time.monotonic()
    with pytest.raises(MalformedFrame, match="more than"):
        decode(request, 0, frame)
    assert time.monotonic() - started < 5


def test_null_where_it_is_not_allowed_names_the_field() -> None:
    with pytest.raises(MalformedFrame, match=r"MetadataRequest v0|MetadataRequest\.topics is null"):
        decode(m.MetadataRequest, 0, b"\xff\xff\xff\xff")
    assert decode(m.MetadataRequest, 1, b"\xff\xff\xff\xff").topics is None


def test_trailing_bytes_are_refused_in_answers_and_ignored_in_requests() -> None:
    data = encode(m.HeartbeatRequest(group_id="g"), 4) + b"?"
    with pytest.raises(MalformedFrame, match="1 bytes too many"):
        decode(m.HeartbeatRequest, 4, data)
    assert codec.decode_request(m.HeartbeatRequest, 4, data).group_id == "g"


def test_a_string_longer_than_kafka_allows_is_refused() -> None:
    data = encode(m.SaslHandshakeRequest(mechanism="x"), 1)
    assert decode(m.SaslHandshakeRequest, 1, data).mechanism == "x"
    long = encode_uvarint(40_001) + b"x" * 40_000
    with pytest.raises(MalformedFrame):
        decode(m.DescribeClusterRequest, 0, long + b"\0")
