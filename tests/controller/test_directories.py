"""Replicas in directories (KIP-858), and clusters whose metadata.version knows nothing of them yet."""

import pytest

from moldau.controller.brokers import register_broker
from moldau.controller.directories import assign_replicas_to_dirs
from moldau.controller.features import ELR_VERSION, METADATA_VERSION
from moldau.controller.image import LOST_DIR, MIGRATING_DIR, UNASSIGNED_DIR
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from tests.controller.test_partition_changes import alter
from tests.controller.world import World

A, B, OFFLINE, NEW = b"A" * 16, b"B" * 16, b"O" * 16, b"N" * 16
Assign = m.AssignReplicasToDirsRequest


@pytest.fixture(params=[0, 1], ids=["without ELR", "with ELR"])
def world(request: pytest.FixtureRequest) -> World:
    """Broker 7 has two directories."""
    made = World(features={ELR_VERSION: request.param})
    made.register(0, 1)
    registration = made.registration(7).replace(log_dirs=[A, B])
    made.run(register_broker(made.image, registration, made.context, made.sessions))
    made.heartbeat(7)
    return made


def assign(
    world: World,
    directory: bytes,
    *,
    partition: int = 0,
    topic_id: bytes | None = None,
    broker: int = 7,
    epoch: int = 0,
) -> m.AssignReplicasToDirsResponse:
    topic = topic_id or world.image.topics["orders"].topic_id
    asked = Assign.DirectoryData(directory, [Assign.TopicData(topic, [Assign.PartitionData(partition)])])
    request = Assign(broker, epoch or world.image.brokers[broker].epoch, [asked])
    return world.run(assign_replicas_to_dirs(world.image, request, world.context))


def code(response: m.AssignReplicasToDirsResponse) -> ErrorCode:
    assert response.error_code == ErrorCode.NONE
    return ErrorCode(response.directories[0].topics[0].partitions[0].error_code)


def test_a_broker_with_several_directories_says_where_its_replicas_lie(world: World) -> None:
    world.create_assigned("orders", [7, 0])
    assert world.partition("orders").directories == (UNASSIGNED_DIR, world.image.brokers[0].directories[0])
    assert code(assign(world, B)) == ErrorCode.NONE
    partition = world.partition("orders")
    assert partition.directories[0] == B
    assert (partition.leader, partition.leader_epoch) == (7, 0)
    written = world.offset
    assert code(assign(world, B)) == ErrorCode.NONE
    assert world.offset == written


def test_a_replica_in_a_failed_directory_is_out_of_sync(world: World) -> None:
    world.create_assigned("orders", [7, 0])
    assert code(assign(world, OFFLINE)) == ErrorCode.NONE
    partition = world.partition("orders")
    assert partition.directories[0] == OFFLINE
    assert (partition.leader, partition.isr) == (0, (0,))


def test_a_failed_directory_is_never_an_unclean_leader(world: World) -> None:
    world.create_assigned("orders", [7, 0], unclean_leader_election_enable="true")
    alter(world, [7])
    assert code(assign(world, LOST_DIR)) == ErrorCode.NONE
    assert (world.partition("orders").leader, world.partition("orders").leader_recovery_state) == (0, 1)


def test_assignments_that_are_refused(world: World) -> None:
    world.create_assigned("orders", [0, 1])
    assert code(assign(world, A, topic_id=b"?" * 16)) == ErrorCode.UNKNOWN_TOPIC_ID
    assert code(assign(world, A, partition=9)) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert code(assign(world, A)) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert assign(world, A, epoch=99999).error_code == ErrorCode.STALE_BROKER_EPOCH


def test_which_directories_are_online(world: World) -> None:
    broker = world.image.brokers[7]
    online = {directory: broker.has_online_dir(directory) for directory in (A, B, OFFLINE, LOST_DIR, MIGRATING_DIR)}
    assert online == {A: True, B: True, OFFLINE: False, LOST_DIR: False, MIGRATING_DIR: True}


