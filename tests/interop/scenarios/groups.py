"""Consumer groups of both protocols, and transactions: the happy path and every refusal on the way."""

from typing import Any

from moldau.wire import messages as m
from tests.interop.differential import Masks, Side
from tests.interop.scenarios.support import batch, fetch, new_topic, produce

COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOADING = 15, 16, 14
# How often a group is assigned anew until it is stable is a matter of timing.
EPOCHS = ("member_epoch", "group_epoch", "assignment_epoch")
_WAITING = {COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR, COORDINATOR_LOADING}


def await_coordinators(side: Side, group: str, transactional_id: str = "any") -> None:
    """The first question creates the internal topics; until they are there, the answer is "not yet"."""
    kind = m.FindCoordinatorRequest
    for key_type, key in ((0, group), (1, transactional_id)):
        asked = kind(key_type=key_type, coordinator_keys=[key])
        side.await_answer("coordinator", asked, 6, lambda answer: answer.coordinators[0].error_code == 0)
    groups = m.DescribeGroupsRequest(groups=[group])
    side.await_answer("group loaded", groups, 6, lambda answer: answer.groups[0].error_code not in _WAITING)
    ids = m.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    side.await_answer(
        "transactions loaded", ids, 0, lambda answer: answer.transaction_states[0].error_code not in _WAITING
    )


def commit(group: str, topic: str, offset: int, *, partition: int = 0, **fields: Any) -> m.OffsetCommitRequest:
    kind = m.OffsetCommitRequest
    metadata = fields.pop("metadata", "noted")
    topic_id = fields.pop("topic_id", bytes(16))
    one = kind.OffsetCommitRequestPartition(
        partition_index=partition, committed_offset=offset, committed_leader_epoch=0, committed_metadata=metadata
    )
    topics = [kind.OffsetCommitRequestTopic(name=topic, topic_id=topic_id, partitions=[one])]
    defaults: dict[str, Any] = {"generation_id_or_member_epoch": -1, "member_id": "", "retention_time_ms": -1}
    return kind(group_id=group, topics=topics, **(defaults | fields))


def fetch_offsets(group: str, topic: str | None, topic_id: bytes = bytes(16)) -> m.OffsetFetchRequest:
    """In the form of all versions at once: each takes the fields it has."""
    kind = m.OffsetFetchRequest
    old = None if topic is None else [kind.OffsetFetchRequestTopic(name=topic, partition_indexes=[0, 1])]
    new = (
        None
        if topic is None
        else [kind.OffsetFetchRequestTopics(name=topic, topic_id=topic_id, partition_indexes=[0, 1])]
    )
    groups = [kind.OffsetFetchRequestGroup(group_id=group, member_id=None, member_epoch=-1, topics=new)]
    return kind(group_id=group, topics=old, groups=groups)


def committing_offsets(side: Side) -> None:
    topic_id = new_topic(side, "g-c", 2)
    await_coordinators(side, "gc")
    find = m.FindCoordinatorRequest
    side.call_every("coordinator", find(key="gc", key_type=0), versions=range(4))
    side.call_every("coordinators", find(key_type=0, coordinator_keys=["gc", "gc2"]), versions=range(4, 7))
    side.call("coordinator of an unknown kind", find(key_type=9, coordinator_keys=["gc"]), 6)
    for version in range(2, 11):
        side.call("commit", commit("gc", "g-c", version, topic_id=topic_id), version)
        side.call("fetch", fetch_offsets("gc", "g-c", topic_id), min(version, 9))
    side.call("fetch all", fetch_offsets("gc", None), 8)
    side.call("fetch by id", fetch_offsets("gc", "g-c", topic_id), 10)
    side.call("unknown group", fetch_offsets("gc-none", "g-c"), 8)
    side.call("commit to no such topic", commit("gc", "g-none", 1), 9)
    side.call("commit to no such partition", commit("gc", "g-c", 1, partition=7), 9)
    side.call("long metadata", commit("gc", "g-c", 1, metadata="x" * 5_000), 9)
    side.call(
        "commit as a member that is not there",
        commit("gc", "g-c", 1, member_id="m", generation_id_or_member_epoch=1),
        9,
    )
    side.call("commit for no group", commit("", "g-c", 1), 9)
    side.call("describe", m.DescribeGroupsRequest(groups=["gc", "gc-none"]), 6)
    deletion = m.OffsetDeleteRequest
    one = deletion.OffsetDeleteRequestTopic(
        name="g-c", partitions=[deletion.OffsetDeleteRequestPartition(partition_index=0)]
    )
    side.call("delete one offset", deletion(group_id="gc", topics=[one]), 0)
    side.call("fetch after that", fetch_offsets("gc", "g-c"), 8)
    side.call("delete groups", m.DeleteGroupsRequest(groups_names=["gc", "gc-none"]), 2, Masks(unordered=("results",)))
    side.call("fetch from the deleted", fetch_offsets("gc", "g-c"), 8)


