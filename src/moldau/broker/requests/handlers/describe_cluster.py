"""DescribeCluster (key 60), versions 0-2. The cluster's id, its brokers as this listener's clients reach them.

`controller_id` is a broker clients may send commands to, since every broker passes them on. From version 1 on a client
says whether it wants brokers or controllers: a broker's listener knows the former, a controller's the latter, and there
`controller_id` is the active one. From 2 on a client may see fenced brokers too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from moldau.broker.requests.access import CLUSTER, authorized_operations, may_on_cluster
from moldau.controller.acls import Operation
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.parts import HasAuthorizer, HasConfig, HasIdentity, HasImage
    from moldau.broker.quorum.parts import HasQuorum

    class Needs(HasAuthorizer, HasConfig, HasIdentity, HasImage, HasQuorum, Protocol):
        """What this file may touch."""


_BROKERS, _CONTROLLERS = 1, 2
_KINDS = {_BROKERS: "BROKER", _CONTROLLERS: "CONTROLLER"}
Node = m.DescribeClusterResponse.DescribeClusterBroker


def handle(broker: Needs, call: Call, request: m.DescribeClusterRequest) -> m.DescribeClusterResponse:
    is_controller = broker.is_controller_listener(call.connection.listener_name)
    if is_controller and not may_on_cluster(broker, call, Operation.ALTER):
        code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        return m.DescribeClusterResponse(error_code=code, error_message=code.meaning)
    served = _CONTROLLERS if is_controller else _BROKERS
    if request.endpoint_type != served:
        return _wrong_endpoint(call.version, request.endpoint_type, served)
    response = m.DescribeClusterResponse(
        cluster_id=broker.cluster_id, error_message=None, endpoint_type=request.endpoint_type
    )
    if served == _CONTROLLERS:
        response.brokers = _controllers(broker)
        leader_id = broker.metadata_log.leader_id
        response.controller_id = -1 if leader_id is None else leader_id
    else:
        response.brokers = _brokers(broker, call.connection.listener_name, fenced=request.include_fenced_brokers)
        if any(each.broker_id == broker.node_id for each in response.brokers):
            response.controller_id = broker.node_id
    if request.include_cluster_authorized_operations:
        may_describe = may_on_cluster(broker, call, Operation.DESCRIBE)
        response.cluster_authorized_operations = authorized_operations(broker, call, CLUSTER) if may_describe else 0
    return response


def _brokers(broker: Needs, listener: str, *, fenced: bool) -> list[Node]:
    found = []
    for registered in broker.image.brokers.values():
        endpoint = next((each for each in registered.endpoints if each.name == listener), None)
        if endpoint is not None and (not registered.fenced or fenced):
            found.append(Node(registered.broker_id, endpoint.host, endpoint.port, registered.rack, registered.fenced))
    return found


def _controllers(broker: Needs) -> list[Node]:
    """The quorum's voters, where they listen."""
    found = []
    for voter in broker.metadata_log.voters:
        address = voter.address
        if address is not None:
            found.append(Node(voter.key.id, address.host, address.port, None))
    return found


def _wrong_endpoint(version: int, asked: int, served: int) -> m.DescribeClusterResponse:
    if asked in _KINDS:
        code = ErrorCode.MISMATCHED_ENDPOINT_TYPE
        message = (
            f"The request was sent to an endpoint of type {_KINDS[served]}, "
            f"but we wanted an endpoint of type {_KINDS[asked]}"
        )
    else:
        code = ErrorCode.UNSUPPORTED_ENDPOINT_TYPE
        message = f"Unsupported endpoint type {asked}"
    return m.DescribeClusterResponse(
        error_code=ErrorCode.INVALID_REQUEST if version == 0 else code, error_message=message
    )
