"""OffsetCommit (API 8), TxnOffsetCommit (28), OffsetFetch (9) and OffsetDelete (47).

Who may commit: a member of the current generation or epoch; anybody, while the group has no members (simple consumers
and tools, generation -1). A member of a consumer group that is an epoch behind may still commit what it has owned
since then. OffsetCommit v2-4 may carry a retention time; v9+ is needed by members of the new protocol; v10 names
topics by id. The broker's handler resolves ids to names and the other way round; OffsetFetch comes as groups (the
form of v8+).

What is committed or deleted takes effect once its records are in the log, so that a failed append changes nothing. The
records of a commit do not depend on the group, only whether they may be written does: those of a long one are made
ahead, in pieces (`GroupShard.prepare`), and the decision about all of them stays one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from moldau.groups.classic import ClassicGroup, ClassicState
from moldau.groups.classic_rebalance import restart_session
from moldau.groups.consumer import ConsumerGroup
from moldau.groups.effects import Entry, GroupFailure, Prepared, Producer, RequestContext
from moldau.groups.offsets import NO_EXPIRY, CommittedOffset
from moldau.groups.records import encode_entry, offset_key
from moldau.groups.replay import emit_later
from moldau.groups.state import Group, ShardState
from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.primitives import ZERO_UUID

_NO_RETENTION = -1
_LATEST_MS = 2**63 - 1  # what a record can say
_GROUP_ERRORS_VERSION = 9
_CONSUMER_PROTOCOL_VERSION = 9
_NO_OFFSET = -1

PartitionCheck = Callable[[bytes, int], None]
"""Raises GroupFailure when the member may not commit this partition (topic id, index)."""


def commit_offsets(state: ShardState, request: m.OffsetCommitRequest, context: RequestContext) -> None:
    _commit_check(state, request, context)
    epoch = request.generation_id_or_member_epoch
    sender = _Committer(request.member_id, request.group_instance_id, epoch, context.api_version)
    check = _check_committer(state.groups.get(request.group_id), sender)
    if check is not None:
        for topic in request.topics:
            topic_id = _topic_id(state, topic.name, topic.topic_id)
            for partition in topic.partitions:
                check(topic_id, partition.partition_index)
    group = state.groups.get(request.group_id)
    if isinstance(group, ClassicGroup) and group.state in {ClassicState.STABLE, ClassicState.PREPARING_REBALANCE}:
        restart_session(state, group, group.members[request.member_id])  # a commit shows that the member lives
    made = state.prepared
    if made is None:
        made = commit_records(state, request, request.topics, Prepared(state.records, state.entries, []))
    else:
        _write(state, made)
    state.respond(context.request_id, m.OffsetCommitResponse(topics=made.results))


def commit_records(
    state: ShardState,
    request: m.OffsetCommitRequest,
    topics: Iterable[m.OffsetCommitRequest.OffsetCommitRequestTopic],
    made: Prepared,
) -> Prepared:
    """Add what it takes to commit these of the request's topics."""
    now_ms = state.now.wall_ms
    retention_ms = request.retention_time_ms
    expiry_ms = NO_EXPIRY if retention_ms == _NO_RETENTION else min(now_ms + retention_ms, _LATEST_MS)
    for topic in topics:
        partitions = []
        topic_id = _topic_id(state, topic.name, topic.topic_id)
        for partition in topic.partitions:
            error = _metadata_error(state, partition.committed_metadata)
            if error is ErrorCode.NONE:
                value = m.OffsetCommitValue(
                    offset=partition.committed_offset,
                    metadata=partition.committed_metadata or "",
                    commit_timestamp=now_ms,
                    expire_timestamp=expiry_ms,
                )
                if expiry_ms == NO_EXPIRY:  # the record version with an expiry time has neither of these
                    value.leader_epoch = partition.committed_leader_epoch
                    value.topic_id = topic_id
                _add(made, offset_key(request.group_id, topic.name, partition.partition_index), value)
            partitions.append(
                m.OffsetCommitResponse.OffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=error
                )
            )
        made.results.append(
            m.OffsetCommitResponse.OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
        )
    return made


def commit_transactional_offsets(state: ShardState, request: m.TxnOffsetCommitRequest, context: RequestContext) -> None:
    if not request.group_id:
        raise GroupFailure(ErrorCode.INVALID_GROUP_ID)
    _check_transactional_committer(state, request)
    made = state.prepared
    if made is None:
        made = transactional_commit_records(state, request, request.topics, Prepared(state.records, state.entries, []))
    else:
        _write(state, made)
    if state.records:
        state.producer = Producer(request.transactional_id, request.producer_id, request.producer_epoch)
    state.respond(context.request_id, m.TxnOffsetCommitResponse(topics=made.results))


