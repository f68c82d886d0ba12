"""What a piece of the broker may ask of the node around it, in small parts.

A handler or service names the parts it uses in its signature, alone or together (`class Needs(HasReplicas, HasTime,
Protocol)`): what it may touch can be read there. Rooms add their own (`replicas/parts.py`, …); `broker.Broker` is the
one object that has them all, put together in `node/node.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

if TYPE_CHECKING:
    from moldau.broker.calls import Call
    from moldau.broker.channels import Channels
    from moldau.broker.config import BrokerConfig
    from moldau.broker.quotas.clients import ClientQuotas
    from moldau.controller.image import ClusterImage
    from moldau.log.dirs.log_manager import LogManager
    from moldau.seams import Clock, Random
    from moldau.security.audit import Audit
    from moldau.security.authorizer import Authorizer
    from moldau.timers.purgatory import Purgatory
    from moldau.timers.turns import Slices, Turns
    from moldau.timers.wheel import TimingWheel

T = TypeVar("T")


class HasConfig(Protocol):
    @property
    def config(self) -> BrokerConfig: ...

    def is_controller_listener(self, name: str) -> bool:
        """Whether the quorum's members come there, and not clients of brokers."""


class HasAuthorizer(Protocol):
    @property
    def authorizer(self) -> Authorizer | None:
        """None: everybody may do everything."""

    def denied(self, call: Call, operation: int, kind: int, name: str) -> None:
        """Somebody was refused what it asked for."""


class HasIdentity(Protocol):
    @property
    def node_id(self) -> int: ...
    @property
    def cluster_id(self) -> str: ...
    @property
    def broker_epoch(self) -> int: ...


class HasImage(Protocol):
    """The cluster, as far as this node knows it."""

    @property
    def image(self) -> ClusterImage: ...

    async def next_image(self, timeout_seconds: float) -> None:
        """Until the cluster changes, or for so long."""


class HasTime(Protocol):
    @property
    def clock(self) -> Clock: ...
    @property
    def wheel(self) -> TimingWheel: ...


class HasAudit(Protocol):
    @property
    def audit(self) -> Audit:
        """Where logins, refusals and changes of security are written down."""


class HasQuotas(Protocol):
    @property
    def quotas(self) -> ClientQuotas: ...


class HasRandom(Protocol):
    @property
    def random(self) -> Random: ...


class HasLoop(Protocol):
    """The loop, and where to go with what would block it."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop: ...
    @property
    def executor(self) -> Executor: ...
    @property
    def has_own_threads(self) -> bool: ...
    @property
    def long_look(self) -> asyncio.Lock:
        """For work of threads in Python, one at a time."""

    @property
    def long_fetch(self) -> asyncio.Lock:
        """The same for reading long Fetches, which followers send, too."""


class HasTurns(Protocol):
    """Work on the loop that lets others have their turn."""

    @property
    def turns(self) -> Turns: ...
    @property
    def under_way(self) -> set[asyncio.Task[None]]: ...

    def go_on(self, call: Call, work: Coroutine[Any, Any, None], kept_bytes: int = 0) -> None:
        """Carry a request out over several turns of the loop. Nothing of its connection may overtake it. What it keeps
        of its frame meanwhile counts against `queued.max.request.bytes`."""

    async def in_turns(self, work: Slices[T]) -> T:
        """The result of work that lets others have their turn."""


class HasPurgatories(Protocol):
    @property
    def produce_purgatory(self) -> Purgatory:
        """Where an acks=all Produce waits for the high watermark."""

    @property
    def fetch_purgatory(self) -> Purgatory:
        """Where a Fetch waits for `fetch.min.bytes`."""


class HasLogs(Protocol):
    @property
    def logs(self) -> LogManager: ...


class HasPeers(Protocol):
    """The way to other nodes."""

    @property
    def channels(self) -> Channels: ...
    @property
    def controller_channels(self) -> Channels: ...

    def endpoint_of(self, node_id: int) -> tuple[str, int] | None:
        """Where brokers reach that broker; None if it is not registered."""
