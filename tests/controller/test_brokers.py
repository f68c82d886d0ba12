"""Brokers come, call, fall silent, shut down and leave."""

import copy
from dataclasses import replace

import pytest

from moldau.controller.brokers import (
    broker_heartbeat,
    register_broker,
    register_controller,
    unregister_broker,
)
from moldau.controller.delta import diff
from moldau.controller.directories import assign_replicas_to_dirs
from moldau.controller.features import ELR_VERSION, METADATA_VERSION
from moldau.controller.image import NO_LEADER
from moldau.controller.producer_ids import allocate_producer_ids
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from tests.controller.world import SESSION_TIMEOUT_MS, World

AssignDirs = m.AssignReplicasToDirsRequest


@pytest.fixture
def world() -> World:
    made = World()
    made.register(0, 1, 2)
    return made


def _register(world: World, request: m.BrokerRegistrationRequest) -> m.BrokerRegistrationResponse:
    return world.run(register_broker(world.image, request, world.context, world.sessions))


def _refused(world: World, request: m.BrokerRegistrationRequest) -> tuple[ErrorCode, str | None]:
    result = register_broker(world.image, request, world.context, world.sessions)
    assert result.records == []
    return ErrorCode(result.response.error_code), result.refusal


def test_a_broker_starts_fenced_with_its_offset_as_epoch() -> None:
    world = World()
    answer = _register(world, world.registration(7, rack="r1"))
    broker = world.image.brokers[7]
    assert answer.broker_epoch == broker.epoch == world.offset
    assert broker.fenced
    assert broker.rack == "r1"
    assert broker.features[METADATA_VERSION].last == 30


def test_a_broker_is_unfenced_once_it_has_read_its_registration() -> None:
    world = World()
    epoch = _register(world, world.registration(7)).broker_epoch
    behind = world.heartbeat(7, offset=epoch - 1)
    assert (behind.is_caught_up, behind.is_fenced) == (False, True)
    waiting = world.heartbeat(7, offset=epoch, want_fence=True)
    assert (waiting.is_caught_up, waiting.is_fenced) == (True, True)
    ready = world.heartbeat(7, offset=epoch)
    assert (ready.is_caught_up, ready.is_fenced, ready.should_shut_down) == (True, False, False)
    assert world.image.is_active(7)
    assert diff(world.image, world.image).is_empty


def test_a_heartbeat_without_news_writes_nothing(world: World) -> None:
    before = world.offset
    world.heartbeat(0)
    assert world.offset == before


def test_a_registration_asked_for_twice_is_one(world: World) -> None:
    epoch = world.image.brokers[0].epoch
    answer = _register(world, world.registration(0, rack="moved"))
    assert answer.broker_epoch == epoch
    assert world.image.brokers[0].rack == "moved"
    assert not world.image.brokers[0].fenced


def test_two_brokers_with_one_id(world: World) -> None:
    code, why = _refused(world, world.registration(0, incarnation=1))
    assert code == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert why is not None
    assert why.startswith("Another broker is registered with that broker id.")
    world.now_ms += SESSION_TIMEOUT_MS + 1
    assert _register(world, world.registration(0, incarnation=1)).error_code == ErrorCode.NONE
    assert world.image.brokers[0].fenced


def test_a_new_controller_gives_everybody_time_but_knows_its_own_broker_is_gone(world: World) -> None:
    world.sessions.activate(world.image, world.now_ms, own_broker_id=2)
    assert _refused(world, world.registration(1, incarnation=1))[0] == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert _register(world, world.registration(2, incarnation=1)).error_code == ErrorCode.NONE
    world.now_ms += SESSION_TIMEOUT_MS + 1
    world.commit(world.fence_stale())
    assert all(broker.fenced for broker in world.image.brokers.values())


def test_a_new_controller_fences_the_former_life_of_its_own_broker(world: World) -> None:
    """Opening its logs may take longer than a session: until it registers, its partitions need other leaders."""
    world.create_assigned("orders", [2, 0])
    world.sessions.activate(world.image, world.now_ms, own_broker_id=2)
    for broker_id in (0, 1):
        world.now_ms += SESSION_TIMEOUT_MS
        for each in (0, 1):
            world.heartbeat(each)
        assert not world.image.brokers[broker_id].fenced
    world.commit(world.fence_stale())
    assert [each.fenced for each in world.image.brokers.values()] == [False, False, True]
    assert world.partition("orders").leader == 0
    assert _register(world, world.registration(2, incarnation=1)).error_code == ErrorCode.NONE


