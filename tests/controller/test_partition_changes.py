"""Elections, ISR changes and eligible leader replicas: KIP-841, KIP-903, KIP-966 and Kafka's PartitionChangeBuilder."""

import pytest

from moldau.controller.brokers import register_broker
from moldau.controller.elections import balance_leaders, elect_leaders, elect_unclean_leaders
from moldau.controller.features import ELR_VERSION
from moldau.controller.image import NO_LEADER, RECOVERED, RECOVERING, PartitionImage
from moldau.controller.isr import alter_partition
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from tests.controller.world import SESSION_TIMEOUT_MS, World

Alter = m.AlterPartitionRequest
PREFERRED, UNCLEAN = 0, 1


@pytest.fixture(params=[0, 1], ids=["without ELR", "with ELR"])
def any_world(request: pytest.FixtureRequest) -> World:
    made = World(features={ELR_VERSION: request.param})
    made.register(0, 1, 2, 3)
    return made


@pytest.fixture
def world() -> World:
    made = World(min_insync_replicas="2")
    made.register(0, 1, 2, 3)
    return made


def alter(
    world: World,
    isr: list[int],
    *,
    broker: int | None = None,
    name: str = "orders",
    state: int = RECOVERED,
    epochs: dict[int, int] | None = None,
    leader_epoch: int | None = None,
    partition_epoch: int | None = None,
) -> m.AlterPartitionResponse.PartitionData:
    """What the leader of partition 0 would send, and the answer."""
    partition = world.partition(name)
    sender = partition.leader if broker is None else broker
    states = [
        Alter.BrokerState(
            replica,
            (epochs or {}).get(replica, world.image.brokers[replica].epoch if replica in world.image.brokers else -1),
        )
        for replica in isr
    ]
    change = Alter.PartitionData(
        0,
        partition.leader_epoch if leader_epoch is None else leader_epoch,
        [],
        states,
        state,
        partition.partition_epoch if partition_epoch is None else partition_epoch,
    )
    request = Alter(
        sender, world.image.brokers[sender].epoch, [Alter.TopicData(world.image.topics[name].topic_id, [change])]
    )
    response = world.run(alter_partition(world.image, request, world.context))
    assert response.error_code == ErrorCode.NONE
    return response.topics[0].partitions[0]


def elect(world: World, kind: int, partitions: list[int] | None = None) -> list[tuple[int, ErrorCode, str | None]]:
    asked = None if partitions is None else [m.ElectLeadersRequest.TopicPartitions("orders", partitions)]
    response = world.run(elect_leaders(world.image, m.ElectLeadersRequest(kind, asked), world.context))
    return [
        (answer.partition_id, ErrorCode(answer.error_code), answer.error_message)
        for result in response.replica_election_results
        for answer in result.partition_result
    ]


def summary(partition: PartitionImage) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    return partition.leader, partition.isr, partition.elr


def test_an_isr_change_moves_the_partition_epoch_and_not_the_leader_epoch(any_world: World) -> None:
    any_world.create_assigned("orders", [0, 1, 2])
    answer = alter(any_world, [0, 2])
    assert (answer.leader_id, answer.isr, answer.leader_epoch, answer.partition_epoch) == (0, [0, 2], 0, 1)
    partition = any_world.partition("orders")
    assert (partition.isr, partition.leader_epoch, partition.partition_epoch) == ((0, 2), 0, 1)
    answer = alter(any_world, [0, 2, 1])
    assert (answer.isr, answer.partition_epoch) == ([0, 2, 1], 2)


def test_the_same_isr_again_changes_nothing(any_world: World) -> None:
    any_world.create_assigned("orders", [0, 1, 2])
    before = any_world.offset
    assert alter(any_world, [0, 1, 2]).error_code == ErrorCode.NONE
    assert any_world.offset == before


