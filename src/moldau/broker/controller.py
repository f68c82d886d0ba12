"""The way of a command to the cluster's controller. Here the controller is this very node: a quorum of one.

Handlers say `await broker.controller.submit(create_topics, request)`: the command is decided on the newest image, its
records are appended, and the answer comes back once they are committed and this node has acted on them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from moldau.controller.context import ControllerContext, ControllerResult
from moldau.controller.image import ClusterImage
from moldau.controller.sessions import BrokerSessions

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.metadata_log import MetadataLog

RequestT = TypeVar("RequestT")
R = TypeVar("R")


class LocalController:
    """Belongs to the event loop."""

    def __init__(self, broker: Broker, log: MetadataLog, context: ControllerContext, sessions: BrokerSessions) -> None:
        self._broker = broker
        self._log = log
        self._context = context
        self.sessions = sessions

    @property
    def epoch(self) -> int:
        return self._log.epoch

    @property
    def kraft_version(self) -> int:
        """The level of the quorum's own feature, which is not in the image but in the quorum's log."""
        return self._context.kraft_version

    def context(self) -> ControllerContext:
        config = self._broker.config
        return replace(
            self._context,
            next_offset=self._log.next_offset,
            now_ms=self._broker.clock.monotonic_ms(),
            default_partitions=config.get_int("num.partitions"),
            default_replication_factor=config.get_int("default.replication.factor"),
            delete_topic_enable=config.get_bool("delete.topic.enable"),
        )

    async def submit(
        self,
        command: Callable[[ClusterImage, RequestT, ControllerContext], ControllerResult[R]],
        request: RequestT,
    ) -> R:
        """Decide, commit, and give back the answer."""
        result = command(self._log.latest, request, self.context())
        if result.records:
            await self._log.append(result.records)
        return result.response
