"""Topics that are there before the test begins, in the ways people like to write them down."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from moldau.testing.settings import Settings, as_texts

if TYPE_CHECKING:
    from moldau.broker.node.node import Node


_BY_DEFAULT = -1  # what the controller's own setting says


@dataclass(frozen=True, slots=True)
class Topic:
    """`config` are topic settings: `{"cleanup.policy": "compact"}`. Without `partitions` there are as many as the
    setting `num.partitions` says, which is one; without `replicas`, as many as there are brokers, up to three."""

    name: str
    partitions: int | None = None
    replicas: int | None = None
    config: Settings = field(default_factory=dict)


Topics = Mapping[str, int] | Iterable[str | Topic]
"""`{"orders": 3}` is partitions by name; `["orders", Topic("prices", config=…)]` works, too."""


def as_topics(topics: Topics | None) -> list[Topic]:
    if topics is None:
        return []
    if isinstance(topics, str):
        raise TypeError(f"topics={topics!r}: give a list of names, or partitions by name, as in {{{topics!r}: 3}}")
    if isinstance(topics, Mapping):
        return [Topic(name, _counted(name, partitions)) for name, partitions in topics.items()]
    if not isinstance(topics, Iterable):
        raise TypeError(f"topics={topics!r}: give a list of names")
    return [each if isinstance(each, Topic) else Topic(_named(each)) for each in topics]


def _counted(name: str, partitions: object) -> int:
    if not isinstance(partitions, int) or isinstance(partitions, bool):
        raise TypeError(f"topics={{{name!r}: {partitions!r}}}: give its number of partitions, or a list with Topic(…)")
    return partitions


def _named(name: object) -> str:
    if not isinstance(name, str):
        raise TypeError(f"topics=[{name!r}]: give names, or Topic(name, partitions)")
    return name


async def create_topics(node: Node, topics: list[Topic], replicas: int) -> None:
    """Through the controller, as a client's request would; ValueError says what was wrong with which. Topics that are
    there already (after a restart) stay as they are."""
    from moldau.wire import ErrorCode
    from moldau.wire import messages as m

    if not topics:
        return
    kind = m.CreateTopicsRequest
    request = kind(
        [
            kind.CreatableTopic(
                each.name,
                _BY_DEFAULT if each.partitions is None else each.partitions,
                each.replicas or replicas,
                configs=[kind.CreatableTopicConfig(key, value) for key, value in as_texts(each.config).items()],
            )
            for each in topics
        ],
        timeout_ms=30_000,
    )
    response = await node.broker.controller_channel.call(request)
    for told in response.topics:
        if told.error_code not in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
            raise ValueError(f"topic {told.name}: {told.error_message or ErrorCode(told.error_code).name}")