def test_isr_changes_that_are_refused(any_world: World) -> None:
    world = any_world
    world.create_assigned("orders", [0, 1, 2])
    alter(world, [0, 1])
    world.fence(0)
    world.heartbeat(0)
    # Broker 1 leads now, in leader epoch 1.
    refusals = [
        (alter(world, [1], leader_epoch=2), ErrorCode.NOT_CONTROLLER),
        (alter(world, [1], partition_epoch=99), ErrorCode.NOT_CONTROLLER),
        (alter(world, [1], leader_epoch=0), ErrorCode.FENCED_LEADER_EPOCH),
        (alter(world, [2], broker=2), ErrorCode.INVALID_REQUEST),
        (alter(world, [1], partition_epoch=0), ErrorCode.INVALID_UPDATE_VERSION),
        (alter(world, [1, 1]), ErrorCode.INVALID_REQUEST),
        (alter(world, [1, 3]), ErrorCode.INVALID_REQUEST),
        (alter(world, [0, 2]), ErrorCode.INVALID_REQUEST),
        (alter(world, [1, 2], state=RECOVERING), ErrorCode.INVALID_REQUEST),
        (alter(world, [1], state=RECOVERING), ErrorCode.INVALID_REQUEST),
        (alter(world, [1, 2], epochs={2: 12345}), ErrorCode.INELIGIBLE_REPLICA),
    ]
    assert [ErrorCode(answer.error_code) for answer, _ in refusals] == [expected for _, expected in refusals]
    assert alter(world, [1, 2], epochs={2: -1}).error_code == ErrorCode.NONE


def test_a_fenced_or_leaving_broker_does_not_join_an_isr(any_world: World) -> None:
    """KIP-841: it would be removed again at once, and acks=all would have waited for it."""
    any_world.create_assigned("orders", [0, 1, 2])
    any_world.create_assigned("led-by-2", [2, 3])
    alter(any_world, [0])
    any_world.fence(1)
    any_world.heartbeat(2, want_shut_down=True)
    assert alter(any_world, [0, 1]).error_code == ErrorCode.INELIGIBLE_REPLICA
    assert alter(any_world, [0, 2]).error_code == ErrorCode.INELIGIBLE_REPLICA


