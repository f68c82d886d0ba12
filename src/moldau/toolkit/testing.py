"""`TestApp`: the app itself on a broker inside the test, with time that moves only when the test says so.

    async with TestApp(app) as test:
        await test.send("orders", Order("o-1", 42))
        await test.idle()                       # until everything sent is handled
        assert test.dead_letters("orders") == []
        await test.advance("10s")               # retries and delays of these ten seconds happen now

Nothing is replaced: the broker, the clients and the wire are the real ones. Give `bootstrap_servers` to test on a
cluster of your own.
"""

from __future__ import annotations

import asyncio
import secrets
import time as real_time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from moldau.records.client_headers import headers_of
from moldau.toolkit import letters
from moldau.toolkit.codec import Codec
from moldau.toolkit.codecs import codec_for
from moldau.toolkit.durations import Duration, milliseconds
from moldau.toolkit.errors import SetupError
from moldau.toolkit.sending import Receipt
from moldau.toolkit.timekeeping import VirtualTime

if TYPE_CHECKING:
    from moldau.testing import Broker
    from moldau.toolkit.app import App
    from moldau.toolkit.delays.relay import DelayRelay

_PATIENCE_S = 50.0
# A broker answers a connection in order: asking where a topic ends waits behind the fetch that waits for records.
_QUICK = {"fetch.wait.max.ms": 10}


@dataclass(slots=True, frozen=True)
class Seen:
    """A record as it lies in a topic."""

    topic: str
    partition: int
    offset: int
    key: bytes | None
    value: Any  # decoded, if the topic was declared; otherwise bytes
    headers: tuple[letters.Header, ...]

    def header(self, name: str) -> bytes | None:
        return letters.find(self.headers, name)

    @property
    def error(self) -> str | None:
        """Of a dead letter: what the handler raised."""
        found = self.header("kafka_dlt-exception-message")
        return found.decode(errors="replace") if found is not None else None


