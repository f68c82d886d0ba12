"""A proxy in front of every listener of a cluster, which can cut the way from any node to any other, one way or both.

It knows who connects from the client id in the first request: nodes call themselves `node-1`, everybody else is a
client. What is cut is not refused but swallowed, as a broken network does it; healing ends the swallowed connections.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading

_HEADER = struct.Struct(">ihhih")  # length, api key, version, correlation id, length of the client id
CLIENT = 0


class Links:
    """All proxies, on a thread and a loop of their own. Nodes are numbered; 0 is any client."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._cut: set[tuple[int, int]] = set()
        self._pipes: set[_Pipe] = set()
        self._servers: list[asyncio.Server] = []
        self._thread = threading.Thread(target=self._run, name="links", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def add(self, node: int, port: int) -> int:
        """A new port that leads to the node's `port`."""

        async def listen() -> int:
            async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                pipe = _Pipe(self, node, port)
                self._pipes.add(pipe)
                try:
                    with contextlib.suppress(asyncio.CancelledError):  # everything ends
                        await pipe.run(reader, writer)
                finally:
                    self._pipes.discard(pipe)

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self._servers.append(server)
            bound: int = server.sockets[0].getsockname()[1]
            return bound

        return asyncio.run_coroutine_threadsafe(listen(), self._loop).result(10)

    def cut(self, *ways: tuple[int, int]) -> None:
        """Swallow what goes from the first to the second."""
        self._loop.call_soon_threadsafe(self._cut.update, ways)

    def heal(self) -> None:
        def do() -> None:
            self._cut.clear()
            for pipe in tuple(self._pipes):
                if pipe.has_swallowed:
                    pipe.close()

        self._loop.call_soon_threadsafe(do)

    def is_cut(self, source: int, target: int) -> bool:
        return (source, target) in self._cut

    def close(self) -> None:
        async def end() -> None:
            for server in self._servers:
                server.close()
            for pipe in tuple(self._pipes):
                pipe.close()
            tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class _Pipe:
    """One connection, both ways."""

    def __init__(self, links: Links, target: int, port: int) -> None:
        self._links = links
        self._target = target
        self._port = port
        self._source = CLIENT
        self._writers: list[asyncio.StreamWriter] = []
        self.has_swallowed = False

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.append(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            head = await reader.readexactly(_HEADER.size)
            size = max(0, _HEADER.unpack(head)[4])
            name = await reader.readexactly(size)
            if name.startswith(b"node-"):
                self._source = int(name[5:])
            there_reader, there_writer = await asyncio.open_connection("127.0.0.1", self._port)
            self._writers.append(there_writer)
            if self._passes(self._source, self._target):
                there_writer.write(head + name)
            await asyncio.gather(
                self._copy(reader, there_writer, self._source, self._target),
                self._copy(there_reader, writer, self._target, self._source),
            )
        self.close()

    def _passes(self, source: int, target: int) -> bool:
        if self._links.is_cut(source, target):
            self.has_swallowed = True
        return not self.has_swallowed

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, source: int, target: int) -> None:
        while data := await reader.read(1 << 16):
            if self._passes(source, target):
                writer.write(data)
                await writer.drain()
        if not self.has_swallowed:
            self.close()

    def close(self) -> None:
        for writer in self._writers:
            with contextlib.suppress(RuntimeError):
                writer.close()
