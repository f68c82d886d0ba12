"""Clients beyond their quotas are answered, told to be silent, and not read from for as long; others notice nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from moldau.records import build_batch
from moldau.testing import Broker
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.wire_client import WireClient


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running:
        yield running


@pytest.fixture(scope="module")
def admin(broker: Broker) -> Iterator[WireClient]:
    with WireClient(broker.bootstrap_servers, "admin") as client:
        yield client


def limit(admin: WireClient, client_id: str, key: str, value: float | None) -> None:
    kind = m.AlterClientQuotasRequest
    op = kind.OpData(key, value or 0.0, value is None)
    answer = admin.ask(kind([kind.EntryData([kind.EntityData("client-id", client_id)], [op])]))
    assert answer.entries[0].error_code == 0


def is_silent_for(client: WireClient) -> float:
    """How long the broker does not look at this client's next request, in seconds."""
    started = time.monotonic()
    client.ask(m.DescribeClusterRequest())
    return time.monotonic() - started


def produce(client: WireClient, topic: str, size_bytes: int) -> m.ProduceResponse:
    kind = m.ProduceRequest
    batch = bytes(build_batch([(0, 1_700_000_000_000, None, bytes(size_bytes), ())]))
    data = kind.TopicProduceData(topic, partition_data=[kind.PartitionProduceData(0, batch)])
    answer: m.ProduceResponse = client.ask(kind(acks=-1, timeout_ms=5_000, topic_data=[data]), 12)
    assert answer.responses[0].partition_responses[0].error_code == 0
    return answer


def fetch(client: WireClient, topic: str) -> tuple[int, int]:
    """The time of silence, and how much was sent."""
    kind = m.FetchRequest
    wanted = kind.FetchTopic(topic, partitions=[kind.FetchPartition(0, -1, 0, -1, -1, 1 << 20)])
    answer = client.ask(kind(replica_id=-1, max_bytes=1 << 20, session_epoch=-1, topics=[wanted]), 12)
    sent = sum(len(each.records or b"") for topic_ in answer.responses for each in topic_.partitions)
    return answer.throttle_time_ms, sent


def test_who_produces_too_much_is_silenced(broker: Broker, admin: WireClient) -> None:
    limit(admin, "slow-writer", "producer_byte_rate", 20_000)
    topic = admin.new_topic()
    with WireClient(broker.bootstrap_servers, "slow-writer") as slow:
        assert produce(slow, topic, 100_000).throttle_time_ms == 0, "ten seconds' worth may come at once"
        throttle_ms = produce(slow, topic, 116_000).throttle_time_ms
        assert 0 < throttle_ms < 850
        assert produce(admin, topic, 200_000).throttle_time_ms == 0
        assert is_silent_for(slow) > throttle_ms / 1_000 - 0.05


def test_who_fetches_too_much_gets_nothing_until_later(broker: Broker, admin: WireClient) -> None:
    limit(admin, "slow-reader", "consumer_byte_rate", 20_000)
    topic = admin.new_topic()
    produce(admin, topic, 120_000)
    with WireClient(broker.bootstrap_servers, "slow-reader") as slow:
        throttle_ms, sent = fetch(slow, topic)
        assert (throttle_ms, sent > 120_000) == (0, True)
        throttle_ms, sent = fetch(slow, topic)
        assert 1_500 < throttle_ms < 2_500
        assert sent == 0, "silence first"
        assert fetch(admin, topic)[0] == 0
        limit(admin, "slow-reader", "consumer_byte_rate", None)


def test_a_batch_larger_than_the_quota_allows_at_once_is_sent(broker: Broker, admin: WireClient) -> None:
    """It could never be read otherwise."""
    limit(admin, "tiny-reader", "consumer_byte_rate", 1_000)
    topic = admin.new_topic()
    produce(admin, topic, 50_000)
    with WireClient(broker.bootstrap_servers, "tiny-reader") as tiny:
        throttle_ms, sent = fetch(tiny, topic)
        assert (throttle_ms, sent > 50_000) == (0, True)
        throttle_ms, sent = fetch(tiny, topic)
        assert throttle_ms > 40_000
        assert sent == 0
    limit(admin, "tiny-reader", "consumer_byte_rate", None)


def test_the_time_of_requests(broker: Broker, admin: WireClient) -> None:
    limit(admin, "busy", "request_percentage", 0.01)
    with WireClient(broker.bootstrap_servers, "busy") as busy:
        answers = [busy.ask(m.MetadataRequest(None)) for _ in range(3)]
        silenced = [answer.throttle_time_ms for answer in answers if answer.throttle_time_ms]
        while not silenced:
            throttle_ms = busy.ask(m.MetadataRequest(None)).throttle_time_ms
            silenced = [throttle_ms] if throttle_ms else []
        assert 0 < silenced[0] <= 1_000
        assert admin.ask(m.MetadataRequest(None)).throttle_time_ms == 0


def create(client: WireClient, name: str, partitions: int, version: int) -> tuple[int, int]:
    kind = m.CreateTopicsRequest
    answer = client.ask(kind([kind.CreatableTopic(name, partitions, 1)], 5_000), version)
    return answer.topics[0].error_code, answer.throttle_time_ms


def test_changes_of_the_cluster_beyond_the_quota_are_refused(broker: Broker, admin: WireClient) -> None:
    limit(admin, "builder", "controller_mutation_rate", 10)
    with WireClient(broker.bootstrap_servers, "builder") as builder:
        assert create(builder, "built-1", 116, 7) == (0, 0), "eleven seconds' worth, and a debt of six"
        code, throttle_ms = create(builder, "built-2", 1, 7)
        assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert 0 < throttle_ms <= 600
        time.sleep(throttle_ms / 1_000 + 0.05)
        assert create(builder, "built-3", 3, 7) == (0, 0)


def test_older_clients_get_what_they_want_and_are_silenced(broker: Broker, admin: WireClient) -> None:
    limit(admin, "old-builder", "controller_mutation_rate", 10)
    with WireClient(broker.bootstrap_servers, "old-builder") as builder:
        code, throttle_ms = create(builder, "built-4", 112, 5)
        assert code == 0
        assert 0 < throttle_ms <= 200
        assert is_silent_for(builder) > throttle_ms / 1_000 - 0.05


def test_a_limit_that_comes_later_holds_for_connections_there_are(broker: Broker, admin: WireClient) -> None:
    """A connection remembers that it has no limit, for as long as that is so."""
    limit(admin, "somebody else", "producer_byte_rate", 1_000)
    topic = admin.new_topic()
    with WireClient(broker.bootstrap_servers, "late") as client:
        for _ in range(2):
            assert produce(client, topic, 50_000).throttle_time_ms == 0
        limit(admin, "late", "producer_byte_rate", 100_000)
        produce(client, topic, 900_000)
        assert produce(client, topic, 150_000).throttle_time_ms > 0
        limit(admin, "late", "producer_byte_rate", None)
        assert produce(client, topic, 900_000).throttle_time_ms == 0
