"""Settings of groups and transactions that change while the broker runs: the next request finds the new value."""

from pathlib import Path
from typing import Any

from moldau.records import BatchOptions, build_batch
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.conftest import make_broker
from tests.broker.requests.handlers.wire_client import WireClient
from tests.support.clients import fresh, wait_for

BROKER, GROUP = 4, 32
SET, DELETE = 0, 1


def coordinator(client: WireClient, key: str, key_type: int) -> None:
    """Wait until there is one."""
    request = m.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
    wait_for(lambda: client.ask(request).coordinators[0].error_code == ErrorCode.NONE, "a coordinator")


def beat(client: WireClient, group: str, member: str, epoch: int, topic: str) -> Any:
    kind = m.ConsumerGroupHeartbeatRequest
    request = kind(group_id=group, member_id=member, member_epoch=epoch)
    if epoch == 0:
        request.rebalance_timeout_ms, request.subscribed_topic_names, request.topic_partitions = 60_000, [topic], []
    answer = client.ask(request)
    assert answer.error_code == ErrorCode.NONE, answer
    return answer


def partitions(answer: Any) -> int | None:
    assignment = answer.assignment
    return None if assignment is None else sum(len(each.partitions) for each in assignment.topic_partitions)


def alter(client: WireClient, resource_type: int, name: str, key: str, value: str | None) -> None:
    answer = client.alter(resource_type, name, (key, DELETE if value is None else SET, value))
    assert answer.error_code == ErrorCode.NONE, answer


def test_a_group_has_its_own_settings_from_the_next_heartbeat_on(client: WireClient) -> None:
    topic, group = client.new_topic(), fresh("group")
    coordinator(client, group, 0)
    joined = beat(client, group, "one", 0, topic)
    assert joined.heartbeat_interval_ms == 5_000
    for value, expected in (("6000", 6_000), ("7000", 7_000), (None, 5_000)):
        alter(client, GROUP, group, "consumer.heartbeat.interval.ms", value)
        assert beat(client, group, "one", joined.member_epoch, topic).heartbeat_interval_ms == expected


def test_a_shorter_session_of_a_group_ends_silent_members(tmp_path: Path) -> None:
    bounds = {"group_consumer_min_session_timeout_ms": "200", "group_consumer_min_heartbeat_interval_ms": "100"}
    with make_broker(tmp_path, **bounds) as broker, WireClient(broker.bootstrap_servers) as client:
        topic, group = client.new_topic(), fresh("group")
        coordinator(client, group, 0)
        joined = beat(client, group, "one", 0, topic)
        alter(client, GROUP, group, "consumer.heartbeat.interval.ms", "100")
        alter(client, GROUP, group, "consumer.session.timeout.ms", "200")
        beat(client, group, "one", joined.member_epoch, topic)
        request = m.ConsumerGroupDescribeRequest(group_ids=[group])
        wait_for(lambda: not client.ask(request).groups[0].members, "the member is gone long before 45 s")


def test_the_assignment_interval_of_the_broker_changes(own_client: WireClient) -> None:
    key, long = "group.consumer.assignment.interval.ms", "15000"
    topic, group = own_client.new_topic(4), fresh("group")
    coordinator(own_client, group, 0)
    alter(own_client, BROKER, "", key, "0")
    one = beat(own_client, group, "one", 0, topic)
    assert partitions(one) == 4
    alter(own_client, BROKER, "", key, long)
    beat(own_client, group, "two", 0, topic)
    assert partitions(beat(own_client, group, "one", one.member_epoch, topic)) is None, "no new assignment yet"
    alter(own_client, BROKER, "", key, "0")
    assert partitions(beat(own_client, group, "one", one.member_epoch, topic)) == 2


def test_verification_of_old_producers_can_be_switched_off(own_client: WireClient) -> None:
    key, name = "transaction.partition.verification.enable", fresh("tx")
    topic = own_client.new_topic()
    coordinator(own_client, name, 1)
    request = m.InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=60_000)
    given: list[Any] = []

    def has_producer_id() -> bool:
        given.append(own_client.ask(request))
        return bool(given[-1].error_code == ErrorCode.NONE)

    wait_for(has_producer_id, "a producer id")

    def produce() -> int:
        """As clients before KIP-890 do, but without having added the partition."""
        options = BatchOptions(
            producer_id=given[-1].producer_id,
            producer_epoch=given[-1].producer_epoch,
            base_sequence=0,
            transactional=True,
        )
        kind = m.ProduceRequest
        part = kind.PartitionProduceData(index=0, records=bytes(build_batch([(0, 0, None, b"x", ())], options)))
        data = kind.TopicProduceData(name=topic, partition_data=[part])
        answer = own_client.ask(kind(transactional_id=name, acks=-1, timeout_ms=5_000, topic_data=[data]), 10)
        return int(answer.responses[0].partition_responses[0].error_code)

    assert produce() == ErrorCode.INVALID_TXN_STATE
    alter(own_client, BROKER, "", key, "false")
    assert produce() == ErrorCode.NONE