def test_a_controller_that_takes_over_knows_that_its_own_broker_lives(world: World) -> None:
    world.sessions.activate(world.image, world.now_ms, own_broker_id=2, own_epoch=world.image.brokers[2].epoch)
    assert _refused(world, world.registration(2, incarnation=1))[0] == ErrorCode.DUPLICATE_BROKER_REGISTRATION


def test_registrations_that_are_refused(world: World) -> None:
    good = world.registration(9)
    assert _refused(world, good.replace(cluster_id="another")) == (
        ErrorCode.INCONSISTENT_CLUSTER_ID,
        "Expected cluster ID a-cluster, but got cluster ID another",
    )
    assert _refused(world, good.replace(is_migrating_zk_broker=True))[0] == ErrorCode.BROKER_ID_NOT_REGISTERED
    for log_dirs, why in (
        ([], "No directories specified in request"),
        ([bytes(15) + b"\x63"], "Reserved directory ID in request"),
        ([b"x" * 16, b"x" * 16], "Duplicate directory ID in request"),
    ):
        assert _refused(world, good.replace(log_dirs=log_dirs)) == (ErrorCode.INVALID_REGISTRATION, why)
    taken = world.image.brokers[1].directories[0]
    code, reason = _refused(world, good.replace(log_dirs=[taken]))
    assert code == ErrorCode.INVALID_REGISTRATION
    assert reason is not None
    assert reason.startswith("Broker 1 is already registered with directory")
    without = [feature for feature in good.features if feature.name != METADATA_VERSION]
    assert _refused(world, good.replace(features=without))[0] == ErrorCode.INVALID_REGISTRATION
    old = m.BrokerRegistrationRequest.Feature(METADATA_VERSION, 7, 29)
    assert _refused(world, good.replace(features=[*without, old])) == (
        ErrorCode.UNSUPPORTED_VERSION,
        "Unable to register because the broker does not support finalized version 30 of metadata.version. The broker "
        "wants a version between 7 and 29, inclusive.",
    )
    no_elr = [feature for feature in good.features if feature.name != ELR_VERSION]
    assert _refused(world, good.replace(features=no_elr))[0] == ErrorCode.UNSUPPORTED_VERSION


def test_requests_of_another_incarnation_are_stale(world: World) -> None:
    request = m.BrokerHeartbeatRequest(0, world.image.brokers[0].epoch - 1)
    result = broker_heartbeat(world.image, request, world.context, world.sessions)
    assert result.response.error_code == ErrorCode.STALE_BROKER_EPOCH
    assert result.refusal is not None
    assert result.refusal.startswith("Expected broker epoch")
    unknown = broker_heartbeat(world.image, m.BrokerHeartbeatRequest(77, 1), world.context, world.sessions)
    assert unknown.refusal == "No broker registration found for broker id 77"


def test_deciding_changes_no_session(world: World) -> None:
    """The controller is a function: whoever asked it applies what it says, once the records are appended."""
    before = copy.deepcopy(world.sessions._sessions)
    world.now_ms += 100
    heard = m.BrokerHeartbeatRequest(1, world.image.brokers[1].epoch, 5)
    for result in (
        broker_heartbeat(world.image, heard, world.context, world.sessions),
        register_broker(world.image, world.registration(7), world.context, world.sessions),
    ):
        assert result.sessions
        assert world.sessions._sessions == before
        world.sessions.update(result.sessions)
        assert world.sessions._sessions != before
        before = copy.deepcopy(world.sessions._sessions)


