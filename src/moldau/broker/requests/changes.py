"""Which requests change the cluster, and what they changed: for the audit log, one line for each request.

Names only: values of settings may be secrets. What failed is not here (who was refused is noted by the authorizer);
users, rules, quotas and tokens are noted by their own handlers, which know more to say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from moldau.wire import ErrorCode, Message

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAudit

_NAMED_MAX = 20
Changed = Callable[[Any, Any], Iterable[str]]


def _good(results: Iterable[Any]) -> Iterator[Any]:
    return (each for each in results if each.error_code == ErrorCode.NONE)


def _named(field: str, name: str) -> Changed:
    """A list of results, each with the name of what was changed."""

    def changed(request: Any, response: Any) -> Iterator[str]:
        if not getattr(request, "validate_only", False):
            for each in _good(getattr(response, field)):
                yield str(getattr(each, name) or each.topic_id.hex())

    return changed


def _partitions(field: str, name: str, partitions: str, index: str) -> Changed:
    def changed(_: Any, response: Any) -> Iterator[str]:
        for topic in getattr(response, field):
            for each in _good(getattr(topic, partitions)):
                yield f"{getattr(topic, name)}-{getattr(each, index)}"

    return changed


def _whole(names: Callable[[Any], Iterable[str]]) -> Changed:
    """One error for all of it."""
    return lambda request, response: names(request) if response.error_code == ErrorCode.NONE else ()


_KINDS = {2: "topic", 4: "broker", 8: "broker logger", 16: "client metrics", 32: "group"}


def _settings(request: Any, response: Any) -> Iterator[str]:
    if request.validate_only:
        return
    keys = {(each.resource_type, each.resource_name): each.configs for each in request.resources}
    for each in _good(response.responses):
        told = ",".join(config.name for config in keys.get((each.resource_type, each.resource_name), ()))
        yield f"{_KINDS.get(each.resource_type, each.resource_type)} {each.resource_name or '<default>'}: {told}"


_CHANGES: dict[str, Changed] = {
    "CreateTopics": _named("topics", "name"),
    "DeleteTopics": _named("responses", "name"),
    "CreatePartitions": _named("results", "name"),
    "DeleteGroups": _named("results", "group_id"),
    "DeleteRecords": _partitions("topics", "name", "partitions", "partition_index"),
    "OffsetDelete": _partitions("topics", "name", "partitions", "partition_index"),
    "AlterPartitionReassignments": _partitions("responses", "name", "partitions", "partition_index"),
    "AlterReplicaLogDirs": _partitions("results", "topic_name", "partitions", "partition_index"),
    "ElectLeaders": _partitions("replica_election_results", "topic", "partition_result", "partition_id"),
    "AlterConfigs": _settings,
    "IncrementalAlterConfigs": _settings,
    "UpdateFeatures": _whole(
        lambda request: [f"{each.feature}={each.max_version_level}" for each in request.feature_updates]
    ),
    "UnregisterBroker": _whole(lambda request: [f"broker {request.broker_id}"]),
    "AddRaftVoter": _whole(lambda request: [f"voter {request.voter_id}"]),
    "RemoveRaftVoter": _whole(lambda request: [f"voter {request.voter_id}"]),
}


def is_change(api_name: str) -> bool:
    return api_name in _CHANGES


def noted(broker: HasAudit, call: Call, request: Message, response: Message) -> Message:
    """The response, after the line about it."""
    if broker.audit.notes_changes:
        changed = iter(_CHANGES[call.api.name](request, response))
        names = list(islice(changed, _NAMED_MAX))
        if names:
            more = sum(1 for _ in changed)
            target = ", ".join(names) + (f" and {more} more" if more else "")
            address = call.session.client_address
            broker.audit.changed(call.principal, address=address, api=call.api.name, target=target)
    return response


async def noted_later(
    broker: HasAudit, call: Call, request: Message, response: Awaitable[Message | None]
) -> Message | None:
    answer = await response
    return None if answer is None else noted(broker, call, request, answer)
