"""Topics that come into being because somebody uses them: on a client's first mention, or internal ones.

Nobody waits long for that. While there is no controller, the topic is simply not there yet, and clients ask again.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol, cast

from moldau.broker.calls import Call
from moldau.broker.requests.forwarding import carry_out_rest
from moldau.seams.network import RequestTimedOut
from moldau.wire import ErrorCode, apis
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.controller.parts import HasController, HasControllerChannel
    from moldau.broker.parts import HasConfig, HasImage, HasTime
    from moldau.broker.requests.forwarding import Needs as ForwardingNeeds

    class Needs(ForwardingNeeds, HasController, HasControllerChannel, HasConfig, HasImage, HasTime, Protocol):
        """What this file may touch."""


_CREATE_MS_MAX = 5_000
_KNOWN_MS_MAX = 1_000
_Configs = list[m.CreateTopicsRequest.CreatableTopicConfig]


async def auto_create_topics(broker: Needs, names: list[str], client: Call | None = None) -> dict[str, ErrorCode]:
    """Create these topics, in the name of a client if it mentioned them; the errors of those that cannot be."""
    request = m.CreateTopicsRequest(topics=[_request(broker, name) for name in names])
    timeout_ms = min(_CREATE_MS_MAX, broker.config.get_int("request.timeout.ms"))
    if client is None:
        try:
            response = await broker.controller_channel.call(request, timeout_ms=timeout_ms)
        except RequestTimedOut:
            return {}
    else:
        response = await _create_for(broker, client, request, timeout_ms)
    there = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    await _until_known(broker, [topic.name for topic in response.topics if topic.error_code in there])
    fine = (*there, ErrorCode.REQUEST_TIMED_OUT)
    return {topic.name: ErrorCode(topic.error_code) for topic in response.topics if topic.error_code not in fine}


async def _create_for(
    broker: Needs, client: Call, request: m.CreateTopicsRequest, timeout_ms: int
) -> m.CreateTopicsResponse:
    """As if the client had asked for it itself."""
    from moldau.controller.topics import create_topics

    api = apis()[m.CreateTopicsRequest.number]
    call = Call(api, api.versions.last, client.correlation_id, client.client_id, client.connection, client.slot)
    submit = partial(broker.controller.submit, create_topics, request)
    response = await carry_out_rest(broker, call, submit, request, timeout_ms=timeout_ms)
    return cast("m.CreateTopicsResponse", response)


async def _until_known(broker: Needs, names: list[str]) -> None:
    """A controller elsewhere is ahead of this node, mostly by milliseconds; who asks then asks again."""
    deadline_ms = broker.clock.monotonic_ms() + _KNOWN_MS_MAX
    while any(name not in broker.image.topics for name in names) and broker.clock.monotonic_ms() < deadline_ms:
        await broker.next_image(_KNOWN_MS_MAX / 1000)


def _request(broker: Needs, name: str) -> m.CreateTopicsRequest.CreatableTopic:
    config = broker.config
    if name == "__consumer_offsets":
        return m.CreateTopicsRequest.CreatableTopic(
            name,
            config.get_int("offsets.topic.num.partitions"),
            config.get_int("offsets.topic.replication.factor"),
            configs=_configs(
                {
                    "cleanup.policy": "compact",
                    "segment.bytes": str(config.get_int("offsets.topic.segment.bytes")),
                    "compression.type": "producer",
                }
            ),
        )
    if name == "__transaction_state":
        return m.CreateTopicsRequest.CreatableTopic(
            name,
            config.get_int("transaction.state.log.num.partitions"),
            config.get_int("transaction.state.log.replication.factor"),
            configs=_configs(
                {
                    "unclean.leader.election.enable": "false",
                    "compression.type": "uncompressed",
                    "cleanup.policy": "compact",
                    "min.insync.replicas": str(config.get_int("transaction.state.log.min.isr")),
                    "segment.bytes": str(config.get_int("transaction.state.log.segment.bytes")),
                }
            ),
        )
    return m.CreateTopicsRequest.CreatableTopic(name, -1, -1)


def _configs(settings: dict[str, str]) -> _Configs:
    return [m.CreateTopicsRequest.CreatableTopicConfig(name, value) for name, value in settings.items()]
