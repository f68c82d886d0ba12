"""The node seen from outside: `/metrics`, `/live`, `/ready`, `/status` over HTTP, if `moldau.http.listener` says where.

It is up before anything else of the node and down after everything else, so that a long recovery looks like one and not
like a node that is gone. One scrape at a time: whoever asks meanwhile waits for the next.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from moldau.broker.metrics.ages import AgesElsewhere
from moldau.broker.metrics.cluster import (
    Elections,
    PartitionElections,
    collect_partition_elections,
    collect_quorum,
    collect_transactions,
)
from moldau.broker.metrics.groups import collect_groups
from moldau.broker.metrics.health import status, why_not_ready
from moldau.broker.metrics.node import collect_logs, collect_quotas, collect_sockets, collect_waiting
from moldau.broker.metrics.partitions import NamedTopics, OtherTopics, collect_partitions, collect_topics
from moldau.broker.metrics.requests import collect_requests
from moldau.metrics import HttpAnswer, HttpEndpoint, Page, wanted_format
from moldau.metrics.process import LoopDelay, collect_process

if TYPE_CHECKING:
    from moldau.broker.broker import Broker
    from moldau.broker.requests.dispatch import Dispatcher
    from moldau.broker.requests.registry import ListenerKind
    from moldau.seams.network import Listener

_JSON = "application/json"
# One thread takes requests and answers them, and dashboards ask for both.
_IDLE = (
    "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
    "kafka_network_socketserver_networkprocessoravgidle_percent",
)
_SCRAPES_MAX = 4  # at a time: more would take all places from who asks whether the node lives


class Watching:
    """Lives on the node's loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, monotonic_ms: Callable[[], float]) -> None:
        self.phase = "starting"
        """Where the node is, kept true by its owner; `serving` when it does."""
        self.explain: Callable[[], str] | None = None
        """What this phase waits for, if its owner knows."""
        self.failure: str | None = None
        """Why the node cannot go on."""
        self._broker: Broker | None = None
        self._dispatchers: Mapping[ListenerKind, Dispatcher] = {}
        self._listeners: Mapping[str, Listener] = {}
        self._now_ms = monotonic_ms
        self._began_ms = monotonic_ms()
        self._delay = LoopDelay(loop)
        self.elections = Elections()
        self.partition_elections = PartitionElections()
        self._named, self._named_in_cluster = NamedTopics(), NamedTopics()
        self._others = OtherTopics()
        self._ages = AgesElsewhere()
        self._one_at_a_time = asyncio.Lock()
        self._scraping = 0
        self._scrapes = 0
        self._endpoint = HttpEndpoint(
            {"/metrics": self._metrics, "/live": self._live, "/ready": self._ready, "/status": self._status}
        )

    @property
    def address(self) -> tuple[str, int]:
        return self._endpoint.host, self._endpoint.port

    def watch(
        self, broker: Broker, dispatchers: Mapping[ListenerKind, Dispatcher], listeners: Mapping[str, Listener]
    ) -> None:
        """There is something to be seen."""
        self._broker, self._dispatchers, self._listeners = broker, dispatchers, listeners

    @property
    def _serving(self) -> Broker | None:
        return self._broker if self.phase == "serving" else None

    async def start(self, host: str, port: int) -> None:
        await self._endpoint.start(host, port)
        self._delay.start()

    async def stop(self) -> None:
        self._delay.stop()
        await self._endpoint.stop()

    async def scrape(self) -> Page:
        page = Page()
        async with self._one_at_a_time:
            begun_ms = self._now_ms()
            collect_process(page)
            page.histogram("moldau_loop_delay_seconds", "How late the event loop calls back.", self._delay.times)
            page.gauge("moldau_loop_delay_longest_seconds", "Since the last scrape.", self._delay.take_longest())
            for name in _IDLE:
                page.gauge(name, "Part of the last minute in which the event loop was idle.", self._delay.idle_ratio)
            page.gauge("moldau_up_seconds", "Since the start.", (begun_ms - self._began_ms) / 1000)
            page.gauge("moldau_ready", "Whether clients are served.", int(self._why_not_ready() is None))
            if (broker := self._serving) is not None:
                await self._collect(page, broker)
            self._scrapes += 1
            page.gauge("moldau_scrape_seconds", "How long this took.", (self._now_ms() - begun_ms) / 1000)
            page.counter("moldau_scrapes_total", "How often it was done.", self._scrapes)
        return page

    async def _collect(self, page: Page, broker: Broker) -> None:
        page.gauge(
            "kafka_brokers", "Brokers that serve.", sum(not each.fenced for each in broker.image.brokers.values())
        )
        for kind, dispatcher in self._dispatchers.items():
            collect_requests(page, kind, dispatcher.times)
        sasl = {each.listener for each in broker.config.listeners if each.uses_sasl}
        collect_sockets(page, broker, self._listeners.values(), sasl)
        collect_waiting(page, broker)
        collect_quotas(page, broker)
        await collect_logs(page, broker)
        collect_quorum(page, broker, self.elections)
        collect_partition_elections(page, self.partition_elections)
        if broker.controller.is_active:
            await broker.in_turns(collect_topics(page, broker, self._named_in_cluster))
        if broker.config.is_broker:
            await broker.in_turns(collect_partitions(page, broker, self._named, self._others))
            await broker.in_turns(collect_transactions(page, broker))
            await collect_groups(page, broker, self._ages)

    def _why_not_ready(self) -> str | None:
        if self.failure is not None:
            return self.failure
        broker = self._serving
        if broker is not None:
            return why_not_ready(broker)
        return self.phase if self.explain is None else f"{self.phase}: {self.explain()}"

    # -- pages

    async def _metrics(self, headers: Mapping[str, str]) -> HttpAnswer:
        if self._scraping >= _SCRAPES_MAX:
            return HttpAnswer(b"others are being told already: ask again\n", HTTPStatus.SERVICE_UNAVAILABLE)
        self._scraping += 1
        try:
            page = await self.scrape()
        finally:
            self._scraping -= 1
        kind = wanted_format(headers.get("accept", ""))
        return HttpAnswer(page.text(kind), content_type=kind)

    async def _live(self, headers: Mapping[str, str]) -> HttpAnswer:
        return _judged(self.failure)

    async def _ready(self, headers: Mapping[str, str]) -> HttpAnswer:
        return _judged(self._why_not_ready())

    async def _status(self, headers: Mapping[str, str]) -> HttpAnswer:
        from moldau import __version__

        reason = self._why_not_ready()
        told: dict[str, Any] = {
            "version": __version__,
            "phase": self.phase,
            "ready": reason is None,
            "reason": reason,
            "up_seconds": round((self._now_ms() - self._began_ms) / 1000, 3),
        }
        if (broker := self._serving) is not None:
            addresses = {name: (each.host, each.port) for name, each in self._listeners.items()}
            told |= status(broker, addresses)
        return HttpAnswer(json.dumps(told, indent=2).encode() + b"\n", content_type=_JSON)


def _judged(reason: str | None) -> HttpAnswer:
    if reason is None:
        return HttpAnswer(b"ok\n")
    return HttpAnswer(f"{reason}\n".encode(), HTTPStatus.SERVICE_UNAVAILABLE)