def transactional_commit_records(
    state: ShardState,
    request: m.TxnOffsetCommitRequest,
    topics: Iterable[m.TxnOffsetCommitRequest.TxnOffsetCommitRequestTopic],
    made: Prepared,
) -> Prepared:
    for topic in topics:
        partitions = []
        for partition in topic.partitions:
            error = _metadata_error(state, partition.committed_metadata)
            if error is ErrorCode.NONE:
                value = m.OffsetCommitValue(
                    offset=partition.committed_offset,
                    leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.committed_metadata or "",
                    commit_timestamp=state.now.wall_ms,
                )
                _add(made, offset_key(request.group_id, topic.name, partition.partition_index), value)
            partitions.append(
                m.TxnOffsetCommitResponse.TxnOffsetCommitResponsePartition(
                    partition_index=partition.partition_index, error_code=error
                )
            )
        made.results.append(
            m.TxnOffsetCommitResponse.TxnOffsetCommitResponseTopic(name=topic.name, partitions=partitions)
        )
    return made


def _add(made: Prepared, key: m.OffsetCommitKey, value: m.OffsetCommitValue) -> None:
    made.records.append(encode_entry(key, value))
    made.entries.append(Entry(key, value))


def _write(state: ShardState, made: Prepared) -> None:
    """As `replay.emit_later`: it takes effect once it is in the log."""
    state.records += made.records
    state.entries += made.entries


def fetch_offsets(state: ShardState, request: m.OffsetFetchRequest, context: RequestContext) -> None:
    groups = []
    for wanted in request.groups:
        try:
            groups.append(_fetch_group(state, wanted, require_stable=request.require_stable))
        except GroupFailure as failure:
            groups.append(
                m.OffsetFetchResponse.OffsetFetchResponseGroup(group_id=wanted.group_id, error_code=failure.error)
            )
    state.respond(context.request_id, m.OffsetFetchResponse(groups=groups))


