"""AlterConfigs (key 33), versions 0-2. The old way to change settings: what a request does not name is removed.

Topics, brokers, groups and client metrics, each resource all or nothing; `validate_only` changes nothing. Clients
should use IncrementalAlterConfigs, which two of them can use at the same time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.config import Change, Operation
from moldau.broker.requests.config_changes import (
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


async def handle(broker: Needs, call: Call, request: m.AlterConfigsRequest) -> m.AlterConfigsResponse:
    if broker.is_controller_listener(call.connection.listener_name):
        return await _handle_on_controller(broker, call, request)
    errors = refused(request.resources, lambda resource: _check(broker, call, resource))
    for_controller = [resource for place, resource in enumerate(request.resources) if place not in errors]
    response = m.AlterConfigsResponse()
    if for_controller:
        remaining = m.AlterConfigsRequest(for_controller, request.validate_only)
        submit = partial(broker.controller.submit, alter_configs, remaining)
        response = cast("m.AlterConfigsResponse", await carry_out_rest(broker, call, submit, remaining))
    response.responses = in_request_order(
        request.resources, errors, response.responses, m.AlterConfigsResponse.AlterConfigsResourceResponse
    )
    return response


async def _handle_on_controller(broker: Needs, call: Call, request: m.AlterConfigsRequest) -> m.AlterConfigsResponse:
    """A broker, or another client of a controller, has checked what it could; not what the client may do."""
    errors = refused(request.resources, partial(check_may_alter, broker, call))
    allowed = [resource for place, resource in enumerate(request.resources) if place not in errors]
    response = await broker.controller.submit(alter_configs, m.AlterConfigsRequest(allowed, request.validate_only))
    if errors:
        answer = m.AlterConfigsResponse.AlterConfigsResourceResponse
        response.responses = in_request_order(request.resources, errors, response.responses, answer)
    return response


def _check(broker: Needs, call: Call, resource: m.AlterConfigsRequest.AlterConfigsResource) -> None:
    changes = [Change(each.name, Operation.SET, each.value) for each in resource.configs]
    check_well_formed(changes)
    check_changes(broker, resource, changes, replaces_all=True)
    check_may_alter(broker, call, resource)
