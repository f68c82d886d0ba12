"""Asking transaction coordinators on other brokers (KIP-890): `moldau.transactions.verification` with a network."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from moldau.broker.channels import Disconnected, RequestTimedOut, UnsupportedVersion
from moldau.broker.wake_up import WakeUp
from moldau.transactions import TopicPartition
from moldau.transactions.config import transaction_config
from moldau.transactions.verification import Operation, Question, Send, TransactionVerifier, VerifierEffects
from moldau.wire import ErrorCode

if TYPE_CHECKING:
    from moldau.broker.broker import Broker

_LANE = "transactions"


class RemoteCoordinators:
    """Belongs to the event loop."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._verifier = TransactionVerifier(transaction_config(broker.config.get_int))
        self._asking: dict[int, Callable[[ErrorCode], None]] = {}
        self._next_id = 0
        self._wake_up = WakeUp(broker.wheel, self._retry)
        self._sending: set[asyncio.Task[None]] = set()

    def ask(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        place: tuple[str, int],
        operation: Operation,
        answer: Callable[[ErrorCode], None],
    ) -> None:
        """Verify that the place (topic, partition) is in the producer's transaction, or add it."""
        self._next_id += 1
        where = TopicPartition(*place)
        question = Question(self._next_id, transactional_id, *producer, frozenset({where}), operation)
        self._asking[question.question_id] = answer
        now_ms = self._broker.clock.monotonic_ms()
        self._carry_out(self._verifier.ask(question, self._coordinator(question), now_ms))

    def _coordinator(self, question: Question) -> int | None:
        return self._broker.transactions.leader_for(question.transactional_id)

    def _carry_out(self, effects: VerifierEffects) -> None:
        for send in effects.sends:
            task = self._broker.loop.create_task(self._send(send))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)
        for told in effects.answers:
            answer = self._asking.pop(told.question_id)
            (error,) = told.errors.values()
            answer(error)
        self._wake_up.at(self._verifier.next_deadline_ms)

    async def _send(self, send: Send) -> None:
        broker = self._broker
        endpoint = broker.endpoint_of(send.node_id)
        response = None
        if endpoint is not None:
            timeout_ms = broker.config.get_int("request.timeout.ms")
            with contextlib.suppress(Disconnected, RequestTimedOut, UnsupportedVersion):
                response = await broker.channels.call(*endpoint, send.request, timeout_ms=timeout_ms, lane=_LANE)
        if response is None:
            self._carry_out(self._verifier.on_failure(send.node_id))
        else:
            self._carry_out(self._verifier.on_response(send.node_id, response, broker.clock.monotonic_ms()))

    def _retry(self) -> None:
        for question in self._verifier.due(self._broker.clock.monotonic_ms()):
            self._carry_out(self._verifier.ask_again(question, self._coordinator(question)))

    def stop(self) -> None:
        self._wake_up.at(None)
        for task in tuple(self._sending):
            task.cancel()
