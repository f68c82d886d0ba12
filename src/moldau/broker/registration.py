"""This broker makes itself known to the controller: registered at start, unfenced when it has caught up, and shut down
in an orderly way at the end. All three are the RPCs Kafka's brokers use, here without a network in between.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from moldau.broker.config import Endpoint
from moldau.controller.brokers import broker_heartbeat, register_broker
from moldau.controller.features import SUPPORTED
from moldau.log.checkpoints import uuid_bytes
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.broker import Broker

_SECURITY_PROTOCOLS = {"PLAINTEXT": 0, "SSL": 1, "SASL_PLAINTEXT": 2, "SASL_SSL": 3}


class RegistrationRefused(Exception):
    """The controller does not want this broker; the message says why."""


async def register_this_broker(broker: Broker, endpoints: list[Endpoint], previous_epoch: int) -> None:
    """Sets `broker.broker_epoch`. `previous_epoch` is that of the last clean shutdown, or -1."""
    request = m.BrokerRegistrationRequest(
        broker_id=broker.node_id,
        cluster_id=broker.cluster_id,
        incarnation_id=broker.random.uuid(),
        listeners=[
            m.BrokerRegistrationRequest.Listener(
                each.listener, each.host or "", each.port, _SECURITY_PROTOCOLS[each.security_protocol]
            )
            for each in endpoints
        ],
        features=[
            m.BrokerRegistrationRequest.Feature(name, levels.first, levels.last) for name, levels in SUPPORTED.items()
        ],
        rack=broker.config.get_str_or_none("broker.rack"),
        log_dirs=sorted(
            uuid_bytes(each.properties.directory_id)
            for each in broker.logs.online_dirs
            if each.properties is not None and each.properties.directory_id is not None
        ),
        previous_broker_epoch=previous_epoch,
    )
    command = partial(register_broker, sessions=broker.controller.sessions)
    response = await broker.controller.submit(command, request)
    if response.error_code != ErrorCode.NONE:
        raise RegistrationRefused(f"the controller refused this broker: {ErrorCode(response.error_code).name}")
    broker.broker_epoch = response.broker_epoch


async def unfence_this_broker(broker: Broker) -> None:
    await _heartbeat(broker)


async def announce_shutdown(broker: Broker) -> None:
    """Leaderships move away first, where there is anybody to take them."""
    await _heartbeat(broker, want_shut_down=True)


async def _heartbeat(broker: Broker, *, want_shut_down: bool = False) -> None:
    request = m.BrokerHeartbeatRequest(
        broker_id=broker.node_id,
        broker_epoch=broker.broker_epoch,
        current_metadata_offset=broker.image.offset,
        want_fence=False,
        want_shut_down=want_shut_down,
    )
    command = partial(broker_heartbeat, sessions=broker.controller.sessions)
    response = await broker.controller.submit(command, request)
    if response.error_code != ErrorCode.NONE:
        raise RegistrationRefused(f"the controller refused a heartbeat: {ErrorCode(response.error_code).name}")
