"""A request refused as a whole, in the form its response has for that: one code, or the same for everything named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.groups import refusal as refused_commit
from moldau.wire import ErrorCode, Message, encode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call


_NULLABLE_PROTOCOL = 7  # the version of JoinGroup from which on


def refusal_of(request: Message, call: Call, code: ErrorCode, message: str | None = None) -> Message | None:
    """None if the response has no place for an error; then the connection ends. `message` goes where there is room."""
    response = _named_refusal(request, call, code, message)
    if response is not None:
        return response
    whole: Any = call.api.response()
    if not hasattr(whole, "error_code") or not _tells(whole, code, call.version):
        call.slot.close(f"{call.api.name} was not carried out: {code.name}")
        return None
    if hasattr(whole, "error_message"):
        whole.error_message = message
    return whole  # type: ignore[no-any-return]  # made by name


def _named_refusal(request: Message, call: Call, code: ErrorCode, message: str | None) -> Message | None:
    """For the responses that tell an error once for everything the request named."""
    response: Any = call.api.response()
    item: Any
    match request:
        case m.JoinGroupRequest():
            return m.JoinGroupResponse(
                error_code=code, protocol_name="" if call.version < _NULLABLE_PROTOCOL else None, member_id=""
            )
        case m.DescribeUserScramCredentialsRequest():
            item = m.DescribeUserScramCredentialsResponse.DescribeUserScramCredentialsResult
            results = [item(error_code=code, error_message=None) for _ in request.users or ()]
            return m.DescribeUserScramCredentialsResponse(error_code=code, error_message=None, results=results)
        case m.DescribeClientQuotasRequest():
            return m.DescribeClientQuotasResponse(error_code=code, error_message=None, entries=None)
        case m.EnvelopeRequest():
            return m.EnvelopeResponse(error_code=code, response_data=None)
        case m.OffsetCommitRequest() | m.TxnOffsetCommitRequest():
            return refused_commit(request, code)
        case m.CreateTopicsRequest():
            item = m.CreateTopicsResponse.CreatableTopicResult
            response.topics = [item(name=topic.name, error_code=code) for topic in request.topics]
        case m.DeleteTopicsRequest():
            item = m.DeleteTopicsResponse.DeletableTopicResult
            named = [item(name=topic.name, topic_id=topic.topic_id, error_code=code) for topic in request.topics]
            response.responses = named or [item(name=name, error_code=code) for name in request.topic_names]
        case m.CreatePartitionsRequest():
            item = m.CreatePartitionsResponse.CreatePartitionsTopicResult
            response.results = [item(name=topic.name, error_code=code) for topic in request.topics]
        case m.AlterConfigsRequest() | m.IncrementalAlterConfigsRequest():
            item = type(response).AlterConfigsResourceResponse
            response.responses = [
                item(error_code=code, resource_type=each.resource_type, resource_name=each.resource_name)
                for each in request.resources
            ]
        case m.CreateAclsRequest():
            item = m.CreateAclsResponse.AclCreationResult
            response.results = [item(error_code=code, error_message=message) for _ in request.creations]
        case m.DeleteAclsRequest():
            item = m.DeleteAclsResponse.DeleteAclsFilterResult
            response.filter_results = [item(error_code=code, error_message=message) for _ in request.filters]
        case m.AlterUserScramCredentialsRequest():
            item = m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
            users = dict.fromkeys(
                [each.name for each in request.deletions] + [each.name for each in request.upsertions]
            )
            response.results = [item(user=user, error_code=code, error_message=message) for user in users]
        case m.AlterClientQuotasRequest():
            item = m.AlterClientQuotasResponse
            response.entries = [
                item.EntryData(
                    code, message, [item.EntityData(each.entity_type, each.entity_name) for each in entry.entity]
                )
                for entry in request.entries
            ]
        case _:
            return _refused_partitions(request, code, message)
    return response  # type: ignore[no-any-return]  # made by name


def _refused_partitions(request: Message, code: ErrorCode, message: str | None) -> Message | None:
    """Those that name partitions."""
    response: Any
    match request:
        case m.WriteTxnMarkersRequest():
            response = m.WriteTxnMarkersResponse
            return response(  # type: ignore[no-any-return]  # made by name
                markers=[
                    response.WritableTxnMarkerResult(
                        marker.producer_id,
                        [
                            response.WritableTxnMarkerTopicResult(
                                topic.name,
                                [
                                    response.WritableTxnMarkerPartitionResult(index, code)
                                    for index in topic.partition_indexes
                                ],
                            )
                            for topic in marker.topics
                        ],
                    )
                    for marker in request.markers
                ]
            )
        case m.AlterReplicaLogDirsRequest():
            response = m.AlterReplicaLogDirsResponse
            return response(  # type: ignore[no-any-return]  # made by name
                results=[
                    response.AlterReplicaLogDirTopicResult(
                        topic.name,
                        [response.AlterReplicaLogDirPartitionResult(index, code) for index in topic.partitions],
                    )
                    for each in request.dirs
                    for topic in each.topics
                ]
            )
        case m.ElectLeadersRequest():
            response = m.ElectLeadersResponse
            return response(  # type: ignore[no-any-return]  # made by name
                error_code=code,
                replica_election_results=[
                    response.ReplicaElectionResult(
                        topic.topic, [response.PartitionResult(index, code, message) for index in topic.partitions]
                    )
                    for topic in request.topic_partitions or ()
                ],
            )
        case m.AlterPartitionReassignmentsRequest():
            response = m.AlterPartitionReassignmentsResponse
            return response(  # type: ignore[no-any-return]  # made by name
                error_code=code,
                error_message=message,
                responses=[
                    response.ReassignableTopicResponse(
                        topic.name,
                        [
                            response.ReassignablePartitionResponse(each.partition_index, code, message)
                            for each in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ],
            )
    return None


def _tells(response: Any, code: ErrorCode, version: int) -> bool:
    """Set the code; whether this version of the response has a place for it. Without one, an empty answer would say
    that all is well: that there are no brokers, say."""
    before = encode(response, version)
    response.error_code = code
    return encode(response, version) != before
