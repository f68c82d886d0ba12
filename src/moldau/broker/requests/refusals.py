"""A request refused as a whole, in the form its response has for that: one code, or the same for everything named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from moldau.wire import ErrorCode, Message, encode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call


def refusal_of(request: Message, call: Call, code: ErrorCode) -> Message | None:
    """None if the response has no place for an error; then the connection ends."""
    response: Any = call.api.response()
    match request:
        case m.CreateTopicsRequest():
            item: Any = m.CreateTopicsResponse.CreatableTopicResult
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
            response.results = [item(error_code=code, error_message=None) for _ in request.creations]
        case m.DeleteAclsRequest():
            item = m.DeleteAclsResponse.DeleteAclsFilterResult
            response.filter_results = [item(error_code=code, error_message=None) for _ in request.filters]
        case m.AlterUserScramCredentialsRequest():
            item = m.AlterUserScramCredentialsResponse.AlterUserScramCredentialsResult
            users = dict.fromkeys(
                [each.name for each in request.deletions] + [each.name for each in request.upsertions]
            )
            response.results = [item(user=user, error_code=code, error_message=None) for user in users]
        case _ if hasattr(response, "error_code") and _tells(response, code, call.version):
            pass
        case _:
            call.slot.close(f"{call.api.name} was not carried out: {code.name}")
            return None
    return response  # type: ignore[no-any-return]  # made by name


def _tells(response: Any, code: ErrorCode, version: int) -> bool:
    """Set the code; whether this version of the response has a place for it. Without one, an empty answer would say
    that all is well: that there are no brokers, say."""
    before = encode(response, version)
    response.error_code = code
    return encode(response, version) != before
