"""The protocol itself and the cluster: versions, features, quorum, log dirs, telemetry, senseless frames."""

import struct

from moldau.wire import apis
from moldau.wire import messages as m
from tests.interop.differential import Masks, Side
from tests.interop.scenarios.support import batch, metadata, new_topic, produce

FEATURES = Masks(unordered=("api_keys", "supported_features", "finalized_features"))


def api_versions(side: Side) -> None:
    request = m.ApiVersionsRequest(client_software_name="differential", client_software_version="1.0")
    side.call_every("versions", request, FEATURES)
    side.call(
        "bad client name", m.ApiVersionsRequest(client_software_name="-no-", client_software_version="1"), 4, FEATURES
    )
    side.raw("a version nobody has, without the tags its header would have", struct.pack(">hhih", 18, 99, 7, -1))
    side.reconnect()
    frame = side.raw("a version nobody has", struct.pack(">hhihB", 18, 99, 7, -1, 0))
    side.note("answered in version 0 with error", None if frame is None else frame[4:6])
    side.note("and with the versions of this API alone", None if frame is None else frame[6:])


def senseless_frames(side: Side) -> None:
    body = struct.pack(">hhih", 3, 12, 7, -1)
    for label, frame in (
        ("api key 999", struct.pack(">hhih", 999, 0, 7, -1)),
        ("Metadata v99", struct.pack(">hhih", 3, 99, 7, -1)),
        ("Produce v2, retired", struct.pack(">hhih", 0, 2, 7, -1)),
        ("Fetch v3, retired", struct.pack(">hhih", 1, 3, 7, -1)),
        ("ControlledShutdown, retired", struct.pack(">hhih", 7, 3, 7, -1)),
        ("a header alone", body),
        ("an array longer than its frame", body + b"\x00" + b"\xff\xff\xff\xff\x07"),
        ("a client id longer than its frame", struct.pack(">hhih", 3, 1, 7, 500)),
        ("nothing", b""),
        ("one byte", b"\x00"),
    ):
        side.raw(label, frame)
        side.reconnect()
    side.note("still there", side.ask(metadata(), 12).error_code)


def describing_the_cluster(side: Side) -> None:
    kind = m.DescribeClusterRequest
    side.call_every("cluster", kind(endpoint_type=1))
    side.call("authorized operations", kind(endpoint_type=1, include_cluster_authorized_operations=True), 2)
    side.call("controllers, asked of a broker", kind(endpoint_type=2), 2)
    side.call("fenced brokers too", kind(endpoint_type=1, include_fenced_brokers=True), 2)
    quorum = m.DescribeQuorumRequest
    parts = [quorum.PartitionData(partition_index=0)]
    moving = Masks(ignore=("leader_epoch", "high_watermark", "log_end_offset"))
    side.call_every(
        "quorum", quorum(topics=[quorum.TopicData(topic_name="__cluster_metadata", partitions=parts)]), moving
    )
    side.call("quorum of something else", quorum(topics=[quorum.TopicData(topic_name="other", partitions=parts)]), 2)
    new_topic(side, "k-d", 2)
    side.ask(produce("k-d", batch([b"v"] * 3)), 12)
    dirs = m.DescribeLogDirsRequest
    side.call_every(
        "log dirs",
        dirs(topics=[dirs.DescribableLogDirTopic(topic="k-d", partitions=[0, 1])]),
        Masks(unordered=("partitions",)),
    )
    side.call("log dirs, unknown topic", dirs(topics=[dirs.DescribableLogDirTopic(topic="k-none", partitions=[0])]), 4)
    resources = Masks(unordered=("config_resources",))
    side.call("brokers with configs", m.ListConfigResourcesRequest(resource_types=[4]), 1, resources)
    side.call("an unknown kind of resource", m.ListConfigResourcesRequest(resource_types=[99]), 1)


def coordinated_corners(side: Side) -> None:
    """Authorized operations, ids before their time, a retention that never ends."""
    topic_id = new_topic(side, "k-c")
    named = m.MetadataRequest.MetadataRequestTopic
    for version in (8, 9, 10):
        asked = m.MetadataRequest(topics=[], include_cluster_authorized_operations=True)
        side.note(f"operations on the cluster, v{version}", side.ask(asked, version).cluster_authorized_operations)
    for version in (10, 11):
        side.call(f"an id, v{version}", m.MetadataRequest(topics=[named(topic_id=topic_id, name=None)]), version)
        mixed = m.MetadataRequest(topics=[named(topic_id=topic_id, name=None), named(name="k-c")])
        side.call(f"an id and a name, v{version}", mixed, version)
    side.await_answer(
        "a coordinator", m.FindCoordinatorRequest(key="k-g", key_type=0), 3, lambda answer: answer.error_code == 0
    )
    commit = m.OffsetCommitRequest
    part = commit.OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    request = commit(group_id="k-g", topics=[commit.OffsetCommitRequestTopic(name="k-c", partitions=[part])])
    side.await_answer("committed", request, 8, lambda answer: answer.topics[0].partitions[0].error_code == 0)
    described = m.DescribeGroupsRequest(groups=["k-g", "k-no"], include_authorized_operations=True)
    side.call_every("groups", described, Masks(unordered=("groups",)), versions=(3, 5, 6))
    forever = request.replace(retention_time_ms=2**62)
    side.call("a long retention", forever, 4)


