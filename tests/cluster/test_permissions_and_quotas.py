"""Rules and limits in a cluster: whichever broker a client asks, it is the client that is judged, and all obey."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from moldau.controller.acls import CLUSTER_NAME, Operation
from moldau.testing import Cluster
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.broker.requests.handlers.wire_client import WireClient
from tests.support.authorization_cases import (
    ADMIN_HOST,
    CLIENT_HOST,
    CLUSTER,
    EVERYTHING,
    SETTINGS,
    Grant,
    error_codes,
    topic,
)
from tests.support.clients import wait_for


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Replicas are fetched in small pieces, so that a throttle is soon noticed.
    pieces = {"replica.fetch.max.bytes": "50000", "replica.fetch.response.max.bytes": "50000"}
    windows = {"replication.quota.window.num": "2"}
    with Cluster(3, SETTINGS | pieces | windows | {"super.users": "User:nobody"}) as running:
        # The nodes come from the administrator's address: who is not allowed there cannot join again.
        with WireClient(running.bootstrap_servers.split(",")[0], host=ADMIN_HOST) as admin:
            answer = admin.ask(m.CreateAclsRequest([each.creation(ADMIN_HOST) for each in EVERYTHING]))
            assert error_codes(answer) == {0}
        yield running


@pytest.fixture(params=[0, 1, 2])
def address(request: pytest.FixtureRequest, cluster: Cluster) -> str:
    """Of each broker: one of them is the active controller, the others pass commands on to it."""
    return str(cluster.bootstrap_servers.split(",")[request.param])


def create(client: WireClient, name: str, partitions: int = 1) -> tuple[int, int]:
    kind = m.CreateTopicsRequest
    answer = client.ask(kind([kind.CreatableTopic(name, partitions, 1)], 10_000))
    return answer.topics[0].error_code, answer.throttle_time_ms


def test_a_forwarded_command_is_the_clients(cluster: Cluster, address: str) -> None:
    name = f"made-{address.rpartition(':')[2]}"
    grant = topic(Operation.CREATE, name)
    with WireClient(address, host=ADMIN_HOST) as admin, WireClient(address, host=CLIENT_HOST) as client:
        assert create(client, name)[0] == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert error_codes(client.ask(m.CreateAclsRequest([grant.creation()]))) == {
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        }
        assert error_codes(admin.ask(m.CreateAclsRequest([grant.creation()]))) == {0}
        assert create(client, name)[0] == 0


def test_every_broker_obeys_a_rule(cluster: Cluster) -> None:
    grant = Grant(CLUSTER, CLUSTER_NAME, Operation.DESCRIBE)
    first, *_ = addresses = cluster.bootstrap_servers.split(",")
    clients = [WireClient(each, host=CLIENT_HOST) for each in addresses]

    def may_list() -> list[bool]:
        answers = [each.ask(m.ListPartitionReassignmentsRequest(5_000, None)) for each in clients]
        return [answer.error_code == 0 for answer in answers]

    assert may_list() == [False] * 3
    with WireClient(first, host=ADMIN_HOST) as admin:
        admin.ask(m.CreateAclsRequest([grant.creation()]))
        wait_for(lambda: may_list() == [True] * 3, "all brokers know the rule")
        admin.ask(m.DeleteAclsRequest([grant.deletion()]))
        wait_for(lambda: may_list() == [False] * 3, "all brokers know that it is gone")
    for each in clients:
        each.close()


def test_changes_beyond_a_quota_are_refused_wherever_they_are_asked_for(cluster: Cluster, address: str) -> None:
    name = f"builder-{address.rpartition(':')[2]}"
    kind = m.AlterClientQuotasRequest
    limit = kind.EntryData([kind.EntityData("client-id", name)], [kind.OpData("controller_mutation_rate", 1)])
    with WireClient(address, host=ADMIN_HOST) as admin, WireClient(address, name, host=ADMIN_HOST) as builder:
        assert error_codes(admin.ask(kind([limit]))) == {0}
        assert create(builder, f"{name}-1", 12) == (0, 0)
        code, throttle_ms = create(builder, f"{name}-2")
        assert code == ErrorCode.THROTTLING_QUOTA_EXCEEDED
        assert 0 < throttle_ms <= 1_000
        started = time.monotonic()
        builder.ask(m.DescribeClusterRequest())
        assert time.monotonic() - started > throttle_ms / 1_000 - 0.1, "its broker silences it, not the controller"
        assert create(admin, f"{name}-3", 12)[0] == 0


def test_a_moving_replica_is_held_back(cluster: Cluster) -> None:
    """KIP-73: 1 MB at 500 kB a second, half of which may come at once."""
    name, size_bytes, rate = "moving", 1_000_000, 500_000
    first, *_ = cluster.bootstrap_servers.split(",")
    with WireClient(first, host=ADMIN_HOST) as admin:
        kind = m.CreateTopicsRequest
        assigned = [kind.CreatableReplicaAssignment(0, [1])]
        made = admin.ask(kind([kind.CreatableTopic(name, -1, -1, assigned)], 10_000))
        assert error_codes(made) == {0}
        for _ in range(20):
            assert admin.produce(name, [bytes(size_bytes // 20)]).error_code == 0
        for side in ("leader", "follower"):
            admin.alter(2, name, (f"{side}.replication.throttled.replicas", 0, "*"))
            admin.alter(4, "", (f"{side}.replication.throttled.rate", 0, str(rate)))
        moves = m.AlterPartitionReassignmentsRequest
        wanted = moves.ReassignableTopic(name, [moves.ReassignablePartition(0, [2])])
        started = time.monotonic()
        assert error_codes(admin.ask(moves(10_000, topics=[wanted]))) == {0}
        listed = m.ListPartitionReassignmentsRequest(5_000, None)
        wait_for(lambda: not admin.ask(listed).topics, "it has moved")
        took = time.monotonic() - started
        for side in ("leader", "follower"):
            admin.alter(4, "", (f"{side}.replication.throttled.rate", 1, None))
    assert 0.7 < took < 10, f"{took:.1f} s"
