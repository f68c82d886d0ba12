"""Produce and Fetch are written twice, by hand and in the table: in every version both must agree."""

import random
from typing import Any, cast

import pytest

from moldau.seams import FileRegion
from moldau.wire import ZERO_UUID, MalformedFrame, decode, encode, fetch, produce
from moldau.wire import messages as m
from moldau.wire.fetch import (
    FetchedPartition,
    decode_fetch_request,
    decode_fetch_response,
    encode_fetch_response,
    high_watermark_of,
)
from moldau.wire.produce import ProduceOutcome, decode_produce_request, encode_produce_response
from tests.support.random_messages import random_message

PRODUCE = range(m.ProduceRequest.first_version, m.ProduceRequest.last_version + 1)
FETCH = range(m.FetchRequest.first_version, m.FetchRequest.last_version + 1)


def many(name: str, version: int) -> list[Any]:
    rng = random.Random(f"{name} {version}")
    return [random_message(name, version, rng) for _ in range(40)]


@pytest.mark.parametrize("version", PRODUCE)
def test_produce_request(version: int) -> None:
    for request in many("ProduceRequest", version):
        prefix = b"header"
        by_hand = decode_produce_request(memoryview(prefix + encode(request, version)), len(prefix), version)
        assert by_hand.transactional_id == request.transactional_id
        assert (by_hand.acks, by_hand.timeout_ms) == (request.acks, request.timeout_ms)
        expected = [
            (
                topic.topic_id if version >= 13 else topic.name,
                [(each.index, each.records) for each in topic.partition_data],
            )
            for topic in request.topic_data
        ]
        assert [
            (topic, [(index, None if records is None else bytes(records)) for index, records in partitions])
            for topic, partitions in by_hand.topics
        ] == expected


@pytest.mark.parametrize("version", PRODUCE)
def test_produce_response(version: int) -> None:
    for response in many("ProduceResponse", version):
        topics = [
            (
                topic.topic_id if version >= 13 else topic.name,
                [
                    ProduceOutcome(
                        each.index,
                        each.error_code,
                        each.base_offset,
                        each.log_append_time_ms,
                        each.log_start_offset,
                        each.error_message,
                        [(record.batch_index, record.batch_index_error_message) for record in each.record_errors],
                        leader(each.current_leader),
                    )
                    for each in topic.partition_responses
                ],
            )
            for topic in response.responses
        ]
        endpoints = [(each.node_id, each.host, each.port, each.rack) for each in response.node_endpoints]
        data = encode_produce_response(
            version, topics, throttle_time_ms=response.throttle_time_ms, node_endpoints=endpoints
        )
        assert data == encode(response, version)


def leader(struct: Any) -> tuple[int, int] | None:
    pair = (struct.leader_id, struct.leader_epoch)
    return None if pair == (-1, -1) else pair


@pytest.mark.parametrize("version", FETCH)
@pytest.mark.parametrize("as_view", [False, True])
def test_fetch_request(version: int, as_view: bool) -> None:
    for request in many("FetchRequest", version):
        data = b"xx" + encode(request, version)
        by_hand = decode_fetch_request(memoryview(data) if as_view else data, 2, version)
        for name in (
            "max_wait_ms",
            "min_bytes",
            "max_bytes",
            "isolation_level",
            "session_id",
            "session_epoch",
            "rack_id",
        ):
            assert getattr(by_hand, name) == getattr(request, name), name
        assert by_hand.cluster_id == request.cluster_id
        replica = request.replica_state if version >= 15 else request
        assert by_hand.replica_id == replica.replica_id
        assert by_hand.topics == [
            (topic.topic_id if version >= 13 else topic.topic, [partition(each) for each in topic.partitions])
            for topic in request.topics
        ]
        assert by_hand.forgotten == [
            (topic.topic_id if version >= 13 else topic.topic, topic.partitions)
            for topic in request.forgotten_topics_data
        ]


def partition(struct: Any) -> tuple[Any, ...]:
    tags = {}
    if struct.replica_directory_id != ZERO_UUID:
        tags[0] = struct.replica_directory_id
    if struct.high_watermark != (1 << 63) - 1:
        tags[1] = struct.high_watermark.to_bytes(8, "big", signed=True)
        assert high_watermark_of(tags) == struct.high_watermark
    return (
        struct.partition,
        struct.current_leader_epoch,
        struct.fetch_offset,
        struct.last_fetched_epoch,
        struct.log_start_offset,
        struct.partition_max_bytes,
        tags or 0,
    )


