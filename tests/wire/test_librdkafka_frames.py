"""Frames of a real librdkafka client and its mock cluster, captured live: decoded and encoded again, byte for byte."""

from typing import Any, cast

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from moldau.wire import apis, decode, decode_request, encode
from moldau.wire.fetch import decode_fetch_request, decode_fetch_response, encode_fetch_response
from moldau.wire.produce import decode_produce_request
from tests.support.capture import CapturingProxy, Exchange
from tests.support.librdkafka import mock_cluster

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18
ALL_TOPICS_13 = b"\0\0\0\0\1\0\0"


@pytest.fixture(scope="module")
def exchanges() -> list[Exchange]:
    """A producer, a transaction, a consumer group and an administrator at work."""
    with mock_cluster() as address, CapturingProxy(address) as proxy:
        common: dict[str, Any] = {"bootstrap.servers": proxy.bootstrap_servers, "client.id": "capture"}
        admin = AdminClient(common)
        admin.list_topics(timeout=20)
        producer = Producer(common | {"enable.idempotence": True, "transactional.id": "t", "linger.ms": 5})
        producer.init_transactions(20)
        producer.begin_transaction()
        for number in range(50):
            producer.produce("captured", f"value {number}", f"key {number % 7}", headers={"h": b"x", "none": None})
        producer.commit_transaction(20)
        consumer = Consumer(
            common | {"group.id": "g", "auto.offset.reset": "earliest", "isolation.level": "read_committed"}
        )
        consumer.subscribe(["captured"])
        seen = 0
        while seen < 50:
            message = consumer.poll(20)
            assert message is not None
            assert message.error() is None
            seen += 1
        consumer.commit(asynchronous=False)
        consumer.committed([TopicPartition("captured", 0)], timeout=20)
        consumer.get_watermark_offsets(TopicPartition("captured", 0), timeout=20)
        consumer.close()
    assert proxy.failures == []
    return proxy.exchanges


def test_the_capture_saw_the_apis_of_a_client(exchanges: list[Exchange]) -> None:
    names = {apis()[exchange.api_key].name for exchange in exchanges}
    assert names >= {
        "ApiVersions", "Metadata", "Produce", "Fetch", "FindCoordinator", "JoinGroup", "SyncGroup", "Heartbeat",
        "OffsetCommit", "OffsetFetch", "LeaveGroup", "ListOffsets", "InitProducerId", "AddPartitionsToTxn", "EndTxn",
    }  # fmt: skip


def test_every_frame_round_trips_byte_for_byte(exchanges: list[Exchange]) -> None:
    for exchange in exchanges:
        api = apis()[exchange.api_key]
        version = exchange.version
        again = encode(decode_request(api.request, version, exchange.asked), version)
        # librdkafka's Metadata v13 for all topics has three bytes too many; every other request ends where it should.
        assert exchange.asked == again + (b"\1\0\0" if exchange.asked == ALL_TOPICS_13 else b""), api.name
        if exchange.answered is not None and exchange.api_key not in (METADATA, API_VERSIONS):
            assert encode(decode(api.response, version, exchange.answered), version) == exchange.answered, api.name


def test_produce_by_hand_sees_what_the_table_sees(exchanges: list[Exchange]) -> None:
    produced = [exchange for exchange in exchanges if exchange.api_key == PRODUCE]
    assert produced
    for exchange in produced:
        by_table: Any = decode(apis()[PRODUCE].request, exchange.version, exchange.asked)
        by_hand = decode_produce_request(memoryview(exchange.asked), 0, exchange.version)
        assert by_hand.transactional_id == by_table.transactional_id == "t"
        assert [
            (topic, [(index, bytes(records or b"")) for index, records in partitions])
            for topic, partitions in by_hand.topics
        ] == [
            (topic.name, [(each.index, each.records) for each in topic.partition_data]) for topic in by_table.topic_data
        ]


def test_fetch_by_hand_gives_back_the_same_bytes(exchanges: list[Exchange]) -> None:
    fetched = [exchange for exchange in exchanges if exchange.api_key == FETCH]
    assert fetched
    for exchange in fetched:
        request = decode_fetch_request(exchange.asked, 0, exchange.version)
        assert request.isolation_level == 1
        assert exchange.answered is not None
        response = decode_fetch_response(memoryview(exchange.answered), 0, exchange.version)
        again = encode_fetch_response(
            exchange.version,
            response.topics,
            error_code=response.error_code,
            session_id=response.session_id,
            throttle_time_ms=response.throttle_time_ms,
        )
        assert b"".join(cast("list[bytes]", again)) == exchange.answered