def test_unknown_topics_partitions_and_stale_brokers(any_world: World) -> None:
    any_world.create_assigned("orders", [0, 1])
    topic_id = any_world.image.topics["orders"].topic_id
    epoch = any_world.image.brokers[0].epoch
    request = Alter(
        0,
        epoch,
        [
            Alter.TopicData(b"?" * 16, [Alter.PartitionData(0)]),
            Alter.TopicData(topic_id, [Alter.PartitionData(7)]),
        ],
    )
    response = any_world.run(alter_partition(any_world.image, request, any_world.context))
    codes = [partition.error_code for topic in response.topics for partition in topic.partitions]
    assert codes == [ErrorCode.UNKNOWN_TOPIC_ID, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    stale = alter_partition(any_world.image, Alter(0, epoch - 1), any_world.context).response
    assert stale.error_code == ErrorCode.STALE_BROKER_EPOCH


def test_version_2_of_the_request_has_bare_ids(any_world: World) -> None:
    any_world.create_assigned("orders", [0, 1])
    change = Alter.PartitionData(0, 0, [0], [], RECOVERED, 0)
    topic = Alter.TopicData(any_world.image.topics["orders"].topic_id, [change])
    request = Alter(0, any_world.image.brokers[0].epoch, [topic])
    any_world.run(alter_partition(any_world.image, request, any_world.context))
    assert any_world.partition("orders").isr == (0,)


def test_the_last_in_sync_replica_stays_in_the_isr_without_elr() -> None:
    world = World(features={ELR_VERSION: 0})
    world.register(0, 1)
    world.create_assigned("orders", [0, 1])
    alter(world, [0])
    world.fence(0)
    assert summary(world.partition("orders")) == (NO_LEADER, (0,), ())
    world.heartbeat(0)
    assert summary(world.partition("orders")) == (0, (0,), ())
    assert world.partition("orders").leader_epoch == 2


def test_below_min_isr_those_who_leave_stay_eligible(world: World) -> None:
    """KIP-966: min.insync.replicas=2 of 3. Whoever leaves while fewer than two remain has all that was committed."""
    world.create_assigned("orders", [0, 1, 2])
    alter(world, [0, 1])
    assert summary(world.partition("orders")) == (0, (0, 1), ())
    alter(world, [0])
    assert summary(world.partition("orders")) == (0, (0,), (1,))
    world.fence(0)
    assert summary(world.partition("orders")) == (1, (1,), (0,))
    assert world.partition("orders").leader_recovery_state == RECOVERED
    world.fence(1)
    assert summary(world.partition("orders")) == (NO_LEADER, (), (0, 1))
    assert world.partition("orders").last_known_elr == (1,)
    world.heartbeat(2)
    assert world.partition("orders").leader == NO_LEADER
    world.heartbeat(0)
    assert summary(world.partition("orders")) == (0, (0,), (1,))
    assert world.partition("orders").last_known_elr == ()


def test_enough_in_sync_replicas_make_the_elr_superfluous(world: World) -> None:
    world.create_assigned("orders", [0, 1, 2])
    alter(world, [0])
    assert world.partition("orders").elr == (1, 2)
    alter(world, [0, 2])
    assert summary(world.partition("orders")) == (0, (0, 2), ())


def test_an_unclean_shutdown_ends_eligibility(world: World) -> None:
    """It may have lost records it had acknowledged; its word that it has them all is worth nothing now."""
    world.create_assigned("orders", [0, 1, 2])
    alter(world, [0])
    assert world.partition("orders").elr == (1, 2)
    epoch = world.image.brokers[1].epoch
    world.fence(1, 2)
    world.now_ms += SESSION_TIMEOUT_MS + 1
    for broker_id in (0, 3):
        world.heartbeat(broker_id)
    dirty = world.registration(2, incarnation=1)
    world.run(register_broker(world.image, dirty, world.context, world.sessions))
    assert world.partition("orders").elr == (1,)
    clean = world.registration(1, incarnation=1, previous_epoch=epoch)
    world.run(register_broker(world.image, clean, world.context, world.sessions))
    assert world.partition("orders").elr == (1,)


def test_the_last_known_leader_is_the_last_resort(world: World) -> None:
    world.create_assigned("orders", [0, 1])
    alter(world, [0])
    world.fence(0, 1)
    assert summary(world.partition("orders")) == (NO_LEADER, (), (0, 1))
    assert world.partition("orders").last_known_elr == (1,)
    world.now_ms += SESSION_TIMEOUT_MS + 1
    for broker_id in (0, 1):
        dirty = world.registration(broker_id, incarnation=1)
        world.run(register_broker(world.image, dirty, world.context, world.sessions))
    assert summary(world.partition("orders")) == (NO_LEADER, (), ())
    world.heartbeat(0)
    assert world.partition("orders").leader == NO_LEADER
    world.heartbeat(1)
    partition = world.partition("orders")
    assert summary(partition) == (1, (1,), ())
    assert partition.leader_recovery_state == RECOVERING
    assert partition.last_known_elr == ()
    alter(world, [1], state=RECOVERED)
    assert world.partition("orders").leader_recovery_state == RECOVERED


def test_the_effective_min_isr_is_never_more_than_the_replicas(world: World) -> None:
    world.create_assigned("orders", [0, 1], **{"min.insync.replicas": "5"})
    alter(world, [0])
    assert world.partition("orders").elr == (1,)
    alter(world, [0, 1])
    assert world.partition("orders").elr == ()


def test_unclean_election_only_where_allowed() -> None:
    world = World(features={ELR_VERSION: 0})
    world.register(0, 1)
    world.create_assigned("careful", [0, 1])
    world.create_assigned("orders", [0, 1], unclean_leader_election_enable="true")
    for name in ("careful", "orders"):
        alter(world, [0], name=name)
    world.fence(0)
    assert summary(world.partition("careful")) == (NO_LEADER, (0,), ())
    partition = world.partition("orders")
    assert summary(partition) == (1, (1,), ())
    assert partition.leader_recovery_state == RECOVERING


def test_an_unclean_election_by_timer_follows_the_config() -> None:
    world = World(features={ELR_VERSION: 0})
    world.register(0, 1)
    world.create_assigned("orders", [0, 1])
    alter(world, [0])
    world.fence(0)
    assert elect_unclean_leaders(world.image, world.context) == []
    world.commit([m.ConfigRecord(2, "orders", "unclean.leader.election.enable", "true")])
    world.commit(elect_unclean_leaders(world.image, world.context))
    assert summary(world.partition("orders")) == (1, (1,), ())


def test_preferred_leaders_are_asked_for(any_world: World) -> None:
    any_world.create_assigned("orders", [0, 1], [1, 0], [2, 3])
    any_world.fence(0)
    any_world.heartbeat(0)
    assert elect(any_world, PREFERRED, [0, 1, 9]) == [
        (0, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE.meaning),
        (1, ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.ELECTION_NOT_NEEDED.meaning),
        (9, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "No such partition as orders-9"),
    ]
    alter(any_world, [1, 0])
    assert elect(any_world, PREFERRED) == [(0, ErrorCode.NONE, None)]
    assert any_world.partition("orders").leader == 0
    assert any_world.partition("orders").leader_epoch == 2


def test_leaders_are_balanced_by_a_timer(any_world: World) -> None:
    any_world.create_assigned("orders", [0, 1], [0, 2], [1, 0])
    any_world.fence(0)
    any_world.heartbeat(0)
    assert balance_leaders(any_world.image, any_world.context) == []
    for number in (0, 1):
        topic_id = any_world.image.topics["orders"].topic_id
        isr = list(any_world.partition("orders", number).replicas)
        any_world.commit([m.PartitionChangeRecord(number, topic_id, isr=isr)])
    assert len(balance_leaders(any_world.image, any_world.context, limit=1)) == 1
    any_world.commit(balance_leaders(any_world.image, any_world.context))
    assert [any_world.partition("orders", number).leader for number in range(3)] == [0, 0, 1]


def test_unclean_elections_asked_for_by_people() -> None:
    world = World(features={ELR_VERSION: 0})
    world.register(0, 1)
    world.create_assigned("orders", [0, 1], [1, 0])
    alter(world, [0])
    world.fence(0)
    assert elect(world, UNCLEAN, [0, 1]) == [
        (0, ErrorCode.NONE, None),
        (1, ErrorCode.ELECTION_NOT_NEEDED, ErrorCode.ELECTION_NOT_NEEDED.meaning),
    ]
    assert summary(world.partition("orders")) == (1, (1,), ())
    world.fence(1)
    assert elect(world, UNCLEAN, [0])[0][1] == ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE
    unknown = elect_leaders(world.image, m.ElectLeadersRequest(7, None), world.context)
    assert unknown.response.error_code == ErrorCode.INVALID_REQUEST


def test_a_leader_whose_directory_failed_is_not_elected(any_world: World) -> None:
    any_world.create_assigned("orders", [0, 1])
    any_world.heartbeat(0, offline=[])
    topic_id = any_world.image.topics["orders"].topic_id
    epoch = any_world.image.brokers[1].epoch
    any_world.commit(
        [
            m.BrokerRegistrationChangeRecord(1, epoch, log_dirs=[b"E" * 16]),
            m.PartitionChangeRecord(0, topic_id, isr=[0, 1]),
        ]
    )
    any_world.fence(0)
    assert any_world.partition("orders").leader == NO_LEADER
