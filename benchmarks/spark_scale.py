"""How Spark scales: `python -m benchmarks.spark_scale lookup|sinks|partitions|rows`. For a quiet machine, and by hand.

`lookup`: seconds of a small batch that looks up a topic of 300,000 keys (`as_table`), and of one that does not.
`sinks`: one sink and three, with and without `share_reads`, and the Python processes and their memory. `partitions`: a
topic of 1,000 partitions, beside the jar. `rows`: a batch of ten million rows, and the memory of what reads it.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyspark.sql.streaming.query import StreamingQuery

from benchmarks.broker import QUIET, Server, moldau
from benchmarks.spark import OURS, THEIRS, spark_session
from benchmarks.spark_soak import spark_memory
from moldau.spark import session
from moldau.spark.pipelines import loads, start
from moldau.spark.pipelines.runner import Running

KEYS = 300_000
SMALL_BATCHES = 12
CHANGES = 20
RECORDS = 200_000
SINK_RECORDS = 1_000_000  # fewer, and the start of a query is most of what is measured
ROUNDS = 3
ROWS = 10_000_000
MANY = 1_000
LOOKUP = """
name: {name}
kafka: {{bootstrap.servers: "{bootstrap}"}}
checkpoint: {folder}/state-{name}
sources:
  orders: {{topic: orders-{name}, parse: {{format: json, on_error: drop, schema: "id bigint, who bigint"}}}}
  people: {{topic: people, as_table: true, parse: {{format: json, on_error: drop, schema: "who bigint, name string"}}}}
steps:
  - {{name: named, from: orders, {step}}}
sinks:
  - {{topic: named-{name}, from: named}}
"""
JOIN = "join: people, on: who, how: left"
PLAIN = "add: {name: '1'}"
SINKS = """
name: sinks-{name}
kafka: {{bootstrap.servers: "{bootstrap}"}}
checkpoint: {folder}/state-{name}
share_reads: {shared}
sources:
  orders: {{topic: orders, parse: {{format: json, on_error: drop, schema: "id bigint, who bigint"}}}}
