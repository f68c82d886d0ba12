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
from moldau.toolkit import (
    App,
    Avro,
    FromKey,
    HandlerFailed,
    Limits,
    Message,
    Producer,
    Registry,
    Retry,
    TestApp,
)
from moldau.toolkit.reading import read_topic
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


@pytest.mark.timeout(120)
@pytest.mark.parametrize("session_ms", [1_000, 60_000])
def test_a_broker_that_is_away_for_longer_than_anything_waits(tmp_path: Path, session_ms: int) -> None:
    """An hour, in small: longer than the producer's patience and every retry would take, and longer than a session.

    Results and dead letters that cannot be sent are no failures of their records: these wait.
    """
    data = str(tmp_path / "data")
    (port,) = free_ports(1)
    app = App(
        "reader",
        bootstrap_servers=f"127.0.0.1:{port}",
        auto_offset_reset="earliest",
        commit_every="50ms",
        consumer={"session.timeout.ms": session_ms, "heartbeat.interval.ms": 300},
        producer={"message.timeout.ms": 300, "linger.ms": 0},
    )
    seen: list[int] = []
    lost: list[Any] = []
    app.on_lost(lost.append)
    is_away = asyncio.Event()

    @app.handler("numbers", workers=16, order="none", retry=Retry(now=1, backoff="1ms"), dead_letter=True, to="results")
    async def handle(number: int) -> int:
        seen.append(number)
        if number >= 10:
            await is_away.wait()
        if number == 12:
            raise ValueError("no good")
        return number

    async def main() -> None:
        settings = {"group.min.session.timeout.ms": "100"}
        broker = await asyncio.to_thread(Broker(settings, data_dir=data, port=port).start)
        await asyncio.to_thread(make_topic, app.bootstrap_servers, "numbers", 1)
        await asyncio.to_thread(make_topic, app.bootstrap_servers, "results", 1)
        outside = Producer(app.bootstrap_servers)
        await app.start()
        for number in range(15):
            await outside.send("numbers", number)
        await until(lambda: set(seen) == set(range(15)))
        await asyncio.to_thread(broker.stop)
        failed_before = app.producer.counters.failed
        is_away.set()
        # Results were given up by the client and are tried on; or the session is over, and the client says so.
        await until(lambda: lost or app.producer.counters.failed >= failed_before + 20)
        if session_ms > 50_000:
            assert not lost
            assert app.describe()["handlers"][0]["failed"] == 2, "but for the one that failed, and was tried again"
        assert app.failure is None
        broker = await asyncio.to_thread(Broker(settings, data_dir=data, port=port).start)
        await asyncio.to_thread(lambda: outside.send("numbers", 15).result(40))
        await until(lambda: 15 in seen)
        config = {"bootstrap.servers": app.bootstrap_servers}

        async def results() -> set[int]:
            found = await asyncio.to_thread(lambda: list(read_topic(config, "results")))
            return {int.from_bytes(message.value() or b"", "big") for message in found}

        while await results() != set(range(16)) - {12}:
            await asyncio.sleep(0.05)
        letters = await asyncio.to_thread(lambda: list(read_topic(config, "numbers-dlt")))
        assert {message.value() for message in letters} == {(12).to_bytes(8, "big")}, "only what failed is dead"
        await app.stop()
        await asyncio.to_thread(outside.close)
        await asyncio.to_thread(broker.stop)

    asyncio.run(main())


@pytest.mark.timeout(120)
def test_a_topic_that_vanishes_and_comes_back(bootstrap: str, fresh: Fresh, caplog: pytest.LogCaptureFixture) -> None:
    """The app goes on with its other topics, says so, and reads the new one from its start, `latest` or not."""
    topic, other, group = fresh("numbers"), fresh("other"), fresh("group")
    app = App(
        group,
        bootstrap_servers=bootstrap,
        commit_every="20ms",
        consumer={"topic.metadata.refresh.interval.ms": 300, "allow.auto.create.topics": False},
    )
    seen: list[tuple[str, int]] = []

    @app.handler(topic, other)
    async def handle(number: int, message: Message) -> None:
        seen.append((message.topic, number))

    async def main() -> None:
        admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
        for name in (topic, other):
            await asyncio.to_thread(make_topic, bootstrap, name, 1)
        await app.start()
        await until(lambda: len(app.groups[0].assignment) == 2)
        await app.send(topic, 1)
        await app.send(other, 2)
        await until(lambda: sorted(seen) == sorted([(topic, 1), (other, 2)]))
        for future in admin.delete_topics([topic]).values():
            await asyncio.to_thread(future.result, 20)
        await until(lambda: app.groups[0].assignment == [(other, 0)])
        await app.send(other, 3)
        await until(lambda: (other, 3) in seen)
        await asyncio.to_thread(make_topic, bootstrap, topic, 1)
        outside = Producer(bootstrap)
        for number in (4, 5, 6):
            await asyncio.to_thread(lambda n: outside.send(topic, n).result(40), number)
        await asyncio.to_thread(outside.close)
        await until(lambda: {(topic, 4), (topic, 5), (topic, 6)} <= set(seen))
        await app.stop()
        assert app.failure is None
        assert seen.count((topic, 4)) == 1

    with caplog.at_level(logging.WARNING):
        asyncio.run(main())


@pytest.mark.timeout(400)
@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range"])
def test_a_storm_of_rebalances(bootstrap: str, fresh: Fresh, strategy: str) -> None:
    """Members come and go without a pause while records come: none is lost, no key is at work twice at once."""
    topic, group = fresh("numbers"), fresh("group")
    make_topic(bootstrap, topic, 6)
    done: dict[str, list[int]] = {}
    working: set[str] = set()

    def member() -> App:
        app = App(
            group,
            bootstrap_servers=bootstrap,
            auto_offset_reset="earliest",
            commit_every="20ms",
            revoke_within="20s",
            consumer={"partition.assignment.strategy": strategy, "heartbeat.interval.ms": 100},
        )

        @app.handler(topic, workers=8)
        async def handle(number: int, key: Annotated[str, FromKey()]) -> None:
            assert key not in working
            working.add(key)
            await asyncio.sleep(0.002)
            working.discard(key)
            done.setdefault(key, []).append(number)

        return app

    async def main() -> None:
        keys = [f"k{number}" for number in range(30)]
        steady = member()
        await steady.start()
        count = 0
        stop = asyncio.Event()

        async def send() -> None:
            nonlocal count
            while not stop.is_set():
                for key in keys:
                    steady.send(topic, count, key=key)
                count += 1
                await asyncio.sleep(0.02)

        async def come_and_go() -> None:
            for _ in range(3):
                app = member()
                await app.start()
                group = app.groups[0]
                await until(lambda group=group: group.assignment, 150)  # type: ignore[misc]  # bound now, not later
                await app.stop()
                assert app.failure is None

        sending = asyncio.create_task(send())
        await asyncio.gather(come_and_go(), come_and_go())
        stop.set()
        await sending
        await until(
            lambda: len(done) == 30 and all(set(numbers) == set(range(count)) for numbers in done.values()), 150
        )
        await steady.stop()
        for numbers in done.values():
            assert numbers == list(range(count)), "in order, and once: everybody left in peace"

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
