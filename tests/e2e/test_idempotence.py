"""Idempotent producers when answers get lost and when the broker dies: no duplicate, no gap, order kept."""

import asyncio
import gc
import threading
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Producer
from kafka import KafkaProducer

from moldau.testing import Broker
from tests.support.broker_process import BrokerProcess
from tests.support.clients import Deliveries, create_topic, quiet, read_all, run, wait_for
from tests.support.dropping_proxy import DroppingProxy, Fate

SECONDS = 40.0


def send_with_librdkafka(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    settings = quiet(bootstrap, enable_idempotence=True, batch_num_messages=20, linger_ms=1)
    producer = Producer({**settings, "retry.backoff.ms": 1, "reconnect.backoff.ms": 1, "reconnect.backoff.max.ms": 20})
    report = Deliveries()
    for value in values:
        producer.produce(topic, value, on_delivery=report)
        producer.poll(0)
    assert producer.flush(SECONDS) == 0
    assert not report.errors, report.errors[:3]
    assert len(report.offsets) == len(values)


def send_with_kafka_python(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    with warnings.catch_warnings():
        # It leaves the sockets of broken connections to the garbage collector.
        warnings.simplefilter("ignore", ResourceWarning)
        _send_with_kafka_python(bootstrap, topic, values)
        gc.collect()


def _send_with_kafka_python(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    producer = KafkaProducer(
        bootstrap_servers=bootstrap,
        enable_idempotence=True,
        batch_size=400,
        linger_ms=1,
        retry_backoff_ms=1,
        reconnect_backoff_ms=1,
        reconnect_backoff_max_ms=20,
    )
    try:
        futures = [producer.send(topic, value) for value in values]
        for future in futures:
            future.get(SECONDS)
    finally:
        producer.close(SECONDS)


def send_with_aiokafka(bootstrap: str, topic: str, values: Sequence[bytes]) -> None:
    async def work() -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=400, linger_ms=1, retry_backoff_ms=5
        )
        async with producer, asyncio.timeout(SECONDS):
            for future in [await producer.send(topic, value) for value in values]:
                await future

    run(work)


Send = Callable[[str, str, Sequence[bytes]], None]
SENDERS = {"librdkafka": send_with_librdkafka, "kafka-python": send_with_kafka_python, "aiokafka": send_with_aiokafka}
senders = pytest.mark.parametrize("send", SENDERS.values(), ids=SENDERS)


@senders
@pytest.mark.parametrize("seed", [1, 2])
def test_lost_answers_leave_no_duplicate_and_no_gap(send: Send, seed: int) -> None:
    values = [b"%06d" % number for number in range(4_000)]
    with DroppingProxy(seed, rate=0.0) as proxy:
        advertised = {"advertised.listeners": f"PLAINTEXT://127.0.0.1:{proxy.port}"}
        with Broker(advertised) as broker:
            proxy.target_port = int(broker.bootstrap_servers.rpartition(":")[2])
            address = f"127.0.0.1:{proxy.port}"
            topic = create_topic(address, "lossy")
            proxy.rate = 0.15
            send(address, topic, values)
            proxy.rate = 0.0
            found = [message.value() for message in read_all(address, topic)]
    assert found == values
    assert proxy.harmed >= 5, "the proxy did no harm: the test shows nothing"
    assert proxy.fates[Fate.PASS] > proxy.harmed
    print(f"{proxy.harmed} of {proxy.fates.total()} requests harmed: {dict(proxy.fates)}")


# kafka-python is left out: it loses sockets on the way, and only the main thread can look away.
@pytest.mark.parametrize("send", [send_with_librdkafka, send_with_aiokafka], ids=["librdkafka", "aiokafka"])
def test_a_killed_broker_leaves_no_duplicate_and_no_gap(send: Send, tmp_path: Path) -> None:
    """`kill -9` and a start on the same folder and port, twice while one producer sends."""
    values = [b"%06d" % number for number in range(30_000)]
    failures: list[BaseException] = []
    was_sending: list[bool] = []
    with BrokerProcess(tmp_path / "data") as broker:
        topic = create_topic(broker.bootstrap_servers, "killed")
        log = broker.data_dir / f"{topic}-0" / f"{0:020}.log"

        def work() -> None:
            try:
                send(broker.bootstrap_servers, topic, values)
            except BaseException as error:
                failures.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(2):
            before = log.stat().st_size
            wait_for(lambda: log.stat().st_size > before + 50_000 or not thread.is_alive(), "records are written")  # noqa: B023 - used at once
            was_sending.append(thread.is_alive())
            broker.kill()
            broker.start()
        thread.join(SECONDS)
        assert not thread.is_alive()
        assert not failures, failures
        assert was_sending[0], "the broker died too late to matter"
        found = [message.value() for message in read_all(broker.bootstrap_servers, topic)]
        assert broker.stop() == 0
    assert found == values
