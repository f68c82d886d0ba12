"""What Raft asks of other controllers, on its way: encoded, sent, awaited, decoded, and handed back to Raft.

Every request ends in exactly one of Raft's `on_answer` and `on_failure`, unless this node stops first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from moldau.broker.quorum.errors import QuorumStopped
from moldau.broker.quorum.messages import decode_answer, encode_request
from moldau.broker.supervision import begin
from moldau.raft import Raft, Send
from moldau.raft.voters import Address
from moldau.wire import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.channels import Channels
    from moldau.broker.config import BrokerConfig

    class Needs(Protocol):
        """What of the quorum this file may touch."""

        cluster_id: str

        @property
        def channels(self) -> Channels: ...

        def ask(self, question: Callable[[float], None]) -> None: ...

        def fail(self, error: Exception) -> None: ...


_log = logging.getLogger(__name__)


class QuorumRequests:
    """Belongs to the event loop."""

    def __init__(self, quorum: Needs, raft: Raft, config: BrokerConfig) -> None:
        self._quorum = quorum
        self._raft = raft
        self._config = config
        self._sending: set[asyncio.Task[None]] = set()
        self._strangers: set[Address] = set()
        # Why those who did not answer last did not: for people who ask what is missing.
        self.troubles: dict[Address, str] = {}

    def send(self, send: Send) -> None:
        task = begin(asyncio.get_running_loop(), "a request of the quorum", self._ask(send))
        self._sending.add(task)
        task.add_done_callback(self._sent)

    def _sent(self, task: asyncio.Task[None]) -> None:
        self._sending.discard(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, Exception):
            self._quorum.fail(error)

    def _tell(self, event: Callable[[float], None]) -> None:
        """What became of a request. A node that stopped meanwhile, or stops over this, has said so itself."""
        with contextlib.suppress(QuorumStopped):
            self._quorum.ask(event)

    async def stop(self) -> None:
        for task in tuple(self._sending):
            task.cancel()
        await asyncio.gather(*self._sending, return_exceptions=True)

    async def _ask(self, send: Send) -> None:
        request, config = send.request, self._config
        try:
            wire = encode_request(
                request,
                self._quorum.cluster_id,
                fetch_max_bytes=config.get_int("controller.quorum.fetch.max.bytes"),
                snapshot_max_bytes=config.get_int("controller.quorum.fetch.snapshot.max.bytes"),
            )
            response = await self._quorum.channels.call(
                send.address.host,
                send.address.port,
                wire,
                timeout_ms=config.get_int("controller.quorum.request.timeout.ms"),
                lane=f"raft-{type(request).__name__}",
            )
            answer = decode_answer(request, response)
        except Exception as error:  # whatever the peer, or the way to it, did: it has not answered
            _log.debug("%s to node %s: %s", type(request).__name__, send.node_id, error)
            self.troubles[send.address] = str(error) or f"{send.address.host} does not answer"
            self._tell(partial(self._raft.on_failure, send=send))
            return
        self.troubles.pop(send.address, None)
        if answer.error is ErrorCode.INCONSISTENT_CLUSTER_ID and send.address not in self._strangers:
            self._strangers.add(send.address)
            _log.error(
                "node %s at %s:%s belongs to another cluster than this node (%s): give each its own "
                "controller.quorum settings, or its own dirs",
                send.node_id,
                *send.address,
                self._quorum.cluster_id,
            )
        self._tell(partial(self._raft.on_answer, send=send, answer=answer))
