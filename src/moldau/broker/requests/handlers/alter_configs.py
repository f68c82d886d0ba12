"""AlterConfigs (key 33), versions 0-2. The old way to change settings: what a request does not name is removed.

Topics, brokers, groups and client metrics, each resource all or nothing; `validate_only` changes nothing. Clients
should use IncrementalAlterConfigs, which two of them can use at the same time.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.config import Change, Operation
from moldau.broker.requests.config_changes import (
    Checks,
    check_changes,
    check_may_alter,
    check_well_formed,
    in_request_order,
    refused,
)
from moldau.broker.requests.forwarding import carry_out_rest
from moldau.controller.configs import alter_configs
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.controller.parts import HasController
    from moldau.broker.parts import HasConfig
    from moldau.broker.requests.config_changes import Needs as ConfigChangesNeeds
    from moldau.broker.requests.forwarding import Needs as ForwardingNeeds

    class Needs(ConfigChangesNeeds, ForwardingNeeds, HasController, HasConfig, Protocol):
        """What this file may touch."""


Resource = m.AlterConfigsRequest.AlterConfigsResource
Answered = m.AlterConfigsResponse.AlterConfigsResourceResponse


async def handle(broker: Needs, call: Call, request: m.AlterConfigsRequest) -> m.AlterConfigsResponse:
    act = partial(_act, broker, call)
    if broker.is_controller_listener(call.connection.listener_name):
        return await _handle_on_controller(broker, request, Checks(lambda _: (), act))
    errors, rest = await refused(broker, request.resources, Checks(partial(_look, broker), act))
    response = m.AlterConfigsResponse()
    if rest:
        remaining = m.AlterConfigsRequest(rest, request.validate_only)
        submit = partial(broker.controller.submit, alter_configs, remaining)
        response = cast("m.AlterConfigsResponse", await carry_out_rest(broker, call, submit, remaining))
    ordered = in_request_order(request.resources, errors, response.responses, Answered)
    response.responses = await broker.in_turns(ordered)
    return response


async def _handle_on_controller(
    broker: Needs, request: m.AlterConfigsRequest, checks: Checks[Resource]
) -> m.AlterConfigsResponse:
    """A broker, or another client of a controller, has checked what it could; not what the client may do."""
    errors, rest = await refused(broker, request.resources, checks)
    response = await broker.controller.submit(alter_configs, m.AlterConfigsRequest(rest, request.validate_only))
    if errors:
        ordered = in_request_order(request.resources, errors, response.responses, Answered)
        response.responses = await broker.in_turns(ordered)
    return response


def _look(broker: Needs, resource: Resource) -> list[Change]:
    changes = [Change(each.name, Operation.SET, each.value) for each in resource.configs]
    check_well_formed(changes)
    check_changes(broker, resource, changes, replaces_all=True)
    return changes


def _act(broker: Needs, call: Call, resource: Resource, _changes: Sequence[Change]) -> None:
    check_may_alter(broker, call, resource)
