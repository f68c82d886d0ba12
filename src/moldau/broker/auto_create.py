"""Topics that come into being because somebody uses them: on a client's first mention, or internal ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.broker import Broker

_KNOWN_MS_MAX = 1_000
_Configs = list[m.CreateTopicsRequest.CreatableTopicConfig]


async def auto_create_topics(broker: Broker, names: list[str]) -> dict[str, ErrorCode]:
    """Create these topics; the errors of those that could not be. One that exists meanwhile is fine."""
    request = m.CreateTopicsRequest(topics=[_request(broker, name) for name in names])
    response = await broker.controller_channel.call(request)
    fine = (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS)
    created = [topic.name for topic in response.topics if topic.error_code in fine]
    await _until_known(broker, created)
    return {topic.name: ErrorCode(topic.error_code) for topic in response.topics if topic.error_code not in fine}


async def _until_known(broker: Broker, names: list[str]) -> None:
    """A controller elsewhere is ahead of this node, mostly by milliseconds; who asks then asks again."""
    deadline_ms = broker.clock.monotonic_ms() + _KNOWN_MS_MAX
    while any(name not in broker.image.topics for name in names) and broker.clock.monotonic_ms() < deadline_ms:
        await broker.next_image(_KNOWN_MS_MAX / 1000)


def _request(broker: Broker, name: str) -> m.CreateTopicsRequest.CreatableTopic:
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
