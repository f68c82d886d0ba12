"""What AlterConfigs and IncrementalAlterConfigs have in common: what this node checks itself, before the controller.

A resource that fails here never reaches the controller; the others do, and the answers are put together again in the
order of the request. Settings of a broker are checked by that broker, because only it knows what it can do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from moldau.broker.config import Change, InvalidConfig, Operation, apply_changes, validate_dynamic_change
from moldau.broker.config.definition import ResourceType
from moldau.broker.requests.access import CLUSTER, GROUP, TOPIC, may
from moldau.broker.requests.permissions import ERRORS
from moldau.controller.acls import CLUSTER_NAME
from moldau.controller.acls import Operation as AclOperation
from moldau.controller.errors import ApiError
from moldau.wire import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer, HasConfig, HasIdentity, HasImage

    class Needs(HasAuthorizer, HasConfig, HasIdentity, HasImage, Protocol):
        """What this file may touch."""


_STORED = (ResourceType.TOPIC, ResourceType.BROKER, ResourceType.CLIENT_METRICS, ResourceType.GROUP)


class Resource(Protocol):
    """A resource of a request, or of a response."""

    resource_type: int
    resource_name: str


class Answer(Resource, Protocol):
    error_code: int
    error_message: str | None


R = TypeVar("R", bound=Resource)
A = TypeVar("A", bound=Answer)


def refused(resources: Sequence[R], check: Callable[[R], None]) -> dict[int, ApiError]:
    """Those that must not reach the controller, by their place in the request. `check` raises ApiError."""
    mentions = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    errors: dict[int, ApiError] = {}
    for place, resource in enumerate(resources):
        if mentions[resource.resource_type, resource.resource_name] > 1:
            errors[place] = ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            continue
        try:
            check(resource)
        except ApiError as error:
            errors[place] = error
        except InvalidConfig as error:
            errors[place] = ApiError(ErrorCode(error.error_code), str(error))
    return errors


def check_well_formed(changes: Sequence[Change]) -> None:
    """No key twice, and none without a value."""
    names = [change.name for change in changes]
    if len(set(names)) < len(names):
        raise ApiError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    missing = [change.name for change in changes if change.value is None and change.operation != Operation.DELETE]
    if missing:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Null value not supported for : {', '.join(missing)}")


def check_changes(broker: Needs, resource: Resource, changes: Sequence[Change], *, replaces_all: bool) -> None:
    """What must hold for any stored resource; ApiError or InvalidConfig if it does not."""
    if resource.resource_type not in _STORED:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Unknown resource type {resource.resource_type}")
    if resource.resource_type == ResourceType.BROKER:
        if resource.resource_name:
            check_is_this_node(broker, resource.resource_name)
        current = {} if replaces_all else broker.image.config(ResourceType.BROKER, resource.resource_name)
        settings = apply_changes(ResourceType.BROKER, current, changes)
        validate_dynamic_change(broker.config, settings, per_broker=bool(resource.resource_name))


def check_is_this_node(broker: Needs, name: str) -> None:
    node_id = parse_node_id(name)
    if node_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if node_id != broker.node_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Unexpected broker id, expected {broker.node_id}, but received {name}"
        )


def in_request_order(
    resources: Sequence[Resource], errors: dict[int, ApiError], answers: Iterable[A], make: Callable[[], A]
) -> list[A]:
    """One answer per resource: this node's refusal, the controller's, or success."""
    by_resource = {(answer.resource_type, answer.resource_name): answer for answer in answers}
    result = []
    for place, resource in enumerate(resources):
        answer = by_resource.get((resource.resource_type, resource.resource_name))
        if place in errors or answer is None:
            answer = make()
            answer.resource_type, answer.resource_name = resource.resource_type, resource.resource_name
            answer.error_message = None
            if place in errors:
                answer.error_code, answer.error_message = errors[place].code, errors[place].message
        result.append(answer)
    return result


def acl_resource(resource_type: int, name: str) -> tuple[int, str]:
    """Whose ACLs decide about a resource's settings: a topic's or group's own, else the cluster's."""
    if resource_type == ResourceType.TOPIC:
        return TOPIC, name
    if resource_type == ResourceType.GROUP:
        return GROUP, name
    return CLUSTER, CLUSTER_NAME


def check_may_alter(broker: HasAuthorizer, call: Call, resource: Resource) -> None:
    """ApiError unless the client may change the resource's settings."""
    kind, name = acl_resource(resource.resource_type, resource.resource_name)
    if not may(broker, call, AclOperation.ALTER_CONFIGS, kind)(name):
        raise ApiError(ERRORS[kind], ERRORS[kind].meaning)


def parse_node_id(name: str) -> int | None:
    """A broker resource's name as Java reads integers; None if it is not one."""
    digits = name[1:] if name[:1] in ("+", "-") else name
    return int(name) if digits.isdecimal() and -(1 << 31) <= int(name) < 1 << 31 else None
