"""Error responses for every group API, in the place each API has for them.

For handlers: a request the shard refuses, one that cannot reach a shard (NOT_COORDINATOR,
COORDINATOR_LOAD_IN_PROGRESS), and one whose append failed.
"""

from __future__ import annotations

from moldau.wire import messages as m
from moldau.wire.errors import ErrorCode
from moldau.wire.message import Message

_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
    # The transaction could not be verified: trying again here is right, looking for another coordinator is not.
    ErrorCode.NETWORK_EXCEPTION: ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
}


def error_after_failed_append(error: ErrorCode) -> ErrorCode:
    """What a client is told when the offsets partition could not be written: errors of the log are not its business."""
    return _APPEND_ERRORS.get(error, error)


def refusal(request: Message, error: ErrorCode, message: str | None = None) -> Message:
    """The response to `request` that says `error`."""
    match request:
        case m.JoinGroupRequest():
            return m.JoinGroupResponse(error_code=error, member_id=request.member_id)
        case m.SyncGroupRequest():
            return m.SyncGroupResponse(error_code=error)
        case m.HeartbeatRequest():
            # A heartbeat to a coordinator that is loading counts: the session starts anew when it has loaded.
            loading = error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
            return m.HeartbeatResponse(error_code=ErrorCode.NONE if loading else error)
        case m.LeaveGroupRequest():
            return m.LeaveGroupResponse(error_code=error)
        case m.OffsetCommitRequest():
            return _commit_refusal(request, error)
        case m.TxnOffsetCommitRequest():
            return _transactional_commit_refusal(request, error)
        case m.OffsetFetchRequest():
            response = m.OffsetFetchResponse
            groups = [
                response.OffsetFetchResponseGroup(group_id=group.group_id, error_code=error) for group in request.groups
            ]
            return response(groups=groups)
        case m.OffsetDeleteRequest():
            return m.OffsetDeleteResponse(error_code=error)
        case m.ConsumerGroupHeartbeatRequest():
            return m.ConsumerGroupHeartbeatResponse(error_code=error, error_message=message)
        case m.ListGroupsRequest():
            return m.ListGroupsResponse(error_code=error)
        case _:
            return _per_group_refusal(request, error)


def _per_group_refusal(request: Message, error: ErrorCode) -> Message:
    match request:
        case m.DescribeGroupsRequest():
            described = m.DescribeGroupsResponse.DescribedGroup
            return m.DescribeGroupsResponse(
                groups=[described(group_id=group_id, error_code=error) for group_id in request.groups]
            )
        case m.ConsumerGroupDescribeRequest():
            described_consumer = m.ConsumerGroupDescribeResponse.DescribedGroup
            return m.ConsumerGroupDescribeResponse(
                groups=[described_consumer(group_id=group_id, error_code=error) for group_id in request.group_ids]
            )
        case m.DeleteGroupsRequest():
            result = m.DeleteGroupsResponse.DeletableGroupResult
            return m.DeleteGroupsResponse(
                results=[result(group_id=group_id, error_code=error) for group_id in request.groups_names]
            )
        case _:
            raise TypeError(f"{type(request).__name__} is not a request to a group coordinator")


def _commit_refusal(request: m.OffsetCommitRequest, error: ErrorCode) -> m.OffsetCommitResponse:
    response = m.OffsetCommitResponse
    return response(
        topics=[
            response.OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    response.OffsetCommitResponsePartition(partition_index=partition.partition_index, error_code=error)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _transactional_commit_refusal(request: m.TxnOffsetCommitRequest, error: ErrorCode) -> m.TxnOffsetCommitResponse:
    response = m.TxnOffsetCommitResponse
    return response(
        topics=[
            response.TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    response.TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index, error_code=error
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
