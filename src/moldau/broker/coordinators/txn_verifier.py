"""Asking transaction coordinators on other brokers (KIP-890): `moldau.transactions.verification` with a network."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from moldau.broker.channels import Disconnected, RequestTimedOut, UnsupportedVersion
from moldau.broker.supervision import begin
from moldau.transactions import TopicPartition
from moldau.transactions.verification import Question, Send, TransactionVerifier, VerifierEffects
from moldau.wire import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.parts import HasConfig, HasLoop, HasPeers

    class Needs(HasConfig, HasLoop, HasPeers, Protocol):
        """What this file may touch."""


_log = logging.getLogger(__name__)

_LANE = "transactions"

OnErrors = Callable[[Mapping[TopicPartition, ErrorCode]], None]
"""Called once, with an error (or NONE) for every partition that was asked about."""


class RemoteCoordinators:
    """Belongs to the event loop."""

    def __init__(self, broker: Needs) -> None:
        self._broker = broker
        self._verifier = TransactionVerifier()
        self._asking: dict[int, OnErrors] = {}
        self._next_id = 0
        self._sending: set[asyncio.Task[None]] = set()

    def ask(self, question: Question, coordinator: int | None, answer: OnErrors) -> None:
        self._next_id += 1
        question = question._replace(question_id=self._next_id)
        self._asking[question.question_id] = answer
        self._carry_out(self._verifier.ask(question, coordinator))

    def _carry_out(self, effects: VerifierEffects) -> None:
        for send in effects.sends:
            task = begin(self._broker.loop, "a verification", self._send(send))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        for told in effects.answers:
            try:
                self._asking.pop(told.question_id)(told.errors)
            except Exception:  # one writer's trouble is not the others'
                _log.exception("a transactional write failed after its transaction was verified")

    async def _send(self, send: Send) -> None:
        broker = self._broker
        endpoint = broker.endpoint_of(send.node_id)
        response = None
        if endpoint is not None:
            timeout_ms = broker.config.get_int("request.timeout.ms")
            try:
                response = await broker.channels.call(*endpoint, send.request, timeout_ms=timeout_ms, lane=_LANE)
            except (Disconnected, RequestTimedOut, UnsupportedVersion):
                pass
            except Exception:  # whatever it is: who asked must hear of it, and the next question must be asked
                _log.exception("node %d cannot be asked about transactions", send.node_id)
        effects = None
        if response is not None:
            try:
                effects = self._verifier.on_response(send.node_id, response)
            except Exception:  # an answer that cannot be: as if there were none
                _log.exception("node %d gave a wrong answer about transactions", send.node_id)
        self._carry_out(self._verifier.on_failure(send.node_id) if effects is None else effects)

    def stop(self) -> None:
        for task in tuple(self._sending):
            task.cancel()
