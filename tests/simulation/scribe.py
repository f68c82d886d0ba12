"""Somebody who writes metadata again and again, each time something new, and remembers what was acknowledged."""

from __future__ import annotations

import asyncio
import contextlib

from moldau.controller.image import ClusterImage, ResourceType
from moldau.wire import ErrorCode
from moldau.wire import messages as m
from tests.simulation.client import SimClient

_SETTING, _VALUE = "consumer.heartbeat.interval.ms", "600"
_SET = 0


class Scribe:
    def __init__(self, client: SimClient, prefix: str = "g") -> None:
        self.client = client
        self._prefix = prefix
        self._last = 0
        self._acknowledged: set[str] = set()

    async def run(self) -> None:
        """Until the client is told to stop."""
        while not self.client.is_stopping:
            self._last += 1
            group = f"{self._prefix}{self._last}"
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(2.0):
                    response = await self.client.any_broker(_request(group), timeout_ms=1_500)
                    if response.responses[0].error_code == ErrorCode.NONE:
                        self._acknowledged.add(group)
            await asyncio.sleep(0.05 * self.client.random.fraction())

    def judge(self, node_id: int, image: ClusterImage) -> None:
        """At the end, everything acknowledged is there."""
        lost = [name for name in self._acknowledged if not image.config(ResourceType.GROUP, name)]
        if lost:
            self.client.history.violated("committed metadata is never lost", f"{node_id} lacks {sorted(lost)[:5]}")


def _request(group: str) -> m.IncrementalAlterConfigsRequest:
    kind = m.IncrementalAlterConfigsRequest
    change = kind.AlterableConfig(_SETTING, _SET, _VALUE)
    return kind([kind.AlterConfigsResource(ResourceType.GROUP, group, [change])])