def classic_group(side: Side) -> None:
    new_topic(side, "g-j")
    await_coordinators(side, "gj")
    kind = m.JoinGroupRequest
    protocol = kind.JoinGroupRequestProtocol(name="range", metadata=b"\0\1\0\0\0\0\xff\xff\xff\xff")
    join = kind(
        group_id="gj",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        protocol_type="consumer",
        protocols=[protocol],
    )
    side.call("session too short", join.replace(session_timeout_ms=1), 9)
    side.call("no group id", join.replace(group_id=""), 9)
    side.call("unknown member", join.replace(member_id="nobody"), 9)
    side.call("no protocols", join.replace(protocols=[]), 9)
    side.call_every("unknown member, in every version", join.replace(member_id="nobody"))
    told = side.call("told to come back with a member id", join, 9)
    joined = side.call("joined", join.replace(member_id=told.member_id), 9)
    me = told.member_id
    sync = m.SyncGroupRequest
    mine = [sync.SyncGroupRequestAssignment(member_id=me, assignment=b"\1\2\3")]
    synced = sync(
        group_id="gj",
        generation_id=joined.generation_id,
        member_id=me,
        protocol_type="consumer",
        protocol_name="range",
        assignments=mine,
    )
    beat = m.HeartbeatRequest(group_id="gj", generation_id=joined.generation_id, member_id=me)
    side.call("heartbeat before the sync", beat, 4)
    side.call("sync with a wrong generation", synced.replace(generation_id=99), 5)
    side.call("sync with a wrong protocol", synced.replace(protocol_name="other"), 5)
    side.call_every("sync", synced)
    side.call_every("heartbeat", beat)
    side.call("heartbeat with a wrong generation", beat.replace(generation_id=99), 4)
    side.call("heartbeat of nobody", beat.replace(member_id="nobody"), 4)
    side.call("commit", commit("gj", "g-j", 3, member_id=me, generation_id_or_member_epoch=joined.generation_id), 9)
    side.call(
        "commit with a wrong generation", commit("gj", "g-j", 3, member_id=me, generation_id_or_member_epoch=9), 9
    )
    side.call("commit from outside", commit("gj", "g-j", 3), 9)
    clients = Masks(presence=("client_host",))
    side.call_every("describe", m.DescribeGroupsRequest(groups=["gj"]), clients)
    side.call("join with another type", join.replace(member_id="", protocol_type="connect"), 9)
    side.call("delete while not empty", m.DeleteGroupsRequest(groups_names=["gj"]), 2)
    leave = m.LeaveGroupRequest
    side.call("leave, nobody", leave(group_id="gj", members=[leave.MemberIdentity(member_id="nobody")]), 5)
    side.call("leave", leave(group_id="gj", members=[leave.MemberIdentity(member_id=me, reason="done")]), 5)
    side.call("describe when empty", m.DescribeGroupsRequest(groups=["gj"]), 6, clients)
    listed = side.ask(m.ListGroupsRequest(states_filter=[], types_filter=[]), 5)
    side.note("listed", [(g.protocol_type, g.group_state, g.group_type) for g in listed.groups if g.group_id == "gj"])


