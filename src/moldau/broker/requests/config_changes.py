"""What AlterConfigs and IncrementalAlterConfigs have in common: what this node checks itself, before the controller.

A resource that fails here never reaches the controller; the others do, and the answers are put together again in the
order of the request. Settings of a broker are checked by that broker, because only it knows what it can do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol, TypeVar

from moldau.broker.config import Change, InvalidConfig, Operation, apply_changes, validate_dynamic_change
from moldau.broker.config.definition import ResourceType
from moldau.broker.requests.access import CLUSTER, GROUP, TOPIC, may
from moldau.broker.requests.mentions import mentions_of
from moldau.broker.requests.permissions import ERRORS
from moldau.broker.requests.threads import in_thread
from moldau.controller.acls import CLUSTER_NAME
from moldau.controller.acls import Operation as AclOperation
from moldau.controller.errors import ApiError
from moldau.timers.turns import Slices
from moldau.wire import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer, HasConfig, HasIdentity, HasImage, HasLoop, HasTurns

    class Needs(HasAuthorizer, HasConfig, HasIdentity, HasImage, HasLoop, HasTurns, Protocol):
        """What this file may touch."""


_PER_TURN = 100
_LOOKED_AT = 500
_STORED = (ResourceType.TOPIC, ResourceType.BROKER, ResourceType.CLIENT_METRICS, ResourceType.GROUP)


class Resource(Protocol):
    """A resource of a request, or of a response."""

    resource_type: int
    resource_name: str


class Asked(Resource, Protocol):
    configs: list[Any]


class Answer(Resource, Protocol):
    error_code: int
    error_message: str | None


R = TypeVar("R", bound=Asked)
A = TypeVar("A", bound=Answer)


class Checks(NamedTuple, Generic[R]):
    """What is looked at before the controller is asked. Both raise ApiError, or InvalidConfig."""

    look: Callable[[R], Sequence[Change]]
    """A function of the request and what is set already, which a thread may call: a resource may have many changes."""
    act: Callable[[R, Sequence[Change]], None]
    """Whether the client may; and what needs no controller is done."""


async def refused(broker: Needs, resources: Sequence[R], checks: Checks[R]) -> tuple[dict[int, ApiError], list[R]]:
    """Those that must not reach the controller, by their place in the request; and the others. Of many resources,
    others have their turn between some and some."""
    mentions = await broker.in_turns(mentions_of([_name_of(each) for each in resources]))
    errors: dict[int, ApiError] = {}
    rest: list[R] = []
    for place, resource in enumerate(resources):
        if place % _PER_TURN == _PER_TURN - 1:
            await broker.turns.next_turn()
        if mentions.count(_name_of(resource)) > 1:
            errors[place] = ApiError(ErrorCode.INVALID_REQUEST, "Each resource must appear at most once.")
            continue
        try:
            if len(resource.configs) > _PER_TURN:
                changes = await in_thread(broker, partial(checks.look, resource))
            else:
                changes = checks.look(resource)
            checks.act(resource, changes)
        except ApiError as error:
            errors[place] = error
        except InvalidConfig as error:
            errors[place] = ApiError(ErrorCode(error.error_code), str(error))
        else:
            rest.append(resource)
    return errors, rest


def _name_of(resource: Resource) -> tuple[int, str]:
    return resource.resource_type, resource.resource_name


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
    resources: Sequence[Resource], errors: dict[int, ApiError], answers: Sequence[A], make: Callable[[], A]
) -> Slices[list[A]]:
    """One answer per resource: this node's refusal, the controller's, or success."""
    by_resource: dict[tuple[int, str], A] = {}
    for number, answer in enumerate(answers, 1):
        by_resource[_name_of(answer)] = answer
        if number % _LOOKED_AT == 0:
            yield
    result = []
    for place, resource in enumerate(resources):
        found = by_resource.get(_name_of(resource))
        if place in errors or found is None:
            found = make()
            found.resource_type, found.resource_name = resource.resource_type, resource.resource_name
            found.error_message = None
            if place in errors:
                found.error_code, found.error_message = errors[place].code, errors[place].message
        result.append(found)
        if place % _LOOKED_AT == _LOOKED_AT - 1:
            yield
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
