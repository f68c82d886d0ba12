"""Producer ids for this node: blocks asked of the controller, given out one by one.

Invariant: an id is given out once, by anybody who shares `allocator` (the transaction coordinator does too).
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Protocol

from moldau.broker.supervision import begin
from moldau.transactions.producer_ids import ProducerIdAllocator
from moldau.wire import ErrorCode
from moldau.wire import messages as m

if TYPE_CHECKING:
    from moldau.broker.controller.parts import HasControllerChannel
    from moldau.broker.parts import HasIdentity, HasLoop, HasTime

    class Needs(HasControllerChannel, HasIdentity, HasLoop, HasTime, Protocol):
        """What this file may touch."""


_log = logging.getLogger(__name__)


class ProducerIds:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs) -> None:
        self._broker = broker
        self.allocator = ProducerIdAllocator()
        self._asking: asyncio.Task[None] | None = None

    def prefetch(self) -> None:
        """Have a block ready before the first producer comes, and after somebody else used `allocator`."""
        self._ask_if_wanted()

    def claim_now(self) -> int | None:
        """The next producer id; None if one must be waited for."""
        producer_id = self.allocator.claim()
        self._ask_if_wanted()
        return producer_id

    async def claim(self) -> int | None:
        """The next producer id, waiting for a block if need be; None if the controller has none to give now."""
        producer_id = self.claim_now()
        while producer_id is None and self._asking is not None:
            await asyncio.shield(self._asking)
            producer_id = self.claim_now()
        return producer_id

    def _ask_if_wanted(self) -> None:
        if self._broker.broker_epoch < 0:
            return  # the controller does not know this broker yet; `prefetch` is called when it does
        if self.allocator.poll(self._broker.clock.monotonic_ms()):
            self._asking = begin(self._broker.loop, "asking for producer ids", self._ask())

    async def _ask(self) -> None:
        broker = self._broker
        request = m.AllocateProducerIdsRequest(broker_id=broker.node_id, broker_epoch=broker.broker_epoch)
        try:
            response = await broker.controller_channel.call(request)
        except Exception:
            self.allocator.on_failure(broker.clock.monotonic_ms())
            _log.exception("the controller gave no producer ids")
        else:
            error = self.allocator.on_response(response, broker.clock.monotonic_ms())
            if error is ErrorCode.STALE_BROKER_EPOCH:  # registered anew meanwhile: the next request has the new epoch
                _log.info("the controller gave no producer ids to an earlier incarnation of this broker")
            elif error is not ErrorCode.NONE:
                _log.error("the controller gave no producer ids: %s", error.name)
        finally:
            self._asking = None
