"""A broker inside this process, for tests: up in tens of milliseconds, gone without a trace.

    with Broker() as broker:
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers})

It is the very broker that `moldau serve` runs, on a thread and an event loop of its own, with a temporary data folder
whose content is not flushed, since it is deleted anyway. Give a `data_dir` to keep the data, and to have it flushed.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import tempfile
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from moldau.broker.node import Node

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
        self, settings: Mapping[str, str] | None = None, *, data_dir: str | None = None, port: int = 0
    ) -> None:
        """`settings` are server.properties; `data_dir` is kept afterwards, and a temporary one is not."""
        self._settings = dict(settings or {})
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
        from moldau.broker.node import Node
        from moldau.seams import RealDisk
        from moldau.testing.throwaway_disk import ThrowawayDisk

        data_dir = self._data_dir
        if data_dir is None:
            data_dir = self._temporary = tempfile.mkdtemp(prefix="moldau-")
        settings = standalone_settings("127.0.0.1", self._port, data_dir) | _DEFAULTS | self._settings
        try:
            disk = RealDisk() if self._temporary is None else ThrowawayDisk()
            self.node = Node(load_broker_config(settings), disk=disk)
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

    def _remove_temporary(self) -> None:
        if self._temporary is not None:
            shutil.rmtree(self._temporary, ignore_errors=True)

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()


class Broker:
    """A broker on its own thread; use it as a context manager, or call `start` and `stop`."""

    def __init__(
        self, settings: Mapping[str, str] | None = None, *, data_dir: str | None = None, port: int = 0
    ) -> None:
        """`settings` are server.properties; `data_dir` is kept afterwards, and a temporary one is not."""
        self._inner = AsyncBroker(settings, data_dir=data_dir, port=port)
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopped: asyncio.Event | None = None
        self._started = threading.Event()
        self._failure: BaseException | None = None

    @property
    def bootstrap_servers(self) -> str:
        return self._inner.bootstrap_servers

    @property
    def data_dir(self) -> str:
        return self._inner.data_dir

    @property
    def node(self) -> Node:
        """The node itself; it belongs to the broker's thread."""
        return self._inner.node

    def start(self) -> Self:
        if self._thread is not None:
            raise RuntimeError("this broker was started before; make a new one")
        self._thread = threading.Thread(target=self._run, name="moldau-broker", daemon=True)
        self._thread.start()
        if not self._started.wait(_START_SECONDS_MAX):
            raise TimeoutError(f"the broker did not start within {_START_SECONDS_MAX} seconds")
        if self._failure is not None:
            raise self._failure
        return self

    def stop(self) -> None:
        """Shut down cleanly. Stopping twice is fine."""
        thread, loop, stopped = self._thread, self._loop, self._stopped
        if thread is None or loop is None or stopped is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop is closed already
            loop.call_soon_threadsafe(stopped.set)
        thread.join()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _run(self) -> None:
        from moldau.net import new_event_loop

        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._live())
        except BaseException as error:  # shown to whoever started or stops it
            self._failure = error
        finally:
            self._started.set()

    async def _live(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stopped = asyncio.Event()
        async with self._inner:
            self._started.set()
            await self._stopped.wait()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
