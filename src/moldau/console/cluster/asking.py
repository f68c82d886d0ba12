"""Asking brokers: a few connections to each, made when needed, used by one thread at a time, given back afterwards.

A connection that was idle may have been closed by its broker: then the question is asked once more on a new one. No
question here changes anything twice: what is sent again was never answered, and all of it may be repeated.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeVar

from moldau.client.connection import BrokerError, ClientError, Connection, Disconnected
from moldau.client.settings import ClientSettings
from moldau.wire import Message, apis
from moldau.wire.messages import MetadataRequest, MetadataResponse

R = TypeVar("R", bound=Message)
Address = tuple[str, int]
_IDLE_MAX = 4  # connections kept to one broker


class Asker:
    """Questions to brokers by id, or to any; from any thread."""

    def __init__(self, settings: ClientSettings) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._idle: defaultdict[Address, list[Connection]] = defaultdict(list)
        self._brokers: dict[int, Address] = {}
        self._controller = -1

    def close(self) -> None:
        with self._lock:
            connections = [each for kept in self._idle.values() for each in kept]
            self._idle.clear()
        for connection in connections:
            connection.close()

    def learn(self, answer: MetadataResponse) -> None:
        """Who is where, from an answer somebody got."""
        with self._lock:
            self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
            self._controller = answer.controller_id

    @property
    def brokers(self) -> list[int]:
        """Those that are known, asking once if none is."""
        with self._lock:
            known = sorted(self._brokers)
        if not known:
            self.learn(self.any(MetadataRequest(topics=[]), MetadataResponse))
            with self._lock:
                known = sorted(self._brokers)
        return known

    def any(self, request: Message, answer: type[R], most: int | None = None) -> R:
        """Whoever answers first."""
        with self._lock:
            addresses = list(dict.fromkeys((*self._brokers.values(), *self._settings.bootstrap_servers)))
        failure: ClientError | None = None
        for address in addresses:
            try:
                return self._ask(address, request, answer, most)
            except Disconnected as error:
                failure = error
        raise failure or Disconnected("no broker is known")

    def broker(self, node_id: int, request: Message, answer: type[R], most: int | None = None) -> R:
        _ = self.brokers
        with self._lock:
            address = self._brokers.get(node_id)
        if address is None:
            raise Disconnected(f"broker {node_id} is away")
        return self._ask(address, request, answer, most)

    def controller(self, request: Message, answer: type[R], most: int | None = None) -> R:
        """Whoever carries out changes, or hands them on to who does."""
        _ = self.brokers
        with self._lock:
            address = self._brokers.get(self._controller)
        return self.any(request, answer, most) if address is None else self._ask(address, request, answer, most)

    def at(self, address: Address, request: Message, answer: type[R], most: int | None = None) -> R:
        return self._ask(address, request, answer, most)

    def version(self, node_id: int, key: int, most: int) -> int:
        """The version of an API that a broker would be asked in."""
        _ = self.brokers
        with self._lock:
            address = self._brokers.get(node_id)
        if address is None:
            raise Disconnected(f"broker {node_id} is away")
        with self._lent(address) as connection:
            return connection.version(apis()[key], most)

    def _ask(self, address: Address, request: Message, answer: type[R], most: int | None) -> R:
        with self._lock:
            had_idle = bool(self._idle[address])
        try:
            with self._lent(address) as connection:
                return connection.call(request, answer, most)
        except Disconnected:
            if not had_idle:
                raise
            self._forget(address)  # they were idle for as long as the one that broke
            with self._lent(address) as connection:
                return connection.call(request, answer, most)

    def _forget(self, address: Address) -> None:
        with self._lock:
            connections = self._idle.pop(address, [])
        for connection in connections:
            connection.close()

    @contextmanager
    def _lent(self, address: Address) -> Iterator[Connection]:
        with self._lock:
            kept = self._idle[address]
            connection = kept.pop() if kept else None
        if connection is None:
            connection = Connection(*address, self._settings)
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if len(self._idle[address]) < _IDLE_MAX:
                self._idle[address].append(connection)
                return
        connection.close()


def check(code: int, what: str, message: str | None = None) -> None:
    """Raises `BrokerError` for an error code, with the broker's own words if it has some."""
    if code:
        raise BrokerError(code, f"{what}: {message}" if message else what)
