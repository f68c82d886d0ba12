"""A broker inside this process, for tests: up in tens of milliseconds, gone without a trace.

    with Broker(topics={"orders": 3}) as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

It is the very broker that `moldau serve` runs, on a thread and an event loop of its own, with a temporary data folder
whose content is not flushed, since it is deleted anyway. Give a `data_dir` to keep the data, and to have it flushed.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from moldau.testing.faults import Faults
from moldau.testing.loop_thread import LoopThread
from moldau.testing.settings import Settings, as_texts
from moldau.testing.topics import Topics, as_topics, create_topics

if TYPE_CHECKING:
    from moldau.broker.node.node import Node
    from moldau.testing.records import Bytes, Received
    from moldau.testing.security import Secrets, Security

# Tests want a new consumer group to read at once, not three seconds later, and few partitions to open; and records
# with made-up timestamps that stay: after five minutes retention would look, and find them older than a week.
_DEFAULTS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "log.retention.check.interval.ms": "86400000",
}
_START_SECONDS_MAX = 30
_NOT_STARTED = "this broker is not started: use it as a context manager, or call start()"


class AsyncBroker:
    """The same inside a running event loop: `async with AsyncBroker() as broker: …`."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        data_dir: str | None = None,
        port: int = 0,
        topics: Topics | None = None,
        security: Security | None = None,
    ) -> None:
        """`settings` are server.properties; `data_dir` is kept afterwards, and a temporary one is not; `topics` are
        there from the start. `security` says how clients get in; `client_settings` is what they need."""
        self._settings = as_texts(settings)
        self._data_dir = data_dir
        self._port = port
        self._topics = as_topics(topics)
        self._security = security
        self._secrets: Secrets | None = None
        self._secrets_dir: str | None = None
        self._temporary: str | None = None
        self._is_running = False
        self._is_started = self._is_over = False
        self.faults = Faults()
        self._node: Node | None = None

    @property
    def node(self) -> Node:
        """The node itself; it belongs to the loop it was started on."""
        if self._node is None:
            raise RuntimeError(_NOT_STARTED)
        return self._node

    @property
    def bootstrap_servers(self) -> str:
        """Its address; that it had, once it is stopped."""
        host, port = self.node.client_addresses[0]
        return f"{host}:{port}"

    def client_settings(self, user: str | None = None) -> dict[str, Any]:
        """What confluent-kafka needs to get in as that user (the first, if none is named)."""
        settings: dict[str, Any] = {"bootstrap.servers": self.bootstrap_servers}
        return settings | (self._secrets.client_settings(user) if self._secrets is not None else {})

    @property
    def data_dir(self) -> str:
        """Where its data is."""
        return self.node.config.log_dirs[0]

    async def start(self) -> Self:
        """Return when clients may connect, and `topics` are there. A broker is started once."""
        if self._is_started:
            raise RuntimeError("this broker was started before; make a new one")
        self._is_started = True
        data_dir = self._data_dir
        if data_dir is None:
            data_dir = self._temporary = tempfile.mkdtemp(prefix="moldau-")
        try:
            await self._start(data_dir)
            await create_topics(self.node, self._topics, replicas=1)
        except BaseException:
            await self.stop()
            raise
        return self

    async def _start(self, data_dir: str) -> None:
        from moldau.broker.config import load_broker_config, standalone_settings
        from moldau.broker.node.node import Node
        from moldau.testing.throwaway_disk import FillableDisk, ThrowawayDisk

        settings = standalone_settings("127.0.0.1", self._port, data_dir) | _DEFAULTS
        is_new = self._secrets is None
        if self._security is not None:
            settings |= self._secure(self._security)
        disk = (FillableDisk if self._temporary is None else ThrowawayDisk)(self.faults)
        config = load_broker_config(settings | self._settings)
        if self._secrets is not None and is_new:
            self._secrets.format(config, disk)
        node = Node(config, disk=disk, wrap_network=self.faults.network)
        await node.start()
        self._node, self._is_running = node, True

    async def restart(self, *, crash: bool = False) -> None:
        """On the same port with the same data: after an orderly stop, or after a crash that flushed nothing."""
        self._check_is_there()
        self._port, data_dir = self.node.client_addresses[0][1], self.data_dir
        if self._is_running:  # else a restart before this one failed
            self._is_running = False
            await (self.node.abort() if crash else self.node.stop())
        await self._start(data_dir)

    def _check_is_there(self) -> None:
        if self._is_over or self._node is None:
            raise RuntimeError("this broker is stopped" if self._is_over else _NOT_STARTED)

    async def create_topics(self, topics: Topics) -> None:
        """As `topics=` does, now."""
        self._check_is_there()
        await create_topics(self.node, as_topics(topics), replicas=1)

    async def produce(
        self,
        topic: str,
        values: Iterable[Bytes],
        *,
        key: Bytes | Callable[[Bytes], Bytes] = None,
        headers: dict[str, bytes] | None = None,
        partition: int | None = None,
        seconds: float = 20.0,
    ) -> list[tuple[int, int]]:
        """As `Broker.produce`, on a thread of its own: the loop goes on."""
        from moldau.testing.records import produce

        self._check_is_there()
        send = partial(produce, key=key, headers=headers, partition=partition, seconds=seconds)
        return await asyncio.to_thread(send, self.client_settings(), topic, values)

    async def read(self, topic: str, count: int | None = None, *, seconds: float = 20.0) -> list[Received]:
        """As `Broker.read`, on a thread of its own: the loop goes on."""
        from moldau.testing.records import read

        self._check_is_there()
        return await asyncio.to_thread(read, self.client_settings(), topic, count, seconds=seconds)

    async def stop(self) -> None:
        """Stopping twice is fine."""
        self._is_over = self._is_started
        try:
            if self._is_running:
                self._is_running = False
                self.faults.resume()
                await self.node.stop()
        finally:
            self._remove_temporary()

    def _secure(self, security: Security) -> dict[str, str]:
        from moldau.testing.security import Secrets

        if self._secrets is None:  # after a restart they are the same
            self._secrets_dir = tempfile.mkdtemp(prefix="moldau-secrets-")
            self._secrets = Secrets(security, Path(self._secrets_dir))
        listener = {
            "listeners": f"{security.protocol}://127.0.0.1:{self._port}",
            "inter.broker.listener.name": security.protocol,
        }
        return listener | self._secrets.settings()

    def _remove_temporary(self) -> None:
        for folder in (self._temporary, self._secrets_dir):
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class Broker:
    """A broker on its own thread; use it as a context manager, or call `start` and `stop`."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        data_dir: str | None = None,
        port: int = 0,
        topics: Topics | None = None,
        security: Security | None = None,
    ) -> None:
        """`settings` are server.properties; `data_dir` is kept afterwards, and a temporary one is not; `topics` are
        there from the start: `{"orders": 3}` is partitions by name. `security` says how clients get in;
        `client_settings` is what they need."""
        self._inner = AsyncBroker(settings, data_dir=data_dir, port=port, topics=topics, security=security)
        self._thread = LoopThread("broker")
        self._is_running = False

    @property
    def bootstrap_servers(self) -> str:
        """Its address, for clients; that it had, once it is stopped."""
        return self._inner.bootstrap_servers

    def client_settings(self, user: str | None = None) -> dict[str, Any]:
        """What confluent-kafka needs to get in as that user (the first, if none is named):
        `Producer(broker.client_settings())`."""
        return self._inner.client_settings(user)

    @property
    def data_dir(self) -> str:
        """Where its data is."""
        return self._inner.data_dir

    @property
    def faults(self) -> Faults:
        """Let things go wrong: see `moldau.testing.faults`."""
        return self._inner.faults

    @property
    def node(self) -> Node:
        """The node itself; it belongs to the broker's thread."""
        return self._inner.node

    def start(self) -> Self:
        """Return when clients may connect, and `topics` are there. A broker is started once."""
        self._thread.start()
        try:
            self._thread.run(self._inner.start(), _START_SECONDS_MAX)
        except BaseException:
            self._thread.end()
            raise
        self._is_running = True
        return self

    def restart(self, *, crash: bool = False) -> None:
        """On the same port with the same data: after an orderly stop, or after a crash that flushed nothing."""
        self._thread.run(self._inner.restart(crash=crash), _START_SECONDS_MAX * 2)

    def create_topics(self, topics: Topics) -> None:
        """As `topics=` does, now."""
        self._thread.run(self._inner.create_topics(topics), _START_SECONDS_MAX)

    def produce(
        self,
        topic: str,
        values: Iterable[Bytes],
        *,
        key: Bytes | Callable[[Bytes], Bytes] = None,
        headers: dict[str, bytes] | None = None,
        partition: int | None = None,
        seconds: float = 20.0,
    ) -> list[tuple[int, int]]:
        """Send, and return (partition, offset) of each in order, once all are acknowledged."""
        from moldau.testing.records import produce

        self._thread.check_is_running()
        return produce(
            self.client_settings(), topic, values, key=key, headers=headers, partition=partition, seconds=seconds
        )

    def read(self, topic: str, count: int | None = None, *, seconds: float = 20.0) -> list[Received]:
        """All records of a topic that are there now, by partition and offset; or, with `count`, the first that come, as
        soon as there are so many. TimeoutError, with what came, if they do not."""
        from moldau.testing.records import read

        self._thread.check_is_running()
        return read(self.client_settings(), topic, count, seconds=seconds)

    def stop(self) -> None:
        """Shut down cleanly. Stopping twice is fine."""
        if self._is_running:
            self._is_running = False
            try:
                self._thread.run(self._inner.stop(), None)
            finally:
                self._thread.end()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