def static_members(side: Side) -> None:
    new_topic(side, "g-s")
    await_coordinators(side, "gs")
    kind = m.JoinGroupRequest
    protocol = kind.JoinGroupRequestProtocol(name="range", metadata=b"\0\1\0\0\0\0\xff\xff\xff\xff")
    join = kind(
        group_id="gs",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        member_id="",
        group_instance_id="one",
        protocol_type="consumer",
        protocols=[protocol],
    )
    before = side.call("joined at once", join, 9)
    sync = m.SyncGroupRequest(
        group_id="gs",
        generation_id=before.generation_id,
        member_id=before.member_id,
        group_instance_id="one",
        protocol_type="consumer",
        protocol_name="range",
        assignments=[m.SyncGroupRequest.SyncGroupRequestAssignment(member_id=before.member_id, assignment=b"\1")],
    )
    side.call("sync", sync, 5)
    after = side.call("came back under another member id", join, 9)
    beat = m.HeartbeatRequest(
        group_id="gs", generation_id=before.generation_id, member_id=before.member_id, group_instance_id="one"
    )
    side.call("the former incarnation is fenced", beat, 4)
    side.call("the new one is not", beat.replace(member_id=after.member_id, generation_id=after.generation_id), 4)
    leave = m.LeaveGroupRequest
    side.call(
        "leave by instance id",
        leave(group_id="gs", members=[leave.MemberIdentity(member_id="", group_instance_id="one")]),
        5,
    )
    side.call(
        "leave again", leave(group_id="gs", members=[leave.MemberIdentity(member_id="", group_instance_id="one")]), 5
    )


def await_assignment(
    side: Side, join: m.ConsumerGroupHeartbeatRequest, beat: m.ConsumerGroupHeartbeatRequest
) -> m.ConsumerGroupHeartbeatRequest:
    """Assignments may be computed later than the join is answered; returns the heartbeat of the epoch that has it."""
    epoch = side.ask(join, 1).member_epoch

    def next_beat() -> m.ConsumerGroupHeartbeatRequest:
        full = {
            name: getattr(join, name) for name in ("rebalance_timeout_ms", "subscribed_topic_names", "topic_partitions")
        }
        return beat.replace(member_epoch=epoch, **full)  # type: ignore[no-any-return]  # `replace` returns its own type

    def assigned(answer: Any) -> bool:
        nonlocal epoch
        epoch = answer.member_epoch if answer.error_code == 0 else epoch
        return answer.assignment is not None and len(answer.assignment.topic_partitions) > 0

    side.await_answer("assigned", next_beat, 1, assigned)
    return beat.replace(member_epoch=epoch)  # type: ignore[no-any-return]  # `replace` returns its own type


def new_protocol_group(side: Side) -> None:
    topic_id = new_topic(side, "g-n", 3)
    await_coordinators(side, "gn")
    kind = m.ConsumerGroupHeartbeatRequest
    join = kind(
        group_id="gn",
        member_id="AAAAAAAAAAAAAAAAAAAAAA",
        member_epoch=0,
        rebalance_timeout_ms=10_000,
        subscribed_topic_names=["g-n"],
        topic_partitions=[],
    )
    side.call("no subscription", join.replace(subscribed_topic_names=None), 1)
    side.call("no member id", join.replace(member_id=""), 1)
    side.call("unknown assignor", join.replace(server_assignor="none"), 1)
    side.call("bad regex", join.replace(subscribed_topic_names=None, subscribed_topic_regex="("), 1)
    side.call("join", join, 1, Masks(ignore=("assignment", "member_epoch")))
    owned = [kind.TopicPartitions(topic_id=topic_id, partitions=[0, 1, 2])]
    beat = kind(group_id="gn", member_id=join.member_id, member_epoch=0, rebalance_timeout_ms=-1)
    beat = await_assignment(side, join, beat)
    side.call("owns them now", beat.replace(topic_partitions=owned), 1, Masks(ignore=EPOCHS))
    side.call("heartbeat", beat, 1, Masks(ignore=EPOCHS))
    side.call("wrong epoch", beat.replace(member_epoch=99), 1)
    side.call("unknown member", beat.replace(member_id="BBBBBBBBBBBBBBBBBBBBBB"), 1)
    side.call(
        "commit", commit("gn", "g-n", 2, member_id=beat.member_id, generation_id_or_member_epoch=beat.member_epoch), 9
    )
    side.call(
        "commit, stale epoch", commit("gn", "g-n", 2, member_id=beat.member_id, generation_id_or_member_epoch=99), 9
    )
    clients = Masks(presence=("client_host",), ignore=EPOCHS)
    side.call_every("describe", m.ConsumerGroupDescribeRequest(group_ids=["gn", "gn-none"]), clients)
    side.call("described the old way", m.DescribeGroupsRequest(groups=["gn"]), 6, clients)
    side.call("leave", beat.replace(member_epoch=-1), 1)
    side.call("describe when empty", m.ConsumerGroupDescribeRequest(group_ids=["gn"]), 1, clients)


