"""Corners: requests that are legal but odd. Twice the same, nothing at all, somebody else's, the wrong way round."""

from typing import Any

from moldau.wire import messages as m
from tests.interop.differential import Masks, Side
from tests.interop.scenarios.groups import await_coordinators, await_transaction, commit, init_producer
from tests.interop.scenarios.support import batch, fetch, metadata, new_topic, produce
from tests.interop.scenarios.topics import BROKER, CONFIGS, DELETE, SET, TOPIC, Config, Topic, create

CLIENT_METRICS, BROKER_LOGGER, GROUP = 16, 8, 32


def odd_topics(side: Side) -> None:
    new_topic(side, "o-t", 2)
    side.call("the same name twice", metadata("o-t", "o-t"), 12)
    named = m.MetadataRequest.MetadataRequestTopic
    auto = m.MetadataRequest(topics=[named(name="o/auto")], allow_auto_topic_creation=True)
    side.call("auto-create with a bad name", auto, 12)
    everything = m.MetadataRequest(topics=None, allow_auto_topic_creation=False)
    for version in (1, 8, 13):
        answer = side.ask(everything, version)
        side.note(f"all topics, v{version}", [t.name for t in answer.topics if t.name == "o-t"])
    twice = [Config(name="retention.ms", value="1000"), Config(name="retention.ms", value="2000")]
    side.call(
        "a config twice", create(Topic(name="o-c", num_partitions=1, replication_factor=1, configs=twice)), 7, CONFIGS
    )
    side.call("no topics", create(), 7)
    side.call(
        "an internal name",
        create(Topic(name="__consumer_offsets", num_partitions=1, replication_factor=1), validate_only=True),
        7,
        CONFIGS,
    )
    kind = m.DeleteTopicsRequest
    side.call(
        "delete twice in one", kind(topic_names=["o-c", "o-c"], timeout_ms=10_000), 5, Masks(unordered=("responses",))
    )
    side.call("delete nothing", kind(topic_names=[], timeout_ms=10_000), 5)
    states = [kind.DeleteTopicState(name="o-t"), kind.DeleteTopicState(name="o-t")]
    side.call("delete states twice", kind(topics=states, timeout_ms=10_000), 6, Masks(unordered=("responses",)))
    new_topic(side, "o-p")
    more = m.CreatePartitionsRequest
    one = more.CreatePartitionsTopic(name="o-p", count=3)
    side.call("grow twice in one", more(topics=[one, one], timeout_ms=10_000), 3, Masks(unordered=("results",)))
    empty = more.CreatePartitionsTopic(
        name="o-p", count=2, assignments=[more.CreatePartitionsAssignment(broker_ids=[])]
    )
    side.call("grow onto no broker", more(topics=[empty], timeout_ms=10_000), 3)
    asked = m.DescribeTopicPartitionsRequest
    both = [asked.TopicRequest(name=name) for name in ("o-p", "o-none", "o-a")]
    side.call("partitions of several", asked(topics=both, response_partition_limit=2000), 0)
    cursor = asked.Cursor(topic_name="o-none", partition_index=0)
    side.call("from a cursor that is gone", asked(topics=both, response_partition_limit=2000, cursor=cursor), 0)
    side.call("negative cursor", asked(topics=both, cursor=asked.Cursor(topic_name="o-p", partition_index=-3)), 0)


