"""Raft's messages in and out of Kafka's RPCs, which wrap them into a topic and a partition: `__cluster_metadata-0`.

Reading a request raises `QuorumRequestRefused` with the error to answer, if it is not about that partition, or not
about this cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moldau.broker.quorum.metadata_log import TOPIC, TOPIC_ID
from moldau.raft import (
    Address,
    BeginQuorumEpoch,
    EndQuorumEpoch,
    EpochAnswer,
    Fetch,
    Fetched,
    FetchedSnapshot,
    FetchSnapshot,
    ReplicaKey,
    SnapshotId,
    Vote,
    Voted,
)
from moldau.raft.messages import Answer, Request
from moldau.raft.voters import NO_NODE
from moldau.wire import ErrorCode, Message
from moldau.wire import messages as m
from moldau.wire.fetch import FetchedFrame

Endpoints = tuple[tuple[str, Address], ...]
_FETCH_WAIT_MS = 500


class QuorumRequestRefused(Exception):
    """`code` is for the whole response."""

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code.name)
        self.code = code


# -- requests out


def encode_request(request: Request, cluster_id: str, *, fetch_max_bytes: int, snapshot_max_bytes: int) -> Message:
    match request:
        case Vote():
            return _vote(request, cluster_id)
        case BeginQuorumEpoch():
            return _begin(request, cluster_id)
        case EndQuorumEpoch():
            return _end(request, cluster_id)
        case Fetch():
            return _fetch(request, cluster_id, fetch_max_bytes)
        case FetchSnapshot():
            return _fetch_snapshot(request, cluster_id, snapshot_max_bytes)


def _vote(request: Vote, cluster_id: str) -> m.VoteRequest:
    partition = m.VoteRequest.PartitionData(
        partition_index=0,
        replica_epoch=request.epoch,
        replica_id=request.candidate.id,
        replica_directory_id=request.candidate.directory_id,
        voter_directory_id=request.voter.directory_id,
        last_offset_epoch=request.last_epoch,
        last_offset=request.end_offset,
        pre_vote=request.pre_vote,
    )
    return m.VoteRequest(cluster_id, request.voter.id, [m.VoteRequest.TopicData(TOPIC, [partition])])


def _begin(request: BeginQuorumEpoch, cluster_id: str) -> m.BeginQuorumEpochRequest:
    kind = m.BeginQuorumEpochRequest
    partition = kind.PartitionData(
        partition_index=0,
        voter_directory_id=request.voter.directory_id,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
    )
    endpoints = [kind.LeaderEndpoint(name, at.host, at.port) for name, at in request.endpoints]
    return kind(cluster_id, request.voter.id, [kind.TopicData(TOPIC, [partition])], endpoints)


def _end(request: EndQuorumEpoch, cluster_id: str) -> m.EndQuorumEpochRequest:
    kind = m.EndQuorumEpochRequest
    partition = kind.PartitionData(
        partition_index=0,
        leader_id=request.leader_id,
        leader_epoch=request.epoch,
        preferred_successors=[each.id for each in request.candidates],
        preferred_candidates=[kind.ReplicaInfo(each.id, each.directory_id) for each in request.candidates],
    )
    endpoints = [kind.LeaderEndpoint(name, at.host, at.port) for name, at in request.endpoints]
    return kind(cluster_id, [kind.TopicData(TOPIC, [partition])], endpoints)


def _fetch(request: Fetch, cluster_id: str, max_bytes: int) -> m.FetchRequest:
    kind = m.FetchRequest
    partition = kind.FetchPartition(
        partition=0,
        current_leader_epoch=request.epoch,
        fetch_offset=request.offset,
        last_fetched_epoch=request.last_epoch,
        partition_max_bytes=max_bytes,
        replica_directory_id=request.replica.directory_id,
        high_watermark=request.high_watermark,
    )
    return kind(
        cluster_id=cluster_id,
        replica_id=request.replica.id,
        replica_state=kind.ReplicaState(request.replica.id, -1),
        max_wait_ms=_FETCH_WAIT_MS,
        min_bytes=0,
        max_bytes=max_bytes,
        topics=[kind.FetchTopic(topic=TOPIC, topic_id=TOPIC_ID, partitions=[partition])],
    )


def _fetch_snapshot(request: FetchSnapshot, cluster_id: str, max_bytes: int) -> m.FetchSnapshotRequest:
    kind = m.FetchSnapshotRequest
    partition = kind.PartitionSnapshot(
        partition=0,
        current_leader_epoch=request.epoch,
        snapshot_id=kind.SnapshotId(request.snapshot.end_offset, request.snapshot.epoch),
        position=request.position,
        replica_directory_id=request.replica.directory_id,
    )
    return kind(cluster_id, request.replica.id, max_bytes, [kind.TopicSnapshot(TOPIC, [partition])])


# -- answers in


def decode_answer(request: Request, response: Any) -> Answer:
    """What the peer said; an answer for the wrong partition is as good as none (ValueError)."""
    if isinstance(response, FetchedFrame):
        return _fetched(response)
    code = ErrorCode(response.error_code)
    if code is not ErrorCode.NONE:
        return _failed(request, code)
    partition = _only(response.topics)
    error = ErrorCode(partition.error_code)
    endpoints = {each.node_id: Address(each.host, each.port) for each in response.node_endpoints}
    if isinstance(request, FetchSnapshot):
        leader = partition.current_leader
        return FetchedSnapshot(
            error,
            _known(leader.leader_id),
            leader.leader_epoch,
            request.snapshot,
            partition.size,
            partition.position,
            partition.unaligned_records or b"",
            endpoints.get(leader.leader_id),
        )
    leader_id, epoch = _known(partition.leader_id), partition.leader_epoch
    address = endpoints.get(partition.leader_id)
    if isinstance(request, Vote):
        return Voted(error, leader_id, epoch, address, partition.vote_granted)
    return EpochAnswer(error, leader_id, epoch, address)


def _fetched(frame: FetchedFrame) -> Fetched:
    if frame.error_code:
        return Fetched(ErrorCode(frame.error_code), None, -1)
    if len(frame.topics) != 1 or len(frame.topics[0][1]) != 1:
        raise ValueError("the response is not about the metadata log alone")
    partition = frame.topics[0][1][0]
    leader_id, epoch = partition.current_leader or (NO_NODE, -1)
    endpoints = {each[0]: Address(each[1], each[2]) for each in frame.node_endpoints}
    return Fetched(
        ErrorCode(partition.error_code),
        _known(leader_id),
        epoch,
        partition.high_watermark,
        partition.log_start_offset,
        partition.diverging_epoch,
        None if partition.snapshot_id is None else SnapshotId(*partition.snapshot_id),
        _joined(partition.records),
        endpoints.get(leader_id),
    )


def _joined(records: Sequence[Any]) -> bytes | memoryview:
    if not records:
        return b""
    return records[0] if len(records) == 1 else b"".join(records)


def _failed(request: Request, code: ErrorCode) -> Answer:
    match request:
        case Vote():
            return Voted(code, None, -1)
        case FetchSnapshot():
            return FetchedSnapshot(code, None, -1, request.snapshot)
        case _:
            return EpochAnswer(code, None, -1)


def _only(topics: Sequence[Any]) -> Any:
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise ValueError("the response is not about the metadata log alone")
    return topics[0].partitions[0]


def _known(node_id: int) -> int | None:
    return None if node_id < 0 else node_id


# -- requests in


def checked(topics: Sequence[Any], cluster_id: str | None, ours: str, *, name: str = "topic_name") -> Any:
    """The one partition a request is about."""
    if cluster_id is not None and cluster_id != ours:
        raise QuorumRequestRefused(ErrorCode.INCONSISTENT_CLUSTER_ID)
    if len(topics) != 1 or len(topics[0].partitions) != 1:
        raise QuorumRequestRefused(ErrorCode.INVALID_REQUEST)
    partition = topics[0].partitions[0]
    index = partition.partition if name == "name" else partition.partition_index
    if getattr(topics[0], name) != TOPIC or index != 0:
        raise QuorumRequestRefused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return partition


def decode_vote(request: m.VoteRequest, cluster_id: str) -> Vote:
    partition = checked(request.topics, request.cluster_id, cluster_id)
    if partition.last_offset < 0 or partition.last_offset_epoch < 0 or partition.replica_epoch < 0:
        raise QuorumRequestRefused(ErrorCode.INVALID_REQUEST)
    return Vote(
        voter=ReplicaKey(request.voter_id, partition.voter_directory_id),
        candidate=ReplicaKey(partition.replica_id, partition.replica_directory_id),
        epoch=partition.replica_epoch,
        last_epoch=partition.last_offset_epoch,
        end_offset=partition.last_offset,
        pre_vote=partition.pre_vote,
    )


def decode_begin(request: m.BeginQuorumEpochRequest, cluster_id: str) -> BeginQuorumEpoch:
    partition = checked(request.topics, request.cluster_id, cluster_id)
    return BeginQuorumEpoch(
        voter=ReplicaKey(request.voter_id, partition.voter_directory_id),
        leader_id=partition.leader_id,
        epoch=partition.leader_epoch,
        endpoints=tuple((each.name, Address(each.host, each.port)) for each in request.leader_endpoints),
    )


def decode_end(request: m.EndQuorumEpochRequest, cluster_id: str) -> EndQuorumEpoch:
    partition = checked(request.topics, request.cluster_id, cluster_id)
    candidates = [ReplicaKey(each.candidate_id, each.candidate_directory_id) for each in partition.preferred_candidates]
    return EndQuorumEpoch(
        leader_id=partition.leader_id,
        epoch=partition.leader_epoch,
        candidates=tuple(candidates or [ReplicaKey(each) for each in partition.preferred_successors]),
        endpoints=tuple((each.name, Address(each.host, each.port)) for each in request.leader_endpoints),
    )


def decode_fetch_snapshot(request: m.FetchSnapshotRequest, cluster_id: str) -> FetchSnapshot:
    partition = checked(request.topics, request.cluster_id, cluster_id, name="name")
    return FetchSnapshot(
        ReplicaKey(request.replica_id, partition.replica_directory_id),
        partition.current_leader_epoch,
        SnapshotId(partition.snapshot_id.end_offset, partition.snapshot_id.epoch),
        partition.position,
    )


# -- answers out


def leader_numbers(answer: Answer) -> tuple[int, int]:
    return NO_NODE if answer.leader_id is None else answer.leader_id, answer.epoch


def node_endpoints(kind: Any, answer: Answer) -> list[Any]:
    """Where the leader is, as every answer of the quorum tells it."""
    if answer.leader_id is None or answer.leader_address is None:
        return []
    return [kind.NodeEndpoint(answer.leader_id, answer.leader_address.host, answer.leader_address.port)]


def encode_voted(answer: Voted) -> m.VoteResponse:
    kind = m.VoteResponse
    partition = kind.PartitionData(0, answer.error, *leader_numbers(answer), answer.granted)
    return kind(0, [kind.TopicData(TOPIC, [partition])], node_endpoints(kind, answer))


def encode_begin_answer(answer: EpochAnswer) -> m.BeginQuorumEpochResponse:
    kind = m.BeginQuorumEpochResponse
    partition = kind.PartitionData(0, answer.error, *leader_numbers(answer))
    return kind(0, [kind.TopicData(TOPIC, [partition])], node_endpoints(kind, answer))


def encode_end_answer(answer: EpochAnswer) -> m.EndQuorumEpochResponse:
    kind = m.EndQuorumEpochResponse
    partition = kind.PartitionData(0, answer.error, *leader_numbers(answer))
    return kind(0, [kind.TopicData(TOPIC, [partition])], node_endpoints(kind, answer))


def encode_fetched_snapshot(answer: FetchedSnapshot) -> m.FetchSnapshotResponse:
    kind = m.FetchSnapshotResponse
    partition = kind.PartitionSnapshot(
        index=0,
        error_code=answer.error,
        snapshot_id=kind.SnapshotId(*answer.snapshot),
        current_leader=kind.LeaderIdAndEpoch(*leader_numbers(answer)),
        size=answer.size,
        position=answer.position,
        unaligned_records=bytes(answer.data),
    )
    return kind(topics=[kind.TopicSnapshot(TOPIC, [partition])], node_endpoints=node_endpoints(kind, answer))
