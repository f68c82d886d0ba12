"""IncrementalAlterConfigs (key 44), versions 0-1. Sets, deletes, appends to and subtracts from settings of resources.

Topics, brokers (one, or all of them with an empty name), groups, client metrics, and loggers of this broker. Each
resource gets all of its changes or none; `validate_only` changes nothing. Loggers are changed here and now; the rest
goes through the controller and takes effect before the answer leaves.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.config import Change, loggers
from moldau.broker.config.definition import ResourceType
from moldau.broker.requests.config_changes import (
    Checks,
    check_changes,
    check_may_alter,
    check_well_formed,
    in_request_order,
    parse_node_id,
    refused,
)
from moldau.broker.requests.forwarding import carry_out_rest
from moldau.controller.configs import incremental_alter_configs
from moldau.controller.errors import ApiError
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController
    from moldau.broker.parts import HasConfig, HasIdentity
    from moldau.broker.requests.config_changes import Needs as ConfigChangesNeeds
    from moldau.broker.requests.forwarding import Needs as ForwardingNeeds

    class Needs(ConfigChangesNeeds, ForwardingNeeds, HasController, HasConfig, HasIdentity, Protocol):
        """What this file may touch."""


Resource = m.IncrementalAlterConfigsRequest.AlterConfigsResource


Answered = m.IncrementalAlterConfigsResponse.AlterConfigsResourceResponse


async def handle(
    broker: Needs, call: Call, request: m.IncrementalAlterConfigsRequest
) -> m.IncrementalAlterConfigsResponse:
    if broker.is_controller_listener(call.connection.listener_name):
        return await _handle_on_controller(broker, call, request)
    act = partial(_act, broker, call, validate_only=request.validate_only)
    errors, rest = await refused(broker, request.resources, Checks(partial(_look, broker), act))
    for_controller = [resource for resource in rest if resource.resource_type != ResourceType.BROKER_LOGGER]
    response = m.IncrementalAlterConfigsResponse()
    if for_controller:
        remaining = m.IncrementalAlterConfigsRequest(for_controller, request.validate_only)
        submit = partial(broker.controller.submit, incremental_alter_configs, remaining)
        response = cast("m.IncrementalAlterConfigsResponse", await carry_out_rest(broker, call, submit, remaining))
    ordered = in_request_order(request.resources, errors, response.responses, Answered)
    response.responses = await broker.in_turns(ordered)
    return response


async def _handle_on_controller(
    broker: Needs, call: Call, request: m.IncrementalAlterConfigsRequest
) -> m.IncrementalAlterConfigsResponse:
    """A broker, or another client of a controller, has checked what it could; not what the client may do."""
    checks = Checks[Resource](lambda _: (), lambda resource, _: check_may_alter(broker, call, resource))
    errors, rest = await refused(broker, request.resources, checks)
    response = await broker.controller.submit(
        incremental_alter_configs, m.IncrementalAlterConfigsRequest(rest, request.validate_only)
    )
    if errors:
        ordered = in_request_order(request.resources, errors, response.responses, Answered)
        response.responses = await broker.in_turns(ordered)
    return response


def _look(broker: Needs, resource: Resource) -> list[Change]:
    changes = [Change(each.name, each.config_operation, each.value) for each in resource.configs]
    check_well_formed(changes)
    if resource.resource_type != ResourceType.BROKER_LOGGER:
        check_changes(broker, resource, changes, replaces_all=False)
    return changes


def _act(broker: Needs, call: Call, resource: Resource, changes: Sequence[Change], *, validate_only: bool) -> None:
    check_may_alter(broker, call, resource)
    if resource.resource_type == ResourceType.BROKER_LOGGER:
        _change_loggers(broker, resource.resource_name, changes, validate_only)


def _change_loggers(broker: Needs, name: str, changes: Sequence[Change], validate_only: bool) -> None:
    node_id = parse_node_id(name)
    if node_id is None:
        raise ApiError(ErrorCode.INVALID_REQUEST, f"Node id must be an integer, but it is: {name}")
    if node_id != broker.node_id:
        raise ApiError(
            ErrorCode.INVALID_REQUEST, f"Unexpected node id. Expected {broker.node_id}, but received {node_id}"
        )
    loggers.change_levels(changes, validate_only=validate_only)
