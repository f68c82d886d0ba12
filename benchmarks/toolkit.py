"""The toolkit beside plain confluent-kafka, aiokafka and FastStream, on one broker and in one run."""

import asyncio
import secrets
import statistics
import time
from collections.abc import Callable

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from benchmarks.broker import QUIET, Server, moldau
from benchmarks.rows import Row
from moldau.net import new_event_loop
from moldau.toolkit import App

RECORDS = 200_000
SLOW_RECORDS = 6_400  # two seconds: what the first moment costs is not what is measured
PARTITIONS = 4
ROUNDS = 3


def fill(server: Server, topic: str, records: int) -> None:
    admin = AdminClient({**QUIET, "bootstrap.servers": server.bootstrap_servers})
    admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(30)
    producer = Producer({**QUIET, "bootstrap.servers": server.bootstrap_servers, "linger.ms": 20})
    for number in range(records):
        while True:
            try:
                producer.produce(topic, bytes(100), str(number % 1_000).encode())
                break
            except BufferError:
                producer.poll(0.1)
    producer.flush()


def group() -> str:
    return f"bench-{secrets.token_hex(4)}"


def per_second(records: int, first: float, last: float) -> float:
    """From the first record to the last: joining a group is not what is measured."""
    return (records - 1) / (last - first)


def plain(server: Server, topic: str) -> float:
    """The loop people write: poll, look for an error, handle, commit now and then."""
    settings = {"bootstrap.servers": server.bootstrap_servers, "group.id": group(), "auto.offset.reset": "earliest"}
    consumer = Consumer({**QUIET, **settings, "enable.auto.commit": True})
    consumer.subscribe([topic])
    seen, first = 0, 0.0
    while seen < RECORDS:
        message = consumer.poll(1.0)
        if message is None or message.error() is not None:
            continue
        if not seen:
            first = time.perf_counter()
        noop(message.value() or b"")
        seen += 1
    last = time.perf_counter()
    consumer.close()
    return per_second(RECORDS, first, last)


def noop(value: bytes) -> None:
    """The handler of the plain loop."""


def ours(server: Server, topic: str) -> float:
    app = App(group(), bootstrap_servers=server.bootstrap_servers, auto_offset_reset="earliest")
    seen, first, last = 0, 0.0, 0.0

    @app.handler(topic, workers=32, order="key")
    async def handle(value: bytes) -> None:
        nonlocal seen, first, last
        if not seen:
            first = time.perf_counter()
        seen += 1
        if seen == RECORDS:
            last = time.perf_counter()
            app.ask_to_stop()

    _run(app)
    return per_second(RECORDS, first, last)


def _run(app: App) -> None:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(app.serve(signals=False))


def ours_slow(server: Server, topic: str, workers: int, records: int) -> float:
    app = App(group(), bootstrap_servers=server.bootstrap_servers, auto_offset_reset="earliest", stop_within="0s")
    seen, first, last = 0, 0.0, 0.0

    @app.handler(topic, workers=workers, order="key")
    async def handle(value: bytes) -> None:
        nonlocal seen, first, last
        if not first:
            first = time.perf_counter()
        await asyncio.sleep(0.01)
        seen += 1
        if seen == records:
            last = time.perf_counter()
            app.ask_to_stop()

    _run(app)
    return records / (last - first)


def aiokafka(server: Server, topic: str) -> float:
    from aiokafka import AIOKafkaConsumer

    async def work() -> float:
        consumer = AIOKafkaConsumer(
            topic, bootstrap_servers=server.bootstrap_servers, group_id=group(), auto_offset_reset="earliest"
        )
        await consumer.start()
        seen, first = 0, 0.0
        try:
            async for message in consumer:
                if not seen:
                    first = time.perf_counter()
                noop(message.value)
                seen += 1
                if seen == RECORDS:
                    break
            return per_second(RECORDS, first, time.perf_counter())
        finally:
            await consumer.stop()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work())


def faststream(server: Server, topic: str) -> float:
    import logging

    from faststream.confluent import KafkaBroker

    async def work() -> float:
        broker = KafkaBroker(server.bootstrap_servers, logger=None, log_level=logging.CRITICAL)
        done = asyncio.Event()
        records = RECORDS // 10  # it is slower
        seen, first, last = 0, 0.0, 0.0

        @broker.subscriber(topic, group_id=group(), auto_offset_reset="earliest")  # type: ignore[untyped-decorator,unused-ignore]  # theirs
        async def handle(value: bytes) -> None:
            nonlocal seen, first, last
            if not seen:
                first = time.perf_counter()
            seen += 1
            if seen == records:
                last = time.perf_counter()
                done.set()

        async with broker:
            await broker.start()
            await done.wait()
        return per_second(records, first, last)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(work())


def rows() -> list[Row]:
    measured: dict[str, list[float]] = {}
    with moldau() as server:
        fill(server, "noop", RECORDS)
        fill(server, "slow", SLOW_RECORDS)
        runs: dict[str, Callable[[Server, str], float]] = {
            "plain": plain,
            "ours": ours,
            "aiokafka": aiokafka,
            "faststream": faststream,
        }
        for _ in range(ROUNDS):
            for name, run in runs.items():
                measured.setdefault(name, []).append(run(server, "noop"))
        many = ours_slow(server, "slow", 32, SLOW_RECORDS)
        one = ours_slow(server, "slow", 1, 300)
    found = {name: statistics.median(values) for name, values in measured.items()}
    peers = {
        "confluent-kafka, plain loop": found["plain"],
        "aiokafka": found["aiokafka"],
        "FastStream (confluent)": found["faststream"],
    }
    return [
        Row(
            'no-op handler, order="key", 32 workers',
            found["ours"],
            "records/s",
            peers,
            "0.5x the plain loop, 5x FastStream",
        ),
        Row("10 ms handler, 4 partitions, 32 workers", many, "records/s", {"one worker": one}, "25x one worker"),
    ]
