"""DescribeCluster (key 60), versions 0-2. The cluster's id, its brokers as this listener's clients reach them.

`controller_id` is a broker clients may send commands to, since every broker passes them on. From version 1 on a client
says whether it wants brokers or controllers; a broker knows the former. From 2 on it may see fenced brokers too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.broker.handlers.common import ALL_CLUSTER_OPERATIONS
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.calls import Call

_BROKERS, _CONTROLLERS = 1, 2


def handle(broker: Broker, call: Call, request: m.DescribeClusterRequest) -> m.DescribeClusterResponse:
    if request.endpoint_type != _BROKERS:
        return _wrong_endpoint(call.version, request.endpoint_type)
    response = m.DescribeClusterResponse(cluster_id=broker.cluster_id, error_message=None)
    for registered in broker.image.brokers.values():
        endpoint = next((each for each in registered.endpoints if each.name == call.connection.listener_name), None)
        if endpoint is not None and (not registered.fenced or request.include_fenced_brokers):
            response.brokers.append(
                m.DescribeClusterResponse.DescribeClusterBroker(
                    registered.broker_id, endpoint.host, endpoint.port, registered.rack, registered.fenced
                )
            )
    if any(each.broker_id == broker.node_id for each in response.brokers):
        response.controller_id = broker.node_id
    if request.include_cluster_authorized_operations:
        response.cluster_authorized_operations = ALL_CLUSTER_OPERATIONS
    return response


def _wrong_endpoint(version: int, endpoint_type: int) -> m.DescribeClusterResponse:
    if endpoint_type == _CONTROLLERS:
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        message = "The request was sent to an endpoint of type BROKER, but we wanted an endpoint of type CONTROLLER"
    else:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        message = f"Unsupported endpoint type {endpoint_type}"
    return m.DescribeClusterResponse(
        error_code=ErrorCode.INVALID_REQUEST if version == 0 else code, error_message=message
    )
