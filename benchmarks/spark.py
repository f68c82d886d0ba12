"""Spark on topics: our source and sink beside Spark's own Kafka connector, in one session, on one broker, in turns.

Every figure is rows per second of a whole batch query, planning and task start included, the median of some rounds
after one that does not count (JIT, imports). The connector is the newest on Maven (tests/interop/peers/spark).
"""

import itertools
import mmap
import os
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import window

from benchmarks.broker import QUIET, Server, moldau
from benchmarks.rows import Row
from moldau.spark import session
from tests.interop.spark_connector import connector_jars

ROUNDS = int(os.environ.get("SPARK_BENCH_ROUNDS", "5"))
SCALE = float(os.environ.get("SPARK_BENCH_SCALE", "1"))
PARTITIONS = 2
PEER = "Spark's connector"
OURS, THEIRS = "moldau", "kafka"
TARGET = ">= 1.5x"


@dataclass(slots=True, frozen=True)
class Data:
    """A topic full of records of one size and compression."""

    size: int
    codec: str
    count: int

    @property
    def topic(self) -> str:
        return f"bench-{self.size}-{self.codec}"

    @property
    def name(self) -> str:
        shape = "1 KB" if self.size == 1000 else f"{self.size} B"
        return f"{shape}, {self.codec}" if self.codec != "none" else f"{shape}, not compressed"


DATA = [
    Data(size, codec, int(SCALE * count))
    for size, count in ((100, 2_000_000), (1000, 400_000))
    for codec in ("none", "lz4", "zstd")
]


def values(size: int) -> list[bytes]:
    """Some thousand different JSON events of exactly this size: text as compressible as text is."""
    chance = random.Random(1)
    words = ["login", "search", "order", "payment", "logout", "click", "view", "error"]
    found = []
    for number in range(4_000):
        text = f'{{"user":{chance.randrange(10**6)},"event":"{chance.choice(words)}","n":{number},"note":"'
        while len(text) < size:
            text += f"{chance.choice(words)} {chance.randrange(10**4)} "
        found.append((text[: size - 2] + '"}').encode())
    return found


def fill(server: Server, data: Data) -> None:
    make_topic(server, data.topic)
    producer = Producer(
        {
            "bootstrap.servers": server.bootstrap_servers,
            "compression.type": data.codec,
            "linger.ms": 20,
            "batch.size": 1 << 17,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 1 << 20,
            **QUIET,
        }
    )
    events = values(data.size)
    for number in range(data.count):
        while True:
            try:
                producer.produce(data.topic, events[number % len(events)], partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.1)
        if number & 0xFFF == 0:
            producer.poll(0)
    assert producer.flush(120) == 0


def make_topic(server: Server, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, **QUIET})
    for future in admin.create_topics([NewTopic(topic, PARTITIONS, 1)]).values():
        future.result(30)


def delete_topic(server: Server, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, **QUIET})
    for future in admin.delete_topics([topic]).values():
        future.result(30)


@contextmanager
def spark_session() -> Iterator[SparkSession]:
    jars = ",".join(map(str, connector_jars()))
    # An installed package has its bytecode; without, every worker that Spark starts would compile ours again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    spark = session("bench", master="local[2]", config={"spark.jars": jars, "spark.driver.memory": "2g"})
    try:
        yield spark
    finally:
        spark.stop()


def source(spark: SparkSession, server: Server, data: Data, kind: str) -> DataFrame:
    reader = spark.read.format(kind).option("kafka.bootstrap.servers", server.bootstrap_servers)
    return reader.option("subscribe", data.topic).load()


def to_noop(frame: DataFrame) -> None:
    frame.write.format("noop").mode("overwrite").save()


def to_windowed_count(frame: DataFrame) -> None:
    counts = frame.groupBy(window("timestamp", "1 second")).count()
    counts.write.format("noop").mode("overwrite").save()


Work = Callable[[str], AbstractContextManager[Callable[[], None]]]
"""For a kind of connector what is to be measured; what surrounds it is not."""


def compare(name: str, data: Data, work: Work) -> Row:
    """Rounds in turns, so that whatever else the machine does hits both."""
    times: dict[str, list[float]] = {OURS: [], THEIRS: []}
    for turn in range(ROUNDS + 1):
        for kind, taken in times.items():
            with work(kind) as measured:
                started = time.perf_counter()
                measured()
                if turn:
                    taken.append(time.perf_counter() - started)
    rates = {kind: data.count / statistics.median(taken) for kind, taken in times.items()}
    row = Row(f"{name}, {data.name}", rates[OURS], "rows/s", {PEER: rates[THEIRS]}, TARGET)
    print(f"  {row.name}: {rates[OURS]:,.0f} against {rates[THEIRS]:,.0f}", flush=True)
    return row


def reading(spark: SparkSession, server: Server, data: Data, work: Callable[[DataFrame], None]) -> Work:
    return lambda kind: nullcontext(lambda: work(source(spark, server, data, kind)))


def have_memory_ready(size_bytes: int) -> None:
    """A virtual machine gives memory that is free back to its host, and gets it again page by page, which would be most
    of what a copy of some hundred megabytes takes: have it got before."""
    with mmap.mmap(-1, size_bytes) as memory:
        for start in range(0, size_bytes, mmap.PAGESIZE):
            memory[start] = 1


def copying(spark: SparkSession, server: Server, data: Data) -> Work:
    """From topic to topic, source and sink of the same kind.

    Each round has a topic of its own, which is deleted after it: otherwise the system soon looks for memory for the
    gigabytes that were written before, and that is what both would be measured by.
    """
    numbers = itertools.count()

    @contextmanager
    def copy(kind: str) -> Iterator[Callable[[], None]]:
        topic = f"{data.topic}-{kind}-{next(numbers)}"
        make_topic(server, topic)
        frame = source(spark, server, data, kind).select("key", "value", "partition")
        writer = frame.write.format(kind).mode("append").option("kafka.bootstrap.servers", server.bootstrap_servers)
        writer = writer.option("kafka.compression.type", data.codec).option("topic", topic)
        have_memory_ready(2 * data.count * data.size)
        yield writer.save
        delete_topic(server, topic)

    return copy


def rows() -> list[Row]:
    found: list[Row] = []
    with moldau({"log.segment.delete.delay.ms": "0"}) as server, spark_session() as spark:
        for data in DATA:
            fill(server, data)
            found += [
                compare("source to noop", data, reading(spark, server, data, to_noop)),
                compare("source to windowed count", data, reading(spark, server, data, to_windowed_count)),
                compare("topic to topic", data, copying(spark, server, data)),
            ]
            delete_topic(server, data.topic)
    return found
