"""Delayed messages: scheduled, cancelled and fired; a restart with all of them pending; how late they are.

DELAYS=1000000 by default. The relay is a process of its own, as in production.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.broker import Server, moldau
from benchmarks.rows import Row
from moldau.toolkit import Producer
from moldau.toolkit.delays import Delays
from moldau.toolkit.delays.entry import DUE
from moldau.toolkit.reading import read_topic
from tests.support.broker_process import resident_bytes

COUNT = int(os.environ.get("DELAYS", "1000000"))
PER_SECOND = 10_000
SECONDS = 10
VALUE = bytes(100)
_LARGE = {"queue.buffering.max.messages": 2_000_000, "queue.buffering.max.kbytes": 1_000_000, "linger.ms": 20}


@contextmanager
def relay(server: Server) -> Iterator[tuple[subprocess.Popen[str], str]]:
    command = [sys.executable, "-m", "moldau", "relay", "-b", server.bootstrap_servers, "--http", "127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+?:\d+", process.stdout.readline())
        assert found is not None
        try:
            yield process, found[0]
        finally:
            process.kill()


def health(url: str) -> dict[str, Any]:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)["parts"]["delays"]
    except urllib.error.HTTPError as error:
        with error:
            return {"ok": False, **json.load(error)["parts"]["delays"]}
    return found


def until(url: str, condition: Callable[[dict[str, Any]], bool]) -> float:
    """When it came true."""
    while not condition(health(url)):
        time.sleep(0.1)
    return time.perf_counter()


def schedule(delays: Delays, count: int, prefix: str, at: Callable[[int], int]) -> None:
    for number in range(count):
        delays.send("fired", VALUE, key=b"k%d" % (number % 1000), at=at(number), id=f"{prefix}{number}")


def rows() -> list[Row]:
    with moldau() as server:
        producer = Producer(server.bootstrap_servers, config=_LARGE)
        delays = Delays(producer)
        producer.send("fired", b"").result(30)
        now_ms = time.time_ns() // 1_000_000
        with relay(server) as (process, url):
            until(url, lambda it: bool(it["ok"]) and len(it["partitions"]) == 4)
            began = time.perf_counter()
            schedule(delays, COUNT, "far", lambda number: now_ms + 86_400_000 + number)
            producer.flush(600)
            scheduled = COUNT / (until(url, lambda it: it["scheduled"] >= COUNT) - began)
            memory = resident_bytes(process.pid)
        with relay(server) as (process, url):
            began = time.perf_counter()
            restart = until(url, lambda it: bool(it["ok"]) and it["pending"] >= COUNT) - began
            began = time.perf_counter()
            for number in range(COUNT):
                delays.cancel(f"far{number}")
            producer.flush(600)
            cancelled = COUNT / (until(url, lambda it: it["cancelled"] >= COUNT) - began)
            began = time.perf_counter()
            schedule(delays, COUNT, "due", lambda _: now_ms)
            producer.flush(600)
            fired = COUNT / (until(url, lambda it: it["delivered"] >= COUNT) - began)
            late = lateness(server, delays, url)
        producer.close()
    return [
        Row(f"schedule {COUNT:,}, a day ahead", scheduled, "messages/s"),
        Row(f"cancel {COUNT:,} of them", cancelled, "messages/s"),
        Row(f"schedule and fire {COUNT:,} that are due", fired, "messages/s"),
        Row(f"restart with {COUNT:,} pending, from the topics", restart, "s", better="lower"),
        Row(f"memory of the relay with {COUNT:,} pending", memory / 1e6, "MB", better="lower"),
        Row(f"late, median, at {PER_SECOND:,} due a second", statistics.median(late), "ms", better="lower"),
        Row(f"late, the latest, at {PER_SECOND:,} due a second", late[-1], "ms", {}, "< 1,000 ms", better="lower"),
    ]


def lateness(server: Server, delays: Delays, url: str) -> list[int]:
    """By how much messages come late, in milliseconds, sorted: their timestamp is when they were sent on."""
    before = health(url)["delivered"]
    count = PER_SECOND * SECONDS
    start_ms = time.time_ns() // 1_000_000 + 15_000  # enough to schedule them all
    for number in range(count):
        delays.send("late", VALUE, at=start_ms + number * 1_000 // PER_SECOND, id=f"late{number}")
    until(url, lambda it: it["delivered"] >= before + count)
    found = []
    for message in read_topic({"bootstrap.servers": server.bootstrap_servers}, "late"):
        headers = dict(message.headers() or ())
        found.append(message.timestamp()[1] - int(headers[DUE] or b"0"))
    assert len(found) == count
    assert min(found) >= 0, "early"
    return sorted(found)


if __name__ == "__main__":
    for row in rows():
        print(f"{row.name:60} {row.ours:12,.1f} {row.unit}")