def delete_offsets(state: ShardState, request: m.OffsetDeleteRequest, context: RequestContext) -> None:
    if not request.group_id:
        raise GroupFailure(ErrorCode.INVALID_GROUP_ID)
    group = state.group(request.group_id)
    has_members = isinstance(group, ClassicGroup) and group.state is not ClassicState.EMPTY
    if isinstance(group, ClassicGroup) and has_members and not group.uses_consumer_protocol:
        raise GroupFailure(ErrorCode.NON_EMPTY_GROUP)  # what its members read cannot be told
    results = []
    for topic in request.topics:
        in_use = group.is_subscribed_to(topic.name)
        error = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC if in_use else ErrorCode.NONE
        partitions = []
        for partition in topic.partitions:
            if not in_use:
                _delete_offset(state, request.group_id, topic.name, partition.partition_index)
            partitions.append(
                m.OffsetDeleteResponse.OffsetDeleteResponsePartition(
                    partition_index=partition.partition_index, error_code=error
                )
            )
        results.append(m.OffsetDeleteResponse.OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
    state.respond(context.request_id, m.OffsetDeleteResponse(topics=results))


def delete_all_offsets(state: ShardState, group_id: str) -> None:
    committed = [
        (topic, index) for topic, partitions in state.offsets.topics_of(group_id).items() for index in partitions
    ]
    for topic, index in dict.fromkeys((*committed, *state.offsets.open_partitions(group_id))):
        emit_later(state, offset_key(group_id, topic, index), None)


def _delete_offset(state: ShardState, group_id: str, topic: str, partition: int) -> None:
    offsets = state.offsets
    if offsets.get(group_id, topic, partition) is not None or offsets.is_pending(group_id, topic, partition):
        emit_later(state, offset_key(group_id, topic, partition), None)


def _commit_check(state: ShardState, request: m.OffsetCommitRequest, context: RequestContext) -> None:
    if request.group_id not in state.groups and request.generation_id_or_member_epoch >= 0:
        known = context.api_version >= _GROUP_ERRORS_VERSION
        raise GroupFailure(ErrorCode.GROUP_ID_NOT_FOUND if known else ErrorCode.ILLEGAL_GENERATION)


class _Committer(NamedTuple):
    """Who commits, by its own account."""

    member_id: str
    instance_id: str | None
    epoch: int
    """Generation, or member epoch; -1: none."""
    version: int = 0
    transactional: bool = False


def _check_committer(group: Group | None, sender: _Committer) -> PartitionCheck | None:
    """GroupFailure if the sender may not commit at all; a check per partition if it may commit some."""
    if group is None:
        return None
    if isinstance(group, ClassicGroup):
        _check_classic_committer(group, sender)
        return None
    if sender.epoch < 0 and not group.members:
        return None
    anonymous = sender.epoch == -1 and not sender.member_id and sender.instance_id is None
    if sender.transactional and anonymous:
        return None  # a producer that does not say on whose behalf: allowed since it always was
    return _check_consumer_committer(group, sender)


def _check_classic_committer(group: ClassicGroup, sender: _Committer) -> None:
    member_id, instance_id, generation_id, _, transactional = sender
    if generation_id < 0 and group.state is ClassicState.EMPTY:
        return
    if generation_id >= 0 or member_id or instance_id is not None:
        group.check_member(member_id, instance_id)
        if generation_id != group.generation_id:
            raise GroupFailure(ErrorCode.ILLEGAL_GENERATION)
    elif not transactional and group.state is not ClassicState.EMPTY:
        # A consumer without group management would overwrite what the members commit.
        raise GroupFailure(ErrorCode.UNKNOWN_MEMBER_ID)
    if not transactional and group.state is ClassicState.COMPLETING_REBALANCE:
        raise GroupFailure(ErrorCode.REBALANCE_IN_PROGRESS)


def _check_consumer_committer(group: ConsumerGroup, sender: _Committer) -> PartitionCheck | None:
    member = group.members.get(sender.member_id)
    if member is None:
        raise GroupFailure(ErrorCode.UNKNOWN_MEMBER_ID)
    epoch = sender.epoch
    is_classic = member.classic is not None
    if not sender.transactional and not is_classic and sender.version < _CONSUMER_PROTOCOL_VERSION:
        raise GroupFailure(ErrorCode.UNSUPPORTED_VERSION)
    if epoch == member.member_epoch:
        return None
    error = ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH
    if epoch > member.member_epoch:
        raise GroupFailure(error)

    def check(topic_id: bytes, partition: int) -> None:
        since = member.assignment_epoch((topic_id, partition))
        if since is None or epoch < since:
            raise GroupFailure(error)

    return check


def _check_transactional_committer(state: ShardState, request: m.TxnOffsetCommitRequest) -> None:
    """As for other commits, but old producers know only ILLEGAL_GENERATION."""
    if request.group_id not in state.groups and request.generation_id >= 0:
        raise GroupFailure(ErrorCode.ILLEGAL_GENERATION)
    try:
        sender = _Committer(request.member_id, request.group_instance_id, request.generation_id, transactional=True)
        check = _check_committer(state.groups.get(request.group_id), sender)
        if check is not None:
            for topic in request.topics:
                for partition in topic.partitions:
                    check(_topic_id(state, topic.name, ZERO_UUID), partition.partition_index)
    except GroupFailure as failure:
        if failure.error is ErrorCode.STALE_MEMBER_EPOCH:
            raise GroupFailure(ErrorCode.ILLEGAL_GENERATION) from None
        raise


def _topic_id(state: ShardState, name: str, topic_id: bytes) -> bytes:
    if topic_id != ZERO_UUID:
        return topic_id
    topic = state.image.topic_by_name(name)
    return ZERO_UUID if topic is None else topic.topic_id


def _metadata_error(state: ShardState, metadata: str | None) -> ErrorCode:
    too_large = metadata is not None and len(metadata) > state.config.offset_metadata_max_bytes
    return ErrorCode.OFFSET_METADATA_TOO_LARGE if too_large else ErrorCode.NONE


def _fetch_group(
    state: ShardState, wanted: m.OffsetFetchRequest.OffsetFetchRequestGroup, *, require_stable: bool
) -> m.OffsetFetchResponse.OffsetFetchResponseGroup:
    group = state.groups.get(wanted.group_id)
    if isinstance(group, ConsumerGroup):
        _check_fetcher(group, wanted.member_id, wanted.member_epoch)
    response = m.OffsetFetchResponse
    committed = state.offsets.topics_of(wanted.group_id)
    topics = []
    if wanted.topics is None:
        asked = [(name, ZERO_UUID, list(partitions)) for name, partitions in committed.items()]
    else:
        asked = [(topic.name, topic.topic_id, topic.partition_indexes) for topic in wanted.topics]
    for name, topic_id, indexes in asked:
        partitions = []
        for index in indexes:
            if require_stable and state.offsets.is_pending(wanted.group_id, name, index):
                partitions.append(_no_offset(index, ErrorCode.UNSTABLE_OFFSET_COMMIT))
                continue
            found = committed.get(name, {}).get(index)
            if found is None or _is_of_another_topic(found, topic_id):
                partitions.append(_no_offset(index, ErrorCode.NONE))
            else:
                partitions.append(
                    response.OffsetFetchResponsePartitions(
                        partition_index=index,
                        committed_offset=found.offset,
                        committed_leader_epoch=found.leader_epoch,
                        metadata=found.metadata,
                    )
                )
        topics.append(response.OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=partitions))
    return response.OffsetFetchResponseGroup(group_id=wanted.group_id, topics=topics)


def _check_fetcher(group: ConsumerGroup, member_id: str | None, epoch: int) -> None:
    if member_id is None and epoch < 0:
        return  # a tool, or a client that does not say who it is
    member = group.members.get(member_id or "")
    if member is None:
        raise GroupFailure(ErrorCode.UNKNOWN_MEMBER_ID)
    if epoch != member.member_epoch:
        is_classic = member.classic is not None
        raise GroupFailure(ErrorCode.ILLEGAL_GENERATION if is_classic else ErrorCode.STALE_MEMBER_EPOCH)


def _is_of_another_topic(found: CommittedOffset, topic_id: bytes) -> bool:
    """Committed for a topic of the same name that was deleted since."""
    return ZERO_UUID not in {found.topic_id, topic_id} and found.topic_id != topic_id


def _no_offset(index: int, error: ErrorCode) -> m.OffsetFetchResponse.OffsetFetchResponsePartitions:
    return m.OffsetFetchResponse.OffsetFetchResponsePartitions(
        partition_index=index, committed_offset=_NO_OFFSET, metadata="", error_code=error
    )
