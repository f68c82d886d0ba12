"""A proxy between client and broker that loses answers: the client cannot know whether its request was done.

It knows frames, and spares everything but the API keys it is told to harm. Each harmed request meets one of: the broker
gets half of it; the broker does it and the answer is lost; the broker does it and half of the answer arrives. Then the
connection is gone, as after a cut cable. Choices come from one seeded source.
"""

import asyncio
import contextlib
import random
import struct
import threading
from collections import Counter, deque
from enum import Enum
from typing import Self

PRODUCE = 0


class Fate(Enum):
    PASS = "pass"
    HALF_A_REQUEST = "half a request"
    NO_RESPONSE = "no response"
    HALF_A_RESPONSE = "half a response"


_HARM = (Fate.HALF_A_REQUEST, Fate.NO_RESPONSE, Fate.HALF_A_RESPONSE)


class DroppingProxy:
    """Listens at once, so that its port can be advertised; `target_port` may be set, and changed, later."""

    def __init__(self, seed: int, *, rate: float, api_keys: frozenset[int] = frozenset({PRODUCE})) -> None:
        self.target_port = 0
        self.rate = rate
        self.fates: Counter[Fate] = Counter()
        self._api_keys = api_keys
        self._random = random.Random(seed)
        self._started = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()), name="dropping-proxy", daemon=True)
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._started.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()

    @property
    def harmed(self) -> int:
        return sum(self.fates[fate] for fate in _HARM)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        tasks: set[asyncio.Task[None]] = set()

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.create_task(self._carry(reader, writer))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        self._started.set()
        await self._stop.wait()
        server.close()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await server.wait_closed()
        await asyncio.sleep(0)  # aborted transports close their sockets in the next turn of the loop

    async def _carry(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        """One connection, until either side or fate ends it."""
        with contextlib.ExitStack() as closing:
            closing.callback(to_client.transport.abort)
            try:
                broker, to_broker = await asyncio.open_connection("127.0.0.1", self.target_port)
            except OSError:
                return
            closing.callback(to_broker.transport.abort)
            fates: deque[Fate] = deque()
            both = (
                asyncio.create_task(self._requests(client, to_broker, fates)),
                asyncio.create_task(self._responses(broker, to_client, fates)),
            )
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in both:
                    task.cancel()
                await asyncio.gather(*both, return_exceptions=True)

    async def _requests(
        self, client: asyncio.StreamReader, to_broker: asyncio.StreamWriter, fates: deque[Fate]
    ) -> None:
        while True:
            frame = await _read_frame(client)
            (api_key,) = struct.unpack_from(">h", frame, 4)
            fate = Fate.PASS
            if api_key in self._api_keys and self._random.random() < self.rate:
                fate = self._random.choice(_HARM)
            self.fates[fate] += 1
            if fate is Fate.HALF_A_REQUEST:
                to_broker.write(frame[: self._random.randrange(4, len(frame))])
                await to_broker.drain()
                to_broker.close()
                await to_broker.wait_closed()
                return
            fates.append(fate)
            to_broker.write(frame)
            await to_broker.drain()

    async def _responses(
        self, broker: asyncio.StreamReader, to_client: asyncio.StreamWriter, fates: deque[Fate]
    ) -> None:
        while True:
            frame = await _read_frame(broker)
            fate = fates.popleft()
            if fate is Fate.NO_RESPONSE:
                return
            if fate is Fate.HALF_A_RESPONSE:
                to_client.write(frame[: self._random.randrange(1, len(frame))])
                await to_client.drain()
                return
            to_client.write(frame)
            await to_client.drain()


async def _read_frame(reader: asyncio.StreamReader) -> bytes:
    """With its length in front; the end of the stream ends the task."""
    head = await reader.readexactly(4)
    return head + await reader.readexactly(struct.unpack(">i", head)[0])
