"""`moldau bench produce|consume|latency`: how much, how fast, and how evenly. For any cluster, with librdkafka."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from moldau.cli.delivery import serve_callbacks, still_out
from moldau.cli.failure import counted, fail, misused, tell
from moldau.cli.frame import Commands, Output, Target
from moldau.cli.target import TIMEOUT_SECONDS, is_about_its_group

if TYPE_CHECKING:
    from confluent_kafka import Consumer, KafkaError, Message, Producer

app = Commands(help="Measure a cluster: throughput, latency percentiles, end to end.")

Topic = Annotated[
    str | None, typer.Argument(metavar="[TOPIC]", help="An existing topic; else one is made, and deleted afterwards.")
]
Records = Annotated[int, typer.Option("--records", "-n", min=1, help="How many records.")]
Size = Annotated[int, typer.Option("--size", "-s", min=1, max=900_000, help="Bytes of each value.")]
Partitions = Annotated[int, typer.Option("--partitions", "-p", min=1, help="Of a topic that is made.")]
Replication = Annotated[int, typer.Option("--replication-factor", "-r", min=-1, help="Of a topic that is made.")]
Acks = Annotated[str, typer.Option("--acks", help="0, 1 or all.")]
Plot = Annotated[bool, typer.Option("--plot", help="Also draw how latencies are spread.")]
_QUANTILES = {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99, "p999": 0.999}
_BARS = 12
_BAR_WIDTH = 40


def percentiles(values_ms: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values_ms)
    found = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in _QUANTILES.items()}
    return {name: round(value, 2) for name, value in {**found, "max": ordered[-1]}.items()}


def histogram(values_ms: Sequence[float]) -> list[str]:
    """Bars over times that double; what nobody took is left out at both ends."""
    counts: dict[int, int] = {}
    for value in values_ms:
        power = max(-4, min(_BARS, (int(value * 16) | 1).bit_length() - 4))
        counts[power] = counts.get(power, 0) + 1
    most = max(counts.values())
    lines = []
    for power in range(min(counts), max(counts) + 1):
        count = counts.get(power, 0)
        bar = "█" * max(1 if count else 0, round(_BAR_WIDTH * count / most))
        lines.append(f"< {2.0**power:>9.3f} ms  {count:>9}  {bar}".rstrip())
    return lines


@contextmanager
def _topic(target: Target, named: str | None, partitions: int, copies: int) -> Iterator[str]:
    if named is not None:
        from moldau.client.connection import BrokerError

        with target.admin() as asking:  # librdkafka would make the topic by asking for it
            for each in asking.metadata([named]).topics:
                if each.error_code:
                    raise BrokerError(each.error_code, named)
        yield named
        return
    from confluent_kafka.admin import NewTopic

    name = f"moldau-bench-{os.getpid()}-{int(time.time())}"
    admin = target.admin_client()
    (future,) = admin.create_topics([NewTopic(name, partitions, copies)]).values()
    future.result(TIMEOUT_SECONDS)
    try:
        yield name
    finally:
        (future,) = admin.delete_topics([name]).values()
        future.result(TIMEOUT_SECONDS)


def _check_acks(acks: str) -> None:
    if acks not in ("0", "1", "all", "-1"):
        misused(f"--acks {acks}: 0, 1 or all")


def _show(output: Output, title: str, found: dict[str, Any], latencies: Sequence[float], *, plot: bool) -> None:
    if output.as_json or output.template is not None:
        output.show([found], document=found)
        return
    output.show([found], title=title)
    if plot and latencies:
        for line in histogram(latencies):
            output.line(line)


@app.command()
def produce(
    target: Target,
    output: Output,
    topic: Topic = None,
    records: Records = 100_000,
    size: Size = 100,
    rate: Annotated[float | None, typer.Option("--rate", min=1, help="At most so many records a second.")] = None,
    acks: Acks = "all",
    compression: Annotated[str, typer.Option("--compression", "-z", help="none, gzip, snappy, lz4, zstd.")] = "none",
    linger_ms: Annotated[float, typer.Option("--linger", min=0, help="Milliseconds to wait for more.")] = 5,
    partitions: Partitions = 1,
    replication_factor: Replication = -1,
    plot: Plot = False,
) -> None:
    """How many records a second can be written, and how long each waits for its acknowledgement."""
    _check_acks(acks)
    with _topic(target, topic, partitions, replication_factor) as name:
        found, latencies = _produce(target, name, records, size, rate, acks, compression, linger_ms)
    _show(output, f"produced {counted(records, 'record')} of {counted(size, 'byte')}", found, latencies, plot=plot)


def _produce(
    target: Target, topic: str, records: int, size: int, rate: float | None, acks: str, compression: str, linger: float
) -> tuple[dict[str, Any], list[float]]:
    settings = {"acks": acks, "compression.type": compression, "linger.ms": linger, "enable.idempotence": acks == "all"}
    producer = _started(target, topic, settings)
    value = os.urandom(size // 2).hex().encode().ljust(size, b"x")  # half of it can be compressed
    latencies: list[float] = []
    failures: list[str] = []
    now = time.perf_counter

    def on_delivery(error: KafkaError | None, message: Message) -> None:
        if error is not None:
            failures.append(error.str())
        else:
            latencies.append(float(message.latency() or 0) * 1000)

    began = now()
    with _progress("producing", records) as advance:
        for number in range(records):
            while rate is not None and (wait := began + number / rate - now()) > 0:
                serve_callbacks(producer, wait)  # a record's time ends where librdkafka tells of it
            while True:
                try:
                    producer.produce(topic, value, on_delivery=on_delivery)
                    break
                except BufferError:
                    serve_callbacks(producer, 0.05)
            if not number % 100:
                serve_callbacks(producer)
            if not number % 1000:
                advance(len(latencies))
        while still_out(producer):
            advance(len(latencies))
    seconds = now() - began
    if failures:
        fail(f"{len(failures)} of {records} records were not delivered: {failures[0]}")
    found = {
        "records_per_second": round(records / seconds),
        "mb_per_second": round(records * size / seconds / 1e6, 2),
        "seconds": round(seconds, 3),
        **{f"{name}_ms": each for name, each in percentiles(latencies).items()},
    }
    return found, latencies


def _started(target: Target, topic: str, settings: dict[str, Any]) -> Producer:
    """A producer that could write at once: connected, and with its id, which takes librdkafka half a second.

    Nothing but its statistics says when it has one.
    """
    import json

    if not settings["enable.idempotence"]:
        producer = target.producer(**settings)
        producer.list_topics(topic, timeout=TIMEOUT_SECONDS)
        return producer
    seen = False

    def look(statistics: str) -> None:
        nonlocal seen
        seen = seen or json.loads(statistics)["eos"]["idemp_state"] == "Assigned"

    producer = target.producer(**settings, **{"statistics.interval.ms": 100, "stats_cb": look})
    producer.list_topics(topic, timeout=TIMEOUT_SECONDS)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not seen and time.monotonic() < deadline:  # who gets no id hears why from the first record
        serve_callbacks(producer, 0.05)
    return producer


@contextmanager
def _progress(what: str, total: int) -> Iterator[Any]:
    import sys

    if not sys.stderr.isatty():
        yield lambda done: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=total)
        yield lambda done: shown.update(task, completed=done)


@app.command()
def consume(
    target: Target,
    output: Output,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="A topic; else one is made and filled.")
    ] = None,
    records: Records = 100_000,
    size: Size = 100,
    timeout: Annotated[float, typer.Option("--timeout", min=0.1, help="Seconds without a record that end it.")] = 10,
    partitions: Partitions = 1,
    replication_factor: Replication = -1,
) -> None:
    """How many records a second can be read, from the beginning."""
    with _topic(target, topic, partitions, replication_factor) as name:
        if topic is None:
            _produce(target, name, records, size, None, "all", "none", 5)
        consumer = target.consumer(**{"enable.partition.eof": True, "queued.min.messages": 1_000_000})
        try:
            found = _consume(consumer, name, records, timeout)
        finally:
            consumer.close()
    _show(output, f"consumed {counted(found['records'], 'record')}", found, (), plot=False)


def _consume(consumer: Consumer, topic: str, records: int, timeout: float) -> dict[str, Any]:
    from confluent_kafka import OFFSET_BEGINNING, TopicPartition

    described = consumer.list_topics(topic, timeout=TIMEOUT_SECONDS).topics[topic]
    if described.error is not None:
        from confluent_kafka import KafkaException

        raise KafkaException(described.error)
    began = quiet_since = time.perf_counter()
    consumer.assign([TopicPartition(topic, index, OFFSET_BEGINNING) for index in described.partitions])
    unfinished = len(described.partitions)
    count = data = 0
    first: float | None = None
    last = began
    with _progress("consuming", records) as advance:
        while count < records and unfinished and time.perf_counter() - quiet_since < timeout:
            batch = consumer.consume(min(10_000, records - count), 0.1)
            if batch:
                quiet_since = time.perf_counter()
            for message in batch:
                if is_about_its_group(message):
                    continue
                if message.error() is not None:
                    unfinished -= 1
                    continue
                if first is None:
                    first = quiet_since
                last = quiet_since
                count += 1
                data += len(message) + len(message.key() or b"")
            advance(count)
    if not count:
        fail(f"there is nothing to read in {topic}")
    seconds = last - began  # that a partition has ended is known later
    return {
        "records": count,
        "records_per_second": round(count / seconds),
        "mb_per_second": round(data / seconds / 1e6, 2),
        "seconds": round(seconds, 3),
        "first_record_ms": round(((first or began) - began) * 1000, 1),
    }


@app.command()
def latency(
    target: Target,
    output: Output,
    topic: Topic = None,
    records: Records = 1_000,
    size: Size = 100,
    acks: Acks = "all",
    replication_factor: Replication = -1,
    plot: Plot = False,
) -> None:
    """End to end: from handing a record to a producer until a consumer has it, one record at a time."""
    _check_acks(acks)
    with _topic(target, topic, 1, replication_factor) as name:
        latencies = _round_trips(target, name, records, size, acks)
    found = {"records": records, **{f"{each}_ms": value for each, value in percentiles(latencies).items()}}
    _show(output, f"{counted(records, 'record')} of {counted(size, 'byte')}, end to end", found, latencies, plot=plot)


def _next(consumer: Consumer) -> Message | None:
    while (message := consumer.poll(TIMEOUT_SECONDS)) is not None and is_about_its_group(message):
        pass
    return message


def _round_trips(target: Target, topic: str, records: int, size: int, acks: str) -> list[float]:
    from confluent_kafka import TopicPartition

    producer = target.producer(**{"acks": acks, "linger.ms": 0})
    consumer = target.consumer(**{"fetch.wait.max.ms": 500, "fetch.min.bytes": 1})
    value = os.urandom(size)
    latencies = []
    try:
        _, high = consumer.get_watermark_offsets(TopicPartition(topic, 0), TIMEOUT_SECONDS)
        consumer.assign([TopicPartition(topic, 0, high)])
        producer.produce(topic, b"warm-up", partition=0)
        while still_out(producer):
            pass
        if _next(consumer) is None:
            fail(f"a record written to {topic} did not come back in {TIMEOUT_SECONDS:g} s")
        with _progress("measuring", records) as advance:
            for number in range(records):
                began = time.perf_counter()
                producer.produce(topic, value, partition=0)
                serve_callbacks(producer)
                message = _next(consumer)
                if message is None or message.error() is not None:
                    reason = message.error().str() if message is not None and message.error() else "nothing came"  # type: ignore[union-attr]
                    fail(f"record {number} did not come back: {reason}")
                latencies.append((time.perf_counter() - began) * 1000)
                if not number % 50:
                    advance(number)
    except KeyboardInterrupt:
        if not latencies:
            raise
        tell(f"stopped after {counted(len(latencies), 'record')}")
    finally:
        consumer.close()
    return latencies