class TestApp:
    """Use it with `async with`."""

    __test__ = False  # its name is not that of a test

    def __init__(
        self,
        app: App,
        *,
        bootstrap_servers: str | None = None,
        partitions: int = 1,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Topics that are not there yet are made with so many partitions; `settings` are the test broker's."""
        self.app = app
        self.time = VirtualTime()
        self._partitions = partitions
        self._settings = settings
        self._own_bootstrap = bootstrap_servers
        self._broker: Broker | None = None
        self._before: tuple[str, Any, Any, dict[str, Any]] | None = None
        self._relay: DelayRelay | None = None

    @property
    def bootstrap_servers(self) -> str:
        """Where the broker of this test listens."""
        return self.app.bootstrap_servers

    async def __aenter__(self) -> Self:
        if self._own_bootstrap is None:
            from moldau.testing import Broker

            self._broker = await asyncio.to_thread(Broker(self._settings).start)
        app = self.app
        self._before = (app.bootstrap_servers, app.time, app.reset, app.consumer_defaults)
        app.bootstrap_servers = self._own_bootstrap or (self._broker.bootstrap_servers if self._broker else "")
        app.time, app.consumer_defaults = self.time, app.consumer_defaults | _QUICK
        app.reset = "earliest"  # what the test sends before the group is there belongs to the test
        try:
            await asyncio.to_thread(self._make_topics)
            await app.start()
            app.delays.partitions = 1  # a thread of the relay is enough
            await self._wait(lambda: all(group.assignment for group in app.groups), "the app got no partitions")
        except BaseException:
            await self.__aexit__(None, None, None)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        failure = self.app.failure
        try:
            await self.app.stop()
            if self._relay is not None:
                await asyncio.to_thread(self._relay.stop)
        finally:
            if self._before is not None:
                app = self.app
                app.bootstrap_servers, app.time, app.reset, app.consumer_defaults = self._before
            if self._broker is not None:
                await asyncio.to_thread(self._broker.stop)
        if failure is not None and kind is None:
            raise failure

    # Doing.

    async def send(self, topic: str, value: Any = None, **more: Any) -> Receipt:
        """Send, and wait for the acknowledgement."""
        return await self.app.send(topic, value, **more)

    async def idle(self) -> None:
        """Until everything sent was handled and everything handled was committed, but for what waits for a time."""
        app = self.app
        deadline = real_time.monotonic() + _PATIENCE_S
        quiet = 0
        while quiet < 2:  # an outcome may have sent something in between
            if app.failure is not None:
                raise app.failure
            if real_time.monotonic() > deadline:
                raise TimeoutError(f"the app is not idle after {_PATIENCE_S:g} s: {app.describe()['handlers']}")
            is_idle = not app.producer.pending
            is_idle = await self._delays_are_idle() and is_idle
            for group in app.groups:
                is_idle = await group.is_idle() and is_idle
            quiet = quiet + 1 if is_idle else 0
            if not is_idle:
                await asyncio.sleep(0.005)
        await app.commit()

    async def advance(self, duration: Duration) -> None:
        """Let time pass, in steps as they fall due, with everything that happens in it."""
        await self.idle()
        end = self.time.monotonic_ms() + milliseconds(duration)
        while self.time.monotonic_ms() < end:
            now = self.time.monotonic_ms()
            due = self._next_ms(now)
            step = end - now if due is None else min(max(due - now, 0.0), end - now)
            self.time.advance(step)
            await asyncio.sleep(0)
            await self.idle()

    async def _delays_are_idle(self) -> bool:
        """A relay for what is sent later, from the first time on that something is."""
        from moldau.toolkit.delays.relay import DelayRelay

        delays = self.app.delays
        if not delays.was_used:
            return True
        if self._relay is None:
            self._relay = DelayRelay(
                self.bootstrap_servers, topic=delays.topics.commands, wall_ms=self.time.wall_ms, rest_s=0.01
            )
            self._relay.start()
        delivered = self._relay.counts().delivered
        return await asyncio.to_thread(self._relay.until_idle, 1.0) and self._relay.counts().delivered == delivered

    def _next_ms(self, now: float) -> float | None:
        """When something happens next, of what waits for a time."""
        due = self.time.next_ms()
        later = self._relay.next_due_ms() if self._relay is not None else None
        if later is None:
            return due
        at = now + max(0, later - self.time.wall_ms())
        return at if due is None else min(due, at)

    # Looking.

    async def records(self, topic: str) -> list[Seen]:
        """Everything in a topic now; nothing, if there is no such topic."""
        await asyncio.to_thread(self.app.producer.flush)
        return await asyncio.to_thread(self._read, topic)

    async def sent(self, topic: str) -> list[Any]:
        """The values in a topic now."""
        return [seen.value for seen in await self.records(topic)]

    async def retried(self, topic: str) -> list[Seen]:
        """What went to the retry topics of a topic, level by level."""
        found: list[Seen] = []
        for level in range(self._levels(topic)):
            found += await self.records(letters.retry_topic(topic, level))
        return found

    async def dead_letters(self, topic: str) -> list[Seen]:
        """The dead letters of a topic."""
        return await self.records(letters.dead_letter_topic(topic))

    async def assert_sent(self, topic: str, *values: Any) -> None:
        """AssertionError unless the topic has these values, in this order, and no others."""
        found = await self.sent(topic)
        if found != list(values):
            raise AssertionError(f"{topic} has {found}, and not {list(values)}")

    async def assert_retried(self, topic: str, count: int) -> None:
        """AssertionError unless so many records of the topic went into its retry topics."""
        found = await self.retried(topic)
        if len(found) != count:
            raise AssertionError(f"{len(found)} records of {topic} were retried, and not {count}: {found}")

    async def assert_dead_lettered(self, topic: str, *errors: str) -> None:
        """Each dead letter's error contains the text in its place."""
        found = [seen.error or "" for seen in await self.dead_letters(topic)]
        if len(found) != len(errors) or not all(part in text for part, text in zip(errors, found, strict=True)):
            raise AssertionError(f"the dead letters of {topic} say {found}, and not {list(errors)}")

    # Inside.

    def _levels(self, topic: str) -> int:
        return max((len(spec.options.retry.later) for spec in self.app.specs if spec.matches(topic)), default=0)

    def _make_topics(self) -> None:
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.bootstrap_servers, "log_level": 0})
        names = {name for spec in self.app.specs for name in spec.topics} | set(self.app.declared)
        missing = names - set(admin.list_topics(timeout=10).topics)
        new = [NewTopic(name, self._partitions, 1) for name in missing]
        for future in admin.create_topics(new).values() if new else ():
            future.result(10)

    def _read(self, topic: str) -> list[Seen]:
        from moldau.toolkit.errors import ToolkitError
        from moldau.toolkit.reading import read_topic

        declared = self.app.declared.get(topic)
        codec = None
        if declared is not None and declared.value is not None:
            codec = codec_for(declared.value, topic, "value", self.app.registry)
        config = {"bootstrap.servers": self.bootstrap_servers, "group.id": f"test-{secrets.token_hex(4)}"}
        try:
            messages = list(read_topic(config, topic))
        except ToolkitError:
            return []
        return sorted((_seen(message, codec) for message in messages), key=lambda seen: (seen.partition, seen.offset))

    async def _wait(self, condition: Any, otherwise: str) -> None:
        deadline = real_time.monotonic() + _PATIENCE_S
        while not condition():
            if self.app.failure is not None:
                raise self.app.failure
            if real_time.monotonic() > deadline:
                raise SetupError(f"{otherwise} within {_PATIENCE_S:g} s")
            await asyncio.sleep(0.01)


def _seen(message: Any, codec: Codec | None) -> Seen:
    headers = headers_of(message)
    value = codec.read(message.value(), headers) if codec is not None else message.value()
    return Seen(message.topic(), message.partition(), message.offset(), message.key(), value, tuple(headers))


__all__ = ["Seen", "TestApp"]