def test_silence_is_fencing_and_somebody_else_leads(world: World) -> None:
    world.create_assigned("orders", [0, 1, 2], [1, 2, 0])
    world.now_ms += SESSION_TIMEOUT_MS
    for broker_id in (1, 2):
        world.heartbeat(broker_id)
    assert world.sessions.next_check_ms() == SESSION_TIMEOUT_MS
    assert world.fence_stale() == []
    world.now_ms += 1
    world.commit(world.fence_stale())
    assert world.image.brokers[0].fenced
    assert (world.partition("orders", 0).leader, world.partition("orders", 0).isr) == (1, (1, 2))
    assert (world.partition("orders", 1).leader, world.partition("orders", 1).isr) == (1, (1, 2))
    assert (world.partition("orders", 0).leader_epoch, world.partition("orders", 1).leader_epoch) == (1, 0)
    assert world.fence_stale() == []


def test_brokers_that_fall_silent_together_do_not_inherit_from_each_other(world: World) -> None:
    world.create_assigned("orders", [0, 1, 2])
    world.now_ms += SESSION_TIMEOUT_MS + 1
    world.heartbeat(2)
    world.commit(world.fence_stale())
    partition = world.partition("orders")
    assert (partition.leader, partition.isr, partition.leader_epoch) == (2, (2,), 2)


def test_a_controlled_shutdown_moves_leaderships_first(world: World) -> None:
    """B10: the broker goes only when the others know that it leads nothing any more."""
    world.create_assigned("orders", [0, 1, 2])
    asked = world.heartbeat(0, want_shut_down=True)
    assert (asked.is_fenced, asked.should_shut_down) == (False, False)
    assert world.image.brokers[0].in_controlled_shutdown
    assert (world.partition("orders").leader, world.partition("orders").isr) == (1, (1, 2))
    moved_at = world.offset
    assert not world.heartbeat(0, want_shut_down=True).should_shut_down
    world.heartbeat(1, offset=moved_at)
    assert not world.heartbeat(0, want_shut_down=True).should_shut_down
    world.heartbeat(2, offset=moved_at - 1)
    assert not world.heartbeat(0, want_shut_down=True).should_shut_down
    world.heartbeat(2, offset=moved_at)
    done = world.heartbeat(0, want_shut_down=True)
    assert (done.is_fenced, done.should_shut_down) == (True, True)
    assert world.image.brokers[0].fenced


def test_a_broker_without_leaderships_may_go_at_once(world: World) -> None:
    assert world.heartbeat(0, want_shut_down=True).should_shut_down
    assert world.image.brokers[0].fenced
    assert world.heartbeat(0, want_shut_down=True).should_shut_down


@pytest.mark.parametrize("elr", [0, 1])
def test_a_single_node_stops_and_starts_again(elr: int) -> None:
    world = World(features={ELR_VERSION: elr})
    world.register(1)
    world.create("orders", 3)
    assert not world.heartbeat(1, want_shut_down=True).should_shut_down
    assert all(p.leader == NO_LEADER for _, _, p in world.image.partitions())
    assert world.heartbeat(1, want_shut_down=True).should_shut_down
    epoch = world.image.brokers[1].epoch
    world.sessions.activate(world.image, world.now_ms, own_broker_id=1)
    _register(world, world.registration(1, incarnation=1, previous_epoch=epoch))
    assert not world.heartbeat(1).is_fenced
    for _, _, partition in world.image.partitions():
        assert (partition.leader, partition.isr, partition.elr) == (1, (1,), ())
        assert partition.leader_recovery_state == 0


@pytest.mark.parametrize("elr", [0, 1])
def test_a_single_node_that_was_killed_leads_again(elr: int) -> None:
    """Nobody else has the records: the last known leader is taken back, marked as recovering if ELR is on."""
    world = World(features={ELR_VERSION: elr})
    world.register(1)
    world.create("orders", 3)
    world.sessions.activate(world.image, world.now_ms, own_broker_id=1)
    _register(world, world.registration(1, incarnation=1))
    assert all(p.leader == NO_LEADER for _, _, p in world.image.partitions())
    assert not world.heartbeat(1).is_fenced
    for _, _, partition in world.image.partitions():
        assert (partition.leader, partition.isr) == (1, (1,))
        assert partition.leader_recovery_state == elr


