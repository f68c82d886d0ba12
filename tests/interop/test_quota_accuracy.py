"""Quotas with a stock client: it gets what it is allowed, within five percent, while others do not wait.

On Moldau and on Apache Kafka at the same time, with the same settings. The first ten seconds' worth may come at once,
so the measurement begins after that.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from moldau.wire import messages as m
from tests.interop.apache_kafka import SINGLE_NODE_PROPERTIES, ApacheKafka
from tests.interop.differential import Side
from tests.interop.scenarios.support import new_topic
from tests.support.broker_process import BrokerProcess

LIMIT = 1_000_000
WARM_SECONDS, SECONDS = 14.0, 30.0
VALUE = bytes(10_000)


def _limit(bootstrap: str) -> None:
    kind = m.AlterClientQuotasRequest
    with Side("admin", bootstrap) as admin:
        entries = [
            kind.EntryData([kind.EntityData("client-id", name)], [kind.OpData(key, LIMIT)])
            for name, key in (("slow-writer", "producer_byte_rate"), ("slow-reader", "consumer_byte_rate"))
        ]
        answer = admin.ask(kind(entries), 1)
        assert [each.error_code for each in answer.entries] == [0, 0]
        for topic in ("written", "read", "other"):
            new_topic(admin, topic)


def _measure(step: Callable[[], int]) -> float:
    """Bytes per second, after the burst, of what `step` gets through."""
    started = time.monotonic()
    got, since = 0, 0.0
    while (now := time.monotonic()) < started + WARM_SECONDS + SECONDS:
        count = step()
        if now >= started + WARM_SECONDS:
            since = since or now
            got += count
    return got / (time.monotonic() - since)


def _writing(bootstrap: str) -> float:
    delivered = 0

    def on_delivery(error: object, _: object) -> None:
        nonlocal delivered
        assert error is None, error
        delivered += len(VALUE)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "client.id": "slow-writer",
            "linger.ms": 5,
            "queue.buffering.max.messages": 400,
        }
    )

    def step() -> int:
        nonlocal delivered
        before = delivered
        try:
            producer.produce("written", VALUE, on_delivery=on_delivery)
        except BufferError:
            producer.poll(0.02)
        producer.poll(0)
        return delivered - before

    rate = _measure(step)
    producer.purge()
    return rate


def _reading(bootstrap: str) -> float:
    filler = Producer({"bootstrap.servers": bootstrap, "client.id": "filler"})
    for _ in range(7_000):
        filler.produce("read", VALUE)
        filler.poll(0)
    assert filler.flush(60) == 0
    settings = {"client.id": "slow-reader", "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = Consumer({"bootstrap.servers": bootstrap, "fetch.message.max.bytes": 200_000, **settings})
    consumer.subscribe(["read"])

    def step() -> int:
        message = consumer.poll(0.05)
        return 0 if message is None or message.error() else len(message.value() or b"")

    try:
        return _measure(step)
    finally:
        consumer.close()


def _latency_ms(bootstrap: str, stop: threading.Event) -> float:
    """The 95th percentile of somebody without a limit."""
    producer = Producer({"bootstrap.servers": bootstrap, "client.id": "other", "linger.ms": 0})
    took = []
    while not stop.wait(0.1):
        started = time.monotonic()
        producer.produce("other", b"v")
        producer.flush(10)
        took.append((time.monotonic() - started) * 1_000)
    return sorted(took)[len(took) * 95 // 100]


@pytest.mark.long
def test_a_limited_client_gets_what_it_may_and_others_do_not_wait(tmp_path: Path) -> None:
    settings = SINGLE_NODE_PROPERTIES | {"node.id": "1"}
    with ApacheKafka(settings) as kafka, BrokerProcess(tmp_path / "data", 0, **settings) as moldau:
        servers = {"moldau": moldau.bootstrap_servers, "kafka": kafka.bootstrap_servers}
        for bootstrap in servers.values():
            _limit(bootstrap)
        stop = threading.Event()
        with ThreadPoolExecutor(8) as pool:
            latencies = {name: pool.submit(_latency_ms, each, stop) for name, each in servers.items()}
            written = {name: pool.submit(_writing, each) for name, each in servers.items()}
            read = {name: pool.submit(_reading, each) for name, each in servers.items()}
            try:
                rates = {name: (written[name].result(), read[name].result()) for name in servers}
            finally:
                stop.set()
            told = {name: each.result() for name, each in latencies.items()}
    print(f"bytes per second written and read: {rates}; 95 % of others within ms: {told}")
    for rate in rates["moldau"]:
        assert rate == pytest.approx(LIMIT, rel=0.05)
    assert told["moldau"] < 100