def await_transaction(side: Side, transactional_id: str, state: str) -> None:
    """Until the coordinator is through with it, it refuses the next step as concurrent."""
    asked = m.DescribeTransactionsRequest(transactional_ids=[transactional_id])
    side.await_answer(state, asked, 0, lambda answer: answer.transaction_states[0].transaction_state == state)


def init_producer(side: Side, request: m.InitProducerIdRequest, version: int) -> Any:
    """A young broker may still be waiting for its first block of producer ids."""
    begun = side.await_answer("init", request, version, lambda answer: answer.error_code == 0)
    side.note("init", begun)
    return begun


def transactions(side: Side) -> None:
    topic_id = new_topic(side, "t-a", 2)
    await_coordinators(side, "gt", "tx")
    init = m.InitProducerIdRequest(
        transactional_id="tx", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    side.call("timeout too long", init.replace(transaction_timeout_ms=2_000_000_000), 5)
    side.call("timeout zero", init.replace(transaction_timeout_ms=0), 5)
    side.call("empty id", init.replace(transactional_id=""), 5)
    begun = init_producer(side, init, 5)
    pid, epoch = begun.producer_id, begun.producer_epoch

    def send(label: str, sequence: int, epoch: int, version: int = 12) -> None:
        records = batch([b"t"], producer_id=pid, producer_epoch=epoch, base_sequence=sequence, transactional=True)
        side.call(label, produce("t-a", records, topic_id=topic_id, transactional_id="tx"), version)

    send("not in a transaction, old client", 0, epoch, version=11)
    send("joins by itself, new client", 0, epoch)
    side.call("open: read committed", fetch("t-a", topic_id, isolation_level=1), 17)
    side.call("open: read uncommitted", fetch("t-a", topic_id), 17)
    describe = m.DescribeTransactionsRequest(transactional_ids=["tx", "tx-none"])
    side.call("described while open", describe, 0, Masks(unordered=("transaction_states",)))
    offsets = m.AddOffsetsToTxnRequest(transactional_id="tx", producer_id=pid, producer_epoch=epoch, group_id="gt")
    side.call("offsets added", offsets, 4)
    kind = m.TxnOffsetCommitRequest
    one = kind.TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=4, committed_leader_epoch=0, committed_metadata="t"
    )
    staged = kind(
        transactional_id="tx",
        group_id="gt",
        producer_id=pid,
        producer_epoch=epoch,
        generation_id=-1,
        member_id="",
        topics=[kind.TxnOffsetCommitRequestTopic(name="t-a", partitions=[one])],
    )
    side.call("offsets staged", staged, 5)
    side.call("offsets not visible yet", fetch_offsets("gt", "t-a"), 8)
    side.call("stable offsets asked for", fetch_offsets("gt", "t-a").replace(require_stable=True), 8)
    ended = side.call(
        "commit", m.EndTxnRequest(transactional_id="tx", producer_id=pid, producer_epoch=epoch, committed=True), 5
    )
    committed = fetch_offsets("gt", "t-a").replace(require_stable=True)
    side.await_answer(
        "marker written", committed, 8, lambda answer: answer.groups[0].topics[0].partitions[0].error_code == 0
    )
    side.await_answer(
        "records stable",
        fetch("t-a", topic_id, isolation_level=1),
        17,
        lambda answer: answer.responses[0].partitions[0].last_stable_offset == 2,
    )
    await_transaction(side, "tx", "CompleteCommit")
    side.call("committed: offsets", fetch_offsets("gt", "t-a"), 8)
    side.call("committed: records", fetch("t-a", topic_id, isolation_level=1), 17)
    side.call(
        "commit again",
        m.EndTxnRequest(transactional_id="tx", producer_id=pid, producer_epoch=ended.producer_epoch, committed=True),
        5,
    )
    send("the epoch before is fenced", 1, epoch)
    send("second transaction", 0, ended.producer_epoch)
    side.call(
        "abort",
        m.EndTxnRequest(transactional_id="tx", producer_id=pid, producer_epoch=ended.producer_epoch, committed=False),
        5,
    )
    side.await_answer(
        "aborted",
        fetch("t-a", topic_id, isolation_level=1),
        17,
        lambda answer: answer.responses[0].partitions[0].last_stable_offset == 4,
    )
    await_transaction(side, "tx", "CompleteAbort")
    side.call("aborted: read committed", fetch("t-a", topic_id, isolation_level=1), 17)
    side.call("aborted: read committed from there", fetch("t-a", topic_id, 2, isolation_level=1), 17)
    side.call("init again", init, 5)
    side.call("described when over", describe, 0, Masks(unordered=("transaction_states",)))


