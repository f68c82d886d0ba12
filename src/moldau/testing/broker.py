"""A broker inside this process, for tests: up in tens of milliseconds, gone without a trace.

    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

It is the very broker that `moldau serve` runs, on a thread and an event loop of its own, with a temporary data folder
whose content is not flushed, since it is deleted anyway. Give a `data_dir` to keep the data, and to have it flushed.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from moldau.testing.loop_thread import LoopThread
from moldau.testing.settings import Settings, as_texts

if TYPE_CHECKING:
    from moldau.broker.node.node import Node
    from moldau.testing.security import Secrets, Security

# Tests want a new consumer group to read at once, not three seconds later, and few partitions to open.
_DEFAULTS = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
_START_SECONDS_MAX = 30


class AsyncBroker:
    """The same inside a running event loop: `async with AsyncBroker() as broker: …`."""

    def __init__(
        self,
        settings: Settings | None = None,
        *,
        data_dir: str | None = None,
        port: int = 0,
        security: Security | None = None,
    ) -> None:
        """`settings` are server.properties; `data_dir` is kept afterwards, and a temporary one is not. `security` says
        how clients get in; `client_settings` is what they need."""
        self._settings = as_texts(settings)
        self._security = security
        self._secrets: Secrets | None = None
        self._secrets_dir: str | None = None
        self._data_dir = data_dir
        self._port = port
        self._temporary: str | None = None
        self.node: Node

    @property
    def bootstrap_servers(self) -> str:
        host, port = next(iter(self.node.addresses.values()))
        return f"{host}:{port}"

    @property
    def data_dir(self) -> str:
        return self.node.config.log_dirs[0]

    async def start(self) -> Self:
        from moldau.broker.config import load_broker_config, standalone_settings
        from moldau.broker.node.node import Node
        from moldau.seams import RealDisk
        from moldau.testing.throwaway_disk import ThrowawayDisk

        data_dir = self._data_dir
        if data_dir is None:
            data_dir = self._temporary = tempfile.mkdtemp(prefix="moldau-")
        settings = standalone_settings("127.0.0.1", self._port, data_dir) | _DEFAULTS
        try:
            if self._security is not None:
                settings |= self._secure(self._security)
            disk = RealDisk() if self._temporary is None else ThrowawayDisk()
            config = load_broker_config(settings | self._settings)
            if self._secrets is not None:
                self._secrets.format(config, disk)
            self.node = Node(config, disk=disk)
            await self.node.start()
        except BaseException:
            self._remove_temporary()
            raise
        return self

    async def stop(self) -> None:
        try:
            await self.node.stop()
        finally:
            self._remove_temporary()

    def client_settings(self, user: str | None = None) -> dict[str, Any]:
        """What confluent-kafka needs to get in as that user (the first, if none is named)."""
        settings: dict[str, Any] = {"bootstrap.servers": self.bootstrap_servers}
        return settings | (self._secrets.client_settings(user) if self._secrets is not None else {})

    def _secure(self, security: Security) -> dict[str, str]:
        from moldau.testing.security import Secrets

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
        security: Security | None = None,
    ) -> None:
        """`settings` are server.properties; `data_dir` is kept afterwards, and a temporary one is not. `security` says
        how clients get in; `client_settings` is what they need."""
        self._inner = AsyncBroker(settings, data_dir=data_dir, port=port, security=security)
        self._thread = LoopThread("moldau-broker")
        self._is_running = False

    @property
    def bootstrap_servers(self) -> str:
        return self._inner.bootstrap_servers

    @property
    def data_dir(self) -> str:
        return self._inner.data_dir

    def client_settings(self, user: str | None = None) -> dict[str, Any]:
        """What confluent-kafka needs to get in as that user (the first, if none is named)."""
        return self._inner.client_settings(user)

    @property
    def node(self) -> Node:
        """The node itself; it belongs to the broker's thread."""
        return self._inner.node

    def start(self) -> Self:
        if self._thread.is_started:
            raise RuntimeError("this broker was started before; make a new one")
        self._thread.start()
        try:
            self._thread.run(self._inner.start(), _START_SECONDS_MAX)
        except BaseException:
            self._thread.end()
            raise
        self._is_running = True
        return self

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