def test_a_failed_directory_takes_its_partitions_only(world: World) -> None:
    request = world.registration(3).replace(log_dirs=[b"A" * 16, b"B" * 16])
    _register(world, request)
    world.heartbeat(3)
    world.create_assigned("orders", [3, 0], [3, 1])
    topic_id = world.image.topics["orders"].topic_id

    def directory(raw: bytes, partition: int) -> m.AssignReplicasToDirsRequest.DirectoryData:
        return AssignDirs.DirectoryData(raw, [AssignDirs.TopicData(topic_id, [AssignDirs.PartitionData(partition)])])

    assign = AssignDirs(3, world.image.brokers[3].epoch, [directory(b"A" * 16, 0), directory(b"B" * 16, 1)])
    world.run(assign_replicas_to_dirs(world.image, assign, world.context))
    world.heartbeat(3, offline=[b"A" * 16])
    assert world.image.brokers[3].directories == (b"B" * 16,)
    assert (world.partition("orders", 0).leader, world.partition("orders", 0).isr) == (0, (0,))
    assert (world.partition("orders", 1).leader, world.partition("orders", 1).isr) == (3, (3, 1))
    written = world.offset
    world.heartbeat(3, offline=[b"A" * 16])
    assert world.offset == written


def test_cordoned_directories_are_remembered(world: World) -> None:
    directory = world.image.brokers[0].directories[0]
    world.heartbeat(0, cordoned=[directory])
    assert world.image.brokers[0].cordoned_directories == (directory,)
    assert not world.image.brokers[0].has_uncordoned_dirs
    written = world.offset
    world.heartbeat(0, cordoned=[directory])
    assert world.offset == written
    world.heartbeat(0, cordoned=[])
    assert world.image.brokers[0].has_uncordoned_dirs


def test_an_unregistered_broker_is_forgotten(world: World) -> None:
    world.create_assigned("orders", [0, 1])
    answer = world.run(unregister_broker(world.image, m.UnregisterBrokerRequest(0), world.context))
    assert answer.error_code == ErrorCode.NONE
    assert 0 not in world.image.brokers
    assert (world.partition("orders").leader, world.partition("orders").isr) == (1, (1,))
    assert world.partition("orders").replicas == (0, 1)
    again = unregister_broker(world.image, m.UnregisterBrokerRequest(0), world.context)
    assert again.response.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    assert again.response.error_message == "Broker ID 0 is not currently registered"


def test_controllers_register(world: World) -> None:
    request = m.ControllerRegistrationRequest(
        5,
        b"c" * 16,
        False,
        [m.ControllerRegistrationRequest.Listener("CONTROLLER", "localhost", 9093, 0)],
        [m.ControllerRegistrationRequest.Feature(METADATA_VERSION, 7, 30)],
    )
    world.run(register_controller(world.image, request, world.context))
    assert world.image.controllers[5].endpoints[0].port == 9093


def test_producer_ids_come_in_blocks_and_never_twice(world: World) -> None:
    def allocate(broker_id: int, epoch: int) -> m.AllocateProducerIdsResponse:
        request = m.AllocateProducerIdsRequest(broker_id, epoch)
        return world.run(allocate_producer_ids(world.image, request, world.context))

    blocks = [allocate(broker_id, world.image.brokers[broker_id].epoch) for broker_id in (0, 1, 0)]
    assert [(block.producer_id_start, block.producer_id_len) for block in blocks] == [
        (0, 1000),
        (1000, 1000),
        (2000, 1000),
    ]
    assert allocate(0, 12345).error_code == ErrorCode.STALE_BROKER_EPOCH
    world.image = replace(world.image, next_producer_id=(1 << 63) - 500)
    assert allocate(0, world.image.brokers[0].epoch).error_code == ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_broker_whose_last_directory_failed_is_fenced(world: World) -> None:
    """A record that lists no directories says nothing about them: it would stay electable."""
    world.create_assigned("t", [0, 1])
    everything = list(world.image.brokers[0].directories)
    assert everything
    assert world.heartbeat(0, offline=everything).is_fenced
    assert world.image.brokers[0].fenced
    assert world.partition("t").leader == 1
    before = world.offset
    assert world.heartbeat(0, offline=everything).is_fenced, "and stays it"
    assert world.offset == before
    assert world.heartbeat(0, offline=everything, want_shut_down=True).should_shut_down
