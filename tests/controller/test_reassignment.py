"""Moving replicas (KIP-455): add, wait until in sync, remove; or put back."""

import pytest

from moldau.controller.features import ELR_VERSION
from moldau.controller.image import RECOVERING
from moldau.controller.reassignment import alter_partition_reassignments, list_partition_reassignments
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from tests.controller.test_partition_changes import alter
from tests.controller.world import World

Request = m.AlterPartitionReassignmentsRequest


@pytest.fixture(params=[0, 1], ids=["without ELR", "with ELR"])
def world(request: pytest.FixtureRequest) -> World:
    made = World(features={ELR_VERSION: request.param})
    made.register(0, 1, 2, 3, 4)
    made.create_assigned("orders", [0, 1, 2], [1, 2, 3])
    return made


def reassign(
    world: World, replicas: list[int] | None, *, name: str = "orders", partition: int = 0, any_factor: bool = True
) -> tuple[ErrorCode, str | None]:
    request = Request(
        allow_replication_factor_change=any_factor,
        topics=[Request.ReassignableTopic(name, [Request.ReassignablePartition(partition, replicas)])],
    )
    response = world.run(alter_partition_reassignments(world.image, request, world.context))
    (answer,) = response.responses[0].partitions
    return ErrorCode(answer.error_code), answer.error_message


def ongoing(world: World) -> list[tuple[str, int, list[int], list[int], list[int]]]:
    response = list_partition_reassignments(world.image, m.ListPartitionReassignmentsRequest(topics=None))
    return [
        (topic.name, p.partition_index, p.replicas, p.adding_replicas, p.removing_replicas)
        for topic in response.topics
        for p in topic.partitions
    ]


def test_a_reassignment_from_start_to_end(world: World) -> None:
    assert reassign(world, [3, 4, 0]) == (ErrorCode.NONE, None)
    assert ongoing(world) == [("orders", 0, [3, 4, 0, 1, 2], [3, 4], [1, 2])]
    partition = world.partition("orders")
    assert (partition.leader, partition.isr) == (0, (0, 1, 2))
    assert partition.directories[0] == world.image.brokers[3].directories[0]
    assert alter(world, [0, 1, 2, 3]).error_code == ErrorCode.NONE
    assert len(ongoing(world)) == 1
    answer = alter(world, [0, 1, 2, 3, 4])
    assert (answer.error_code, answer.isr) == (ErrorCode.NONE, [0, 3, 4])
    partition = world.partition("orders")
    assert (partition.replicas, partition.isr, partition.leader) == ((3, 4, 0), (0, 3, 4), 0)
    assert partition.leader_epoch == 1, "replicas that left must not fetch in the old epoch"
    assert ongoing(world) == []


def test_the_leader_itself_may_be_moved_away(world: World) -> None:
    reassign(world, [3, 4])
    alter(world, [0, 3])
    answer = alter(world, [0, 3, 4])
    assert answer.error_code == ErrorCode.NEW_LEADER_ELECTED
    partition = world.partition("orders")
    assert (partition.leader, partition.replicas, partition.isr) == (3, (3, 4), (3, 4))


def test_a_new_order_or_fewer_replicas_need_no_waiting(world: World) -> None:
    assert reassign(world, [2, 1, 0]) == (ErrorCode.NONE, None)
    assert world.partition("orders").replicas == (2, 1, 0)
    assert world.partition("orders").leader == 0
    assert reassign(world, [1]) == (ErrorCode.NONE, None)
    partition = world.partition("orders")
    assert (partition.replicas, partition.isr, partition.leader, partition.elr) == ((1,), (1,), 1, ())
    assert ongoing(world) == []


def test_a_reassignment_can_be_put_back(world: World) -> None:
    reassign(world, [3, 4])
    alter(world, [0, 1, 2, 3])
    assert reassign(world, None) == (ErrorCode.NONE, None)
    partition = world.partition("orders")
    assert (partition.replicas, partition.isr, partition.leader) == ((0, 1, 2), (0, 1, 2), 0)
    assert ongoing(world) == []
    assert reassign(world, None)[0] == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS


def test_putting_back_must_not_lose_records(world: World) -> None:
    reassign(world, [3, 4])
    alter(world, [0, 3])
    world.fence(0, 1, 2)
    assert world.partition("orders").leader == 3
    assert reassign(world, None) == (
        ErrorCode.INVALID_REPLICA_ASSIGNMENT,
        "Unable to revert partition assignment for orders:0 because it would require an unclean leader election.",
    )
    world.commit([m.ConfigRecord(2, "orders", "unclean.leader.election.enable", "true")])
    world.heartbeat(0)
    assert reassign(world, None) == (ErrorCode.NONE, None)
    partition = world.partition("orders")
    assert (partition.leader, partition.isr, partition.leader_recovery_state) == (0, (0,), RECOVERING)


def test_a_target_can_be_changed_under_way(world: World) -> None:
    reassign(world, [0, 1, 3])
    assert reassign(world, [0, 1, 4]) == (ErrorCode.NONE, None)
    assert ongoing(world) == [("orders", 0, [0, 1, 4, 2, 3], [4], [2, 3])]
    assert reassign(world, [0, 3, 4]) == (ErrorCode.NONE, None)
    assert ongoing(world) == [("orders", 0, [0, 3, 4, 1, 2], [4], [1, 2])]
    alter(world, [0, 3, 4])
    assert world.partition("orders").replicas == (0, 3, 4)


def test_what_cannot_be_reassigned(world: World) -> None:
    assert reassign(world, [0], name="unknown") == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "Unable to find a topic named unknown.",
    )
    assert reassign(world, [0], partition=9) == (
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "Unable to find partition orders:9.",
    )
    assert reassign(world, [9])[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(world, [])[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(world, [0, 0])[0] == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(world, [0, 1], any_factor=False) == (
        ErrorCode.INVALID_REPLICATION_FACTOR,
        "The replication factor is changed from 3 to 2",
    )
    assert ongoing(world) == []
    reassign(world, [0, 1, 2, 3])
    assert reassign(world, [0, 1, 2], any_factor=False)[0] == ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(world, [0, 1, 3, 4], any_factor=False)[0] == ErrorCode.NONE


def test_only_what_was_asked_for_is_listed(world: World) -> None:
    reassign(world, [3, 4])
    reassign(world, [0, 4], partition=1)
    asked = m.ListPartitionReassignmentsRequest.ListPartitionReassignmentsTopics
    request = m.ListPartitionReassignmentsRequest(topics=[asked("orders", [1, 7]), asked("unknown", [0])])
    response = list_partition_reassignments(world.image, request)
    assert [(t.name, [p.partition_index for p in t.partitions]) for t in response.topics] == [("orders", [1])]
