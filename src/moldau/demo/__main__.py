"""`make demo`: a broker as a process of its own, records there and back, a restart; the toolkit; pipelines on Spark."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition
from rich.console import Console

from moldau.demo.summary import Summary

RECORDS = 100_000
TOPIC = "vltava"


@contextmanager
def broker(data_dir: str) -> Iterator[tuple[str, float]]:
    """A broker process: its address, and the milliseconds it took to be ready."""
    started = time.perf_counter()
    command = [sys.executable, "-m", "moldau", "serve", "--listen", "127.0.0.1:0", "--data-dir", data_dir]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own command
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready "):
            raise RuntimeError("the broker did not start; its messages are above")
        try:
            yield line.split()[1], (time.perf_counter() - started) * 1000
        finally:
            process.terminate()


def send(address: str) -> float:
    """Records per second into the topic, acknowledged by all in-sync replicas."""
    limits = {"linger.ms": 5, "queue.buffering.max.messages": RECORDS, "log_level": 3}
    producer = Producer({"bootstrap.servers": address} | limits)
    failures = []
    started = time.perf_counter()
    for number in range(RECORDS):
        producer.produce(
            TOPIC,
            f"drop {number}",
            str(number % 100),
            on_delivery=lambda error, _: failures.append(error) if error else None,
        )
    producer.flush()
    if failures:
        raise RuntimeError(f"{len(failures)} records were not delivered: {failures[0]}")
    return RECORDS / (time.perf_counter() - started)


def receive(address: str) -> tuple[float, int]:
    """Records per second out of it, and how many arrived in order and complete."""
    consumer = Consumer({"bootstrap.servers": address, "group.id": "demo", "enable.auto.commit": False, "log_level": 3})
    consumer.assign([TopicPartition(TOPIC, 0, OFFSET_BEGINNING)])
    started = time.perf_counter()
    seen = 0
    while seen < RECORDS:
        messages = consumer.consume(10_000, timeout=20)
        if not messages:
            raise RuntimeError(f"only {seen} of {RECORDS} records came back")
        for message in messages:
            if message.error() is not None or message.value() != f"drop {seen}".encode():
                raise RuntimeError(f"record {seen} came back as {message.value()!r}")
            seen += 1
    consumer.close()
    return RECORDS / (time.perf_counter() - started), seen


def main() -> None:
    console, summary = Console(), Summary()
    with_browser = "--console" in sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="moldau-demo-") as data_dir, spark_ahead() as spark:
        with broker(data_dir) as (address, milliseconds):
            console.print(f"[bold]moldau serve[/] is ready on {address} after {milliseconds:.0f} ms")
            rate = send(address)
            console.print(f"librdkafka sent {RECORDS:,} records to topic [bold]{TOPIC}[/], {rate:,.0f} a second")
            rate, seen = receive(address)
            console.print(f"and read {seen:,} of them back, in order, {rate:,.0f} a second")
            summary.expect("broker", "records read back, in order", seen, RECORDS)
        with broker(data_dir) as (address, milliseconds):
            console.print(f"Stopped and started again in {milliseconds:.0f} ms: ", end="")
            _, seen = receive(address)
            console.print(f"all {seen:,} records are still there.")
            summary.expect("broker", "records there after a restart", seen, RECORDS)
            with browser(address, console) if with_browser else nullcontext():
                show_toolkit(address, Path(data_dir) / "shop", console, summary)
                if with_browser:
                    console.input("Look around in the browser; Enter goes on with the pipelines. ")
        show_pipelines(Path(data_dir) / "pipelines", console, summary, spark)
    summary.show(console)


@contextmanager
def browser(address: str, console: Console) -> Iterator[None]:
    """A console beside the demo's broker, to look at what the shop does."""
    if find_spec("starlette") is None:
        raise RuntimeError("--console needs more: pip install 'moldau[console]'")
    command = [sys.executable, "-m", "moldau", "console", "-b", address, "--listen", "127.0.0.1:0", "--refresh", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: S603 - our own command
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line.startswith("ready "):
            raise RuntimeError("the console did not start; its messages are above")
        console.print(f"[bold]moldau console[/] shows it at {line.split()[1]}")
        try:
            yield
        finally:
            process.terminate()


def show_toolkit(address: str, folder: Path, console: Console, summary: Summary) -> None:
    """An order service, if the toolkit is installed."""
    if any(find_spec(name) is None for name in ("msgspec", "cronsim", "sqlalchemy", "aiosqlite")):
        console.print("For handlers, outbox, retries, dead letters and delays: pip install 'moldau[toolkit]'.")
        return
    from moldau.demo import toolkit

    toolkit.show(address, folder, console, summary)


@contextmanager
def spark_ahead() -> Iterator[Future[Any] | None]:
    """Starts Spark, if it is installed, beside what is shown before it."""
    if find_spec("pyspark") is None:
        yield None
        return
    from moldau.demo import pipelines

    with ThreadPoolExecutor(1) as beside:
        yield beside.submit(pipelines.start_spark)


def show_pipelines(folder: Path, console: Console, summary: Summary, spark: Future[Any] | None) -> None:
    """The ready pipelines on Spark, if it is installed."""
    if spark is None:
        console.print("For the data pipelines: pip install 'moldau[spark,delta,sql,java]'.")
        return
    from moldau.demo import pipelines

    spark.result()
    pipelines.show(folder, console, summary)


if __name__ == "__main__":
    main()