@pytest.mark.parametrize("version", FETCH)
def test_fetch_response(version: int) -> None:
    for response in many("FetchResponse", version):
        topics = [
            (topic.topic_id if version >= 13 else topic.topic, [fetched(each) for each in topic.partitions])
            for topic in response.responses
        ]
        # The hand-written encoder has no null records: brokers send empty ones instead.
        for topic in response.responses:
            for each in topic.partitions:
                each.records = each.records or b""
        endpoints = [(each.node_id, each.host, each.port, each.rack) for each in response.node_endpoints]
        data = encode_fetch_response(
            version,
            topics,
            error_code=response.error_code,
            session_id=response.session_id,
            throttle_time_ms=response.throttle_time_ms,
            node_endpoints=endpoints,
        )
        whole = b"".join(each.read() if isinstance(each, FileRegion) else each for each in data)
        assert whole == encode(response, version)
        by_hand = decode_fetch_response(memoryview(whole), 0, version)
        assert by_hand.node_endpoints == (endpoints if version >= 16 else [])
        assert (by_hand.throttle_time_ms, by_hand.error_code, by_hand.session_id) == (
            response.throttle_time_ms,
            response.error_code,
            response.session_id,
        )
        assert [
            (
                topic,
                [
                    each._replace(records=[bytes(cast("memoryview", piece)) for piece in each.records])
                    for each in partitions
                ],
            )
            for topic, partitions in by_hand.topics
        ] == [
            (topic, [each._replace(records=list(each.records)) for each in partitions]) for topic, partitions in topics
        ]


def fetched(struct: Any) -> FetchedPartition:
    pairs = {
        name: None if pair == (-1, -1) else pair
        for name, pair in {
            "diverging_epoch": (struct.diverging_epoch.epoch, struct.diverging_epoch.end_offset),
            "current_leader": (struct.current_leader.leader_id, struct.current_leader.leader_epoch),
            "snapshot_id": (struct.snapshot_id.end_offset, struct.snapshot_id.epoch),
        }.items()
    }
    aborted = struct.aborted_transactions
    return FetchedPartition(
        struct.partition_index,
        struct.error_code,
        struct.high_watermark,
        struct.last_stable_offset,
        struct.log_start_offset,
        None if aborted is None else [(each.producer_id, each.first_offset) for each in aborted],
        [struct.records] if struct.records else [],
        struct.preferred_read_replica,
        **pairs,
    )


def test_produce_of_two_to_the_35_topics_is_refused_at_once() -> None:
    """The frame that aborts a whole process in another codec (FACTS.md)."""
    absurd = b"\0" + b"\xff\xff" + b"\0\0\0\0" + b"\xff\xff\xff\xff\x7f"
    with pytest.raises(MalformedFrame):
        decode_produce_request(memoryview(absurd), 0, 9)
    with pytest.raises(MalformedFrame):
        decode(m.ProduceRequest, 9, absurd)


def test_a_fetch_of_very_many_partitions_is_read_piece_by_piece() -> None:
    """In one step no other thread would have a turn. Nothing is lost between two pieces."""
    kind = m.FetchRequest
    count = 2 * fetch._ROWS_AT_ONCE + 7
    partitions = [kind.FetchPartition(number, 1, number * 3, 2, 4, 5) for number in range(count)]
    request = kind(topics=[kind.FetchTopic(topic="t", partitions=partitions)])
    ((_, found),) = decode_fetch_request(encode(request, 12), 0, 12).topics
    assert found == [(number, 1, number * 3, 2, 4, 5, 0) for number in range(count)]


def test_an_answer_for_very_many_partitions_is_put_together_piece_by_piece() -> None:
    count = 2 * produce._JOINED_AT_ONCE + 7
    outcomes = [ProduceOutcome(number, number % 3, number, -1, 0) for number in range(count)]
    for version in (8, 9):
        answer = decode(m.ProduceResponse, version, bytes(encode_produce_response(version, [("t", outcomes)])))
        told = [(each.index, each.error_code, each.base_offset) for each in answer.responses[0].partition_responses]
        assert told == [(number, number % 3, number) for number in range(count)]
