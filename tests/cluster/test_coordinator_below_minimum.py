"""While the offsets' topic has too few replicas in sync, commits are refused, and bystanders notice nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from moldau.testing import Cluster
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.wire_client import WireClient
from tests.cluster.workload import wait_until

SETTINGS = {
    "offsets.topic.num.partitions": "1",  # one shard for all groups
    "offsets.topic.replication.factor": "2",
    "min.insync.replicas": "2",
    "replica.lag.time.max.ms": "1500",
    "replica.fetch.wait.max.ms": "300",
    "group.initial.rebalance.delay.ms": "0",
}
SESSION_MS = 60_000
REFUSALS = 100


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    """Node 1 is the controller and the offsets' one replica is with it, the other with broker 2."""
    with Cluster(nodes=1, settings=SETTINGS) as running:
        running.add_broker(2)
        running.create_topics({"t": 1})
        yield running


def commit(client: WireClient, group: str, offset: int) -> ErrorCode:
    kind = m.OffsetCommitRequest
    partition = kind.OffsetCommitRequestPartition(0, offset)
    topic = kind.OffsetCommitRequestTopic(name="t", partitions=[partition])
    answer = client.ask(kind(group_id=group, generation_id_or_member_epoch=-1, member_id="", topics=[topic]), 8)
    return ErrorCode(answer.topics[0].partitions[0].error_code)


def join(client: WireClient, group: str) -> m.JoinGroupResponse:
    def ask(member_id: str) -> m.JoinGroupResponse:
        kind = m.JoinGroupRequest
        protocols = [kind.JoinGroupRequestProtocol("range", b"")]
        answer: m.JoinGroupResponse = client.ask(
            kind(group, SESSION_MS, SESSION_MS, member_id, None, "consumer", protocols), 7
        )
        return answer

    joined = ask(ask("").member_id)
    assert joined.error_code == ErrorCode.NONE
    synced = client.ask(m.SyncGroupRequest(group, joined.generation_id, joined.member_id), 4)
    assert synced.error_code == ErrorCode.NONE
    return joined


def committed(client: WireClient, group: str) -> tuple[ErrorCode, int]:
    kind = m.OffsetFetchRequest
    topic = kind.OffsetFetchRequestTopics(name="t", partition_indexes=[0])
    found = client.ask(kind(groups=[kind.OffsetFetchRequestGroup(group, topics=[topic])]), 8).groups[0]
    if found.error_code != ErrorCode.NONE:
        return ErrorCode(found.error_code), -1
    return ErrorCode.NONE, found.topics[0].partitions[0].committed_offset


def test_refused_commits_cost_a_bystander_nothing(cluster: Cluster) -> None:
    find = m.FindCoordinatorRequest(key_type=0, coordinator_keys=["any"])
    with WireClient(cluster.bootstrap_servers.split(",")[0]) as client:

        def coordinator() -> int:
            found = client.ask(find, 4).coordinators[0]
            return int(found.node_id) if found.error_code == ErrorCode.NONE else -1

        wait_until(lambda: coordinator() > 0, "the groups have a coordinator")
        leader = coordinator()
    if leader != 1:  # the controller must stay
        cluster.restart(leader)
    with WireClient(cluster.address(1)) as committer, WireClient(cluster.address(1)) as bystander:
        wait_until(lambda: commit(committer, "committer", 1) == ErrorCode.NONE, "node 1 takes commits")
        member = join(bystander, "bystander")
        heartbeat = m.HeartbeatRequest("bystander", member.generation_id, member.member_id)
        modern = m.ConsumerGroupHeartbeatRequest(
            "modern", "one", 0, rebalance_timeout_ms=SESSION_MS, subscribed_topic_names=["t"], topic_partitions=[]
        )
        epoch = bystander.ask(modern, 1).member_epoch
        still_there = m.ConsumerGroupHeartbeatRequest("modern", "one", epoch)
        assert commit(bystander, "reader", 7) == ErrorCode.NONE
        cluster.crash(2)
        wait_until(
            lambda: commit(committer, "committer", 2) == ErrorCode.COORDINATOR_NOT_AVAILABLE,
            "a replica is missing",
        )
        for number in range(REFUSALS):
            assert commit(committer, "committer", number) == ErrorCode.COORDINATOR_NOT_AVAILABLE
            assert bystander.ask(heartbeat, 4).error_code == ErrorCode.NONE
            assert bystander.ask(still_there, 1).error_code == ErrorCode.NONE
            assert committed(bystander, "reader") == (ErrorCode.NONE, 7)
        cluster.start_node(2)
        wait_until(lambda: commit(committer, "committer", 3) == ErrorCode.NONE, "the replica is back")
        assert bystander.ask(heartbeat, 4).error_code == ErrorCode.NONE