sinks:
"""


def fill(server: Server, topic: str, count: int, value: Callable[[int], bytes], partitions: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": server.bootstrap_servers, **QUIET})
    for future in admin.create_topics([NewTopic(topic, partitions, 1)]).values():
        future.result(60)
    more(server, topic, range(count), value)


def more(server: Server, topic: str, numbers: range, value: Callable[[int], bytes]) -> None:
    settings = {"linger.ms": 20, "compression.type": "lz4", "queue.buffering.max.messages": 1_000_000}
    producer = Producer({"bootstrap.servers": server.bootstrap_servers, **settings, **QUIET})
    for number in numbers:
        while True:
            try:
                producer.produce(topic, value(number), str(number))
                break
            except BufferError:
                producer.poll(0.1)
    assert producer.flush(120) == 0


def lookup(server: Server, folder: Path) -> None:
    fill(server, "people", KEYS, lambda n: json.dumps({"who": n, "name": f"name {n}"}).encode())
    order = lambda n: json.dumps({"id": n, "who": n * 7_919 % KEYS}).encode()  # noqa: E731
    spark = session("bench", master="local[2]", config={"spark.sql.shuffle.partitions": "2"})
    with ExitStack() as stack:
        both: dict[str, Running] = {}
        for name, step in (("plain", PLAIN), ("lookup", JOIN)):
            fill(server, f"orders-{name}", 10, order)
            text = LOOKUP.format(bootstrap=server.bootstrap_servers, folder=folder, name=name, step=step)
            both[name] = stack.enter_context(start(loads(text, "lookup.yaml", folder=str(folder)), spark))
            both[name].process_available()
        for batch in range(1, 3 * SMALL_BATCHES + 1):
            if batch > 2 * SMALL_BATCHES:
                changed = range(batch * CHANGES, (batch + 1) * CHANGES)
                more(server, "people", changed, lambda n: b'{"who": %d, "name": "new"}' % n)
            for name, running in both.items():
                (query,) = running.queries.values()
                more(server, f"orders-{name}", range(10 * batch, 10 * batch + 10), order)
                while len(_taken(query)) <= batch:  # the newest offsets are asked for now and then
                    running.process_available()
        taken = {name: _taken(next(iter(running.queries.values()))) for name, running in both.items()}
    print(f"lookup of {KEYS:,} keys: first batch {taken['lookup'][0]:.2f} s; the next {SMALL_BATCHES} warm up")
    for label, first in (
        ("small batches", 1 + SMALL_BATCHES),
        (f"with {CHANGES} changes of the table before each", 1 + 2 * SMALL_BATCHES),
    ):
        parts = {name: each[first : first + SMALL_BATCHES] for name, each in taken.items()}
        told = (f"{name} {statistics.median(part):.2f} s (at most {max(part):.2f} s)" for name, part in parts.items())
        print(f"{label}: addBatch, medians of {SMALL_BATCHES}: {', '.join(told)}", flush=True)


def _taken(query: StreamingQuery) -> list[float]:
    """Seconds of each batch that had rows."""
    return [each["durationMs"]["addBatch"] / 1000 for each in query.recentProgress if each["numInputRows"]]


def sinks(server: Server, folder: Path) -> None:
    fill(server, "orders", SINK_RECORDS, lambda n: json.dumps({"id": n, "who": n % 1000}).encode())
    config = {"spark.sql.shuffle.partitions": "2", "spark.driver.memory": "1g"}
    spark = session("bench", master="local[2]", config=config)
    kinds = {"topic": ("topic",), "3 topics": ("topic",) * 3, "2 topics, Delta": ("topic", "delta", "topic")}
    for round_number in range(1 + ROUNDS):  # the first warms up
        for label, shared in (
            ("topic", "false"),
            ("3 topics", "false"),
            ("3 topics", "true"),
            ("2 topics, Delta", "false"),
            ("2 topics, Delta", "true"),
        ):
            name = f"{round_number}-{label.replace(', ', '-').replace(' ', '-')}-{shared}"
            text = SINKS.format(bootstrap=server.bootstrap_servers, folder=folder, name=name, shared=shared)
            for number, kind in enumerate(kinds[label]):
                place = f"out-{name}-{number}" if kind == "topic" else f"{folder}/table-{name}"
                text += f"  - {{{kind}: {place}, name: s{number}}}\n"
            began = time.perf_counter()
            with start(loads(text, "sinks.yaml", folder=str(folder)), spark, once=True) as running, watched() as found:
                running.wait()
                seconds = time.perf_counter() - began
                progress = [each for query in running.queries.values() for each in query.recentProgress]
            if round_number:
                inner = max(each["durationMs"].get("addBatch", 0) for each in progress) / 1000
                java, python, processes = most(found)
                told = f"{processes} Python processes, {python / 1024:,.0f} MB, Java {java / 1024:,.0f} MB"
                print(f"{label}, share_reads {shared}: {seconds:.1f} s (addBatch {inner:.1f} s), {told}", flush=True)


def partitions(server: Server, folder: Path) -> None:
    del folder
    fill(server, "many", RECORDS, lambda n: b"x" * 100, MANY)
    with spark_session() as spark:
        for kind in (OURS, OURS, OURS, THEIRS):  # the jar's tasks wait half a second each: once is enough
            began = time.perf_counter()
            reader = spark.read.format(kind).option("kafka.bootstrap.servers", server.bootstrap_servers)
            assert reader.option("subscribe", "many").load().count() == RECORDS
            print(f"{MANY:,} partitions, {RECORDS:,} rows: {kind} {time.perf_counter() - began:.1f} s", flush=True)


def rows(server: Server, folder: Path) -> None:
    del folder
    fill(server, "long", ROWS, lambda n: b'{"n":%d}' % n)
    with spark_session() as spark:
        for count in (ROWS // 10, ROWS):
            reader = spark.read.format(OURS).option("kafka.bootstrap.servers", server.bootstrap_servers)
            ends = json.dumps({"long": {"0": count // 2 - 10_000, "1": count // 2 - 10_000}})
            with watched() as found:
                read = reader.option("subscribe", "long").option("endingOffsets", ends).load().count()
            third = len(found) // 3
            for label, part in (("", found), ("first third ", found[:third]), ("last third ", found[-third:])):
                java, python, processes = most(part)
                told = f"Java {java / 1024:,.0f} MB, Python {python / 1024:,.0f} MB in {processes} processes"
                print(f"a batch of {read:,} rows: {label}{told} at most", flush=True)


@contextmanager
def watched() -> Iterator[list[tuple[int, int, int]]]:
    """The memory (kilobytes of Java and of Python) and Python processes there are meanwhile, again and again."""
    found: list[tuple[int, int, int]] = []
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.3):
            found.append(spark_memory(os.getpid()))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield found
    finally:
        ended.set()
        looking.join()


def most(found: Sequence[tuple[int, int, int]]) -> tuple[int, ...]:
    return tuple(map(max, zip(*found, strict=True))) if found else (0, 0, 0)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="spark-scale-") as where, moldau() as broker:
        {"lookup": lookup, "sinks": sinks, "partitions": partitions, "rows": rows}[sys.argv[1]](broker, Path(where))