def odd_records(side: Side) -> None:
    topic_id = new_topic(side, "o-r", 3)
    data = m.ProduceRequest.PartitionProduceData
    kind = m.ProduceRequest.TopicProduceData
    parts = [data(index=number, records=batch([b"v"])) for number in (2, 0, 1, 9)]
    several = m.ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[kind(name="o-r", partition_data=parts)])
    side.call("several partitions, one unknown", several, 12, Masks(unordered=("responses.partition_responses",)))
    side.call("nothing to produce", m.ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[]), 12)
    side.call(
        "a topic without partitions", m.ProduceRequest(acks=-1, timeout_ms=5_000, topic_data=[kind(name="o-r")]), 12
    )
    side.call("a transactional id without a transaction", produce("o-r", batch([b"v"]), transactional_id="o-x"), 12)
    alone = batch([b"v"], producer_id=5_000_000, producer_epoch=0, base_sequence=0, transactional=True)
    side.call("a transaction without an id", produce("o-r", alone), 12)
    await_coordinators(side, "o-g")
    side.call("into an internal topic", produce("__consumer_offsets", batch([b"v"])), 12)
    wanted = m.FetchRequest.FetchPartition
    plain: dict[str, Any] = {"current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1}
    parts_wanted = [wanted(partition=number, fetch_offset=0, partition_max_bytes=1000, **plain) for number in (1, 0, 2)]
    topics = [m.FetchRequest.FetchTopic(topic="o-r", topic_id=topic_id, partitions=parts_wanted)]
    base = m.FetchRequest(replica_id=-1, max_wait_ms=0, max_bytes=1 << 20, session_epoch=-1, topics=topics)
    side.call("several partitions, in this order", base, 17)
    side.call("several partitions, bytes for one", base.replace(max_bytes=1), 17)
    side.call("nothing to fetch", base.replace(topics=[]), 17)
    side.call("no bytes of a partition", fetch("o-r", topic_id, partition_max_bytes=0), 17)
    side.call("as a debugging consumer", fetch("o-r", topic_id, replica_id=-2), 14)
    side.call("as a replica that is none", fetch("o-r", topic_id, replica_id=7), 14)
    as_replica = m.FetchRequest.ReplicaState(replica_id=7, replica_epoch=1)
    side.call("as a replica that is none, newer", fetch("o-r", topic_id, replica_state=as_replica), 17)
    side.call("for another cluster", fetch("o-r", topic_id, cluster_id="another"), 17)
    offsets = m.ListOffsetsRequest
    twice = [offsets.ListOffsetsPartition(partition_index=0, timestamp=-1)] * 2
    side.call(
        "offsets of a partition twice",
        offsets(replica_id=-1, topics=[offsets.ListOffsetsTopic(name="o-r", partitions=twice)], timeout_ms=5_000),
        10,
        Masks(unordered=("topics", "topics.partitions")),
    )
    for replica in (-2, 7):
        one = [offsets.ListOffsetsTopic(name="o-r", partitions=twice[:1])]
        side.call(f"offsets for replica {replica}", offsets(replica_id=replica, topics=one, timeout_ms=5_000), 10)
    deletion = m.DeleteRecordsRequest
    for label, name, index, offset in (
        ("unknown topic", "o-none", 0, 0),
        ("unknown partition", "o-r", 9, 0),
        ("negative", "o-r", 0, -7),
        ("internal", "__consumer_offsets", 0, 0),
    ):
        gone = deletion.DeleteRecordsTopic(
            name=name, partitions=[deletion.DeleteRecordsPartition(partition_index=index, offset=offset)]
        )
        side.call(f"delete records, {label}", deletion(topics=[gone], timeout_ms=5_000), 2)
    producers = m.DescribeProducersRequest
    asked = producers(topics=[producers.TopicRequest(name="o-none", partition_indexes=[0])])
    side.call("producers of an unknown topic", asked, 0)


def odd_offsets(side: Side) -> None:
    topic_id = new_topic(side, "o-o", 2)
    await_coordinators(side, "oo")
    side.call("negative offset", commit("oo", "o-o", -1), 9)
    side.call("very negative offset", commit("oo", "o-o", -5), 9)
    side.call("by an unknown id", commit("oo", "", 1, topic_id=b"\x77" * 16), 10)
    side.call("null metadata", commit("oo", "o-o", 3, metadata=None), 9)
    side.call("as an instance nobody knows", commit("oo", "o-o", 3, group_instance_id="i"), 9)
    kind = m.OffsetFetchRequest
    topics = [kind.OffsetFetchRequestTopics(name="o-o", topic_id=topic_id, partition_indexes=[0, 1, 7])]
    one = kind.OffsetFetchRequestGroup(group_id="oo", member_epoch=-1, topics=topics)
    other = kind.OffsetFetchRequestGroup(group_id="oo-none", member_epoch=-1, topics=None)
    side.call("several groups", kind(groups=[one, other]), 9, Masks(unordered=("groups",)))
    unknown = kind.OffsetFetchRequestTopics(name="o-none", topic_id=b"\x77" * 16, partition_indexes=[0])
    side.call("unknown topic", kind(groups=[one.replace(topics=[unknown])]), 9)
    side.call("unknown topic id", kind(groups=[one.replace(topics=[unknown])]), 10)
    side.call("as a member nobody knows", kind(groups=[one.replace(member_id="m", member_epoch=3)]), 9)
    side.call("no group", kind(groups=[one.replace(group_id="")]), 9)
    side.call("no groups", kind(groups=[]), 9)
    deletion = m.OffsetDeleteRequest
    for label, group, topic in (
        ("unknown group", "oo-none", "o-o"),
        ("unknown topic", "oo", "o-none"),
        ("known topic", "oo", "o-o"),
        ("no group", "", "o-o"),
    ):
        parts = [deletion.OffsetDeleteRequestPartition(partition_index=number) for number in (0, 9)]
        request = deletion(group_id=group, topics=[deletion.OffsetDeleteRequestTopic(name=topic, partitions=parts)])
        side.call(f"delete offset, {label}", request, 0)
    side.call(
        "delete a group and none",
        m.DeleteGroupsRequest(groups_names=["oo-none", "oo"]),
        2,
        Masks(unordered=("results",)),
    )
    side.call("describe no name", m.DescribeGroupsRequest(groups=[""]), 6)
    side.call("list in a state nobody has", m.ListGroupsRequest(states_filter=["Sleeping"], types_filter=[]), 5)
    side.call("list a type nobody has", m.ListGroupsRequest(states_filter=[], types_filter=["odd"]), 5)
    leave = m.LeaveGroupRequest
    side.call_every("leave an unknown group", leave(group_id="oo-none", member_id="m"), versions=range(3))
    one_member = [leave.MemberIdentity(member_id="m")]
    side.call_every("leave an unknown group", leave(group_id="oo-none", members=one_member), versions=range(3, 6))
    side.call("leave no group", leave(group_id="", members=one_member), 5)
    beat = m.HeartbeatRequest(group_id="oo-none", generation_id=1, member_id="m")
    side.call_every("heartbeat to an unknown group", beat)
    sync = m.SyncGroupRequest(
        group_id="oo-none", generation_id=1, member_id="m", protocol_type="consumer", protocol_name="r"
    )
    side.call_every("sync with an unknown group", sync)
    new = m.ConsumerGroupHeartbeatRequest(group_id="oo-new", member_id="A" * 22, member_epoch=7)
    side.call("heartbeat to an unknown new group", new, 1)
    side.call("leaving an unknown new group", new.replace(member_epoch=-1), 1)
    joining = new.replace(
        member_epoch=0, rebalance_timeout_ms=5_000, topic_partitions=[], subscribed_topic_names=["o-o"]
    )
    side.call(
        "joining with partitions",
        joining.replace(topic_partitions=[m.ConsumerGroupHeartbeatRequest.TopicPartitions(topic_id, [0])]),
        1,
    )
    side.call("joining without a timeout", joining.replace(rebalance_timeout_ms=-1), 1)
    side.call("joining as a static member in its absence", joining.replace(member_epoch=-2), 1)
    side.call("joining no group", joining.replace(group_id=""), 1)
    side.call("an empty instance", joining.replace(instance_id=""), 1)
    side.call("an epoch below all", joining.replace(member_epoch=-9), 1)


def odd_configs(side: Side) -> None:
    new_topic(side, "o-f")
    await_coordinators(side, "of")
    describe = m.DescribeConfigsRequest
    kind = m.IncrementalAlterConfigsRequest

    def ask(label: str, resource_type: int, name: str, keys: list[str] | None = None) -> None:
        resource = describe.DescribeConfigsResource(
            resource_type=resource_type, resource_name=name, configuration_keys=keys
        )
        side.call(f"describe {label}", describe(resources=[resource]), 4, CONFIGS)

    def alter(label: str, resource_type: int, name: str, *changes: tuple[str, int, str | None]) -> None:
        configs = [kind.AlterableConfig(name=key, config_operation=what, value=value) for key, what, value in changes]
        resource = kind.AlterConfigsResource(resource_type=resource_type, resource_name=name, configs=configs)
        # Kafka would keep an unknown key of a broker, and show it to other scenarios.
        side.call(f"alter {label}", kind(resources=[resource], validate_only=resource_type == BROKER), 1)

    ask("a group", GROUP, "of")
    ask("a group that is none", GROUP, "of-none")
    ask("no group", GROUP, "")
    ask("a subscription that is none", CLIENT_METRICS, "of")
    ask("no subscription", CLIENT_METRICS, "")
    ask("loggers of another", BROKER_LOGGER, "77")
    ask("loggers of nobody", BROKER_LOGGER, "")
    alter("a group", GROUP, "of", ("consumer.session.timeout.ms", SET, "46000"))
    alter("a group, out of bounds", GROUP, "of", ("consumer.session.timeout.ms", SET, "1"))
    alter("a group, unknown key", GROUP, "of", ("no.such", SET, "1"))
    alter("no group", GROUP, "", ("consumer.session.timeout.ms", SET, "46000"))
    alter("a subscription", CLIENT_METRICS, "of", ("interval.ms", SET, "5000"), ("metrics", SET, "a,b"))
    alter("a subscription, too often", CLIENT_METRICS, "of", ("interval.ms", SET, "5"))
    alter("a subscription, odd match", CLIENT_METRICS, "of", ("match", SET, "nothing=1"))
    alter("a subscription, away", CLIENT_METRICS, "of", ("interval.ms", DELETE, None), ("metrics", DELETE, None))
    alter("another broker", BROKER, "77", ("log.cleaner.threads", SET, "2"))
    alter("no broker id", BROKER, "one", ("log.cleaner.threads", SET, "2"))
    alter("this broker, read only", BROKER, "1", ("log.dirs", SET, "/x"))
    alter("this broker, unknown key", BROKER, "1", ("no.such", SET, "2"))
    alter("this broker, out of range", BROKER, "1", ("log.cleaner.threads", SET, "0"))
    alter("this broker, too many at once", BROKER, "1", ("num.io.threads", SET, "9999"))
    alter("all brokers, per broker only", BROKER, "", ("advertised.listeners", SET, "PLAINTEXT://127.0.0.1:1"))
    alter("an unknown kind", 77, "x", ("a", SET, "1"))
    alter("nothing", TOPIC, "o-f")
    side.call("alter no resources", kind(resources=[]), 1)
    one = kind.AlterConfigsResource(TOPIC, "o-f", [kind.AlterableConfig("retention.ms", SET, "5000")])
    side.call("alter one resource twice", kind(resources=[one, one]), 1)
    side.call("describe no resources", describe(resources=[]), 4)
    features = m.UpdateFeaturesRequest
    for label, name, level, upgrade in (
        ("unknown", "no.such", 1, 1),
        ("same", "group.version", 1, 1),
        ("above", "group.version", 9, 1),
        ("down, asked as up", "group.version", 0, 1),
        ("negative", "group.version", -1, 1),
        ("odd kind of upgrade", "group.version", 1, 9),
        ("no name", "", 1, 1),
    ):
        update = features.FeatureUpdateKey(feature=name, max_version_level=level, upgrade_type=upgrade)
        request = features(timeout_ms=10_000, feature_updates=[update], validate_only=True)
        side.call_every(f"feature, {label}", request, versions=(1, 2))
    side.call("no features", features(timeout_ms=10_000, feature_updates=[]), 1)


def odd_transactions(side: Side) -> None:
    new_topic(side, "o-x", 2)
    await_coordinators(side, "ox", "tx-odd")
    init = m.InitProducerIdRequest(
        transactional_id="tx-odd", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    side.call("init with an epoch and no id", init.replace(producer_epoch=3), 5)
    side.call("init with an id and no epoch", init.replace(producer_id=3), 5)
    begun = init_producer(side, init, 5)
    pid, epoch = begun.producer_id, begun.producer_epoch
    side.call("init as a producer it is not", init.replace(producer_id=pid + 77, producer_epoch=0), 5)
    side.call("init with a later epoch", init.replace(producer_id=pid, producer_epoch=epoch + 7), 5)
    bumped = side.call("init with its own epoch", init.replace(producer_id=pid, producer_epoch=epoch), 5)
    epoch = bumped.producer_epoch
    kind = m.AddPartitionsToTxnRequest

    def add(
        name: str, partition: int, producer_epoch: int, *, verify_only: bool, transactional_id: str = "tx-odd"
    ) -> Any:
        transaction = kind.AddPartitionsToTxnTransaction(
            transactional_id, pid, producer_epoch, verify_only, [kind.AddPartitionsToTxnTopic(name, [partition])]
        )
        return kind(transactions=[transaction])

    for version in (4, 5):
        side.call("verify what is not added", add("o-x", 0, epoch, verify_only=True), version)
        side.call("verify for nobody", add("o-x", 0, epoch, verify_only=True, transactional_id="tx-none"), version)
    side.call("add as a broker does", add("o-x", 0, epoch, verify_only=False), 5)
    side.call("verify what is added", add("o-x", 0, epoch, verify_only=True), 5)
    side.call("verify another partition", add("o-x", 1, epoch, verify_only=True), 5)
    side.call("verify with an old epoch", add("o-x", 0, epoch - 1, verify_only=True), 5)
    offsets = m.AddOffsetsToTxnRequest(transactional_id="tx-odd", producer_id=pid, producer_epoch=epoch, group_id="ox")
    side.call("offsets with an old epoch", offsets.replace(producer_epoch=epoch - 1), 4)
    side.call("offsets of somebody else", offsets.replace(producer_id=pid + 77), 4)
    side.call("offsets without an id", offsets.replace(transactional_id=""), 4)
    staging = m.TxnOffsetCommitRequest
    part = staging.TxnOffsetCommitRequestPartition(partition_index=0, committed_offset=1)
    staged = staging(
        transactional_id="tx-odd",
        group_id="ox",
        producer_id=pid,
        producer_epoch=epoch,
        topics=[staging.TxnOffsetCommitRequestTopic(name="o-x", partitions=[part])],
    )
    side.call("staged, not added, old client", staged, 4)
    side.call("staged as a member nobody knows", staged.replace(member_id="m", generation_id=3), 5)
    unknown = [staging.TxnOffsetCommitRequestTopic(name="o-none", partitions=[part])]
    side.call("staged for an unknown topic", staged.replace(topics=unknown), 5)
    side.call("staged with an old epoch", staged.replace(producer_epoch=epoch - 1), 5)
    end = m.EndTxnRequest(transactional_id="tx-odd", producer_id=pid, producer_epoch=epoch, committed=True)
    side.call("end with an old epoch", end.replace(producer_epoch=epoch - 1), 5)
    side.call("end of nobody's", end.replace(transactional_id="tx-none"), 5)
    side.call("end of somebody else's", end.replace(producer_id=pid + 77), 5)
    ended = side.call("end", end, 5)
    await_transaction(side, "tx-odd", "CompleteCommit")
    side.call("end an empty one", end.replace(producer_epoch=ended.producer_epoch, committed=False), 5)
    markers = m.WriteTxnMarkersRequest
    topics = [markers.WritableTxnMarkerTopic(name=name, partition_indexes=[0]) for name in ("o-x", "o-none")]
    marker = markers.WritableTxnMarker(producer_id=900_000, producer_epoch=0, transaction_result=False, topics=topics)
    unordered = Masks(unordered=("markers.topics",), presence=())
    side.call("markers by hand", markers(markers=[marker]), 1, unordered)
    side.call("no markers", markers(markers=[]), 1)
    listing = m.ListTransactionsRequest
    for label, request in (
        ("in a state nobody has", listing(state_filters=["Sleeping"])),
        ("of a producer nobody is", listing(producer_id_filters=[123_456_789])),
        ("older than a day", listing(duration_filter=86_400_000)),
        ("by a bad pattern", listing(transactional_id_pattern="(")),
        ("by a pattern nobody has", listing(transactional_id_pattern="nobody.*")),
    ):
        side.call(f"list {label}", request, 2, Masks(unordered=("transaction_states",)))
    side.call("describe nobody", m.DescribeTransactionsRequest(transactional_ids=["tx-none", ""]), 0)


SCENARIOS = {
    "odd topics": odd_topics,
    "odd records": odd_records,
    "odd offsets": odd_offsets,
    "odd configs": odd_configs,
    "odd transactions": odd_transactions,
}