def older_transactions(side: Side) -> None:
    """The protocol of clients before KIP-890: partitions added by hand, the epoch stays."""
    topic_id = new_topic(side, "t-o", 2)
    await_coordinators(side, "go", "tx-o")
    init = m.InitProducerIdRequest(
        transactional_id="tx-o", transaction_timeout_ms=60_000, producer_id=-1, producer_epoch=-1
    )
    begun = init_producer(side, init, 4)
    pid, epoch = begun.producer_id, begun.producer_epoch
    kind = m.AddPartitionsToTxnRequest
    add = kind(
        v3_and_below_transactional_id="tx-o",
        v3_and_below_producer_id=pid,
        v3_and_below_producer_epoch=epoch,
        v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name="t-o", partitions=[0])],
    )
    end = m.EndTxnRequest(transactional_id="tx-o", producer_id=pid, producer_epoch=epoch, committed=True)
    side.call("end with nothing begun", end, 3)
    side.call_every("add", add, versions=range(4))
    side.call("add, wrong epoch", add.replace(v3_and_below_producer_epoch=epoch + 5), 3)
    side.call("add, wrong producer", add.replace(v3_and_below_producer_id=pid + 5), 3)
    side.call(
        "add, unknown partition",
        add.replace(v3_and_below_topics=[kind.AddPartitionsToTxnTopic(name="t-o", partitions=[9])]),
        3,
    )
    records = batch([b"t", b"u"], producer_id=pid, producer_epoch=epoch, base_sequence=0, transactional=True)
    side.call("send", produce("t-o", records, transactional_id="tx-o"), 11)
    side.call("send the same again", produce("t-o", records, transactional_id="tx-o"), 11)
    side.call("end, wrong epoch", end.replace(producer_epoch=epoch + 5), 3)
    side.call("commit", end, 3)
    side.await_answer(
        "committed",
        fetch("t-o", topic_id, isolation_level=1),
        17,
        lambda answer: answer.responses[0].partitions[0].last_stable_offset == 3,
    )
    await_transaction(side, "tx-o", "CompleteCommit")
    side.call("commit again", end, 3)
    side.call("abort what is committed", end.replace(committed=False), 3)
    side.call("records", fetch("t-o", topic_id, isolation_level=1), 17)


SCENARIOS = {
    "committing offsets": committing_offsets,
    "classic group": classic_group,
    "static members": static_members,
    "new protocol group": new_protocol_group,
    "transactions": transactions,
    "older transactions": older_transactions,
}