def test_an_old_metadata_version_writes_records_without_directories() -> None:
    """Level 16 (3.7-IV1): directories came with 17, and ISR shrinks no longer bump the leader epoch since 12."""
    world = World(features={ELR_VERSION: 0})
    world.commit([m.FeatureLevelRecord(METADATA_VERSION, 16)])
    old = world.registration(0).replace(log_dirs=[])
    answer = world.run(register_broker(world.image, old, world.context, world.sessions))
    assert answer.error_code == ErrorCode.NONE
    world.heartbeat(0)
    world.create("orders", 1, 1)
    assert world.partition("orders").directories == (MIGRATING_DIR,)
    assert assign(world, A, broker=0).error_code == ErrorCode.UNSUPPORTED_VERSION
    world.heartbeat(0, offline=[A], cordoned=[A])
    assert world.image.brokers[0].cordoned_directories is None


def test_before_level_12_an_isr_that_shrinks_is_a_new_leader_epoch() -> None:
    world = World(features={ELR_VERSION: 0})
    world.register(0, 1)
    world.create_assigned("orders", [0, 1])
    alter(world, [0])
    assert world.partition("orders").leader_epoch == 0
    alter(world, [0, 1])
    topic = world.image.topics["orders"]
    world.commit(
        [
            m.FeatureLevelRecord(METADATA_VERSION, 11),
            m.PartitionChangeRecord(0, topic.topic_id, directories=[MIGRATING_DIR, MIGRATING_DIR]),
        ]
    )
    alter(world, [0])
    assert world.partition("orders").leader_epoch == 1
    alter(world, [0, 1])
    assert world.partition("orders").leader_epoch == 1


def test_a_replica_on_a_new_disk_leads_again_once_the_controller_knows_the_disk(world: World) -> None:
    world.create_assigned("orders", [0, 1])
    world.fence(1)
    registration = world.registration(1, incarnation=1).replace(log_dirs=[NEW])
    world.run(register_broker(world.image, registration, world.context, world.sessions))
    world.heartbeat(1)
    alter(world, [0, 1])
    world.fence(0)
    assert (world.partition("orders").leader, world.partition("orders").isr) == (-1, (1,))
    assert code(assign(world, NEW, broker=1)) == ErrorCode.NONE
    after = world.partition("orders")
    assert (after.leader, after.directories[1]) == (1, NEW)


@pytest.mark.parametrize("first", [1, 0], ids=["the new disk first", "the unclean end first"])
def test_a_replica_whose_disk_is_lost_is_no_last_resort(world: World, first: int) -> None:
    """Broker 1 led last, and comes back with an empty disk; broker 0, eligible until its unclean end, has everything.
    Whoever comes first, 0 leads: its log must not be truncated to nothing."""
    world.create_assigned("orders", [0, 1])
    alter(world, [0])
    world.fence(0, 1)
    if world.partition("orders").elr != (0, 1):
        return  # without ELR a last replica stays in the ISR
    assert world.partition("orders").last_known_elr == (1,)
    world.now_ms += 60_000
    for broker_id in (first, 1 - first):
        registration = world.registration(broker_id, incarnation=1)
        if broker_id == 1:
            registration = registration.replace(log_dirs=[NEW])
        world.run(register_broker(world.image, registration, world.context, world.sessions))
        world.heartbeat(broker_id)
        if broker_id == 1:
            assert code(assign(world, NEW, broker=1)) == ErrorCode.NONE
    after = world.partition("orders")
    assert (after.leader, after.isr, after.last_known_elr) == (0, (0,), ())


def test_a_replica_that_was_alone_goes_on_with_a_new_disk(world: World) -> None:
    world.create_assigned("orders", [1])
    world.fence(1)
    world.now_ms += 60_000
    registration = world.registration(1, incarnation=1).replace(log_dirs=[NEW])
    world.run(register_broker(world.image, registration, world.context, world.sessions))
    world.heartbeat(1)
    assert code(assign(world, NEW, broker=1)) == ErrorCode.NONE
    assert world.partition("orders").leader == 1