def moving_replicas(side: Side) -> None:
    new_topic(side, "k-m")
    elect = m.ElectLeadersRequest
    one = [elect.TopicPartitions(topic="k-m", partitions=[0])]
    side.call_every("preferred election", elect(election_type=0, topic_partitions=one, timeout_ms=5_000))
    side.call("unclean election", elect(election_type=1, topic_partitions=one, timeout_ms=5_000), 2)
    unknown = [elect.TopicPartitions(topic="k-none", partitions=[0])]
    side.call("election of an unknown topic", elect(election_type=0, topic_partitions=unknown, timeout_ms=5_000), 2)
    move = m.AlterPartitionReassignmentsRequest
    for label, name, replicas in (
        ("same", "k-m", [1]),
        ("unknown broker", "k-m", [9]),
        ("cancel", "k-m", None),
        ("unknown topic", "k-none", [1]),
    ):
        partition = move.ReassignablePartition(partition_index=0, replicas=replicas)
        request = move(topics=[move.ReassignableTopic(name=name, partitions=[partition])], timeout_ms=5_000)
        side.call(f"reassign, {label}", request, 1)
    side.call("reassignments under way", m.ListPartitionReassignmentsRequest(topics=None, timeout_ms=5_000), 0)
    dirs = m.AlterReplicaLogDirsRequest
    topic = dirs.AlterReplicaLogDirTopic(name="k-m", partitions=[0])
    side.call("move to an unknown dir", dirs(dirs=[dirs.AlterReplicaLogDir(path="/nowhere", topics=[topic])]), 2)


def telemetry(side: Side) -> None:
    begun = side.call("subscriptions", m.GetTelemetrySubscriptionsRequest(client_instance_id=bytes(16)), 0)
    push = m.PushTelemetryRequest(client_instance_id=begun.client_instance_id, subscription_id=begun.subscription_id)
    side.call("push with nothing subscribed", push, 0)
    side.call("push for an unknown subscription", push.replace(subscription_id=begun.subscription_id + 1), 0)


def security_is_off(side: Side) -> None:
    side.call(
        "acls", m.DescribeAclsRequest(resource_type_filter=1, pattern_type_filter=1, operation=1, permission_type=1), 3
    )
    creation = m.CreateAclsRequest.AclCreation(
        resource_type=2, resource_name="t", resource_pattern_type=3, principal="User:a", operation=3, permission_type=3
    )
    side.call("create acls", m.CreateAclsRequest(creations=[creation, creation]), 3)
    matching = m.DeleteAclsRequest.DeleteAclsFilter(
        resource_type_filter=2, pattern_type_filter=3, operation=3, permission_type=3
    )
    side.call("delete acls", m.DeleteAclsRequest(filters=[matching]), 3)
    side.call("quotas", m.DescribeClientQuotasRequest(components=[], strict=False), 1)
    side.call_every("sasl without sasl", m.SaslHandshakeRequest(mechanism="PLAIN"))
    side.call_every("authenticating without sasl", m.SaslAuthenticateRequest(auth_bytes=b"\0a\0b"))
    side.call_every("new token", m.CreateDelegationTokenRequest(owner_principal_type="User", owner_principal_name="a"))
    side.call_every("renewed token", m.RenewDelegationTokenRequest(hmac=b"1", renew_period_ms=1))
    side.call_every("expired token", m.ExpireDelegationTokenRequest(hmac=b"1", expiry_time_period_ms=1))
    side.call_every("tokens", m.DescribeDelegationTokenRequest(owners=None))


def scram_users(side: Side) -> None:
    kind = m.AlterUserScramCredentialsRequest

    def upsert(name: str, iterations: int = 4096, mechanism: int = 1) -> m.AlterUserScramCredentialsRequest:
        made = kind.ScramCredentialUpsertion(name, mechanism, iterations, b"salt", b"p" * 32)
        return kind(upsertions=[made])

    def describe(label: str, *names: str) -> None:
        user = m.DescribeUserScramCredentialsRequest.UserName
        asked = m.DescribeUserScramCredentialsRequest(users=[user(name) for name in names] or None)
        side.call(label, asked, 0, Masks(unordered=("results", "results.credential_infos")))

    describe("nobody")
    describe("an unknown user", "s-none")
    side.call("upsert", upsert("s-a"), 0)
    side.call("another mechanism", upsert("s-a", 8192, 2), 0)
    side.call("too few iterations", upsert("s-b", 100), 0)
    side.call("too many iterations", upsert("s-b", 20_000), 0)
    side.call("unknown mechanism", upsert("s-b", 4096, 9), 0)
    side.call("no name", upsert(""), 0)
    known = m.DescribeUserScramCredentialsRequest(users=[m.DescribeUserScramCredentialsRequest.UserName("s-a")])
    side.await_answer("s-a is known", known, 0, lambda answer: len(answer.results[0].credential_infos) == 2)
    describe("one user", "s-a")
    describe("twice the same", "s-a", "s-a")
    side.call("delete", kind(deletions=[kind.ScramCredentialDeletion("s-a", 2)]), 0)
    side.call("delete an unknown one", kind(deletions=[kind.ScramCredentialDeletion("s-none", 1)]), 0)


def every_api_is_offered(side: Side) -> None:
    """One line for each API, so that a missing one is one difference."""
    answer = side.ask(m.ApiVersionsRequest(client_software_name="d", client_software_version="1"), 4)
    offered = {entry.api_key: f"{entry.min_version}-{entry.max_version}" for entry in answer.api_keys}
    for key, api in apis().items():
        side.note(api.name, offered.get(key, "not offered"))


SCENARIOS = {
    "api versions": api_versions,
    "every api is offered": every_api_is_offered,
    "senseless frames": senseless_frames,
    "describing the cluster": describing_the_cluster,
    "coordinated corners": coordinated_corners,
    "moving replicas": moving_replicas,
    "telemetry": telemetry,
    "security is off": security_is_off,
    "scram users": scram_users,
}
