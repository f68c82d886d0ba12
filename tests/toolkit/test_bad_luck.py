"""Brokers and registries that go away, records that are deleted or too large: nothing is lost, and it is said."""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from moldau.testing import Broker
from moldau.testing.ports import free_ports
from moldau.toolkit import App, Avro, HandlerFailed, Limits, Registry, Retry, TestApp
from tests.toolkit.killing import make_topic
from tests.toolkit.test_codecs import SCHEMA, FakeRegistry, Order, registry, registry_server  # noqa: F401  fixtures
from tests.toolkit.waiting import until

Fresh = Callable[[str], str]


@pytest.mark.timeout(90)
def test_a_broker_that_goes_away_and_comes_back(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    (port,) = free_ports(1)
    app = App("reader", bootstrap_servers=f"127.0.0.1:{port}", auto_offset_reset="earliest", commit_every="50ms")
    seen: list[int] = []

    @app.handler("numbers", workers=4, retry=Retry(now=0, later=["10ms"]), dead_letter=True, to="results")
    async def handle(number: int) -> int:
        seen.append(number)
        if number == 50:
            raise ValueError("its retry must survive the outage")
        return number

    async def main() -> None:
        broker = await asyncio.to_thread(Broker(data_dir=data, port=port).start)
        await asyncio.to_thread(make_topic, app.bootstrap_servers, "numbers", 2)
        await app.start()
        for number in range(50):
            await app.send("numbers", number, key=str(number))
        await until(lambda: len(seen) == 50)
        await asyncio.to_thread(broker.stop)
        deliveries = [app.send("numbers", number, key=str(number)) for number in range(50, 100)]
        await asyncio.sleep(1)
        assert app.failure is None
        broker = await asyncio.to_thread(Broker(data_dir=data, port=port).start)
        for delivery in deliveries:
            await delivery
        await until(lambda: set(seen) == set(range(100)))
        await until(lambda: app.describe()["handlers"][0]["dead"] == 1)
        await app.stop()
        await asyncio.to_thread(broker.stop)

    asyncio.run(main())


def test_what_was_deleted_before_it_was_read(bootstrap: str, fresh: Fresh, caplog: pytest.LogCaptureFixture) -> None:
    topic, group = fresh("numbers"), fresh("group")
    seen: list[int] = []

    def member() -> App:
        app = App(group)

        @app.handler(topic)
        async def handle(number: int) -> None:
            seen.append(number)

        return app

    async def main() -> None:
        app = member()
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            await test.send(topic, 0)
            await test.idle()
        async with TestApp(other := App(fresh("other")), bootstrap_servers=bootstrap):
            for number in range(1, 10):
                await other.send(topic, number)
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        (future,) = admin.delete_records([TopicPartition(topic, 0, 6)]).values()
        await asyncio.to_thread(future.result, 10)
        with caplog.at_level(logging.WARNING):
            async with TestApp(member(), bootstrap_servers=bootstrap) as test:
                await until(lambda: 9 in seen)
                await test.idle()
        assert seen == [0, 6, 7, 8, 9]
        assert "what was not read there is gone" in caplog.text

    asyncio.run(main())


def test_a_topic_that_is_made_later_is_read_from_its_start(bootstrap: str, fresh: Fresh) -> None:
    topic = fresh("numbers")
    app = App(
        fresh("group"),
        bootstrap_servers=bootstrap,
        consumer={"topic.metadata.refresh.interval.ms": 300, "allow.auto.create.topics": False},
    )
    seen: list[int] = []

    @app.handler(topic)
    async def handle(number: int) -> None:
        seen.append(number)

    async def main() -> None:
        await app.start()
        await asyncio.sleep(0.5)
        await asyncio.to_thread(make_topic, bootstrap, topic, 2)
        for number in range(5):
            await app.send(topic, number)
        await until(lambda: sorted(seen) == [0, 1, 2, 3, 4])
        await app.stop()

    asyncio.run(main())


def test_a_dead_letter_that_is_nearly_too_large_loses_its_stack_trace_only(bootstrap: str, fresh: Fresh) -> None:
    topic = fresh("blobs")
    app = App(fresh("group"), producer={"message.max.bytes": 2_000_000})

    @app.handler(topic, retry=Retry(now=0), dead_letter=True)
    async def handle(blob: bytes) -> None:
        raise ValueError("x" * 5_000)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            blob = bytes(1_048_588 - 2_600)  # a topic takes 1,048,588 bytes
            await test.send(topic, blob)
            await test.idle()
            (letter,) = await test.dead_letters(topic)
            assert letter.value == blob
            assert letter.header("kafka_dlt-original-topic") == topic.encode()
            assert letter.header("kafka_dlt-exception-stacktrace") is None

    asyncio.run(main())


def test_a_dead_letter_that_is_too_large_in_any_case_stops_the_app(bootstrap: str, fresh: Fresh) -> None:
    topic = fresh("blobs")
    app = App(fresh("group"), producer={"message.max.bytes": 2_000_000})

    @app.handler(topic, retry=Retry(now=0), dead_letter=True)
    async def handle(blob: bytes) -> None:
        raise ValueError

    async def main() -> None:
        with pytest.raises(HandlerFailed, match=r"max\.message\.bytes"):  # noqa: PT012  it is raised at the end
            async with TestApp(app, bootstrap_servers=bootstrap) as test:
                await test.send(topic, bytes(1_048_588 - 200))
                await until(lambda: app.failure is not None)

    asyncio.run(main())


def test_a_registry_that_is_away_is_waited_for(
    bootstrap: str,
    fresh: Fresh,
    registry: Registry,  # noqa: F811  the fixture
    registry_server: FakeRegistry,  # noqa: F811  the fixture
) -> None:
    topic = fresh("orders")
    writer, reader = App(fresh("writer"), registry=registry), App(fresh("reader"), registry=registry.url)
    writer.topic(topic, Annotated[Order, Avro(SCHEMA)])
    seen: list[Order] = []

    @reader.handler(topic, dead_letter=True)
    async def handle(order: Annotated[Order, Avro(SCHEMA)]) -> None:
        seen.append(order)

    async def main() -> None:
        async with TestApp(writer, bootstrap_servers=bootstrap) as test:
            await test.send(topic, Order("x", 1, []))
        registry_server.is_away = True
        async with TestApp(reader, bootstrap_servers=bootstrap) as test:
            await until(lambda: reader.describe()["handlers"][0]["running"])
            assert not seen
            registry_server.is_away = False
            await until(lambda: seen == [Order("x", 1, [])])
            await test.assert_dead_lettered(topic)

    asyncio.run(main())


def test_memory_is_bounded_whatever_waits(bootstrap: str, fresh: Fresh) -> None:
    """Limits hold for what waits behind a slow record, and for a slow loop; everything is handled in the end."""
    topic = fresh("numbers")
    limits = Limits(entries=200, bytes=1_000_000, entries_per_partition=150)
    seen: list[int] = []
    most = 0
    gate = asyncio.Event()

    def held() -> int:
        return app.groups[0].handlers[0].main.scheduler.held

    class Watching:
        def on_consume(self, messages: Sequence[Any]) -> None:
            nonlocal most
            most = max(most, held() + len(messages))
            time.sleep(0.005)  # the consumer's thread is quicker than the loop

    app = App(fresh("group"), interceptors=[Watching()])

    @app.handler(topic, workers=2, order="partition", limits=limits)
    async def handle(number: int) -> None:
        await gate.wait()
        seen.append(number)

    async def main() -> None:
        async with TestApp(app, bootstrap_servers=bootstrap) as test:
            for number in range(9_000):
                app.send(topic, number)
            await until(lambda: held() >= 150)
            await until(lambda: app.groups[0].is_holding)
            gate.set()
            await until(lambda: len(seen) == 9_000)
            await test.idle()
        assert seen == list(range(9_000))
        assert 150 <= most < 2 * 150

    asyncio.run(main())
