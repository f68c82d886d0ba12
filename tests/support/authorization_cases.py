"""Each API with a request that needs permissions, and which: one table for Moldau alone and beside Apache Kafka.

The client whose permissions are tried is told apart by its address, so that no authentication is needed: everybody is
`User:ANONYMOUS`, and ACLs have hosts. `ADMIN_HOST` may do everything, which includes the nodes themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from moldau.controller.acls import CLUSTER_NAME, AclResource, Operation, Pattern, Permission
from moldau.records import BatchOptions, build_batch
from moldau.wire import ErrorCode, Message, Struct, apis
from moldau.wire import messages as m

ADMIN_HOST, CLIENT_HOST = "127.0.0.1", "127.0.0.2"
ANYBODY = "User:ANONYMOUS"
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",  # until the first ACLs are there
    "log.retention.ms": "-1",  # its records are old
}
TOPIC, GROUP, CLUSTER, TXN = (
    AclResource.TOPIC,
    AclResource.GROUP,
    AclResource.CLUSTER,
    AclResource.TRANSACTIONAL_ID,
)
T, DOOMED, G, X = "seen", "doomed", "readers", "writer"
NO_TOPIC = ErrorCode.TOPIC_AUTHORIZATION_FAILED
NO_GROUP = ErrorCode.GROUP_AUTHORIZATION_FAILED
NO_CLUSTER = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
NO_TXN = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
REFUSALS = frozenset({NO_TOPIC, NO_GROUP, NO_CLUSTER, NO_TXN, ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED})
HIDDEN = None
_UTC_MS = 1_700_000_000_000


@dataclass(slots=True, frozen=True)
class Grant:
    kind: int
    name: str
    operation: int

    def creation(self, host: str = CLIENT_HOST) -> m.CreateAclsRequest.AclCreation:
        return m.CreateAclsRequest.AclCreation(
            self.kind, self.name, Pattern.LITERAL, ANYBODY, host, self.operation, Permission.ALLOW
        )

    def deletion(self, host: str = CLIENT_HOST) -> m.DeleteAclsRequest.DeleteAclsFilter:
        return m.DeleteAclsRequest.DeleteAclsFilter(
            self.kind, self.name, Pattern.LITERAL, ANYBODY, host, self.operation, Permission.ALLOW
        )


EVERYTHING = [
    Grant(kind, CLUSTER_NAME if kind == CLUSTER else "*", Operation.ALL) for kind in (TOPIC, GROUP, CLUSTER, TXN)
]


@dataclass(slots=True, frozen=True)
class Case:
    """A request, the grants that let it pass together, and the refusal (or HIDDEN) without any of them."""

    name: str
    request: Callable[[dict[str, bytes]], Message]
    needs: tuple[Grant, ...]
    refusal: ErrorCode | None
    versions: tuple[int, ...] = ()
    all_needed: bool = True
    """Otherwise one of the grants lets it pass too, and is told something else."""

    def steps(self) -> Iterator[tuple[str, tuple[Grant, ...]]]:
        """Nothing is granted, each alone, then all."""
        yield "nothing", ()
        if len(self.needs) > 1:
            for grant in self.needs:
                yield f"{grant.operation} on {grant.name}", (grant,)
        yield "everything", self.needs


def topic(operation: int, name: str = T) -> Grant:
    return Grant(TOPIC, name, operation)


def group(operation: int, name: str = G) -> Grant:
    return Grant(GROUP, name, operation)


def cluster(operation: int) -> Grant:
    return Grant(CLUSTER, CLUSTER_NAME, operation)


def txn(operation: int) -> Grant:
    return Grant(TXN, X, operation)


def error_codes(answer: Any) -> set[int]:
    """Every error code anywhere in an answer."""
    if isinstance(answer, list | tuple):
        return {code for each in answer for code in error_codes(each)}
    if not isinstance(answer, Struct):
        return set()
    found = {code for slot in answer.__slots__ for code in error_codes(getattr(answer, slot))}
    return found | {getattr(answer, slot) for slot in ("error_code", "partition_error_code") if hasattr(answer, slot)}


def batch(**options: Any) -> bytes:
    return bytes(build_batch([(0, _UTC_MS, b"k", b"v", ())], BatchOptions(**options)))


def _produce(ids: dict[str, bytes], **options: Any) -> m.ProduceRequest:
    kind = m.ProduceRequest
    transactional_id = X if options.get("transactional") else None
    if options:
        options = {"producer_id": 4_000, "producer_epoch": 0, "base_sequence": 0, "transactional": True}
    data = [kind.PartitionProduceData(0, batch(**options))]
    return kind(transactional_id, -1, 5_000, [kind.TopicProduceData(T, ids[T], data)])


def _fetch(ids: dict[str, bytes], replica_id: int = -1) -> m.FetchRequest:
    kind = m.FetchRequest
    wanted = kind.FetchPartition(0, -1, 0, -1, -1, 1 << 20)
    return kind(
        replica_id=replica_id,
        replica_state=kind.ReplicaState(replica_id, -1),
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1 << 20,
        session_epoch=-1,
        topics=[kind.FetchTopic(T, ids[T], [wanted])],
    )


def _list_offsets(_ids: dict[str, bytes]) -> Message:
    kind = m.ListOffsetsRequest
    return kind(-1, topics=[kind.ListOffsetsTopic(T, [kind.ListOffsetsPartition(0, -1, -1)])])


def _epochs(_ids: dict[str, bytes]) -> Message:
    kind = m.OffsetForLeaderEpochRequest
    return kind(-1, [kind.OffsetForLeaderTopic(T, [kind.OffsetForLeaderPartition(0, -1, 0)])])


def _delete_records(_ids: dict[str, bytes]) -> Message:
    kind = m.DeleteRecordsRequest
    return kind([kind.DeleteRecordsTopic(T, [kind.DeleteRecordsPartition(0, 0)])], 5_000)


def offset_commit(ids: dict[str, bytes]) -> Message:
    kind = m.OffsetCommitRequest
    return kind(G, topics=[kind.OffsetCommitRequestTopic(T, ids[T], [kind.OffsetCommitRequestPartition(0, 1)])])


def _offset_fetch(ids: dict[str, bytes], *, all_topics: bool = False) -> Message:
    kind = m.OffsetFetchRequest
    one = None if all_topics else [kind.OffsetFetchRequestTopic(T, [0])]
    many = None if all_topics else [kind.OffsetFetchRequestTopics(T, ids[T], [0])]
    return kind(G, one, [kind.OffsetFetchRequestGroup(G, topics=many)])


def _offset_delete(_ids: dict[str, bytes]) -> Message:
    kind = m.OffsetDeleteRequest
    return kind(G, [kind.OffsetDeleteRequestTopic(T, [kind.OffsetDeleteRequestPartition(0)])])


def _join(_ids: dict[str, bytes]) -> Message:
    kind = m.JoinGroupRequest
    return kind(G, 30_000, 30_000, "", None, "consumer", [kind.JoinGroupRequestProtocol("range", b"")])


def _consumer_heartbeat(_ids: dict[str, bytes]) -> Message:
    return m.ConsumerGroupHeartbeatRequest(
        "modern", "A" * 22, 0, rebalance_timeout_ms=30_000, subscribed_topic_names=[T], topic_partitions=[]
    )


def _add_partitions(_ids: dict[str, bytes]) -> Message:
    kind = m.AddPartitionsToTxnRequest
    topics = [kind.AddPartitionsToTxnTopic(T, [0])]
    return kind([kind.AddPartitionsToTxnTransaction(X, 4_000, 0, False, topics)], X, 4_000, 0, topics)


def _txn_offset_commit(_ids: dict[str, bytes]) -> Message:
    kind = m.TxnOffsetCommitRequest
    partitions = [kind.TxnOffsetCommitRequestPartition(0, 1)]
    return kind(X, G, 4_000, 0, topics=[kind.TxnOffsetCommitRequestTopic(T, partitions)])


def _markers(_ids: dict[str, bytes]) -> Message:
    kind = m.WriteTxnMarkersRequest
    return kind([kind.WritableTxnMarker(4_000, 0, False, [kind.WritableTxnMarkerTopic("nowhere", [0])], 0)])


def _metadata(name: str | None = T, topic_id: bytes = bytes(16), **fields: Any) -> Message:
    kind = m.MetadataRequest
    return kind([kind.MetadataRequestTopic(topic_id, name)], **{"allow_auto_topic_creation": False, **fields})


def _create(name: str) -> Callable[[dict[str, bytes]], Message]:
    kind = m.CreateTopicsRequest
    return lambda _: kind([kind.CreatableTopic(name, 1, 1)], 5_000)


def _delete(ids: dict[str, bytes], *, by_id: bool) -> Message:
    kind = m.DeleteTopicsRequest
    state = kind.DeleteTopicState(None, ids[DOOMED]) if by_id else kind.DeleteTopicState(T)
    return kind([state], [T], 5_000)


def _create_partitions(_ids: dict[str, bytes]) -> Message:
    kind = m.CreatePartitionsRequest
    return kind([kind.CreatePartitionsTopic(T, 1)], 5_000)


def _describe_configs(kind_number: int, name: str) -> Callable[[dict[str, bytes]], Message]:
    kind = m.DescribeConfigsRequest
    return lambda _: kind([kind.DescribeConfigsResource(kind_number, name, ["retention.ms", "num.io.threads"])])


def _alter_configs(kind_number: int, name: str, key: str, value: str) -> Callable[[dict[str, bytes]], Message]:
    kind = m.AlterConfigsRequest
    return lambda _: kind([kind.AlterConfigsResource(kind_number, name, [kind.AlterableConfig(key, value)])], True)


def _incremental(kind_number: int, name: str, key: str, value: str) -> Callable[[dict[str, bytes]], Message]:
    kind = m.IncrementalAlterConfigsRequest
    return lambda _: kind([kind.AlterConfigsResource(kind_number, name, [kind.AlterableConfig(key, 0, value)])], True)


def _reassign(_ids: dict[str, bytes]) -> Message:
    kind = m.AlterPartitionReassignmentsRequest
    return kind(5_000, topics=[kind.ReassignableTopic(T, [kind.ReassignablePartition(0, None)])])


def _elect(_ids: dict[str, bytes]) -> Message:
    kind = m.ElectLeadersRequest
    return kind(0, [kind.TopicPartitions(T, [0])], 5_000)


def _quorum(_ids: dict[str, bytes]) -> Message:
    kind = m.DescribeQuorumRequest
    return kind([kind.TopicData("__elsewhere", [kind.PartitionData(0)])])


def _log_dirs(_ids: dict[str, bytes]) -> Message:
    kind = m.AlterReplicaLogDirsRequest
    return kind([kind.AlterReplicaLogDir("/nowhere", [kind.AlterReplicaLogDirTopic(T, [0])])])


def _quotas(_ids: dict[str, bytes]) -> Message:
    kind = m.AlterClientQuotasRequest
    entry = kind.EntryData([kind.EntityData("client-id", "slow")], [kind.OpData("producer_byte_rate", 1e6)])
    return kind([entry], True)


def _scram_users(_ids: dict[str, bytes]) -> Message:
    # Not all of them: Apache Kafka 4.3.1 fails at refusing that, and never answers.
    return m.DescribeUserScramCredentialsRequest([m.DescribeUserScramCredentialsRequest.UserName("nobody")])


def _scram(_ids: dict[str, bytes]) -> Message:
    kind = m.AlterUserScramCredentialsRequest
    return kind([kind.ScramCredentialDeletion("nobody", 1)], [])


def _acl_creation(_ids: dict[str, bytes]) -> Message:
    return m.CreateAclsRequest([Grant(GROUP, "other", Operation.READ).creation("10.0.0.1")])


def _acl_deletion(_ids: dict[str, bytes]) -> Message:
    return m.DeleteAclsRequest([Grant(GROUP, "other", Operation.READ).deletion("10.0.0.1")])


def _acl_description(_ids: dict[str, bytes]) -> Message:
    return m.DescribeAclsRequest(GROUP, "nothing", Pattern.LITERAL, None, None, 1, 1)


def _features(_ids: dict[str, bytes]) -> Message:
    kind = m.UpdateFeaturesRequest
    return kind(5_000, [kind.FeatureUpdateKey("no.such.feature", 1, False, 1)], True)


def _voter(_ids: dict[str, bytes]) -> Message:
    return m.AddRaftVoterRequest("another cluster", 5_000, 9, b"\x05" * 16, [])


def _reads(name: str, request: Callable[..., Message], *fields: Any) -> Case:
    return Case(name, lambda _: request(G, *fields), (group(Operation.READ),), NO_GROUP)


def _on_cluster(name: str, request: Callable[[dict[str, bytes]], Message], operation: int) -> Case:
    return Case(name, request, (cluster(operation),), NO_CLUSTER)


O = Operation  # noqa: E741 - the table below is wide
CASES = [
    Case("produce", _produce, (topic(O.WRITE),), NO_TOPIC, (11, 12, 13)),
    Case(
        "produce in a transaction",
        lambda ids: _produce(ids, transactional=True),
        (txn(O.WRITE), topic(O.WRITE)),
        NO_TXN,
        (11,),
    ),
    Case("fetch", _fetch, (topic(O.READ),), NO_TOPIC, (11, 12, 13, 17)),
    Case("fetch as a follower", lambda ids: _fetch(ids, 77), (cluster(O.CLUSTER_ACTION),), NO_TOPIC, (12, 17)),
    Case("list offsets", _list_offsets, (topic(O.DESCRIBE),), NO_TOPIC),
    Case("list offsets of a reader", _list_offsets, (topic(O.READ),), NO_TOPIC),
    Case("epochs", _epochs, (topic(O.DESCRIBE),), NO_TOPIC),
    Case("epochs for a broker", _epochs, (cluster(O.CLUSTER_ACTION),), NO_TOPIC),
    Case("delete records", _delete_records, (topic(O.DELETE),), NO_TOPIC),
    Case(
        "describe producers",
        lambda _: m.DescribeProducersRequest([m.DescribeProducersRequest.TopicRequest(T, [0])]),
        (topic(O.READ),),
        NO_TOPIC,
    ),
    Case("find a group", lambda _: m.FindCoordinatorRequest(G, 0, [G]), (group(O.DESCRIBE),), NO_GROUP, (3, 6)),
    Case("find a transaction", lambda _: m.FindCoordinatorRequest(X, 1, [X]), (txn(O.DESCRIBE),), NO_TXN, (3, 6)),
    Case("join", _join, (group(O.READ),), NO_GROUP, (4, 6, 9)),
    _reads("sync", m.SyncGroupRequest, 1, "nobody", None, "consumer", "range"),
    _reads("heartbeat", m.HeartbeatRequest, 1, "nobody"),
    Case(
        "leave",
        lambda _: m.LeaveGroupRequest(G, "nobody", [m.LeaveGroupRequest.MemberIdentity("nobody")]),
        (group(O.READ),),
        NO_GROUP,
        (2, 5),
    ),
    Case(
        "consumer heartbeat",
        _consumer_heartbeat,
        (group(O.READ, "modern"), topic(O.DESCRIBE)),
        NO_GROUP,
    ),
    Case(
        "consumer group describe",
        lambda _: m.ConsumerGroupDescribeRequest(["modern"], True),
        (group(O.DESCRIBE, "modern"), topic(O.DESCRIBE)),
        NO_GROUP,
        all_needed=False,  # unless it has members: the case above makes one
    ),
    Case("commit offsets", offset_commit, (group(O.READ), topic(O.READ)), NO_GROUP, (8, 9, 10)),
    Case("fetch offsets", _offset_fetch, (group(O.DESCRIBE), topic(O.DESCRIBE)), NO_GROUP, (5, 7, 9, 10)),
    Case(
        "fetch all offsets",
        lambda ids: _offset_fetch(ids, all_topics=True),
        (group(O.DESCRIBE), topic(O.DESCRIBE)),
        NO_GROUP,
        (7, 9),
        all_needed=False,
    ),
    Case("delete offsets", _offset_delete, (group(O.DELETE), topic(O.READ)), NO_GROUP),
    Case("describe groups", lambda _: m.DescribeGroupsRequest([G], True), (group(O.DESCRIBE),), NO_GROUP),
    Case("list groups", lambda _: m.ListGroupsRequest(), (group(O.DESCRIBE),), HIDDEN),
    Case("list all groups", lambda _: m.ListGroupsRequest(), (cluster(O.DESCRIBE),), HIDDEN),
    Case("delete groups", lambda _: m.DeleteGroupsRequest(["nobodys"]), (group(O.DELETE, "nobodys"),), NO_GROUP),
    Case("an idempotent writer", lambda _: m.InitProducerIdRequest(None, 1_000), (topic(O.WRITE),), NO_CLUSTER),
    Case(
        "a writer of the old permission",
        lambda _: m.InitProducerIdRequest(None, 1_000),
        (cluster(O.IDEMPOTENT_WRITE),),
        NO_CLUSTER,
    ),
    Case("a transactional writer", lambda _: m.InitProducerIdRequest(X, 1_000), (txn(O.WRITE),), NO_TXN, (4,)),
    Case("add partitions", _add_partitions, (txn(O.WRITE), topic(O.WRITE)), NO_TXN, (2, 3)),
    Case("add partitions as a broker", _add_partitions, (cluster(O.CLUSTER_ACTION),), NO_CLUSTER, (4, 5)),
    Case(
        "add offsets",
        lambda _: m.AddOffsetsToTxnRequest(X, 4_000, 0, G),
        (txn(O.WRITE), group(O.READ)),
        NO_TXN,
    ),
    Case("end a transaction", lambda _: m.EndTxnRequest(X, 4_000, 0, True), (txn(O.WRITE),), NO_TXN, (3,)),
    Case(
        "commit offsets in a transaction",
        _txn_offset_commit,
        (txn(O.WRITE), group(O.READ), topic(O.READ)),
        NO_TXN,
        (3,),
    ),
    Case("markers", _markers, (cluster(O.CLUSTER_ACTION),), NO_CLUSTER),
    Case("markers of an administrator", _markers, (cluster(O.ALTER),), NO_CLUSTER),
    Case("describe transactions", lambda _: m.DescribeTransactionsRequest([X]), (txn(O.DESCRIBE),), NO_TXN),
    Case("list transactions", lambda _: m.ListTransactionsRequest(), (txn(O.DESCRIBE),), HIDDEN),
    Case("metadata", lambda _: _metadata(), (topic(O.DESCRIBE),), NO_TOPIC, (4, 9, 12)),
    Case("metadata by id", lambda ids: _metadata(None, ids[T]), (topic(O.DESCRIBE),), NO_TOPIC, (12, 13)),
    Case("metadata of all", lambda _: m.MetadataRequest(None), (topic(O.DESCRIBE),), HIDDEN),
    Case(
        "metadata with operations",
        lambda _: _metadata(include_cluster_authorized_operations=True, include_topic_authorized_operations=True),
        (topic(O.WRITE), cluster(O.DESCRIBE)),
        NO_TOPIC,
        (9,),
        all_needed=False,
    ),
    Case(
        "metadata that creates",
        lambda _: _metadata("fresh", allow_auto_topic_creation=True),
        (topic(O.DESCRIBE, "fresh"), topic(O.CREATE, "fresh")),
        NO_TOPIC,
        (12,),
    ),
    Case(
        "metadata that creates anything",
        lambda _: _metadata("fresher", allow_auto_topic_creation=True),
        (topic(O.DESCRIBE, "fresher"), cluster(O.CREATE)),
        NO_TOPIC,
        (12,),
    ),
    Case(
        "topic partitions",
        lambda _: m.DescribeTopicPartitionsRequest([m.DescribeTopicPartitionsRequest.TopicRequest(T)]),
        (topic(O.DESCRIBE),),
        NO_TOPIC,
    ),
    Case("all topic partitions", lambda _: m.DescribeTopicPartitionsRequest(), (topic(O.DESCRIBE),), HIDDEN),
    Case("create a topic", _create("made"), (topic(O.CREATE, "made"),), NO_TOPIC),
    Case(
        "create and see a topic",
        _create("made-visible"),
        (topic(O.DESCRIBE_CONFIGS, "made-visible"), topic(O.CREATE, "made-visible")),
        NO_TOPIC,
        (7,),
        all_needed=False,
    ),
    Case("create any topic", _create("made-2"), (cluster(O.CREATE),), NO_TOPIC),
    Case(
        "delete by id",
        lambda ids: _delete(ids, by_id=True),
        (topic(O.DESCRIBE, DOOMED), topic(O.DELETE, DOOMED)),
        NO_TOPIC,
        (6,),
        all_needed=False,
    ),
    Case("create partitions", _create_partitions, (topic(O.ALTER),), NO_TOPIC),
    Case("describe a topic's configs", _describe_configs(2, T), (topic(O.DESCRIBE_CONFIGS),), NO_TOPIC),
    Case("describe a group's configs", _describe_configs(32, G), (group(O.DESCRIBE_CONFIGS),), NO_GROUP),
    Case("describe a broker's configs", _describe_configs(4, "1"), (cluster(O.DESCRIBE_CONFIGS),), NO_CLUSTER),
    Case("alter a topic's configs", _alter_configs(2, T, "retention.ms", "1000"), (topic(O.ALTER_CONFIGS),), NO_TOPIC),
    Case("change a topic's configs", _incremental(2, T, "retention.ms", "1000"), (topic(O.ALTER_CONFIGS),), NO_TOPIC),
    Case(
        "change a group's configs",
        _incremental(32, G, "consumer.session.timeout.ms", "45000"),
        (group(O.ALTER_CONFIGS),),
        NO_GROUP,
    ),
    Case(
        "change a broker's configs",
        _incremental(4, "", "log.cleaner.threads", "1"),
        (cluster(O.ALTER_CONFIGS),),
        NO_CLUSTER,
    ),
    _on_cluster("config resources", lambda _: m.ListConfigResourcesRequest([16]), O.DESCRIBE_CONFIGS),
    Case(
        "describe the cluster",
        lambda _: m.DescribeClusterRequest(True),
        (cluster(O.DESCRIBE), cluster(O.ALTER_CONFIGS)),
        HIDDEN,
    ),
    _on_cluster("log dirs", lambda _: m.DescribeLogDirsRequest([]), O.DESCRIBE),
    _on_cluster("move a replica", _log_dirs, O.ALTER),
    _on_cluster("reassign", _reassign, O.ALTER),
    _on_cluster("reassignments", lambda _: m.ListPartitionReassignmentsRequest(5_000, None), O.DESCRIBE),
    _on_cluster("elect", _elect, O.ALTER),
    _on_cluster("the quorum", _quorum, O.DESCRIBE),
    _on_cluster("features", _features, O.ALTER),
    _on_cluster("unregister", lambda _: m.UnregisterBrokerRequest(77), O.ALTER),
    _on_cluster("add a voter", _voter, O.ALTER),
    _on_cluster("quotas", lambda _: m.DescribeClientQuotasRequest(), O.DESCRIBE_CONFIGS),
    _on_cluster("change quotas", _quotas, O.ALTER_CONFIGS),
    _on_cluster("scram users", _scram_users, O.DESCRIBE),
    _on_cluster("change scram users", _scram, O.ALTER),
    _on_cluster("rules", _acl_description, O.DESCRIBE),
    _on_cluster("a new rule", _acl_creation, O.ALTER),
    _on_cluster("a rule less", _acl_deletion, O.ALTER),
]


def on_controllers() -> list[Case]:
    """What a controller is asked, by clients (KIP-919) and by nodes. The nodes' requests come from a broker 77 or a
    voter 77 that nobody knows: who may make them is told that."""
    served = {number for number, api in apis().items() if "controller" in api.listeners}
    asked_otherwise = {m.FetchRequest.number, m.DescribeClusterRequest.number}
    ids = {name: bytes(16) for name in (T, DOOMED)}
    return [case for case in CASES if type(case.request(ids)).number in served - asked_otherwise] + _THERE


def controller_listener(port: int) -> dict[str, str]:
    """Settings of a node with a listener for all that."""
    return {
        "node.id": "1",
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://{ADMIN_HOST}:0,CONTROLLER://{ADMIN_HOST}:{port}",
        "controller.listener.names": "CONTROLLER",
        "controller.quorum.voters": f"1@{ADMIN_HOST}:{port}",
    }


def _of_nodes(name: str, request: Callable[[dict[str, bytes]], Message]) -> Case:
    return Case(name, request, (cluster(O.CLUSTER_ACTION),), NO_CLUSTER)


_LOG = "__cluster_metadata"
_VOTE = m.VoteRequest.PartitionData(0, 1, 77)


def _isr(ids: dict[str, bytes]) -> m.AlterPartitionRequest.TopicData:
    return m.AlterPartitionRequest.TopicData(ids[T], [m.AlterPartitionRequest.PartitionData(0, 5)])


_THERE = [
    _on_cluster("describe the cluster there", lambda _: m.DescribeClusterRequest(True, 2), O.ALTER),
    Case("fetch there", _fetch, (cluster(O.CLUSTER_ACTION),), NO_CLUSTER, (11, 12, 13, 17)),
    Case("fetch there as a node", lambda ids: _fetch(ids, 77), (cluster(O.CLUSTER_ACTION),), NO_CLUSTER, (12, 17)),
    _of_nodes("vote", lambda _: m.VoteRequest(None, 1, [m.VoteRequest.TopicData(_LOG, [_VOTE])])),
    _of_nodes("a new leader", lambda _: m.BeginQuorumEpochRequest("another", 1)),
    _of_nodes("a leader less", lambda _: m.EndQuorumEpochRequest("another")),
    _of_nodes("a snapshot", lambda _: m.FetchSnapshotRequest("another", 77)),
    _of_nodes("an ISR", lambda ids: m.AlterPartitionRequest(77, 5, [_isr(ids)])),
    _of_nodes("a new broker", lambda _: m.BrokerRegistrationRequest(77, "another")),
    _of_nodes("a heartbeat", lambda _: m.BrokerHeartbeatRequest(77, 5)),
    _of_nodes("producer ids", lambda _: m.AllocateProducerIdsRequest(77, 5)),
    _of_nodes("dirs of replicas", lambda _: m.AssignReplicasToDirsRequest(77, 5)),
    _of_nodes("an envelope", lambda _: m.EnvelopeRequest(b"", b"", b"\x7f\0\0\1")),
    _of_nodes("another voter", lambda _: m.UpdateRaftVoterRequest("another", 1, 77)),
    _on_cluster("a voter less", lambda _: m.RemoveRaftVoterRequest("another", 77), O.ALTER),
]
