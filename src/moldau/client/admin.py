"""Any question to any broker of a cluster, for tools: the coordinator is found, the brokers are known by id.

Answers are handed over as they are: which error codes are fine is for the caller to say. Only a coordinator that is
not there yet is waited for.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Self, TypeVar

from moldau.client.connection import BrokerError, ClientError, Connection, Disconnected
from moldau.client.settings import ClientSettings
from moldau.wire import ErrorCode, Message
from moldau.wire.messages import (
    FindCoordinatorRequest,
    FindCoordinatorResponse,
    MetadataRequest,
    MetadataResponse,
)

R = TypeVar("R", bound=Message)
GROUP, TRANSACTION = 0, 1  # kinds of coordinators
_COORDINATOR_SECONDS = 10.0
_PAUSE_SECONDS = 0.1
_COORDINATOR_BY_KEY = 3  # version 4 asks for several at once
_ASKED_AT_ONCE_MAX = 16


class UnknownBroker(ClientError):
    """No broker of that id is registered and alive."""


class Admin:
    """Connections to brokers, made when needed. A context manager."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._first: Connection | None = None
        self._connections: dict[tuple[str, int], Connection] = {}
        self.brokers: dict[int, tuple[str, int]] = {}

    def close(self) -> None:
        for connection in (*self._connections.values(), *([self._first] if self._first else ())):
            connection.close()
        self._connections.clear()
        self._first = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, request: Message, answer: type[R], most: int | None = None) -> R:
        """Any broker; those forward to the controller what is for the controller."""
        return self._any().call(request, answer, most)

    def ask_broker(self, broker_id: int, request: Message, answer: type[R], most: int | None = None) -> R:
        return self._broker(broker_id).call(request, answer, most)

    def ask_coordinator(self, kind: int, key: str, request: Message, answer: type[R], most: int | None = None) -> R:
        return self._coordinator(kind, key).call(request, answer, most)

    def metadata(self, topics: Iterable[str] | None = None) -> MetadataResponse:
        """Brokers, controller and topics: these, or all. No topic is created by asking."""
        wanted = None if topics is None else [MetadataRequest.MetadataRequestTopic(name=name) for name in topics]
        found = self.ask(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), MetadataResponse)
        self.brokers = {each.node_id: (each.host, each.port) for each in found.brokers}
        return found

    def hasty(self, seconds: float) -> Admin:
        """Another one that waits no longer than this for anything."""
        return Admin(_hasty(self._settings, seconds))

    def silent(self, seconds: float) -> list[int]:
        """The brokers of the last metadata that do not answer their first question in that time, asked side by side."""
        hasty = _hasty(self._settings, seconds)

        def is_silent(address: tuple[str, int]) -> bool:
            try:
                Connection(*address, hasty).close()
            except Disconnected:
                return True
            return False

        with ThreadPoolExecutor(_ASKED_AT_ONCE_MAX) as pool:
            found = dict(zip(self.brokers, pool.map(is_silent, self.brokers.values()), strict=True))
        return sorted(broker for broker, is_one in found.items() if is_one)

    def _broker(self, broker_id: int) -> Connection:
        if broker_id not in self.brokers:
            self.metadata([])
        if broker_id not in self.brokers:
            known = ", ".join(map(str, sorted(self.brokers)))
            raise UnknownBroker(f"there is no broker {broker_id} now; there are {known}")
        return self._connection(self.brokers[broker_id])

    def _coordinator(self, kind: int, key: str) -> Connection:
        deadline = time.monotonic() + _COORDINATOR_SECONDS
        while True:
            request = FindCoordinatorRequest(key=key, key_type=kind)
            found = self.ask(request, FindCoordinatorResponse, _COORDINATOR_BY_KEY)
            if not found.error_code:
                return self._connection((found.host, found.port))
            if found.error_code != ErrorCode.COORDINATOR_NOT_AVAILABLE or time.monotonic() > deadline:
                raise BrokerError(found.error_code, f"no coordinator for {key}")
            time.sleep(_PAUSE_SECONDS)  # between two tries: its topic is being made

    def _any(self) -> Connection:
        if self._first is not None:
            return self._first
        failure: ClientError | None = None
        for host, port in self._settings.bootstrap_servers:
            try:
                self._first = Connection(host, port, self._settings)
            except Disconnected as error:
                failure = error
            else:
                return self._first
        raise failure or Disconnected("no broker is known")

    def _connection(self, address: tuple[str, int]) -> Connection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = Connection(*address, self._settings)
        return connection


def _hasty(settings: ClientSettings, seconds: float) -> ClientSettings:
    return replace(settings, connect_timeout_s=seconds, request_timeout_s=seconds)
