"""Which requests change the cluster, and what they changed: for the audit log, one line for each request.

Names only: values of settings may be secrets. What failed is not here (who was refused is noted by the authorizer);
users, rules, quotas and tokens are noted by their own handlers, which know more to say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol, cast

from moldau.timers.turns import Slices, at_once
from moldau.wire import ErrorCode, Message

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAudit, HasTurns

    class Needs(HasAudit, HasTurns, Protocol):
        """What this file may touch."""


_NAMED_MAX = 20
_LOOKED_AT = 1_000
Changed = Callable[[Any, Any], Iterable[str | None]]
"""Of a request and its response, what was changed; None for what was not, so that it can be looked at in slices."""


def _named(field: str, name: str) -> Changed:
    """A list of results, each with the name of what was changed."""

    def changed(request: Any, response: Any) -> Iterator[str | None]:
        if not getattr(request, "validate_only", False):
            for each in getattr(response, field):
                yield None if each.error_code else str(getattr(each, name) or each.topic_id.hex())

    return changed


def _partitions(field: str, name: str, partitions: str, index: str) -> Changed:
    def changed(_: Any, response: Any) -> Iterator[str | None]:
        for topic in getattr(response, field):
            for each in getattr(topic, partitions):
                yield None if each.error_code else f"{getattr(topic, name)}-{getattr(each, index)}"

    return changed


def _whole(names: Callable[[Any], Iterable[str]]) -> Changed:
    """One error for all of it."""
    return lambda request, response: names(request) if response.error_code == ErrorCode.NONE else ()


_KINDS = {2: "topic", 4: "broker", 8: "broker logger", 16: "client metrics", 32: "group"}


def _settings(request: Any, response: Any) -> Iterator[str | None]:
    """Answers are in the order of the request."""
    if request.validate_only:
        return
    for asked, each in zip(request.resources, response.responses, strict=False):
        if each.error_code:
            yield None
            continue
        told = ",".join(config.name for config in islice(asked.configs, _NAMED_MAX))
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
    at_once(_note(broker, call, request, response))
    return response


async def noted_later(broker: Needs, call: Call, request: Message, response: Awaitable[Message | None]) -> Message:
    """The same of a response to come, which may be a long one."""
    answer = await response
    if answer is not None:
        await broker.in_turns(_note(broker, call, request, answer))
    return cast("Message", answer)


def noted_in_slices(
    broker: HasAudit, call: Call, request: Message, response: Slices[Message | None]
) -> Slices[Message | None]:
    answer = yield from response
    if answer is not None:
        yield from _note(broker, call, request, answer)
    return answer


def _note(broker: HasAudit, call: Call, request: Message, response: Message) -> Slices[None]:
    if not broker.audit.notes_changes:
        return
    names: list[str] = []
    count = 0
    for number, name in enumerate(_CHANGES[call.api.name](request, response), 1):
        if name is not None:
            count += 1
            if count <= _NAMED_MAX:
                names.append(name)
        if number % _LOOKED_AT == 0:
            yield
    if names:
        more = count - len(names)
        target = ", ".join(names) + (f" and {more} more" if more else "")
        address = call.session.client_address
        broker.audit.changed(call.principal, address=address, api=call.api.name, target=target)
