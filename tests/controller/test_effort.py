"""What takes long to decide is known before."""

import pytest

from moldau.controller.effort import exceeds
from moldau.wire import messages as m
from moldau.wire.message import Message
from tests.controller.world import World

LIMIT = 100
MANY = LIMIT + 2
Create, Grow, Delete = m.CreateTopicsRequest, m.CreatePartitionsRequest, m.DeleteTopicsRequest
Move, Isr, Elect = m.AlterPartitionReassignmentsRequest, m.AlterPartitionRequest, m.ElectLeadersRequest
Dirs, Incremental, Alter = m.AssignReplicasToDirsRequest, m.IncrementalAlterConfigsRequest, m.AlterConfigsRequest
Quotas, Scram = m.AlterClientQuotasRequest, m.AlterUserScramCredentialsRequest


def of_many(count: int) -> list[Message]:
    """A request of each kind that makes about so many records, or looks at so many things."""
    return [
        Create([Create.CreatableTopic("t", count, 1)]),
        Create([Create.CreatableTopic(f"t{at}", 1, 1) for at in range(count // 2)]),
        Create([Create.CreatableTopic(f"t{at}", -1, -1) for at in range(count // 2)]),
        Create(
            [Create.CreatableTopic("t", -1, -1, [Create.CreatableReplicaAssignment(at, [1]) for at in range(count)])]
        ),
        Grow([Grow.CreatePartitionsTopic("present", 3 + count, None)]),
        Delete([], [f"t{at}" for at in range(count)]),
        Delete([Delete.DeleteTopicState(f"t{at}") for at in range(count)]),
        Move(1_000, True, [Move.ReassignableTopic("t", [Move.ReassignablePartition(at, [1]) for at in range(count)])]),
        Isr(1, 1, [Isr.TopicData(topics_id(), [Isr.PartitionData(at, 1) for at in range(count)])]),
        Elect(0, [Elect.TopicPartitions("t", list(range(count)))]),
        Dirs(1, 1, [Dirs.DirectoryData(topics_id(), [Dirs.TopicData(topics_id(), parts(count))])]),
        Incremental([Incremental.AlterConfigsResource(2, f"t{at}", []) for at in range(count)]),
        Alter([Alter.AlterConfigsResource(2, "t", [Alter.AlterableConfig(f"c{at}", "1") for at in range(count)])]),
        m.CreateAclsRequest([m.CreateAclsRequest.AclCreation() for _ in range(count)]),
        m.DeleteAclsRequest([m.DeleteAclsRequest.DeleteAclsFilter() for _ in range(count)]),
        Quotas([Quotas.EntryData([], [Quotas.OpData(f"q{at}") for at in range(count)])]),
        Scram([Scram.ScramCredentialDeletion(f"u{at}", 1) for at in range(count)]),
    ]


def topics_id() -> bytes:
    return bytes(15) + b"1"


def parts(count: int) -> list[m.AssignReplicasToDirsRequest.PartitionData]:
    return [Dirs.PartitionData(at) for at in range(count)]


@pytest.fixture(scope="module")
def world() -> World:
    made = World()
    made.register(1)
    made.create("present", 3, 1)
    return made


@pytest.mark.parametrize("kind", range(len(of_many(1))))
def test_every_command_that_may_make_many_records_is_weighed(world: World, kind: int) -> None:
    long, short = of_many(MANY)[kind], of_many(5)[kind]
    assert exceeds(LIMIT, world.image, long, world.context)
    assert not exceeds(LIMIT, world.image, short, world.context)


def test_an_election_of_everything_is_as_long_as_the_cluster_is_large(world: World) -> None:
    everything = Elect(0, None)
    assert not exceeds(LIMIT, world.image, everything, world.context)
    assert exceeds(3, world.image, everything, world.context)


def test_a_heartbeat_is_never_long(world: World) -> None:
    assert not exceeds(-1, world.image, m.BrokerHeartbeatRequest(), world.context)
